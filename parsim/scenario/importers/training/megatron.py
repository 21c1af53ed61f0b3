"""Megatron-LM's options, from a shell script or as plain arguments, as a scenario.

What the options mean: NVIDIA/Megatron-LM, megatron/training/arguments.py (`validate_args`) and
megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

from typing import Any

from parsim.scenario.importers.training.command import Invocation
from parsim.scenario.importers.training.draft import Draft
from parsim.scenario.importers.training.environment import read_environment
from parsim.scenario.importers.training.keys import Key, Source
from parsim.scenario.importers.training.machine import write_launched
from parsim.scenario.importers.training.megatron_model import write_architecture
from parsim.scenario.importers.training.megatron_tables import TABLES
from parsim.scenario.importers.training.models import write_micro_batch, write_sequence_length
from parsim.scenario.support import unsupported

OF_2021 = ("DDP_impl", "checkpoint_activations", "activations_checkpoint_method", "activations_checkpoint_num_layers")
"""options that only Megatron-LM of 2020 to early 2022 had"""
OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "momentum", "lion": "lion"}
ATTENTIONS = {"flash": "flash2", "fused": "cudnn", "unfused": "eager", "local": "eager"}
CONTEXTS = {"p2p": "ring", "a2a": "ulysses", "allgather": "all-gather", "all_gather": "all-gather"}
MODULES = {"core_attn": "attention", "mlp": "mlp", "layernorm": "norm"}
SHARDING = {"no_shard": "ddp", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "fsdp"}
OTHER_MODELS = ("pretrain_t5", "pretrain_bert", "pretrain_ict", "pretrain_vision", "pretrain_mamba", "pretrain_retro", "pretrain_vlm")


def read_megatron(draft: Draft, call: Invocation) -> None:
    """Write the scenario of a Megatron-LM command into `draft`."""
    source = Source(call.options)
    launch = Source(call.launch)
    for name in OTHER_MODELS:
        if name in call.program:
            draft.remark(f"{call.program} does not train a GPT; the model below is one", "model", "give the model with --model")
    tensor = _size(draft, source, "tensor", "tensor_model_parallel_size", "model_parallel_size")
    layers = write_architecture(draft, source, tensor)
    write_launched(draft, launch)
    length = write_sequence_length(draft, source.get("seq_length", "encoder_seq_length", "decoder_seq_length"))
    _batch(draft, source, length)
    _precision(draft, source)
    _optimizer(draft, source)
    _dropout(draft, source)
    _attention(draft, source)
    _recompute(draft, source)
    _tensor(draft, source)
    _pipeline(draft, source, layers)
    _context_and_experts(draft, source)
    _data(draft, source)
    _software(draft, source)
    read_environment(draft, call.environment)
    draft.close(source, TABLES)
    draft.close(launch, TABLES)


def _size(draft: Draft, source: Source, axis: str, *names: str) -> int:
    key = source.get(*names)
    value = draft.whole(key, 1) or 1
    if key is not None:
        draft.write(f"parallel.{axis}.size", value, key)
    return value


def _batch(draft: Draft, source: Source, length: int | None) -> None:
    micro, total = source.get("micro_batch_size", "batch_size"), source.get("global_batch_size")
    whole = draft.whole(total, 1)
    write_micro_batch(draft, micro)
    if total is None:
        draft.write("training.gradient_accumulation", 1, note="without --global-batch-size: micro-batch x data-parallel size")
    elif whole is not None:
        draft.write("training.global_batch", whole, total)
    ramp = source.get("rampup_batch_size")
    if ramp is not None:
        draft.unmodelled(ramp, "steps of the ramp-up are smaller; the full batch is simulated")
    samples, iterations = source.get("train_samples"), source.get("train_iters")
    count, steps = draft.whole(samples, 1), draft.whole(iterations, 1)
    if count and length:
        draft.write("training.tokens", count * length, samples, note=f"x {length} tokens")
        draft.harmless(iterations, "--train-samples counts")
    elif steps and whole and length:
        draft.write("training.tokens", steps * whole * length, iterations, note=f"x {whole} samples x {length} tokens")
    else:
        for key in (samples, iterations):
            draft.harmless(key, "how long the training lasts")
    tokens = source.get("train_tokens")
    if (number := draft.whole(tokens, 1)) is not None:
        if draft.value("training.tokens") is None:
            draft.write("training.tokens", number, tokens)
        else:
            draft.harmless(tokens, "samples or iterations say it")


def _precision(draft: Draft, source: Source) -> None:
    """--bf16 accumulates gradients in fp32 unless they are reduced in bf16; --fp16 does so on demand."""
    bf16, fp16, fp8 = source.get("bf16"), source.get("fp16"), source.get("fp8_format", "fp8_e4m3", "fp8_hybrid")
    low, high, main = source.get("grad_reduce_in_bf16"), source.get("accumulate_allreduce_grads_in_fp32"), source.get("main_grads_dtype")
    halving = [low] if low is not None and draft.flag(low) else []
    halving += [main] if main is not None and main.text in ("bf16", "fp16") else []
    changes: dict[str, Any] = {}
    used: list[Key | None] = []
    if fp8 is not None and fp8.value is not False:
        preset, used = "fp8", [fp8, bf16, *halving]
        changes |= {"gradients": "bf16"} if halving else {}
    elif draft.flag(bf16):
        preset, used = "bf16" if halving else "bf16-fp32grad", [bf16, *halving]
    elif draft.flag(fp16):
        whole = high is not None and draft.flag(high)
        preset, used = "fp16-fp32grad" if whole else "fp16", [fp16, high if whole else None]
    else:
        preset = "fp32"
    _states(draft, source, changes, used)
    value: Any = {"preset": preset, **changes} if changes else preset
    draft.write("training.precision", value, *used, note="" if any(used) else "neither --bf16 nor --fp16")
    for key in source.all("bf16", "fp16", "grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32", "main_grads_dtype"):
        if not draft.settled(key):
            draft.harmless(key, "switched off" if key in (bf16, fp16) else "the gradients have that type anyway")


def _states(draft: Draft, source: Source, changes: dict[str, Any], used: list[Key | None]) -> None:
    """--use-precision-aware-optimizer: types of master weights and moments."""
    master, first, second = source.get("main_params_dtype"), source.get("exp_avg_dtype"), source.get("exp_avg_sq_dtype")
    aware = source.get("use_precision_aware_optimizer")
    given = [key for key in (master, first, second) if key is not None]
    if not draft.flag(aware):
        for key in (*given, *([aware] if aware else [])):
            draft.harmless(key, "it counts with --use-precision-aware-optimizer only")
        return
    draft.harmless(aware, "its types are given one by one")
    if master is not None and master.value == "fp16":
        changes["master"] = "fp16"
        used.append(master)
    else:
        draft.only_if(master, ("fp32",), "parsim has fp32 and fp16 masters", "that is so anyway")
    if first is not None and second is not None and first.value == second.value and first.value in ("bf16", "fp16", "fp8"):
        changes["optimizer"] = first.value
        used += [first, second]
    else:
        for moment in (first, second):
            draft.only_if(moment, ("fp32",), "the two moments have one type in parsim", "that is so anyway")


def _optimizer(draft: Draft, source: Source) -> None:
    kind, clip = source.get("optimizer"), source.get("clip_grad")
    if kind is None:
        draft.write("training.optimizer.name", "adam", note="--optimizer is adam if not given")
    elif kind.text in OPTIMIZERS:
        draft.write("training.optimizer.name", OPTIMIZERS[kind.text], kind)
    else:
        draft.unmodelled(kind, f"adamw stands in for it; parsim has {', '.join(OPTIMIZERS.values())}")
    limit = draft.number(clip)
    if limit is not None:
        draft.write("training.optimizer.clip_gradients", limit > 0, clip)


def _dropout(draft: Draft, source: Source) -> None:
    """Megatron drops hidden states and attention probabilities with 0.1 each if nothing is said."""
    hidden, attention = source.get("hidden_dropout"), source.get("attention_dropout")
    share, weights = draft.number(hidden), draft.number(attention)
    first, second = (0.1 if value is None else value for value in (share, weights))
    same = attention if (first > 0) == (second > 0) else None
    draft.write("training.dropout", first, hidden, same, note="" if hidden else "--hidden-dropout is 0.1 if not given")
    if (first > 0) == (second > 0):
        return
    if first and not second and "model.family" in draft.lines:
        draft.write("model.attention_dropout", False, attention)
    elif attention is not None:
        draft.unmodelled(attention, "parsim has one probability; without --hidden-dropout nothing is dropped")
    else:
        draft.remark("--attention-dropout is 0.1 if not given; parsim has one probability, and --hidden-dropout is 0", "training.dropout")


def _attention(draft: Draft, source: Source) -> None:
    flash, backend = source.get("use_flash_attn"), source.get("attention_backend")
    if backend is not None:
        value = str(backend.value).rpartition(".")[2]
        if value in ATTENTIONS:
            draft.write("training.attention", ATTENTIONS[value], backend)
        else:
            draft.only_if(backend, ("auto",), "parsim knows flash, fused, unfused, local and auto", "the stack chooses, as in parsim")
        if flash is not None:
            draft.harmless(flash, f"{backend.written} counts")
    elif flash is not None and draft.flag(flash):
        draft.write("training.attention", "flash2", flash)
    else:
        draft.harmless(flash, "switched off")


def _recompute(draft: Draft, source: Source) -> None:
    get = source.get
    selective, granularity, old = get("recompute_activations"), get("recompute_granularity"), get("checkpoint_activations")
    method = get("recompute_method", "activations_checkpoint_method")
    number = get("recompute_num_layers", "activations_checkpoint_num_layers", "checkpoint_num_layers")
    modules = get("recompute_modules")
    layers = draft.whole(number, 1) or 1
    full = old is not None or (method is not None and granularity is None) or (granularity is not None and granularity.value == "full")
    if full and selective is None:
        value: Any = {"blocks": layers} if method is not None and method.value == "block" else "full" if layers == 1 else {"every": layers}
        draft.write("training.recompute", value, granularity, old, method, number)
    elif selective is not None or (granularity is not None and granularity.value == "selective"):
        wanted = ["core_attn"] if modules is None else modules.value if isinstance(modules.value, list) else [str(modules.value)]
        parts = [MODULES[name] for name in wanted if name in MODULES]
        draft.write("training.recompute", {"selective": parts or ["attention"]}, granularity, selective)
        if modules is not None and parts and len(parts) == len(wanted):
            draft.write("training.recompute", {"selective": parts}, granularity, selective, modules)
        elif modules is not None:
            others = ", ".join(name for name in wanted if name not in MODULES)
            draft.unmodelled(modules, f"parsim recomputes {', '.join(MODULES.values())} selectively, not {others}")
    for key in (granularity, method, number, modules):
        if key is not None and not draft.settled(key):
            draft.unmodelled(key, "of no meaning beside the other options of recomputation")


def _tensor(draft: Draft, source: Source) -> None:
    sequence = source.get("sequence_parallel")
    wide = draft.value("parallel.tensor.size") not in (None, 1)
    if sequence is not None and wide:
        draft.write("parallel.tensor.sequence_parallel", draft.flag(sequence), sequence)
    else:
        draft.harmless(sequence, "there is one tensor rank")
    late = source.get("no_async_tensor_model_parallel_allreduce")
    if late is not None and draft.flag(late):
        draft.write("parallel.tensor.overlap", "none", late)
    elif wide and draft.value("software.profile") is None and any(name in source for name in OF_2021):
        draft.write("parallel.tensor.overlap", "none", note="Megatron-LM of 2021 hid no all-reduce under the weight gradient")


def _pipeline(draft: Draft, source: Source, layers: int | None) -> None:
    get = source.get
    stages = _size(draft, source, "pipeline", "pipeline_model_parallel_size")
    per_chunk, chunks = get("num_layers_per_virtual_pipeline_stage"), get("num_virtual_stages_per_pipeline_rank")
    virtual = draft.whole(chunks, 1)
    each = draft.whole(per_chunk, 1)
    key = chunks or per_chunk
    if virtual is None and each is not None and layers is not None and per_chunk is not None:
        virtual, rest = divmod(layers, stages * each)
        if rest:
            text = f"{layers} layers / ({stages} stages x {each} layers per chunk) = {layers / (stages * each):.4g} is not whole"
            draft.errors.append(per_chunk.finding(text, "use a divisor of the layers of a stage"))
    if per_chunk is not None and chunks is not None:
        draft.harmless(per_chunk, f"{chunks.written} counts")
    if virtual is not None and key is not None and virtual > 1:
        draft.write("parallel.pipeline.schedule", "interleaved", key)
        draft.write("parallel.pipeline.virtual_stages", virtual, key)
    elif key is not None and virtual == 1:
        draft.harmless(key, "one chunk per rank: the schedule is 1F1B")
    elif key is not None:
        draft.unmodelled(key, "how many chunks these are is known with --num-layers only")
    _split(draft, source, stages, layers, virtual or 1)
    for name, path in (("no_overlap_p2p_communication", "overlap_sends"), ("no_scatter_gather_tensors_in_pipeline", "scatter_sends")):
        switch = get(name)
        if switch is not None:
            draft.write(f"parallel.pipeline.{path}", not draft.flag(switch), switch)
    order = get("use_tp_pp_dp_mapping")
    if order is not None and draft.flag(order):
        draft.write("parallel.order", ["tensor", "context", "pipeline", "data"], order)
    else:
        draft.harmless(order, "switched off")


def _split(draft: Draft, source: Source, stages: int, layers: int | None, virtual: int) -> None:
    """Stages with fewer layers: the first, the last, or both."""
    first, last = source.get("decoder_first_pipeline_num_layers"), source.get("decoder_last_pipeline_num_layers")
    embedding, loss = source.get("account_for_embedding_in_pipeline_split"), source.get("account_for_loss_in_pipeline_split")
    used = [key for key in (first, last, embedding, loss) if key is not None]
    if not used:
        return
    heads, tails = draft.whole(first, 1), draft.whole(last, 1)
    ends = [(heads, first), (tails, last)]
    if layers is None or virtual > 1 or stages < 2:
        for key in used:
            draft.unmodelled(key, "parsim needs the layers of every stage, parallel.pipeline.split")
        return
    if first is None and last is None:
        whole = layers + draft.flag(embedding) + draft.flag(loss)
        each = whole // stages
        counts = [each - (i == 0 and draft.flag(embedding)) - (i == stages - 1 and draft.flag(loss)) for i in range(stages)]
        rest = whole % stages
    else:
        known = sum(value or 0 for value, _ in ends)
        inner = stages - sum(value is not None for value, _ in ends)
        each, rest = divmod(layers - known, inner) if inner else (0, layers - known)
        counts = ([heads] if heads else []) + [each] * inner + ([tails] if tails else [])
    if rest:
        draft.errors.append(used[0].finding(f"{layers} layers do not fill {stages} stages this way: {rest} are left over"))
        return
    draft.write("parallel.pipeline.split", counts, *used)


def _context_and_experts(draft: Draft, source: Source) -> None:
    size = _size(draft, source, "context", "context_parallel_size")
    kind = source.get("cp_comm_type")
    word = kind.value if kind is not None and isinstance(kind.value, str) else ""
    if size == 1:
        draft.harmless(kind, "there is one context rank")
    elif word in CONTEXTS:
        draft.write("parallel.context.method", CONTEXTS[word], kind)
    else:
        draft.unmodelled(kind, f"parsim has one method for all layers: {', '.join(CONTEXTS)}")
    spread = source.get("expert_model_parallel_size")
    ranks = draft.whole(spread, 1)
    if spread is None or ranks is None:
        return
    refused = unsupported({"parallel": {"expert": {"size": ranks}}})
    if refused:
        draft.unmodelled(spread, "every rank holds all experts: what they take in memory is overstated, how tokens travel is left out")
    else:
        draft.write("parallel.expert.size", ranks, spread)


def _data(draft: Draft, source: Source) -> None:
    get = source.get
    sharded, own, torch = get("use_distributed_optimizer"), get("use_megatron_fsdp", "use_custom_fsdp"), get("use_torch_fsdp2")
    how, old, keep = get("data_parallel_sharding_strategy"), get("DDP_impl"), get("torch_fsdp2_no_reshard_after_forward")
    if draft.flag(torch):
        draft.write("parallel.data.strategy", "fsdp", torch)
        draft.harmless(sharded, f"{torch.written if torch else ''} counts")
        if keep is not None:
            draft.write("parallel.data.reshard_after_forward", not draft.flag(keep), keep)
    elif draft.flag(own):
        word = "optim_grads_params" if how is None else str(how.value)
        draft.write("parallel.data.strategy", SHARDING.get(word, "fsdp"), own, how, sharded)
    else:
        draft.write(
            "parallel.data.strategy", "zero1" if draft.flag(sharded) else "ddp", sharded, note="" if sharded else "no distributed optimizer"
        )
    for key, switch in ((how, "--use-megatron-fsdp"), (keep, "--use-torch-fsdp2")):
        if key is not None and not draft.settled(key):
            draft.harmless(key, f"it counts with {switch} only")
    for key in (own, torch):
        if key is not None and not draft.settled(key):
            draft.harmless(key, "switched off")
    reduce, gather, bucket = get("overlap_grad_reduce"), get("overlap_param_gather"), get("ddp_bucket_size")
    if draft.value("parallel.data.strategy") == "fsdp":
        for key in (reduce, gather, bucket):
            draft.harmless(key, "sharded parameters are gathered and reduced unit by unit, under the layers around them")
        draft.harmless(old, f"{(own or torch or source.keys[0]).written} counts")
        return
    if reduce is not None:
        draft.write("parallel.data.overlap_reduce", draft.flag(reduce), reduce)
        draft.harmless(old, "--overlap-grad-reduce counts")
    else:
        note = "" if old is not None else "off without --overlap-grad-reduce"
        draft.write("parallel.data.overlap_reduce", old is not None and old.value == "torch", old, note=note)
        if old is not None and old.value == "torch":
            draft.write("parallel.data.bucket", "25 MiB", old, note="of torch's DistributedDataParallel")
    if gather is not None:
        draft.write("parallel.data.overlap_gather", draft.flag(gather), gather)
    if (elements := draft.whole(bucket, 1)) is not None:
        draft.write("parallel.data.bucket", f"{elements} elements", bucket)


def _software(draft: Draft, source: Source) -> None:
    old = [name for name in OF_2021 if name in source]
    if old:
        written = next(key.written for key in source.keys if key.name == old[0])
        draft.write("software.profile", "megatron-2021", note=f"{written} is an option of Megatron-LM of 2021")
    else:
        draft.write("software.profile", "megatron-core")
    separate = source.get("no_gradient_accumulation_fusion")
    if separate is not None:
        draft.write("software.gradient_accumulation_fusion", not draft.flag(separate), separate)
    graphs = source.get("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl")
    if graphs is not None and graphs.value not in ("none", False, "False"):
        draft.write("software.host.graphs", True, graphs)
    else:
        draft.harmless(graphs, "switched off")
    scope = source.get("cuda_graph_scope")
    if scope is not None:
        draft.unmodelled(scope, "parsim's graphs hold whole passes") if graphs else draft.harmless(scope, "there are no graphs")

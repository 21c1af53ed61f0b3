"""The parallel strategy as options of Megatron-LM: read from them, and written."""

from __future__ import annotations

from parsim.interop.export_draft import ExportDraft, order
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import has_experts, has_shared_expert, write_experts
from parsim.interop.keys import Source
from parsim.interop.megatron.pipeline_layout import layout, read_layout
from parsim.parallel.settings import EXCHANGE_SMS

OF_2021 = ("DDP_impl", "checkpoint_activations", "activations_checkpoint_method", "activations_checkpoint_num_layers")
"""options that only Megatron-LM of 2020 to early 2022 had"""
OWN_DEFAULTS = ("Megatron-LM", "FlagScale")
"""tools in which an option that is not given is as Megatron-LM has it, whatever the model"""
SHARDING = {"no_shard": "ddp", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "fsdp"}
"""--data-parallel-sharding-strategy of Megatron's own FSDP"""
ORDER = ("tensor", "context", "data", "pipeline")
"""in which Megatron-LM numbers ranks, the innermost axis first"""
MAPPED_ORDER = ("tensor", "context", "pipeline", "data")
"""the same with --use-tp-pp-dp-mapping"""
SHARDED = "Megatron-LM's distributed optimizer shards optimizer states only (zero1)"


def read_parallel(draft: ImportDraft, source: Source, layers: int | None) -> None:
    """The `parallel` section but for the number of tensor ranks; `layers` of the model, if they are known."""
    read_tensor(draft, source)
    read_pipeline(draft, source, layers)
    _read_context(draft, source)
    _read_experts(draft, source)
    _read_data(draft, source)


def read_tensor(draft: ImportDraft, source: Source) -> None:
    """Sequence parallelism and what runs beside collectives."""
    wide = draft.value("parallel.tensor.size") not in (None, 1)
    if wide:
        draft.take(source, "parallel.tensor.sequence_parallel")
    else:
        draft.harmless(source.of("parallel.tensor.sequence_parallel"), "there is one tensor rank")
    _read_overlap(draft, source, wide)


def _read_overlap(draft: ImportDraft, source: Source, wide: bool) -> None:
    """What runs beside tensor parallelism's collectives."""
    buffers, late = source.of("parallel.tensor.overlap"), source.get("no_async_tensor_model_parallel_allreduce")
    if buffers is not None and not wide:
        draft.harmless(buffers, "there is one tensor rank")
    elif draft.flag(buffers) and draft.value("parallel.tensor.sequence_parallel"):
        draft.write("parallel.tensor.overlap", "full", buffers)
    elif draft.flag(buffers):
        draft.unmodelled(buffers, "it needs --sequence-parallel, there too")
    else:
        draft.harmless(buffers, "switched off")
    if draft.flag(late):
        draft.write("parallel.tensor.overlap", "none", late)
    elif wide and draft.value("software.profile") is None and any(name in source for name in OF_2021):
        draft.write("parallel.tensor.overlap", "none", note="Megatron-LM of 2021 hid no all-reduce under the weight gradient")


def read_pipeline(draft: ImportDraft, source: Source, layers: int | None) -> None:
    """Stages, their schedule and their layers."""
    stages = draft.take(source, "parallel.pipeline.size") or 1
    placed = source.of("parallel.pipeline.split")
    if placed is not None:
        read_layout(draft, placed, stages, layers)
        chunks = ("parallel.pipeline.virtual_stages", "parallel.pipeline.split.first", "parallel.pipeline.split.last")
        for key in (*map(source.of, chunks), *source.all(*CHUNKED)):
            if key is not None and key.off:
                draft.harmless(key, "switched off")
            elif key is not None:
                draft.errors.append(key.finding(f"{placed.written} says it already, and Megatron-LM takes one of them", "leave this out"))
    else:
        _read_split(draft, source, stages, layers, _virtual_stages(draft, source, stages, layers))
    draft.take(source, "parallel.pipeline.overlap_sends")
    draft.take(source, "parallel.pipeline.scatter_sends")
    if draft.switch(source, "parallel.order"):
        draft.write("parallel.order", list(MAPPED_ORDER), source.of("parallel.order"))


CHUNKED = ("num_layers_per_virtual_pipeline_stage", "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
"""options of the layers of stages that parsim says in another way"""


def _virtual_stages(draft: ImportDraft, source: Source, stages: int, layers: int | None) -> int:
    """Chunks of layers of every rank, and the schedule that more than one makes."""
    per_chunk, embedding, loss = (source.get(name) for name in CHUNKED)
    chunks = source.of("parallel.pipeline.virtual_stages")
    virtual, each = draft.whole(chunks, 1), draft.whole(per_chunk, 1)
    key = chunks or per_chunk
    if virtual is None and each is not None and layers is not None and per_chunk is not None:
        counted = layers + draft.flag(embedding) + draft.flag(loss)
        virtual, rest = divmod(counted, stages * each)
        if rest:
            text = f"{counted} layers / ({stages} stages x {each} layers per chunk) = {counted / (stages * each):.4g} is not whole"
            draft.errors.append(per_chunk.finding(text, "use a divisor of the layers of a stage"))
    if per_chunk is not None and chunks is not None:
        draft.harmless(per_chunk, f"{chunks.written} counts")
    if virtual is not None and key is not None and virtual > 1:
        draft.write("parallel.pipeline.schedule", "interleaved", key)
        draft.write("parallel.pipeline.virtual_stages", virtual, key)
    elif virtual == 1:
        draft.harmless(key, "one chunk per rank: the schedule is 1F1B")
    elif key is not None and each is not None:
        draft.fill("parallel.pipeline.virtual_stages", f"layers of the model / ({stages} stages x {each})", key)
        draft.write("parallel.pipeline.schedule", "interleaved", key)
    return virtual or 1


def _read_split(draft: ImportDraft, source: Source, stages: int, layers: int | None, virtual: int) -> None:
    """Ranks with fewer layers: the first, the last, or both; the chunks of a rank have equally many."""
    path = "parallel.pipeline.split"
    first, last, embedding, loss = source.of(f"{path}.first"), source.of(f"{path}.last"), *(source.get(name) for name in CHUNKED[1:])
    used = [key for key in (first, last, embedding, loss) if key is not None and key.value is not False]
    heads, tails, plain = draft.whole(first, 1), draft.whole(last, 1), first is None and last is None
    if not used or stages < 2:
        for key in used:
            draft.harmless(key, "there is one stage")
        return
    if layers is None:
        draft.fill(path, f"layers of each of the {stages * virtual} stages, in order", *used)
        return
    fewer = (int(plain and draft.flag(embedding)), int(plain and draft.flag(loss)))
    if plain:
        each, rest = divmod(layers + sum(fewer), stages)
        counts = [each] * stages
    else:
        ends = [count for count in (heads, tails) if count is not None]
        inner = stages - len(ends)
        each, rest = divmod(layers - sum(ends), inner) if inner else (0, layers - sum(ends))
        counts = ([heads] if heads else []) + [each] * inner + ([tails] if tails else [])
    if rest:
        draft.errors.append(used[0].finding(f"{layers} layers do not fill {stages} stages this way: {rest} are left over"))
        return
    if odd := next((count for count in counts if count % virtual), None):
        draft.errors.append(used[0].finding(f"{odd} layers of a rank / {virtual} chunks = {odd / virtual:.4g} is not whole"))
        return
    listed = [count // virtual for _ in range(virtual) for count in counts]
    listed[0] -= fewer[0]
    listed[-1] -= fewer[1]
    draft.write(path, listed, *used)


def _read_context(draft: ImportDraft, source: Source) -> None:
    kind, row = source.of("parallel.context.method"), source.table.rows["parallel.context.method"]
    if (draft.take(source, "parallel.context.size") or 1) == 1:
        draft.harmless(kind, "there is one context rank")
    elif draft.take(source, "parallel.context.method") is None:
        draft.unmodelled(kind, f"parsim has one method for all layers: {', '.join([*row.words.values(), *row.also])}")


def _read_experts(draft: ImportDraft, source: Source) -> None:
    write_experts(draft, source.of("parallel.expert.size"), source.of("parallel.expert.tensor"), None)
    for key in ("capacity_factor", "pad_to_capacity", "batch_overlap"):
        draft.take(source, f"parallel.expert.{key}")
    if draft.value("parallel.expert.batch_overlap"):
        late = source.get("delay_wgrad_compute")
        draft.take(source, "parallel.expert.batch_overlap", late)
        if not draft.flag(late):
            draft.remark("parsim has it with --delay-wgrad-compute, which is not given", "parallel.expert.batch_overlap")
    fuser, recipe = source.of("parallel.expert.fused_mlp"), source.of("training.precision.recipe")
    if draft.value("model.experts.count") is not None and recipe is not None and recipe.text == "mxfp8":
        draft.take(source, "parallel.expert.fused_mlp")
    else:
        draft.harmless(fuser, "it fuses the mxfp8 products of experts only")
    if draft.value("parallel.expert.fused_mlp"):
        draft.take(source, "parallel.expert.paged_stash")
    else:
        draft.harmless(source.of("parallel.expert.paged_stash"), "only fused mxfp8 experts mark what they keep")
    _read_dispatcher(draft, source)
    _read_permutation(draft, source)


def _read_permutation(draft: ImportDraft, source: Source) -> None:
    """Fused kernels put tokens in order, or PyTorch's operations; models and recipes of other tools have defaults of their own."""
    path, spread = "parallel.expert.permute_fusion", draft.value("parallel.expert.size") not in (None, 1)
    key = source.of(path)
    if not has_experts(draft):
        draft.harmless(key, "there are no experts")
    elif spread and draft.value("parallel.expert.dispatcher") == "hybridep":
        draft.harmless(key, "HybridEP puts tokens in order by kernels of its own")
    elif key is not None:
        draft.take(source, path)
    elif source.table.tool in OWN_DEFAULTS:
        draft.write(path, False, note="off without --moe-permute-fusion")


def _read_dispatcher(draft: ImportDraft, source: Source) -> None:
    path, beside = "parallel.expert.dispatcher", source.of("parallel.expert.shared_overlap")
    kind, backend, deepep = source.of(path), source.of(f"{path}.backend"), source.of(f"{path}.deepep")
    keys, sms = [key for key in (kind, backend, deepep) if key is not None], source.of("parallel.expert.sms")
    if draft.value("parallel.expert.size") in (None, 1) and draft.value("parallel.expert.tensor") is None:
        for idle in (*keys, sms, beside):
            draft.harmless(idle, "every rank holds all experts")
        return
    if not has_shared_expert(draft):
        draft.harmless(beside, "there is no shared expert")
    else:
        draft.take(source, "parallel.expert.shared_overlap")
    if kind is None:
        draft.write(path, "allgather", note="--moe-token-dispatcher-type is allgather if not given")
    elif kind.text in ("alltoall", "allgather"):
        draft.write(path, kind.text, kind)
    elif kind.text == "flex" and (name := source.table.rows[f"{path}.backend"].ours("deepep" if backend is None else backend.text)):
        draft.write(path, name, *keys)
        draft.take(source, "parallel.expert.sms")
    else:
        draft.unmodelled(kind, "parsim knows the dispatchers alltoall, allgather, and flex with the backends deepep and hybridep")
    for idle in (backend, deepep, sms):
        if idle is not None and not draft.settled(idle):
            draft.harmless(idle, "it counts with --moe-token-dispatcher-type flex only")


def _read_data(draft: ImportDraft, source: Source) -> None:
    path, keep = "parallel.data.strategy", source.of("parallel.data.reshard_after_forward")
    sharded, torch = source.of(f"{path}.zero1"), source.of(f"{path}.fsdp")
    own, how, old = (
        source.get("use_megatron_fsdp", "use_custom_fsdp"),
        source.get("data_parallel_sharding_strategy"),
        source.get("DDP_impl"),
    )
    if torch is not None and draft.flag(torch):
        draft.write(path, "fsdp", torch)
        draft.harmless(sharded, f"{torch.written} counts")
        draft.take(source, "parallel.data.reshard_after_forward")
    elif draft.flag(own):
        word = "optim_grads_params" if how is None else str(how.value)
        draft.write(path, SHARDING.get(word, "fsdp"), own, how, sharded)
    else:
        whole = source.of("training.optimizer.name")
        by_layer = whole is not None and whole.text == "dist_muon"
        note = "" if sharded else "the layer-wise optimizer" if by_layer else "no distributed optimizer"
        draft.write(path, "zero1" if draft.flag(sharded) or by_layer else "ddp", sharded, note=note)
    for key, switch in ((how, "--use-megatron-fsdp"), (keep, "--use-torch-fsdp2")):
        if key is not None and not draft.settled(key):
            draft.harmless(key, f"it counts with {switch} only")
    for key in (own, torch):
        if key is not None and not draft.settled(key):
            draft.harmless(key, "switched off")
    _read_instances(draft, source)
    reduce = source.of("parallel.data.overlap_reduce")
    if draft.value(path) == "fsdp":
        for name in ("overlap_reduce", "overlap_gather", "bucket"):
            why = "sharded parameters are gathered and reduced unit by unit, under the layers around them"
            draft.harmless(source.of(f"parallel.data.{name}"), why)
        draft.harmless(old, f"{(own or torch or source.keys[0]).written} counts")
        return
    if reduce is not None:
        draft.take(source, "parallel.data.overlap_reduce")
        draft.harmless(old, "--overlap-grad-reduce counts")
    else:
        torch_ddp = old is not None and old.value == "torch"
        note = "" if old is not None else "off without --overlap-grad-reduce"
        draft.write("parallel.data.overlap_reduce", torch_ddp, old, note=note)
        if torch_ddp:
            draft.write("parallel.data.bucket", "25 MiB", old, note="of torch's DistributedDataParallel")
    draft.take(source, "parallel.data.overlap_gather")
    bucket = source.of("parallel.data.bucket")
    if (elements := draft.whole(bucket, 1)) is not None:
        draft.write("parallel.data.bucket", f"{elements} elements", bucket)


def _read_instances(draft: ImportDraft, source: Source) -> None:
    """Instances of the distributed optimizer; of Megatron's own FSDP they are shard groups."""
    key, strategy = source.of("parallel.data.optimizer_instances"), draft.value("parallel.data.strategy")
    if (instances := draft.whole(key, 1)) is None or key is None:
        return
    if instances == 1:
        draft.harmless(key, "the default")
    elif strategy == "zero1":
        draft.take(source, "parallel.data.optimizer_instances")
    elif strategy == "ddp":
        draft.errors.append(key.finding("optimizer instances need --use-distributed-optimizer, there too", "add it, or leave this out"))
    else:
        draft.unmodelled(key, "of Megatron's own FSDP these are shard groups: write strategy hsdp with a shard_size")


def mesh_arguments(draft: ExportDraft) -> list[str]:
    """Tensor, context and expert parallelism, and the order of ranks."""
    parallelism, section = draft.job.built.parallelism, draft.job.settings.parallel
    tensor, context = parallelism.tensor, parallelism.context
    arguments = [draft.option("parallel.tensor.size", tensor.size)]
    if tensor.sequence_parallel:
        arguments.append(draft.option("parallel.tensor.sequence_parallel"))
    else:
        draft.says("parallel.tensor.sequence_parallel", "the default, off")
    overlap = "parallel.tensor.overlap"
    if tensor.overlap == "full":
        arguments.append(draft.option(overlap, "full"))
    elif tensor.overlap == "async":
        draft.refuses(overlap, "PyTorch's asynchronous tensor parallelism is not Megatron-LM's", "use overlap: full, or --to fsdp")
    elif tensor.overlap == "none":
        draft.lacks(overlap, "the gradient's all-reduce always runs under the weight gradient")
    else:
        draft.says(overlap, "always")
    draft.lacks_below("parallel.tensor.")
    context_size = draft.option("parallel.context.size", context.size)
    if context.size > 1:
        arguments += [context_size, draft.option("parallel.context.method", context.method)]
    else:
        draft.says("parallel.context.method", "nothing to exchange")
    expert_size = draft.option("parallel.expert.size", section.expert.size)
    if section.expert.size > 1:
        arguments.append(expert_size)
    width = "parallel.expert.tensor"
    if parallelism.expert.tensor:
        arguments.append(draft.option(width, parallelism.expert.tensor))
    else:
        draft.says(width, "the default, as many as tensor-parallel ranks")
    draft.says("parallel.expert.capacity_factor", "the default, none")
    if section.expert.capacity_factor is not None:
        arguments.append(draft.option("parallel.expert.capacity_factor", f"{section.expert.capacity_factor:g}"))
    draft.says("parallel.expert.pad_to_capacity", "the default, off")
    if section.expert.pad_to_capacity:
        arguments.append(draft.option("parallel.expert.pad_to_capacity"))
    beside = "parallel.expert.batch_overlap"
    flags = {"shared_overlap": section.expert.shared_overlap, "batch_overlap": section.expert.batch_overlap}
    fused = {"fused_mlp": section.expert.fused_mlp, "paged_stash": section.expert.paged_stash}
    for path, overlaps in {f"parallel.expert.{key}": said for key, said in (flags | fused).items()}.items():
        draft.says(path, "the default, off")
        arguments += [draft.option(path)] if overlaps else []
    arguments += _permutation(draft)
    if section.expert.paged_stash:
        draft.remarks("parallel.expert.paged_stash", "parsim fills no receive buffer: add --moe-expert-rank-capacity-factor")
    if section.expert.batch_overlap:
        draft.remarks(beside, "parsim lets no exchange wait for gradients of weights there: --delay-wgrad-compute")
    arguments += _dispatcher(draft)
    mapping = order(draft, {ORDER: "", MAPPED_ORDER: draft.written("parallel.order")}, "no tool has another order")
    return [*arguments, *([mapping] if mapping else [])]


def _permutation(draft: ExportDraft) -> list[str]:
    """The kernels that put tokens in order of their experts."""
    path, split = "parallel.expert.permute_fusion", draft.job.built.parallelism
    if not draft.job.built.model.facts.get("experts"):
        draft.says(path, "not needed: there are no experts")
    elif not split.expert.permute_fusion:
        draft.says(path, "the default, off")
    elif split.expert.dispatcher == "hybridep" and split.exchanges_tokens:
        draft.says(path, "not needed: HybridEP has kernels of its own")
    else:
        return [draft.option(path)]
    return []


def _dispatcher(draft: ExportDraft) -> list[str]:
    """How tokens reach their experts; a mixture's script says it even where every rank holds all of them."""
    path, expert = "parallel.expert.dispatcher", draft.job.built.parallelism.expert
    for key in ("dispatch_dtype", "combine_dtype"):
        draft.lacks(f"parallel.expert.{key}", "tokens travel in the type of activations (but for flex with the backend ncclep)")
    draft.says(path, "not needed: there are no experts")
    draft.says("parallel.expert.sms", "the default")
    if not draft.job.built.model.facts.get("experts"):
        return []
    arguments = [draft.option(path, expert.dispatcher)]
    if expert.dispatcher in EXCHANGE_SMS:
        arguments.append(draft.written(f"{path}.backend", expert.dispatcher))
        draft.says(path, " ".join(arguments))
    if expert.dispatcher == "deepep":
        arguments.append(draft.written(f"{path}.deepep"))
    if expert.sms:
        arguments.append(draft.option("parallel.expert.sms", expert.sms))
    return arguments


def pipeline_arguments(draft: ExportDraft) -> list[str]:
    """Stages, their layers and their schedule."""
    pipeline = draft.job.built.parallelism.pipeline
    arguments = [draft.option("parallel.pipeline.size", pipeline.size)]
    _schedule(draft)
    placed = _layout(draft)
    interleaved = pipeline.virtual_stages > 1
    if interleaved and not placed:
        arguments.append(draft.option("parallel.pipeline.virtual_stages", pipeline.virtual_stages))
    else:
        draft.says("parallel.pipeline.virtual_stages", placed[0] if placed else "the default, 1")
    sends = "parallel.pipeline.overlap_sends"
    if interleaved and not pipeline.overlap_sends:
        placed.append(draft.option(sends))
    else:
        draft.says(sends, "always" if interleaved else "never: sends are overlapped in the interleaved schedule only")
        if pipeline.overlap_sends and pipeline.size > 1 and not interleaved:
            draft.remarks(sends, "sends wait for each other there, they are overlapped in the interleaved schedule only")
    draft.lacks("parallel.pipeline.post_validation", "its schedules flush the pipeline")
    scatter, tensor = "parallel.pipeline.scatter_sends", draft.job.built.parallelism.tensor
    if pipeline.scatter_sends and pipeline.size > 1 and tensor.size > 1 and not tensor.sequence_parallel:
        draft.lacks(scatter, "not scattered")
        draft.remarks(scatter, "sends are scattered over the tensor-parallel ranks in Megatron-LM of 2021 to 2023, not in Megatron-Core")
    else:
        draft.says(scatter, "always with --sequence-parallel, never without")
    return arguments + placed


def _schedule(draft: ExportDraft) -> None:
    path, pipeline = "parallel.pipeline.schedule", draft.job.built.parallelism.pipeline
    if pipeline.size == 1 or pipeline.schedule in ("1f1b", "interleaved", "combined-1f1b"):
        draft.says(path, "the default, 1F1B" if pipeline.virtual_stages == 1 else "interleaved 1F1B")
        return
    what = "a schedule of your own" if pipeline.schedule == "custom" else pipeline.schedule
    hint = "use 1f1b or interleaved"
    draft.refuses(path, f"{what} is not among Megatron-LM's schedules, and in no other tool's configuration", hint)


def _layout(draft: ExportDraft) -> list[str]:
    """What says the layers of the stages where they are not equally many."""
    path, layers = "parallel.pipeline.split", draft.job.layers
    draft.says("parallel.pipeline.account_for", "the layers of every stage are written")
    if len(set(layers)) == 1:
        draft.says(path, f"{layers[0]} layers on every stage")
        return []
    virtual, middle = draft.job.built.parallelism.pipeline.virtual_stages, set(layers[1:-1])
    if virtual == 1 and len(middle) <= 1:
        usual = next(iter(middle), 0)
        ends = [("first", layers[0]), ("last", layers[-1])][: len(layers) - 1]  # of two stages the first decides
        said = [draft.written(f"{path}.{end}", count) for end, count in ends if count != usual]
        draft.says(path, " ".join(said))
        return said
    predicted = draft.job.architecture.mtp if draft.job.architecture is not None else 0
    return [draft.option(path, f"'{layout(layers, predicted)}'")]


def data_arguments(draft: ExportDraft) -> list[str]:
    """Data parallelism and what it shards."""
    data = draft.job.built.parallelism.data
    path = "parallel.data.strategy"
    if data.strategy in ("zero2", "zero3", "hsdp"):
        tools = {"zero2": "--to deepspeed", "zero3": "--to deepspeed or --to fsdp", "hsdp": "--to fsdp"}[data.strategy]
        draft.refuses(path, SHARDED, f"use {tools}, or zero1 here")
        return []
    draft.lacks_below("parallel.data.")
    if data.strategy == "fsdp":
        return _torch_fsdp(draft)
    draft.says(path, draft.written(f"{path}.zero1") if data.strategy == "zero1" else "the default, ddp")
    draft.lacks("parallel.data.reshard_after_forward", "parameters are whole on every rank")
    return _reduction(draft)


def _reduction(draft: ExportDraft) -> list[str]:
    data, job = draft.job.built.parallelism.data, draft.job
    zero1 = data.strategy == "zero1"
    arguments = [draft.keys["parallel.data.strategy"].text] if zero1 else []
    overlap, gather = "parallel.data.overlap_reduce", "parallel.data.overlap_gather"
    reduces = draft.option(overlap) if data.overlap_reduce else draft.says(overlap, "the default, off")
    if data.overlap_reduce and job.replicas > 1:
        arguments.append(reduces)
    gathers = draft.option(gather) if data.overlap_gather else draft.says(gather, "the default, off")
    if data.overlap_gather and zero1 and not data.overlap_reduce:
        draft.refuses(gather, "--overlap-param-gather needs --overlap-grad-reduce", "write overlap_reduce: true")
    elif data.overlap_gather and zero1 and job.replicas > 1:
        arguments.append(gathers)
    instances = "parallel.data.optimizer_instances"
    if data.optimizer_instances > 1:
        arguments.append(draft.option(instances, data.optimizer_instances))
    else:
        draft.says(instances, "the default, 1")
    bucket = "parallel.data.bucket"
    if data.bucket is None:
        draft.says(bucket, "the default, max(40e6, 1e6 x data) elements")
        return arguments
    amount, unit = data.bucket
    elements = round(amount if unit == "elements" else amount / job.built.training.precision.reduce)
    return [*arguments, draft.option(bucket, elements)]


def _torch_fsdp(draft: ExportDraft) -> list[str]:
    """``--use-torch-fsdp2`` with what its checks ask for (``validate_args``)."""
    job, data = draft.job, draft.job.built.parallelism.data
    switch = draft.says("parallel.data.strategy", draft.written("parallel.data.strategy.fsdp"))
    draft.says("parallel.data.optimizer_instances", "one, always")
    for key in ("bucket", "overlap_gather"):
        draft.lacks(f"parallel.data.{key}", "FSDP's buckets are its units, gathered ahead")
    draft.says("parallel.data.overlap_reduce", "always")
    if job.built.parallelism.pipeline.size > 1:
        draft.refuses("parallel.pipeline.size", f"{switch} goes without pipeline parallelism", "use zero1")
    if job.architecture is not None and job.architecture.tied_embeddings:
        draft.refuses("model.tied_embeddings", f"{switch} needs untied embeddings", "use zero1, or --to fsdp")
    if job.built.training.precision.matmul == "fp16":
        draft.refuses("training.precision", f"{switch} goes without fp16", "use bf16-fp32grad, or --to fsdp")
    arguments = [switch, "--ckpt-format torch_dist"]
    if job.built.runtime.gradient_accumulation_fusion:
        arguments.append(draft.option("software.gradient_accumulation_fusion"))
        draft.remarks("software.gradient_accumulation_fusion", f"{switch} goes without it")
    reshard = "parallel.data.reshard_after_forward"
    if not data.reshard_after_forward:
        return [*arguments, draft.option(reshard)]
    draft.says(reshard, "the default, on")
    return arguments

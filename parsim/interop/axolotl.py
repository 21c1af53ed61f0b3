"""axolotl's YAML as a scenario: base model, adapters, batch, types, DeepSpeed or FSDP, and the sizes of its device mesh.

What the keys mean and what is taken where they are left out: axolotl-ai-cloud/axolotl, src/axolotl/utils/schemas, utils/config
(`normalize_config`) and utils/trainer.py. Weights are loaded in the half type that is trained in; accelerate makes fp32 of them under
FSDP 1, DeepSpeed keeps an fp32 master.
"""

from __future__ import annotations

from math import prod

from parsim.errors import InputError
from parsim.interop import deepspeed, deepspeed_zero
from parsim.interop.accelerate import write_reduction
from parsim.interop.axolotl_jobs import policy_sections, refuse_other_jobs, write_answers, write_policy_job
from parsim.interop.deepspeed_named import deepspeed_of
from parsim.interop.fsdp import write_fsdp
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import (
    Count,
    TransformerSizes,
    write_accumulation,
    write_cluster,
    write_micro_batch,
    write_model,
    write_sequence_length,
)
from parsim.interop.keys import Key, Source, key_table, of_document
from parsim.interop.peft import EIGHT_BITS, listed, write_adapter_dtype, write_dora, write_quantised_experts, write_saved, write_targets
from parsim.interop.recognise import Foreign
from parsim.interop.training_arguments import write_liger_loss, write_optimizer
from parsim.scenario import files
from parsim.scenario.shortforms import box

LIGER = ("liger_rope", "liger_rms_norm", "liger_rms_norm_gated", "liger_layer_norm", "liger_swiglu", "liger_glu_activation")
"""kernels of norms and of the MLP"""
ATTENTIONS = {
    "flash_attention": "flash2",
    "xformers_attention": "mem-efficient",
    "eager_attention": "eager",
}
HALF = {"amp-bf16": "bf16", "amp-fp16": "fp16"}


def read_axolotl(draft: ImportDraft, foreign: Foreign) -> None:
    """Write the scenario of a configuration, with the DeepSpeed file that it names."""
    if foreign.document is None:
        return
    source = of_document(foreign.document, "axolotl")
    inner = source.below("deepspeed.", key_table("deepspeed")) if any(key.name.startswith("deepspeed.") for key in source.keys) else None
    if inner is not None and inner.keys:
        source = Source((key for key in source.keys if key not in inner.keys), source.table)
    named = source.get("deepspeed")
    beside = deepspeed_of(draft, named) if named is not None and named.value else inner
    source, policy = policy_sections(source)
    refuse_other_jobs(draft, source)
    sizes = write_model(draft, source.of("model"))
    _cluster(draft, source)
    length = _length(draft, source) if policy is None else write_answers(draft, source, policy)
    _batch(draft, source, beside)
    if policy is not None:
        write_policy_job(draft, source, policy)
    half = _half(draft, source)
    _strategy(draft, source, beside, sizes, half)
    _optimizer(draft, source, beside)
    _adapters(draft, source)
    _switches(draft, source)
    _kernels(draft, source, sizes, length)
    draft.close(source)
    if beside is not None:
        draft.close(beside)


def _cluster(draft: ImportDraft, source: Source) -> None:
    """axolotl's file says no world size, unless the sizes of the mesh do."""
    names = ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size", "context_parallel_size")
    keys = {name: key for name in names if (key := source.get(name)) is not None}
    copies, sharded = (
        keys.get("dp_replicate_size"),
        source.get("fsdp", "fsdp_config") or any(n.name.startswith("fsdp_config.") for n in source.keys),
    )
    decides = keys.get("dp_shard_size") or (copies if not sharded and copies is not None and copies.value not in (0, 1) else None)
    sizes = [draft.whole(key, 1) or 1 for key in keys.values()]
    write_cluster(draft, total=Count(prod(sizes), decides) if decides is not None else None)


def _length(draft: ImportDraft, source: Source) -> int | None:
    key, packed, padded = source.of("training.sequence_length"), source.get("sample_packing"), source.get("pad_to_sequence_len")
    if key is None and draft.given.sequence_length is None:
        length: int | None = 512
        draft.write("training.sequence_length", 512, note="sequence_len is 512 if not given")
    else:
        full = draft.flag(packed) or draft.flag(padded)
        length = write_sequence_length(draft, key, "" if full else "shorter samples: add mean_sequence_length")
    if packed is not None and draft.flag(packed):
        draft.unmodelled(
            packed,
            "rows are full, as the scenario has it; attention is taken over whole rows: training.document_length says how long samples are",
        )
    else:
        draft.harmless(packed, "samples may be shorter: training.mean_sequence_length says how long they are")
    draft.harmless(padded, "rows are as long as sequence_len")
    return length


def _batch(draft: ImportDraft, source: Source, beside: Source | None) -> None:
    micro, steps, samples = (source.of(f"training.{name}") for name in ("micro_batch", "gradient_accumulation", "samples"))
    size, together = draft.whole(micro, 1) or 1, draft.whole(samples, 1)
    write_micro_batch(draft, micro, 1, "micro_batch_size is 1 if not given")
    if steps is None and together is not None and samples is not None and draft.given.gradient_accumulation is None:
        draft.write("training.gradient_accumulation", max(1, together // size), samples, note=f"{together} samples / {size}")
    else:
        write_accumulation(draft, steps, 1, "1 if not given")
        draft.harmless(samples, "gradient_accumulation_steps counts")
    if beside is not None:
        own = {"training.micro_batch": micro, "training.gradient_accumulation": steps, "training.global_batch": None}
        deepspeed.merged_batch(draft, beside, own)
    epochs, last = source.of("training.epochs"), source.get("max_steps")
    if draft.given.examples is not None and last is None:
        passes = draft.number(epochs)
        draft.write("training.examples", draft.given.examples, note="--examples")
        draft.write("training.epochs", 1.0 if passes is None else passes, epochs, note="" if epochs else "1 if not given")
    draft.harmless(epochs, "how long the training lasts (--examples: samples of the data set)")
    draft.harmless(last, "how long the training lasts")


def _half(draft: ImportDraft, source: Source) -> tuple[str, Key | None, str]:
    """amp-bf16, amp-fp16, pure-bf16, fp8 or fp32, the key that says so, and a note; auto is bf16 where the GPU has it, else fp16."""
    bf16, fp16, pure, half, eight, tf32 = (
        source.of(f"training.precision.{name}") for name in ("bf16", "fp16", "pure-bf16", "pure-fp16", "fp8", "tf32")
    )
    automatic = bf16 is None or str(bf16.value).lower() == "auto"
    wanted = bf16 is not None and (str(bf16.value).lower() == "full" or (not automatic and draft.flag(bf16)))
    chosen: tuple[str, Key | None, str]
    if eight is not None and draft.flag(eight):
        chosen = "fp8", eight, ""
    elif wanted:
        chosen = "amp-bf16", bf16, ""
    elif draft.flag(fp16):
        chosen = "amp-fp16", fp16, ""
    elif pure is not None and draft.flag(pure):
        chosen = "pure-bf16", pure, ""
    elif half is not None and draft.flag(half):
        draft.errors.append(half.finding("not supported yet: weights and states in fp16, without a master", "use bf16, or fp16: true"))
        chosen = "fp32", half, ""
    elif automatic and _has_bf16(draft.given.on):
        chosen = "amp-bf16", bf16, "bf16 is auto if not given: " * (bf16 is None) + "bf16 where the GPU has it"
    elif automatic:
        chosen = "amp-fp16", bf16, f"auto: {draft.given.on} has no bf16"
    elif tf32 is not None and str(tf32.value).lower() in ("auto", "true"):
        chosen = "tf32", tf32, ""
    else:
        chosen = "fp32", None, "neither bf16 nor fp16"
    for key in (bf16, fp16, pure, half, eight, tf32):
        if key is not None and key is not chosen[1] and not draft.settled(key):
            draft.harmless(key, f"{chosen[1].written} counts" if chosen[1] is not None else "another type counts")
    return chosen


def _has_bf16(on: str | None) -> bool:
    """Whether the GPU of the user's machine multiplies bf16; so do those of a machine that is not said."""
    if on is None:
        return True
    try:
        machine = box(on)
        name = machine["gpu"] if machine is not None else files.read(files.find("topologies", on)).section("node").get("device")
        peak = files.read(files.find("devices", str(name))).section("compute").get("peak", {})
    except InputError:
        return True
    return not isinstance(peak, dict) or "bf16" in peak


def _strategy(
    draft: ImportDraft, source: Source, beside: Source | None, sizes: TransformerSizes | None, half: tuple[str, Key | None, str]
) -> None:
    """What is sharded: by DeepSpeed, by FSDP, or not at all."""
    kind, key, note = half
    switch = source.get("fsdp")
    below = [key for key in source.keys if key.name.startswith("fsdp_config") and key.value not in (None, {}, [])]
    sharded = bool(below) or (switch is not None and switch.value not in (None, False, "", []))
    if beside is not None:
        deepspeed.write_precision(draft, beside, (HALF.get(kind, "bf16" if kind == "pure-bf16" else ""), key))
        draft.harmless(key, "DeepSpeed's own type counts")
        deepspeed_zero.write_states(draft, beside, sizes)
        draft.write("software.profile", "deepspeed", source.get("deepspeed"))
        for other in [switch, *below, source.get("fsdp_version")]:
            draft.harmless(other, "DeepSpeed counts")
        return
    if "parallel.data.strategy" in draft.lines:  # DeepSpeed's file is not there
        usual = HALF.get(kind, "bf16" if kind == "pure-bf16" else kind)
        how = f"{usual}, unless DeepSpeed's file says otherwise (bf16.enabled, data_types): weights in it, with an fp32 master"
        if draft.given.precision is None:
            draft.fill("training.precision", how, key)
        return
    if sharded:
        write_fsdp(draft, source, switch)
    else:
        for other in [switch, *below, *source.all("fsdp_version")]:
            draft.harmless(other, "nothing is sharded")
        draft.write("parallel.data.strategy", "ddp", note="neither fsdp nor deepspeed")
        shards = source.of("parallel.data.size.shards")
        if (draft.whole(shards, 1) or 1) > 1 and shards is not None:
            text = f"dp_shard_size {shards.value} without fsdp_config: axolotl stops here, as nothing says how it shards"
            draft.errors.append(shards.finding(text, "add fsdp_config, or leave dp_shard_size out"))
    draft.write("software.profile", "pytorch-2")
    adapters = source.of("training.finetune.method") is not None
    if kind == "amp-bf16" and not adapters and draft.value("parallel.data.fsdp_version") != 1:
        draft.write("training.precision", "pure-bf16", key, note="; ".join(filter(None, (note, "weights are loaded in bf16"))))
    elif kind == "amp-fp16" and not adapters:
        draft.fill("training.precision", "amp-fp16, if the weights are fp32: axolotl loads them in fp16", key)
    else:
        draft.write("training.precision", kind, key, note=note)
    _mesh(draft, source)
    write_reduction(draft)


def _mesh(draft: ImportDraft, source: Source) -> None:
    """Tensor, context and hybrid data parallelism."""
    spread = source.get("expert_parallel_size")
    if (draft.whole(spread, 1) or 1) > 1:
        draft.refuse(spread, "experts spread over ranks by axolotl's plugin", "leave it out, or give the job another tool's file")
    draft.harmless(spread, "every rank holds all experts")
    draft.take(source, "parallel.tensor.size")
    method, packed = source.of("parallel.context.method"), source.get("sample_packing")
    if (draft.take(source, "parallel.context.size") or 1) > 1:
        default = "all-gather" if draft.flag(packed) else "ring"
        if draft.take(source, "parallel.context.method") is None:
            draft.unmodelled(method, "parsim has ring and all-gather")
            draft.write("parallel.context.method", default, note="varlen_llama3 with sample_packing, else batch_ring")
    else:
        draft.harmless(method, "there is one context rank")
    copies, shards = source.of("parallel.data.size.copies"), source.of("parallel.data.size.shards")
    number, size = draft.whole(copies, 1) or 1, draft.whole(shards, 1) or 1
    strategy = draft.value("parallel.data.strategy")
    several = size > 1 and (number > 1 or (copies is None and (draft.given.nodes or 1) > 1))
    if strategy in ("fsdp", "hsdp") and several:
        context = draft.value("parallel.context.size") or 1
        note = "" if number > 1 else "axolotl makes copies of the ranks that are left over"
        draft.write("parallel.data.strategy", "hsdp", *draft.lines["parallel.data.strategy"].keys, copies)
        draft.write("parallel.data.shard_size", size * int(context), shards, note=note)
    elif strategy in ("fsdp", "hsdp") and number > 1:
        draft.write("parallel.data.strategy", "hsdp", *draft.lines["parallel.data.strategy"].keys, copies)
        draft.fill("parallel.data.shard_size", f"data-parallel ranks (with context ranks) / {number} copies", copies)
    for key in (copies, shards):
        if key is not None and not draft.settled(key):
            draft.harmless(key, "the other sizes leave as many ranks")


def _optimizer(draft: ImportDraft, source: Source, beside: Source | None) -> None:
    kind, clip = source.of("training.optimizer"), source.of("training.optimizer.clip_gradients")
    if beside is not None and deepspeed.write_optimizer(draft, beside, known=True):
        draft.harmless(kind, "DeepSpeed's own optimizer counts")
    elif kind is None:
        draft.write("training.optimizer.name", "adamw", note="adamw_torch_fused if not given")
        draft.write("training.optimizer.implementation", "fused", note="adamw_torch_fused if not given")
    else:
        write_optimizer(draft, source)
    theirs = beside.of("training.optimizer.clip_gradients") if beside is not None else None
    if theirs is not None and theirs.value != deepspeed_zero.AUTO:
        limit = draft.number(theirs)
        draft.write("training.optimizer.clip_gradients", limit is None or limit > 0, theirs)
        draft.harmless(clip, "DeepSpeed's own counts")
        return
    draft.harmless(theirs, deepspeed.FOLLOWS)
    limit = draft.number(clip)
    note = "" if clip else "max_grad_norm is 1.0 if not given"
    draft.write("training.optimizer.clip_gradients", limit is None or limit > 0, clip, note=note)


def _adapters(draft: ImportDraft, source: Source) -> None:
    path = "training.finetune"
    kind, four, eight, linear = (
        source.of(f"{path}.method"),
        *(source.get(n) for n in ("load_in_4bit", "load_in_8bit", "lora_target_linear")),
    )
    names = (
        "gptq",
        "peft_use_dora",
        "peft_autocast_adapter_dtype",
        *(source.table.rows[f"{path}.{side}"].name for side in ("rank", "targets", "dropout", "train_embeddings")),
    )
    if kind is None or str(kind.value) in ("", "none", "None", "False"):
        for key in (kind, linear, *source.all(*names)):
            draft.harmless(key, "without adapter the whole model is trained")
        for key in (four, eight):
            if key is not None and draft.flag(key):
                draft.errors.append(key.finding("a quantised model is trained with adapters only", "adapter: qlora, or leave it out"))
            draft.harmless(key, "nothing is quantised")
        return
    if str(kind.value) not in ("lora", "qlora"):
        draft.errors.append(kind.finding(f"not supported yet: {kind.value} adapters", "parsim has lora and qlora"))
    quantised = four is not None and draft.flag(four)
    if str(kind.value) == "qlora" and not quantised:
        draft.errors.append(kind.finding("qlora needs load_in_4bit: true, there too", "add it, or write adapter: lora"))
    draft.write(f"{path}.method", "qlora" if quantised else "lora", kind, four if quantised else None)
    if (rank := source.of(f"{path}.rank")) is None:
        draft.write(f"{path}.rank", 8, note="PEFT's default: lora_r is not given")
    else:
        draft.take(source, f"{path}.rank")
    targets = source.of(f"{path}.targets")
    if linear is not None and draft.flag(linear):
        draft.write(f"{path}.targets", "all-linear", linear)
        draft.harmless(targets, "lora_target_linear counts")
    elif targets is not None:
        write_targets(draft, targets)
    else:
        draft.fill(f"{path}.targets", "[q_proj, v_proj], or all-linear: PEFT chooses by the model", rank)
    draft.harmless(linear, "switched off")
    draft.take(source, f"{path}.dropout")
    write_dora(draft, source.get("peft_use_dora"))
    cast = source.get("peft_autocast_adapter_dtype")
    write_adapter_dtype(draft, cast, fp32=cast is None or str(cast.value).lower() != "false")
    for key in source.all("relora", "relora_steps"):
        if not key.off:
            draft.unmodelled(key, "adapters are merged into the frozen weights every so many steps; the steps between are LoRA's")
    saved = source.of(f"{path}.train_embeddings")
    if listed(saved):
        write_saved(draft, saved)
    draft.harmless(saved if not listed(saved) else None, "empty")
    _stored(draft, eight, four, source.get("gptq"), quantised=quantised)


def _stored(draft: ImportDraft, eight: Key | None, four: Key | None, gptq: Key | None, *, quantised: bool) -> None:
    """How frozen weights are stored."""
    if quantised:
        draft.write("training.finetune.base", "nf4-dq", note="NF4 with double quantisation, unless bnb_config_kwargs says otherwise")
        write_quantised_experts(draft)
    elif eight is not None and draft.flag(eight):
        draft.write("training.finetune.base", EIGHT_BITS, eight)
    draft.harmless(four if not quantised else None, "switched off")
    draft.harmless(eight, "four bits count" if quantised else "switched off")
    if gptq is not None and draft.flag(gptq):
        draft.errors.append(gptq.finding("not supported yet: a base of GPTQ's four bits", "parsim has NF4"))


def _switches(draft: ImportDraft, source: Source) -> None:
    """Checkpointing, attention, compiler, buckets."""
    again = source.of("training.recompute")
    if again is not None and (str(again.value) in ("offload", "offload_disk", "unsloth") or draft.flag(again)):
        draft.write("training.recompute", "full", again)
        if isinstance(again.value, str) and again.value.startswith("offload"):
            draft.remark("the inputs of layers wait in host memory there, in device memory here", "training.recompute")
    else:
        draft.harmless(again, "switched off")
    flags = [(key, kernel) for name, kernel in ATTENTIONS.items() if (key := source.get(name)) is not None]
    on = next(((key, kernel) for key, kernel in flags if draft.flag(key)), None)
    if on is not None:
        draft.write("training.attention", on[1], on[0])
    for key, _ in flags:
        draft.harmless(key, "switched off" if on is None or key is not on[0] else "")
    kind, plain = source.of("training.attention"), source.get("sdp_attention")
    draft.harmless(plain, "PyTorch chooses, as in parsim")
    if on is None and kind is not None and draft.take(source, "training.attention") is None:
        draft.only_if(kind, ("sdpa",), "parsim knows flash_attention_2 and 3, xformers and eager", "PyTorch chooses, as in parsim")
    draft.harmless(kind if on is not None else None, "the switch counts")
    mixed = source.get("gemma4_hybrid_attn_impl")
    if mixed is not None and draft.flag(mixed):
        said = draft.lines["training.attention"].keys if "training.attention" in draft.lines else ()
        draft.write("training.attention", "mem-efficient", *said, mixed, note="heads of 512 elements, which FlashAttention-2 does not take")
        text = "layers with a window run FlashAttention-2 there, and memory-efficient attention as the others here"
        draft.remark(text, "training.attention")
    draft.harmless(mixed, "switched off")
    compiled = source.of("software.fusion")
    if compiled is not None and (str(compiled.value) == "auto" or draft.flag(compiled)):
        draft.write("software.fusion", "compiled", compiled)
    else:
        draft.harmless(compiled, "switched off")
    bucket = source.of("parallel.data.bucket")
    if (size := draft.number(bucket)) is not None and draft.value("parallel.data.strategy") == "ddp":
        draft.write("parallel.data.bucket", f"{size:g} MiB", bucket)
    else:
        draft.harmless(bucket, "DDP only")


def _kernels(draft: ImportDraft, source: Source, sizes: TransformerSizes | None, length: int | None) -> None:
    """Liger's kernels, one by one."""
    used = [key for key in source.all(*LIGER) if draft.flag(key)]
    if used and draft.value("software.fusion") is None:
        draft.write("software.fusion", "fused", *used)
    pieces, whole = source.get("liger_fused_linear_cross_entropy"), source.get("liger_cross_entropy")
    if pieces is not None and draft.flag(pieces):
        write_liger_loss(draft, pieces, sizes, length)
    elif whole is not None and draft.flag(whole):
        draft.write("training.loss.kernel", "fused", whole)
    for key in (*source.all(*LIGER), pieces, whole, source.get("liger_use_token_scaling")):
        if key is not None and not draft.settled(key):
            draft.harmless(key, "switched off" if not draft.flag(key) else "the compiler's kernels count")

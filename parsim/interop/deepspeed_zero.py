"""ZeRO, offload, checkpointing and the sizes of the axes as keys of DeepSpeed: read from them, and written.

What the keys mean: deepspeed/runtime/zero/config.py and offload_config.py. A key that is ``auto`` and that neither transformers nor
accelerate fills in has its default (deepspeed/runtime/config_utils.py, DeepSpeedConfigModel).
"""

from __future__ import annotations

from math import ceil
from typing import Any

from parsim.interop.export_draft import ExportDraft, one_instance, order
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import TransformerSizes
from parsim.interop.keys import Source
from parsim.parallel.buckets import DEEPSPEED_BUCKET
from parsim.scenario.shortforms import ZERO

AUTO = "auto"
ORDERS: dict[tuple[str, ...], str] = {("tensor", "context", "data", "pipeline"): ""}
SUB_GROUP = 1_000_000_000
"""elements that parsim steps on drives at a time"""
SMALL_BUCKET = 10_000_000
"""elements from which on the size of a gather no longer matters"""


def write_states(draft: ImportDraft, source: Source, sizes: TransformerSizes | None) -> None:
    """What is sharded, what is offloaded and how it travels."""
    key = source.of("parallel.data.strategy")
    asked = key is not None and key.value == AUTO
    stage = None if asked else draft.whole(key)
    if key is not None and stage is not None and stage not in ZERO:
        draft.errors.append(key.finding(f"{stage} is no ZeRO stage", "0, 1, 2 or 3"))
        stage = 0
    stage = stage or 0
    if asked:
        draft.fill("parallel.data.strategy", "zero1, zero2 or zero3: auto is what accelerate's zero_stage says", key)
    else:
        draft.write("parallel.data.strategy", ZERO[stage], key, note="" if key else "no zero_optimization.stage")
    _read_groups(draft, source, stage)
    if "software.profile" not in draft.lines:
        draft.write("software.profile", "deepspeed")
    if (draft.take(source, "parallel.tensor.size") or 1) > 1:
        draft.take(source, "parallel.tensor.overlap")
    else:
        draft.harmless(source.of("parallel.tensor.overlap"), "there is one tensor rank")
    if (draft.take(source, "parallel.context.size") or 1) > 1:
        draft.write("parallel.context.method", "ulysses", source.of("parallel.context.size"))
    _read_buckets(draft, source, stage, sizes)
    _read_gathers(draft, source, stage, sizes)
    _read_offload(draft, source, stage)
    _read_plus_plus(draft, source, stage)
    _read_checkpointing(draft, source, sizes)
    draft.only_some(source, *source.table.only)


def _read_groups(draft: ImportDraft, source: Source, stage: int) -> None:
    """``mics_shard_size``: ranks that share one copy of the states."""
    group = source.of("parallel.data.shard_size")
    if group is None or str(group.value) in ("-1", AUTO):
        draft.harmless(group, "that is what parsim models")
    elif stage < 3:
        draft.harmless(group, "ZeRO-3 only")
    elif (ranks := draft.whole(group, 1)) is not None:
        draft.write("parallel.data.strategy", "hsdp", source.of("parallel.data.strategy"), group)
        draft.write("parallel.data.shard_size", ranks, group)


def _read_buckets(draft: ImportDraft, source: Source, stage: int, sizes: TransformerSizes | None) -> None:
    overlap, bucket, gather = (source.of(f"parallel.data.{name}") for name in ("overlap_reduce", "bucket", "bucket.gather"))
    if overlap is not None and overlap.value != AUTO:
        draft.take(source, "parallel.data.overlap_reduce")
    else:
        draft.write("parallel.data.overlap_reduce", stage == 3, overlap, note=f"DeepSpeed's default of ZeRO-{stage}")
    if bucket is not None and stage == 3 and plus_plus(source):
        draft.unmodelled(bucket, "gradients are exchanged one by one with ZeRO++")
    elif bucket is not None and stage in (1, 2, 3):
        if bucket.value != AUTO:
            if (elements := draft.whole(bucket, 1)) is not None:
                draft.write("parallel.data.bucket", f"{elements} elements", bucket)
        elif sizes is not None:
            note = f"hidden x hidden = {sizes.hidden} x {sizes.hidden}"
            draft.write("parallel.data.bucket", f"{sizes.hidden**2} elements", bucket, note=note)
        else:
            draft.unmodelled(bucket, "auto is hidden x hidden elements of a model that is not known here; DeepSpeed's default is taken")
    else:
        draft.harmless(bucket, "without ZeRO there is no such bucket")
    elements = None if gather is None or gather.value == AUTO else draft.whole(gather, 1)
    if elements is not None and elements < SMALL_BUCKET:
        draft.unmodelled(gather, "parameters gathered in so small pieces")
    else:
        draft.harmless(gather, "pieces of this size travel as fast as the whole")


def _read_gathers(draft: ImportDraft, source: Source, stage: int, sizes: TransformerSizes | None) -> None:
    """Elements of DeepSpeed as units of parsim: whole layers."""
    prefetch, live = source.of("parallel.data.prefetch"), source.of("parallel.data.limit_gathers")
    if stage < 3:
        for key in (prefetch, live, source.get("zero_optimization.sub_group_size")):
            draft.harmless(key, "ZeRO-3 only")
        return
    if _kept_whole(draft, source, sizes):
        live = None
    for key, path, least in ((prefetch, "prefetch", 0), (live, "limit_gathers", 1)):
        if key is None:
            continue
        amount = None if key.value == AUTO else draft.number(key)
        layer = sizes.layer_parameters / (draft.value("parallel.tensor.size") or 1) if sizes is not None else None
        if key is prefetch and (amount is None or layer is None or amount < layer):
            ahead = int(amount is None or amount > 0)
            draft.write(f"parallel.data.{path}", ahead, key, note="in layers: part of the next one" if ahead else "")
        elif amount is not None and layer is not None:
            layers = max(least, min(100, int(amount // layer)))
            draft.write(f"parallel.data.{path}", layers, key, note=f"in layers of {layer / 1e6:.4g}M parameters")
        else:
            draft.unmodelled(key, "parsim counts in layers, of a model that is not known here; its default is taken")


def plus_plus(source: Source) -> bool:
    """Whether any part of ZeRO++ is on."""
    keys = (("quantised_weights", False), ("quantised_gradients", False), ("secondary_partition", 1))
    return any(key is not None and key.value not in (off, AUTO) for name, off in keys for key in [source.of(f"parallel.data.{name}")])


def _read_plus_plus(draft: ImportDraft, source: Source, stage: int) -> None:
    """ZeRO++: what is quantised, and a second copy of the weights."""
    for name, off in (("quantised_weights", False), ("quantised_gradients", False), ("secondary_partition", 1)):
        key = source.of(f"parallel.data.{name}")
        if key is None or key.value in (off, AUTO):
            draft.harmless(key, "switched off")
        elif stage < 3:
            draft.harmless(key, "ZeRO-3 only")
        elif any(draft.value(f"training.offload.{state}") not in (None, "none") for state in ("optimizer", "parameters")):
            draft.unmodelled(key, "ZeRO++ with states off the device")
        else:
            draft.take(source, f"parallel.data.{name}")


def _kept_whole(draft: ImportDraft, source: Source, sizes: TransformerSizes | None) -> bool:
    """Whether gathered parameters stay until the backward: both limits are above the size of the model."""
    reuse, live = source.of("parallel.data.reshard_after_forward"), source.of("parallel.data.limit_gathers")
    if sizes is None or reuse is None or live is None or AUTO in (reuse.value, live.value):
        return False
    distance, alive = draft.number(reuse), draft.number(live)
    if distance is None or alive is None or min(distance, alive) < sizes.layers * sizes.layer_parameters:
        return False
    draft.write("parallel.data.reshard_after_forward", False, reuse, live, note="both are above the size of the model")
    return True


def _read_offload(draft: ImportDraft, source: Source, stage: int) -> None:
    for path, old in (("optimizer", ("cpu_offload",)), ("parameters", ("cpu_offload_params", "cpu_offload_param"))):
        row, device = source.table.rows[f"training.offload.{path}"], source.of(f"training.offload.{path}")
        legacy = source.get(*(f"zero_optimization.{word}" for word in old))
        if device is not None and device.text in row.words and (path == "optimizer" or stage == 3):
            draft.write(row.path, device.text, device)
        elif device is not None and device.text in row.words:
            draft.only_if(device, ("none",), "parameters are offloaded with ZeRO-3 only", "nothing is offloaded")
        elif device is not None and device.value == AUTO:
            draft.fill(row.path, f"{', '.join(row.words)}: auto is what accelerate's offload keys say", device)
        elif device is not None:
            draft.errors.append(device.finding(f"{device.value!r} is none of {', '.join(row.words)}"))
        if legacy is not None and draft.flag(legacy):
            draft.write(row.path, "cpu", legacy)
        else:
            draft.harmless(legacy, "switched off")
    group = source.get("zero_optimization.sub_group_size")
    if group is not None and not draft.settled(group):
        size = SUB_GROUP if group.value == AUTO else draft.number(group)
        nvme = draft.value("training.offload.optimizer") == "nvme"
        if nvme and size != SUB_GROUP:
            draft.unmodelled(group, f"parsim steps {SUB_GROUP:,} elements on drives at a time")
        else:
            draft.harmless(group, "the step takes as long in pieces")


def _read_checkpointing(draft: ImportDraft, source: Source, sizes: TransformerSizes | None) -> None:
    """The section only says how; that the model uses it is taken from switches that are on, and from a number of checkpoints."""
    cpu, spread = source.of("training.offload.activations"), source.get("activation_checkpointing.partition_activations")
    number = source.of("training.recompute")
    count = draft.whole(number) or 0
    on = [key for key in (cpu, spread) if key is not None and draft.flag(key)]
    if (on or count) and "training.recompute" not in draft.lines:
        every = sizes.layers // count if sizes is not None and count and sizes.layers % count == 0 else 1
        note = "the model's code decides; its layers are taken"
        draft.write("training.recompute", "full" if every == 1 else {"every": every}, cpu if cpu in on else None, number, note=note)
    if number is not None and not draft.settled(number):
        draft.harmless(number, "training.recompute says how many there are")
    if cpu is not None and cpu in on:
        draft.write("training.offload.activations", "cpu", cpu)
    else:
        draft.harmless(cpu, "switched off")
    if spread is not None and spread in on:
        draft.unmodelled(spread, "every tensor rank keeps its checkpoints whole")
    else:
        draft.harmless(spread, "switched off")


def zero(draft: ExportDraft) -> dict[str, Any]:
    """``zero_optimization`` and what belongs to data parallelism."""
    data, path = draft.job.built.parallelism.data, "parallel.data.strategy"
    said: dict[str, Any] = {}
    draft.entry(said, path, data.strategy)
    stage = said["zero_optimization"]["stage"]
    if data.strategy in ("fsdp", "hsdp"):
        draft.remarks(path, "ZeRO-3 shards the same, but reduces gradients in every micro-batch (FSDP can wait for the last one)")
    draft.entry(said if stage else {}, "parallel.data.overlap_reduce", data.overlap_reduce)
    if not stage and not data.overlap_reduce:
        draft.lacks("parallel.data.overlap_reduce", "stage 0 reduces after the backward pass, in one go")
    elif not stage and draft.job.replicas > 1:
        draft.remarks(path, "DeepSpeed's stage 0 reduces after the backward pass, torch's DDP under it")
    _buckets(draft, said, stage)
    if stage == 3:
        _stage3(draft, said)
    else:
        draft.lacks("parallel.data.reshard_after_forward", "parameters are whole on every rank")
        for key in ("unit", "prefetch", "limit_gathers", "quantised_weights", "quantised_gradients", "secondary_partition"):
            draft.lacks(f"parallel.data.{key}", "nothing is gathered")
    draft.lacks_below("parallel.data.")
    one_instance(draft)
    if stage >= 2:
        draft.says("parallel.data.accumulate", "every micro-batch is always reduced (stage 2 and 3)")
    else:
        draft.lacks("parallel.data.accumulate", "gradients are reduced at the last micro-batch")
    _offload(draft, said, stage)
    return said


def _buckets(draft: ExportDraft, said: dict[str, Any], stage: int) -> None:
    path, bucket = "parallel.data.bucket", draft.job.built.parallelism.data.bucket
    if not stage or (stage == 3 and bucket is None):
        draft.lacks(path, "stage 0 has no buckets of a size") if not stage else draft.says(path, "the default")
        return
    amount, unit = bucket or (DEEPSPEED_BUCKET, "elements")
    elements = round(amount if unit == "elements" else amount / draft.job.built.training.precision.reduce)
    draft.entry(said, path, elements)
    if stage < 3:
        draft.put(said, f"{path}.gather", elements)


def _stage3(draft: ExportDraft, said: dict[str, Any]) -> None:
    """Prefetching and live parameters, which are counted in elements there: layers times the parameters of one."""
    job, data = draft.job, draft.job.built.parallelism.data
    layer = job.elements_per_layer
    for key, units, what in (("prefetch", data.prefetch, " elements of a layer"), ("limit_gathers", data.limit_gathers, "")):
        name = draft.put(said, f"parallel.data.{key}", units * layer)
        draft.says(f"parallel.data.{key}", f"{name}: {units} x {layer:,}{what}")
    reshard = "parallel.data.reshard_after_forward"
    if data.reshard_after_forward:
        draft.says(reshard, f"{draft.put(said, reshard, layer)}: {layer:,}, one layer")
    else:
        draft.put(said, reshard, 2 * job.elements)
        draft.put(said, "parallel.data.limit_gathers", 2 * job.elements)
        draft.says(reshard, "stage3_max_reuse_distance and stage3_max_live_parameters above the size of the model")
    for key, off in (("quantised_weights", False), ("quantised_gradients", False), ("secondary_partition", 1)):
        if (value := getattr(data, key)) == off:
            draft.says(f"parallel.data.{key}", "the default, off")
        else:
            draft.entry(said, f"parallel.data.{key}", value)
    draft.lacks("parallel.data.unit", "modules are gathered one by one, as their hooks run")
    if data.strategy == "hsdp":
        draft.entry(said, "parallel.data.shard_size", data.shard_size)
        text = "shard groups are MiCS there: the model is made under deepspeed.zero.MiCS_Init"
        draft.remarks("parallel.data.shard_size", text)


def _offload(draft: ExportDraft, said: dict[str, Any], stage: int) -> None:
    offload = draft.job.built.training.offload
    for key, least in (("optimizer", 1), ("parameters", 3)):
        path, where = f"training.offload.{key}", getattr(offload, key)
        if where == "none":
            draft.says(path, "the default, none")
            continue
        draft.entry(said, path, where)
        _, name, _ = draft.table.rows[path].name.split(".")
        section = said["zero_optimization"][name]
        section["pin_memory"] = True
        if where == "nvme":
            section["nvme_path"] = "/local_nvme"
            draft.remarks(path, "nvme_path is a placeholder: write the folder of the drive")
        if stage < least:
            draft.refuses(path, f"{name} needs ZeRO stage {least}, and this is stage {stage}", f"use parallel.zero {least}")
    draft.says("training.offload.gradients", "they follow the optimizer")


def model_parallel(draft: ExportDraft) -> dict[str, Any]:
    """The sizes of the tensor and the context axis; experts are in the model's code."""
    parallelism, section = draft.job.built.parallelism, draft.job.settings.parallel
    order(draft, ORDERS, "only --to megatron has another order")
    said: dict[str, Any] = {}
    tensor, context = parallelism.tensor, parallelism.context
    for path, value in (("parallel.tensor.size", tensor.size), ("parallel.tensor.overlap", tensor.overlap)):
        draft.entry(said if tensor.size > 1 else {}, path, value)
    if tensor.sequence_parallel and tensor.size > 1:
        text = "AutoTP repeats norms and dropout on every tensor-parallel rank"
        draft.refuses("parallel.tensor.sequence_parallel", text, "use --to megatron, or sequence_parallel: false")
    draft.says("parallel.tensor.sequence_parallel", "never")
    draft.lacks_below("parallel.tensor.")
    draft.entry(said if context.size > 1 else {}, "parallel.context.size", context.size)
    draft.says("parallel.context.method", "Ulysses, always")
    if context.size > 1:
        if context.method != "ulysses":
            text = "DeepSpeed's sequence parallelism is Ulysses"
            draft.refuses("parallel.context.method", text, "use method: ulysses, or --to megatron or fsdp")
        draft.script.append(f"UlyssesSPAttentionHF.register_with_transformers(..., sequence_parallel_size={context.size})")
    if section.expert.size > 1:
        draft.script.append(f"deepspeed.moe.layer.MoE(ep_size={section.expert.size})")
    draft.scripted("parallel.expert.size", f"deepspeed.moe.layer.MoE(ep_size={section.expert.size})")
    draft.says("parallel.expert.tensor", "whole experts, or with enable_expert_tensor_parallelism as many as tensor-parallel ranks")
    if parallelism.expert_width != tensor.size and section.fully_connected == 1:
        text = "experts are as wide as the tensor-parallel ranks leave them there"
        draft.refuses("parallel.expert.tensor", text, "use tensor: auto, or --to megatron")
    for key in ("capacity_factor", "pad_to_capacity"):
        draft.lacks(f"parallel.expert.{key}", "deepspeed.moe.layer.MoE(capacity_factor=...) in the model's code")
    draft.lacks("parallel.expert.shared_overlap", "only Megatron-LM runs shared experts beside its dispatchers")
    draft.lacks("parallel.expert.batch_overlap", "only Megatron-LM runs two micro-batches side by side")
    draft.lacks("parallel.expert.fused_mlp", "only Megatron-LM has Transformer Engine fuse the products of experts")
    draft.lacks("parallel.expert.permute_fusion", "only Megatron-LM puts tokens in order of their experts by fused kernels or without them")
    draft.lacks("parallel.expert.paged_stash", "only Megatron-LM packs what experts keep into pages")
    for key in ("dispatcher", "dispatch_dtype", "combine_dtype", "sms"):
        draft.lacks(f"parallel.expert.{key}", "all-to-all, in the type of activations (deepspeed/moe/sharded_moe.py)")
    return said


def pipeline(draft: ExportDraft) -> dict[str, Any]:
    """Stages are an argument of PipelineModule, in the script; the JSON only has how often to checkpoint."""
    pipeline, recompute = draft.job.built.parallelism.pipeline, draft.job.built.training.recompute
    prefix = "parallel.pipeline"
    if pipeline.size == 1:
        for key in ("size", "schedule", "virtual_stages", "split", "post_validation", "overlap_sends", "scatter_sends"):
            draft.says(f"{prefix}.{key}", "no pipeline")
        return {}
    stage = draft.table.rows["parallel.data.strategy"].words.get(draft.job.built.parallelism.data.strategy, 0)
    if stage > 1:
        text = f"ZeRO-{stage} is incompatible with DeepSpeed's pipeline engine"
        draft.refuses(f"{prefix}.size", text, "use parallel.zero 1 or ddp; no tool has both")
    draft.script.append(draft.scripted(f"{prefix}.size", f"PipelineModule(layers, num_stages={pipeline.size})"))
    if pipeline.schedule != "1f1b" and pipeline.virtual_stages * (pipeline.schedule == "interleaved") != 1:
        other = "--to megatron, or 1f1b" if pipeline.schedule == "interleaved" else "1f1b; no tool has it by configuration"
        draft.refuses(f"{prefix}.schedule", "DeepSpeed's TrainSchedule is 1F1B with one stage per rank", f"use {other}")
    draft.says(f"{prefix}.schedule", "TrainSchedule, 1F1B")
    draft.says(f"{prefix}.virtual_stages", "1")
    draft.says(f"{prefix}.account_for", "see split")
    draft.says(f"{prefix}.split", "PipelineModule(partition_method='uniform')")
    if len(set(draft.job.layers)) > 1 or pipeline.split != "even":
        layers = ", ".join(map(str, draft.job.layers))
        draft.remarks(f"{prefix}.split", f"PipelineModule(partition_method=...) has no list of layers per stage; simulated: {layers}")
    draft.lacks(f"{prefix}.overlap_sends", "sends wait for each other")
    draft.lacks(f"{prefix}.post_validation", "its schedules flush the pipeline")
    draft.lacks(f"{prefix}.scatter_sends", "pipe_partitioned partitions the activations of tensor-parallel ranks by itself")
    said: dict[str, Any] = {}
    if every := {"full": 1, "every": recompute.every}.get(recompute.mode, 0):
        draft.put(said, "training.recompute.pipeline", every)
    return said


def checkpointing(draft: ExportDraft) -> dict[str, Any]:
    """``activation_checkpointing``, which the model's code uses."""
    recompute, offload = draft.job.built.training.recompute, draft.job.built.training.offload.activations
    path, host = "training.recompute", "training.offload.activations"
    said_of = {"blocks": "the first layers of a stage only", "one_in": "some of the layers", "selective": "parts of a layer"}
    if what := said_of.get(recompute.mode):
        draft.refuses(path, f"no key checkpoints {what}", "use --to megatron, or recompute: full")
    if recompute.mode not in ("full", "every"):
        draft.says(path, "the default, none")
        draft.says(host, "the default, none")
        return {}
    layers, size = sum(draft.job.layers), recompute.every if recompute.mode == "every" else 1
    said: dict[str, Any] = {"activation_checkpointing": {"partition_activations": False}}
    draft.entry(said, host, offload)
    draft.entry(said, path, ceil(layers / size))
    if draft.job.built.parallelism.pipeline.size == 1:
        draft.script.append("model.gradient_checkpointing_enable()")
    return said

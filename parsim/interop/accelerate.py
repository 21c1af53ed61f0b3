"""accelerate's YAML (``accelerate config``) as a scenario, alone or beside the arguments of a Trainer, and a scenario as such a YAML.

What the keys mean: huggingface/accelerate, src/accelerate/commands/launch.py and src/accelerate/utils/dataclasses.py. A scenario is
written for PyTorch's FSDP; ddp and one process as what they are. accelerate refuses keys that it does not know, so what belongs to the
script (batch, optimizer) stands in comments.
"""

from __future__ import annotations

import json
from math import prod
from typing import Any

from parsim.interop import deepspeed, deepspeed_zero
from parsim.interop.accelerate_megatron import write_megatron, write_megatron_precision
from parsim.interop.deepspeed_named import deepspeed_of as named_file
from parsim.interop.export_draft import (
    ExportDraft,
    Exported,
    ExportJob,
    comments,
    grid,
    order,
    partial_batch,
    simulator_only,
    strategy_of_nobody,
)
from parsim.interop.fsdp import as_text, data_parallel, fsdp, offload, recompute, write_fsdp
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import (
    TransformerSizes,
    ask_for_arguments,
    counted,
    write_accumulation,
    write_cluster,
    write_micro_batch,
    write_model,
    write_sequence_length,
)
from parsim.interop.keys import Key, Source, key_table, of_document
from parsim.interop.peft import finetuning
from parsim.interop.processes import gpus_of_node
from parsim.interop.training_arguments import model_code, precision, trainer_arguments
from parsim.scenario import files
from parsim.units import is_digits

SECTIONS = {
    "fsdp_": "fsdp_config", "zero": "deepspeed_config", "offload_": "deepspeed_config", "gradient_": "deepspeed_config",
    "deepspeed_": "deepspeed_config", "megatron_lm_": "megatron_lm_config", "parallelism_config_": "parallelism_config",
    "dynamo_": "dynamo_config", "fp8_": "fp8_config",
}  # fmt: skip
"""begin of an option of ``accelerate launch`` -> the section of the file that it belongs to"""
KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")
OTHER_MAKERS = {
    "MULTI_XPU": "Intel's XPUs", "MULTI_NPU": "Ascend's NPUs", "MULTI_MLU": "Cambricon's MLUs", "MULTI_MUSA": "Moore Threads' GPUs",
    "MULTI_HPU": "Gaudi's HPUs", "MULTI_SDAA": "Tecorigin's SDAAs",
}  # fmt: skip
"""DDP on accelerators of other makers (accelerate, utils/dataclasses.py, DistributedType): the same job on another machine"""


def read_accelerate(draft: ImportDraft, document: files.Document) -> None:
    """Write the scenario of an accelerate configuration; what the training script says is left to fill in."""
    source = of_document(document, "accelerate")
    sizes = write_model(draft, None)
    write_processes(draft, source)
    write_sequence_length(draft, None)
    steps = source.of("training.gradient_accumulation")
    beside = deepspeed_of(draft, source)
    if beside is not None:
        deepspeed.write_batch(draft, beside)
        draft.harmless(steps, "the DeepSpeed file says it")
    elif "parallel.data.strategy" in draft.lines:  # DeepSpeed's file is not there
        write_micro_batch(draft, None)
        write_accumulation(draft, None)
        draft.harmless(steps, "the DeepSpeed file says it")
    else:
        write_micro_batch(draft, None)
        write_accumulation(draft, steps, 1, "1 if neither the file nor the script says it")
    half = precision_of(source)
    write_strategy(draft, source, sizes, beside, half)
    if draft.value("training.optimizer.name") is None:
        draft.write("training.optimizer.name", "adamw", note="the training script's is taken for AdamW")
    clip = source.of("training.optimizer.clip_gradients")
    clip = clip or (beside.of("training.optimizer.clip_gradients") if beside is not None else None)
    limit = draft.number(clip) if clip is not None and clip.value not in ("auto", "none", "None") else None
    if limit is not None:
        draft.write("training.optimizer.clip_gradients", limit > 0, clip)
    else:
        draft.harmless(clip, "the training script says it")
    ask_for_arguments(draft)
    if beside is not None:
        draft.close(beside)
    draft.close(source)


def write_processes(draft: ImportDraft, source: Source) -> None:
    """Machines and processes."""
    machines, processes = source.of("cluster.nodes"), source.of("cluster.gpus")
    here = None if processes is not None else gpus_of_node(draft, source)  # accelerate starts one on every GPU that it sees
    nodes = counted(draft, machines, replaced=draft.given.nodes is not None)
    write_cluster(draft, nodes=nodes, per_node=here, total=counted(draft, processes))


def precision_of(source: Source) -> tuple[str, Key] | None:
    """``mixed_precision`` as the half type (or fp32), and its key."""
    key = source.of("training.precision")
    if key is None:
        return None
    return "no" if key.value is False else key.text, key


_INITIALISES = ("deepspeed_config.zero3_init_flag", "zero3_init_flag")


def deepspeed_of(draft: ImportDraft, source: Source, half: str = "") -> Source | None:
    """The DeepSpeed file that ``deepspeed_config`` names. `half`: the type that a script's arguments ask for."""
    key = source.get("deepspeed_config.deepspeed_config_file", "deepspeed_config_file")
    if key is None:
        return None
    mixed, stage = precision_of(source), source.get("deepspeed_config.zero_stage")
    sure = stage is None or str(stage.value) == "3"
    type_ = half or ("" if mixed is None or mixed[0] == "no" else mixed[0])
    return named_file(draft, key, type_, source.get(*_INITIALISES) if sure else None)


def write_strategy(
    draft: ImportDraft,
    source: Source,
    sizes: TransformerSizes | None,
    beside: Source | None,
    half: tuple[str, Key] | None,
    *,
    whole: bool = True,
) -> None:
    """What is sharded. `whole`: the types and the compiler too, which nothing else says."""
    kind = source.get("distributed_type")
    word = _guessed(source) if kind is None else "NO" if kind.value is False else kind.text.upper()  # YAML 1.1 reads NO as false
    if word in OTHER_MAKERS and kind is not None:
        text = f"{kind.quoted(draft.file)}: the processes run on {OTHER_MAKERS[word]}, of which parsim ships no device and no collectives"
        draft.remark(text, "cluster.topology", "name a topology with a device file of yours; on any other the same job is simulated there")
    elif word not in KINDS and kind is not None:
        draft.errors.append(kind.finding(f"{word} is no job on GPUs", f"parsim knows {', '.join(KINDS)}"))
    if word == "DEEPSPEED":
        _read_deepspeed(draft, source, sizes, beside, half)
        draft.write("software.profile", "deepspeed", kind)
    else:
        if word == "MEGATRON_LM":
            write_megatron_precision(draft, half)
        elif whole:
            _read_precision(draft, source, half)
        if word == "FSDP":
            write_fsdp(draft, source, None)
            draft.write("software.profile", "pytorch-2", kind)
        elif word == "MEGATRON_LM":
            write_megatron(draft, source, kind)
        else:
            draft.write("parallel.data.strategy", "none" if word == "NO" else "ddp", kind)
            draft.write("software.profile", "pytorch-2")
        named = source.get("deepspeed_config")
        if named is not None and isinstance(named.value, str):
            text = f"{named.value} counts with distributed_type: DEEPSPEED only, in a section deepspeed_config with deepspeed_config_file"
            draft.remark(text, "parallel.data.strategy")
            draft.unmodelled(named, "accelerate passes it over")
    _read_mesh(draft, source)
    if word in ("FSDP", "MULTI_GPU"):
        write_reduction(draft)
    backend = source.of("software.fusion")
    if backend is not None and str(backend.value).lower() not in ("no", "false", "eager"):
        draft.write("software.fusion", "compiled", backend)
    else:
        draft.harmless(backend, "nothing is compiled")
    for section, ours in (("fsdp_config.", "FSDP"), ("deepspeed_config.", "DEEPSPEED"), ("megatron_lm_config.", "MEGATRON_LM")):
        for key in source.keys if word != ours else ():
            if key.name.startswith(section) and not draft.settled(key) and key.value is not None:
                draft.harmless(key, f"it counts with distributed_type {ours} only")
    cpu = source.get("use_cpu", "cpu")
    if draft.flag(cpu):
        draft.refuse(cpu, "training on the CPU", "parsim knows GPUs: use_cpu: false")
    draft.harmless(cpu, "on GPUs")


def write_reduction(draft: ImportDraft) -> None:
    """Accelerate, hence Trainer, keeps DDP and FSDP from reducing all but the last micro-batch of a step."""
    strategy, steps = draft.value("parallel.data.strategy"), draft.value("training.gradient_accumulation")
    if strategy in ("ddp", "fsdp", "hsdp") and steps is not None and steps != 1:
        text = "Accelerator.accumulate is inside no_sync unless GradientAccumulationPlugin(sync_each_batch=True)"
        draft.write("parallel.data.accumulate", "no_sync", note=text)


def _read_precision(draft: ImportDraft, source: Source, half: tuple[str, Key] | None) -> None:
    """Autocast on fp32 weights, also of FSDP, whose shards are fp32 and are gathered in the half type."""
    row = source.table.rows["training.precision"]
    if half is None:
        draft.write("training.precision", "fp32", note="mixed_precision is no if not given")
    elif (preset := row.ours(half[0])) is not None:
        backend = source.of("training.precision.recipe")
        recipe = source.table.rows["training.precision.recipe"].ours(backend.text.upper()) if backend is not None else None
        if preset == "fp8" and recipe is not None:
            draft.write("training.precision", {"preset": preset, "recipe": recipe}, half[1], backend)
        else:
            draft.write("training.precision", preset, half[1])
            draft.harmless(backend, "it is of fp8 only") if preset != "fp8" else draft.unmodelled(
                backend, "parsim has TE's and AO's products"
            )
    else:
        draft.errors.append(half[1].finding(f"{half[0]!r} is none of {', '.join(dict.fromkeys(row.words.values()))}"))


def _guessed(source: Source) -> str:
    names = [key.name for key in source.keys]
    if any(name.startswith("fsdp_config.") for name in names) or "use_fsdp" in names:
        return "FSDP"
    if any(name.startswith(("deepspeed_config", "zero_stage")) for name in names) or "use_deepspeed" in names:
        return "DEEPSPEED"
    if any(name.startswith("megatron_lm_config.") for name in names):
        return "MEGATRON_LM"
    count = source.of("cluster.gpus")
    return "NO" if count is not None and str(count.value) == "1" else "MULTI_GPU"


def _read_deepspeed(
    draft: ImportDraft, source: Source, sizes: TransformerSizes | None, beside: Source | None, half: tuple[str, Key] | None
) -> None:
    """ZeRO from the file that is named, else from the keys of accelerate's own."""
    own = source.below("deepspeed_config.", key_table("deepspeed"))
    type_ = None if half is None else ({"no": ""}.get(half[0], half[0]), half[1])
    if beside is not None:
        deepspeed.write_optimizer(draft, beside, known="training.optimizer.name" in draft.lines)
        deepspeed.write_precision(draft, beside, type_)
        deepspeed_zero.write_states(draft, beside, sizes)
        for key in own.keys:
            if not draft.settled(key) and key.value is not None:
                draft.harmless(key, "the DeepSpeed file counts")
    elif "parallel.data.strategy" in draft.lines:  # left to fill in: the file is not there
        draft.harmless(half[1] if half is not None else None, "DeepSpeed's own type counts")
    else:
        deepspeed.write_precision(draft, own, type_)
        deepspeed_zero.write_states(draft, own, sizes)
        source.asked |= {f"deepspeed_config.{name}": None for name in own.asked}


def _check_mesh(draft: ImportDraft, source: Source) -> None:
    """accelerate stops where the sizes of the mesh are not as many as its processes (`ParallelismConfig._validate_accelerator`)."""
    paths = (
        "parallel.tensor.size",
        "parallel.context.size",
        "parallel.context.size.ulysses",
        "parallel.data.size.copies",
        "parallel.data.size.shards",
    )
    keys = [key for path in paths if (key := source.of(path)) is not None and key.name.startswith("parallelism_config.")]
    count = source.of("cluster.gpus")
    processes = draft.whole(count, 1) if count is not None and is_digits(str(count.value)) else None
    sizes = [draft.whole(key, 1) or 1 for key in keys]
    ulysses = source.of("parallel.context.size.ulysses")
    if processes is None or prod(sizes) in (1, processes) or (ulysses is not None and str(ulysses.value) != "1"):
        return
    product = " x ".join(map(str, sizes))
    text = f"{product} = {prod(sizes)} ranks of the mesh, and num_processes is {processes}: accelerate stops here"
    draft.errors.append(keys[-1].finding(text, "make the sizes multiply to num_processes"))


def _read_mesh(draft: ImportDraft, source: Source) -> None:
    """``parallelism_config``: sizes of a device mesh beside FSDP."""
    _check_mesh(draft, source)
    for path, method in (("parallel.tensor.size", ""), ("parallel.context.size", ""), ("parallel.context.size.ulysses", "ulysses")):
        key, ours = source.of(path), path.removesuffix(".ulysses")
        size = draft.whole(key, 1)
        if key is None or size is None:
            continue
        if size > 1 or ours not in draft.lines:
            draft.write(ours, size, key)
        else:
            draft.harmless(key, "one rank")
        if method and size > 1:
            draft.write("parallel.context.method", method, key)
    draft.take(source, "parallel.context.method")
    copies, shards = source.of("parallel.data.size.copies"), source.of("parallel.data.size.shards")
    number, size = draft.whole(copies, 1) or 1, draft.whole(shards, 1)
    value: Any = draft.value("parallel.data.strategy")
    if number > 1 and size is not None and size > 1 and value in ("fsdp", "hsdp"):
        draft.write("parallel.data.strategy", "hsdp", *draft.lines["parallel.data.strategy"].keys, copies)
        context = draft.value("parallel.context.size") or 1
        note = f"{size} x {context} context ranks" if context > 1 else ""
        draft.write("parallel.data.shard_size", size * context, shards, note=note)
        return
    if (size or 1) > 1 and shards is not None and value not in ("fsdp", "hsdp", "zero1", "zero2", "zero3"):
        draft.refuse(shards, "shards without FSDP", "write distributed_type: FSDP, or leave the size out")
    if number > 1 and (size or 1) == 1:
        draft.write("parallel.data.strategy", "ddp", *draft.lines["parallel.data.strategy"].keys, copies)
    for key in (copies, shards):
        if key is not None and not draft.settled(key):
            draft.harmless(key, "the other sizes leave as many ranks")


ORDERS: dict[tuple[str, ...], str] = {("tensor", "context", "data", "pipeline"): ""}
DDP = ("none", "ddp")


def to_fsdp(job: ExportJob, version: int) -> Exported:
    """The configuration. Raises `PlanError` with everything that FSDP cannot run as it was simulated."""
    draft = ExportDraft(job, "accelerate's YAML", key_table("accelerate"))
    simulator_only(draft)
    partial_batch(draft, "the script's data loader")
    nodes, processes = grid(draft)
    strategy = job.built.parallelism.data.strategy
    document: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "debug": False}
    mixed = precision(draft)
    if not strategy_of_nobody(draft):
        document["distributed_type"] = ("MULTI_GPU" if nodes * processes > 1 else "NO") if strategy in DDP else "FSDP"
        document |= data_parallel(draft) if strategy in DDP else {"fsdp_config": fsdp(draft, version)}
    recompute(draft, document)
    offload(draft, document)
    document |= _mesh(draft, version)
    document |= mixed
    document |= {
        "downcast_bf16": "no",
        "machine_rank": 0,
        "main_training_function": "main",
        **draft.pair("cluster.nodes", nodes),
        **draft.pair("cluster.gpus", nodes * processes),
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    draft.script.insert(0, f"TrainingArguments({', '.join(trainer_arguments(draft, document))})")
    model_code(draft)
    finetuning(draft)
    if nodes > 1:
        path = "cluster.nodes"
        draft.remarks(path, "give every node its machine_rank, and main_process_ip and main_process_port to accelerate launch")
    launch = "accelerate launch --config_file FILE SCRIPT.py"
    return draft.exported("fsdp", _text(draft, document, version), launch)


def _mesh(draft: ExportDraft, version: int) -> dict[str, Any]:
    """What FSDP2 may be combined with: hybrid sharding, tensor and context parallelism."""
    parallelism, section = draft.job.built.parallelism, draft.job.settings.parallel
    tensor, context, data = parallelism.tensor, parallelism.context, parallelism.data
    sharded = data.strategy not in DDP
    _pipeline(draft)
    order(draft, ORDERS, "only --to megatron has another order")
    draft.says("parallel.expert.size", "the default, 1")
    for key in ("capacity_factor", "pad_to_capacity"):
        draft.lacks(f"parallel.expert.{key}", "the model's code")
    draft.lacks("parallel.expert.shared_overlap", "only Megatron-LM runs shared experts beside its dispatchers")
    draft.lacks("parallel.expert.batch_overlap", "only Megatron-LM runs two micro-batches side by side")
    draft.lacks("parallel.expert.fused_mlp", "only Megatron-LM has Transformer Engine fuse the products of experts")
    draft.lacks("parallel.expert.permute_fusion", "only Megatron-LM puts tokens in order of their experts by fused kernels or without them")
    draft.lacks("parallel.expert.paged_stash", "only Megatron-LM packs what experts keep into pages")
    for key in ("dispatcher", "dispatch_dtype", "combine_dtype", "sms"):
        draft.lacks(f"parallel.expert.{key}", "the model's code")
    draft.says("parallel.expert.tensor", "as many as tensor-parallel ranks")
    if parallelism.exchanges_tokens and section.fully_connected == 1:
        path = "parallel.expert.size" if section.expert.size > 1 else "parallel.expert.tensor"
        draft.refuses(path, "accelerate has no expert parallelism", "use --to megatron")
    for axis, size in (("tensor", tensor.size), ("context", context.size)):
        draft.says(f"parallel.{axis}.size", as_text(draft.pair(f"parallel.{axis}.size", size)))
        if size > 1 and (version == 1 or not sharded):
            needs = "FSDP2" if version == 1 else "a sharded strategy (FSDP2)"
            hint = "leave --fsdp-version 1 out, or use --to megatron" if sharded else "use strategy fsdp, or --to megatron or deepspeed"
            draft.refuses(f"parallel.{axis}.size", f"{axis} parallelism goes with {needs} there", hint)
    if tensor.sequence_parallel and tensor.size > 1:
        text = "accelerate shards what the model's tensor-parallel plan says, and has no switch for norms and dropout"
        draft.refuses("parallel.tensor.sequence_parallel", text, "use --to megatron, or sequence_parallel: false")
    draft.says("parallel.tensor.sequence_parallel", "the default, off")
    draft.lacks("parallel.tensor.overlap", "PyTorch's tensor parallelism waits for its collectives, but for inductor's micro_pipeline_tp")
    draft.lacks_below("parallel.tensor.")
    method = draft.pair("parallel.context.method", context.method)
    draft.says("parallel.context.method", as_text(method))
    if context.size > 1 and None in method.values():
        text = "accelerate's context parallelism gathers keys and values, or sends them in a ring"
        draft.refuses("parallel.context.method", text, "use ring or all-gather, or --to deepspeed or megatron")
    replicas = data.size * context.size
    copies = replicas // data.shard_size if data.strategy == "hsdp" else 1
    if data.strategy == "hsdp" and version == 2 and data.size % copies:
        text = f"a shard group holds whole context groups there: {data.shard_size} is no multiple of the {context.size} context ranks"
        draft.refuses("parallel.data.shard_size", text, f"use shard_size {context.size * 2}, or a multiple of it")
    if version == 1 or not sharded or max(tensor.size, context.size, copies) == 1:
        return {}
    said = {
        **draft.pair("parallel.data.size.copies", copies),
        **draft.pair("parallel.data.size.shards", data.size // copies),
        **draft.pair("parallel.tensor.size", tensor.size),
        **draft.pair("parallel.context.size", context.size),
    }
    return {"parallelism_config": said | (method if context.size > 1 else {})}


def _pipeline(draft: ExportDraft) -> None:
    pipeline = draft.job.built.parallelism.pipeline
    for key in ("size", "schedule", "virtual_stages", "split", "account_for", "post_validation", "overlap_sends", "scatter_sends"):
        draft.says(f"parallel.pipeline.{key}", "no pipeline")
    if pipeline.size > 1:
        hint = "use --to megatron, or --to deepspeed (its pipeline engine), or pipeline size 1"
        draft.refuses("parallel.pipeline.size", "FSDP has no pipeline parallelism", hint)


def _text(draft: ExportDraft, document: dict[str, Any], version: int) -> str:
    job = draft.job
    kind = f"FSDP{version}" if document.get("distributed_type") == "FSDP" else str(document.get("distributed_type"))
    lines = [
        *comments(
            f"{job.scenario.name}: {job.built.model.name} on {sum(job.gpus_per_node)} GPUs, accelerate with {kind}, by parsim export"
        ),
        *comments(f"in the script: {'; '.join(draft.script)}"),
        *(line for note in draft.notes for line in comments(f"note: {note.path}: {note.message}")),
    ]
    for key, value in document.items():
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {name}: {_scalar(item)}" for name, item in value.items())]
        else:
            lines.append(f"{key}: {_scalar(value)}")
    return "\n".join([*lines, ""])


def _scalar(value: Any) -> str:
    """A YAML scalar that YAML 1.1 reads as it is: ``'no'`` in quotes."""
    if isinstance(value, str):
        return f"'{value}'" if value.lower() in ("no", "yes", "on", "off") else value
    return json.dumps(value)

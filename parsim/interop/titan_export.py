"""A scenario as torchtitan's TOML.

The names are those of pytorch/torchtitan, torchtitan/config/job_config.py as it was until February 2026, when Python files and flags of
the same names took the place of TOML (torchtitan/config/configs.py, manager.py); a comment of the file has the flags.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from parsim.errors import Finding
from parsim.interop.export_draft import (
    ExportDraft,
    Exported,
    ExportJob,
    comments,
    grid,
    no_muon,
    one_instance,
    order,
    partial_batch,
    simulator_only,
    sixteen_bits,
    strategy_of_nobody,
    torchrun,
)
from parsim.interop.fsdp import as_fsdp
from parsim.interop.keys import key_table
from parsim.interop.titan_pipeline import pipeline_entries
from parsim.interop.torchtitan import flavour_of
from parsim.scenario.precision import PRESETS

ORDERS: dict[tuple[str, ...], str] = {("tensor", "context", "data", "pipeline"): ""}
"""of the mesh (torchtitan/distributed/parallel_dims.py), innermost first"""
FLAGS = ("training", "parallelism", "compile")
"""sections whose names are flags since February 2026"""


def to_torchtitan(job: ExportJob) -> Exported:
    """The TOML. Raises `PlanError` with everything that torchtitan cannot run as it was simulated."""
    draft = ExportDraft(job, "torchtitan", key_table("torchtitan"))
    simulator_only(draft)
    partial_batch(draft)
    nodes, processes = grid(draft)
    document: dict[str, Any] = {"model": _model(draft)}
    if not strategy_of_nobody(draft):
        _data(draft, document)
    _tensor_and_context(draft, document)
    _experts(draft, document)
    order(draft, ORDERS, "only --to megatron has another order")
    _batch(draft, document)
    pipeline_entries(draft, document)
    _precision(draft, document)
    _optimizer(draft, document)
    _recompute(draft, document)
    _rest(draft, document)
    start = " ".join(torchrun(nodes, processes))
    return draft.exported("torchtitan", _text(draft, document), f"torchrun {start} -m torchtitan.train --job.config_file FILE")


def _model(draft: ExportDraft) -> dict[str, str]:
    """The flavour of the model's sizes; there is one for catalogue models only."""
    written = draft.job.scenario.settings.model
    if isinstance(written, Mapping) and set(written) == {"base"}:
        written = written["base"]
    found = flavour_of(written) if isinstance(written, str) else None
    if found is None:
        text = "torchtitan has no flavour of this model: its sizes are in its code (torchtitan/models/*/__init__.py)"
        draft.refused.append(Finding(text, "model", draft.job.built.model.name, "use a model that it has, or --to megatron or fsdp"))
        return {}
    return dict(zip(("name", "flavor"), found, strict=True))


def _data(draft: ExportDraft, document: dict[str, Any]) -> None:
    """Copies and shards of the mesh; the shards are those of data and context ranks."""
    parallelism, path = draft.job.built.parallelism, "parallel.data.strategy"
    data, context = parallelism.data, parallelism.context.size
    sharded = data.strategy not in ("none", "ddp")
    copies = data.size * context // data.shard_size if data.strategy == "hsdp" else 1 if sharded else data.size
    shards = data.size // copies
    if data.strategy == "zero1":
        text = "torchtitan shards parameters and gradients wherever it shards optimizer states"
        draft.refuses(path, text, "use strategy fsdp, or --to megatron or deepspeed")
    if not sharded and context > 1:
        draft.refuses(path, "context ranks share the parameters there: FSDP", "use strategy fsdp")
    if data.strategy == "hsdp" and data.size % copies:
        text = f"a shard group holds whole context groups there: {data.shard_size} is no multiple of the {context} context ranks"
        draft.refuses("parallel.data.shard_size", text, f"use shard_size {context * 2}, or a multiple of it")
    degrees = [draft.put(document, f"parallel.data.{name}", count) for name, count in (("copies", copies), ("shards", shards))]
    draft.says(path, f"{degrees[0]}: {copies}, {degrees[1]}: {shards}")
    draft.says("parallel.data.shard_size", draft.keys[path].text)
    resharded = as_fsdp(draft)
    if sharded:
        draft.entry(document, "parallel.data.reshard_after_forward", resharded)
    else:
        draft.lacks("parallel.data.reshard_after_forward", "nothing is sharded")
    pipeline = parallelism.pipeline.size > 1
    if data.accumulate == ("no_sync" if pipeline else "every") or draft.job.built.training.micro_batches == 1:
        draft.says("parallel.data.accumulate", "as torchtitan does")
    else:
        draft.lacks("parallel.data.accumulate", "torchtitan reduces every micro-batch, under a pipeline the last one")
    for key, why in (
        ("prefetch", "FSDP2 gathers one unit ahead"),
        ("limit_gathers", "FSDP2 holds two gathered units"),
        ("queues", "PyTorch decides it"),
        ("unit", "torchtitan wraps every layer"),
        ("fsdp_version", "torchtitan has FSDP2 only"),
        ("overlap_reduce", "torchtitan always reduces under the backward pass"),
        ("overlap_gather", "no optimizer states alone are sharded"),
        ("bucket", "torchtitan leaves DDP its default"),
        ("first_bucket", "torchtitan leaves DDP its default"),
        ("bucket_view", "torchtitan leaves DDP its default"),
    ):
        draft.lacks(f"parallel.data.{key}", why)
    if sharded and data.fsdp_version == 1:
        draft.remarks("parallel.data.fsdp_version", "version 2 is written, the scenario runs version 1")
    one_instance(draft)
    sixteen_bits(draft)


def _tensor_and_context(draft: ExportDraft, document: dict[str, Any]) -> None:
    tensor, context = draft.job.built.parallelism.tensor, draft.job.built.parallelism.context
    draft.entry(document, "parallel.tensor.size", tensor.size)
    path = "parallel.tensor.sequence_parallel"
    draft.says(path, "always, with several tensor ranks")
    if tensor.size > 1 and not tensor.sequence_parallel:
        draft.refuses(path, "torchtitan's tensor parallelism has sequence parallelism", "write sequence_parallel: true")
    path = "parallel.tensor.overlap"
    if tensor.size > 1 and tensor.overlap == "async":
        draft.entry(document, path, value=True)
        if draft.job.settings.software.fusion != "compiled":
            draft.refuses(path, "asynchronous tensor parallelism is made by torch.compile", "write software.fusion: compiled")
    elif tensor.size > 1 and tensor.overlap != "none":
        draft.lacks(path, "torchtitan waits for its collectives, but for enable_async_tensor_parallel (overlap: async)")
    else:
        draft.says(path, "the default, none")
    for key in ("overlap_splits", "overlap_sms"):
        draft.lacks(f"parallel.tensor.{key}", "user buffers are Transformer Engine's")
    draft.entry(document, "parallel.context.size", context.size)
    path = "parallel.context.method"
    word = draft.table.rows[path].theirs(context.method)
    if context.size == 1:
        draft.says(path, "one context rank")
    elif word is None:
        draft.refuses(path, "torchtitan gathers keys and values, or sends them in a ring", "use ring or all-gather, or --to deepspeed")
    else:
        draft.entry(document, path, context.method)


def _experts(draft: ExportDraft, document: dict[str, Any]) -> None:
    parallelism = draft.job.built.parallelism
    for key, ranks in (("size", parallelism.expert.size), ("tensor", parallelism.expert_width)):
        if draft.job.built.model.facts.get("experts") and ranks > 1:
            draft.entry(document, f"parallel.expert.{key}", ranks)
        else:
            draft.says(f"parallel.expert.{key}", "the default, 1")
    for key in ("capacity_factor", "pad_to_capacity"):
        draft.lacks(f"parallel.expert.{key}", "torchtitan drops no tokens")
    draft.lacks("parallel.expert.shared_overlap", "only Megatron-LM runs shared experts beside its dispatchers")
    draft.lacks("parallel.expert.batch_overlap", "only Megatron-LM runs two micro-batches side by side")
    draft.lacks("parallel.expert.fused_mlp", "only Megatron-LM has Transformer Engine fuse the products of experts")
    draft.lacks("parallel.expert.permute_fusion", "only Megatron-LM puts tokens in order of their experts by fused kernels or without them")
    draft.lacks("parallel.expert.paged_stash", "only Megatron-LM packs what experts keep into pages")
    for key in ("dispatcher", "dispatch_dtype", "combine_dtype", "sms"):
        draft.lacks(f"parallel.expert.{key}", "the standard exchange of tokens is written: all-to-all in bf16")


def _batch(draft: ExportDraft, document: dict[str, Any]) -> None:
    """Samples per rank; under a pipeline all of a step, so that one schedule is a step."""
    training, pipeline = draft.job.built.training, draft.job.built.parallelism.pipeline.size > 1
    local = training.micro_batch * (training.micro_batches if pipeline else 1)
    if draft.job.built.model.sequence:
        draft.entry(document, "training.sequence_length", training.sequence_length)
    name = draft.put(document, "training.micro_batch", local)
    draft.says("training.micro_batch", f"{name}: {local}")
    draft.entry(document, "training.global_batch", training.global_batch)
    draft.says("training.gradient_accumulation", f"it follows: {draft.job.built.batch_arithmetic}")


def _precision(draft: ExportDraft, document: dict[str, Any]) -> None:
    """fp32 shards that are gathered in bf16, all in fp32, or all in bf16; fp8 products of torchao."""
    path, precision, parallelism = "training.precision", draft.job.built.training.precision, draft.job.built.parallelism
    matmul = "bf16" if precision.narrow else precision.matmul
    plain = replace(precision, quantisation=None, matmul=matmul, keep=(), keep_layers=(0, 0), gathers_narrow=False)
    casts = PRESETS["amp-bf16"].cached_casts if plain.parameters == PRESETS["amp-bf16"].parameters and matmul == "bf16" else None
    plain = plain if casts is None else replace(plain, cached_casts=casts)
    name = next((name for name, preset in PRESETS.items() if replace(plain, name=name) == preset), draft.job.precision)
    half = name in ("amp-bf16", "bf16", "bf16-fp32grad", "fp8")
    if not half and name not in ("fp32", "pure-bf16"):
        draft.refuses(path, f"torchtitan cannot store {draft.job.stored}", "use amp-bf16, pure-bf16 or fp32")
        return
    alone = parallelism.data.size * parallelism.context.size == 1 and max(parallelism.tensor.size, parallelism.pipeline.size) > 1
    if half and alone:
        text = "torchtitan has no mixed precision with tensor or pipeline ranks alone"
        draft.refuses(path, text, "use pure-bf16 or fp32, or data or context parallelism")
    draft.says(path, name)
    if name == "pure-bf16":
        draft.put(document, "training.precision.stored", "bf16")
    draft.put(document, "training.precision.half", "fp32" if name == "fp32" else "amp-bf16")
    if half and name != "amp-bf16":
        simulated = draft.job.built.bytes_per_parameter
        draft.remarks(path, f"weights and gradients are fp32 there, gathered and computed in bf16; simulated: {simulated}")
    if precision.narrow:
        _narrow(draft, document)


def _narrow(draft: ExportDraft, document: dict[str, Any]) -> None:
    """Products in fp8 by torchao's converters."""
    path, precision = "training.precision", draft.job.built.training.precision
    recipe = "" if precision.quantisation is None else precision.quantisation.recipe
    if any(precision.keep_layers):
        draft.refuses(path, "torchtitan keeps no first and last layers in bf16", "leave keep_layers out, or use --to megatron")
    if recipe == "mxfp8":
        document["model"]["converters"] = ["quantize.linear.mx"]
        return
    if draft.table.rows[f"{path}.recipe"].theirs(recipe) is None:
        draft.refuses(path, f"torchtitan has no {recipe} products", "use recipe: tensorwise, rowwise or mxfp8, or --to megatron")
        return
    document["model"]["converters"] = ["quantize.linear.float8"]
    draft.put(document, f"{path}.recipe", recipe)
    if precision.gathers_narrow:
        draft.put(document, f"{path}.gather", value=True)
    if "head" in precision.keep:
        draft.put(document, f"{path}.keep", ["output"])
    if "attention" not in precision.keep:
        draft.refuses(path, "attention stays in bf16 there", "leave attention in training.precision.keep")


def _optimizer(draft: ExportDraft, document: dict[str, Any]) -> None:
    optimizer = draft.job.built.training.optimizer
    path = "training.optimizer.name"
    if not no_muon(draft):
        if draft.table.rows[path].theirs(optimizer.name) is None:
            draft.refuses(path, "torchtitan has AdamW and Adam", "use adamw, or --to megatron")
        else:
            draft.entry(document, path, optimizer.name)
    draft.entry(document, "training.optimizer.implementation", optimizer.implementation)
    draft.entry(document, "training.optimizer.clip_gradients", optimizer.clip_gradients)
    offload = draft.job.built.training.offload
    states = {key: getattr(offload, key) for key in ("parameters", "gradients", "optimizer")}
    for key in states:
        draft.says(f"training.offload.{key}", "enable_cpu_offload" if offload.states else "the default, none")
    path = "training.offload.optimizer" if offload.optimizer != "none" else "training.offload.parameters"
    if set(states.values()) == {"cpu"}:
        draft.put(document, "training.offload", value=True)
    elif offload.states:
        text = f"torchtitan offloads all states to host memory, or none, not {', '.join(f'{k} {v}' for k, v in states.items())}"
        draft.refuses(path, text, "use --to deepspeed, or offload parameters and optimizer to cpu")
    draft.says("training.offload.activations", "the default, none")
    if offload.activations != "none":
        draft.refuses("training.offload.activations", "torchtitan keeps activations on the device", "use --to deepspeed")


def _recompute(draft: ExportDraft, document: dict[str, Any]) -> None:
    """None, every layer, one layer in n, or every second matrix product."""
    path, recompute = "training.recompute", draft.value("training.recompute")
    if recompute in ("none", "full"):
        draft.entry(document, path, recompute)
        return
    said = recompute if isinstance(recompute, Mapping) else {}
    option = "op" if said.get("selective") == ["matmuls"] else str(said["one_in"]) if "one_in" in said else None
    if option is None:
        text = "torchtitan recomputes every layer, one layer in n, or every second matrix product"
        draft.refuses(path, text, "use full, {one_in: 2} or {selective: [matmuls]}, or --to megatron")
        return
    name = draft.put(document, path, "selective")
    draft.put(document, f"{path}.selective", option)
    draft.says(path, f"{name}: selective, {option}")


def _rest(draft: ExportDraft, document: dict[str, Any]) -> None:
    """The compiler, and what the model's code decides."""
    settings, training = draft.job.settings, draft.job.built.training
    if settings.software.fusion == "compiled":
        draft.entry(document, "software.fusion", "compiled")
    path = "training.loss.kernel"
    if settings.software.fusion == "compiled" and training.loss_kernel == "eager":
        document["compile"]["components"] = ["model"]
        draft.says(path, "compile.components: [model]")
    else:
        draft.lacks(path, "the loss is compiled with the model, or eager")
    draft.lacks("training.loss.kind", "the loss is that of next tokens")
    for key in ("chunks", "hold_logits"):
        draft.lacks(f"training.loss.{key}", "the training loop's")
    if training.dropout:
        draft.remarks("training.dropout", "torchtitan's models have no dropout")
    draft.says("training.dropout", "none")
    draft.lacks("training.attention", "PyTorch's scaled_dot_product_attention chooses")
    for key in ("examples", "epochs"):
        draft.lacks(f"training.{key}", "the length of the training is training.steps")
    for key in draft.job.scenario.tree["training"]["finetune"] or {"method": None}:
        draft.says(f"training.finetune.{key}", "all weights are trained")
    if training.finetune is not None:
        draft.refuses("training.finetune.method", "torchtitan's TOML has no adapters", "use --to fsdp or --to deepspeed")
    if draft.job.built.runtime.profile != "torchtitan":
        text = f"simulated with the software profile {draft.job.built.runtime.profile}; what torchtitan would take: torchtitan"
        draft.remarks("software.profile", text)


def _text(draft: ExportDraft, document: Mapping[str, Any]) -> str:
    job, model = draft.job, document["model"]
    size = f"{len(job.gpus_per_node)} x {job.gpus_per_node[0]} GPUs"
    lines = [
        *comments(f"{job.scenario.name}: {job.built.model.name} on {size} for torchtitan, written by parsim export"),
        *comments("data, tokenizer, learning rate, steps and checkpoints are added in sections of their own"),
        *(line for note in draft.notes for line in comments(f"note: {note.path}: {note.message}")),
    ]
    if "name" in model:
        flags = " ".join(_flags(document))
        config = f"{model['name']}_{model['flavor'].lower()}"
        lines += comments(f"torchtitan since February 2026 takes flags instead: --module {model['name']} --config {config} {flags}")
    for section, entries in _sections(document):
        lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in entries.items())]
    return "\n".join([*lines, ""])


def _sections(document: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Tables of the TOML with their own keys, those below behind them."""
    for name, value in document.items():
        if not isinstance(value, Mapping):
            continue
        own = {key: item for key, item in value.items() if not isinstance(item, Mapping)}
        if own:
            yield f"{above}{name}", own
        yield from _sections(value, f"{above}{name}.")


def _flags(document: Mapping[str, Any]) -> Iterator[str]:
    for section in FLAGS:
        for key, value in document.get(section, {}).items():
            if value is True:
                yield f"--{section}.{key}"
            elif not isinstance(value, (list, Mapping)):
                yield f"--{section}.{key} {value}"


def _toml(value: Any) -> str:
    """A value as TOML has it; JSON's texts, numbers, lists and truth values are TOML's."""
    return json.dumps(value)

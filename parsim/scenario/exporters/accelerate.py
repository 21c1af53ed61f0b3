"""A scenario as accelerate's YAML configuration for PyTorch's FSDP; ddp and one process are written as what they are.

Names are those of huggingface/accelerate (``commands/config/cluster.py``, ``utils/dataclasses.py``, ``parallelism_config.py``); accelerate
refuses keys that it does not know, so what belongs to the script (batch, optimizer) stands in comments.
"""

from __future__ import annotations

import json
from typing import Any

from parsim.scenario.exporters.draft import Draft
from parsim.scenario.exporters.every_tool import partial_batch, simulator_only, strategy_of_nobody
from parsim.scenario.exporters.exported import Exported
from parsim.scenario.exporters.finetuning import finetuning
from parsim.scenario.exporters.fsdp import data_parallel, fsdp, offload, recompute
from parsim.scenario.exporters.job import Job
from parsim.scenario.exporters.launcher import grid, order
from parsim.scenario.exporters.model_code import model_code
from parsim.scenario.exporters.remarks import comments
from parsim.scenario.exporters.trainer import precision, trainer_arguments

ORDERS: dict[tuple[str, ...], str] = {("tensor", "context", "data", "pipeline"): ""}
DDP = ("none", "ddp")


def to_fsdp(job: Job, version: int) -> Exported:
    """The configuration. Raises `PlanError` with everything that FSDP cannot run as it was simulated."""
    draft = Draft(job, "accelerate's YAML")
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
        "downcast_bf16": "no", "machine_rank": 0, "main_training_function": "main", "num_machines": nodes,
        "num_processes": nodes * processes, "rdzv_backend": "static", "same_network": True, "use_cpu": False,
    }  # fmt: skip
    draft.script.insert(0, f"TrainingArguments({', '.join(trainer_arguments(draft, document))})")
    model_code(draft)
    finetuning(draft)
    if nodes > 1:
        path = "cluster.nodes"
        draft.remarks(path, "give every node its machine_rank, and main_process_ip and main_process_port to accelerate launch")
    launch = "accelerate launch --config_file FILE SCRIPT.py"
    return draft.exported("fsdp", _text(draft, document, version), launch)


def _mesh(draft: Draft, version: int) -> dict[str, Any]:
    """What FSDP2 may be combined with: hybrid sharding, tensor and context parallelism."""
    parallelism, section = draft.job.built.parallelism, draft.job.settings.parallel
    tensor, context, data = parallelism.tensor, parallelism.context, parallelism.data
    sharded = data.strategy not in DDP
    _pipeline(draft)
    order(draft, ORDERS, "only --to megatron has another order")
    draft.says("parallel.expert.size", "the default, 1")
    draft.lacks("parallel.expert.capacity_factor", "the model's code")
    if section.expert.size > 1:
        draft.refuses("parallel.expert.size", "accelerate has no expert parallelism", "use --to megatron")
    for axis, size in (("tensor", tensor.size), ("context", context.size)):
        draft.says(f"parallel.{axis}.size", f"parallelism_config_{axis[0]}p_size: {size}")
        if size > 1 and (version == 1 or not sharded):
            needs = "FSDP2" if version == 1 else "a sharded strategy (FSDP2)"
            hint = "leave --fsdp-version 1 out, or use --to megatron" if sharded else "use strategy fsdp, or --to megatron or deepspeed"
            draft.refuses(f"parallel.{axis}.size", f"{axis} parallelism goes with {needs} there", hint)
    if tensor.sequence_parallel and tensor.size > 1:
        text = "accelerate shards what the model's tensor-parallel plan says, and has no switch for norms and dropout"
        draft.refuses("parallel.tensor.sequence_parallel", text, "use --to megatron, or sequence_parallel: false")
    draft.says("parallel.tensor.sequence_parallel", "the default, off")
    draft.lacks("parallel.tensor.overlap", "PyTorch's tensor parallelism does not overlap")
    methods = {"all-gather": "allgather", "ring": "alltoall"}
    draft.says("parallel.context.method", f"parallelism_config_cp_comm_strategy: {methods.get(context.method)}")
    if context.size > 1 and context.method not in methods:
        text = "accelerate's context parallelism gathers keys and values, or sends them in a ring"
        draft.refuses("parallel.context.method", text, "use ring or all-gather, or --to deepspeed or megatron")
    copies = data.size // data.shard_size if data.strategy == "hsdp" else 1
    if version == 1 or not sharded or max(tensor.size, context.size, copies) == 1:
        return {}
    sizes = {"dp_replicate": copies, "dp_shard": data.size // copies, "tp": tensor.size, "cp": context.size}
    said: dict[str, Any] = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
    if context.size > 1:
        said["parallelism_config_cp_comm_strategy"] = methods.get(context.method)
    return {"parallelism_config": said}


def _pipeline(draft: Draft) -> None:
    pipeline = draft.job.built.parallelism.pipeline
    for key in ("size", "schedule", "virtual_stages", "split", "overlap_sends", "scatter_sends"):
        draft.says(f"parallel.pipeline.{key}", "no pipeline")
    if pipeline.size > 1:
        hint = "use --to megatron, or --to deepspeed (its pipeline engine), or pipeline size 1"
        draft.refuses("parallel.pipeline.size", "FSDP has no pipeline parallelism", hint)


def _text(draft: Draft, document: dict[str, Any], version: int) -> str:
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

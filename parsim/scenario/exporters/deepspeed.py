"""A scenario as DeepSpeed's JSON configuration. JSON holds no comments: what it cannot say is in the notes.

Names are those of deepspeedai/DeepSpeed (``deepspeed/runtime/config.py``, ``runtime/zero/config.py``, docs/_pages/config-json.md).
"""

from __future__ import annotations

import json
from math import ceil
from typing import Any

from parsim.parallel.buckets import DEEPSPEED_BUCKET
from parsim.scenario.exporters.deepspeed_precision import precision
from parsim.scenario.exporters.draft import Draft
from parsim.scenario.exporters.every_tool import partial_batch, simulator_only, strategy_of_nobody
from parsim.scenario.exporters.exported import Exported
from parsim.scenario.exporters.finetuning import finetuning
from parsim.scenario.exporters.job import Job
from parsim.scenario.exporters.launcher import grid, order, torchrun
from parsim.scenario.exporters.model_code import model_code

STAGES = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
ORDERS: dict[tuple[str, ...], str] = {("tensor", "context", "data", "pipeline"): ""}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"type": "AdamW"},
    "adam": {"type": "Adam", "params": {"adam_w_mode": False}},
    "lion": {"type": "Lion"},
}
"""those that DeepSpeed makes itself; others are handed to deepspeed.initialize"""
CLIENT = {
    "sgd": "torch.optim.SGD(parameters)",
    "momentum": "torch.optim.SGD(parameters, momentum=0.9)",
    "adam-8bit": "bitsandbytes.optim.AdamW8bit(parameters)",
    "adafactor": "transformers.Adafactor(parameters)",
}


def to_deepspeed(job: Job) -> Exported:
    """The configuration. Raises `PlanError` with everything that DeepSpeed cannot run as it was simulated."""
    draft = Draft(job, "DeepSpeed's JSON")
    simulator_only(draft)
    partial_batch(draft)
    nodes, processes = grid(draft)
    training = job.built.training
    document: dict[str, Any] = {
        "train_batch_size": training.global_batch,
        "train_micro_batch_size_per_gpu": training.micro_batch,
        "gradient_accumulation_steps": training.micro_batches,
    }
    for key, name, value in zip(("global_batch", "micro_batch", "gradient_accumulation"), document, document.values(), strict=True):
        draft.says(f"training.{key}", f"{name}: {value}")
    for key in ("examples", "epochs"):
        draft.lacks(f"training.{key}", "the length of the training is the script's")
    document |= precision(draft)
    document |= _optimizer(draft)
    if not strategy_of_nobody(draft):
        document |= _zero(draft)
    document |= _model_parallel(draft) | _pipeline(draft) | _checkpointing(draft)
    model_code(draft)
    finetuning(draft)
    options = " ".join(torchrun(nodes, processes))
    return draft.exported("deepspeed", json.dumps(document, indent=2) + "\n", f"torchrun {options} SCRIPT.py --deepspeed FILE")


def _optimizer(draft: Draft) -> dict[str, Any]:
    optimizer, offload = draft.job.built.training.optimizer, draft.job.built.training.offload.optimizer
    clipping = {"gradient_clipping": 1.0 if optimizer.clip_gradients else 0.0}
    draft.says("training.optimizer.clip_gradients", f"gradient_clipping: {clipping['gradient_clipping']}")
    path, kind = "training.optimizer.name", "training.optimizer.implementation"
    if optimizer.name in CLIENT:
        draft.script.append(draft.scripted(path, f"deepspeed.initialize(optimizer={CLIENT[optimizer.name]})"))
        draft.lacks(kind, "the optimizer is the script's")
        return {**clipping, "zero_allow_untested_optimizer": True}
    said = {key: dict(value) if isinstance(value, dict) else value for key, value in OPTIMIZERS[optimizer.name].items()}
    if optimizer.implementation == "fused" or offload != "none":
        draft.says(kind, "the default: FusedAdam, on the CPU DeepSpeedCPUAdam")
    elif optimizer.name == "lion":
        draft.lacks(kind, "Lion is always FusedLion")
    else:
        said.setdefault("params", {})["torch_adam"] = True
        draft.says(kind, "optimizer.params.torch_adam: true")
        if optimizer.implementation == "loop":
            draft.remarks(kind, "torch.optim takes its foreach kernels unless it is told foreach=False")
    draft.says(path, f"optimizer.type: {said['type']}")
    return {"optimizer": said, **clipping}


def _zero(draft: Draft) -> dict[str, Any]:
    """``zero_optimization`` and what belongs to data parallelism."""
    data = draft.job.built.parallelism.data
    stage = STAGES[data.strategy]
    path = "parallel.data.strategy"
    draft.says(path, f"zero_optimization.stage: {stage}")
    if data.strategy in ("fsdp", "hsdp"):
        draft.remarks(path, "ZeRO-3 shards the same, but reduces gradients in every micro-batch (FSDP can wait for the last one)")
    said: dict[str, Any] = {"stage": stage}
    if stage:
        said["overlap_comm"] = data.overlap_reduce
    draft.says("parallel.data.overlap_reduce", f"zero_optimization.overlap_comm: {str(data.overlap_reduce).lower()}")
    if not stage and not data.overlap_reduce:
        draft.lacks("parallel.data.overlap_reduce", "stage 0 reduces after the backward pass, in one go")
    elif not stage and draft.job.replicas > 1:
        draft.remarks(path, "DeepSpeed's stage 0 reduces after the backward pass, torch's DDP under it")
    said |= _buckets(draft, stage)
    if stage == 3:
        said |= _stage3(draft)
    else:
        draft.lacks("parallel.data.reshard_after_forward", "parameters are whole on every rank")
        for key in ("unit", "prefetch", "limit_gathers"):
            draft.lacks(f"parallel.data.{key}", "nothing is gathered")
    for key, why in {
        "first_bucket": "all buckets have one size",
        "bucket_view": "gradients live in buffers of DeepSpeed's own",
        "overlap_gather": "the stepped weights are gathered before the next forward",
        "queues": "DeepSpeed has one queue",
    }.items():
        draft.lacks(f"parallel.data.{key}", why)
    if stage >= 2:
        draft.says("parallel.data.accumulate", "every micro-batch is always reduced (stage 2 and 3)")
    else:
        draft.lacks("parallel.data.accumulate", "gradients are reduced at the last micro-batch")
    return {"zero_optimization": said | _offload(draft, stage)}


def _buckets(draft: Draft, stage: int) -> dict[str, int]:
    path, bucket = "parallel.data.bucket", draft.job.built.parallelism.data.bucket
    if not stage or (stage == 3 and bucket is None):
        draft.lacks(path, "stage 0 has no buckets of a size") if not stage else draft.says(path, "the default")
        return {}
    amount, unit = bucket or (DEEPSPEED_BUCKET, "elements")
    elements = round(amount if unit == "elements" else amount / draft.job.built.training.precision.reduce)
    draft.says(path, f"zero_optimization.reduce_bucket_size: {elements}")
    return {"reduce_bucket_size": elements} | ({} if stage == 3 else {"allgather_bucket_size": elements})


def _stage3(draft: Draft) -> dict[str, Any]:
    """Prefetching and live parameters, which are counted in elements there: layers times the parameters of one."""
    job, data = draft.job, draft.job.built.parallelism.data
    layer = job.elements_per_layer
    said = {"stage3_prefetch_bucket_size": data.prefetch * layer, "stage3_max_live_parameters": data.limit_gathers * layer}
    draft.says("parallel.data.prefetch", f"zero_optimization.stage3_prefetch_bucket_size: {data.prefetch} x {layer:,} elements of a layer")
    live = f"zero_optimization.stage3_max_live_parameters: {data.limit_gathers} x {layer:,}"
    draft.says("parallel.data.limit_gathers", live)
    reshard = "parallel.data.reshard_after_forward"
    if data.reshard_after_forward:
        said["stage3_max_reuse_distance"] = layer
        draft.says(reshard, f"zero_optimization.stage3_max_reuse_distance: {layer:,}, one layer")
    else:
        said |= {"stage3_max_reuse_distance": 2 * job.elements, "stage3_max_live_parameters": 2 * job.elements}
        draft.says(reshard, "stage3_max_reuse_distance and stage3_max_live_parameters above the size of the model")
    draft.lacks("parallel.data.unit", "modules are gathered one by one, as their hooks run")
    shards = "parallel.data.shard_size"
    if data.strategy == "hsdp":
        said["mics_shard_size"] = data.shard_size
        draft.says(shards, f"zero_optimization.mics_shard_size: {data.shard_size}")
        draft.remarks(shards, "shard groups are MiCS there: the model is made under deepspeed.zero.MiCS_Init")
    return said


def _offload(draft: Draft, stage: int) -> dict[str, Any]:
    offload = draft.job.built.training.offload
    said: dict[str, Any] = {}
    for key, name, least in (("optimizer", "offload_optimizer", 1), ("parameters", "offload_param", 3)):
        path, where = f"training.offload.{key}", getattr(offload, key)
        if where == "none":
            draft.says(path, "the default, none")
            continue
        if stage < least:
            draft.refuses(path, f"{name} needs ZeRO stage {least}, and this is stage {stage}", f"use parallel.zero {least}")
        said[name] = {"device": where, "pin_memory": True}
        if where == "nvme":
            said[name]["nvme_path"] = "/local_nvme"
            draft.remarks(path, "nvme_path is a placeholder: write the folder of the drive")
        draft.says(path, f"zero_optimization.{name}.device: {where}")
    draft.says("training.offload.gradients", "they follow the optimizer")
    return said


def _model_parallel(draft: Draft) -> dict[str, Any]:
    parallelism, section = draft.job.built.parallelism, draft.job.settings.parallel
    order(draft, ORDERS, "only --to megatron has another order")
    said: dict[str, Any] = {}
    tensor, context = parallelism.tensor, parallelism.context
    draft.says("parallel.tensor.size", f"tensor_parallel.autotp_size: {tensor.size}")
    draft.says("parallel.tensor.overlap", f"tensor_parallel.tp_overlap_comm: {str(tensor.overlap != 'none').lower()}")
    if tensor.size > 1:
        said["tensor_parallel"] = {"autotp_size": tensor.size, "tp_overlap_comm": tensor.overlap != "none"}
    if tensor.sequence_parallel and tensor.size > 1:
        text = "AutoTP repeats norms and dropout on every tensor-parallel rank"
        draft.refuses("parallel.tensor.sequence_parallel", text, "use --to megatron, or sequence_parallel: false")
    draft.says("parallel.tensor.sequence_parallel", "never")
    draft.says("parallel.context.size", f"sequence_parallel_size: {context.size}")
    draft.says("parallel.context.method", "Ulysses, always")
    if context.size > 1:
        said["sequence_parallel_size"] = context.size
        if context.method != "ulysses":
            text = "DeepSpeed's sequence parallelism is Ulysses"
            draft.refuses("parallel.context.method", text, "use method: ulysses, or --to megatron or fsdp")
        draft.script.append(f"UlyssesSPAttentionHF.register_with_transformers(..., sequence_parallel_size={context.size})")
    if section.expert.size > 1:
        draft.script.append(f"deepspeed.moe.layer.MoE(ep_size={section.expert.size})")
    draft.scripted("parallel.expert.size", f"deepspeed.moe.layer.MoE(ep_size={section.expert.size})")
    draft.lacks("parallel.expert.capacity_factor", "deepspeed.moe.layer.MoE(capacity_factor=...) in the model's code")
    return said


def _pipeline(draft: Draft) -> dict[str, Any]:
    """Stages are an argument of PipelineModule, in the script; the JSON only has how often to checkpoint."""
    pipeline, recompute = draft.job.built.parallelism.pipeline, draft.job.built.training.recompute
    prefix = "parallel.pipeline"
    if pipeline.size == 1:
        for key in ("size", "schedule", "virtual_stages", "split", "overlap_sends", "scatter_sends"):
            draft.says(f"{prefix}.{key}", "no pipeline")
        return {}
    stage = STAGES.get(draft.job.built.parallelism.data.strategy, 0)
    if stage > 1:
        text = f"ZeRO-{stage} is incompatible with DeepSpeed's pipeline engine"
        draft.refuses(f"{prefix}.size", text, "use parallel.zero 1 or ddp; no tool has both")
    draft.script.append(draft.scripted(f"{prefix}.size", f"PipelineModule(layers, num_stages={pipeline.size})"))
    if pipeline.schedule != "1f1b" and pipeline.virtual_stages * (pipeline.schedule == "interleaved") != 1:
        other = "--to megatron, or 1f1b" if pipeline.schedule == "interleaved" else "1f1b; no tool has it by configuration"
        draft.refuses(f"{prefix}.schedule", "DeepSpeed's TrainSchedule is 1F1B with one stage per rank", f"use {other}")
    draft.says(f"{prefix}.schedule", "TrainSchedule, 1F1B")
    draft.says(f"{prefix}.virtual_stages", "1")
    draft.says(f"{prefix}.split", "PipelineModule(partition_method='uniform')")
    if len(set(draft.job.layers)) > 1 or pipeline.split != "even":
        layers = ", ".join(map(str, draft.job.layers))
        draft.remarks(f"{prefix}.split", f"PipelineModule(partition_method=...) has no list of layers per stage; simulated: {layers}")
    draft.lacks(f"{prefix}.overlap_sends", "sends wait for each other")
    draft.lacks(f"{prefix}.scatter_sends", "pipe_partitioned partitions the activations of tensor-parallel ranks by itself")
    every = {"full": 1, "every": recompute.every}.get(recompute.mode, 0)
    return {"pipeline": {"activation_checkpoint_interval": every}} if every else {}


def _checkpointing(draft: Draft) -> dict[str, Any]:
    recompute, offload = draft.job.built.training.recompute, draft.job.built.training.offload.activations
    path, host = "training.recompute", "training.offload.activations"
    if recompute.mode in ("blocks", "selective"):
        what = "the first layers of a stage only" if recompute.mode == "blocks" else "parts of a layer"
        draft.refuses(path, f"no key checkpoints {what}", "use --to megatron, or recompute: full")
    if recompute.mode not in ("full", "every"):
        draft.says(path, "the default, none")
        draft.says(host, "the default, none")
        return {}
    layers, size = sum(draft.job.layers), recompute.every if recompute.mode == "every" else 1
    said = {"partition_activations": False, "cpu_checkpointing": offload == "cpu", "number_checkpoints": ceil(layers / size)}
    draft.says(path, f"activation_checkpointing.number_checkpoints: {said['number_checkpoints']}")
    draft.says(host, f"activation_checkpointing.cpu_checkpointing: {str(offload == 'cpu').lower()}")
    if draft.job.built.parallelism.pipeline.size == 1:
        draft.script.append("model.gradient_checkpointing_enable()")
    return {"activation_checkpointing": said}

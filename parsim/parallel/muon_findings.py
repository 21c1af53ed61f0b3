"""What Muon does not go with: where no public stack runs it, or where how it does is not modelled."""

from __future__ import annotations

from parsim.errors import Finding
from parsim.parallel.kronecker import KRONECKER
from parsim.parallel.kronecker_findings import kronecker_findings, unused_factors
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Optimizer, Training

_NAME, _STRATEGY = "training.optimizer.name", "parallel.data.strategy"
_STRATEGIES = ("none", "ddp", "zero1", "zero2", "fsdp", "hsdp")
_SHARDED = ("fsdp", "hsdp")


def muon_findings(training: Training, parallelism: Parallelism, runtime: Runtime) -> list[Finding]:
    """Combinations without a model, and settings of Muon for another optimizer.

    Megatron-LM runs it under its own data parallelism and its layer-wise distributed optimizer (megatron/core/optimizer/
    layer_wise_optimizer.py: one instance, no fp16), PyTorch's stacks under DDP and fully_shard, plain or hybrid (microsoft/dion) and with
    experts that are spread over ranks (torchtitan's DistMuon); neither of the two takes weights that tensor ranks share, too.
    """
    optimizer, data = training.optimizer, parallelism.data
    if optimizer.name != "muon":
        return _unused(optimizer) + (kronecker_findings(training, parallelism, runtime) if optimizer.name in KRONECKER else [])
    findings = []
    if data.custom is not None or data.strategy not in _STRATEGIES:
        text = f"not supported yet: Muon with {data.strategy}"
        if data.strategy == "zero3":
            text += ": DeepSpeed orthogonalises in every reduction of a bucket, also those of single micro-batches (its issue 8443)"
        findings.append(Finding(text, _STRATEGY, data.strategy, f"use {' or '.join(_STRATEGIES[1:])}"))
    if data.strategy in ("zero1", "zero2"):
        findings += _partitioned(optimizer, parallelism, runtime)
    if data.strategy in _SHARDED:
        findings += _sharded(parallelism)
    if optimizer.padded_parts and (data.strategy != "zero1" or runtime.deepspeed):
        text = f"{data.strategy} of {runtime.profile} does not assign parts of buckets to ranks"
        findings.append(Finding(text, "training.optimizer.padded_parts", True, "leave it out, or use zero1 of megatron-core"))
    if data.optimizer_instances > 1:
        text = "the layer-wise optimizer does not support instances: whole matrices are owned by ranks of all replicas"
        findings.append(Finding(text, "parallel.data.optimizer_instances", data.optimizer_instances, "use 1"))
    if parallelism.pipeline.schedule == "pipedream":
        text = "not supported yet: Muon after every micro-batch"
        findings.append(Finding(text, "parallel.pipeline.schedule", "pipedream", "use 1f1b"))
    findings += unused_factors(optimizer)
    refused = (("training.offload", training.offload.states), ("training.finetune", training.finetune is not None))
    findings += [Finding("not supported yet: Muon with it", path, None, "leave it out") for path, asked in refused if asked]
    if training.precision.matmul == "fp16":
        findings.append(Finding("Muon does not run in fp16 (Megatron-LM refuses it, too)", "training.precision", "fp16", "use bf16"))
    return findings


def _partitioned(optimizer: Optimizer, parallelism: Parallelism, runtime: Runtime) -> list[Finding]:
    """Who has a Muon whose states are over ranks, and what DeepSpeed's does not do."""
    strategy, path = parallelism.data.strategy, _STRATEGY
    if runtime.transformer_engine:
        if strategy == "zero1":
            return []
        text = "Megatron-Core's layer-wise optimizer shards states only"
        return [Finding(text, path, strategy, "use zero1, or software.profile deepspeed")]
    if runtime.profile != "deepspeed":
        text = f"{runtime.profile} shards no states of Muon: Megatron-Core's layer-wise optimizer does, and DeepSpeed's ZeRO-1 and 2"
        return [Finding(text, path, strategy, "use software.profile megatron-core or deepspeed, or ddp or fsdp")]
    if optimizer.tensor_mode != "blockwise":
        text = "DeepSpeed's Muon knows nothing of tensor ranks: each orthogonalises its part"
        return [Finding(text, "training.optimizer.tensor_mode", optimizer.tensor_mode, "use blockwise")]
    return []


def _sharded(parallelism: Parallelism) -> list[Finding]:
    """What weights that are sharded along an axis cannot be besides."""
    if (size := parallelism.tensor.size) == 1:
        return []
    text = (
        "no public Muon orthogonalises matrices that fully_shard and tensor parallelism both cut: torchtitan's DistMuon rejects their "
        "layout (_StridedShard), microsoft/dion's Muon parameters with several sharded dimensions, and Megatron-LM's runs without FSDP"
    )
    return [Finding(text, "parallel.tensor.size", size, "use 1, or zero1 under software.profile megatron-core")]


def _unused(optimizer: Optimizer) -> list[Finding]:
    """Settings of Newton-Schulz iterations, or of factors, that nothing reads."""
    plain = Optimizer()
    names = ["newton_schulz_steps", "tensor_mode", "split_query_key_value", "split_gate_up"]
    if optimizer.name != "soap":
        names.append("padded_parts")
    changed = [name for name in names if getattr(optimizer, name) != getattr(plain, name)]
    text = f"{optimizer.name} orthogonalises nothing"
    found = [Finding(text, f"training.optimizer.{name}", getattr(optimizer, name), "leave it out, or use muon") for name in changed]
    return found + unused_factors(optimizer)

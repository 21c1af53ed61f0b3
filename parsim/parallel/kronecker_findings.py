"""What SOAP and Shampoo do not go with: where no public stack runs them, or where how it does is not modelled."""

from __future__ import annotations

from parsim.errors import Finding
from parsim.parallel.kronecker import KRONECKER
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Optimizer, Training

_NAME, _STRATEGY = "training.optimizer.name", "parallel.data.strategy"
_SOAP, _SHAMPOO = ("none", "ddp", "zero1"), ("none", "ddp", "fsdp", "hsdp")


def kronecker_findings(training: Training, parallelism: Parallelism, runtime: Runtime) -> list[Finding]:
    """Combinations without a model, of an optimizer with factors.

    SOAP: nikhilvyas/SOAP steps whole tensors on every replica; Megatron-LM runs it under its own data parallelism and its layer-wise
    optimizer, each tensor rank on its part, and refuses FSDP ("Emerging optimizer does not support Torch-FSDP2 for now") and fp16.
    Shampoo: facebookresearch/optimizers has distributors for DDP, fully_shard and hybrids of both, and none for tensor or expert ranks.
    """
    optimizer, data = training.optimizer, parallelism.data
    findings = _soap(optimizer, parallelism, runtime) if optimizer.name == "soap" else _shampoo(parallelism, runtime)
    if parallelism.pipeline.schedule == "pipedream":
        text = f"not supported yet: {optimizer.name} after every micro-batch"
        findings.append(Finding(text, "parallel.pipeline.schedule", "pipedream", "use 1f1b"))
    if data.custom is not None:
        text = f"not supported yet: {optimizer.name} with a strategy of your own"
        findings.append(Finding(text, _STRATEGY, data.strategy, "use ddp"))
    refused = (("training.offload", training.offload.states), ("training.finetune", training.finetune is not None))
    findings += [Finding(f"not supported yet: {optimizer.name} with it", path, None, "leave it out") for path, asked in refused if asked]
    if training.precision.matmul == "fp16":
        text = f"{optimizer.name} does not run in fp16 (Megatron-LM refuses it)"
        findings.append(Finding(text, "training.precision", "fp16", "use bf16"))
    return findings


def _soap(optimizer: Optimizer, parallelism: Parallelism, runtime: Runtime) -> list[Finding]:
    data = parallelism.data
    findings = []
    if data.strategy not in _SOAP:
        text = f"no public SOAP steps matrices that {data.strategy} shards: the authors' and Megatron-LM's take whole ones"
        findings.append(Finding(text, _STRATEGY, data.strategy, f"use {' or '.join(_SOAP[1:])}, or training.optimizer shampoo with fsdp"))
    if data.strategy == "zero1" and not runtime.transformer_engine:
        text = f"SOAP needs whole matrices: only Megatron-Core's layer-wise optimizer shards so, and the stack is {runtime.profile}"
        findings.append(Finding(text, _STRATEGY, "zero1", "use software.profile megatron-core, or ddp"))
    if data.optimizer_instances > 1:
        text = "the layer-wise optimizer does not support instances: whole matrices are owned by ranks of all replicas"
        findings.append(Finding(text, "parallel.data.optimizer_instances", data.optimizer_instances, "use 1"))
    if optimizer.padded_parts and data.strategy != "zero1":
        text = f"{data.strategy} does not assign parts of buckets to ranks"
        findings.append(Finding(text, "training.optimizer.padded_parts", True, "leave it out, or use zero1"))
    return findings


def _shampoo(parallelism: Parallelism, runtime: Runtime) -> list[Finding]:
    data = parallelism.data
    findings = []
    if data.strategy not in _SHAMPOO:
        text = f"not supported yet: shampoo with {data.strategy} (facebookresearch/optimizers runs DDP, fully_shard and hybrids of both)"
        findings.append(Finding(text, _STRATEGY, data.strategy, f"use {' or '.join(_SHAMPOO[1:])}"))
    if runtime.megatron or runtime.deepspeed:
        text = f"{runtime.profile} has no Shampoo: facebookresearch/optimizers steps the parameters of PyTorch's DDP and fully_shard"
        findings.append(Finding(text, _NAME, "shampoo", "use software.profile pytorch-2"))
    if data.strategy in ("fsdp", "hsdp") and data.fsdp_version == 1:
        text = "not supported yet: shampoo on FSDP1's flat parameters"
        findings.append(Finding(text, "parallel.data.fsdp_version", 1, "use 2"))
    sizes = {"parallel.tensor.size": parallelism.tensor.size, "parallel.expert.size": parallelism.expert.size}
    text = "facebookresearch/optimizers has no distributor for weights that tensor or expert ranks share"
    findings += [Finding(text, path, size, "use 1") for path, size in sizes.items() if size > 1]
    return findings


def unused_factors(optimizer: Optimizer) -> list[Finding]:
    """Settings of factors that another optimizer has none of."""
    if optimizer.name in KRONECKER:
        return []
    names = [name for name in ("precondition_frequency", "max_preconditioner_dim") if getattr(optimizer, name)]
    text = f"{optimizer.name} has no preconditioner"
    hint = "leave it out, or use soap or shampoo"
    return [Finding(text, f"training.optimizer.{name}", getattr(optimizer, name), hint) for name in names]

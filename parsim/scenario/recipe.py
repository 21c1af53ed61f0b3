"""What a recipe can be on the devices of a job: attention kernels, types, the optimizer's kernels; checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from parsim.errors import Finding
from parsim.hardware.device import Device
from parsim.kernel import Gemm
from parsim.model.attention import AttentionCore
from parsim.model.loss import Loss
from parsim.model.mixture import Router
from parsim.model.model import Model, Operator
from parsim.model.workload import Workload
from parsim.parallel.training import Optimizer, Precision
from parsim.scenario.finetune import FinetuneSection
from parsim.scenario.machine import SoftwareSection
from parsim.scenario.precision import HALF_SIBLING, PRESETS
from parsim.scenario.software import Assumption, SoftwareProfile
from parsim.scenario.training import OptimizerSection, TrainingSection


def optimizer_settings(section: OptimizerSection, profile: SoftwareProfile, assumptions: list[Assumption]) -> Optimizer:
    """The optimizer that `section` means; what the profile decides is added to `assumptions`."""
    implementation = section.implementation
    if implementation == "auto":
        implementation = profile.optimizer
        assumptions.append(profile.assumption("optimizer_kernels", implementation, "kernels.optimizer"))
    return Optimizer(
        section.name,
        cast(Literal["fused", "foreach", "loop"], implementation),
        section.clip_gradients,
        section.newton_schulz_steps,
        cast(Literal["blockwise", "duplicated", "distributed"], section.tensor_mode),
        section.split_query_key_value,
        section.split_gate_up,
        section.padded_parts,
        0 if section.precondition_frequency == "auto" else int(section.precondition_frequency),
        0 if section.max_preconditioner_dim == "auto" else int(section.max_preconditioner_dim),
    )


_HALF_ONLY = ("flash2", "flash3", "cudnn", "triton-fa1")
_GENERATION = {
    "bf16": "bf16 matrix products need Ampere or later",
    "tf32": "tf32 matrix products need Ampere or later",
    "fp8": "fp8 matrix products need Hopper or Ada or later",
    "int8": "its file states no int8 peak",
}
LARGEST_HEAD = 256
"""FlashAttention supports head sizes up to 256 (Dao-AILab/flash-attention)"""


def can_multiply(device: Device, dtype: str) -> bool:
    """Whether `device` has a peak for matrix products in `dtype`."""
    return dtype in device.peak


def preset_for(default: str, devices: Sequence[Device]) -> tuple[str, str]:
    """The preset called `default`, or what its stack uses where a device has no bf16; and why it changed.

    Megatron-LM accumulates gradients in fp32 with --bf16 only (arguments.py), so bf16-fp32grad becomes plain fp16.
    """
    lacking = next((device for device in devices if not can_multiply(device, PRESETS[default].matmul)), None)
    sibling = "fp16" if default == "bf16-fp32grad" else HALF_SIBLING.get(default)
    if lacking is None or sibling is None or not can_multiply(lacking, "fp16"):
        return default, ""
    return sibling, f"{lacking.name} has no bf16"


def precision_findings(precision: Precision, devices: Sequence[Device]) -> list[Finding]:
    """A finding where a device cannot multiply in the precision's type."""
    for device in devices:
        if can_multiply(device, precision.matmul):
            continue
        legal = [name for name, preset in PRESETS.items() if can_multiply(device, preset.matmul)]
        twin = HALF_SIBLING.get(precision.name)
        best = next((name for name in (twin, "bf16", "fp16", *legal) if name in legal), "")
        reason = _GENERATION.get(precision.matmul, f"it multiplies in {', '.join(device.peak)}")
        message = f"{device.name} has no {precision.matmul}: {reason}"
        return [Finding(message, "training.precision", precision.name, f"use precision: {best}" if best else "")]
    return []


def frozen_findings(section: FinetuneSection | None, devices: Sequence[Device]) -> list[Finding]:
    """A finding for a device without the products of frozen weights in eight bits."""
    lacking = next((device for device in devices if not can_multiply(device, "int8")), None)
    if section is None or section.base != "int8" or lacking is None:
        return []
    text = f"{lacking.name} has no int8: {_GENERATION['int8']}"
    return [Finding(text, "training.finetune.base", "int8", "use bf16, or nf4 with method: qlora")]


def muon_findings(section: OptimizerSection, devices: Sequence[Device]) -> list[Finding]:
    """A finding for a device without the type in which Muon orthogonalises."""
    lacking = next((device for device in devices if not can_multiply(device, "bf16")), None)
    if section.name != "muon" or lacking is None:
        return []
    text = f"Muon's iterations need bf16 products, which {lacking.name} does not have: {_GENERATION['bf16']}"
    return [Finding(text, "training.optimizer.name", "muon", "use adamw, or a newer device")]


def attention_kernel(order: Sequence[str], devices: Sequence[Device], precision: Precision, head_dim: int) -> str:
    """The first kernel of `order` that every device has and that handles this type and head size; eager if none.

    cuDNN's is the one with fp8 products both ways, so it is taken where attention is not kept in bf16.
    """
    eight = precision.matmul == "fp8" and "attention" not in precision.keep
    return next((kernel for kernel in (("cudnn",) if eight else order) if not _refusal(kernel, devices, precision, head_dim)), "eager")


_WITH_BIAS = ("mem-efficient",)
"""kernels that add a bias to the scores (the attn_mask of PyTorch's scaled_dot_product_attention), and give it a gradient"""


def kernels_for(model: Model, order: Sequence[str]) -> Sequence[str]:
    """Those of `order` that compute this model's scores."""
    if model.facts.get("disentangled"):
        return []  # products of words with positions stand between the scores and their softmax: eager
    return [kernel for kernel in order if kernel in _WITH_BIAS] if model.facts.get("relative_buckets") else order


def attention_findings(kernel: str, order: Sequence[str], devices: Sequence[Device], precision: Precision, model: Model) -> list[Finding]:
    """A finding where the wanted attention kernel cannot run."""
    reason = _refusal(kernel, devices, precision, model.largest_head_dim)
    order = kernels_for(model, order)
    if not reason and kernel != "eager" and model.facts.get("relative_buckets") and kernel not in _WITH_BIAS:
        reason = f"{kernel} does not support a bias on the scores, which {model.name} adds by relative position"
    if not reason and kernel != "eager" and model.facts.get("disentangled"):
        reason = f"{kernel} does not pick a score for the distance of every pair, which {model.name} adds"
    if not reason:
        return []
    instead = attention_kernel(order, devices, precision, model.largest_head_dim)
    return [Finding(reason, "training.attention", kernel, f"use attention: {instead}, or auto")]


def keep_findings(stated: Sequence[str] | None, precision: Precision, model: Model, attention: str) -> list[Finding]:
    """A finding for every part whose type under fp8 was stated and means nothing, or that no kernel computes in fp8."""
    if stated is None:
        return []
    path, shown = "training.precision.keep", list(stated)
    if not precision.narrow:
        text = f"{precision.name} has no fp8 products, so keep has no effect"
        return [Finding(text, path, shown, "leave keep out, or use preset: fp8")]
    operators = [operator for block in model.blocks for operator in block.operators]
    present = {
        "embedding": any(block.kind == "embedding" and _multiplies(block.operators) for block in model.blocks),
        "head": any(block.kind == "head" and _multiplies(block.operators) for block in model.blocks),
        "router": any(isinstance(one, Router) and not one.fp32 for one in operators),
        "attention": any(isinstance(one, AttentionCore) for one in operators),
    }
    findings = [
        Finding(f"{model.name} has no {part} with matrix products of the job's type", path, shown, f"add {part}")
        for part, there in present.items()
        if part not in stated and not there
    ]
    if "attention" not in stated and present["attention"] and attention != "cudnn":
        text = f"{attention} attention has no fp8 kernels for training; cuDNN's has (Transformer Engine, fp8_dpa)"
        findings.append(Finding(text, path, shown, "add attention, or use attention: cudnn on a device that has it"))
    return findings


def _multiplies(operators: Sequence[Operator]) -> bool:
    return any(isinstance(kernel, Gemm) for operator in operators for kernel in operator.work(Workload(batch=1)).forward)


def chunk_findings(chunks: int, model: Model, tokens: int, tensor: int, context: int = 1) -> list[Finding]:
    """A finding for each reason why the loss on the `tokens` tokens of a rank cannot be computed in `chunks` parts."""
    if chunks == 1:
        return []
    path, findings = "training.loss.chunks", []
    losses = [operator for operator in model.blocks[-1].operators if isinstance(operator, Loss)]
    if not any(loss.split == "vocab" and loss.kind == "cross_entropy" for loss in losses):
        kinds = " and ".join(dict.fromkeys(loss.kind for loss in losses)) or "no loss"
        message = f"chunks split the cross-entropy over a vocabulary, but {model.name} ends in {kinds}"
        findings.append(Finding(message, path, chunks, "use chunks: 1"))
    elif chunks > tokens:
        share = f" on each of {context} context ranks" if context > 1 else ""
        message = f"a micro-batch has {tokens} tokens{share}, which cannot be split into {chunks} parts"
        findings.append(Finding(message, path, chunks, f"use at most {tokens}"))
    if tensor > 1:
        message = f"not supported yet: a chunked loss on logits that are split over {tensor} tensor-parallel ranks"
        findings.append(Finding(message, path, chunks, "use chunks: 1 with kernel: vocab-parallel"))
    return findings


def logits_reason(model: Model, training: TrainingSection, tensor: int) -> str:
    """Why a trainer cannot compute metrics of a micro-batch's logits behind its backward; empty if it can."""
    losses = [operator for operator in model.blocks[-1].operators if isinstance(operator, Loss)]
    if not any(loss.split == "vocab" and loss.kind == "cross_entropy" for loss in losses):
        return f"{model.name} has no cross-entropy over a vocabulary"
    if not training.backward:
        return "there is no backward pass"
    if training.loss.chunks > 1:
        return f"the loss is computed in {training.loss.chunks} parts, and no logits are left"
    return f"the logits are split over {tensor} tensor-parallel ranks" if tensor > 1 else ""


def metric_findings(software: SoftwareSection, reason: str) -> list[Finding]:
    """A finding where metrics are asked for that cannot be computed."""
    asked = software.train_metrics
    if asked in ("auto", 0) or not reason:
        return []
    return [Finding(f"no metrics of the logits: {reason}", "software.train_metrics", asked, "leave it out")]


def _refusal(kernel: str, devices: Sequence[Device], precision: Precision, head_dim: int) -> str:
    """Why `kernel` cannot run, or an empty text."""
    if kernel == "eager":
        return ""
    for device in devices:
        if kernel not in device.attention:
            known = ", ".join((*device.attention_kernels, "eager"))
            return f"{device.name} has no attention kernel {kernel}; it has {known}"
    if kernel in _HALF_ONLY and precision.activations > 2:
        return f"{kernel} works on fp16 and bf16, but precision {precision.name} keeps {precision.activations}-byte activations"
    if kernel in _HALF_ONLY and head_dim > LARGEST_HEAD:
        return f"{kernel} handles heads of up to {LARGEST_HEAD} elements, this model has {head_dim}"
    return ""

"""Why the experts of a model cannot be spread over ranks as a scenario asks, with the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from parsim.errors import Finding
from parsim.model.low_precision import TRANSFORMER_ENGINE
from parsim.model.mixture import GroupedLinear
from parsim.model.model import Model
from parsim.parallel.expert_load import Histogram, histogram_findings
from parsim.parallel.fully_connected import fully_connected_findings, shared_layers
from parsim.parallel.groups import PIPELINE, REPLICATING, TENSOR, Mesh
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import EXCHANGE_SMS, ExpertParallel, Parallelism
from parsim.parallel.shared_overlap_findings import shared_overlap_findings
from parsim.parallel.training import Training

_SIZE, _TENSOR, _CAPACITY = "parallel.expert.size", "parallel.expert.tensor", "parallel.expert.capacity_factor"
_ROUTING = "parallel.expert.routing"
_STRATEGIES = ("none", "ddp", "zero1", "zero2", "fsdp", "hsdp")
_DEEPEP_MACHINE = 8
"""ranks of a machine for DeepEP (NUM_MAX_NVL_PEERS)"""


def _fused_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """Why the products of experts cannot do what stands around them (Transformer Engine: ops/fused/forward_grouped_mlp.py)."""
    casts, path = training.precision.quantisation, "parallel.expert.fused_mlp"
    reasons = []
    if not any(isinstance(operator, GroupedLinear) for operator in model.distinct_operators):
        reasons.append((f"{model.name} has no experts", "leave it out"))
    if casts is None or (casts.recipe, casts.library) != ("mxfp8", TRANSFORMER_ENGINE):
        text = "only Transformer Engine's mxfp8 products have such kernels"
        reasons.append((text, "leave it out, or use training.precision {preset: fp8, recipe: mxfp8} on Megatron-Core"))
    if parallelism.expert_width > 1:
        text = f"{parallelism.expert_width} ranks share the width of every expert (Megatron-LM fuses whole experts only)"
        reasons.append((text, "use parallel.expert.tensor: 1"))
    if "moe_act" in training.recompute.selective:
        reasons.append(("there is no activation to make again", "leave moe_act out of training.recompute"))
    if training.finetune is not None and training.finetune.method != "freeze":
        reasons.append(("not supported yet: fused_mlp with adapters", "leave it out"))
    return [Finding(text, path, True, hint) for text, hint in reasons]


def permutation_findings(model: Model, parallelism: Parallelism, runtime: Runtime) -> list[Finding]:
    """Why PyTorch's operations do not put tokens in order."""
    expert, path = parallelism.expert, "parallel.expert.permute_fusion"
    if expert.permute_fusion:
        return []
    reasons = []
    if not any(isinstance(operator, GroupedLinear) for operator in model.distinct_operators):
        reasons.append((f"{model.name} has no experts", "leave it out"))
    if not runtime.megatron:
        text = f"only Megatron-LM has the choice, not the layers of software.profile {runtime.profile}"
        reasons.append((text, "leave it out, or use software.profile megatron-core"))
    if expert.dispatcher == "hybridep" and parallelism.exchanges_tokens:
        reasons.append(("HybridEP puts tokens in order by kernels of its own", "leave it out, or use dispatcher alltoall"))
    return [Finding(text, path, False, hint) for text, hint in reasons]


def expert_findings(model: Model, training: Training, parallelism: Parallelism, mesh: Mesh) -> list[Finding]:
    """Why the experts of this model cannot be spread so; with the arithmetic."""
    expert = parallelism.expert
    if expert.pad_to_capacity and expert.capacity_factor is None:
        text = "pad_to_capacity pads experts' rows to a capacity, but none is given"
        return [Finding(text, "parallel.expert.pad_to_capacity", True, "write parallel.expert.capacity_factor, such as 1.25")]
    if expert.shared_overlap and (findings := shared_overlap_findings(model, training, parallelism)):
        return findings
    if expert.fused_mlp and (findings := _fused_findings(model, training, parallelism)):
        return findings
    if not parallelism.exchanges_tokens and expert.imbalance == 1.0 and expert.capacity_factor is None and not expert.in_turn:
        return []
    if shared := shared_layers(model):
        return fully_connected_findings(shared, model, training, parallelism, mesh)
    layers = [operator for operator in model.distinct_operators if isinstance(operator, GroupedLinear)]
    if not layers:
        asked = {
            _SIZE: expert.size > 1, _CAPACITY: expert.capacity_factor is not None, _TENSOR: expert.tensor > 0, _ROUTING: expert.in_turn,
        }  # fmt: skip
        path = next((path for path, said in asked.items() if said), "parallel.expert.imbalance")
        return [Finding(f"{model.name} has no experts", path, None, "leave parallel.expert out")]
    if expert.in_turn and (findings := _in_turn_findings(parallelism)):
        return findings
    if not parallelism.exchanges_tokens and expert.imbalance == 1.0:
        return []
    if not parallelism.exchanges_tokens:
        text = "every rank holds all experts, so their load cannot be uneven"
        shown = expert.imbalance if isinstance(expert.imbalance, float) else None
        return [Finding(text, "parallel.expert.imbalance", shown, "leave it out, or use expert parallelism (parallel.expert.size)")]
    findings = [
        *_mesh_findings(parallelism, mesh, gcd(*(layer.experts for layer in layers))),
        *_width_findings(parallelism.expert_width, layers),
    ]
    if mesh.size(TENSOR) > 1 and not parallelism.tensor.sequence_parallel:
        text = "tensor and expert parallelism together need sequence parallelism: every rank dispatches its own tokens"
        findings.append(Finding(text, "parallel.tensor.sequence_parallel", False, "use true"))
    if isinstance(expert.imbalance, Histogram):
        findings += histogram_findings(expert.imbalance, model)
    findings += _strategy_findings(parallelism)
    findings += _dispatcher_findings(expert, expert.size * parallelism.expert_width)
    return findings


def _in_turn_findings(split: Parallelism) -> list[Finding]:
    """Where it does not matter that tokens visit the experts in turn, or contradicts their load."""
    if not split.exchanges_tokens:
        text, hint = "every rank holds all experts, so tokens visit no other ranks", f"leave it out, or use expert parallelism ({_SIZE})"
    elif split.expert.dispatcher not in EXCHANGE_SMS:
        text = f"{split.expert.dispatcher} sends as much wherever the experts of a token are"
        hint = f"leave it out, or use dispatcher {' or '.join(EXCHANGE_SMS)}"
    elif split.expert.imbalance != 1.0:
        text, hint = "experts that are visited in turn get as many tokens each", "leave parallel.expert.imbalance out"
    else:
        return []
    return [Finding(text, _ROUTING, "round-robin", hint)]


def _dispatcher_findings(expert: ExpertParallel, ranks: int) -> list[Finding]:
    """What the dispatcher of `ranks` ranks cannot do."""
    findings = []
    own = expert.dispatcher in EXCHANGE_SMS
    if own and expert.pad_to_capacity:
        text = f"{expert.dispatcher} sends only actual tokens and does not pad (Megatron-LM: token_dispatcher.py)"
        findings.append(Finding(text, "parallel.expert.pad_to_capacity", True, "leave it out, or use dispatcher alltoall"))
    if expert.dispatcher == "deepep" and ranks > _DEEPEP_MACHINE and ranks % _DEEPEP_MACHINE:
        text = (
            f"DeepEP exchanges among at most {_DEEPEP_MACHINE} ranks, or whole machines of {_DEEPEP_MACHINE}: not {ranks} (csrc/config.hpp)"
        )
        findings.append(Finding(text, _SIZE, expert.size, f"use a multiple of {_DEEPEP_MACHINE}, or dispatcher alltoall"))
    if expert.sms and not own:
        text = f"{expert.dispatcher} is a collective of the library, which chooses its multiprocessors itself"
        findings.append(Finding(text, "parallel.expert.sms", expert.sms, f"leave it out, or use dispatcher {' or '.join(EXCHANGE_SMS)}"))
    sums = own or expert.dispatcher == "allgather" or ranks > expert.size
    if expert.combine_dtype == "fp8" and sums:
        who = expert.dispatcher if expert.dispatcher != "alltoall" else "the reduce-scatter over expert tensor ranks"
        text = f"{who} sums results during combine, in 16 bits or more"
        findings.append(
            Finding(text, "parallel.expert.combine_dtype", "fp8", "use bf16, or dispatcher alltoall with parallel.expert.tensor 1")
        )
    return findings


def _mesh_findings(split: Parallelism, mesh: Mesh, experts: int) -> list[Finding]:
    """Sizes that do not divide, and an order of axes in which experts have no place."""
    findings = []
    expert, width, stage = split.expert, split.expert_width, split.stage_ranks
    product = " x ".join(f"{axis} {mesh.size(axis)}" for axis in (TENSOR, *REPLICATING))
    if stage % (expert.size * width):
        over = f"(expert {expert.size} x expert tensor {width})"
        text = f"{product} = {stage} ranks / {over} = {stage / (expert.size * width):.4g} is not whole"
        legal = [str(n) for n in range(1, stage // width + 1) if stage % (n * width) == 0 and experts % n == 0]
        findings.append(Finding(text, _SIZE, expert.size, f"use {' or '.join(legal)}" if legal else f"use a smaller {_TENSOR}"))
    if experts % expert.size:
        whole = [n for n in range(1, experts + 1) if experts % n == 0]
        legal = [str(n) for n in [n for n in whole if stage % (n * width) == 0] or whole]
        text = f"{experts} experts / expert size {expert.size} = {experts / expert.size:.4g} is not whole"
        findings.append(Finding(text, _SIZE, expert.size, f"use {' or '.join(legal)}"))
    inner = [axis for axis in mesh.order if axis != PIPELINE and mesh.size(axis) > 1]
    if inner and TENSOR in inner and inner[0] != TENSOR:
        text = f"experts are distributed along {' x '.join(inner)}, neighbours first, and the ranks that share an expert are tensor ranks"
        findings.append(Finding(text, "parallel.order", list(mesh.order), "put tensor first"))
    return findings


def _strategy_findings(split: Parallelism) -> list[Finding]:
    """Data-parallel strategies that do not keep experts that are spread, and shard groups that hold no whole copy of them."""
    data, path = split.data, "parallel.data.strategy"
    use = f"use {' or '.join(_STRATEGIES[1:])}"
    if data.strategy == "zero3":
        text = "DeepSpeed does not support expert parallelism with ZeRO-3 (runtime/engine.py: MoE not supported with Stage 3)"
        return [Finding(text, path, data.strategy, use)]
    if data.strategy not in _STRATEGIES:
        return [Finding(f"not supported yet: expert parallelism with {data.strategy}", path, data.strategy, use)]
    if data.strategy not in ("fsdp", "hsdp"):
        return []
    findings = []
    if data.fsdp_version == 1:
        text = "not supported yet: expert parallelism with flat parameters"
        findings.append(
            Finding(text, "parallel.data.fsdp_version", 1, "use 2 (fully_shard), where the experts of a layer are a separate unit")
        )
    if data.unit == "model":
        text = "not supported yet: expert parallelism with all layers in one unit"
        findings.append(Finding(text, "parallel.data.unit", data.unit, "use layer or block"))
    ranks, held = (data.shard_size or data.size * split.context.size) * split.tensor.size, split.expert.size * split.expert_width
    if ranks % held:
        where = f"shard group {ranks // split.tensor.size} x tensor {split.tensor.size} = {ranks} ranks"
        text = f"{where} / (expert {split.expert.size} x expert tensor {split.expert_width}) = {ranks / held:.4g} is not whole"
        hint = f"use a shard group of {held // gcd(held, split.tensor.size)} ranks or a multiple of it, or a smaller {_SIZE}"
        findings.append(Finding(text, "parallel.data.shard_size", data.shard_size or "auto", hint))
    return findings


def _width_findings(width: int, layers: Sequence[GroupedLinear]) -> list[Finding]:
    """Widths of experts that the ranks cannot share equally."""
    of_experts = layers[1].in_features if len(layers) > 1 else layers[0].out_features
    if of_experts % width:
        text = f"expert width {of_experts} / expert tensor size {width} = {of_experts / width:.4g} is not whole"
        return [Finding(text, _TENSOR, width, "use a size that divides it")]
    return []

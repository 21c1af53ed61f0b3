"""What each part of a model computes and moves: the model's work as a table.

A part is what people call one: attention linears, attention core, MLP, norm, head. Equal blocks are one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from parsim.kernel import Fixed, Kernel
from parsim.model.attention import AttentionCore, QKNorm
from parsim.model.convolution import BatchNorm, Conv2d
from parsim.model.flops import operator_flop
from parsim.model.linear import Embedding, Linear
from parsim.model.linear_attention import GatedNorm, LinearAttention, ShortConvolution
from parsim.model.loss import Loss
from parsim.model.mixture import GroupedLinear, Router
from parsim.model.model import Block, Model, Operator
from parsim.model.norms import LayerNorm, RMSNorm
from parsim.model.parameter_counts import operator_parameter_count
from parsim.model.pooling import PoolByPosition
from parsim.model.selective_scan import SelectiveScan
from parsim.model.sparse_attention import HeadProducts, LightningIndexer, SparseCore
from parsim.model.traced_operators import Product
from parsim.model.value_norm import ValueNorm
from parsim.model.workload import Workload

PASSES = ("forward", "backward_input", "backward_weight")
ELEMENTWISE = "elementwise"
_BY_KIND: Mapping[type, str] = {
    Embedding: "embedding",
    AttentionCore: "attention core",
    SparseCore: "attention core",
    LightningIndexer: "indexer",
    HeadProducts: "attention linears",
    LayerNorm: "norm",
    RMSNorm: "norm",
    BatchNorm: "norm",
    QKNorm: "norm",
    ValueNorm: "norm",
    PoolByPosition: "pooling",
    Conv2d: "convolution",
    LinearAttention: "linear attention core",
    SelectiveScan: "linear attention core",
    ShortConvolution: "short convolution",
    GatedNorm: "norm",
    Router: "router",
    GroupedLinear: "experts",
    Loss: "loss",
    Product: "product of activations",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of work in one group of equal blocks; all numbers are of the whole group and one micro-batch."""

    group: str
    """``embedding``, ``layers 0-31``, ``head``"""
    count: int
    """equal blocks in the group"""
    name: str
    parameters: int
    """tied ones where they are stored"""
    flop: Mapping[str, float]
    """pass -> FLOP of matrix products, causal attention halved; what a fused kernel computes twice is not in it"""
    bytes: Mapping[str, float]
    """pass -> bytes that the kernels read and write [B]"""


def parts(model: Model, at: Workload) -> tuple[Part, ...]:
    """The model's work on the micro-batch `at`, in order of execution.

    The sum of a pass's FLOP is that of `parsim.model.flops.forward_flop` (and twice it backward) times the tokens.
    """
    table: list[Part] = []
    for group, count, block in blocks_by_group(model):
        within = at.tokens_in(block)
        table += [_part(model, group, count, name, block, operators, within) for name, operators in operators_by_part(block).items()]
    return tuple(table)


def blocks_by_group(model: Model) -> Iterator[tuple[str, int, Block]]:
    """Name, size and block of each group of equal blocks."""
    members: dict[Block, list[int]] = {}
    for index, block in enumerate(model.blocks):
        members.setdefault(block, []).append(index)
    for block, indices in members.items():
        yield _group([model.block_names[index] for index in indices]), len(indices), block


def operators_by_part(block: Block) -> dict[str, list[Operator]]:
    """A block's operators by the part they belong to."""
    rows: dict[str, list[Operator]] = {}
    for operator in block.operators:
        rows.setdefault(_name(operator, block), []).append(operator)
    return rows


def _part(model: Model, group: str, count: int, name: str, block: Block, operators: Sequence[Operator], at: Workload) -> Part:
    flop, moved = dict.fromkeys(PASSES, 0.0), dict.fromkeys(PASSES, 0.0)
    for operator in operators:
        counted, work = operator_flop(operator, at), operator.work(at)
        for key in PASSES:
            flop[key] += count * getattr(counted, key)
            moved[key] += count * _bytes(getattr(work, key))
    parameters = count * sum(operator_parameter_count(model, block, operator) for operator in operators)
    return Part(group, count, name, parameters, flop, moved)


def _bytes(kernels: Iterable[Kernel]) -> float:
    return math.fsum(kernel.bytes for kernel in kernels if not isinstance(kernel, Fixed))


def _name(operator: Operator, block: Block) -> str:
    if not isinstance(operator, Linear):
        return next((_BY_KIND[kind] for kind in type(operator).__mro__ if kind in _BY_KIND), ELEMENTWISE)
    if operator.name.startswith("mixture."):
        return "shared expert"
    if operator.name.startswith("mlp_"):
        return "MLP"
    if operator.name.startswith("per_layer_"):
        return "per-layer linears"
    if operator.name.startswith("mixer_"):
        return "linear attention linears"
    if block.kind == "head":
        return "head"
    attends = any(isinstance(other, AttentionCore) for other in block.operators)
    return "attention linears" if attends else "linear"


def _group(names: Sequence[str]) -> str:
    """``layer 0 .. layer 31`` -> ``layers 0-31``; ``layers 0,2,..40`` where they alternate."""
    if len(names) == 1:
        return names[0]
    word = names[0].rpartition(" ")[0]
    numbers = [int(name.rpartition(" ")[2]) for name in names]
    first, last = numbers[0], numbers[-1]
    if last - first == len(numbers) - 1:
        return f"{word}s {first}-{last}"
    return f"{word}s {first},{numbers[1]},..{last}"

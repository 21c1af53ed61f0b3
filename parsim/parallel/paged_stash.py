"""When experts' tensors go into pages and come back (`parsim.model.paged_stash`): beside other work, on one stream of their own.

Megatron-LM (megatron/core/transformer/moe/paged_stash.py) starts the copies behind the experts' forward (PipelinePostScheduleFunction) and
waits for them before the next experts' (PipelinePreScheduleFunction). Backward mirrors that: when the experts of a layer have their
gradients, the copies of the next layer to come start, and its experts wait for them. Copies into pages and out of them share the
stream, and whoever waits, waits for all that was put on it. The first copies of a backward pass, which start behind the forward that runs
before it, start behind the backward before it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parsim.errors import Finding
from parsim.model.mixture import GroupedLinear
from parsim.model.model import Block, Model, Operator
from parsim.model.paged_stash import copies
from parsim.model.workload import Workload
from parsim.parallel.expert_load import Rows
from parsim.parallel.experts import loaded
from parsim.parallel.groups import stream_lane
from parsim.parallel.hooks import Emitter, SilentHooks
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Training

STREAM = "pages"


@dataclass
class PagedStashHooks(SilentHooks):
    """Copies of what the experts of one rank keep."""

    workload: Workload
    loads: Mapping[int, Rows] = field(default_factory=dict)
    """of blocks whose load is their own"""
    around: Mapping[GroupedLinear, tuple[GroupedLinear, ...]] = field(default_factory=dict)
    """product -> all products of its experts"""

    def inside(self, number: int, block: Block) -> None:
        """The load is that of this block."""
        if (rows := self.loads.get(number)) is not None:
            self.workload = loaded(self.workload, rows)

    def before_forward(self, operator: Operator, at: Emitter) -> None:
        """The experts before have been packed."""
        if isinstance(operator, GroupedLinear) and operator.split == "column":
            at.wait_for_lane(stream_lane(STREAM))

    def after_forward(self, operator: Operator, at: Emitter) -> None:
        """Pack."""
        if isinstance(operator, GroupedLinear) and operator.split == "row":
            self._copy("pack", operator, at)

    def before_input(self, operator: Operator, at: Emitter) -> None:
        """What these experts keep has been taken out."""
        if isinstance(operator, GroupedLinear) and operator.split == "row":
            at.wait_for_lane(stream_lane(STREAM))

    def after_input(self, operator: Operator, at: Emitter) -> None:
        """Take out what the next experts keep, as much as these did."""
        if isinstance(operator, GroupedLinear) and operator.split == "column":
            self._copy("unpack", operator, at)

    def _copy(self, name: str, operator: GroupedLinear, at: Emitter) -> None:
        kernels = [kernel for product in self.around[operator] for kernel in copies(product, self.workload)]
        at.beside(name, kernels, stream=STREAM, kind="expert_comm")


def products_around(model: Model) -> dict[GroupedLinear, tuple[GroupedLinear, ...]]:
    """Of every product of experts, all that stand in its layer."""
    found: dict[GroupedLinear, tuple[GroupedLinear, ...]] = {}
    for block in model.blocks:
        products = tuple(operator for operator in block.operators if isinstance(operator, GroupedLinear))
        found |= dict.fromkeys(products, products)
    return found


def paged_stash_findings(training: Training, parallelism: Parallelism) -> list[Finding]:
    """Why nothing that experts keep can be packed (Megatron-LM: transformer_config.py)."""
    expert, recompute = parallelism.expert, training.recompute
    reasons = []
    if not expert.fused_mlp:
        reasons.append(("only the fused experts of Transformer Engine mark what they keep", "use parallel.expert.fused_mlp: true"))
    if expert.dispatcher != "hybridep" or not parallelism.exchanges_tokens:
        text = "experts' tensors have room for more rows than there are with HybridEP alone (Megatron-LM: moe_expert_rank_capacity_factor)"
        reasons.append((text, "use dispatcher hybridep and a parallel.expert.size above 1"))
    if recompute.mode not in ("none", "selective") or "moe" in recompute.selective:
        reasons.append(("experts that run again keep nothing meanwhile", "leave experts out of training.recompute"))
    if training.offload.activations != "none":
        text = "activations go to the host (Megatron-LM refuses both)"
        reasons.append((text, "leave training.offload.activations out"))
    return [Finding(text, "parallel.expert.paged_stash", True, hint) for text, hint in reasons]

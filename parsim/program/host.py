"""The host as a floor: a block's pass takes no less than launching its kernels.

PyTorch issues kernels from one thread. Where the kernels of a block are shorter than their launches, the GPU waits for the
thread; elsewhere the thread runs ahead and is never seen. The floor is one op on the rank's launch lane that begins with the
block; what follows the block waits for it. Blocks whose kernels alone take longer get none. Where the thread waits for the device inside
a block (`parsim.parallel.hooks.COUNTS`), there is a floor under what comes before, and one under what comes behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from parsim.kernel import Attention, Gemm, Kernel, Memory
from parsim.model.attention import AttentionCore
from parsim.model.elementwise import ResidualAdd
from parsim.model.linear_attention import LinearAttention, ShortConvolution
from parsim.model.mixture import Router
from parsim.model.model import Operator
from parsim.model.shared_overlap import dispatches
from parsim.model.tape import Step, Tape
from parsim.parallel.groups import OPERATOR_GROUPS
from parsim.parallel.hooks import COUNTS, LAUNCHES, START
from parsim.parallel.runtime import Host
from parsim.program.pass_builder import Item, PassBuilder
from parsim.program.program import COMPUTE

LANE = LAUNCHES
_NAME = "launch kernels"
_MOST_COLLECTIVES = 8
"""collectives of one block's pass, at most"""
MIXERS = (AttentionCore, LinearAttention, ShortConvolution)
"""operators that mix the tokens of a sequence"""


def launches(kernels: Iterable[Kernel], per_product: float = 1.0) -> float:
    """How many kernels the host launches, a matrix product counted as `per_product`; measured durations contain theirs."""
    count = 0.0
    for kernel in kernels:
        if isinstance(kernel, Gemm):
            count += per_product * kernel.launches
        elif isinstance(kernel, Memory):
            count += kernel.launches
        elif isinstance(kernel, Attention):
            count += 1
    return count


def layer_parts(operators: Sequence[Operator]) -> dict[str, str]:
    """Operator of a layer -> its part: attention or mamba up to the residual sum, then router with the norm before it and experts, or mlp.

    A layer of a hybrid model may have one of them alone. As Megatron-LM cuts a layer into graphs (--cuda-graph-scope attn, mamba,
    moe_router, moe, mlp; transformer_layer.py).
    """
    behind = "router" if any(isinstance(operator, Router) for operator in operators) else "mlp"
    mixers = [operator for operator in operators if isinstance(operator, MIXERS)]
    kinds = {
        mixer.kind if isinstance(mixer, LinearAttention) else "attention" for mixer in mixers if not isinstance(mixer, ShortConvolution)
    }
    part = ("mamba" if kinds & {"mamba", "mamba2"} and "attention" not in kinds else "attention") if mixers else behind
    found, before = {}, False
    for operator in operators:
        found[operator.name] = part = "experts" if dispatches(operator) else part
        before = before or operator in mixers
        if before and part in ("attention", "mamba") and isinstance(operator, ResidualAdd):
            part = behind
    return found


class _Launched(NamedTuple):
    kernels: list[Kernel]
    launches: float


@dataclass(frozen=True, slots=True)
class Floor:
    """What launching one block's pass takes, and what its kernels take."""

    seconds: float
    """without collectives [s]"""
    kernels: float
    """[s]"""
    early: Floor | None = None
    """of what comes before the host waits for the device, where it does; then this is the floor of what comes behind"""

    @property
    def whole(self) -> float:
        """What launching all of it takes [s]."""
        return self.seconds + (self.early.seconds if self.early is not None else 0.0)


class LaunchFloor:
    """Puts floors under the blocks of one pass."""

    def __init__(
        self, host: Host, clock: Callable[[Kernel], float], at: PassBuilder, floors: dict[Hashable, Floor], *, waits: bool = False
    ) -> None:
        """`floors`: those found so far; `waits`: for the counts of tokens in every mixture's forward."""
        self.host = host
        self._waits = waits
        self._floors = floors
        self.clock = clock
        self.at = at
        self.active = replace(host, blocking=False, graphs=(), launches_per_product=1.0) != Host()
        self._begun: tuple[int, int] = (START, 0)
        self._floor: Floor | None = None

    def floor(self, kind: str, tape: Tape, *, backward: bool, inputs: bool, weights: bool) -> Floor | None:
        """The floor of a block of this `kind` in a forward, or in a backward of its `inputs`, its `weights` or both.

        Layers are the blocks between embedding and head. None where the host is never seen.
        """
        if not self.active:
            return None
        key = (tape, kind, backward, inputs, weights)
        if key not in self._floors:
            host, steps = self.host, tape.forward
            if backward:
                steps = tuple(step for step in tape.backward if (weights if step.phase == "weight" else inputs))
            share = (1.0 if inputs and weights else 0.5) * (kind not in ("embedding", "head"))
            place = next((i for i, step in enumerate(steps) if dispatches(step.operator)), 0)
            place *= self._waits and not backward
            parts = layer_parts([step.operator for step in tape.forward]) if host.graphs and kind == "layer" else {}
            early, late = (self._launched(half, parts) for half in (steps[:place], steps[place:]))
            layer = share * (host.per_layer_backward if backward else host.per_layer_forward)
            own = layer * len(early.kernels) / len(early.kernels + late.kernels) if place else 0.0
            before = self._found(early, own, backward=backward) if place else None
            self._floors[key] = replace(self._found(late, layer - own, backward=backward), early=before)
        return self._floors[key]

    def _launched(self, steps: Sequence[Step], parts: Mapping[str, str]) -> _Launched:
        """What the thread launches for some steps of a layer: every kernel, or a graph for all those of a part."""
        graphs = {part for step in steps if (part := parts.get(step.operator.name)) in self.host.graphs}
        alone = [kernel for step in steps if parts.get(step.operator.name) not in graphs for kernel in step.kernels]
        return _Launched(
            [kernel for step in steps for kernel in step.kernels], launches(alone, self.host.launches_per_product) + len(graphs)
        )

    def _found(self, launched: _Launched, layer: float, *, backward: bool) -> Floor:
        """The floor under some kernels, with their part of what a layer takes."""
        seconds = layer + launched.launches * (self.host.per_kernel_backward if backward else self.host.per_kernel_forward)
        return Floor(seconds, math.fsum(map(self.clock, launched.kernels)))

    def may_bind(self, floor: Floor) -> bool:
        """Whether the host could be the later one, whatever collectives there are."""
        if self.host.blocking:
            return False
        early = floor.early is not None and self.may_bind(floor.early)
        return early or floor.seconds + _MOST_COLLECTIVES * self.host.per_collective > floor.kernels

    def begin_block(self, floor: Floor | None) -> None:
        """A block's pass begins here; None: nothing is launched."""
        self._floor = floor if floor is not None and (self.host.blocking or self.may_bind(floor)) else None
        if self._floor is not None:
            handle = self.at.mark()
            if (early := self._floor.early) is not None and not self.host.blocking and early.seconds > early.kernels:
                self._launch(handle, early.seconds)
            self._begun = (handle, len(self.at.items))

    def end_block(self) -> None:
        """It has been written: what follows waits for the host too, if launching takes longer than the kernels."""
        if self._floor is None:
            return
        handle, first = self._begun
        self.at.mark()
        if self._floor.early is not None and (waits := [i for i in range(first, len(self.at.items)) if self.at.items[i].name == COUNTS]):
            handle = waits[0]
            first = handle if not self.host.blocking else first
        collectives = sum(item.collective is not None and item.collective[1] in OPERATOR_GROUPS for item in self.at.items[first:])
        seconds = collectives * self.host.per_collective
        if self.host.blocking:
            self.at.idle(_NAME, "launch", self._floor.whole + seconds)
        elif self._floor.seconds + seconds > self._floor.kernels:
            self._launch(handle, self._floor.seconds + seconds)
            self.at.wait(len(self.at.items) - 1)

    def _launch(self, handle: int, seconds: float) -> None:
        """The thread is busy from `handle` on."""
        needs, tails = ([], [COMPUTE]) if handle == START else ([handle], [])
        self.at.items.append(Item(_NAME, "launch", (LANE,), seconds, needs=needs, tails=tails))

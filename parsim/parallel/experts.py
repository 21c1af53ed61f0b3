"""Expert parallelism: the experts of a layer are spread over ranks, and tokens travel to them and back (GShard, 2006.16668).

Megatron-LM's dispatchers (megatron/core/transformer/moe/token_dispatcher.py), per layer and micro-batch, with T tokens on a
rank (1/t of the micro-batch's under sequence parallelism), k of E experts per token, ep ranks that hold all experts together and etp that
share the width of each:

==================  ====================================================================================
dispatcher          messages towards the experts; back, the opposite of the tokens'
==================  ====================================================================================
alltoall            all-to-all of T k h over ep and of the weights (fp32), all-gather over etp
allgather           all-gather of T h over ep x etp, of the weights (fp32) and the map (1 B) of all E
deepep, hybridep    every token once to every machine and once to every rank of ep x etp that it visits; hybridep
                    before it, in forward, all-gather of the map (1 B) of all E
==================  ====================================================================================

Backward sends the gradients the opposite way. What stands before and behind the messages: `parsim.model.exchange`. At the end of a
step gradients of experts are reduced, and their states sharded, over the edp copies of them.

In forward and recomputation the host waits for the numbers of tokens before it launches what is done with them (alltoall: d2h_event of
_maybe_dtoh_and_synchronize; allgather: tokens_per_expert.cpu(); DeepEP and HybridEP inside their dispatch), unless experts are padded.
Where PyTorch's operations put tokens in order, it waits for those, too (`Way.counts`); alltoall's numbers have come meanwhile.
Backward knows them.

Ranks that compute meanwhile wait: nothing overlaps the exchanges but a shared expert (`parsim.model.shared_overlap`). With an imbalance
the exchange takes as long as that of the busiest rank.
With a capacity an expert gets at most ceil(T k / E x factor) rows of a rank.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from parsim.model.exchange import token_bytes
from parsim.model.mixture import Combine, Dispatch
from parsim.model.model import Block, Operator
from parsim.model.shared_overlap import Departure, exchanged
from parsim.model.tape import Step
from parsim.model.workload import Workload, dispatched
from parsim.parallel.expert_load import ExpertLoad, Rows
from parsim.parallel.groups import EXPERT, EXPERT_MODEL, EXPERT_TENSOR
from parsim.parallel.hooks import COUNTS, LAUNCHES, Emitter, Sharding, SilentHooks, Unit, Weight
from parsim.parallel.replicated import Replicated
from parsim.parallel.settings import EXCHANGE_SMS, ExpertParallel, Parallelism

_WEIGHT = 4
"""bytes of a router's weight on the wire"""


@dataclass
class ExpertParallelHooks(SilentHooks):
    """Runs dispatch and combine of one rank, with the messages between their kernels."""

    workload: Workload
    loads: Mapping[int, Rows] = field(default_factory=dict)
    """of blocks whose load is their own"""
    answer: float = 0.0
    """what the host takes from the counts of tokens to what is done with them [s]; 0: it need not know them"""
    beside: bool = False
    """something runs beside the messages that are being written"""

    def inside(self, number: int, block: Block) -> None:
        """The load is that of this block."""
        if (rows := self.loads.get(number)) is not None:
            self.workload = loaded(self.workload, rows)

    def runs(self, operator: Operator) -> bool:
        """Whether tokens travel inside the operator, or from it or to it."""
        return exchanged(operator) is not None

    def run(self, step: Step, kind: str, at: Emitter, allocates: Sequence[str], frees: Sequence[str]) -> None:
        """A forward, recompute or input step of dispatch or combine: towards the experts, or back from them.

        Of their halves the first to run starts the messages, and the second waits for them.
        """
        operator = exchanged(step.operator)
        if operator is None:
            message = f"{step.operator.name} exchanges no tokens"
            raise TypeError(message)
        if operator is step.operator:
            leaves = isinstance(operator, Dispatch) == (step.phase != "input")
            exchange = operator.exchange(self.workload)
            way = exchange.leaving if leaves else exchange.returning
            place = len(way.before)
            self._wait(at, way.counts[0])
            at.compute("", kind, step.kernels[:place], allocates=allocates)
            if self.workload.exchanges_tokens:
                self._messages(operator, step, at)
            self._wait(at, way.counts[1])
            at.compute("", kind, step.kernels[place:], frees=frees)
        elif isinstance(step.operator, Departure) == (step.phase != "input"):
            self._wait(at, self._counts(operator, step)[0])
            at.compute("", kind, step.kernels, allocates, frees)
            self.beside = True
            self._messages(operator, step, at)
            self.beside = False
        else:
            at.wait(*self.pending)
            self.pending.clear()
            self._wait(at, self._counts(operator, step)[1])
            at.compute("", kind, step.kernels, allocates, frees)

    def _messages(self, operator: Dispatch | Combine, step: Step, at: Emitter) -> None:
        """All that a dispatch or combine sends in a step."""
        leaves = isinstance(operator, Dispatch) == (step.phase != "input")
        waits = isinstance(operator, Dispatch) and leaves and not self._counts(operator, step)[0]
        if self.workload.dispatcher == "hybridep" and isinstance(operator, Dispatch) and leaves:
            self._send(at, "all_gather", EXPERT_MODEL, self._everyone * operator.experts, f"{operator.name} map")
        if waits and self.workload.dispatcher != "allgather":
            self._wait(at)
        if self.workload.dispatcher == "allgather":
            self._gather(operator, at, leaves=leaves, forward=step.phase != "input")
            if waits:
                self._wait(at)
        elif self.workload.dispatcher in EXCHANGE_SMS:
            rows = round(self.workload.local_tokens * self._most)
            self._send(at, "token_exchange", EXPERT_MODEL, rows * self._row(operator, leaves=leaves), operator.name)
        elif leaves:
            self._all_to_all(operator, at, leaves=True)
            self._over_width("all_gather", operator, at)
        else:
            self._over_width("reduce_scatter", operator, at)
            self._all_to_all(operator, at, leaves=False)

    def _send(self, at: Emitter, kind: str, axis: str, size: int, name: str) -> None:
        """A message that the compute waits for at once, or later where something runs beside it; others may follow it."""
        if self.beside:
            self.pending.append(at.collective(kind, axis, size, name, after=self.pending[-1:] or None))
        else:
            at.collective(kind, axis, size, name, blocking=True)

    def _counts(self, operator: Dispatch | Combine, step: Step) -> tuple[int, int]:
        """Times that the host waits for a number of rows (before, behind) the messages of a forward; backward knows them."""
        exchange = operator.exchange(self.workload)
        if step.phase == "input":
            return 0, 0
        return (exchange.leaving if isinstance(operator, Dispatch) else exchange.returning).counts

    def _wait(self, at: Emitter, times: int = 1) -> None:
        """Nothing is launched that was not launched before the counts were asked for: the device waits for the host from here on."""
        if self.answer > 0 and times:
            at.wait_for_lane(LAUNCHES)
            at.idle(COUNTS, "launch", times * self.answer)

    @property
    def _most(self) -> float:
        """What the busiest rank sends or receives, over the mean."""
        return max(self.workload.expert_imbalance, self.workload.expert_sent)

    @property
    def _everyone(self) -> int:
        """Tokens of all ranks that hold the experts together."""
        return self.workload.local_tokens * self.workload.expert * self.workload.expert_width

    def _row(self, operator: Dispatch | Combine, *, leaves: bool) -> int:
        """Bytes of a token on the wire."""
        return token_bytes(operator.hidden, self.workload, fp8=self.workload.dispatch_fp8 if leaves else self.workload.combine_fp8)

    def _all_to_all(self, operator: Dispatch | Combine, at: Emitter, *, leaves: bool) -> None:
        """Copies of tokens (or their gradients); with dispatch travel the weights, and back their gradients."""
        if self.workload.expert == 1:
            return
        copies = round(self.workload.local_tokens * operator.top_k * self._most)
        self._send(at, "all_to_all", EXPERT, copies * self._row(operator, leaves=leaves), operator.name)
        if isinstance(operator, Dispatch):
            self._send(at, "all_to_all", EXPERT, _WEIGHT * copies, f"{operator.name} weights")

    def _over_width(self, collective: str, operator: Dispatch | Combine, at: Emitter) -> None:
        """The ranks that share the width of an expert all need its tokens, and have a part of each result."""
        if self.workload.expert_width > 1:
            leaves = collective == "all_gather"
            size = dispatched(self.workload, operator.top_k) * self._row(operator, leaves=leaves)
            self._send(at, collective, EXPERT_TENSOR, size, operator.name)

    def _gather(self, operator: Dispatch | Combine, at: Emitter, *, leaves: bool, forward: bool) -> None:
        """All ranks that hold the experts together see all their tokens; dispatch gathers where they go and with which weights, too."""
        tokens = self._everyone
        way = "all_gather" if leaves else "reduce_scatter"
        if isinstance(operator, Dispatch):
            if forward:
                at.collective(way, EXPERT_MODEL, tokens * operator.experts, f"{operator.name} map", blocking=True)
            at.collective(way, EXPERT_MODEL, _WEIGHT * tokens * operator.experts, f"{operator.name} weights", blocking=True)
        at.collective(way, EXPERT_MODEL, tokens * self._row(operator, leaves=leaves), operator.name, blocking=True)


def loaded(workload: Workload, rows: Rows) -> Workload:
    """The workload of a layer with these rows."""
    return replace(workload, expert_imbalance=rows.busiest, expert_sent=rows.sent)


def expert_mesh(split: Parallelism) -> tuple[int, int, int]:
    """(ep, etp, edp): the grid of experts over the ranks of a pipeline stage; edp copies of each.

    >>> from parsim.parallel.settings import DataParallel, TensorParallel
    >>> expert_mesh(Parallelism(tensor=TensorParallel(2), expert=ExpertParallel(4, 1), data=DataParallel(4)))
    (4, 1, 2)
    """
    ep, width = split.expert.size, split.expert_width
    return ep, width, split.stage_ranks // (ep * width)


def expert_load(expert: ExpertParallel, tokens: int) -> ExpertLoad:
    """What the experts of a model get of ranks with `tokens` tokens each."""
    return ExpertLoad(expert.imbalance, expert.size, tokens, expert.capacity_factor, expert.pad_to_capacity)


@dataclass(frozen=True)
class SeveralStrategies(Sharding):
    """Strategies that each keep some of the weights of a chunk: every one is asked for its own, in their order."""

    parts: tuple[Replicated, ...]
    _part_of: dict[str, Replicated] = field(init=False, default_factory=dict)

    shares_gradients: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._part_of.update({weight.name: part for part in self.parts for weight in part.weights})

    def part_of(self, weight: Weight) -> Replicated:
        """The strategy that keeps a weight."""
        return self._part_of[weight.name]

    def _own(self, weights: Sequence[Weight]) -> Iterator[tuple[Replicated, list[Weight]]]:
        """The strategies that keep some of these weights, with those."""
        for part in self.parts:
            if own := [weight for weight in weights if self.part_of(weight) is part]:
                yield part, own

    def resident(self, at: Emitter) -> list[str]:
        return [name for part in self.parts for name in part.resident(at)]

    def state(self) -> Hashable:
        return tuple(part.state() for part in self.parts)

    def restore(self, state: Hashable) -> None:
        if isinstance(state, tuple):
            for part, own in zip(self.parts, state, strict=True):
                part.restore(own)

    def step_begins(self, at: Emitter) -> None:
        for part in self.parts:
            part.step_begins(at)

    def pass_begins(self, units: Sequence[Unit], at: Emitter, *, backward: bool) -> None:
        for part in self.parts:
            part.pass_begins(units, at, backward=backward)

    def before_forward(self, unit: Unit, at: Emitter) -> None:
        for part in self.parts:
            part.before_forward(unit, at)

    def after_forward(self, unit: Unit, at: Emitter) -> None:
        for part in self.parts:
            part.after_forward(unit, at)

    def before_backward(self, unit: Unit, at: Emitter) -> None:
        for part in self.parts:
            part.before_backward(unit, at)

    def before_gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        for part, own in self._own(weights):
            part.before_gradient(unit, own, at)

    def gradient(self, unit: Unit, weights: Sequence[Weight], at: Emitter) -> None:
        for part, own in self._own(weights):
            part.gradient(unit, own, at)

    def after_backward(self, unit: Unit, at: Emitter) -> None:
        for part in self.parts:
            part.after_backward(unit, at)

    def pass_ends(self, at: Emitter, *, backward: bool) -> None:
        for part in self.parts:
            part.pass_ends(at, backward=backward)

    def finish_gradients(self, at: Emitter) -> None:
        for part in self.parts:
            part.finish_gradients(at)

    def step(self, at: Emitter) -> None:
        for part in self.parts:
            part.step(at)

    def distribute(self, at: Emitter) -> None:
        for part in self.parts:
            part.distribute(at)

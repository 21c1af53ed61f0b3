"""The passes of one pipeline rank: forward and backward of every slot, the step's begin and end, as items with memory effects.

Forward and backward are written by `parsim.program.pass_writer`, once for the micro-batches that repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from math import fsum, inf

from parsim.kernel import Kernel
from parsim.model.stages import ProfiledStage
from parsim.parallel.groups import MODEL, TENSOR, WORLD, tied_group
from parsim.parallel.plan import Plan
from parsim.parallel.schedules.classic import Versions
from parsim.parallel.schedules.slot import GRADIENTS_OF_INPUTS, GRADIENTS_OF_WEIGHTS, SlotKind
from parsim.parallel.stage_copies import stage_copies
from parsim.program.block_templates import BlockTemplates
from parsim.program.pass_builder import Item
from parsim.program.pass_writer import StagePassWriter
from parsim.program.pipeline_rank import PipelineRank
from parsim.program.program import COMPUTE, Effect
from parsim.program.unsaved_passes import UnsavedRank, unsaved_ranks

_Template = tuple[str, int, bool, bool, bool, bool, bool, Hashable]
"""kind, stage, first, last, smaller micro-batch, beside another pass, whether an update follows, state of the sharding before it"""


class StagePasses(PipelineRank):
    """Passes of the ranks of one pipeline rank and role. Templates are built on first use, in schedule order."""

    unsaved: tuple[UnsavedRank, ...] = ()
    """whose forward passes follow that of every micro-batch, or precede it"""

    def __init__(
        self, plan: Plan, pipeline_rank: int, role: str, clock: Callable[[Kernel], float], templates: BlockTemplates | None = None
    ) -> None:
        super().__init__(plan, pipeline_rank, role, clock, templates)
        self.unsaved = unsaved_ranks(self, role)
        self.resident += tuple(dict.fromkeys(number for rank in self.unsaved for number in rank.resident))
        self._beginning: list[Item] = []
        self._ending: list[Item] = []
        self._templates: dict[_Template, tuple[list[Item], Hashable]] = {}
        self._written: dict[tuple[str, int, bool, bool], list[tuple[_Template, set[str]]]] = {}
        """kind, stage, smaller micro-batch, beside another pass -> templates and what their writers asked (`PassBuilder.depends_on`)"""
        self._versions = Versions()

    def handed(self, stage: int) -> frozenset[str]:
        return super().handed(stage).union(*(rank.handed(stage) for rank in self.unsaved))

    # -- begin and end of the step --------------------------------------------------------------------------------

    def begin(self) -> list[Item]:
        """What precedes a step, or without a flush the next update: gathers of updated weights, gradients set to zero."""
        items: list[Item] = []
        for stage, sharding in self.sharding.items():
            at = self.builder(stage)
            at.label("step begins", COMPUTE)
            sharding.step_begins(at)
            _extend(items, at.finish())
        self._beginning = items
        return items

    def end(self) -> list[Item]:
        """Finish gradients, clip, step, distribute."""
        at = self.builder(next(iter(self.chunks)))
        items: list[Item] = []
        self._finish(items)
        training = self.plan.training
        clips = training.optimizer.clip_gradients and not self.plan.asynchronous
        if training.step and training.backward and clips and self._trains():
            at.label("gradient norm", "optimizer")
            everyone = WORLD if self.plan.shares_gradients or self.plan.workload.exchanges_tokens else MODEL
            at.collective("all_reduce", everyone, 4, "gradient norm", lane=self._last_lane, blocking=True)
            _extend(items, at.finish())
        asked = [(stage, sharding.step) for stage, sharding in self.sharding.items()]
        asked += [(stage, sharding.distribute) for stage, sharding in self.sharding.items()]
        for stage, hook in asked:
            at = self.builder(stage)
            at.label("optimizer", "optimizer")
            hook(at)
            _extend(items, at.finish())
        self._constants(items)
        self._ending = items
        return items

    @property
    def _last_lane(self) -> str:
        """Queue of the collectives that end a step: behind the tensor-parallel ones, with which they share links."""
        return TENSOR if self.plan.mesh.size(TENSOR) > 1 else ""

    def _trains(self) -> bool:
        weights = (p for block in self.plan.model.distinct_blocks for p in block.parameters())
        return any(p.trainable and not p.buffer for p in weights)

    def _finish(self, items: list[Item]) -> None:
        for stage, sharding in self.sharding.items():
            at = self.builder(stage)
            at.label("finish gradients", COMPUTE)
            sharding.finish_gradients(at)
            for hooks in self.plan.operator_hooks() if self.plan.training.backward else ():
                hooks.at_step(self.plan.weights(self.chunks[stage]), at)
            _extend(items, at.finish())
        if not self.plan.training.backward or self.plan.asynchronous:
            return
        at = self.builder(next(iter(self.chunks)))
        for owner, copy, count in self.plan.ties.across_stages:
            if self.pipeline_rank in (owner, copy):
                size = count * self.plan.training.precision.gradients
                at.collective("all_reduce", tied_group(owner, copy), size, "tied embedding", lane=self._last_lane, blocking=True)
        for one, other, count in stage_copies(self.plan, self.pipeline_rank):
            size = count * self.plan.training.precision.gradients
            at.collective("all_reduce", tied_group(one, other), size, "copies of a stage", lane=self._last_lane, blocking=True)
        _extend(items, at.finish())

    def _constants(self, items: list[Item]) -> None:
        runtime = self.plan.runtime
        local = sum(w.count for w in self.weights.values() if w.trains or w.parameter.buffer)
        if self.plan.training.step and runtime.boundary:
            items.append(Item("step boundary", "optimizer", (COMPUTE,), runtime.boundary * local / 1e9))
        if self.plan.outer_share:
            before = list(dict.fromkeys(lane for item in items for lane in item.lanes if lane != COMPUTE))
            items.append(Item("outer exchange, a step's share", "data_comm", (COMPUTE,), self.plan.outer_share, tails=before, waits=True))
        if runtime.step_constant:
            items.append(Item("step constant", "launch", (COMPUTE,), runtime.step_constant))

    # -- passes ---------------------------------------------------------------------------------------------------

    @property
    def fixed(self) -> bool:
        """The same question about a template has the same answer throughout the step."""
        return not self.plan.sharded and self.plan.parallelism.data.custom is None

    def template(
        self, kind: str, stage: int, first: bool, last: bool, partial: bool = False, beside: bool = False, updates: bool | None = None
    ) -> list[Item]:
        """Items of one slot kind on a global stage for the first, a middle or the last micro-batch, or a smaller one; `beside`: it is a
        backward that shares its slot with a forward; `updates`: the rank's update follows, where ranks do not wait for each other (None:
        after every backward, as in PipeDream).
        """
        sharding = self.sharding[stage]
        if updates is None:
            updates = self.plan.asynchronous and kind == SlotKind.FULL_BACKWARD
        key = (kind, stage, first, last, partial, beside, updates, sharding.state())
        if key not in self._templates and (written := self._equal(key)) is not None:
            self._templates[key] = self._templates[written]
        if key not in self._templates:
            split = kind in (SlotKind.BACKWARD_INPUT, SlotKind.BACKWARD_WEIGHT)
            writer = StagePassWriter(self, stage, first=first, last=last, split=split, partial=partial, beside=beside)
            if kind == SlotKind.FORWARD:
                unsaved = [
                    (rank.prefix, StagePassWriter(rank, stage, first=first, last=last, split=False, partial=partial, at=writer.at))
                    for rank in self.unsaved
                ]
                before = self.plan.training.objective.before
                for prefix, one in (*unsaved, ("", writer)) if before else (("", writer), *unsaved):
                    with writer.at.under(prefix):
                        one.forward()
            else:
                writer.backward(inputs=kind in GRADIENTS_OF_INPUTS, weights=kind in GRADIENTS_OF_WEIGHTS)
            items = writer.at.finish()
            if updates:
                _extend(items, self.end())
                _extend(items, self.begin())  # of the next update: every one has gradients of its own
            self._templates[key] = (items, sharding.state())
            self._written.setdefault((kind, stage, partial, beside), []).append((key, writer.at.depends_on))
        items, state = self._templates[key]
        sharding.restore(state)
        return items

    def _equal(self, key: _Template) -> _Template | None:
        """A template that is written and is the same: nobody asked for what tells them apart."""
        if not self.fixed or self.plan.asynchronous:
            return None
        kind, stage, first, last, partial, beside, _, _ = key
        for other, asked in self._written.get((kind, stage, partial, beside), ()):
            if (other[2] == first or "first" not in asked) and (other[3] == last or "last" not in asked):
                return other
        return None

    def sends(self, kind: str, stage: int, partial: bool = False) -> tuple[int | None, tuple[Effect, ...], float]:
        """What a slot hands on: bytes (None: a measured duration instead), effects on the sender, duration [s].

        What passes without gradients hand on is part of the same message (modelscope/ms-swift, swift/megatron/trainers/dpo_trainer.py).
        """
        chunk = self.chunks[stage]
        name = f"x{chunk.blocks[-1] + 1}" if kind == SlotKind.FORWARD else f"dx{chunk.blocks[0]}"
        size, released = 0, []
        for rank in (self, *self.unsaved) if kind == SlotKind.FORWARD else (self,):
            number = self.table.index.get(rank.builder(stage).prefix + rank.mark(partial) + name)
            if number is None:
                return (0, (), 0.0)
            size += self.table.rows[number].bytes
            if kind != SlotKind.FORWARD or not (rank.keeps_output(chunk) or rank.holds_output(chunk)):
                released.append(number)
        operator = self.plan.model.blocks[chunk.blocks[0]].operators[0]
        if isinstance(operator, ProfiledStage) and (operator.send or not operator.output_bytes):
            return (None, tuple(Effect(operator.send, n, allocate=False) for n in released), operator.send)
        return (self.message(self.moved(size)), tuple(Effect(inf, n, allocate=False) for n in released), 0.0)

    def seconds(self, stage: int) -> dict[str, float]:
        """See `PipelineRank.seconds`; passes without gradients are part of the forward."""
        whole = super().seconds(stage)
        return whole | {"forward": whole["forward"] + fsum(rank.seconds(stage)["forward"] for rank in self.unsaved)}

    def kernels(self) -> Iterator[Kernel]:
        """Every kernel of one micro-batch, forward and backward."""
        yield from super().kernels()
        for rank in self.unsaved:
            yield from rank.kernels()

    def memory_bound(self) -> dict[str, float]:
        """Op name -> share of its time in memory-bound kernels, over the templates written so far."""
        whole: dict[str, float] = {}
        bound: dict[str, float] = {}
        for items, _ in self._templates.values():
            for item in items:
                if item.collective is None and item.duration:
                    whole[item.name] = whole.get(item.name, 0.0) + item.duration
                    bound[item.name] = bound.get(item.name, 0.0) + item.memory_time
        return {name: bound[name] / seconds for name, seconds in whole.items() if bound[name]}

    def work(self) -> dict[tuple[str, float], tuple[float, float]]:
        """(Op name, duration [s]) -> what its kernels compute [FLOP] and move in device memory [B], over the templates so far."""
        written = [items for items, _ in self._templates.values()] + [self._beginning, self._ending]
        items = (item for items in written for item in items if item.duration and (item.flop or item.moved))
        return {(item.name, item.duration): (item.flop, item.moved) for item in items}

    def stash(self, kind: str, micro_batch: int) -> list[tuple[int, tuple[Effect, ...]]]:
        """PipeDream: (weight version, effects) of the version kept or dropped around a slot; elsewhere there are as many throughout."""
        if self.plan.parallelism.pipeline.schedule != "pipedream":
            return []
        size = sum(w.count for w in self.weights.values() if w.trains) * self.plan.training.precision.parameters
        number = self.table.declare("weight version", size, "parameters", per_micro_batch=True)
        return [(version, (Effect(0.0, number, allocate),)) for version, allocate in self._versions.step(kind, micro_batch)]


def _extend(items: list[Item], more: Sequence[Item]) -> None:
    """Append items whose `needs` count from their own beginning, and whose start is the end of what compute did before them."""
    shift = len(items)
    computed = next((place for place in reversed(range(shift)) if items[place].lanes[0] == COMPUTE), None)
    for item in more:
        item.needs = [need + shift for need in item.needs]
        if computed is not None and COMPUTE in item.tails:
            item.tails.remove(COMPUTE)
            item.needs.append(computed)
    items.extend(more)

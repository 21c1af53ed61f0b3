"""Passes that are equal but for their names, written once.

Most stages of a pipeline hold the same layers and do the same. What tells chunks apart is listed in `_kind_of`; chunks of one
kind have the same items, with the same durations, transfers and order, under other names (a test compares them). Programs made
from shared passes have the names of the first chunk of a kind, so they are for running, not for reading.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from parsim.kernel import Kernel
from parsim.parallel.plan import Chunk, Plan
from parsim.program.passes import Item, Prices, TensorTable
from parsim.program.program import Effect
from parsim.program.stage import StagePasses


class SharedPasses:
    """The passes of all pipeline ranks."""

    def __init__(self, plan: Plan, clock: Callable[[Kernel], float]) -> None:
        self.plan = plan
        self._clock = clock
        self._prices: Prices = {}
        self._written: dict[tuple[int, str], StagePasses] = {}
        self._around: dict[tuple[int, str, str], list[Item]] = {}
        self._ranks: dict[Hashable, int] = {}
        self._kinds: dict[Hashable, Chunk] = {}
        trains = [any(p.trainable and not p.buffer for p in block.parameters()) for block in plan.model.blocks]
        self._first_trained = trains.index(True) if True in trains else len(trains)
        self._tied = {rank for owner, copy, _ in plan.tied_across_stages() for rank in (owner, copy)}
        first = plan.training.iteration == "first"  # whichever chunk of a rank comes first allocates the workspaces
        self._alike = not (plan.sharded or plan.asynchronous or first) and plan.parallelism.data.own is None

    def of(self, pipeline_rank: int, role: str) -> RankPasses | StagePasses:
        """The passes of one pipeline rank and role."""
        if not self._alike:
            return self.written(pipeline_rank, role)
        first = {chunk.stage: self._kinds.setdefault((role, *self._kind_of(chunk)), chunk) for chunk in self.plan.of_rank(pipeline_rank)}
        unlike = pipeline_rank if pipeline_rank in self._tied else -1
        rank = self._ranks.setdefault((role, unlike, *(chunk.stage for chunk in first.values())), pipeline_rank)
        return RankPasses(self, role, first, rank)

    def written(self, pipeline_rank: int, role: str) -> StagePasses:
        """The passes that are really written."""
        key = (pipeline_rank, role)
        if key not in self._written:
            self._written[key] = StagePasses(self.plan, pipeline_rank, role, self._clock, self._prices)
        return self._written[key]

    def around(self, way: str, pipeline_rank: int, role: str) -> list[Item]:
        """The begin or the end of the step."""
        key = (pipeline_rank, role, way)
        if key not in self._around:
            passes = self.written(pipeline_rank, role)
            self._around[key] = passes.begin() if way == "begin" else passes.end()
        return self._around[key]

    def memory_bound(self) -> dict[str, float]:
        """See `StagePasses.memory_bound`; of all."""
        return {name: share for passes in self._written.values() for name, share in passes.memory_bound().items()}

    def _kind_of(self, chunk: Chunk) -> tuple[Hashable, ...]:
        """What the passes of a chunk depend on."""
        blocks, first, last = self.plan.model.blocks, chunk.blocks[0], chunk.blocks[-1]
        weights = tuple((w.block - first, w.parameter.name, w.count, w.product) for w in self.plan.weights(chunk))
        around = (id(blocks[first - 1]) if first else None, id(blocks[last + 1]) if last + 1 < len(blocks) else None)
        trained = min(max(self._first_trained - first, -1), len(chunk.blocks))
        stays = self.plan.stays(chunk.stage - 1), self.plan.stays(chunk.stage)
        return (tuple(id(blocks[b]) for b in chunk.blocks), around, weights, trained, stays)


class RankPasses:
    """The passes of one pipeline rank and role, most of them written for others."""

    def __init__(self, shared: SharedPasses, role: str, first: dict[int, Chunk], rank: int) -> None:
        self._shared = shared
        self._role = role
        self._first = first
        """own stage -> first chunk of its kind"""
        self._rank = rank
        """first pipeline rank with the same kinds of chunks"""
        self._templates: dict[tuple[str, int, bool, bool, bool], list[Item]] = {}

    @property
    def _ends(self) -> StagePasses:
        return self._shared.written(self._rank, self._role)

    @property
    def table(self) -> TensorTable:
        """See `StagePasses.table`."""
        return self._ends.table

    @property
    def resident(self) -> tuple[int, ...]:
        """See `StagePasses.resident`."""
        return self._ends.resident

    @property
    def fixed(self) -> bool:
        """See `StagePasses.fixed`."""
        return True

    def memory_bound(self) -> dict[str, float]:
        """See `StagePasses.memory_bound`."""
        return self._ends.memory_bound()

    def work(self) -> dict[tuple[str, float], tuple[float, float]]:
        """See `StagePasses.work`."""
        return self._ends.work()

    def stash(self, kind: str, micro_batch: int) -> list[tuple[int, tuple[Effect, ...]]]:
        """See `StagePasses.stash`."""
        return self._ends.stash(kind, micro_batch)

    def begin(self) -> list[Item]:
        """See `StagePasses.begin`."""
        return self._shared.around("begin", self._rank, self._role)

    def end(self) -> list[Item]:
        """See `StagePasses.end`."""
        return self._shared.around("end", self._rank, self._role)

    def template(self, kind: str, stage: int, first: bool, last: bool, partial: bool = False) -> list[Item]:
        """See `StagePasses.template`."""
        key = (kind, stage, first, last, partial)
        if (found := self._templates.get(key)) is None:
            chunk = self._first[stage]
            passes = self._shared.written(chunk.pipeline_rank, self._role)
            found = self._templates[key] = passes.template(kind, chunk.stage, first, last, partial)
        return found

    def sends(self, kind: str, stage: int, partial: bool = False) -> tuple[int | None, tuple[Effect, ...], float]:
        """See `StagePasses.sends`."""
        chunk = self._first[stage]
        return self._shared.written(chunk.pipeline_rank, self._role).sends(kind, chunk.stage, partial)

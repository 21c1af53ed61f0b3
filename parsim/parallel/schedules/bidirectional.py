"""Schedules in which micro-batches enter a pipeline from both of its ends: DualPipe, DualPipeV and Chimera.

DualPipe: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437; its order follows github.com/deepseek-ai/DualPipe,
``dualpipe.py`` (version 3da1bbe). Every stage lies on two ranks: global stages 0 to p - 1 are those of the micro-batches that enter at
rank 0, stages p to 2p - 1 copies of them, from rank p - 1 down to rank 0. DualPipeV, "cut in half": the same order on the ranks of one
half, whose second copy is the pipeline's second half folded back, so that each stage lies on one rank; it follows
``ScheduleDualPipeV`` of torch.distributed.pipelining. Chimera: Li and Hoefler, SC 2021, arXiv 2107.06925.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from parsim.errors import Finding, PlanError
from parsim.parallel.schedules.slot import Overlapped, Schedule, Slot, SlotKind

_PATH = "parallel.pipeline.schedule"


class _Row:
    """One rank's slots while they are written: passes of its two stages, each stage's micro-batches in order."""

    def __init__(self, stages: tuple[int, int], first: tuple[int, int]) -> None:
        """`first`: number of the first micro-batch of either stage."""
        self._stages = stages
        self._next = {(kind, way): first[way] for kind in SlotKind for way in (0, 1)}
        self._weights: deque[Slot] = deque()
        self.slots: list[Slot] = []
        self.pairs: list[tuple[Slot, Slot]] = []

    def forward(self, way: int) -> None:
        """F of the next micro-batch on one of the two stages."""
        self._add(SlotKind.FORWARD, way)

    def backward(self, way: int, *, split: bool = False) -> None:
        """B, or I, whose W is left for later."""
        slot = self._add(SlotKind.BACKWARD_INPUT if split else SlotKind.FULL_BACKWARD, way)
        if split:
            self._weights.append(Slot(SlotKind.BACKWARD_WEIGHT, *slot[1:]))

    def weight(self) -> None:
        """The W that has been left for longest."""
        self.slots.append(self._weights.popleft())

    def both(self, forward: int, backward: int) -> None:
        """F of one stage beside B of the other."""
        self.pairs.append((self._add(SlotKind.FORWARD, forward), self._add(SlotKind.FULL_BACKWARD, backward)))

    def _add(self, kind: SlotKind, way: int) -> Slot:
        counted = SlotKind.FORWARD if kind == SlotKind.FORWARD else SlotKind.FULL_BACKWARD
        slot = Slot(kind, self._stages[way], self._next[counted, way])
        self._next[counted, way] += 1
        self.slots.append(slot)
        return slot


def _filled(row: _Row, rank: int, ranks: int, micro_batches: int) -> None:
    """The order of DualPipeV on `rank` of `ranks`, for `micro_batches` through each of its two stages."""
    outer = ranks - rank - 1
    for _ in range(2 * outer):
        row.forward(0)
    for _ in range(rank + 1):
        row.forward(0)
        row.forward(1)
    for _ in range(outer):  # the zero bubble of the warm-up
        row.backward(1, split=True)
        row.weight()
        row.forward(1)
    for step in range(micro_batches - 2 * ranks + rank + 1):  # the steady state
        if step == 0 and outer == 0:  # where the two meet, its first pair is not overlapped: that would only hold up others
            row.forward(0)
            row.backward(1)
        else:
            row.both(0, 1)
        row.both(1, 0)
    for _ in range(outer):
        row.backward(1)
        row.both(1, 0)
    _drained(row, rank, outer)


def _drained(row: _Row, rank: int, outer: int) -> None:
    """The backwards that are left, the later half of them split, so that weight gradients fill the drain."""
    split = False
    for step in range(rank + 1):
        half = step == (rank + 1) // 2
        split = split or (half and rank % 2 == 1)
        row.backward(1, split=split)
        split = split or (half and rank % 2 == 0)
        row.backward(0, split=split)
    for _ in range(outer):
        row.weight()
        row.backward(0, split=True)
    for _ in range(rank + 1):
        row.weight()


def dualpipev(stages: int, micro_batches: int) -> tuple[Schedule, Overlapped]:
    """Rank s holds global stages s and 2p - 1 - s; in the steady state a forward of one runs beside a backward of the other.

    2p + 1 chunks in flight on all ranks. Raises `PlanError` unless m >= 2p.
    """
    if micro_batches < 2 * stages:
        message = f"dualpipev needs at least twice as many micro-batches as ranks (m >= 2 p), but {micro_batches} < 2 x {stages}"
        raise PlanError(Finding(message, _PATH, micro_batches, f"use at least {2 * stages} micro-batches, or schedule zb-v"))
    rows = [_Row((rank, 2 * stages - 1 - rank), (0, 0)) for rank in range(stages)]
    for rank, row in enumerate(rows):
        _filled(row, rank, stages, micro_batches)
    return _made(rows)


def dualpipe(stages: int, micro_batches: int) -> tuple[Schedule, Overlapped]:
    """Rank s holds stages s and p - 1 - s of a model that lies on the ranks twice; half of the micro-batches enter at rank p - 1.

    p + 1 micro-batches in flight on all ranks. Raises `PlanError` unless p and m are even and m >= 2p.
    """
    _even("dualpipe", stages, micro_batches)
    if micro_batches < 2 * stages:
        message = f"dualpipe needs at least twice as many micro-batches as ranks (m >= 2 p), but {micro_batches} < 2 x {stages}"
        raise PlanError(Finding(message, _PATH, micro_batches, f"use at least {2 * stages} micro-batches, or schedule zb-h1"))
    half = micro_batches // 2
    rows = []
    for rank in range(stages):
        near, far = (rank, 0), (2 * stages - 1 - rank, half)  # the stages of either direction, and their first micro-batches
        first, second = (near, far) if rank < stages // 2 else (far, near)
        rows.append(_Row((first[0], second[0]), (first[1], second[1])))
        _filled(rows[-1], min(rank, stages - 1 - rank), stages // 2, half)
    return _made(rows)


def chimera(stages: int, micro_batches: int) -> Schedule:
    """1F1B of half the micro-batches down the ranks and of the other half up, each in the slots that the other leaves empty.

    Rank s holds stages s and p - 1 - s of a model that lies on the ranks twice; p/2 + 1 to p micro-batches in flight. More micro-batches
    than ranks go in units of p, each in the empty slots at the end of the one before (direct concatenation, section 3.4), as in the
    authors' code (github.com/Shigangli/Chimera, chimera_pipeline_rank.py). Raises `PlanError` unless p and m are even.
    """
    _even("chimera", stages, micro_batches)
    half = micro_batches // 2
    rows = []
    for rank in range(stages):
        slots: list[tuple[int, Slot]] = []
        for stage, place, first in ((rank, rank, 0), (2 * stages - 1 - rank, stages - 1 - rank, half)):
            for i in range(half):  # in slots of equal length, every other one is the other direction's
                unit, at = divmod(i, stages // 2)
                start = 2 * stages * unit + 2 * at
                slots.append((start + place, Slot(SlotKind.FORWARD, stage, first + i)))
                slots.append((start + 2 * stages - 1 - place, Slot(SlotKind.FULL_BACKWARD, stage, first + i)))
        rows.append(tuple(slot for _, slot in sorted(slots)))
    return tuple(rows)


def _even(name: str, stages: int, micro_batches: int) -> None:
    findings = [
        Finding(
            f"{name} sends half of the micro-batches in each direction through pairs of ranks, and {value} {what} cannot be halved",
            path,
            value,
            hint,
        )
        for value, what, path, hint in (
            (stages, "ranks", "parallel.pipeline.size", f"use {stages + 1} ranks"),
            (micro_batches, "micro-batches", _PATH, f"use {micro_batches + 1} micro-batches"),
        )
        if value % 2
    ]
    if findings:
        raise PlanError(findings)


def _made(rows: list[_Row]) -> tuple[Schedule, Overlapped]:
    return tuple(tuple(row.slots) for row in rows), frozenset(pair for row in rows for pair in row.pairs)


def pairs_of_ranks(stages: int) -> Iterator[tuple[int, int]]:
    """The ranks that hold the same stages, where a model lies on the ranks twice.

    >>> list(pairs_of_ranks(4))
    [(0, 3), (1, 2)]
    """
    return ((rank, stages - 1 - rank) for rank in range(stages // 2))

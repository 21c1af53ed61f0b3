"""Where a schedule repeats itself: the slots that a longer one has more of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parsim.parallel.schedules.slot import Schedule, Slot

Columns = NDArray[np.int64]


class Repetition(NamedTuple):
    """One rank's slots from `begin` up to `end` (not included) repeat every `slots` slots, for later micro-batches."""

    begin: int
    end: int
    slots: int


def repetitions(short: Schedule, whole: Schedule) -> dict[int, tuple[Repetition, ...]]:
    """Micro-batches of a period -> where every rank's row of `short` may be cut so that whole periods, put in there, make it the row
    of `whole`.

    Both schedules are of one name, stages p and chunks; `whole` has more micro-batches. Periods divide p and what it has more.

    >>> from parsim.parallel.schedules import schedule
    >>> repetitions(schedule("1f1b", 2, 6), schedule("1f1b", 2, 61))
    {1: (Repetition(begin=1, end=11, slots=2), Repetition(begin=0, end=12, slots=2))}
    >>> repetitions(schedule("gpipe", 2, 6), schedule("gpipe", 2, 60))
    {}
    """
    rows = [(_columns(brief), _columns(long)) for brief, long in zip(short, whole, strict=True)]
    found = {}
    for cycle in range(1, len(rows) + 1):
        if len(rows) % cycle == 0:
            of_ranks = tuple(one for brief, long in rows if (one := _repetition(brief, long, cycle)) is not None)
            if len(of_ranks) == len(rows):
                found[cycle] = of_ranks
    return found


def shorter(stages: int, micro_batches: int, virtual_stages: int = 1) -> tuple[int, ...]:
    """Micro-batches of shorter steps that are likely to repeat themselves as one of `micro_batches` does, fewest first; those that are
    not worth it are left out.

    The pipeline fills with the first p micro-batches and drains with the last p; where the micro-batches go round in groups of p, two
    equal periods take 2 p more.

    >>> shorter(8, 192), shorter(8, 192, virtual_stages=3), shorter(8, 32)
    ((20, 40), (40,), (20,))
    """
    counts = (3 * stages // 2 + 8, 5 * stages + micro_batches % stages)
    return tuple(count for count in counts[virtual_stages > 1 :] if 3 * count <= 2 * micro_batches)


def _repetition(brief: Columns, long: Columns, cycle: int) -> Repetition | None:
    more = len(long) - len(brief)  # slots that are put in
    added = (long[:, 2].max() - brief[:, 2].max()).item()  # micro-batches that are
    if added <= 0 or more <= 0 or added % cycle or more % (added // cycle):
        return None
    slots = more // (added // cycle)
    # the longest run of slots around the middle of `long` that return, `slots` later, for the micro-batches `cycle` later
    returns = (long[slots:] - long[:-slots] == (0, 0, cycle)).all(axis=1)
    breaks = np.flatnonzero(~returns)
    at = int(np.searchsorted(breaks, len(returns) // 2))
    begin = 0 if at == 0 else int(breaks[at - 1]) + 1
    end = (len(returns) if at == len(breaks) else int(breaks[at])) + slots - more
    # cut there, `long` without the periods that are put in is `brief`
    rest = long[begin + more :] - (0, 0, added)
    if end <= begin or not np.array_equal(brief, np.concatenate((long[:begin], rest))):
        return None
    return Repetition(begin, end, slots)


def _columns(row: Sequence[Slot]) -> Columns:
    """Kind, stage and micro-batch of every slot, one row each."""
    kinds, stages, micro_batches = zip(*row, strict=True)
    return np.stack([np.fromiter(column, dtype=np.int64, count=len(row)) for column in (map(ord, kinds), stages, micro_batches)], axis=1)

"""Who each op waited for: of its blockers the one that ended last, as the critical path takes them."""

from __future__ import annotations

import numpy as np

from parsim.report.timeline import COMPUTE_LANE, Indices, Timeline


def binding(timeline: Timeline) -> Indices:
    """For each op the blocker that ended last, -1 for none.

    On ties the op's own lanes go first (the compute lane before others), then the lower number.
    """
    offsets, sources = timeline.blockers
    counts = np.diff(offsets)
    result = np.full(len(counts), -1, dtype=np.int64)
    alone = np.flatnonzero(counts == 1)
    result[alone] = sources[offsets[alone]]
    waiting = np.flatnonzero(counts > 1)
    if not len(waiting):
        return result
    several = counts[waiting]
    behind = np.cumsum(several)
    place = np.repeat(offsets[waiting] - (behind - several), several) + np.arange(behind[-1])
    targets, sources = np.repeat(waiting, several), sources[place]
    ends = timeline.end[sources]
    latest = np.maximum.reduceat(ends, behind - several)
    tied = np.flatnonzero(ends >= np.repeat(latest, several) - timeline.tolerance)
    target, source = targets[tied], sources[tied]
    order = np.lexsort((source, _distance(timeline, target, source), target))
    chosen, place = np.unique(target[order], return_index=True)
    result[chosen] = source[order][place]
    return result


def _distance(timeline: Timeline, targets: Indices, sources: Indices) -> Indices:
    """0: the op before on a compute lane; 1: the op before on another lane; 2: neither."""
    distance = np.full(len(targets), 2, dtype=np.int64)
    several = np.flatnonzero(np.bincount(targets, minlength=len(timeline.start))[targets] > 1)
    if not len(several):
        return distance
    count = len(timeline.start)
    wanted = targets[several] * count + sources[several]
    asked = np.zeros(count, dtype=bool)
    asked[targets[several]] = True
    for near in (1, 0):
        columns = [column for lanes in timeline.lanes.values() for name, column in lanes.items() if (name == COMPUTE_LANE) == (near == 0)]
        behind = [np.flatnonzero(asked[column[1:]]) for column in columns]
        known = [column[place + 1] * count + column[place] for column, place in zip(columns, behind, strict=True)]
        if known:
            distance[several[np.isin(wanted, np.concatenate(known))]] = near
    return distance


def visible(causes: Indices, shown: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Indices:
    """For each op the nearest op on its chain of causes that is shown, -1 for none.

    Chains lead through ops that are not shown: of no length, or of ranks that are left out.
    """
    nowhere = len(causes)
    step = np.append(np.where(causes < 0, nowhere, causes), nowhere)
    jump = np.where(np.append(shown, True), np.arange(nowhere + 1), step)
    while True:
        further = jump[jump]
        if (further == jump).all():
            break
        jump = further
    found = jump[step[:-1]]
    return np.where(found == nowhere, -1, found)

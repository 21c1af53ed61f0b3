"""When every op inside blocks began and ended: most blocks run undisturbed, so those of one course are filled in together."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from parsim.simulation.blocks import Course, Loads, Log, expand


def expand_all(
    start: Sequence[float], end: Sequence[float], courses: Mapping[int, Course], logs: Mapping[int, Log]
) -> tuple[array[float], array[float]]:
    """Beginning and end of every op [s] from those of ops and blocks; `courses` and `logs` as of a `BlockTrace`."""
    counts = [len(courses[number].inside) if number in courses else 1 for number in range(len(start))]
    first = np.array([0, *accumulate(counts)], dtype=np.int64)
    starts, ends = np.empty(first[-1]), np.empty(first[-1])
    begun, over = np.asarray(start, dtype=np.float64), np.asarray(end, dtype=np.float64)
    alone = np.array([number for number in range(len(start)) if number not in courses], dtype=np.int64)
    starts[first[alone]], ends[first[alone]] = begun[alone], over[alone]
    undisturbed: dict[tuple[int, Loads], list[int]] = {}
    for number, course in courses.items():
        log = logs.get(number)
        if log is None or len(log) == 1:
            undisturbed.setdefault((id(course), () if log is None else log[0][1]), []).append(number)
        else:
            inside = slice(first[number], first[number + 1])
            starts[inside], ends[inside] = expand(course, start[number], end[number], log)
    for (_, loads), numbers in undisturbed.items():
        blocks = np.array(numbers, dtype=np.int64)
        begins, finishes = map(np.array, courses[numbers[0]].spans(loads))
        place = first[blocks][:, None] + np.arange(len(begins))
        starts[place] = begun[blocks][:, None] + begins
        until = begun[blocks][:, None] + finishes
        ends[place] = np.where(until >= until.max(axis=1, keepdims=True), over[blocks][:, None], until)  # see `expand`
    return array("d", starts.tobytes()), array("d", ends.tobytes())

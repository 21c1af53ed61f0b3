"""What ran on the GPUs of a run, by class of work: recorded by a profiler, or predicted in the same form.

Both sides go through `features`, so that a class means the same in both. A predicted op is many kernels; while a program is
lowered, its durations remember the classes of the kernels that they are made of (`Timed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parsim.kernel import Attention, Gemm, Kernel
from parsim.report.communication import covered

GEMM, ATTENTION, MEMORY, OPTIMIZER = "gemm", "attention", "memory-bound", "optimizer"
COMPUTE = (GEMM, ATTENTION, MEMORY, OPTIMIZER)
_KINDS = (GEMM, ATTENTION, MEMORY)

SPREAD = 1.15
"""a collective that takes no longer than so many times the short ones of its kind did not wait, it was slower (assumption)"""

Floats = NDArray[np.float64]


class Timed(float):
    """Seconds that know which classes of kernels they are made of: per class seconds and number of kernels."""

    __slots__ = ("parts",)
    parts: tuple[float, ...]

    @staticmethod
    def of(seconds: float, parts: tuple[float, ...]) -> Timed:
        """A duration with its parts."""
        made = Timed(seconds)
        made.parts = parts
        return made

    def __add__(self, other: float) -> float:
        if isinstance(other, Timed):
            return Timed.of(float(self) + float(other), tuple(a + b for a, b in zip(self.parts, other.parts, strict=True)))
        return Timed.of(float(self), self.parts) if other == 0 else float(self) + other

    __radd__ = __add__

    def __truediv__(self, other: float) -> float:
        half = len(_KINDS)
        scaled = tuple(part / other for part in self.parts[:half])
        return Timed.of(float(self) / other, scaled + self.parts[half:])


def timed(clock: Callable[[Kernel], float]) -> Callable[[Kernel], float]:
    """A clock whose seconds know their class."""
    known: dict[Kernel, Timed] = {}

    def measure(kernel: Kernel) -> float:
        if (found := known.get(kernel)) is None:
            place = 0 if isinstance(kernel, Gemm) else 1 if isinstance(kernel, Attention) else 2
            seconds, parts = clock(kernel), [0.0] * (2 * len(_KINDS))
            parts[place] = seconds
            parts[place + len(_KINDS)] = float(max(1, getattr(kernel, "launches", 1)))
            found = known[kernel] = Timed.of(seconds, tuple(parts))
        return found

    return measure


@dataclass(frozen=True)
class Stretch:
    """Work of one class on a GPU; all times in seconds."""

    kind: str
    """one of `COMPUTE`, or ``comm <kind> x<ranks>``"""
    name: str
    start: float
    duration: float
    waited: float = 0.0
    """the part of it in which the others had not come yet, where that is known"""
    count: float = 1.0
    """kernels"""
    bytes: int = 0
    """of a collective, as nccl-tests counts; 0: unknown"""

    @property
    def end(self) -> float:
        """[s]"""
        return self.start + self.duration


@dataclass(frozen=True)
class Window:
    """Recorded time of one rank: one step, or `steps` of them that nothing separates."""

    begin: float
    """[s]"""
    end: float
    """[s]"""
    stretches: Sequence[Stretch]
    steps: int = 1


@dataclass(frozen=True)
class Recorded:
    """What a run did: rank -> its windows."""

    ranks: Mapping[int, Sequence[Window]]
    source: str = ""
    notes: tuple[str, ...] = ()
    """what was left out or supposed when reading"""

    @property
    def step_time(self) -> float:
        """Seconds per step: of the rank that took longest."""
        return max(
            math.fsum(window.end - window.begin for window in windows) / sum(window.steps for window in windows)
            for windows in self.ranks.values()
        )


def features(recorded: Recorded) -> dict[tuple[int, str], float]:
    """(rank, class) -> seconds per step; classes that begin with # are numbers of kernels per step."""
    transfers = _transfers(recorded)
    found: dict[tuple[int, str], float] = {}
    for number, windows in recorded.ranks.items():
        steps = sum(window.steps for window in windows)
        for window in windows:
            for name, value in _of_window(window, transfers).items():
                found[number, name] = found.get((number, name), 0.0) + value / steps
    return found


def _of_window(window: Window, transfers: Mapping[tuple[str, int], float]) -> dict[str, float]:
    found: dict[str, float] = {}
    compute = [stretch for stretch in window.stretches if stretch.kind in COMPUTE]
    comm = [stretch for stretch in window.stretches if stretch.kind not in COMPUTE]
    for stretch in compute:
        found[stretch.kind] = found.get(stretch.kind, 0.0) + stretch.duration
        if stretch.kind in (GEMM, ATTENTION):
            found[f"#{stretch.kind}"] = found.get(f"#{stretch.kind}", 0.0) + stretch.count
    moving, present = [], []
    for stretch in comm:
        shortest, moved = stretch.count * transfers[stretch.kind, stretch.bytes], stretch.duration - stretch.waited
        moved = moved if moved <= SPREAD * shortest else shortest
        found[stretch.kind] = found.get(stretch.kind, 0.0) + moved
        moving.append((stretch.end - moved, stretch.end))
        if "send" in stretch.kind:  # when a receiver posts its message says nothing about when data were due
            present.append(moving[-1])
        else:
            found["waiting for others"] = found.get("waiting for others", 0.0) + stretch.duration - moved
            present.append((stretch.start, stretch.end))
    busy = [(stretch.start, stretch.end) for stretch in compute]
    begins, ends = _merged(busy + present)
    if not len(begins):
        return found
    if comm:
        lengths = _merged(moving)
        found["exposed communication"] = float((lengths[1] - lengths[0]).sum() - covered(*_merged(busy), *lengths).sum())
    found["idle before"] = max(0.0, float(begins[0]) - window.begin)
    found["idle after"] = max(0.0, window.end - float(ends[-1]))
    found["idle within"] = float((begins[1:] - ends[:-1]).sum())
    return found


def _merged(intervals: Iterable[tuple[float, float]]) -> tuple[Floats, Floats]:
    """Begin and end of the union of intervals, ascending and disjoint."""
    pairs = sorted(interval for interval in intervals if interval[1] > interval[0])
    if not pairs:
        return np.empty(0), np.empty(0)
    table = np.array(pairs)
    tops = np.maximum.accumulate(table[:, 1])
    fresh = np.concatenate(([True], table[1:, 0] > tops[:-1]))
    lasts = np.concatenate((np.flatnonzero(fresh)[1:] - 1, [len(tops) - 1]))
    return table[fresh, 0], tops[lasts]


def _transfers(recorded: Recorded) -> dict[tuple[str, int], float]:
    """(class, bytes) -> what moving the data takes [s]: the lower quartile of all recorded ones, of the rank where it is least.

    An NCCL kernel runs from its own rank's arrival on, so its length contains the wait for the others; who came last did not wait.
    """
    durations: dict[tuple[str, int], dict[int, list[float]]] = {}
    for number, windows in recorded.ranks.items():
        for stretch in (stretch for window in windows for stretch in window.stretches if stretch.kind not in COMPUTE):
            each = (stretch.duration - stretch.waited) / max(stretch.count, 1.0)
            durations.setdefault((stretch.kind, stretch.bytes), {}).setdefault(number, []).append(each)
    return {key: min(float(np.quantile(values, 0.25)) for values in ranks.values()) for key, ranks in durations.items()}

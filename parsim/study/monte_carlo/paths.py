"""Sample paths of a training, played by several workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any

from parsim.errors import ParsimError
from parsim.report.training_paths import SamplePath, sample_paths
from parsim.simulation.interrupted import InterruptedTraining
from parsim.study.workers import Crew, at_work, stamp

_WORTHWHILE = 8.0
"""how long the rest would have to take one process for others to be asked [s]"""
_EACH = 8
"""parts per worker: the last ones are then done at about the same time"""


def played(
    training: InterruptedTraining,
    numbers: Sequence[int],
    *,
    hands: Callable[[int], Crew],
    patient: bool,
    watch: Callable[[Iterable[Any], int], Iterable[Any]],
) -> list[SamplePath]:
    """Paths of these numbers, in their order; who plays one changes nothing of it.

    `hands` gets a crew for so many paths; `patient`: this process begins alone, and others help where it would take long.

    Raises:
        ParsimError: a worker died.
    """
    came: list[SamplePath] = []

    def whole() -> Iterable[SamplePath]:
        left = list(numbers)
        crew = None if patient else hands(len(left))
        if crew is None:
            began = monotonic()
            yield from sample_paths(training, left[:1])
            left = left[1:]
            crew = hands(len(left)) if (monotonic() - began) * len(left) > _WORTHWHILE else Crew()
        each = max(1, len(left) // (crew.workers * _EACH)) if type(crew) is not Crew else 1
        parts = [left[first : first + each] for first in range(0, len(left), each)]
        if type(crew) is Crew:
            for part in parts:
                yield from sample_paths(training, part)
            return
        waiting: list[Future[list[SamplePath]]] = [crew.submit(at_work, stamp(), sample_paths, training, part) for part in parts]
        for one in waiting:
            yield from _answer(crew, one)

    came.extend(watch(whole(), len(numbers)))
    return came


def _answer(crew: Crew, one: Future[list[SamplePath]]) -> list[SamplePath]:
    try:
        return one.result()
    except Exception as error:
        if crew.died(error):
            raise ParsimError(
                f"a worker died while it played sample paths: {error}; the same command with --workers 1 needs none"
            ) from None
        raise

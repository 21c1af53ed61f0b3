"""One step on machines that are not all equal and never twice the same: which draws disturb it, and what it takes then.

The draws of a run are those of `parsim.simulation.draws`: numbered, not taken from a stream. Whichever ranks are folded and
whichever causes are on, an op of a rank meets the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from parsim.prepared import Prepared


@dataclass(frozen=True)
class StepSample:
    """One disturbed step."""

    run: int
    """which one: the same number has the same draws"""
    step_time: float
    """[s]"""
    slowest: int
    """the rank whose kernels take longest, in proportion to what they take undisturbed; -1: none is slower than another"""
    slowness: float
    """how many times as long they take"""


class DisturbedStep:
    """Samples of the step of a scenario with `variability`; what all of them need is made once.

    `method`: how a sample is found; `causes`: those that are on in the scenario; `nominal`: the undisturbed step [s].
    """

    method: str
    causes: frozenset[str]
    nominal: float

    def __init__(self, prepared: Prepared, nominal: float | None = None) -> None: ...

    def samples(self, runs: Iterable[int], causes: Iterable[str] | None = None) -> list[StepSample]:
        """The step of each run, with all causes or with some of them only: the others then change nothing, and the draws are the same."""
        raise NotImplementedError


def disturbed(prepared: Prepared, run: int, causes: Iterable[str] | None = None) -> StepSample:
    """One sample; who wants many makes a `DisturbedStep` once."""
    return DisturbedStep(prepared).samples([run], causes)[0]

"""The same scenario again with keys changed: what a change does to the step and to the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from os import cpu_count
from typing import Any

from parsim.errors import InputError, ParsimError
from parsim.run import simulate
from parsim.scenario.load import load
from parsim.scenario.scenario import Scenario

Overrides = tuple[str, ...]
"""``KEY=VALUE`` words as on the command line"""


@dataclass(frozen=True, slots=True)
class Trial:
    """One changed run, or why there is none."""

    overrides: Overrides
    step_time: float = 0.0
    """[s]"""
    samples: int = 0
    """per step"""
    peak: int = 0
    """highest device memory in use on any rank [B]"""
    fits: bool = False
    communication: float = 0.0
    """exposed communication of the breakdown rank [s]"""
    refused: str = ""
    """why it cannot be simulated"""

    @property
    def seconds_per_sample(self) -> float:
        """Comparable where a change also changes the batch."""
        return self.step_time / self.samples if self.samples else 0.0


Watch = Callable[[Iterable[Trial], int], Iterable[Trial]]
"""is given the trials as they come and how many there will be, and passes them on"""


def trial(tree: Mapping[str, Any], overrides: Overrides = (), *, trust_code: bool = False) -> Trial:
    """Simulate a scenario tree with `overrides` on top; a scenario that cannot be simulated says why."""
    from parsim.report.verdict import exposed_communication

    try:
        report = simulate(load(tree, *overrides, trust_code=trust_code))
    except InputError as error:
        return Trial(overrides, refused=error.findings[0].message)
    except ParsimError as error:
        return Trial(overrides, refused=str(error).splitlines()[0])
    return Trial(
        overrides=overrides,
        step_time=report.step_time,
        samples=report.measured.model.samples_per_step,
        peak=report.peak_memory,
        fits=report.fits,
        communication=exposed_communication(report.breakdown),
    )


def trials(scenario: Scenario, changes: Sequence[Overrides], *, jobs: int | None = None, watch: Watch | None = None) -> list[Trial]:
    """One trial per change, in their order, in `jobs` processes (None: one per CPU)."""
    tree = scenario.document()
    job = partial(trial, trust_code=scenario.trust_code)
    watch = watch or (lambda found, _: found)
    if (jobs or cpu_count() or 1) == 1 or len(changes) < 2:
        return list(watch((job(tree, overrides) for overrides in changes), len(changes)))
    with ProcessPoolExecutor(jobs) as pool:
        return list(watch(pool.map(job, repeat(tree), changes), len(changes)))

"""The runs that a scenario asks for, in this process."""

from __future__ import annotations

from collections.abc import Callable

from parsim.errors import Finding
from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import Prepared
from parsim.monte_carlo.gather import Answer, Disturbed, gather
from parsim.monte_carlo.question import Sampler, answers
from parsim.monte_carlo.stopping import Until
from parsim.report.variability import RunStatistics
from parsim.variability import STATIC

NOTHING = Finding(
    "every run is the same step: nothing varies", "variability.runs",
    suggestion="write variability.jitter, gpus or host, or variability: typical",
)  # fmt: skip
"""a warning where runs are asked for and nothing is drawn"""


def repeated(
    prepared: Prepared, nominal: float, *, answer: Callable[[Sampler], Answer] | None = None, until: Until | None = None
) -> RunStatistics | None:
    """What the runs of a step come to that takes `nominal` seconds undisturbed; None where nothing is drawn.

    `answer` gets questions answered elsewhere. Raises what a step raises.
    """
    settings = prepared.built.scenario.settings.variability
    step = DisturbedStep(prepared, nominal)
    if not step.causes:
        return None
    of = Disturbed(step.causes, frozenset(STATIC), nominal, prepared.built.seed, step.method)
    return gather(here(step) if answer is None else answer(step), of, settings.runs, until=until)


def here(sampler: Sampler) -> Answer:
    """Answers questions in this process."""
    return lambda questions: zip(questions, answers(sampler, questions), strict=True)

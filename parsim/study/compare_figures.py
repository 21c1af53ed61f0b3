"""The figures of a comparison, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from parsim.errors import Finding, InputError
from parsim.report.plots.comparison import ComparedRun, breakdown_figure, collectives_figure, memory_figure
from parsim.report.plots.comparison_timelines import timelines_figure
from parsim.report.plots.figure import Drawing
from parsim.report.plots.tradeoff import RunPoint, pareto_figure
from parsim.study.differences import has_band, work

if TYPE_CHECKING:
    from parsim.study.compare import Comparison

MANY = 1000
"""tokens or samples that a time is drawn for where steps do unequal work"""


def entries(comparison: Comparison) -> list[ComparedRun]:
    """All runs, those that failed too."""
    return [ComparedRun(run.label, run.document, run.reason) for run in comparison.runs]


def _timelines(comparison: Comparison, width: float) -> Drawing:
    chosen = [(run.label, run.lanes, run.status == "fits") for run in comparison.runs if run.lanes is not None]
    return timelines_figure(chosen, width=width)


def _pareto(comparison: Comparison, width: float) -> Drawing:
    won = comparison.winner
    unit = "" if won is None or won.criterion == "estimate.step_time_s" else won.criterion.removeprefix("seconds_per_")
    places = []
    for run in comparison.simulated:
        document = run.document or {}
        memory = document["memory"]
        time = document["estimate"]["step_time_s"] * (MANY / (work(document)[0] or 1.0) if unit else 1.0)
        capacity = memory["capacity_bytes"] - memory["reserve_bytes"]
        places.append(RunPoint(run.label, time, memory["peak_bytes"], bool(memory["fits"]), capacity))
    return pareto_figure(
        places,
        name=f"time per {MANY:,} {unit}s" if unit else "estimated step time" if any(map(has_band, comparison.documents)) else "step time",
        width=width,
    )


FIGURES: dict[str, Callable[[Comparison, float], Drawing]] = {
    "breakdown": lambda comparison, width: breakdown_figure(entries(comparison), width=width),
    "memory": lambda comparison, width: memory_figure(entries(comparison), width=width),
    "timelines": _timelines,
    "collectives": lambda comparison, width: collectives_figure(entries(comparison), width=width),
    "pareto": _pareto,
}


def names(comparison: Comparison) -> list[str]:
    """The figures that show something: no collectives without communication, no memory where none was simulated."""
    documents = [run.document for run in comparison.simulated if run.document is not None]
    moves = any(row["busy_s"] > 0 for document in documents for row in document["collectives"])
    weighs = any(document["memory"]["devices"] for document in documents)
    left_out = {name for name, there in (("collectives", moves), ("memory", weighs), ("pareto", weighs)) if not there}
    return [name for name in FIGURES if name not in left_out] if documents else []


def figure(comparison: Comparison, name: str, width: float) -> Drawing:
    """One figure, `width` inches wide.

    Raises:
        InputError: no such figure, or nothing to show in it.
    """
    if name not in FIGURES:
        raise InputError(Finding(f"there is no figure {name!r}", value=name, suggestion=f"known: {', '.join(FIGURES)}"))
    if name not in names(comparison):
        raise InputError(Finding(f"nothing in this comparison has what the figure {name!r} shows", value=name))
    return FIGURES[name](comparison, width)

"""What a worker process does for a page: named jobs from plain documents to plain documents, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from parsim.errors import ParsimError
from parsim.study.planner.answers import Planner, exact, impossible, report_page
from parsim.study.planner.options import eased, nearest_fits, options, repairs
from parsim.study.planner.state import checked, command, dropped, scenario_of, yaml

Document = dict[str, Any]
Job = Callable[..., Iterator[Document]]


@cache
def _planner() -> Planner:
    """That of this process."""
    return Planner()


def warm() -> Iterator[Document]:
    """Import everything, and find what the example's states have in common."""
    _planner().bound({})
    yield {}


def form() -> Iterator[Document]:
    """What the page shows before any answer."""
    from parsim.study.planner.form import form as whole

    yield whole()


def live(state: Any) -> Iterator[Document]:
    """The bound."""
    yield _planner().bound(checked(state))


def choices(state: Any) -> Iterator[Document]:
    """Which values are legal, ways out where the state is not, and the state as a file and as a command."""
    state = checked(state)
    offered = options(_planner(), state)
    possible = _planner().bound(state)["says"] != "impossible"
    ways = [] if possible else repairs(_planner(), state, offered)
    answer: Document = {"options": offered if possible else eased(_planner(), state, offered, ways), "repairs": ways}
    try:
        scenario_of(state)
    except ParsimError:
        yield answer | {"yaml": None, "command": None}
    else:
        yield answer | {"yaml": yaml(state), "command": command(state)}


def simulated(state: Any) -> Iterator[Document]:
    """Provisional answers, the whole one, and where it does not fit what would."""
    state = checked(state)
    last: Document = {}
    for last in exact(state):
        yield {"kind": "answer", "answer": last}
    if last.get("says") == "does not fit":
        for plan in nearest_fits(_planner(), state):
            yield {"kind": "fits", **plan}


def report(state: Any) -> Iterator[Document]:
    """The page of the report."""
    yield {"html": report_page(checked(state))}


def drop(text: str, name: str) -> Iterator[Document]:
    """The state of a file somebody has."""
    state, remarks = dropped(text, name)
    yield {"state": state, "remarks": remarks}


def search(state: Any, say: Callable[[Mapping[str, Any]], None]) -> None:
    """Look for the best strategy, line by line."""
    from parsim.study.planner.best import best_strategy

    best_strategy(checked(state), say)


JOBS: dict[str, Job] = {job.__name__: job for job in (warm, form, live, choices, simulated, report, drop)}


def findings(error: ParsimError) -> Document:
    """What is wrong, as the page shows it."""
    return {"kind": "error", "findings": impossible(error)["findings"]}

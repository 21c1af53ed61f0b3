"""The bounds of `parsim.study.search`, by which a study passes over what cannot be among the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from parsim import units
from parsim.errors import InputError
from parsim.scenario.scenario import Scenario
from parsim.study.sweep.candidates import Place
from parsim.study.sweep.choice import Least


def bounds_of(base: Scenario) -> Callable[[Place], Least | None] | None:
    """Lower bounds of the scenarios around `base`; None where there is nothing that could say them."""
    if find_spec("parsim.study.search") is None:
        return None
    neighbours: Any = import_module("parsim.scenario.neighbours").Neighbours(base)
    bounder: Any = import_module("parsim.study.search.bounds").Bounder()

    bill_of = _bills()

    def bound(place: Place) -> Least | None:
        try:
            built = neighbours.built(place.settings)
            found = bounder.bounds(built)
        except InputError:
            return None  # the simulation says what is wrong
        needed, there = units.format_bytes(found.peak_memory), units.format_bytes(found.capacity)
        full = f"it needs at least {needed} of {there}" if found.surely_full else ""
        return Least(found.step_time, found.peak_memory, full, found.samples, found.tokens, found.gpus, bill_of(built, found.step_time))

    return bound


def _bills() -> Callable[[Any, float], Mapping[str, float | None]]:
    """The bill of a built scenario if its step took only so long, and its GPUs did nothing but wait: nothing is ever cheaper."""
    economics_of = getattr(import_module("parsim.run"), "economics_of", None)
    if economics_of is None:
        return lambda _built, _step_time: {}
    report: Any = import_module("parsim.report.economics")

    def bill(built: Any, step_time: float) -> Mapping[str, float | None]:
        economics = economics_of(built)
        return {} if economics is None else dict(report.bill(economics, step_time, report.Busy()).metrics())

    return bill

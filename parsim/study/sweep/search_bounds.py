"""The bounds of `parsim.study.search`, by which a study passes over what cannot be among the best."""

from __future__ import annotations

from collections.abc import Callable
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

    def bound(place: Place) -> Least | None:
        try:
            found = bounder.bounds(neighbours.built(place.settings))
        except InputError:
            return None  # the simulation says what is wrong
        needed, there = units.format_bytes(found.peak_memory), units.format_bytes(found.capacity)
        full = f"it needs at least {needed} of {there}" if found.surely_full else ""
        return Least(found.step_time, found.peak_memory, full, found.samples, found.tokens, found.gpus)

    return bound

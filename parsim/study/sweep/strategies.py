"""The standard strategies of a scenario: what ``strategy: auto`` ranges over."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario.build import build
from parsim.scenario.scenario import Scenario


def strategies(scenario: Scenario) -> list[dict[str, Any]]:
    """Settings (long key -> value) of every standard strategy on the scenario's machine, in a fixed order.

    Raises:
        ScenarioError: not built yet.
    """
    if find_spec("parsim.study.search") is None:
        hint = "name the keys under axes, or write a lattice"
        raise ScenarioError(Finding("not supported yet: the standard strategies", "strategy", "auto", hint, *scenario.locate("study")))
    lattice: Any = import_module("parsim.study.search.lattice")
    return [candidate.mapping() for candidate in lattice.Lattice(build(scenario))]

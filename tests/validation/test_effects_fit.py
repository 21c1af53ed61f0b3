"""validation/runs/fit.py: what is committed is what it finds, and a family that is left out has no say in its own fit."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from published_runs import published

from parsim.scenario.effects import catalogue
from parsim.validation.predicted_runs import fitted

_SPEC = importlib.util.spec_from_file_location("fit_effects", Path(__file__).parents[2] / "validation" / "runs" / "fit.py")
assert _SPEC is not None
assert _SPEC.loader is not None
fit_effects = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = fit_effects  # dataclasses look their module up
_SPEC.loader.exec_module(fit_effects)


@pytest.fixture(scope="module")
def responses():
    known = fit_effects.read_responses()
    return [
        fit_effects.Response(source.name, source.family, source.fitted, row.measured["step_time_s"], *known[row.id])
        for source in published()
        for row in fit_effects.sample(source)
    ]


def test_the_effects_that_come_with_parsim_are_those_of_all_families(responses):
    assert fit_effects.solve(responses) == {effect.name: effect.value for effect in catalogue()}


@pytest.mark.parametrize("family", ["mpt", "vtrain"])
def test_a_family_that_is_left_out_moves_nothing(responses, family):
    """Its steps twice as long: its own fit stays the committed one, and that of another family moves."""
    slower = [replace(one, measured=2 * one.measured) if one.family == family else one for one in responses]
    for left in (family, "zero-bubble"):
        found = fit_effects.solve([one for one in slower if one.family != left])
        assert (found == fitted().left_out[left]) == (left == family), left

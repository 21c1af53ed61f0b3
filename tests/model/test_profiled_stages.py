"""Measured pipeline stages as a model."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.errors import ModelError
from parsim.kernel import Fixed
from parsim.model.catalogue import build_model
from parsim.model.liveness import tape
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.workload import Workload

STAGE = {"forward": "18.5 ms", "backward_input": "18.1 ms", "backward_weight": "9.3 ms", "send": "0.6 ms", "activation": "1.2 GiB"}


def stages(*entries: Any) -> Model:
    return build_model({"stages": list(entries)}, name="measured", base_lookup=dict)


def test_one_entry_stands_for_all_stages() -> None:
    model = stages(STAGE)
    assert len(model.blocks) == 1
    assert model.facts["repeat"] is True
    assert model.facts["send"] == (0.0006,)


def test_durations_and_bytes_are_as_measured() -> None:
    operator = stages(STAGE, STAGE).blocks[1].operators[0]
    work = operator.work(Workload(batch=4))
    assert work.forward == (Fixed(0.0185),)
    assert work.backward_input == (Fixed(0.0181),)
    assert work.backward_weight == (Fixed(0.0093),)
    assert [save.bytes for save in work.saves] == [round(1.2 * 2**30)]


def test_activation_is_released_with_the_weight_half() -> None:
    steps = tape(stages(STAGE).blocks[0], Workload(batch=1))
    assert [step.phase for step in steps.backward] == ["input", "weight"]
    assert "kept" in steps.forward[0].allocates
    assert "kept" in steps.backward[1].frees


def test_backward_in_one_piece() -> None:
    work = stages({"forward": "1 ms", "backward": "2 ms"}).blocks[0].operators[0].work(Workload(batch=1))
    assert (work.backward_input, work.backward_weight) == ((Fixed(0.002),), ())


def test_parameters_may_be_stated() -> None:
    assert parameter_count(stages({"forward": "1 ms", "parameters": "1.2B"})) == 1_200_000_000


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"foward": "1 ms"}, "did you mean 'forward'?"),
        ({"forward": 18.5}, "unit"),
        ({"forward": "1 GiB"}, "expected a time"),
        ({"backward": "1 ms"}, "forward is required"),
        ({"forward": "1 ms", "backward": "2 ms", "backward_weight": "1 ms"}, "give either"),
        ("fast", "a stage is a mapping"),
    ],
)
def test_what_is_wrong_is_named(entry: Any, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        stages(entry)
    assert words in str(caught.value)
    assert "model.stages[0]" in str(caught.value)


def test_stages_must_be_a_list_and_alone() -> None:
    with pytest.raises(ModelError, match="list of at least one"):
        build_model({"stages": {}}, name="wrong", base_lookup=dict)
    with pytest.raises(ModelError, match="does not go with stages"):
        build_model({"stages": [STAGE], "hidden": 5}, name="wrong", base_lookup=dict)

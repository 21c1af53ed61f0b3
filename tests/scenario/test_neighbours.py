"""A neighbour equals the scenario that the command line would make, and is refused like it."""

from __future__ import annotations

import pytest

from parsim.errors import InputError
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.scenario.neighbours import Neighbours, arguments

SAME = (
    "training", "parallelism", "runtime", "gpus", "slow", "batch_arithmetic", "bytes_per_parameter", "steps_to_train", "memory_reserve",
    "assumptions", "warnings", "collectives", "interference", "seed", "tokens", "background",
)  # fmt: skip
FLAT = {"parallel.pipeline.size": 1, "parallel.pipeline.virtual_stages": 1, "parallel.pipeline.schedule": "1f1b"}
ALONE = {"parallel.tensor.size": 1, "parallel.tensor.sequence_parallel": False}
CHANGES = [
    {},
    {"parallel.tensor.size": 4, "parallel.pipeline.size": 4, "parallel.pipeline.virtual_stages": 2},
    {"parallel.tensor.size": 2, "parallel.pipeline.size": 4, "parallel.pipeline.schedule": "zb-h1"},
    {"parallel.data.strategy": "zero1", "parallel.pipeline.size": 4, "training.recompute": "full"},
    {**FLAT, **ALONE, "parallel.data.strategy": "zero3", "training.recompute": {"blocks": 3}},
    {**FLAT, "parallel.data.strategy": "zero2", "training.offload": {"optimizer": "cpu"}, "software.profile": "deepspeed"},
    {"parallel.zero": 1, "training.mbs": 2, "parallel.pipeline.size": 4},
]


@pytest.fixture(scope="module")
def neighbours():
    return Neighbours(load("gpt3-175b-64x-a100"))


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("again", [False, True])
def test_a_neighbour_equals_the_scenario_with_overrides(neighbours, changes, again):
    for _ in range(1 + again):
        found = neighbours.built(changes)
    whole = build(neighbours.base.with_overrides(*arguments(changes)))
    for key in SAME:
        assert getattr(found, key) == getattr(whole, key), key
    assert found.scenario.settings == whole.scenario.settings
    assert found.scenario.tree == whole.scenario.tree
    assert found.scenario.hash() == whole.scenario.hash()
    assert repr(found.model) == repr(whole.model)


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel.tensor.size": 0},
        {"parallel.tensor.sizes": 2},
        {"training.recompute": "sometimes"},
        {"parallel.tensor.size": 7},
        {"training.micro_batch": 7},
        {"parallel.pipeline.schedule": "hanayo"},
        {"parallel.expert.capacity_factor": 0},
    ],
)
def test_a_wrong_neighbour_is_refused_with_the_same_findings(neighbours, changes):
    with pytest.raises(InputError) as expected:
        build(neighbours.base.with_overrides(*arguments(changes)))
    with pytest.raises(InputError) as found:
        neighbours.built(changes)
    assert [str(f) for f in found.value.findings] == [str(f) for f in expected.value.findings]


@pytest.mark.parametrize(
    "outside",
    [
        {"software.profile": "pytorch-2"},
        {"software.host.per_kernel_forward": "1 ms"},
        {"cluster.memory_reserve": "7 GiB"},
        {"cluster.nodes": 16},
        {"model": "gpt3-13b"},
    ],
)
def test_neighbours_that_differ_outside_of_training_and_parallel_share_nothing(neighbours, outside):
    changes = {"training.recompute": "none", "parallel.tensor.size": 4}
    neighbours.built(changes)
    found, whole = neighbours.built({**changes, **outside}), build(neighbours.base.with_overrides(*arguments({**changes, **outside})))
    for key in SAME:
        assert getattr(found, key) == getattr(whole, key), key
    assert repr(found.model) == repr(whole.model)
    assert found.cluster.nodes == whole.cluster.nodes


def test_what_neighbours_share_is_one_object(neighbours):
    one, other = (neighbours.built({"training.recompute": word}) for word in ("none", "full"))
    assert one.cluster is other.cluster
    assert one.model is other.model

"""Groups of a whole stage at a time are those of its ranks one by one."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import PlanError
from parsim.parallel.mesh import Mesh
from parsim.program.groups import group, groups_of, sends_of

AXES = ("tensor", "context", "data", "pipeline")
KNOWN = ("tensor", "context", "data", "shard", "replica", "model", "world", "offload")


@st.composite
def plans(draw):
    """What groups ask of a plan: a mesh in any order, and shard groups that divide the replicas."""
    order = draw(st.permutations(AXES))
    mesh = Mesh(tuple(order), tuple(draw(st.integers(1, 4)) for _ in AXES))
    replicas = mesh.size("data") * mesh.size("context")
    shard = draw(st.sampled_from([size for size in range(1, replicas + 1) if replicas % size == 0]))
    return SimpleNamespace(mesh=mesh, shard_size=shard, replicas=replicas)


@given(plans(), st.data())
def test_every_group_once_and_no_other(plan, data):
    stage = data.draw(st.integers(0, plan.mesh.size("pipeline") - 1))
    other = data.draw(st.integers(0, plan.mesh.size("pipeline") - 1))
    axes = [*KNOWN, f"tied-{stage}-{other}"] if other != stage else KNOWN
    for axis in axes:
        expected = sorted({group(plan, axis, rank) for rank in plan.mesh.at(pipeline=stage)})
        assert sorted(map(tuple, groups_of(plan, axis, stage).tolist())) == expected
    sends = [(rank, plan.mesh.move(rank, "pipeline", other)) for rank in plan.mesh.at(pipeline=stage)]
    assert list(map(tuple, sends_of(plan, stage, other).tolist())) == sends


@given(plans())
def test_coordinates_are_those_of_every_rank(plan):
    for axis in AXES:
        assert plan.mesh.coordinates(axis) == [plan.mesh.coordinate(rank, axis) for rank in range(plan.mesh.ranks)]


def test_an_unknown_axis_is_an_error():
    plan = SimpleNamespace(mesh=Mesh(AXES, (2, 1, 2, 2)), shard_size=2, replicas=2)
    with pytest.raises(PlanError, match="which is no axis"):
        groups_of(plan, "nonsense", 0)

"""Groups of a whole stage at a time are those of its ranks one by one; an axis of parts of others needs one row of the table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import PlanError
from parsim.parallel.groups import AXES, DATA, PIPELINE, REPLICATING, Groups, Mesh, ProcessGroups


@st.composite
def groupings(draw):
    """A mesh in any order, and shard groups that divide the replicas."""
    order = draw(st.permutations(AXES))
    mesh = Mesh(tuple(order), tuple(draw(st.integers(1, 4)) for _ in AXES))
    shard = draw(st.sampled_from([size for size in range(1, mesh.replicas + 1) if mesh.replicas % size == 0]))
    return Groups(mesh, shard)


@given(groupings(), st.data())
def test_every_group_once_and_no_other(groups, data):
    mesh = groups.mesh
    stage = data.draw(st.integers(0, mesh.size(PIPELINE) - 1))
    other = data.draw(st.integers(0, mesh.size(PIPELINE) - 1))
    names = [*groups.table, f"tied-{stage}-{other}"] if other != stage else groups.table
    for name in names:
        expected = sorted({groups.members(name, rank) for rank in mesh.at(pipeline=stage)})
        assert sorted(map(tuple, groups.rows(name, stage).tolist())) == expected
    sends = [(rank, mesh.move(rank, PIPELINE, other)) for rank in mesh.at(pipeline=stage)]
    assert list(map(tuple, groups.sends(stage, other).tolist())) == sends


@given(groupings())
def test_groups_of_a_name_divide_the_ranks(groups):
    for name in groups.table:
        members = {groups.members(name, rank) for rank in range(groups.mesh.ranks)}
        assert sorted(rank for group in members for rank in group) == list(range(groups.mesh.ranks))
        assert all(rank in groups.members(name, rank) for rank in range(groups.mesh.ranks))


@given(groupings())
def test_coordinates_are_those_of_every_rank(groups):
    mesh = groups.mesh
    for axis in AXES:
        assert mesh.coordinates(axis) == [mesh.coordinate(rank, axis) for rank in range(mesh.ranks)]


def test_hybrid_shards_by_hand():
    groups = Groups(Mesh(AXES, (2, 1, 4, 1)), shard_size=2)
    assert groups.members("shard", 0) == (0, 2)
    assert groups.members("replica", 0) == (0, 4)
    assert groups.members(DATA, 0) == (0, 2, 4, 6)


def test_an_axis_inside_others_is_a_row_of_the_table():
    """Experts on every second of the ranks along context and data, as another grid over the same ranks."""
    groups = Groups(Mesh(AXES, (2, 2, 4, 1)), shard_size=8)
    experts = tuple(tuple(range(place, 8, 2)) for place in range(2))
    groups.table["expert"] = ProcessGroups(REPLICATING, "expert", experts)
    assert groups.members("expert", 0) == (0, 4, 8, 12)
    assert groups.members("expert", 3) == (3, 7, 11, 15)
    assert groups.rows("expert", 0).tolist() == [[0, 4, 8, 12], [2, 6, 10, 14], [1, 5, 9, 13], [3, 7, 11, 15]]
    assert groups.timed("expert") == "expert"


def test_an_unknown_axis_is_an_error():
    with pytest.raises(PlanError, match="which is no axis"):
        Groups(Mesh(AXES, (2, 1, 2, 2)), shard_size=2).rows("nonsense", 0)

"""Stamps: rows that are added at once are the ops that `Program.add` would add one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parsim.program.program import Lane, OpSpec, Program, StampBuilder

LANES = [Lane(rank, name) for rank in range(2) for name in ("compute", "data")]
ROWS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(LANES), min_size=1, max_size=3, unique=True),
        st.lists(st.integers(1, 3), max_size=2),
        st.lists(st.sampled_from(LANES), max_size=1),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
"""per row: lanes, rows back that it needs, lanes it stands behind, whether it waits for the compute before the stamp"""


def edges(program):
    return sorted(zip(*(column.tolist() for column in program.edges()), strict=True))


@given(st.lists(ROWS, min_size=1, max_size=3), st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_a_stamp_is_its_rows_added_one_by_one(passes, order):
    stamped, plain = Program(), Program()
    stamps = []
    for rows in passes:
        builder = StampBuilder(stamped)
        for place, (lanes, back, behind, waits) in enumerate(rows):
            needs = [place - b for b in back if b <= place]
            builder.add(OpSpec(f"row {place}", "compute", tuple(lanes)), needs, behind, [LANES[0]] if waits else [])
        stamps.append(builder.finish())
    for instance, which in enumerate(place % len(passes) for place in order):
        origin, before = len(plain.ops), plain.last(LANES[0])
        assert stamped.stamp(stamps[which], instance) == origin
        for place, (lanes, back, behind, waits) in enumerate(passes[which]):
            needs = [plain.ops[origin + place - b] for b in back if b <= place]
            tails = [plain.last(lane) for lane in behind] + [before] * waits
            plain.add(f"row {place}", "compute", tuple(lanes), [*needs, *filter(None, tails)], instance=instance)
    assert [(op.name, op.lanes, op.instance) for op in stamped.ops] == [(op.name, op.lanes, op.instance) for op in plain.ops]
    assert edges(stamped) == edges(plain)
    assert stamped.blockers == plain.blockers
    assert [stamped.last(lane) and stamped.last(lane).index for lane in LANES] == [
        plain.last(lane) and plain.last(lane).index for lane in LANES
    ]
    assert stamped.instances().tolist() == [op.instance for op in plain.ops]

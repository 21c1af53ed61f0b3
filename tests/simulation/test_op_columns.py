"""Ops as columns, against a loop over the ops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parsim.program.program import Collective, Effect, Lane, Program
from parsim.simulation.op_columns import OpColumns

LANES = [(Lane(0, "compute"),), (Lane(0, "compute"), Lane(0, "tensor")), (Lane(1, "compute"),), (Lane(0, "data"), Lane(1, "data"))]
TRANSFERS = [None, None, Collective("all_reduce", "data", (0, 1), 8), Collective("all_reduce", "data", (0, 1), 8)]
EFFECTS = [(), ((0, (Effect(0.0, 0, allocate=True),)),), ((1, (Effect(0.0, 0, allocate=True),)),)]
RESULTS = st.tuples(
    st.sampled_from(["F0 layer", "B0 layer"]), st.sampled_from(["compute", "recompute"]), st.sampled_from([1.0, 2.0]),
    st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.integers(-1, 3),
)  # fmt: skip


@given(st.lists(RESULTS, max_size=40))
def test_kinds_are_what_a_loop_finds(rows):
    program = Program()
    for name, kind, seconds, lanes, transfer, effects, instance in rows:
        program.add(name, kind, LANES[lanes], (), seconds, TRANSFERS[transfer], EFFECTS[effects], instance)
    ops, columns = program.ops, OpColumns(program)

    def same(op):
        return op.spec

    assert columns.instance.tolist() == [op.instance for op in ops]
    assert columns.duration.tolist() == [op.duration for op in ops]
    assert [same(columns.examples[kind]) for kind in columns.kind.tolist()] == list(map(same, ops))
    assert len(columns.examples) == len(set(map(same, ops)))
    assert [op.index for op in columns.examples] == [
        next(op.index for op in ops if same(op) == kind) for kind in dict.fromkeys(map(same, ops))
    ]
    for kinds in ([], [0], list(range(len(columns.examples)))[::-2]):
        known = [kind for kind in kinds if kind < len(columns.examples)]
        assert columns.of(known).tolist() == [op.index for op in ops if columns.kind[op.index] in known]
    assert columns.flags(lambda op: op.collective is not None).tolist() == [op.collective is not None for op in ops]
    grouped = columns.grouped(lambda op: op.name)
    assert np.array_equal(grouped[:, None] == grouped[None, :], [[a.name == b.name for b in ops] for a in ops]) or not ops

"""Ops that take other times than planned: exact makespans of disturbed pipelines, laws, and transfers in a shared network."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine import Fabric, compute, order_1f1b, order_gpipe, pipeline, programs, send

from parsim.errors import ParsimError
from parsim.program.program import Collective, Lane, Program
from parsim.simulation.engine import Engine
from parsim.simulation.longest_path import Chains, ends


def makespan(program, factors=None, fabric=None):
    return Engine(program, fabric or Fabric(), factors=factors).run().makespan


def longest(program, factors):
    """The same as a longest path."""
    chains = Chains(program)
    seconds = np.zeros((chains.count, 1, 1))
    for op, factor in zip(program.ops, factors, strict=True):
        seconds[chains.node[op.index]] += op.duration * factor
    ends(chains.order(), list(seconds))
    return float(seconds.max())


def slow_stage(order, stages, micro_batches, stage, factor):
    program = pipeline(order, stages, micro_batches)
    return program, [factor if op.lanes == compute(stage) else 1.0 for op in program.ops]


@pytest.mark.parametrize(
    ("order", "stages", "micro_batches", "stage", "factor", "expected"),
    [
        *((order_1f1b, 4, 8, q, 1.2, end) for q, end in enumerate((36.0, 36.6, 37.2, 37.8))),
        *((order_gpipe, 4, 8, q, 1.2, 37.8) for q in range(4)),
        *((order_1f1b, 4, 8, q, 3.0, end) for q, end in enumerate((72.0, 75.0, 78.0, 81.0))),
        (order_1f1b, 16, 64, 7, 1.1, 253.8),
    ],
)
def test_a_slow_stage_of_a_pipeline(order, stages, micro_batches, stage, factor, expected):
    """(m + p - 1) T + (f - 1) T m in GPipe; in 1F1B (f - 1) T (m - (p - 1 - q)) for f <= 1 + tF / tB: stages hide some in their fill."""
    program, factors = slow_stage(order, stages, micro_batches, stage, factor)
    assert makespan(program, factors) == pytest.approx(expected, rel=1e-12)
    assert longest(program, factors) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("kind", "number", "pause", "expected"), [("B", 0, 3.0, 36.0), ("F", 3, 3.0, 33.0), ("F", 4, 1.0, 34.0)])
def test_a_pause_on_the_first_stage(kind, number, pause, expected):
    """What falls into the stage's own wait for the first gradient costs nothing."""
    program = pipeline(order_1f1b, 4, 8)
    struck = next(op for op in program.ops if op.lanes == compute(0) and op.name == kind and op.instance == number)
    factors = [1.0] * len(program.ops)
    factors[struck.index] += pause / struck.duration
    assert makespan(program, factors) == pytest.approx(expected, rel=1e-12)


@given(programs(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_longer_ops_never_end_a_step_earlier_and_longest_paths_are_runs_by_events(program, random):
    factors = [1.0 + random.random() * random.choice((0.0, 1.0)) for _ in program.ops]
    end = makespan(program, factors)
    assert end >= makespan(program)
    assert longest(program, factors) == pytest.approx(end, rel=1e-12)


def test_jitter_of_what_is_hidden_leaves_the_step_as_it_is():
    program = Program()
    program.add("long", "compute", compute(0), duration=2.0)
    hidden = program.add("short", "compute", compute(1), duration=1.0)
    program.add("both", "compute", (*compute(0), *compute(1)), duration=1.0)
    for factor in (0.5, 1.0, 1.999):
        assert makespan(program, [factor if op == hidden else 1.0 for op in program.ops]) == 3.0


def transfers(count):
    program = Program()
    for number in range(count):
        program.add("x", "data_comm", (Lane(number, "data"),), collective=Collective("x", "data", (number, number + 8), 1), instance=number)
    return program


def test_a_factor_is_of_the_time_that_a_transfer_takes_alone():
    fabric = Fabric({"x": send(1e9, cap=25e9, latency=0.1)})
    assert makespan(transfers(1), [1.5], fabric) == pytest.approx(1.5 * (0.1 + 0.04), rel=1e-12)


def test_transfers_that_share_a_link_share_it_with_their_own_bytes():
    """Two at 12.5 GB/s each; the longer one has the link alone once the shorter one has ended."""
    fabric = Fabric({"x": send(1e9, cap=25e9)})
    assert makespan(transfers(2), [1.0, 1.0], fabric) == pytest.approx(0.08, rel=1e-12)
    trace = Engine(transfers(2), fabric, factors=[1.0, 1.5]).run()
    assert list(trace.end) == pytest.approx([0.08, 0.1], rel=1e-12)
    assert trace.links[0].bytes == pytest.approx(2.5e9)


def test_no_factors_and_factors_of_one_are_the_same_to_the_last_bit():
    program = pipeline(order_1f1b, 4, 8, latency=0.3)
    plain, scaled = (Engine(program, Fabric(), factors=factors).run() for factors in (None, [1.0] * len(program.ops)))
    assert (plain.start, plain.end, plain.links) == (scaled.start, scaled.end, scaled.links)


@pytest.mark.parametrize("factor", [0.0, -1.0, nan, inf])
def test_a_factor_that_is_none(factor):
    with pytest.raises(ParsimError, match=r"factor of <Op 0 F#0> .* must be finite and > 0"):
        makespan(pipeline(order_1f1b, 1, 1), [factor, 1.0])
    with pytest.raises(ParsimError, match="1 factors for 2 ops"):
        makespan(pipeline(order_1f1b, 1, 1), [1.0])

"""Breakdown, bubbles and the two ranks that the report singles out."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from work import calls

from parsim.program.program import Lane, Program
from parsim.report.critical_path import binding, critical_path
from parsim.report.timeline import (
    KEYS,
    Timeline,
    bottleneck_rank,
    breakdown,
    breakdown_rank,
    bubble_fraction,
    bubble_over_ideal,
    sweep,
    union,
)
from parsim.run import simulate
from parsim.simulation.trace import Trace


def rows(timeline):
    return {rank: breakdown(timeline, rank) for rank in timeline.ranks}


def test_every_class_of_time_has_the_length_that_can_be_read_off(overlap):
    timeline = Timeline(overlap)
    assert timeline.makespan == 18.0
    row = {key: value for key, value in breakdown(timeline, 0).items() if value}
    # 0-4 F, 4-5 tensor, 5-6 R, 6-10 B, 10-13 bucket 1 (offload beside it from 12), 13-14 offload, 14-14.5 launch,
    # 14.5-15 bubble, 15-16 optimizer, 16-18 gather
    assert row == {
        "compute": 8.0, "tensor_comm": 1.0, "recompute": 1.0, "data_comm": 5.0, "offload": 1.0, "launch": 0.5, "bubble": 0.5,
        "optimizer": 1.0,
    }  # fmt: skip
    # rank 1 waits 3-4 for its partner, 14-16 for rank 0 before the gather
    assert breakdown(timeline, 1) == dict.fromkeys(KEYS, 0.0) | {
        "compute": 8.0, "tensor_comm": 1.0, "data_comm": 5.0, "optimizer": 1.0, "bubble": 3.0,
    }  # fmt: skip


def test_a_window_takes_its_part_only(overlap):
    row = breakdown(Timeline(overlap), 0, 4.5, 12.5)
    assert {key: value for key, value in row.items() if value} == {
        "tensor_comm": 0.5, "recompute": 1.0, "compute": 4.0, "data_comm": 2.5,
    }  # fmt: skip


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "count", "makespan"), [(4, 8, 33), (4, 4, 21), (4, 16, 57), (8, 16, 69), (2, 4, 15)])
def test_bubbles_are_the_published_ones(run, make_pipeline, orders, schedule, stages, count, makespan):
    """(p-1)/(m+p-1) and (p-1)/m: GPipe (arXiv:1811.06965), PipeDream-Flush (arXiv:2104.04473)."""
    timeline = Timeline(run(make_pipeline(stages, count, orders[schedule])))
    assert timeline.makespan == makespan
    table, counts = rows(timeline), dict.fromkeys(timeline.ranks, 1)
    assert bubble_fraction(table, counts) == pytest.approx((stages - 1) / (count + stages - 1), rel=1e-12)
    assert bubble_over_ideal(table, counts) == pytest.approx((stages - 1) / count, rel=1e-12)


def test_counts_weigh_the_classes():
    table = {0: {"bubble": 1.0, "compute": 1.0}, 4: {"bubble": 0.0, "compute": 2.0}}
    assert bubble_fraction(table, {0: 1, 4: 3}) == 0.125
    assert bubble_over_ideal(table, {0: 1, 4: 3}) == pytest.approx(1 / 7)
    assert bubble_over_ideal({0: {"bubble": 2.0, "compute": 0.0}}, {0: 1}) is None


def test_latency_of_sends_is_pipeline_communication(run, make_pipeline):
    """p = 4, m = 8, c = 0.5: 41 s, and no instant of a rank is lost."""
    timeline = Timeline(run(make_pipeline(4, 8, send=0.5)))
    assert timeline.makespan == 41.0
    for row in rows(timeline).values():
        assert row["compute"] == 24.0
        assert row["pipeline_comm"] > 0.0
        assert sum(row.values()) == pytest.approx(41.0, abs=1e-9)


def test_the_rank_whose_optimizer_ends_last_is_broken_down(overlap, run, make_pipeline):
    timeline = Timeline(overlap)
    table = {rank: breakdown(timeline, rank) for rank in (0, 1)}
    assert breakdown_rank(timeline, table) == 0
    assert bottleneck_rank(table) == 0  # 8 s of compute each, but rank 0 recomputes
    even = Timeline(run(make_pipeline(4, 8, optimizer=1.0)))
    assert breakdown_rank(even, rows(even)) == 0  # the first stage drains last
    no_step = Timeline(run(make_pipeline(4, 8)))
    assert breakdown_rank(no_step, rows(no_step)) == 0


def test_ties_go_to_the_rank_that_computes_most_then_to_the_lowest(run):
    program = Program()
    for rank, work in ((0, 1.0), (1, 3.0), (2, 3.0)):
        wait = program.add("wait", "offload", (Lane(rank, "copy"),), duration=4.0)
        program.add("F", "compute", (Lane(rank, "compute"),), duration=work)
        program.add("optimizer", "optimizer", (Lane(rank, "compute"),), needs=[wait], duration=1.0)
    timeline = Timeline(run(program))
    assert breakdown_rank(timeline, rows(timeline)) == 1
    assert bottleneck_rank(rows(timeline)) == 1


def test_unknown_classes_are_other_and_named(run):
    program = Program()
    program.add("read", "data_loading", (Lane(0, "compute"),), duration=2.0)
    timeline = Timeline(run(program))
    assert breakdown(timeline, 0)["other"] == 2.0
    assert timeline.unknown_kinds == ("data_loading",)


def test_critical_path_of_the_overlap_program(overlap):
    path = critical_path(Timeline(overlap))
    # F, tensor, R, B, B of rank 0 would end at 10; the chain that binds is the timer, the copy, the host, the timer.
    expected = {"other": 12.5, "offload": 2.0, "launch": 0.5, "optimizer": 1.0, "data_comm": 2.0}
    assert {key: value for key, value in path.seconds.items() if value} == expected
    assert [overlap.program.ops[index].name for index in path.ops] == [
        "gather", "optimizer", "delay", "launch", "copy", "delay",
    ]  # fmt: skip


def test_ties_on_the_critical_path_go_to_the_own_lane(run):
    program = Program()
    mine = program.add("F", "compute", (Lane(0, "compute"),), duration=2.0)
    other = program.add("send", "pipeline_comm", (Lane(1, "send"),), duration=2.0)
    program.add("B", "compute", (Lane(0, "compute"),), needs=[other], duration=1.0)
    assert critical_path(Timeline(run(program))).ops[1] == mine.index


def test_gaps_on_the_critical_path_are_launch(run):
    trace = run(_chain())
    late = type(trace)(trace.program, [0.5, 2.0], [1.5, 3.0])
    path = critical_path(Timeline(late))
    assert path.seconds["launch"] == 1.0
    assert path.seconds["compute"] == 2.0


def test_a_lane_is_in_the_order_in_which_its_ops_ran():
    """The norm of the gradients meets two stages: it has the number that the first one gave it, before the last ops of the second."""
    tree = {
        "model": {"base": "llama-3.2-1b", "layers": 2},
        "cluster": {"topology": "dgx-a100-80gb", "gpus": 4},
        "training": {"sequence_length": 64, "micro_batch": 1, "gradient_accumulation": 2},
        "parallel": {"pipeline": {"size": 2, "overlap_sends": False}},
    }
    report = simulate(tree)
    timeline = report.timeline
    for rank in timeline.ranks:
        lane = timeline.lane(rank)
        assert (timeline.start[lane][1:] >= timeline.end[lane][:-1]).all()
    for row in report.collectives:
        assert row.exposed_s <= row.busy_s * (1 + 1e-9)


def test_rounding_does_not_change_the_order_of_a_lane():
    """An op that takes no time may begin an ulp after its successor did; it stays where it is."""
    program = Program()
    lanes = (Lane(0, "compute"),)
    for duration in (2.0, 0.0, 1.0, 0.0):
        program.add("op", "compute", lanes, (), duration)
    late = float(np.nextafter(2.0, 3.0))
    assert Timeline(Trace(program, [0.0, late, 2.0, 3.0], [2.0, late, 3.0, 3.0])).lane(0).tolist() == [0, 1, 2, 3]


def _chain():
    program = Program()
    for name in ("F", "B"):
        program.add(name, "compute", (Lane(0, "compute"),), duration=1.0)
    return program


def test_the_critical_path_of_a_pipeline_is_all_compute(run, make_pipeline):
    path = critical_path(Timeline(run(make_pipeline(4, 8))))
    assert path.seconds["compute"] == 33.0
    latent = critical_path(Timeline(run(make_pipeline(4, 8, send=0.5))))
    assert sum(latent.seconds.values()) == pytest.approx(41.0, abs=1e-9)
    assert latent.seconds["bubble"] == 0.0
    assert latent.seconds["pipeline_comm"] > 0.0


@st.composite
def programs(draw):
    program, ranks = Program(), draw(st.integers(1, 3))
    kinds = ["compute", "recompute", "optimizer", "tensor_comm", "data_comm", "offload", "launch"]
    lanes = [Lane(rank, name) for rank in range(ranks) for name in ("compute", "tensor", "data")]
    for _ in range(draw(st.integers(1, 25))):
        chosen = draw(st.lists(st.sampled_from(lanes), min_size=1, max_size=3, unique=True))
        needs = draw(st.lists(st.sampled_from(program.ops), max_size=2)) if program.ops else []
        duration = draw(st.sampled_from((0.0, 1.0, 2.0)) | st.floats(0, 3, allow_subnormal=False))
        program.add("op", draw(st.sampled_from(kinds)), tuple(chosen), needs, duration)
    return program


def brute_force(timeline, rank, times):
    """Class of each instant by looking at every op."""
    beside = ("tensor_comm", "expert_comm", "context_comm", "pipeline_comm", "data_comm", "offload", "optimizer", "compute",
              "recompute", "other", "launch")  # fmt: skip
    found = []
    for time in times:
        running = [op for op in timeline.program.ops if timeline.start[op.index] <= time < timeline.end[op.index]]
        on_lane = [op.kind for op in running if Lane(rank, "compute") in op.lanes]
        own = [op.kind for op in running if any(lane.rank == rank for lane in op.lanes)]
        found.append((on_lane + sorted(own, key=beside.index) + ["bubble"])[0])
    return found


@settings(max_examples=60, deadline=None)
@given(programs())
def test_breakdown_and_critical_path_sum_to_the_step(run_program, program):
    timeline = Timeline(run_program(program))
    end = timeline.makespan
    for rank in timeline.ranks:
        row = breakdown(timeline, rank)
        assert sum(row.values()) == pytest.approx(end, abs=1e-9)
        assert min(row.values()) >= 0.0
        points = np.unique(np.concatenate((timeline.start, timeline.end)))
        middles, lengths = (points[1:] + points[:-1]) / 2, np.diff(points)
        expected = dict.fromkeys(KEYS, 0.0)
        for kind, length in zip(brute_force(timeline, rank, middles), lengths, strict=True):
            expected[kind] += length
        assert row == pytest.approx(expected, abs=1e-9)
        halves = [breakdown(timeline, rank, 0.0, end / 2), breakdown(timeline, rank, end / 2, end)]
        assert {key: sum(half[key] for half in halves) for key in KEYS} == pytest.approx(row, abs=1e-9)
    path = critical_path(timeline)
    assert sum(path.seconds.values()) == pytest.approx(end, abs=1e-9)
    assert path.seconds["bubble"] == 0.0
    assert path.begin[:-1] == pytest.approx(path.end[1:])


def obvious_binding(timeline, after):
    """The blocker that ended last; of those that tie the one on the same compute lane, then on another lane, then the first."""
    blockers = [op for op in timeline.program.ops if after in op.after]
    if not blockers:
        return -1
    last = max(timeline.end[op.index] for op in blockers)

    def place(op):
        shared = [lane for lane in op.lanes if lane in after.lanes]
        return (not any(lane.name == "compute" for lane in shared), not shared, op.index)

    return min((op for op in blockers if timeline.end[op.index] >= last - timeline.tolerance), key=place).index


@settings(max_examples=60, deadline=None)
@given(programs())
def test_the_path_takes_the_blocker_that_ended_last(run_program, program):
    timeline = Timeline(run_program(program))
    expected = [obvious_binding(timeline, op) for op in program.ops]
    assert binding(timeline).tolist() == expected
    path = critical_path(timeline)
    assert [expected[index] for index in path.ops[:-1]] == path.ops[1:].tolist()
    spent = {kind: (seconds, count) for kind, seconds, count in path.by_kind(timeline)}
    for kind, (seconds, count) in spent.items():
        own = timeline.columns.kind[path.ops] == kind
        assert (seconds, count) == (pytest.approx((path.end - path.begin)[own].sum()), own.sum())
    assert sum(count for _, count in spent.values()) == len(path)


@pytest.fixture(scope="module", name="run_program")
def run_program_fixture():
    def run(program):
        from parsim.simulation.trace import Trace

        start, end = [0.0] * len(program.ops), [0.0] * len(program.ops)
        for op in program.ops:  # every edge points forward here
            end[op.index] = start[op.index] + op.duration
            for other in op.after:
                start[other.index] = max(start[other.index], end[op.index])
        return Trace(program, start, end)

    return run


def test_sweep_names_the_top_layer():
    layers = [(np.array([1.0]), np.array([2.0])), (np.array([0.5, 1.5]), np.array([1.5, 3.0]))]
    times, top = sweep(layers, 0.0, 4.0)
    pieces = [(a, b, int(c)) for a, b, c in zip(times, times[1:], top, strict=False) if b > a]
    assert pieces == [(0.0, 0.5, -1), (0.5, 1.0, 1), (1.0, 2.0, 0), (2.0, 3.0, 1), (3.0, 4.0, -1)]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4))))
def test_a_union_covers_the_same_time_with_few_intervals(intervals):
    starts, ends = union(
        np.array([begin for begin, _ in intervals], float), np.array([begin + length for begin, length in intervals], float)
    )
    covered = {time for begin, length in intervals for time in range(begin, begin + length)}
    assert {time for begin, end in zip(starts, ends, strict=True) for time in range(int(begin), int(end))} == covered
    assert (starts < ends).all()
    assert (ends[:-1] < starts[1:]).all()


def test_an_empty_trace_has_no_time(run):
    timeline = Timeline(run(Program()))
    assert timeline.makespan == 0.0
    assert sum(breakdown(timeline, 0).values()) == 0.0
    assert len(critical_path(timeline)) == 0


def test_a_program_is_indexed_in_fewer_calls_than_it_has_ops(run_program):
    rng = random.Random(0)
    program = Program()
    lanes = [(Lane(rank, "compute"),) for rank in range(16)]
    for index in range(20_000):
        program.add("F", "compute", lanes[index % 16], duration=rng.choice((0.5, 1.0, 1.7)))
    trace = run_program(program)

    def index():
        timeline = Timeline(trace)
        assert len(rows(timeline)) == 16
        critical_path(timeline)

    assert calls(index) < len(program.ops)

"""Spans of the page's timeline: nothing overlaps, causes are those of the critical path, budgets leave out in words."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from parsim.program.program import Lane, Program
from parsim.report import Report
from parsim.report.critical_path import binding, critical_path
from parsim.report.page import payload as payloads
from parsim.report.page.columns import unpack
from parsim.report.page.merged import merged
from parsim.report.page.payload import payload
from parsim.report.page.spans import spans_of, ticks_per_second, visible


@pytest.fixture(name="report")
def report_fixture(run, make_pipeline, make_measured):
    return Report(make_measured(run(make_pipeline(4, 8, send=0.3, optimizer=0.5)), 4))


def chain(spans, span):
    found = [span]
    while spans.cause[found[-1]] >= 0:
        found.append(int(spans.cause[found[-1]]))
    return found[::-1]


def test_rows_never_overlap_and_cover_the_trace(report):
    spans = spans_of(report, [0, 1, 2, 3])
    assert spans.ticks_per_second == 10**9
    for row in spans.rows:
        own = slice(row.first, row.first + row.count)
        assert (spans.end[own] > spans.start[own]).all()
        assert (spans.end[own][:-1] <= spans.start[own][1:]).all()
    compute = [row for row in spans.rows if row.kind == "compute"]
    assert [row.count for row in compute] == [17, 17, 17, 17]  # 8 forwards, 8 backwards, a step
    busy = sum(int((spans.end[r.first : r.first + r.count] - spans.start[r.first : r.first + r.count]).sum()) for r in compute)
    assert busy == 4 * (8 * 1 + 8 * 2) * 10**9 + 4 * 5 * 10**8
    sends = [row for row in spans.rows if row.kind == "pipeline_comm"]
    assert sum(row.count for row in sends) == 2 * 2 * 3 * 8  # sender and receiver


def test_causes_walk_back_like_the_critical_path(report):
    causes = binding(report.timeline)
    path = critical_path(report.timeline).ops.tolist()
    assert [int(causes[index]) for index in path[:-1]] == path[1:]
    spans = spans_of(report, [0, 1, 2, 3])
    assert len(spans.critical) == len(path)
    last = int(spans.critical[-1])
    walked = chain(spans, last)
    ops = [(int(spans.start[i]), int(spans.end[i]), int(spans.what[i]), int(spans.instance[i])) for i in walked]
    assert ops == [(int(spans.start[i]), int(spans.end[i]), int(spans.what[i]), int(spans.instance[i])) for i in spans.critical]
    assert all(spans.end[a] <= spans.start[b] for a, b in pairwise(walked))
    assert spans.start[walked[0]] == 0


def test_chains_lead_through_what_is_not_shown(report):
    everything = np.ones(len(report.timeline.start), dtype=bool)
    causes = binding(report.timeline)
    assert (visible(causes, everything) == causes).all()
    assert (visible(causes, ~everything) == -1).all()
    spans = spans_of(report, [0, 3])  # stages 1 and 2 are left out
    first_of_last = next(row.first for row in spans.rows if row.rank == 3 and row.kind == "compute")
    assert spans.start[chain(spans, first_of_last)[0]] == 0


def test_parts_that_nothing_hides(overlap, make_measured):
    report = Report(make_measured(overlap, 2, micro_batches=1))
    spans = spans_of(report, [0, 1])
    found = {}
    for row in spans.rows:
        for place in range(row.first, row.first + row.count):
            if row.rank == 0 and row.kind.endswith("_comm"):
                found[spans.whats[spans.what[place]].name] = int(spans.share[place])
    # the tensor all_reduce holds the compute lane, bucket 0 runs under B, bucket 1 and the gather have nothing beside them
    assert found == {"all_reduce L0": 255, "bucket 0": 0, "bucket 1": 255, "gather": 255}


def test_short_steps_get_finer_ticks():
    assert [ticks_per_second(length) for length in (10.0, 1e-3, 1e-4, 0.0)] == [10**9, 10**9, 10**10, 10**9]


def test_columns_give_the_spans_back(report):
    data = payload(report)
    spans = spans_of(report, [0, 1, 2, 3])
    columns = unpack(data.packed)
    start, end = [], []
    for _, _, first, count, *_ in data.facts["rows"]:
        at = 0
        for i in range(first, first + count):
            at += columns["gap"][i]
            start.append(at)
            at += columns["length"][i] + spans.whats[columns["what"][i]].nominal
            end.append(at)
    assert start == spans.start.tolist()
    assert end == spans.end.tolist()
    assert (np.arange(len(spans)) - columns["cause"])[columns["cause"] != 0].tolist() == spans.cause[spans.cause >= 0].tolist()
    assert np.cumsum(columns["critical"]).tolist() == spans.critical.tolist()


def test_merging_keeps_work_and_order(run, make_pipeline, make_measured, kernels):
    report = Report(make_measured(run(kernels), 2, micro_batches=3))
    whole = spans_of(report, [0, 1])
    few = merged(whole)
    assert (len(whole), len(few)) == (2 * 3 * 5, 2 * 3 * 2)
    work = lambda spans: float(((spans.end - spans.start) * (spans.busy / 255)).sum())  # noqa: E731
    assert work(few) == pytest.approx(work(whole), rel=2e-3)  # shares are of 255 parts
    backward = next(what for what in few.whats if what.slot.startswith("B"))
    assert (backward.name, backward.merged, backward.again) == ("B0", 3, 0.25)
    assert few.start.min() == 0
    assert few.end.max() == whole.end.max()
    assert (few.cause != np.arange(len(few))).all()


@pytest.fixture(name="kernels")
def kernels_fixture():
    """Two ranks, three micro-batches: F of two kernels; B of a recomputation of 1 s and two kernels of 1 s and 2 s, a wait between."""
    from parsim.program.program import Lane, Program

    program = Program()
    for instance in range(3):
        for rank in range(2):
            lane = (Lane(rank, "compute"),)
            for name in ("F0 layer 0", "F0 layer 1"):
                program.add(name, "compute", lane, duration=1.0, instance=instance)
        for rank in range(2):
            lane = (Lane(rank, "compute"),)
            program.add("R0 layer 1", "recompute", lane, duration=1.0, instance=instance)
            program.add("compute", "compute", lane, duration=1.0, instance=instance)  # without a name of its own
            program.add("B0 layer 0", "compute", lane, duration=2.0, instance=instance)
    return program


def test_work_without_a_name_belongs_to_its_pass(run, make_measured, kernels):
    spans = spans_of(Report(make_measured(run(kernels), 2, micro_batches=3)), [0])
    assert [(what.name, what.role, what.slot) for what in spans.whats] == [
        ("F0 layer 0", "forward", "F0"), ("F0 layer 1", "forward", "F0"), ("R0 layer 1", "recompute", "B0"),
        ("B0 compute", "backward", "B0"), ("B0 layer 0", "backward", "B0"),
    ]  # fmt: skip


def test_too_many_spans_are_merged_and_said(run, make_measured, kernels, monkeypatch):
    report = Report(make_measured(run(kernels), 2, micro_batches=3))
    assert payload(report).note == ""
    monkeypatch.setattr(payloads, "MOST_SPANS", 20)
    data = payload(report)
    assert data.spans == 12
    assert data.note == "Showing passes only, their kernels merged; a trace (--trace) has kernels of some ranks."


def test_too_many_ranks_are_chosen_from_and_said(report, monkeypatch):
    monkeypatch.setattr(payloads, "MOST_RANKS", 3)
    data = payload(report)
    assert [rank["rank"] for rank in data.facts["ranks"]] == [0, 3]
    assert data.note == "Showing 2 of 4 kinds of ranks."


def test_memory_keeps_its_peak_when_thinned(report, monkeypatch):
    monkeypatch.setattr(payloads, "CURVE_POINTS", 4)
    monkeypatch.setattr(payloads, "CURVE_LEAST", 4)
    data = payload(report)
    columns = unpack(data.packed)
    activations = np.cumsum(columns["memory 0 activations"]) * data.facts["memory"][0]["quantum"]
    assert len(activations) < 16
    assert activations.max() == 8 * 2**30


@pytest.mark.parametrize("seed", range(8))
def test_spans_say_what_an_obvious_loop_says(run, make_measured, seed):
    """Rows take the next span that fits, and a cause is on the same rank where it can be."""
    random, program = Random(seed), Program()
    lanes = [Lane(rank, name) for rank in range(3) for name in ("compute", "data", "other data")]
    for _ in range(60):
        chosen = tuple(random.sample(lanes, random.randint(1, 2)))
        needs = random.sample(list(program.ops), min(len(program.ops), random.randint(0, 2)))
        kind = "compute" if any(lane.name == "compute" for lane in chosen) else "data_comm"
        program.add(f"op {random.randint(0, 3)}", kind, chosen, needs, float(random.randint(0, 3)), instance=random.randint(-1, 2))
    timeline = (report := Report(make_measured(run(program), 3, micro_batches=3))).timeline
    spans = spans_of(report, [0, 1, 2])
    begins, ends = (np.rint(column * spans.ticks_per_second).astype(int) for column in (timeline.start, timeline.end))
    ops, expected = [], []
    for rank in range(3):
        held = [op for op in program.ops if ends[op.index] > begins[op.index] and any(lane.rank == rank for lane in op.lanes)]
        compute = [op.index for op in held if Lane(rank, "compute") in op.lanes]
        rows = [compute]
        beside = [op.index for op in held if op.index not in compute]
        free = []
        for index in sorted(beside, key=lambda index: (begins[index], ends[index])):
            if program.ops[index].kind == "data_comm":  # what computes on the lane of another rank is not shown
                row = next((row for row in free if ends[row[-1]] <= begins[index]), None)
                if row is None:
                    free.append(row := [])
                row.append(index)
        rows += free
        expected += [(rank, len(row)) for row in rows]
        ops += [(rank, index) for row in rows for index in row]
    assert [(row.rank, row.count) for row in spans.rows] == expected
    assert spans.start.tolist() == [begins[index] for _, index in ops]
    assert [spans.whats[what].name.split()[-1] for what in spans.what] == [program.ops[index].name.split()[-1] for _, index in ops]
    shown = np.isin(np.arange(len(program.ops)), [index for _, index in ops])
    waits = visible(binding(timeline), shown)
    for place, (rank, index) in enumerate(ops):
        if waits[index] < 0:
            assert spans.cause[place] == -1
        else:
            there = [one for one, (_, op) in enumerate(ops) if op == waits[index]]
            assert spans.cause[place] == min(there, key=lambda one: (ops[one][0] != rank, one))

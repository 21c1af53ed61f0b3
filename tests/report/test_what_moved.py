"""Rows of collectives and links."""

from __future__ import annotations

import numpy as np
import pytest

from parsim.hardware.flows import CollectiveCost
from parsim.program.program import Collective, Lane, Program
from parsim.report.communication import (
    LinkClass,
    busbw_factor,
    busiest,
    collective_rows,
    covered,
    link_rows,
    unused_links,
)
from parsim.report.timeline import Timeline
from parsim.simulation.trace import LinkUse


def test_bus_bandwidth_factors_are_those_of_nccl_tests():
    """nccl-tests doc/PERFORMANCE.md."""
    assert busbw_factor("all_reduce", 8) == 1.75
    assert busbw_factor("all_gather", 8) == busbw_factor("reduce_scatter", 8) == busbw_factor("all_to_all", 8) == 0.875
    assert busbw_factor("broadcast", 8) == busbw_factor("reduce", 8) == busbw_factor("send", 2) == 1.0
    assert busbw_factor("all_reduce", 1) == 0.0


def test_rows_of_the_overlap_program(overlap):
    rows = collective_rows(Timeline(overlap), 0, lambda collective: CollectiveCost(0.0, (), "ring", "ll128"))
    assert [(row.axis, row.kind, row.group_size, row.count, row.bytes) for row in rows] == [
        ("tensor", "all_reduce", 2, 1, 4_000_000),
        ("data", "all_gather", 2, 1, 2_000_000),
        ("data", "all_reduce", 2, 2, 8_000_000),
    ]
    tensor, gather, reduce = rows
    # blocking: exposed from start to end; rank 0 arrives last, rank 1 waits a second
    assert (tensor.busy_s, tensor.exposed_s, tensor.wait_s) == (1.0, 1.0, 0.0)
    assert collective_rows(Timeline(overlap), 1)[0].wait_s == 1.0
    # bucket 0 hidden under the backward 8-9, bucket 1 exposed 10-13
    assert (reduce.busy_s, reduce.exposed_s, reduce.wait_s) == (4.0, 3.0, 0.0)
    assert (gather.busy_s, gather.exposed_s, gather.wait_s) == (2.0, 2.0, 0.0)
    assert collective_rows(Timeline(overlap), 1)[1].wait_s == 2.0  # rank 1 stepped at 14, rank 0 at 16
    assert reduce.algbw_Bps == 4e6
    assert reduce.busbw_Bps == 4e6  # 2 (n - 1) / n = 1 for two ranks
    assert (tensor.algorithm, tensor.protocol) == ("ring", "ll128")


def test_a_window_counts_what_starts_in_it(overlap):
    rows = collective_rows(Timeline(overlap), 0, begin=8.0, end=16.0, scale=3.0)
    assert [(row.kind, row.count, row.busy_s, row.exposed_s) for row in rows] == [("all_reduce", 6, 12.0, 9.0)]
    assert rows[0].algorithm is None


def test_equal_collectives_of_several_groups_are_one_row(run):
    program = Program()
    for peer in (1, 2):
        send = Collective("send", "pipeline", (0, peer), 500)
        program.add("send", "pipeline_comm", (Lane(0, f"to {peer}"), Lane(peer, "from 0")), duration=1.0, collective=send)
    kinds = iter(("direct", "proxy"))
    (row,) = collective_rows(Timeline(run(program)), 0, lambda collective: CollectiveCost(0.0, (), next(kinds)))
    assert (row.count, row.busy_s, row.algbw_Bps, row.algorithm) == (2, 2.0, 500.0, "direct+proxy")


def test_receivers_do_not_wait_for_sends(run, make_pipeline):
    for rank in range(4):
        (row,) = collective_rows(Timeline(run(make_pipeline(4, 8, send=0.1))), rank)
        assert row.wait_s == pytest.approx(0.0, abs=1e-12)
    # a send that holds the compute lane of both ends makes the sender wait for the receiver
    program = Program()
    blocking = Collective("send", "pipeline", (0, 1), 8)
    for rank, duration in ((0, 1.0), (1, 3.0)):
        program.add("F", "compute", (Lane(rank, "compute"),), duration=duration)
    program.add("send", "pipeline_comm", (Lane(0, "compute"), Lane(1, "compute")), duration=1.0, collective=blocking)
    timeline = Timeline(run(program))
    assert [collective_rows(timeline, rank)[0].wait_s for rank in (0, 1)] == [2.0, 0.0]


def test_no_time_is_no_bandwidth(run):
    program = Program()
    program.add("all_reduce", "data_comm", (Lane(0, "data"),), collective=Collective("all_reduce", "data", (0,), 8))
    (row,) = collective_rows(Timeline(run(program)), 0)
    assert (row.busy_s, row.algbw_Bps, row.busbw_Bps) == (0.0, None, None)


def test_cover_is_the_length_under_the_intervals():
    starts, ends = np.array([1.0, 4.0]), np.array([2.0, 6.0])
    begin, end = np.array([0.0, 1.5, 2.0, 5.0, 0.0]), np.array([1.0, 4.5, 4.0, 9.0, 9.0])
    assert covered(starts, ends, begin, end).tolist() == [0.0, 1.0, 0.0, 1.0, 3.0]
    assert covered(np.array([]), np.array([]), begin, end).tolist() == [0.0] * 5


def test_links_are_one_row_per_class():
    up, down = LinkClass("gpu->nvswitch", "nvlink3", 2, 100.0), LinkClass("nvswitch->gpu", "nvlink3", 2, 100.0)
    nic = LinkClass("nic->leaf", "ib-hdr", 64, 10.0)
    classes = {0: up, 1: up, 2: down, 3: down, 4: nic}
    uses = {0: LinkUse(150.0, 0.5), 1: LinkUse(50.0, 0.0), 2: LinkUse(100.0, 0.0)}
    rows = link_rows(uses, classes, step_time=2.0)
    assert [(row.link, row.count, row.bytes, row.utilisation, row.saturated_s) for row in rows] == [
        ("gpu->nvswitch", 2, 150.0, 0.75, 0.5),
        ("nvswitch->gpu", 2, 100.0, 0.5, 0.0),
        ("nic->leaf", 64, 0.0, 0.0, 0.0),
    ]
    assert unused_links(uses, classes) == 65  # one downlink, and the 64 that link 4 stands for
    assert link_rows(uses, classes, 2.0, scale=0.5)[0].bytes == 75.0


def test_classes_that_look_the_same_are_shown_as_their_busiest():
    classes = {number: LinkClass("gpu->nvswitch", "nvlink3", 4, 100.0, number) for number in range(3)}
    classes[3] = LinkClass("nic->leaf", "ib-hdr", 2, 10.0)
    uses = {0: LinkUse(10.0, 0.0), 1: LinkUse(60.0, 0.1), 2: LinkUse(20.0, 0.0), 3: LinkUse(9.0, 0.0)}
    rows = busiest(link_rows(uses, classes, step_time=1.0))
    assert [(row.link, row.count, row.bytes) for row in rows] == [("nic->leaf", 2, 9.0), ("gpu->nvswitch", 12, 60.0)]

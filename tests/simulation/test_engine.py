"""How ops follow each other in time: lanes, arrivals, transfers, deadlocks."""

from __future__ import annotations

import gc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import DeadlockError, ParsimError
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.program.program import Collective, Lane, Program
from parsim.simulation.engine import Engine, collector_paused


class Fabric:
    """Costs of collectives by kind, links of equal capacity, and how often it was asked."""

    def __init__(self, costs=(), capacity=25e9, dead=()):
        self.costs = dict(costs)
        self.default = capacity
        self.dead = dead
        self.asked = []

    def cost(self, collective):
        self.asked.append(collective)
        return self.costs[collective.kind]

    def capacity(self, link):
        return 0.0 if link in self.dead else self.default


def send(bytes_, link=0, cap=25e9, latency=0.0, weight=1.0):
    return CollectiveCost(latency, (Flow(((link, 1.0),), bytes_, cap, weight),))


def compute(rank):
    return (Lane(rank, "compute"),)


def test_ops_of_a_lane_follow_each_other_and_needs_are_waited_for():
    program = Program()
    first = program.add("a", "compute", compute(0), duration=2.0)
    second = program.add("b", "compute", compute(0), duration=1.0)
    other = program.add("c", "compute", compute(1), needs=(first,), duration=4.0)
    last = program.add("d", "compute", compute(0), needs=(other,), duration=0.5)
    free = program.add("e", "compute", (), duration=0.25)
    trace = Engine(program, Fabric()).run()
    assert list(trace.start) == [0.0, 2.0, 2.0, 6.0, 0.0]
    assert list(trace.end) == [2.0, 3.0, 6.0, 6.5, 0.25]
    assert trace.makespan == 6.5
    assert trace.events == 5
    assert trace.lane(0, "compute") == [first, second, last]
    assert trace.lane(7, "compute") == []
    assert trace.ranks == [0, 1]
    assert trace.duration(free) == 0.25
    assert trace.busy(0, "compute") == 3.5


def test_an_empty_program_takes_no_time():
    trace = Engine(Program(), Fabric()).run()
    assert trace.makespan == 0.0
    assert list(trace.start) == []


def test_a_collective_waits_for_its_last_member_and_then_for_its_latency():
    # ring all-reduce of 1 GB over 4 ranks at 100 GB/s, 6 steps of 1 us: 15.006 ms; one rank comes 5 ms late
    program = Program()
    group = Collective("all_reduce", "data", (0, 1, 2, 3), 10**9)
    for rank in range(4):
        program.add("work", "compute", compute(rank), duration=5e-3 if rank == 3 else 0.0)
    reduce = program.add("reduce", "data_comm", tuple(Lane(rank, "compute") for rank in range(4)), collective=group)
    program.add("after", "compute", compute(0), duration=1.0)
    ring = tuple((link, 1.0) for link in range(4))
    fabric = Fabric({"all_reduce": CollectiveCost(6e-6, (Flow(ring, 1.5e9, 100e9),))}, capacity=100e9)
    trace = Engine(program, fabric).run()
    assert trace.start[reduce.index] == 5e-3
    assert trace.end[reduce.index] == pytest.approx(20.006e-3, rel=1e-15)
    assert trace.start[reduce.index + 1] == trace.end[reduce.index]
    assert {link: use.bytes for link, use in trace.links.items()} == dict.fromkeys(range(4), 1.5e9)
    assert trace.links[0].saturated == pytest.approx(15e-3)


def test_an_uncontended_collective_takes_its_idle_time():
    cost = CollectiveCost(3e-6, tuple(Flow(((channel, 1.0), (9, 1.0)), 1e6 * channel, 3e9) for channel in range(1, 5)))
    program = Program()
    for number in range(3):
        program.add("x", "data_comm", (Lane(0, "data"),), collective=Collective("x", "data", (0, 1), number), duration=1e-6)
    trace = Engine(program, Fabric({"x": cost})).run()
    assert trace.duration(program.ops[1]) == pytest.approx(cost.time + 1e-6, rel=1e-12)


def test_ring_and_send_share_a_card():
    # 1.5 GB and 0.5 GB through one 25 GB/s card: 60 and 20 ms alone, 80 and 40 ms together; 80 and 60 with weight 2
    for weight, send_end in ((1.0, 40e-3), (2.0, 60e-3)):
        program = Program()
        ring = program.add("ring", "data_comm", (Lane(0, "data"),), collective=Collective("ring", "data", (0, 1), 1))
        message = program.add("send", "pipeline_comm", (Lane(0, "send"),), collective=Collective("send", "pipeline", (0, 1), 2))
        trace = Engine(program, Fabric({"ring": send(1.5e9, weight=weight), "send": send(0.5e9)})).run()
        assert trace.end[ring.index] == pytest.approx(80e-3, rel=1e-15)
        assert trace.end[message.index] == pytest.approx(send_end, rel=1e-15)


@pytest.mark.parametrize("flows", [(), (Flow(((0, 1.0),), 0.0, 1e9),), (Flow((), 0, 1e9), Flow(((1, 1.0),), 0.0, 1e9))])
def test_nothing_to_carry_ends_after_the_latency(flows):
    program = Program()
    program.add("barrier", "data_comm", compute(0), collective=Collective("x", "data", (0, 1), 0), duration=1.0)
    trace = Engine(program, Fabric({"x": CollectiveCost(2.0, flows)})).run()
    assert trace.end[0] == 3.0
    assert trace.links == {}


def test_each_collective_is_priced_once():
    program = Program()
    group = Collective("x", "data", (0, 1), 8)
    for _ in range(5):
        program.add("x", "data_comm", compute(0), collective=group)
    fabric = Fabric({"x": send(1e6)})
    Engine(program, fabric).run()
    assert fabric.asked == [group]


def test_capacity_changes_during_the_run():
    # 8 GB at 10 GB/s, halved after 0.4 s: 4 GB are left for 0.8 s
    program = Program()
    program.add("x", "data_comm", compute(0), collective=Collective("x", "data", (0, 1), 8))
    trace = Engine(program, Fabric({"x": send(8e9, cap=10e9)}, capacity=10e9), capacity_changes=[(0.4, 0, 5e9), (50.0, 0, 1e9)]).run()
    assert trace.end[0] == pytest.approx(1.2, rel=1e-15)
    assert trace.links[0].saturated == pytest.approx(1.2)


def order_1f1b(stage, stages, micro_batches):
    warm = min(micro_batches, stages - 1 - stage)
    order = [("F", number) for number in range(warm)]
    for number in range(micro_batches - warm):
        order += [("F", warm + number), ("B", number)]
    return order + [("B", number) for number in range(micro_batches - warm, micro_batches)]


def order_gpipe(stage, stages, micro_batches):
    return [("F", number) for number in range(micro_batches)] + [("B", number) for number in range(micro_batches)]


def pipeline(order, stages, micro_batches, forward=1.0, backward=2.0, latency=0.0, jitter=()):
    """One op per slot in one lane per stage, and a send of pure latency between stages."""
    program = Program()
    slots = {}
    for stage in range(stages):
        for kind, number in order(stage, stages, micro_batches):
            duration = forward if kind == "F" else backward
            factor = jitter[stage % len(jitter)] if jitter else 1.0
            slots[kind, stage, number] = program.add(kind, "compute", compute(stage), duration=duration * factor, instance=number)
    for (kind, stage, number), op in slots.items():
        to = stage + 1 if kind == "F" else stage - 1
        if 0 <= to < stages:
            message = program.add("send", "pipeline_comm", (), needs=(op,), duration=latency, instance=number)
            program.block(message.index, slots[kind, to, number].index)
    return program


@pytest.mark.parametrize(
    ("order", "stages", "micro_batches", "latency", "makespan"),
    [
        (order_gpipe, 4, 8, 0.0, 33.0),
        (order_1f1b, 4, 8, 0.0, 33.0),
        (order_gpipe, 8, 32, 0.0, 117.0),
        (order_1f1b, 8, 32, 0.0, 117.0),
        (order_1f1b, 4, 8, 0.5, 41.0),
        (order_1f1b, 4, 16, 0.5, 71.0),
        (order_1f1b, 4, 32, 0.5, 131.0),
    ],
)
def test_lane_order_alone_gives_the_published_makespans(order, stages, micro_batches, latency, makespan):
    """GPipe (arXiv:1811.06965) and PipeDream-Flush (arXiv:2006.09503): (m + p - 1)(tF + tB); with slow sends the window limits."""
    trace = Engine(pipeline(order, stages, micro_batches, latency=latency), Fabric()).run()
    assert trace.makespan == makespan


def order_interleaved(stage, stages, micro_batches, chunks):
    """Megatron-LM's interleaved schedule (arXiv:2104.04473)."""
    total = micro_batches * chunks

    def slot(step, kind):
        chunk = step % (stages * chunks) // stages
        return kind, chunk if kind == "F" else chunks - 1 - chunk, step // (stages * chunks) * stages + step % stages

    warm = min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)
    order = [slot(step, "F") for step in range(warm)]
    for step in range(total - warm):
        order += [slot(warm + step, "F"), slot(step, "B")]
    return order + [slot(step, "B") for step in range(total - warm, total)]


@pytest.mark.parametrize(("chunks", "makespan"), [(1, 33.0), (2, 28.5), (4, 26.25)])
def test_interleaved_stages(chunks, makespan):
    stages, micro_batches = 4, 8
    program = Program()
    slots = {}
    for stage in range(stages):
        for kind, chunk, number in order_interleaved(stage, stages, micro_batches, chunks):
            duration = (1.0 if kind == "F" else 2.0) / chunks
            slots[kind, chunk * stages + stage, number] = program.add(kind, "compute", compute(stage), duration=duration)
    for (kind, stage, number), op in slots.items():
        before = (kind, stage - 1 if kind == "F" else stage + 1, number)
        if before in slots:
            program.block(slots[before].index, op.index)
    assert Engine(program, Fabric()).run().makespan == makespan


def contended(stages=4, micro_batches=8):
    """A 1F1B step whose sends and gradient reductions share cards."""
    program = pipeline(order_1f1b, stages, micro_batches, forward=0.011, backward=0.023, jitter=(1.0, 1.1, 0.93))
    group = Collective("reduce", "data", (0, 8), 10**9)
    for stage in range(stages):
        last = program.last(Lane(stage, "compute"))
        for _ in range(6):
            program.add("reduce", "data_comm", (Lane(stage, "data"),), needs=(last,) if stage % 2 else (), collective=group)
    costs = {"reduce": CollectiveCost(1e-5, tuple(Flow(((link, 1.0), (9, 1.0)), 3.3e8, 20e9) for link in range(3)))}
    return program, Fabric(costs, capacity=25e9)


def test_running_twice_is_identical():
    program, fabric = contended()
    blockers, after = list(program.blockers), [list(op.after) for op in program.ops]
    engine = Engine(program, fabric)
    one, two, three = engine.run(), engine.run(), Engine(*contended()).run()
    assert isinstance(one.start, array)
    assert one.start == two.start == three.start
    assert one.end == two.end == three.end
    assert one.links == two.links == three.links
    assert one.events == two.events == three.events
    assert program.blockers == blockers
    assert [op.after for op in program.ops] == after


def test_an_op_with_several_flows_ends_with_the_last():
    program = Program()
    program.add("x", "data_comm", compute(0), collective=Collective("x", "data", (0, 1), 1))
    flows = (Flow(((0, 1.0),), 1e9, 10e9), Flow(((1, 1.0),), 1e9, 10e9), Flow(((1, 1.0),), 1e9, 10e9), Flow(((2, 1.0),), 5e8, 10e9))
    trace = Engine(program, Fabric({"x": CollectiveCost(0.0, flows)}, capacity=10e9)).run()
    assert trace.end[0] == pytest.approx(0.2)
    assert {link: use.bytes for link, use in trace.links.items()} == {0: 1e9, 1: 2e9, 2: 5e8}


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_paused_and_restored_even_after_an_exception(enabled):
    class Broken(Fabric):
        def cost(self, collective):
            seen.append(gc.isenabled())
            raise ZeroDivisionError

    program = Program()
    program.add("x", "data_comm", compute(0), collective=Collective("x", "data", (0, 1), 1))
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        for pause in (True, False):
            seen = []
            with pytest.raises(ZeroDivisionError):
                Engine(program, Broken(), pause_collector=pause).run()
            assert seen == [enabled and not pause]
            assert gc.isenabled() is enabled
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("duration", [-1.0, float("nan"), float("inf")])
def test_a_duration_that_is_no_time(duration):
    program = Program()
    program.add("odd", "compute", compute(0), duration=duration)
    with pytest.raises(ParsimError, match=r"duration of <Op 0 odd#0> \(=-?(1.0|nan|inf)\)"):
        Engine(program, Fabric()).run()


@pytest.mark.parametrize(("change", "message"), [((-1.0, 0, 1.0), "time of the change of link 0"), ((1.0, 3, -1.0), "capacity of link 3")])
def test_a_change_that_cannot_be(change, message):
    program = Program()
    program.add("x", "compute", compute(0), duration=2.0)
    with pytest.raises(ParsimError, match=message):
        Engine(program, Fabric(), capacity_changes=[change]).run()


@pytest.mark.parametrize(
    ("cost", "message"),
    [(CollectiveCost(-1.0, ()), "latency"), (send(-1.0), "volume"), (send(float("nan")), "volume"), (send(1.0, cap=float("inf")), "cap")],
)
def test_a_cost_that_is_no_time(cost, message):
    program = Program()
    program.add("x", "data_comm", compute(0), collective=Collective("x", "data", (0, 1), 1))
    with pytest.raises(ParsimError, match=message):
        Engine(program, Fabric({"x": cost})).run()


def test_two_ops_that_wait_for_each_other_are_both_named():
    program = Program()
    program.add("before", "compute", compute(0), duration=1.0)
    one = program.add("B L3", "compute", compute(0), instance=2)
    other = program.add("F L1", "compute", compute(1), needs=(one,), instance=4)
    program.block(other.index, one.index)
    with pytest.raises(DeadlockError) as failure:
        Engine(program, Fabric()).run()
    text = str(failure.value)
    assert text.startswith("deadlock: 2 of 3 ops never ended, 2 of them never began")
    assert "  B L3#2 (rank 0 compute)  <-- waits for F L1#4 (rank 1 compute)" in text
    assert "  F L1#4 (rank 1 compute)  <-- waits for B L3#2 (rank 0 compute)" in text
    assert "  rank 0 step 1   before#0  !B L3#2  <-- waits for F L1#4 (rank 1 compute)" in text
    assert failure.value.exit_code == 4


def test_a_large_deadlock_stays_readable():
    program = pipeline(order_1f1b, 40, 60)
    late = next(op for op in program.ops if op.lanes == compute(20) and op.name == "F" and op.instance == 5)
    early = next(op for op in program.ops if op.lanes == compute(19) and op.name == "B" and op.instance == 1)
    program.block(early.index, late.index)
    program.block(late.index, next(op for op in program.ops if op.lanes == compute(20) and op.name == "B" and op.instance == 0).index)
    program.block(early.index, next(op for op in program.ops if op.lanes == compute(20) and op.name == "B" and op.instance == 1).index)
    with pytest.raises(DeadlockError) as failure:
        Engine(program, Fabric()).run()
    lines = str(failure.value).splitlines()
    rows = [line for line in lines if line.startswith("  rank ")]
    assert len(rows) == 16
    assert any(line.startswith("  rank 20 ") for line in rows)
    assert "  ... and 24 more ranks" in lines
    assert len(lines) < 60
    assert max(map(len, lines)) < 200
    circle = lines[lines.index("circle of waiting:") + 1 :]
    assert any("rank 20" in line for line in circle)


def test_a_transfer_over_a_dead_link_is_a_deadlock_that_names_the_link():
    program = Program()
    program.add("work", "compute", compute(0), duration=1.0)
    program.add("send", "pipeline_comm", compute(0), collective=Collective("x", "pipeline", (0, 1), 1), instance=-1)
    program.add("after", "compute", compute(0), duration=1.0)
    with pytest.raises(DeadlockError) as failure:
        Engine(program, Fabric({"x": send(1e9, link=7)}, dead=(7,))).run()
    text = str(failure.value)
    assert "send (rank 0 compute) began at 1 s: capacity of link 7 (=0 B/s)" in text
    assert "~send  !after#0  <-- cannot end" in text
    assert "circle" not in text


def test_a_deadlock_within_a_lane_and_long_lists_of_dead_transfers():
    program = Program()
    one = program.add("a", "compute", compute(0))
    other = program.add("b" * 40, "compute", compute(0))
    program.block(other.index, one.index)
    lanes = tuple(Lane(rank, "send") for rank in range(1, 8))
    for number in range(20):
        program.add("send", "pipeline_comm", lanes if number == 0 else (), collective=Collective("x", "pipeline", (0, 1), number))
    with pytest.raises(DeadlockError) as failure:
        Engine(program, Fabric({"x": send(1e9, cap=0.0)})).run()
    text = str(failure.value)
    assert "3 more lanes) began at 0 s: rate of a flow (=0 B/s, cap 0)" in text
    assert "send#0 (no lane) began at 0 s" in text
    assert "  ... and 4 more" in text
    assert "!" + "b" * 22 + ".." in text
    assert f"  a#0 (rank 0 compute)  <-- waits for {'b' * 40}#0 (rank 0 compute)" in text


@st.composite
def programs(draw):
    """Random ops on a few lanes with needs that point back: always runnable."""
    program = Program()
    for _ in range(draw(st.integers(1, 25))):
        lanes = tuple(Lane(rank, "compute") for rank in sorted(draw(st.sets(st.integers(0, 3), max_size=2))))
        needs = draw(st.lists(st.sampled_from(program.ops), max_size=3)) if program.ops else []
        program.add("op", "compute", lanes, needs, duration=draw(st.sampled_from([0.0, 0.5, 1.0, 2.25])))
    return program


@given(programs())
@settings(max_examples=100, deadline=None)
def test_an_op_begins_when_the_last_thing_it_waits_for_ends(program):
    trace = Engine(program, Fabric()).run()
    ready = [0.0] * len(program.ops)
    for op in program.ops:
        assert trace.start[op.index] == ready[op.index]
        assert trace.end[op.index] == trace.start[op.index] + op.duration
        for other in op.after:
            ready[other.index] = max(ready[other.index], trace.end[op.index])
    for ops in trace.lanes.values():
        assert ops == sorted(ops, key=lambda op: op.index)

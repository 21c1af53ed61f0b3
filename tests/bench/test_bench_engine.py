"""What a step costs to simulate: microseconds per op, flow and event.

Run with ``pytest -m benchmark tests/bench``. Seconds are printed, also as multiples of a bare SimPy timeout in the same process (aim: 4 per
event); what is asserted are counts (ops, events).
"""

from __future__ import annotations

import sys
from operator import itemgetter
from time import process_time

import pytest
import simpy

from parsim.hardware.flows import CollectiveCost, Flow
from parsim.program.program import Collective, Effect, Lane, Program, Tensor
from parsim.report.critical_path import critical_path
from parsim.report.timeline import Timeline, breakdown
from parsim.simulation.engine import Engine, collector_paused
from parsim.simulation.ledger import Ledger
from parsim.simulation.network import Network

pytestmark = pytest.mark.benchmark


@pytest.fixture
def tell(capsys):
    """Write a line to the terminal although output is captured."""

    def line(text):
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")

    return line


class Nodes:
    """Each stage's tensor group has its own links; nothing is contended."""

    def cost(self, collective):
        path = ((collective.group[0], 1.0),)
        return CollectiveCost(20e-6, (Flow(path, collective.bytes / 8, 30e9),) * 8)

    def capacity(self, link):
        return 300e9


def one_f_one_b(stage, stages, micro_batches):
    warm = min(micro_batches, stages - 1 - stage)
    order = [("F", number) for number in range(warm)]
    for number in range(micro_batches - warm):
        order += [("F", warm + number), ("B", number)]
    return order + [("B", number) for number in range(micro_batches - warm, micro_batches)]


def pipeline(stages, micro_batches, layers, *, collectives=True):
    """1F1B with four ops per layer pass (attention, all-reduce, MLP, all-reduce), sends, and two saved tensors per layer."""
    program = Program()
    mine = layers // stages
    first, last = {}, {}
    for stage in range(stages):
        lane, both = (Lane(stage, "compute"),), (Lane(stage, "compute"), Lane(stage, "tensor"))
        group = Collective("all_reduce", "tensor", (stage,), 25_000_000) if collectives else None
        program.tensors[stage] = [Tensor(f"saved {part}", 40_000_000, "activations", per_micro_batch=True) for part in range(2 * mine)]
        program.tensors[stage].append(Tensor("scratch", 100_000_000, "temporaries"))
        scratch = (Effect(0.0, 2 * mine, allocate=True), Effect(1.0, 2 * mine, allocate=False))
        saves = [((stage, (*scratch, Effect(1.0, part, allocate=True))),) for part in range(2 * mine)]
        frees = [((stage, (*scratch, Effect(1.0, part, allocate=False))),) for part in reversed(range(2 * mine))]
        for kind, number in one_f_one_b(stage, stages, micro_batches):
            for effects in saves if kind == "F" else frees:
                work = program.add(kind, "compute", lane, duration=0.01, instance=number, effects=effects)
                first.setdefault((kind, stage, number), work)
                end = program.add(
                    "all_reduce", "tensor_comm", both, duration=0.0 if collectives else 0.001, collective=group, instance=number
                )
            last[kind, stage, number] = end
    for (kind, stage, number), op in last.items():
        to = (kind, stage + 1 if kind == "F" else stage - 1, number)
        if to in first:
            message = program.add("send", "pipeline_comm", (Lane(stage, f"send {kind}"),), (op,), duration=0.001, instance=number)
            program.block(message.index, first[to].index)
    return program


def timeout_cost(count=100_000):
    """Seconds per bare timeout with a callback, 64 in flight."""
    env = simpy.Environment()

    def again(event):
        if event.value > 0:
            env.timeout(1.0, event.value - 64).callbacks.append(again)

    begin = process_time()
    for number in range(64):
        env.timeout(1.0, count - number).callbacks.append(again)
    env.run()
    return (process_time() - begin) / count


@pytest.mark.parametrize(
    ("stages", "micro_batches", "layers", "collectives", "ops"),
    [(8, 64, 96, False, 50_048), (8, 64, 96, True, 50_048), (64, 512, 128, False, 588_800), (64, 512, 128, True, 588_800)],
)
def test_engine(tell, stages, micro_batches, layers, collectives, ops):
    begin = process_time()
    with collector_paused():
        program = pipeline(stages, micro_batches, layers, collectives=collectives)
    build = process_time() - begin
    assert len(program.ops) == ops
    spent = []
    for _ in range(3 if ops < 100_000 else 1):
        begin = process_time()
        trace = Engine(program, Nodes()).run()
        spent.append(process_time() - begin)
    floor = timeout_cost()
    tell(
        f"{ops} ops{' with collectives' if collectives else ''}: build {build / ops * 1e6:.2f} us/op, "
        f"run {min(spent) / ops * 1e6:.2f} us/op, "
        f"{trace.events} events, {min(spent) / trace.events / floor:.2f} timeouts of {floor * 1e6:.2f} us per event"
    )
    if not collectives:
        assert trace.events == ops
    else:
        # every op, and at most a wake-up and a re-armed one for each collective
        assert trace.events <= 2 * ops


@pytest.mark.parametrize("flows", [1, 10, 100, 1000])
def test_flows_on_one_link(tell, flows):
    total = 20_000

    def run():
        env = simpy.Environment()
        network = Network(env, lambda _: 25e9)
        bundle = network.bundle(((0, 1.0),), 25e9)
        left = iter(range(total - flows))

        def again(_):
            number = next(left, None)
            if number is not None:
                network.start(bundle, 1e6 + 1e4 * (number % 7), again)

        begin = process_time()
        for number in range(flows):
            network.start(bundle, 1e6 + 1e3 * number, again)
        env.run()
        return network, (process_time() - begin) / total * 1e6

    network, spent = min((run() for _ in range(3)), key=itemgetter(1))
    tell(f"{flows} flows on one link: {spent:.1f} us per flow, {network.events} events")
    assert network.use()[0].bytes == pytest.approx(total * 1e6, rel=0.1)
    assert network.events <= 4 * total


def test_ledger_of_64_ranks(tell):
    with collector_paused():
        program = pipeline(64, 512, 128, collectives=False)
        trace = Engine(program, Nodes()).run()
    begin = process_time()
    ledger = Ledger(program, trace)
    events = sum(len(ledger.measure(rank).level) for rank in ledger.ranks)
    spent = process_time() - begin
    tell(f"ledger: {events} events of 64 ranks, {spent / events * 1e6:.2f} us per event")
    assert events == 64 * 512 * 2 * 4 * 3


def test_index_of_a_trace(tell):
    trace = Engine(pipeline(8, 512, 96, collectives=False), Nodes()).run()
    begin = process_time()
    timeline = Timeline(trace)
    for rank in timeline.ranks:
        breakdown(timeline, rank)
    path = critical_path(timeline)
    spent = process_time() - begin
    tell(f"timeline, breakdown of 8 ranks and critical path: {spent / len(timeline.end) * 1e6:.2f} us per op")
    assert timeline.end[path.ops].max() == timeline.makespan


@pytest.mark.parametrize("mode", ["segments", "expandable"])
def test_allocator(tell, mode):
    program = pipeline(8, 512, 96, collectives=False)
    ledger = Ledger(program, Engine(program, Nodes()).run(), ranks=[0])

    def run():
        begin = process_time()
        memory = ledger.measure(0, allocator=mode)
        return memory, process_time() - begin

    memory, spent = min((run() for _ in range(3)), key=itemgetter(1))
    tell(f"{mode}: {len(memory.level)} events, {spent / len(memory.level) * 1e6:.2f} us per event")
    assert memory.replay.whole

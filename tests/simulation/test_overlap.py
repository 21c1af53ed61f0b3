"""Compute and communication that slow each other down: hand-solved cases."""

import pytest

from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.interference import KERNEL, Full, Load, Simple, load_of
from parsim.program.program import Collective, Effect, Lane, Program, Tensor
from parsim.simulation.engine import Engine
from parsim.simulation.ledger import measure


class Wires:
    """One link of 1 B/s per collective kind."""

    def __init__(self, cap=1.0):
        self.cap = cap

    def cost(self, collective):
        return CollectiveCost(0.0, (Flow(((0, 1.0),), float(collective.bytes), self.cap),))

    def capacity(self, link):
        return 1.0


class Beside:
    """Compute at `compute`, communication at `wires` of their rates while both run."""

    def __init__(self, compute, wires=1.0):
        self.compute, self.wires = compute, wires

    def load(self, collective):
        return collective

    def compute_rate(self, loads, memory_bound):
        return self.compute if list(loads) else 1.0

    def communication_rate(self, memory_bound):
        return self.wires


def program(seconds, size, *, blocking=False):
    made = Program()
    lanes = (Lane(0, "compute"), Lane(0, "data")) if blocking else (Lane(0, "data"),)
    made.add("grads", "data_comm", lanes, collective=Collective("all_reduce", "data", (0, 1), size))
    kernel = made.add("B0", "compute", (Lane(0, "compute"),), duration=seconds)
    return made, kernel


def test_a_kernel_beside_a_collective_for_part_of_its_time():
    # 4 s of work; for the first 2 s at half speed (1 s done), then 3 s more: ends at 5
    made, kernel = program(4.0, 2)
    trace = Engine(made, Wires(), interference=Beside(0.5)).run()
    assert trace.end[kernel.index] == pytest.approx(5.0, rel=1e-12)
    assert trace.end[0] == pytest.approx(2.0, rel=1e-12)
    assert trace.links[0].bytes == 2
    assert set(trace.links) == {0}


def test_both_slow_down():
    # the wire runs at 0.8 beside the kernel: 2 B need 2.5 s; the kernel has 1.25 s done by then and 2.75 s to go
    made, kernel = program(4.0, 2)
    trace = Engine(made, Wires(), interference=Beside(0.5, 0.8)).run()
    assert trace.end[0] == pytest.approx(2.5, rel=1e-12)
    assert trace.end[kernel.index] == pytest.approx(5.25, rel=1e-12)


def test_a_wire_that_outlives_the_kernel_recovers():
    # kernel 1 s at 0.5 = 2 s; the wire moved 1.6 B by then, 0.4 B at full rate: 2.4
    made, kernel = program(1.0, 2)
    trace = Engine(made, Wires(), interference=Beside(0.5, 0.8)).run()
    assert trace.end[kernel.index] == pytest.approx(2.0, rel=1e-12)
    assert trace.end[0] == pytest.approx(2.4, rel=1e-12)


def test_blocking_collectives_disturb_nobody():
    made, kernel = program(4.0, 2, blocking=True)
    assert Engine(made, Wires(), interference=Beside(0.5, 0.5)).run().end[kernel.index] == 6.0


def test_no_effect_is_the_plain_run():
    made, _ = program(4.0, 3)
    plain, elastic = Engine(made, Wires()).run(), Engine(made, Wires(), interference=Beside(1.0)).run()
    assert list(elastic.end) == pytest.approx(list(plain.end), rel=1e-12)


def test_memory_effects_stretch_with_their_kernel():
    made = Program()
    made.add("grads", "data_comm", (Lane(0, "data"),), collective=Collective("all_reduce", "data", (0, 1), 8))
    effects = ((0, (Effect(1.0, 0, allocate=True), Effect(3.0, 0, allocate=False))),)
    made.add("B0", "compute", (Lane(0, "compute"),), duration=4.0, effects=effects)
    made.tensors[0] = [Tensor("x", 512, "activations")]
    curve = measure(made, Engine(made, Wires(), interference=Beside(0.5)).run(), 0)
    assert curve.times.tolist() == pytest.approx([2.0, 6.0])


def test_the_full_rule_on_h100():
    # 16 channels of 132 SMs, a ring at 360 GB/s moving 2.5 x its wire bytes of 3.35 TB/s: GEMM at (1 - 16/132)(1 - 0.3 x 0.2687)
    cost = CollectiveCost(0.0, (Flow(((0, 1.0),), 360e9, 360e9),))
    load = load_of("all_reduce", cost, 8, 16, sms=132, bandwidth=3.35e12, network=False)
    assert load.memory == pytest.approx(0.2687, abs=1e-4)
    assert Full().compute_rate([load], 0.0) == pytest.approx(0.808, abs=1e-3)
    assert Full().compute_rate([load], 1.0) == pytest.approx(0.643, abs=1e-3)
    network = load_of("all_reduce", CollectiveCost(0.0, (Flow(((0, 1.0),), 45e9, 45e9),)), 8, 16, sms=132, bandwidth=3.35e12, network=True)
    assert Full().compute_rate([network], 0.0) == pytest.approx(0.870, abs=1e-3)


def test_the_simple_rule():
    """A GEMM loses the multiprocessors, a memory-bound kernel the bandwidth; two collectives take both their shares."""
    one, other = Load(0.125, 0.25, network=False), Load(0.0625, 0.05, network=True)
    assert Simple().compute_rate([one], 0.0) == 0.875
    assert Simple().compute_rate([one], 1.0) == 0.75
    assert Simple().compute_rate([one, other], 0.0) == 1 - 0.1875
    assert Simple().compute_rate([one, other], 0.5) == pytest.approx(0.5 * (1 - 0.1875) + 0.5 * (1 - 0.3), rel=1e-12)
    assert Simple().compute_rate([], 0.5) == 1.0


def test_a_copy_on_a_stream_of_its_own_takes_the_bandwidth():
    """GEMMs feel 0.3 of it; a memory-bound kernel goes on at the least rate that there is."""
    assert Simple().compute_rate([KERNEL], 0.0) == Full().compute_rate([KERNEL], 0.0) == 0.7
    assert Simple().compute_rate([KERNEL], 1.0) == Full().compute_rate([KERNEL], 1.0) == 0.2
    beside = Load(0.125, 0.25, network=True)
    assert Simple().compute_rate([KERNEL, beside], 0.0) == 0.875 * 0.7

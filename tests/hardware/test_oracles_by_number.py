"""Thirty-two hand-solvable cases of communication, one test each, by the numbers under which the documentation lists them.

GB is 1e9 bytes, capacities are in GB/s, and latencies are nil where a case does not name them. Cases with several collectives at
once run through the simulation. Sources: NVIDIA/nccl 2.30 (src/graph/tuning.cc), NVIDIA/nccl-tests (doc/PERFORMANCE.md), Bertsekas
and Gallager, Data Networks (max-min fairness), Patarasuk and Yuan 2009 (rings), SimGrid's documentation (the last).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hardware_graphs import (
    Job,
    Quiet,
    build,
    ends,
    hashed,
    leaf_spine,
    nodes_on_rails,
    pcie_and_nic_chain,
    pcie_switch,
    shipped,
    switched,
    two_sockets,
)
from pair_formulas import pipeline_time

from parsim import theory
from parsim.hardware.collectives import Latencies
from parsim.hardware.collectives import collective_cost as ring_cost
from parsim.hardware.fabric.routes import join
from parsim.hardware.flows import Flow
from parsim.hardware.nccl.cost import collective_cost, group_of
from parsim.hardware.nccl.estimate import predict
from parsim.hardware.nccl.inputs import Settings
from parsim.hardware.nccl.lanes import volume
from parsim.hardware.nccl.tables import constants
from parsim.program.program import Collective, Lane, Program
from parsim.simulation.engine import Engine
from parsim.simulation.sharing import fair_rates

GB = 10**9
MIB = 2**20
GIB = 2**30
FREE = 1000.0
"""a cap that never binds"""
PLAIN = Settings(profile="nccl")
RING = Settings(profile="nccl", algorithm="ring", protocol="simple")
ONE_STEP = Latencies(base=0.0, ring_nvlink=1e-6, ring_pcie=1e-6, ring_network=1e-6, tree_local=1.0, posting=0.0, software=0.0, per_peer=0.0)
NONE = replace(ONE_STEP, ring_nvlink=0.0, ring_pcie=0.0, ring_network=0.0)
"""no latency, and no tree"""


def moving(cost):
    """Time in which bytes move [s]."""
    return cost.time - cost.latency


def flow(links, amount=1.0, cap=FREE):
    path = links.items() if isinstance(links, dict) else [(link, 1.0) for link in links]
    return Flow(tuple(path), amount, cap)


def rates(flows, capacity):
    return fair_rates(flows, capacity.get)


def exactly(values):
    return pytest.approx(values, rel=1e-12)


def milliseconds(values):
    return pytest.approx([value * 1e-3 for value in values], rel=1e-9)


def test_oracle_01_ring_all_reduce_with_step_latency():
    """4 ranks, 1 GB, 100 GB/s, 1 us per step: 2 * 3/4 * 1e9 / 100e9 + 6 us = 15.006 ms."""
    assert ring_cost(switched(4, 100), (0, 1, 2, 3), "all_reduce", GB, ONE_STEP).time == exactly(15.006e-3)
    assert theory.ring_all_reduce_time(4, GB, 100e9, 1e-6) == exactly(15.006e-3)


def test_oracle_02_ring_all_gather_and_reduce_scatter():
    """8 ranks, 1 GB in all, 240 GB/s: 7/8 * 1e9 / 240e9 = 3.645833 ms."""
    for kind in ("all_gather", "reduce_scatter"):
        assert moving(collective_cost(switched(8, 240), tuple(range(8)), kind, GB, RING)) == exactly(7 / 8 / 240)
        assert ring_cost(switched(8, 240), tuple(range(8)), kind, GB, NONE).time == pytest.approx(3.645833e-3, rel=1e-6)


def test_oracle_03_broadcast_in_a_pipeline_of_chunks():
    """4 ranks, 64 MiB in chunks of 1 MiB, 25 GB/s: (64 + 2) * 2**20 / 25e9 = 2.76824064 ms; 2.68435456 ms in endless chunks."""
    assert pipeline_time(64 * MIB, MIB, 3, 25e9) == exactly(2.76824064e-3)
    assert theory.chain_broadcast_time(4, 64 * MIB, 25e9, MIB) == exactly(2.76824064e-3)
    assert ring_cost(switched(4, 25), (0, 1, 2, 3), "broadcast", 64 * MIB, NONE).time == exactly(2.68435456e-3)


def test_oracle_04_all_to_all_on_a_switch():
    """4 ranks, 1 GB per rank, ports of 50 GB/s: 0.75e9 / 50e9 = 15 ms."""
    assert moving(collective_cost(switched(4, 50), (0, 1, 2, 3), "all_to_all", GB, PLAIN)) == exactly(15e-3)


def test_oracle_05_message_over_pcie_and_nics():
    """1 GB over links of 24, 25, 25, 24 GB/s whose hops take 3.3 us: 1e9 / 24e9 + 3.3 us = 41.669967 ms."""
    cost = ring_cost(pcie_and_nic_chain(), (0, 1), "send", GB, NONE)
    assert cost.time == exactly(1 / 24 + 3.3e-6)
    assert cost.time == pytest.approx(41.669967e-3, rel=1e-7)


def test_oracle_06_three_flows_on_two_links():
    """Links of 10 and 4; flows on the first, on both, on the second: 8, 2, 2."""
    assert rates([flow([0]), flow([0, 1]), flow([1])], {0: 10.0, 1: 4.0}) == exactly([8, 2, 2])


def test_oracle_07_parking_lot():
    """Three links of 9; one long flow and 1, 2, 1 short ones: 3 (long), 6, 3, 3, 6."""
    flows = [flow([1, 2, 3]), flow([1]), flow([2]), flow([2]), flow([3])]
    assert rates(flows, {1: 9.0, 2: 9.0, 3: 9.0}) == exactly([3, 6, 3, 3, 6])


def test_oracle_08_two_messages_at_once():
    """1 GB and 2 GB on a link of 10 GB/s: 0.2 and 0.3 s."""
    jobs = [Job("send", (0, 1), GB), Job("send", (0, 1), 2 * GB)]
    assert ends(Quiet(switched(2, 10), PLAIN), jobs) == milliseconds([200, 300])


def test_oracle_09_two_messages_one_after_the_other():
    """1 GB at 0 and 1 GB at 50 ms on a link of 10 GB/s: 150 and 200 ms."""
    jobs = [Job("send", (0, 1), GB), Job("send", (0, 1), GB, 50e-3)]
    assert ends(Quiet(switched(2, 10), PLAIN), jobs) == milliseconds([150, 200])


DATA = (0, 2)
PIPELINE = (1, 3)
"""GPUs 0, 1 and 2, 3 of two machines with one NIC of 25 GB/s each"""


def test_oracle_10_gradients_and_activations_on_one_nic():
    """A ring with 1.5 GB per edge and a message of 0.5 GB share a NIC of 25: 80 and 40 ms (alone 60 and 20)."""
    meet = Quiet(nodes_on_rails(2, 2, 1, 25.0), RING)
    jobs = [Job("all_reduce", DATA, 1_500_000_000), Job("send", PIPELINE, 500_000_000)]
    assert ends(meet, jobs) == milliseconds([80, 40])
    assert [ends(meet, [job])[0] for job in jobs] == milliseconds([60, 20])


def test_oracle_11_a_ring_of_twice_the_weight():
    """As before, with weight 2 for the ring: 80 and 60 ms."""
    meet = Quiet(nodes_on_rails(2, 2, 1, 25.0), RING, all_reduce=2.0)
    jobs = [Job("all_reduce", DATA, 1_500_000_000), Job("send", PIPELINE, 500_000_000)]
    assert ends(meet, jobs) == milliseconds([80, 60])


def test_oracle_12_three_messages_into_a_ring():
    """A ring with 2 GB per edge; messages of 0.1 GB at 10, 50, 90 ms on its NIC of 25: 88 ms; 18, 58, 94 ms."""
    meet = Quiet(nodes_on_rails(2, 2, 1, 25.0), RING)
    jobs = [Job("all_reduce", DATA, 2 * GB), *(Job("send", PIPELINE, GB // 10, at * 1e-3) for at in (10, 50, 90))]
    assert ends(meet, jobs) == milliseconds([88, 18, 58, 94])


def test_oracle_13_a_cap_leaves_the_rest_to_others():
    """A link of 100; one flow capped at 30: 30 and 70."""
    assert rates([flow([0], cap=30.0), flow([0])], {0: 100.0}) == exactly([30, 70])


RAILS = [Job("all_reduce", (rail, 8 + rail), GB) for rail in range(8)]
"""eight data-parallel groups of two machines"""


def test_oracle_14_eight_groups_on_rails():
    """AllReduce of 1 GB between two machines, one group per rail of 25 GB/s: 40 ms; two GPUs per NIC, or a 2:1 trunk: 80 ms."""
    assert ends(Quiet(nodes_on_rails(2, 8, 8, 25.0), RING), RAILS[:1]) == milliseconds([40])
    assert ends(Quiet(nodes_on_rails(2, 8, 8, 25.0), RING), RAILS) == milliseconds([40] * 8)
    assert ends(Quiet(nodes_on_rails(2, 8, 4, 25.0), RING), RAILS) == milliseconds([80] * 8)
    thin = nodes_on_rails(2, 8, 8, 25.0, kind="fat-tree", leaf_ports=8, oversubscription=2)
    assert ends(Quiet(thin, RING), RAILS) == milliseconds([80] * 8)


def test_oracle_15_hashed_uplinks():
    """4 messages of 1 GB, uplinks of 50, hashed 3 + 1: 60, 60, 60, 20 ms; 2 + 2: 40 ms."""
    jobs = [Job("send", (gpu, 4 + gpu), GB) for gpu in range(4)]
    assert ends(Quiet(hashed((3, 1)), PLAIN), jobs) == milliseconds([60, 60, 60, 20])
    assert ends(Quiet(hashed((2, 2)), PLAIN), jobs) == milliseconds([40] * 4)


def test_oracle_16_rings_over_leaves():
    """Two of four machines per leaf, all links 25: 25 per edge; 12.5 in the order 0-2-1-3, and for two rings of the good order."""
    good, bad = Job("all_reduce", (0, 1, 2, 3), 2 * GB), Job("all_reduce", (0, 2, 1, 3), 2 * GB)
    meet = Quiet(leaf_spine(), RING)
    assert ends(meet, [good]) == milliseconds([3 / 25e-3])
    assert ends(meet, [bad]) == milliseconds([3 / 12.5e-3])
    assert ends(meet, [good, good]) == milliseconds([3 / 12.5e-3] * 2)


def test_oracle_17_ring_and_message_share_egress_and_uplink():
    """The ring with 3 GB per edge and 1 GB from 0 to 2: 160 and 80 ms."""
    jobs = [Job("all_reduce", (0, 1, 2, 3), 2 * GB), Job("send", (0, 2), GB)]
    assert ends(Quiet(leaf_spine(), RING), jobs) == milliseconds([160, 80])


def test_oracle_18_half_duplex_bus():
    """A bus of 24 that a ring crosses twice and a stream once: 8 and 8."""
    assert rates([flow({0: 2.0}), flow([0])], {0: 24.0}) == exactly([8, 8])
    edge = {"from": "gpu0", "to": "gpu1", "kind": "bus"}
    link = {"medium": "nvlink", "per_direction": "24 GB/s", "duplex": "half"}
    cluster = build({"name": "bus", "node": {"gpus": 2, "device": "chip", "edges": [edge]}, "links": {"bus": link}})
    (ring,) = collective_cost(cluster, (0, 1), "all_gather", GB, RING).flows
    (stream,) = collective_cost(cluster, (0, 1), "send", GB, PLAIN).flows
    assert (ring.path, stream.path) == (((0, 2.0),), ((0, 1.0),))
    assert fair_rates([ring, stream], cluster.capacity) == exactly([8e9, 8e9])


def test_oracle_19_directions_of_a_pcie_switch():
    """Two GPUs (24) send to a NIC (25) and receive host data through one port of 24: 12.5, 12.5 and 12, 12."""
    cluster = pcie_switch()
    sends = [collective_cost(cluster, (gpu, 2), "send", GB, PLAIN).flows[0] for gpu in (0, 1)]
    routes = [cluster.machine(0).route("cpu0", f"gpu{gpu}") for gpu in (0, 1)]
    reads = [Flow(tuple(zip(route.links, route.coefficients, strict=True)), 1.0, 1e12) for route in routes]
    assert fair_rates([*sends, *reads], cluster.capacity) == exactly([12.5e9, 12.5e9, 12e9, 12e9])


def test_oracle_20_two_socket_box():
    """8 GPUs (24), sockets 10: ring 10 (175 ms per GB), alternating order 2.5 (700 ms), two groups of four 5 each."""
    cluster = two_sockets()
    assert ends(Quiet(cluster, RING), [Job("all_reduce", tuple(range(8)), GB)]) == milliseconds([175])
    order = (0, 4, 1, 5, 2, 6, 3, 7)
    whole = join([cluster.route(a, b) for a, b in zip(order, (*order[1:], 0), strict=True)])
    ring = Flow(tuple(zip(whole.links, whole.coefficients, strict=True)), 1.75e9, 1e12)
    (rate,) = fair_rates([ring], cluster.capacity)
    assert (rate, ring.volume / rate) == (exactly(2.5e9), exactly(700e-3))
    assert ends(Quiet(cluster, RING), [Job("all_reduce", order, GB)]) == milliseconds([175])  # the library reorders
    four = [Job("all_reduce", (0, 1, 4, 5), GB), Job("all_reduce", (2, 3, 6, 7), GB)]
    assert ends(Quiet(cluster, RING), four[:1]) == milliseconds([150])
    assert ends(Quiet(cluster, RING), four) == milliseconds([1.5 / 5e-3] * 2)


def test_oracle_21_flat_ring_and_hierarchy():
    """4 x 8 GPUs, NVLink 235, 8 NICs of 24: flat 10.091146 ms; hierarchy 7.446809 + 7.8125 = 15.259309 ms."""
    cluster = nodes_on_rails(4, 8, 8, 24.0, inner=235.0)
    flat = moving(collective_cost(cluster, tuple(range(32)), "all_reduce", GB, RING))
    inside = 2 * moving(collective_cost(cluster, tuple(range(8)), "reduce_scatter", GB, RING))
    across = moving(collective_cost(cluster, (0, 8, 16, 24), "all_reduce", GB // 8, RING))
    assert [flat, inside, across] == pytest.approx([10.091146e-3, 7.446809e-3, 7.8125e-3], rel=1e-7)
    assert theory.hierarchical_all_reduce_time(4, 8, GB, 235e9, 24e9) == exactly(inside + across)
    everyone = [Job("all_reduce", tuple(range(gpu, 32, 8)), GB // 8) for gpu in range(8)]
    assert ends(Quiet(cluster, RING), everyone) == milliseconds([7.8125] * 8)


def test_oracle_22_all_to_all_between_machines():
    """8 GPUs per machine, NVLink 360, NICs 48, 1 GB per rank: 1.215278 ms inside, 10.416667 ms on NICs; busbw 90.0, 50.8 on 16."""
    for kind, forwarded in (("fat-tree", 0), ("rail-optimised", 7)):  # on rails a GPU also forwards what belongs to other rails
        cluster = nodes_on_rails(2, 8, 8, 48.0, inner=360.0, kind=kind)
        cost = collective_cost(cluster, tuple(range(16)), "all_to_all", GB, PLAIN)
        (one,) = cost.flows
        wires = {crossings for link, crossings in one.path if cluster.link(link).kind == "nv"}
        assert wires == {7 + forwarded}
        assert 7 * one.volume / 360e9 == pytest.approx(1.215278e-3, rel=1e-6)
        assert moving(cost) == pytest.approx(10.416667e-3, rel=1e-7)
        assert 15 / 16 * GB / moving(cost) == exactly(90e9)
    many = collective_cost(nodes_on_rails(16, 8, 8, 48.0, inner=360.0), tuple(range(128)), "all_to_all", GB, PLAIN)
    assert 127 / 128 * GB / moving(many) == exactly(50.8e9)


def test_oracle_23_reduction_in_the_switch():
    """8 H100, 1 GiB: NVLS 25 + 2**30 / 272e3 = 3972.58 us; Ring Simple 56 + 2**30 / 205.714e3 = 5275.6 us."""
    chosen = collective_cost(shipped("hgx-h100"), tuple(range(8)), "all_reduce", GIB, PLAIN)
    assert (chosen.algorithm, chosen.time * 1e6) == ("nvls", pytest.approx(3972.58, abs=0.005))
    ring = collective_cost(shipped("hgx-h100"), tuple(range(8)), "all_reduce", GIB, RING)
    assert ring.time * 1e6 == pytest.approx(5275.6, abs=0.05)


def test_oracle_24_selection_on_hopper():
    """8 H100: at 1 MiB Ring LL 28.01 us (NVLS 28.85), at 2 MiB NVLS 32.71 us (Ring LL 41.03)."""
    cluster = shipped("hgx-h100")
    group = tuple(range(8))
    inputs = group_of(cluster, group).inputs
    for size, best, time, other, loser in (
        (MIB, ("ring", "ll"), 28.01, ("nvls", "simple"), 28.85),
        (2 * MIB, ("nvls", "simple"), 32.71, ("ring", "ll"), 41.03),
    ):
        cost = collective_cost(cluster, group, "all_reduce", size, PLAIN)
        assert (cost.algorithm, cost.protocol) == best
        assert cost.time * 1e6 == pytest.approx(time, abs=0.006)
        assert predict(inputs, "all_reduce", *other, size, constants()).time * 1e6 == pytest.approx(loser, abs=0.006)


def test_oracle_25_latency_of_256_ranks():
    """32 x 8 A100, Tree LL, no bytes: 6.8 + 2 (7 * 0.6 + 5 * 5) = 65.2 us; 62 to 65 measured (NVIDIA/nccl issues 652, 1244)."""
    cost = collective_cost(shipped("dgx-a100-80gb", nodes=32), tuple(range(256)), "all_reduce", 8, PLAIN)
    assert (cost.algorithm, cost.protocol) == ("tree", "ll")
    assert cost.time * 1e6 == pytest.approx(65.2, abs=0.01)


def test_oracle_26_plateau_of_rings_between_nodes():
    """4 x 8 A100, 1 GiB, Ring Simple: 1.4 * 428.4 + 2**30 / 99.097e3 = 11435 us, busbw 181.9."""
    as_planned = {"links": {"ib-hdr": {"efficiency": 0.96}}}  # 8 x 24; the shipped NICs carry less
    cost = collective_cost(shipped("dgx-a100-80gb", nodes=4, overrides=as_planned), tuple(range(32)), "all_reduce", GIB, RING)
    assert cost.latency * 1e6 == pytest.approx(1.4 * 428.4)
    assert cost.time * 1e6 == pytest.approx(11435, abs=0.5)
    assert volume("ring", "all_reduce", 32, GIB) / cost.time / 1e9 == pytest.approx(181.9, abs=0.05)


def test_oracle_27_tree_of_two_nodes():
    """A tree moves S per machine and direction over the NICs: 8 x 24 allow busbw 360, the library's caps per channel less."""
    cluster = nodes_on_rails(2, 8, 8, 24.0)
    cost = collective_cost(cluster, tuple(range(16)), "all_reduce", 8 * GB, Settings(profile="nccl", algorithm="tree"))
    out = [0.0, 0.0]
    for one in cost.flows:
        for link, crossings in one.path:
            if cluster.link_class_name(link) == "nic->leaf":
                out[int(cluster.link(link).name.split(".")[0][4:])] += crossings * one.volume
    assert out == exactly([8e9, 8e9])
    amount = volume("ring", "all_reduce", 16, 8 * GB)
    assert amount / (max(out) / (8 * 24e9)) == exactly(360e9)
    assert amount / moving(cost) == exactly(2 * 15 / 16 * min(0.92 * 192e9, 8 * 23.6e9) / 2)


def trunk(nodes, leaf_ports, oversubscription):
    """The 32 messages from the first leaf to the second, NICs of 50 GB/s."""
    cluster = nodes_on_rails(nodes, 1, 1, 50.0, kind="fat-tree", leaf_ports=leaf_ports, oversubscription=oversubscription)
    return cluster, [Job("send", (node, leaf_ports + node), GB) for node in range(32)]


def test_oracle_28_equal_flows_over_a_sprayed_trunk():
    """32 flows, NICs of 50: a trunk of 1000 gives 31.25 each, one of 2000 gives 50."""
    for shape, rate in (((64, 32, 1.6), 31.25), ((80, 40, 1.0), 50.0)):
        cluster, jobs = trunk(*shape)
        assert ends(Quiet(cluster, PLAIN), jobs) == exactly([1 / rate] * 32)
    assert rates([flow({0: 1.0, 1: 32.0})], {0: 50.0, 1: 1000.0}) == exactly([31.25])
    assert rates([flow({0: 1.0, 1: 32.0})], {0: 50.0, 1: 2000.0}) == exactly([50])


class Given:
    """Flows that are given, by the bytes of the collective."""

    def __init__(self, flows, capacity):
        self.flows = flows
        self.capacity = capacity

    def cost(self, collective):
        return collective_cost(switched(2, 1), (0,), "barrier", 0)._replace(flows=(self.flows[collective.bytes],))


def test_oracle_29_a_folded_class_takes_as_long():
    """The 2:1 trunk with eight flows, and with one that counts eight times on the trunk: the same time, to the last bit."""
    cluster = nodes_on_rails(2, 8, 8, 25.0, kind="fat-tree", leaf_ports=8, oversubscription=2)
    apart = ends(Quiet(cluster, RING), RAILS)
    (one,) = collective_cost(cluster, RAILS[0].group, "all_reduce", GB, RING).flows
    trunks = {link for link, _ in one.path if "spine" in cluster.link_class_name(link)}
    assert len(trunks) == 4
    folded = one._replace(path=tuple((link, 8 * crossings if link in trunks else crossings) for link, crossings in one.path))
    assert set(ends(Given([folded], cluster.capacity), [Job("all_reduce", (0, 1), 0)])) == set(apart)


def test_oracle_30_both_directions_at_once():
    """1 GB each way over NICs of 25: 40 ms; 80 ms where a NIC does one thing at a time."""
    jobs = [Job("send", (0, 1), GB), Job("send", (1, 0), GB)]
    assert ends(Quiet(switched(2, 25), PLAIN), jobs) == milliseconds([40, 40])
    assert ends(Quiet(switched(2, 25, duplex="half"), PLAIN), jobs) == milliseconds([80, 80])


def test_oracle_31_everyone_waits_for_the_last():
    """The first case, one rank 5 ms late: 5 + 15.006 = 20.006 ms for all."""

    class Rings(Quiet):
        def cost(self, collective):
            return ring_cost(self.cluster, collective.group, collective.kind, collective.bytes, ONE_STEP)

    program = Program()
    lanes = tuple(Lane(rank, "compute") for rank in range(4))
    program.add("late", "compute", lanes[3:], duration=5e-3)
    program.add("reduce", "data_comm", lanes, collective=Collective("all_reduce", "data", (0, 1, 2, 3), GB))
    after = [program.add("after", "compute", (lane,)) for lane in lanes]
    trace = Engine(program, Rings(switched(4, 100))).run()
    assert [trace.start[op.index] for op in after] == milliseconds([20.006] * 4)


def test_oracle_32_a_tcp_flow_of_simgrid():
    """100 kB, 10 ms, 1 Mb/s: 0.01 * 13.01 + 8e5 / (0.97e6 / 1.05) = 0.996079 s."""
    assert theory.tcp_flow_time(100e3, 1e6 / 8, 10e-3) == pytest.approx(0.996079, abs=5e-7)
    neutral = {"latency_factor": 1.0, "bandwidth_factor": 1.0, "cross_traffic": 0.0}
    assert theory.tcp_flow_time(100e3, 1e6 / 8, 10e-3, **neutral) == theory.send_time(100e3, 1e6 / 8, 10e-3)
    assert theory.tcp_flow_time(1e9, 10e9, 10e-3, **neutral) == exactly(0.01 + 1e9 * 0.02 / 4_194_304)  # the window binds


# measured


@pytest.mark.parametrize(("gpus", "busbw"), [(2, 22.6), (3, 45.1), (4, 85.4), (5, 37.2), (6, 45.8), (7, 87.0), (8, 134.5)])
def test_groups_of_a_cube_mesh(gpus, busbw):
    """AllReduce of 1 GiB on the first GPUs of a DGX-1 (VIA-Research/vTrain, profiled collectives): within 6 %."""
    cost = collective_cost(shipped("dgx-1-v100"), tuple(range(gpus)), "all_reduce", GIB, Settings(profile="measured"))
    assert volume("ring", "all_reduce", gpus, GIB) / cost.time / 1e9 == pytest.approx(busbw, rel=0.06)

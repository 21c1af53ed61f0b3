"""Every member sends to the next: nccl-tests' sendrecv, the step of a ring of keys and values."""

from __future__ import annotations

import pytest
from hardware_graphs import nodes_on_rails, shipped, switched

from parsim.errors import TopologyError
from parsim.hardware.collectives import collective_cost as ring_cost
from parsim.hardware.interference import DeviceInterference, Simple
from parsim.hardware.nccl.cost import collective_cost
from parsim.hardware.nccl.inputs import Settings
from parsim.hardware.transfers import exchange
from parsim.program.program import Collective

GB, MIB = 10**9, 2**20
PLAIN = Settings(profile="nccl")


def moving(cost):
    """Time in which bytes move [s]."""
    return cost.time - cost.latency


@pytest.mark.parametrize("members", [2, 3, 8])
def test_on_a_switch_all_messages_move_at_once(members):
    """1 GB over ports of 50 GB/s, in and out at the same time: 20 ms for any number of members."""
    cluster, group = switched(8, 50), tuple(range(members))
    for cost in (collective_cost(cluster, group, "sendrecv", GB, PLAIN), ring_cost(cluster, group, "sendrecv", GB)):
        assert moving(cost) == pytest.approx(20e-3, rel=1e-12)
        (flow,) = cost.flows
        assert (flow.volume, len(flow.path), {crossings for _, crossings in flow.path}) == (GB, 2 * members, {1.0})
        assert cost.algorithm == "direct"


def test_only_links_of_members_carry_messages():
    cluster = switched(8, 50)
    found = exchange(cluster, "sendrecv", (0, 3, 5))
    names = sorted(cluster.link(link).name for link, _ in found.path)
    assert names == sorted(end for gpu in (0, 3, 5) for end in (f"node0.gpu{gpu}->nvswitch", f"node0.nvswitch->gpu{gpu}"))


@pytest.mark.parametrize(("size", "bandwidth"), [(256 * MIB, 188.6), (512 * MIB, 192.75), (1024 * MIB, 195.1)])
def test_published_rings_of_eight_a100(size, bandwidth):
    """sendrecv_perf on eight NVLink A100 (li-plus/playground, cuda/nccl.md), GB/s; nothing is fitted to them."""
    cost = collective_cost(shipped("dgx-a100-80gb"), tuple(range(8)), "sendrecv", size)
    assert size / cost.time / GB == pytest.approx(bandwidth, rel=0.04)


def test_a_ring_over_nodes_is_as_fast_as_its_slowest_edge():
    """Two of sixteen messages cross nodes, over one NIC of 48 GB/s each; those inside wait for them."""
    cluster = nodes_on_rails(2, 8, 8, 48.0, inner=360.0)
    cost = collective_cost(cluster, tuple(range(16)), "sendrecv", GB, PLAIN)
    assert moving(cost) == pytest.approx(GB / (48 * GB), rel=1e-9)
    inside = collective_cost(cluster, tuple(range(8)), "sendrecv", GB, PLAIN)
    assert moving(inside) == pytest.approx(GB / (360 * GB), rel=1e-9)
    assert cost.latency > inside.latency


def test_latency_is_that_of_one_peer():
    cluster = shipped("dgx-a100-80gb")
    two, eight = (collective_cost(cluster, tuple(range(n)), "sendrecv", 0) for n in (2, 8))
    assert two == eight
    assert eight.flows == ()
    assert eight.latency < collective_cost(cluster, tuple(range(8)), "all_to_all", 0).latency
    assert ring_cost(cluster, (0, 1, 2), "sendrecv", 0).latency == ring_cost(cluster, (0, 1), "send", 0).latency


def test_nobody_to_send_to():
    assert collective_cost(switched(2, 50), (0,), "sendrecv", GB, PLAIN).time == 0.0
    with pytest.raises(TopologyError, match="twice"):
        collective_cost(switched(4, 50), (0, 1, 1), "sendrecv", GB, PLAIN)


def test_a_ring_takes_as_few_multiprocessors_as_a_message():
    cluster = shipped("hgx-h100")

    def load(kind, group):
        size = 2**24
        device = DeviceInterference(Simple(), lambda c: collective_cost(cluster, c.group, c.kind, c.bytes), cluster, tuple(range(8)))
        return device.load(Collective(kind, "context", group, size)).multiprocessors

    assert load("sendrecv", tuple(range(8))) == load("send", (0, 1)) == 4 / 132
    assert load("all_gather", tuple(range(8))) == 24 / 132

"""All-to-all on networks whose busiest wire can be counted by hand: a ring, a torus, a full mesh and a switch."""

from __future__ import annotations

import pytest
from hardware_graphs import build, shipped, wire

from parsim.hardware.nccl.cost import collective_cost
from parsim.theory.communication import all_to_all_time, torus_all_to_all_time

COPIES = 4096 * 8 * 7168 * 2
"""send buffer of 4,096 tokens of DeepSeek-V3 with eight experts each, in bf16 [B]"""


def busiest(cluster, ranks, size):
    """(bytes on the wire that takes longest, its seconds)."""
    loads: dict[int, float] = {}
    for flow in collective_cost(cluster, tuple(range(ranks)), "all_to_all", size).flows:
        for link, crossings in flow.path:
            loads[link] = loads.get(link, 0.0) + crossings * flow.volume
    return max(((load, load / cluster.capacity(link)) for link, load in loads.items()), key=lambda row: row[1])


def torus(*dims):
    tree = {
        "name": "torus",
        "node": {"gpus": 1, "device": "chip", "vertices": [], "edges": []},
        "fabric": {"kind": "torus", "nics": ["gpu0"], "link": "ici", "dims": list(dims)},
        "links": {"ici": wire(90.0)},
    }
    nodes = 1
    for size in dims:
        nodes *= size
    return build(tree, nodes=nodes), nodes


@pytest.mark.parametrize("dims", [(16,), (8,), (4,), (4, 4), (8, 4), (4, 4, 4)])
def test_a_torus_takes_as_long_as_its_longest_ring(dims):
    """S k / (8 b): half of what each chip sends goes each way round, k / 4 hops on average."""
    cluster, nodes = torus(*dims)
    assert busiest(cluster, nodes, 1e9)[1] == pytest.approx(torus_all_to_all_time(max(dims), 1e9, 90e9), rel=1e-9)


def test_sixteen_chips_in_a_ring():
    assert busiest(torus(16)[0], 16, 1e9)[1] == pytest.approx(22.22e-3, rel=1e-3)


def test_a_mesh_and_a_switch():
    """Seven wires of 45.5 GB/s each with an eighth of the buffer; seven eighths of it over a port of 360 GB/s."""
    size, seconds = busiest(shipped("mi300x-8"), 8, COPIES)
    assert size == COPIES / 8
    assert seconds == pytest.approx(1.2906e-3, rel=1e-4)
    size, seconds = busiest(shipped("hgx-h100"), 8, COPIES)
    assert size == 411_041_792
    assert all_to_all_time(8, COPIES, 360e9) == pytest.approx(1.1418e-3, rel=1e-4)
    assert seconds == pytest.approx(all_to_all_time(8, COPIES, size / seconds), rel=1e-9) == pytest.approx(1.1418e-3, rel=0.03)

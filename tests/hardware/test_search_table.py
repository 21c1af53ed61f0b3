"""The channel search against worked-out results and measurements, machine by machine.

Rates are GB/s. Measured: all-reduce bus bandwidth of large messages. V100 cube mesh: VIA-Research/vTrain; A100, H200, B200,
MI300X: stas00/ml-engineering network/README.md; RTX 4090 and 5090: tinygrad/open-gpu-kernel-modules issue 36 and NVIDIA/nccl
issue 1639.
"""

from __future__ import annotations

import pytest
from hardware_graphs import build, two_sockets
from search_graphs import GB, GEN3, GEN4, GEN5, ask, box, machine, nvswitch, roots, switches

from parsim.hardware.nccl.search import nvls_heads


def row(found):
    return found.count, found.speed / GB, found.tier, found.carried / GB


def same(found, count, speed, tier, carried):
    assert row(found) == (count, pytest.approx(speed), tier, pytest.approx(carried))


@pytest.mark.parametrize(
    ("group", "count", "speed", "tier", "carried", "measured"),
    [
        ((0, 1), 1, 20, 0, 22.5, 22.6),
        ((0, 1, 2), 2, 20, 0, 45.0, 45.1),
        ((0, 1, 2, 3), 4, 20, 0, 90.0, 85.4),
        ((0, 1, 2, 3, 4), 2, 20, 1, 37.35, 37.2),  # GPU 0 forwards between GPU 4 and the others
        ((0, 1, 2, 3, 4, 5), 2, 20, 0, 45.0, 45.8),
        ((0, 1, 2, 3, 4, 5, 6), 4, 20, 0, 90.0, 87.0),
        ((0, 1, 2, 3, 4, 5, 6, 7), 6, 20, 0, 135.0, 134.5),
        ((0, 3), 1, 40, 0, 45.0, None),
        ((0, 4), 1, 40, 0, 45.0, None),
        ((0, 5), 1, 6, 4, 6.0, None),
        ((0, 7), 1, 6, 4, 6.0, None),
        ((0, 1, 4, 5), 2, 20, 0, 45.0, None),
        ((2, 3, 6, 7), 2, 20, 0, 45.0, None),
        ((4, 5, 6, 7), 4, 20, 0, 90.0, None),
        ((0, 2, 5, 7), 1, 6, 4, 6.0, None),
    ],
)
def test_cube_mesh(group, count, speed, tier, carried, measured):
    found = ask(machine("dgx-1-v100"), group)
    same(found, count, speed, tier, carried)
    assert found.kind == ("nvlink" if tier < 2 else "pcie")
    if measured:
        assert carried == pytest.approx(measured, rel=0.06)


def test_cube_mesh_forwards_through_the_neighbour_only():
    found = ask(machine("dgx-1-v100"), (0, 1, 2, 3, 4))
    for ring in found.channels:
        for number, hop in enumerate(ring.hops):
            far = 4 in (ring.order[number], ring.order[(number + 1) % 5])
            assert len(hop.links) == (2 if far and 0 not in (ring.order[number], ring.order[(number + 1) % 5]) else 1)


def test_cube_mesh_and_network():
    node = machine("dgx-1-v100")
    every = ask(node, range(8), network=True, ports=12 * GB)
    same(every, 4, 12, 2, 48)
    assert every.kind == "nvlink"
    assert sorted(ring.entry for ring in every.channels) == sorted(ring.exit for ring in every.channels) == [0, 1, 2, 3]
    one = ask(node, range(8), network=True, ports={1: 12 * GB})
    same(one, 1, 12, 2, 12)
    assert {one.channels[0].order[0], one.channels[0].order[-1]} == {2, 3}


def test_four_v100_with_two_links_per_pair():
    same(ask(build("4x v100-32gb").machine(0), range(4)), 6, 20, 0, 135)


@pytest.mark.parametrize(
    ("gpus", "count", "measured"), [(2, 1, 47.7), (3, 2, None), (4, 2, None), (5, 4, None), (6, 4, None), (7, 6, None), (8, 7, 312.9)]
)
def test_full_mesh_of_xgmi(gpus, count, measured):
    """A complete directed graph on 4 or 6 vertices does not split into n - 1 Hamiltonian cycles; on 3, 5, 7, 8 it does."""
    same(ask(machine("mi300x-8"), range(gpus)), count, 48, 0, 45.5 * count)
    if measured:
        assert 45.5 * count == pytest.approx(measured, rel=0.08)


def test_full_mesh_of_xgmi_and_network():
    """Nine members, the network among them: 72 directed edges make eight rings, one per NIC."""
    same(ask(machine("mi300x-8"), range(8), network=True, ports=48 * GB), 8, 48, 2, 364)


@pytest.mark.parametrize(
    ("node", "group", "count", "speed", "tier", "carried"),
    [
        (roots(4, "pcie4-x16", GEN4, "amd"), range(4), 2, 12, 3, 24),  # 24.7-26 measured on four RTX 4090 with P2P
        (roots(4, "pcie4-x16", GEN4, "intel"), range(4), 1, 20, 3, 20),
        (roots(4, "pcie3-x16", GEN3, "amd"), range(4), 1, 12, 3, 12),
        (roots(4, "pcie3-x16", GEN3, "intel"), range(4), 1, 10, 3, 10),
        (roots(4, "pcie5-x16", GEN5, "amd"), range(4), 2, 24, 3, 48),
        (roots(4, "pcie5-x16", GEN4, "amd"), range(4), 1, 40, 3, 48),
        (roots(4, "pcie5-x16", GEN5, "intel"), range(4), 1, 40, 3, 40),
        (roots(8, "pcie4-x16", GEN4, "amd", 10.0), range(8), 1, 10, 4, 10),
        (roots(8, "pcie4-x16", GEN4, "intel", 10.0), range(8), 1, 10, 4, 10),
        (roots(8, "pcie4-x16", GEN4, "amd", 16.0), range(8), 1, 15, 4, 16),
        (roots(8, "pcie4-x16", GEN4, "intel", 6.0), range(8), 1, 6, 4, 6),
        (roots(8, "pcie5-x16", GEN5, "intel", 22.0), range(8), 2, 11, 4, 22),  # 28 measured on RTX 5090 with two Sapphire Rapids
        (roots(8, "pcie5-x16", GEN5, "intel", 40.0), range(8), 1, 40, 4, 40),
        (roots(16, "pcie4-x16", GEN4, "amd", 16.0), range(16), 1, 15, 4, 16),
    ],
)
def test_pcie(node, group, count, speed, tier, carried):
    found = ask(node, group)
    same(found, count, speed, tier, carried)
    assert found.kind == "pcie"
    assert found.evaluations == 0


def test_two_sockets_in_depth_first_order():
    node = two_sockets().machine(0)
    whole = ask(node, range(8))
    assert whole.channels[0].order == tuple(range(8))
    assert whole.carried == 10e9
    mixed = ask(node, (0, 4, 1, 5))
    assert (mixed.channels[0].order, mixed.carried) == ((0, 1, 4, 5), 10e9)


def test_four_sockets():
    """Six cards on four CPUs that are all connected with each other: every socket link is crossed once at most."""
    edges = [{"from": f"gpu{gpu}", "to": f"cpu{cpu}", "kind": "pcie4-x16"} for gpu, cpu in enumerate((0, 0, 1, 2, 2, 3))]
    edges.append({"from": "cpu*", "to": "cpu*", "kind": "socket-amd"})
    node = {"gpus": 6, "device": "l40s-48gb", "vertices": ["cpu0..3"], "edges": edges}
    same(ask(build({"name": "four", "node": node}).machine(0), range(6)), 1, 15, 4, 16)


@pytest.mark.parametrize(
    ("socket", "cpu", "count", "speed", "carried"),
    [
        (16.0, "amd", 2, 15, 32),
        (22.0, "amd", 2, 22, 44),
        (40.0, "amd", 2, 24, 48),  # 49.7 measured on RTX 5090 behind 400 Gb/s NICs
        (16.0, "intel", 2, 15, 32),
        (22.0, "intel", 2, 20, 40),
        (40.0, "intel", 1, 40, 40),
    ],
)
def test_pcie_and_network(socket, cpu, count, speed, carried):
    same(ask(switches(socket, cpu), range(8), network=True, ports=48 * GB), count, speed, 4, carried)


def test_pcie_and_one_nic():
    found = ask(roots(8, "pcie4-x16", GEN4, "intel", 10.0, nics=1), range(8), network=True, ports=24 * GB)
    same(found, 1, 10, 4, 10)
    assert found.channels[0].order == tuple(range(8))


PAIRS = {"gpu": "a100-pcie", "count": 8, "interconnect": "nvlink-pairs", "sockets": 2}


@pytest.mark.parametrize(
    ("cpu", "socket", "group", "count", "speed", "tier", "carried"),
    [
        ("amd", "socket-amd", (0, 1), 6, 40, 0, 240),  # 208 measured
        ("amd", "socket-amd", (0, 1, 2), 2, 12, 3, 24),
        ("amd", "socket-amd", (0, 1, 2, 3), 4, 12, 3, 48),  # 2 x 20 fits too, but the scan goes on as far as 12 and finds more
        ("amd", "socket-amd", tuple(range(8)), 1, 15, 4, 16),  # 20 measured
        ("intel", "socket-skylake", (0, 1), 6, 40, 0, 240),
        ("intel", "socket-skylake", (0, 1, 2), 1, 20, 3, 20),
        ("intel", "socket-skylake", (0, 1, 2, 3), 2, 20, 3, 40),
        ("intel", "socket-skylake", tuple(range(8)), 1, 10, 4, 10),
    ],
)
def test_bridged_pairs(cpu, socket, group, count, speed, tier, carried):
    """Two rings leave a pair, one by the host port of each card."""
    same(ask(box(**PAIRS, cpu=cpu, socket_link=socket), group), count, speed, tier, carried)


@pytest.mark.parametrize(
    ("node", "count", "speed", "carried", "measured"),
    [
        (machine("dgx-a100-80gb"), 12, 20, 240, 234.9),
        (machine("hgx-h100"), 12, 30, 360, 367.2),
        (machine("hgx-b200"), 16, 45, 720, 682),
        (nvswitch(8, "h100-sxm-80gb", "nvlink4", 8), 8, 20, 160, None),
        (nvswitch(16, "v100-sxm2-32gb", "nvlink2", 6), 6, 20, 135, None),  # 120 planned, bytes move at 22.5 per link
        (machine("gb200-nvl72"), 16, 45, 720, 680),
    ],
)
def test_nvswitch(node, count, speed, carried, measured):
    found = ask(node, range(node.gpus))
    same(found, count, speed, 0, carried)
    assert found.channels[0].order == tuple(range(node.gpus))
    assert found.evaluations == 0
    if measured:
        assert carried == pytest.approx(measured, rel=0.06)
    part = ask(node, range(1, 4))
    assert row(part) == row(found)


@pytest.mark.parametrize(
    ("name", "ports", "count", "speed", "measured"),
    [
        ("dgx-a100-80gb", 24.0, 8, 24, 192),
        ("dgx-a100-80gb", {0: 24.0, 2: 24.0, 4: 24.0, 6: 24.0}, 4, 24, 96),
        ("dgx-a100-80gb", 12.0, 8, 12, None),
        ("aws-p4d", 12.0, 4, 12, None),
        ("hgx-h100", 48.0, 8, 48, 392),
        ("hgx-h100", {0: 48.0, 2: 48.0, 4: 48.0, 6: 48.0}, 4, 48, 190),
        ("hgx-b200", 48.0, 8, 48, 382),
    ],
)
def test_nvswitch_and_network(name, ports, count, speed, measured):
    """One ring per NIC. On Hopper eight of 48 are more than the NVLinks of a GPU (8 x 48 = 384 > 370.8): they leave by another NIC than
    they came by, which saves every GPU the hop back of one (a log: "Pattern 4, crossNic 2, nChannels 8, bw 48.000000/48.000000")."""
    rates = ports * GB if isinstance(ports, float) else {port: rate * GB for port, rate in ports.items()}
    found = ask(machine(name), range(8), network=True, ports=rates)
    same(found, count, speed, 2, count * speed)
    crossed = (name, ports) == ("hgx-h100", 48.0)
    assert all((ring.entry == ring.exit) != crossed for ring in found.channels)
    assert len({ring.entry for ring in found.channels}) == len({ring.exit for ring in found.channels}) == count
    if measured:
        assert count * speed == pytest.approx(measured, rel=0.03)


def test_faster_nics_on_a_faster_bus():
    """Eight NICs of 96 on ports of 96: 8 x 86 through the same NIC, as 8 x 96 = 768 exceeds 721.8; 8 x 96 where rings may cross."""
    edges = [
        {"from": "gpu*", "to": "nvswitch", "kind": "nvlink5", "count": 18},
        {"from": "gpu*", "to": "pcie*", "kind": "pcie6-x16", "pair": "one-to-one"},
        {"from": "nic*", "to": "pcie*", "kind": "pcie6-x16", "pair": "one-to-one"},
    ]
    node = {"gpus": 8, "device": "b200-sxm-180gb", "vertices": ["nvswitch", "pcie0..7", "nic0..7"], "edges": edges}
    xdr = build({"name": "xdr", "node": node}).machine(0)
    for cross, speed in ((False, 86), (True, 96)):
        found = ask(xdr, range(8), network=True, ports=96 * GB, cross=cross)
        assert (found.count, found.speed) == (8, pytest.approx(speed * GB))


def test_rails_of_a_group():
    node = machine("hgx-h100")
    (ring,) = ask(node, (3,), network=True, ports=48 * GB).channels
    assert (ring.order, ring.entry, ring.exit) == ((3,), 3, 3)
    crossed = ask(node, range(8), network=True, ports=48 * GB).channels
    assert (crossed[3].order, crossed[3].entry, crossed[3].exit) == ((3, 0, 1, 4, 5, 6, 7, 2), 3, 2)
    assert (crossed[2].order, crossed[2].entry, crossed[2].exit) == ((2, 0, 1, 4, 5, 6, 7, 3), 2, 3)
    rings = ask(node, range(8), network=True, ports=48 * GB, cross=False).channels
    assert rings[3].order == (3, 4, 5, 6, 7, 0, 1, 2)
    assert [len(hop.links) for hop in rings[3].hops] == [2] * 8 + [4]  # the last GPU reaches the NIC over NVLink and GPU 3
    shared = ask(machine("aws-p4d"), range(8), network=True, ports=12 * GB).channels
    assert shared[1].order == (2, 4, 5, 6, 7, 0, 1, 3)  # two GPUs own a NIC: in by one, out by the other


def test_heads_of_the_nvswitch():
    """Bus bandwidth measured on 5 to 8 H200: 414, 436, 460, 473; the reduction moves 2 (h - 1) / h of it per byte at 85 %."""
    hopper = nvls_heads(machine("hgx-h100"), tuple(range(8)))
    assert (hopper.count, hopper.speed, hopper.unquantised) == (8, 40 * GB, pytest.approx(41.2 * GB))
    blackwell = nvls_heads(machine("hgx-b200"), tuple(range(8)))
    assert (blackwell.count, blackwell.speed, blackwell.unquantised) == (8, 80 * GB, pytest.approx(80.2 * GB))
    for gpus, measured in ((5, 414), (6, 436), (7, 460), (8, 473)):
        heads = nvls_heads(machine("hgx-h100"), tuple(range(gpus)))
        moved = 0.972 * 0.85 * heads.count * heads.unquantised * (gpus - 1) / gpus * 2
        assert moved / GB == pytest.approx(measured, rel=0.015)
    assert nvls_heads(machine("dgx-a100-80gb"), tuple(range(8))) is None
    assert nvls_heads(roots(4, "pcie5-x16", GEN5, "amd"), (0, 1)) is None


def test_staging_in_host_memory():
    """Without peer-to-peer the plan does not know host memory, the bytes do."""
    found = ask(machine("8x-rtx-4090-pcie"), range(8))
    assert row(found) == (1, 15, 4, 10)


def test_a_bridge_of_slower_links():
    same(ask(machine("workstation-2x-rtx-3090"), (0, 1)), 1, 40, 0, 48)

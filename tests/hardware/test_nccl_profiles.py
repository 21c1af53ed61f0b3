"""The measured profile against published sweeps, and its neutral counterpart; point-to-point operations."""

from __future__ import annotations

import pytest
from pair_formulas import Exchange, all_to_all_time, loop_time, pipeline_time, send_time

from parsim.errors import TopologyError
from parsim.hardware.nccl import p2p
from parsim.hardware.nccl.estimate import CollectiveEstimate, choose, estimate
from parsim.hardware.nccl.inputs import Graph, Heads, Inputs, Settings
from parsim.hardware.nccl.profiles import MEASURED, NCCL, PROFILES, profile

GB = 1e9
MIB = 2**20
GIB = 2**30


def busbw(inputs: Inputs, size: float, kind: str = "all_reduce", **settings) -> float:
    n = inputs.ranks
    factor = {"all_reduce": 2 * (n - 1) / n}.get(kind, (n - 1) / n)
    return factor * size / estimate(inputs, kind, size, Settings(**settings)).time / GB


def hopper(ranks: int, listed: float) -> Inputs:
    heads = Heads(ranks, listed * GB, unquantised=370.8 / (ranks + 1) * GB)
    return Inputs(ranks, Graph(12, 30 * GB), capability=9.0, nvls=heads, local="nvlink4")


def blackwell(ranks: int, listed: float) -> Inputs:
    heads = Heads(ranks, listed * GB, unquantised=721.8 / (ranks + 1) * GB)
    return Inputs(ranks, Graph(16, 45 * GB), capability=10.0, nvls=heads, local="nvlink5")


A100 = Inputs(8, Graph(12, 20 * GB))


@pytest.mark.parametrize(("ranks", "expected"), [(2, 195), (3, 213), (4, 219), (5, 223), (6, 225), (7, 226), (8, 227)])
def test_groups_of_an_a100_node_at_1_gib(ranks, expected):
    """Measured 197, 212, 222, 224, 227, 227, 229 GB/s (VIA-Research/vTrain)."""
    assert busbw(Inputs(ranks, Graph(12, 20 * GB)), GIB) == pytest.approx(expected, abs=0.6)


@pytest.mark.parametrize(("ranks", "listed", "expected"), [(5, 60, 409), (6, 50, 438), (7, 40, 460), (8, 40, 477)])
def test_nvls_on_hopper_moves_what_the_links_give(ranks, listed, expected):
    """Measured 414, 436, 460, 473 to 480 GB/s (stas00/ml-engineering, H200)."""
    one = estimate(hopper(ranks, listed), "all_reduce", 2**46)
    assert one.choice.algorithm == "nvls"
    assert 2 * (ranks - 1) / ranks * 2**46 / one.transfer / GB == pytest.approx(expected, abs=0.6)


@pytest.mark.parametrize(("ranks", "listed", "expected"), [(6, 90, 772), (7, 90, 811), (8, 80, 841)])
def test_nvls_on_blackwell(ranks, listed, expected):
    """Measured 778, 811, 838 GB/s (stas00/ml-engineering, B200)."""
    one = estimate(blackwell(ranks, listed), "all_reduce", 2**46)
    assert one.choice.algorithm == "nvls"
    assert 2 * (ranks - 1) / ranks * 2**46 / one.transfer / GB == pytest.approx(expected, abs=0.6)


def test_choice_on_blackwell_counts_on_the_unrounded_heads():
    """Ring up to 5 GPUs, NVLS from 6, as measured; the library's list alone would keep the ring at 6."""
    for ranks, listed in ((4, 90), (5, 90), (6, 90), (7, 90), (8, 80)):
        chosen = estimate(blackwell(ranks, listed), "all_reduce", 8 * GIB).choice.algorithm
        assert chosen == ("ring" if ranks < 6 else "nvls")
    assert estimate(blackwell(6, 90), "all_reduce", 8 * GIB, used=NCCL).choice.algorithm == "ring"
    assert estimate(hopper(4, 60), "all_reduce", GIB).choice.algorithm == "ring"


@pytest.mark.parametrize(
    ("size", "measured"),
    [(4 * MIB, 107), (16 * MIB, 220), (64 * MIB, 347), (512 * MIB, 450)],
)
def test_h200_sweep(size, measured):
    """stas00/ml-engineering network/README.md, 8 H200, driven from Python."""
    time = loop_time(estimate(hopper(8, 40), "all_reduce", size))
    assert 1.75 * size / time / GB == pytest.approx(measured, rel=0.08)


def test_a_mebibyte_between_two_machines():
    """28.6 us on eight H100 driven by nccl-tests (p5), 45.9 on eight H200 driven from Python, which adds eight."""
    assert 28.6e-6 < estimate(hopper(8, 40), "all_reduce", MIB).time < 45.9e-6 - 8e-6


def test_host_driven_loops_are_bound_by_the_host():
    one = estimate(hopper(8, 40), "all_reduce", 4096)
    assert loop_time(one) == 38e-6
    assert loop_time(one, issue=0.0, call=0.0) == one.time


def test_real_links_of_a_mesh():
    """22.5 GB/s per link where the library plans with 20: 134.5 measured on 8 V100 (VIA-Research/vTrain)."""
    mesh = Inputs(8, Graph(6, 20 * GB, moved=135 * GB), capability=7.0, local="nvlink2")
    assert busbw(mesh, GIB) == pytest.approx(134.5, rel=0.01)
    assert busbw(mesh, GIB, profile="nccl") == pytest.approx(120, rel=0.01)


@pytest.mark.parametrize("name", ["nccl", "measured"])
@pytest.mark.parametrize("size", [0, 64, 4096, MIB, 16 * MIB, GIB])
def test_corrections_never_change_the_choice(name, size):
    for inputs in (A100, hopper(8, 40), Inputs(32, Graph(8, 45 * GB), nodes=4, capability=9.0, network_latency=20e-6)):
        chosen = estimate(inputs, "all_reduce", size, Settings(profile=name)).choice
        assert chosen == choose(inputs, "all_reduce", size)


def test_neutral_profile_is_the_prediction():
    for size in (0, 1000, MIB, GIB):
        one = estimate(A100, "all_gather", size, Settings(profile="nccl"))
        assert one.time == one.choice.time
        assert one.latency == one.choice.latency


def test_ll_is_not_corrected():
    one = estimate(A100, "all_reduce", 65536)
    assert one.choice.protocol == "ll"
    assert one.transfer == pytest.approx(65536 / one.choice.bandwidth * (1 + 0.4 / 14) + 50e-6 * 65536 / (65536 + 10e6))


def test_launch():
    one = estimate(A100, "barrier", 0)
    assert one.latency == pytest.approx(17e-6)
    assert one.transfer == 0.0
    two = Inputs(16, Graph(8, 24 * GB), nodes=2)
    assert estimate(two, "barrier", 0).latency - estimate(two, "barrier", 0, used=NCCL).latency == pytest.approx(3e-6)


def test_congested_clusters():
    sixteen = Inputs(128, Graph(8, 45 * GB), nodes=16, capability=9.0)
    healthy = estimate(sixteen, "all_gather", GIB)
    crowded = estimate(sixteen, "all_gather", GIB, Settings(scale_exponent=0.5))
    assert crowded.transfer / healthy.transfer == pytest.approx(8**0.5)
    two = Inputs(16, Graph(8, 45 * GB), nodes=2, capability=9.0)
    assert estimate(two, "all_gather", GIB, Settings(scale_exponent=0.5)) == estimate(two, "all_gather", GIB)


def test_profiles_by_name():
    assert profile("measured") is MEASURED
    assert set(PROFILES) == {"measured", "nccl"}
    with pytest.raises(TopologyError, match="known: measured, nccl"):
        profile("fast")


def test_every_parameter_has_a_source():
    for table in (MEASURED.local, MEASURED.local_nvls, MEASURED.pairs):
        assert all(pace.source for pace in table.values())


def test_estimate_adds_up():
    one = estimate(A100, "all_reduce", GIB)
    assert isinstance(one, CollectiveEstimate)
    assert one.time == one.latency + one.transfer
    assert one.ctas == 24


# point to point


def test_pipelined_broadcast():
    assert pipeline_time(64 * MIB, MIB, 3, 25e9) == pytest.approx(2.76824064e-3, rel=1e-12)
    assert pipeline_time(64 * MIB, 64, 3, 25e9) == pytest.approx(2.68435456e-3, rel=1e-5)
    assert pipeline_time(MIB, MIB, 3, 25e9, step=1e-6) == pytest.approx(3 * MIB / 25e9 + 3e-6)


@pytest.mark.parametrize(
    ("way", "rate"),
    [
        (p2p.Transport(240 * GB, local="nvlink3"), 223),
        (p2p.Transport(370.8 * GB, local="nvlink4"), 362),
        (p2p.Transport(24 * GB, local="pcie"), 24),
        (p2p.Transport(48 * GB, crosses=True), 48),
    ],
)
def test_send_rate(way, rate):
    """223 and 362 GB/s between two GPUs of a node (microsoft/vidur, send_recv profiles)."""
    assert p2p.send_rate(way, MEASURED) / GB == pytest.approx(rate, abs=0.3)
    assert p2p.send_rate(way, NCCL) == way.bandwidth


def test_send_latency_and_cap():
    way = p2p.Transport(48 * GB, hops=3e-6, crosses=True, cpu="amd", network_latency=20e-6)
    assert p2p.send_latency(way, p2p.SHORT) == pytest.approx((5 + 3 + 2 + 12 + 2 * 20) * 1e-6)
    assert p2p.send_latency(way, p2p.SHORT + 1) == pytest.approx((5 + 3 + 2 + 2 * 12 + 2 * 20) * 1e-6)
    assert send_time(way, 0, MEASURED) == p2p.send_latency(way, 0)
    assert p2p.send_rate(way, MEASURED, connection_cap=13 * GB) == 13 * GB
    assert send_time(way, 13 * GB, MEASURED, 13 * GB) == pytest.approx(1.000074)


@pytest.mark.parametrize(
    ("nodes", "nvlink_time", "time", "busbw"),
    [(2, 1.215278e-3, 10.416667e-3, 90.0), (16, 0.151910e-3, 19.531250e-3, 50.8)],
)
def test_all_to_all_over_nodes(nodes, nvlink_time, time, busbw):
    ranks, size = 8 * nodes, 1e9
    group = Exchange(ranks, 8, p2p.Transport(360 * GB), network=48 * GB)
    waiting = p2p.exchange_latency(ranks, 8, group.way, NCCL, size / ranks)
    moving = all_to_all_time(group, size, NCCL) - waiting
    assert size * 7 / ranks / (360 * GB) == pytest.approx(nvlink_time, rel=1e-4)
    assert moving == pytest.approx(size * (ranks - 8) / ranks / (48 * GB))
    if nodes == 2:
        assert moving == pytest.approx(time, rel=1e-6)
    assert (ranks - 1) / ranks * size / moving / GB == pytest.approx(busbw, rel=1e-6)


@pytest.mark.parametrize(("ranks", "bandwidth"), [(2, 155), (4, 201.6), (8, 201.6)])
def test_all_to_all_inside_an_a100_node(ranks, bandwidth):
    """Between large messages (PKU-DAIR/Hetu-Galvatron, profiled node)."""
    group = Exchange(ranks, ranks, p2p.Transport(240 * GB, 0.6e-6, "nvlink3"))
    more = all_to_all_time(group, 200 * GIB, MEASURED) - all_to_all_time(group, 100 * GIB, MEASURED)
    assert 100 * GIB * (ranks - 1) / ranks / more / GB == pytest.approx(bandwidth, rel=0.002)


@pytest.mark.parametrize(("size", "time"), [(4096, 11.1), (16 * MIB, 82.9), (256 * MIB, 761), (8 * GIB, 21730)])
def test_all_to_all_inside_a_hopper_node(size, time):
    """Eight H20 (deepseek-ai/DeepEP issue 303) up to 4 KiB, eight H100 (MooreThreads/SimuMax) from 16 MiB on."""
    group = Exchange(8, 8, p2p.Transport(370.8 * GB, 0.6e-6, "nvlink4"))
    assert all_to_all_time(group, size, MEASURED) * 1e6 == pytest.approx(time, rel=0.07 if size < MIB else 0.015)


def test_long_messages_wait_for_each_peer_of_a_batch():
    """One kernel; a channel serves eight peers at once, so 63 wait no longer than eight."""
    way = p2p.Transport(720 * GB, 0.6e-6, "nvlink5")
    few, eight, many = (p2p.exchange_latency(ranks, ranks, way, MEASURED, 1e6) for ranks in (2, 9, 64))
    assert (eight - few, many - eight) == pytest.approx((7 * 4.5e-6, 0.0))


def test_all_to_all_waits_for_the_slower_wire():
    inside = Exchange(16, 8, p2p.Transport(10 * GB), network=1000 * GB)
    moving = all_to_all_time(inside, 1e9, NCCL) - p2p.exchange_latency(16, 8, inside.way, NCCL, 1e9 / 16)
    assert moving == pytest.approx(7 / 16 * 1e9 / (10 * GB))
    capped = Exchange(16, 8, p2p.Transport(360 * GB), network=48 * GB)
    slow = all_to_all_time(capped, 1e9, NCCL, connection_cap=24 * GB) - p2p.exchange_latency(16, 8, capped.way, NCCL, 1e9 / 16)
    assert slow == pytest.approx(0.5e9 / (24 * GB))

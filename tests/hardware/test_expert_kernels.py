"""DeepEP's kernels against what its authors printed (deepseek-ai/DeepEP docs/legacy.md): H800, one 400 Gb/s NIC per GPU."""

from __future__ import annotations

import pytest
from hardware_graphs import build, shipped

from parsim.errors import TopologyError
from parsim.hardware.nccl.cost import collective_cost
from parsim.hardware.nccl.inputs import Settings

FP8, BF16 = 7168 + 7168 // 128 * 4, 2 * 7168
"""bytes of a token: a scale in fp32 for every 128 values"""


def h800(nodes):
    tree = {
        "name": "h800",
        "node": {
            "gpus": 8, "device": "h800-sxm-80gb", "vertices": ["nvswitch", "cpu0", "pcie0..7", "nic0..7"],
            "edges": [
                {"from": "gpu*", "to": "nvswitch", "kind": "nvlink4", "count": 8},
                {"from": "gpu*", "to": "pcie*", "kind": "pcie5-x16", "pair": "one-to-one"},
                {"from": "nic*", "to": "pcie*", "kind": "pcie5-x16", "pair": "one-to-one"},
                {"from": "pcie*", "to": "cpu0", "kind": "pcie5-x16"},
            ],
        },
        "fabric": {"kind": "rail-optimised", "nics": ["nic0..7"], "link": "ib-ndr"},
    }  # fmt: skip
    return build(tree, nodes=nodes)


@pytest.mark.parametrize(
    ("ranks", "token", "measured"),
    [
        (8, FP8, 77), (8, BF16, 114), (16, FP8, 118), (16, BF16, 195), (32, FP8, 155), (32, BF16, 273),
        (64, FP8, 173), (64, BF16, 314), (128, FP8, 192), (128, BF16, 369), (256, FP8, 194), (256, BF16, 360),
    ],
)  # fmt: skip
def test_low_latency(ranks, token, measured):
    """128 tokens per rank, eight experts each; bytes that stay in the machine use NVLink at the same time. One machine: within 12 %."""
    cluster = h800(max(ranks // 8, 1))
    time = collective_cost(cluster, tuple(range(ranks)), "all_to_all", 128 * 8 * token, Settings(kernels="deepep-low-latency")).time
    assert time * 1e6 == pytest.approx(measured, rel=0.12 if ranks == 8 else 0.09)


@pytest.mark.parametrize(("nodes", "printed"), [(4, 58), (4, 57), (8, 51), (8, 50)])
def test_normal_kernels_fill_the_nic(nodes, printed):
    """Printed rates count the own machine: (n - 1) / n of them leave it. Before them ranks tell each other how much comes."""
    size, ranks = 2**28, 8 * nodes
    cost = collective_cost(h800(nodes), tuple(range(ranks)), "all_to_all", size, Settings(kernels="deepep"))
    assert size * (ranks - 8) / ranks / (cost.time - cost.latency) / 1e9 == pytest.approx(45.0)
    left = size * (ranks - 8) / ranks / cost.time / 1e9
    assert left == pytest.approx(printed * (nodes - 1) / nodes, rel=0.035)


@pytest.mark.parametrize(
    ("kernels", "nodes", "microseconds"),
    [("deepep", 1, 69), ("deepep", 4, 96), ("deepep-low-latency", 1, 25), ("deepep-low-latency", 8, 25)],
)
def test_a_small_message_takes_what_passes_before_it(kernels, nodes, microseconds):
    """The exchange of counts (deepseek-ai/DeepEP issue 397: 96 us over four machines); 1 KiB itself takes less than a microsecond."""
    time = collective_cost(h800(nodes), tuple(range(8 * nodes)), "all_to_all", 1024, Settings(kernels=kernels)).time
    assert microseconds * 1e-6 < time < (microseconds + 1) * 1e-6


def test_what_passes_before_the_bytes_in_one_machine_follows_from_two_sizes():
    """4,096 tokens of 5.29 ranks: 153 GB/s printed with 7,392 bytes and 158 GB/s with 14,336 are two points of one line."""
    tokens = 4096 * 5.294652
    short, long = tokens * FP8, tokens * BF16
    rate = (long - short) / (long / 158e9 - short / 153e9)
    assert rate / 1e9 == pytest.approx(163.7, abs=0.1)
    assert short / 153e9 - short / rate == pytest.approx(69e-6, rel=0.02)


def test_normal_kernels_in_a_machine_fill_nvlink():
    """153 and 158 GB/s printed of 160."""
    size = 2**28
    time = collective_cost(h800(1), tuple(range(8)), "all_to_all", size, Settings(kernels="deepep")).time
    assert 7 / 8 * size / time / 1e9 == pytest.approx(155.5, rel=0.06)


def test_refusals():
    cluster = shipped("hgx-h100")
    with pytest.raises(TopologyError, match="known: nccl, deepep"):
        collective_cost(cluster, (0, 1), "all_to_all", 1, Settings(kernels="pplx"))
    with pytest.raises(TopologyError, match="it has no all_reduce"):
        collective_cost(cluster, (0, 1), "all_reduce", 1, Settings(kernels="deepep"))

"""Tokens that travel once to every machine and rank: bytes on the links, and what DeepEP's and HybridEP's authors printed."""

from __future__ import annotations

import math

import pytest
from hardware_graphs import device, shipped
from test_expert_kernels import BF16, FP8, h800

from parsim.errors import TopologyError
from parsim.hardware.kernels import kernel_time
from parsim.hardware.nccl.cost import collective_cost
from parsim.hardware.nccl.expert_kernels import KERNELS
from parsim.hardware.nccl.token_exchange import TokenExchange, deepep_buffers, token_exchange_cost
from parsim.kernel import Memory
from parsim.routing import Routing

TOKENS = 4096


def exchange(cluster, ranks, token, kernels="deepep", routing=None):
    how = TokenExchange(kernels, routing or Routing(256, 8, ranks), 20)
    return token_exchange_cost(cluster, tuple(range(ranks)), TOKENS * token, how)


def carried(cluster, cost, *, nic):
    """Bytes out of the busiest GPU over its NIC, or over its NVLinks."""
    links = {link: crossings * flow.volume for flow in cost.flows for link, crossings in flow.path}
    kept = [size for link, size in links.items() if (link >= cluster.first_fabric_link) == nic]
    return max(kept)


@pytest.mark.parametrize(("token", "expected"), [(FP8, 140_270_834), (BF16, 272_040_406)])
def test_a_token_crosses_to_each_machine_once(token, expected):
    """4,096 tokens on each of 64 ranks: 5.29 of eight machines, of which seven are others; the all-to-all sends 1.5 times as much."""
    cluster = h800(8)
    cost = exchange(cluster, 64, token)
    assert carried(cluster, cost, nic=True) == pytest.approx(expected, rel=1e-7)
    copies = collective_cost(cluster, tuple(range(64)), "all_to_all", 8 * TOKENS * BF16)
    assert carried(cluster, copies, nic=True) == pytest.approx(411_041_792, rel=1e-9)
    inside = TOKENS * token * Routing(256, 8, 64).visited() * 7 / 8
    assert carried(cluster, cost, nic=False) == pytest.approx(inside, rel=1e-9)


@pytest.mark.parametrize(
    ("machines", "token", "printed", "within"),
    [
        (1, FP8, 153, 0.01), (1, BF16, 158, 0.01), (2, FP8, 43, 0.04), (2, BF16, 43, 0.02),
        (4, FP8, 58, 0.02), (4, BF16, 57, 0.03), (8, FP8, 51, 0.035), (8, BF16, 50, 0.02),
    ],
)  # fmt: skip
def test_deepep_as_printed(machines, token, printed, within):
    """docs/legacy.md: tokens of every machine (in one machine: of every rank) that a token visits over the time [GB/s].

    On two machines, where a token visits nearly both, what a rank passes on to the ranks of its machine is the slower leg.
    """
    limited = {"groups": 8, "kept": 4} if machines == 8 else {}
    routing = Routing(256, 8, 8 * machines, **limited)
    places = [(slot,) for slot in range(8)] if machines == 1 else [tuple(range(8 * n, 8 * n + 8)) for n in range(machines)]
    time = exchange(h800(machines), 8 * machines, token, routing=routing).time
    assert TOKENS * token * routing.distinct(tuple(places)) / time / 1e9 == pytest.approx(printed, rel=within)


@pytest.mark.parametrize(("printed", "within"), [(44.37, 0.04), (40.89, 0.05), (44.67, 0.05)])
def test_two_machines_with_faster_nvlink_are_no_faster(printed, within):
    """bf16 over 2 x 8 H200 and H100 [GB/s, own machine included]: deepseek-ai/DeepEP issue 493 (combine, dispatch), pull request 181."""
    routing = Routing(256, 8, 16)
    time = exchange(shipped("hgx-h100", nodes=2), 16, BF16, routing=routing).time
    places = tuple(tuple(range(8 * n, 8 * n + 8)) for n in range(2))
    assert TOKENS * BF16 * routing.distinct(places) / time / 1e9 == pytest.approx(printed, rel=within)


@pytest.mark.parametrize(("multiprocessors", "dispatch", "combine"), [(80, 920, 536), (160, 612, 484)])
def test_deepep_on_amd_gpus_as_printed(multiprocessors, dispatch, combine):
    """AMD-AGI/Primus fb0603b, agent/workspace/qwen3_fp8_tw_gfx950_20261010/logs/optimize.md [us]: 8 MI355X, 32,768 tokens in turn."""
    routing = Routing(128, 8, 8, in_turn=True)
    cost = token_exchange_cost(shipped("mi355x-8"), tuple(range(8)), 32768 * 4096, TokenExchange("deepep", routing, multiprocessors))
    assert cost.time * 1e6 == pytest.approx((dispatch + combine) / 2, rel=0.03)


@pytest.mark.parametrize(("ranks", "dispatch", "combine"), [(8, 764, 737), (16, 707, 666), (24, 666, 640), (32, 642, 605), (36, 632, 597)])
def test_hybridep_in_a_rack_as_printed(ranks, dispatch, combine):
    """docs/README_Hybrid-EP.md, GB200, eight experts on a rank, 32 multiprocessors, kernels only [GB/s]."""
    routing = Routing(8 * ranks, 8, ranks)
    cost = exchange(shipped("gb200-nvl72"), ranks, BF16, "hybridep", routing)
    time = cost.time - cost.latency
    rate = TOKENS * BF16 * routing.visited() / time / 1e9
    assert rate == pytest.approx(math.sqrt(dispatch * combine), rel=0.08)


@pytest.mark.parametrize(("machines", "dispatch", "combine"), [(4, 57.69, 57.46), (8, 49.97, 49.77)])
def test_hybridep_over_machines_as_printed(machines, dispatch, combine):
    ranks = 8 * machines
    routing = Routing(8 * ranks, 8, ranks)
    cost = exchange(shipped("hgx-h100", nodes=machines), ranks, BF16, "hybridep", routing)
    time = cost.time - cost.latency
    places = tuple(tuple(range(8 * n, 8 * n + 8)) for n in range(machines))
    assert TOKENS * BF16 * routing.distinct(places) / time / 1e9 == pytest.approx(math.sqrt(dispatch * combine), rel=0.03)


def test_hybridep_calls_beside_their_kernels():
    """docs/README_Hybrid-EP.md, bf16 [GB/s]: dispatch through PyTorch and its kernel alone, combine alike; a copy of what arrived between.

    Over two machines of 8 B300 [us]: deepseek-ai/DeepEP issue 590, 393.84 MB on every rank.
    """
    rows = [
        ("b200-sxm-180gb", 8, 535.94, 734.95, 530.86, 673.84), ("gb200-186gb", 8, 545.71, 764.03, 568.94, 737.13),
        ("gb200-186gb", 16, 523.48, 706.95, 521.55, 666.26), ("gb200-186gb", 24, 507.32, 665.97, 483.76, 639.80),
        ("gb200-186gb", 32, 484.22, 642.23, 464.54, 605.15), ("gb200-186gb", 36, 479.02, 632.31, 447.89, 596.99),
    ]  # fmt: skip
    left = []
    for gpu, ranks, *rates in rows:
        arrived = TOKENS * BF16 * Routing(8 * ranks, 8, ranks).visited()
        copied = kernel_time(device(gpu), Memory(2 * arrived))
        left += [arrived / call / 1e9 - arrived / kernel / 1e9 - copied for call, kernel in (rates[:2], rates[2:])]
    assert sum(left) / len(left) == pytest.approx(KERNELS["hybridep"].latency, rel=0.01)
    copied = kernel_time(device("b300-sxm-288gb"), Memory(2 * 393.84e6))
    between = [(call - kernel) * 1e-6 - copied for call, kernel in ((2884.3, 2638.9), (3054.8, 2896.4))]
    assert sum(between) / 2 == pytest.approx(KERNELS["hybridep"].latency_between, rel=0.01)


def test_two_ranks_that_share_experts_get_the_same_tokens():
    """Four slots of two ranks: a rank sends to both, and machines are visited as often as with one rank."""
    cluster = h800(2)
    one, two = (exchange(cluster, 16, BF16, routing=Routing(8, 2, 16 // width, width)) for width in (2, 4))
    half = tuple(tuple(range(4 * n, 4 * n + 4)) for n in range(2))
    assert carried(cluster, one, nic=True) == pytest.approx(TOKENS * BF16 * Routing(8, 2, 8).distinct(half) / 2)
    assert carried(cluster, one, nic=True) == pytest.approx(carried(cluster, two, nic=True))
    assert carried(cluster, two, nic=False) > carried(cluster, one, nic=False)


def test_buffers():
    assert deepep_buffers(64, 7168, 20) == (377_677_824, 336_047_360)
    assert deepep_buffers(8, 7168, 20) == (335_709_824, 0)


def test_machines_with_unequally_many_ranks():
    how = TokenExchange("deepep", Routing(8, 2, 4), 20)
    with pytest.raises(TopologyError, match="as many ranks on every machine, not 1 and 3"):
        token_exchange_cost(h800(2), (0, 1, 2, 8), 1 << 20, how)

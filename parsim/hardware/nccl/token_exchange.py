"""Exchanges of tokens that send each token once to every machine and once to every rank it visits (DeepEP, HybridEP).

A token goes over the NIC to the rank that stands where its own rank does on each machine it visits, and from there over
NVLink to the ranks it visits; at home it goes to the ranks directly. On the way back the same ranks sum first (deepseek-ai/DeepEP,
csrc/kernels/internode.cu). Both legs run at the same time, chunk after chunk. With T tokens of B bytes on every rank, m machines of g
ranks, and D machines and d ranks that a token visits on average, a rank sends

    T D (m - 1) / m B over its NIC,  T d (g - 1) / g B over NVLink
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.nccl.cost import least_rate
from parsim.hardware.nccl.expert_kernels import KERNELS
from parsim.hardware.nccl.rings import port_rates
from parsim.hardware.transfers import EqualMessages, between
from parsim.routing import Routing

NVLINK_PEERS, TOP_K, SCALES = 8, 128, 128
"""DeepEP: ranks of a machine; experts per token and scales that its buffers have room for"""
_CHUNKS = ((8, 256), (64, 288), (128, 560), (10**9, 720))
"""DeepEP: ranks up to which a rank's NVLink buffer holds so many tokens of each peer (deep_ep/buffer.py, get_dispatch_config)"""
_RDMA_CHUNK, _META, _CONTROL = 128, 8, 16
"""tokens of each peer machine in the RDMA buffer; bytes of a token's source, and of its control word"""


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """How a job's tokens travel: whose kernels, which ranks they visit, the multiprocessors of a kernel."""

    kernels: str
    routing: Routing
    multiprocessors: int


def token_exchange_cost(cluster: Cluster, group: tuple[int, ...], size: int, how: TokenExchange) -> CollectiveCost:
    """Cost of one exchange among the GPUs `group`, each with tokens of `size` bytes.

    Raises:
        TopologyError: machines with unequally many members.
    """
    if len(group) < 2:
        return CollectiveCost(0.0, (), "none", "none")
    machines: dict[int, list[int]] = {}
    for place, gpu in enumerate(group):
        machines.setdefault(cluster.node_of(gpu), []).append(place)
    held = {len(places) for places in machines.values()}
    if len(held) > 1:
        text = f"{how.kernels} needs as many ranks on every machine, not {' and '.join(map(str, sorted(held)))}"
        raise TopologyError(Finding(text, "parallel.expert.size", len(group), "use dispatcher alltoall, or whole machines"))
    each, kernels, routing = held.pop(), KERNELS[how.kernels], how.routing
    flows = []
    if len(machines) > 1:
        columns = [[group[places[column]] for places in machines.values()] for column in range(each)]
        visited = routing.distinct(tuple(tuple(sorted({place // routing.width for place in places})) for places in machines.values()))
        line = min(min(port_rates(cluster, node).values()) for node in machines)
        pairs = between(cluster, [(a, b) for column in columns for a in column for b in column if a != b])
        flows.append(_flow(cluster, pairs, size * visited / len(machines), kernels.nvlink, kernels.nic * line))
    if each > 1:
        rows = [[group[place] for place in places] for places in machines.values()]
        pairs = between(cluster, [(a, b) for row in rows for a in row for b in row if a != b])
        share = kernels.nvlink * (1 - 1 / each if kernels.own else 1)
        inside = _flow(cluster, pairs, size * routing.visited() / each, share, 0.0)
        passed = kernels.passing / each if kernels.passing and len(machines) > 1 else math.inf
        rate = min(inside.cap, passed)
        if kernels.copied and cluster.device(group[0]).architecture.startswith("cdna"):
            rate = 1 / (1 / rate + each / (how.multiprocessors * kernels.copied))
        flows.append(inside._replace(cap=rate))
    return CollectiveCost(kernels.before(machines=len(machines)), tuple(flows) if size else (), how.kernels, "none", how.multiprocessors)


def _flow(cluster: Cluster, pairs: EqualMessages, volume: float, nvlink: float, nic: float) -> Flow:
    """What every pair moves, all of them at once."""
    return Flow(pairs.path, volume, min(pairs.rate, least_rate(cluster, pairs.path, nvlink, nic)))


def deepep_buffers(ranks: int, hidden: int, multiprocessors: int) -> tuple[int, int]:
    """Bytes of the buffers that DeepEP makes on every rank, over NVLink and over RDMA, for tokens of `hidden` 16-bit values.

    Of deepseek-ai/DeepEP csrc/config.hpp (get_nvl_buffer_size_hint, get_rdma_buffer_size_hint) with the configuration of a dispatch.

    >>> deepep_buffers(8, 7168, 20), deepep_buffers(64, 7168, 20)
    ((335709824, 0), (377677824, 336047360))
    """
    channels, machines = multiprocessors // 2, max(ranks // NVLINK_PEERS, 1)
    chunk = next(tokens for most, tokens in _CHUNKS if ranks <= most)
    token = 2 * hidden + _META + TOP_K * 12 + SCALES * 4
    nvlink = channels * min(ranks, NVLINK_PEERS) * (4 * (2 * machines + 3) + chunk * token)
    rdma = channels * machines * (8 * (2 * NVLINK_PEERS + 2) + 2 * _RDMA_CHUNK * (token + _CONTROL))
    return _aligned(nvlink), _aligned(rdma) if ranks > NVLINK_PEERS else 0


def _aligned(size: int) -> int:
    return -(-size // 128) * 128

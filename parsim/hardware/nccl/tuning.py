"""Bandwidth and latency of every algorithm and protocol (NVIDIA/nccl src/graph/tuning.cc, ncclTopoTuneModel)."""

from __future__ import annotations

import math

from parsim.hardware.nccl.inputs import Graph, Heads, Inputs
from parsim.hardware.nccl.tables import GENERATIONS, PROTOCOLS, Algorithm, Constants, Protocol, Rows

# bandwidth


_DIRECT_ARITY = 8
"""most GPUs of a node in CollNet, and in NVLS other than all_reduce (NCCL_MAX_DIRECT_ARITY + 1, NCCL_MAX_NVLS_ARITY is 32)"""
_NVLS_ARITY = 32


NO_HEADS = Heads(0, 0.0)


def steps(kind: str, ranks: int) -> int:
    """Steps of a ring."""
    if kind == "all_reduce":
        return 2 * (ranks - 1)
    return ranks - 1 if kind in ("all_gather", "reduce_scatter") else ranks


def bandwidth(inputs: Inputs, kind: str, algorithm: Algorithm, protocol: Protocol, table: Constants) -> float:
    """Bytes of the collective's size per second [B/s]; 0 where the combination is not possible."""
    if not possible(inputs, kind, algorithm, protocol, table):
        return 0.0
    bus = _bus(inputs, kind, algorithm, protocol, table)
    if algorithm == "ring":
        return bus * inputs.ranks / steps(kind, inputs.ranks)
    if kind in ("all_gather", "reduce_scatter"):
        scaled = table.nvls_rule == "narrower" and not table.pat and algorithm == "nvls"  # 2.20 to 2.22
        return bus * 5 / 6 if scaled else bus
    if algorithm in ("nvls", "nvls_tree"):
        return bus * _nvls_ratio(inputs, algorithm, table)
    return bus / 2


def possible(inputs: Inputs, kind: str, algorithm: Algorithm, protocol: Protocol, table: Constants) -> bool:
    """Whether the library offers this combination to this group."""
    return not obstacle(inputs, kind, algorithm, protocol, table)


def obstacle(inputs: Inputs, kind: str, algorithm: Algorithm, protocol: Protocol, table: Constants) -> str:
    """Why the library does not offer this combination; empty if it does."""
    if protocol == "ll128" and (reason := _no_ll128(inputs, table)):
        return reason
    if algorithm == "ring":
        return ""
    if kind in ("broadcast", "reduce"):
        return f"{kind} runs on the ring only"
    if algorithm == "tree":
        return "" if kind == "all_reduce" else f"the tree is for all_reduce, not {kind}"
    if protocol != "simple":
        return f"{algorithm} has the simple protocol only"
    if algorithm == "pat":
        return _no_pat(inputs, kind, table)
    if algorithm in ("nvls", "nvls_tree"):
        return _no_nvls(inputs, kind, algorithm, table)
    return _no_collnet(inputs, kind, algorithm, table)


def _no_ll128(inputs: Inputs, table: Constants) -> str:
    if not inputs.ll128 or inputs.path != "nvlink":
        return "LL128 needs NVLink inside the node, NICs not beyond a host bridge, and equal GPUs"
    allowed = table.ll128_capabilities
    if inputs.capability < 7.0 or (allowed is not None and inputs.capability not in allowed):
        return f"LL128 is not offered to compute capability {inputs.capability:g}"
    return ""


def _no_pat(inputs: Inputs, kind: str, table: Constants) -> str:
    if not table.pat:
        return f"version {table.version} has no PAT"
    if kind not in ("all_gather", "reduce_scatter"):
        return f"PAT is for all_gather and reduce_scatter, not {kind}"
    if inputs.nodes != inputs.ranks:
        return "PAT needs exactly one GPU per node"
    return "" if inputs.capability >= 6.0 else "PAT needs compute capability 6.0"


def _no_nvls(inputs: Inputs, kind: str, algorithm: Algorithm, table: Constants) -> str:
    heads = inputs.nvls
    if table.nvls_rule == "none":
        return f"version {table.version} has no NVLS"
    if not inputs.library.nvls:
        return "NVLS is switched off on these machines (collectives.nvls of the topology)"
    if heads is None or heads.count < 2 or not heads.speed or not _efficiency(inputs, table):
        return "NVLS needs an NVSwitch with in-switch reduction (compute capability 9.0) and two GPUs on it"
    if algorithm == "nvls_tree":
        if inputs.nodes == 1:
            return "nvls_tree needs several nodes"
        return "" if kind == "all_reduce" else f"nvls_tree is for all_reduce, not {kind}"
    if inputs.nodes > 1 and inputs.collnet is None:
        return "nvls between nodes needs reducing switches (SHARP)"
    if kind != "all_reduce" and (table.nvls_rule == "plain" or inputs.per_node > _NVLS_ARITY):
        return f"nvls does not do {kind} here"
    return ""


def _no_collnet(inputs: Inputs, kind: str, algorithm: Algorithm, table: Constants) -> str:
    if inputs.collnet is None:
        return "CollNet needs reducing switches (SHARP)"
    if inputs.per_node > _DIRECT_ARITY:
        return f"CollNet takes at most {_DIRECT_ARITY} GPUs per node"
    if algorithm == "collnet_chain":
        if not table.collnet_factor:
            return f"version {table.version} has no CollNet Chain"
        return "" if kind == "all_reduce" else f"CollNet Chain is for all_reduce, not {kind}"
    if inputs.path != "nvlink":
        return "CollNet Direct needs an NVSwitch"
    if kind != "all_reduce" and (table.nvls_rule in ("plain", "none") or inputs.per_node > inputs.collnet.channels):
        return f"CollNet Direct does {kind} only with a NIC per GPU"
    return ""


def _bus(inputs: Inputs, kind: str, algorithm: Algorithm, protocol: Protocol, table: Constants) -> float:
    """Bus bandwidth [B/s]."""
    if algorithm in ("nvls", "nvls_tree"):
        heads = inputs.nvls or NO_HEADS
        return heads.count * head_rate(inputs, heads, kind, algorithm, table)
    if algorithm in ("collnet_direct", "collnet_chain"):
        return _collnet(inputs, kind, algorithm, table)
    graph = (inputs.tree or inputs.ring) if algorithm == "tree" else inputs.ring
    bus = graph.channels * (graph.intra if inputs.nodes <= 2 else graph.between)
    if inputs.capability == 8.0:
        bus = min(bus, table.ampere_cap)
    if algorithm == "ring":
        return _ring(inputs, kind, protocol, graph, bus, table)
    if algorithm == "pat":
        return bus * table.pat_share
    return _tree(inputs, protocol, graph, bus, table)


def _ring(inputs: Inputs, kind: str, protocol: Protocol, graph: Graph, bus: float, table: Constants) -> float:
    if protocol == "ll":
        reduces = inputs.nodes > 1 or kind in ("all_reduce", "reduce")
        return min(_ll_cap(inputs, table), bus * table.ring_ll_share[0 if reduces else 1])
    if protocol == "ll128":
        share = table.ring_ll128_share[0 if inputs.per_node >= 2 else 1]
        return min(bus * share, graph.channels * cap(inputs, table.ring_ll128_cap))
    return bus


def _tree(inputs: Inputs, protocol: Protocol, graph: Graph, bus: float, table: Constants) -> float:
    bus = min(bus * 0.92, graph.channels * cap(inputs, table.tree_cap))
    if protocol == "ll":
        bus = min(bus / 3.8, _ll_cap(inputs, table))
    elif protocol == "ll128":
        share = 7 / 9 if inputs.nodes == 1 else 120 / 128
        bus = min(bus * share, graph.channels * cap(inputs, table.tree_ll128_cap))
    return bus * (0.85 if inputs.plain_tree else 1.0)


def head_rate(inputs: Inputs, heads: Heads, kind: str, algorithm: Algorithm, table: Constants) -> float:
    """Bus bandwidth of one NVLS head [B/s]."""
    speed = heads.speed
    # on one node the library sets the speed between nodes so high that it never binds
    between = heads.between if inputs.nodes > 1 else math.inf
    if table.nvls_rule == "plain":
        return speed if inputs.nodes <= 2 else between
    if table.nvls_rule == "narrower":
        return min(speed, between / 2 if algorithm == "nvls_tree" and inputs.nodes > 2 else between)
    inside = speed * _efficiency(inputs, table) * (heads.count - 1) / heads.count
    inside *= 2 if kind == "all_reduce" else (inputs.per_node - 1) / inputs.per_node
    if algorithm == "nvls_tree":
        return min(inside, between * (2 if inputs.nodes <= 2 else 1), cap(inputs, table.nvls_tree_cap))
    return min(inside, between)


def _nvls_ratio(inputs: Inputs, algorithm: Algorithm, table: Constants) -> float:
    """Size per bus byte of an NVLS all-reduce."""
    if table.nvls_rule == "efficiency":
        return inputs.ranks / (2 * (inputs.ranks - 1))
    if table.nvls_rule == "plain" and algorithm == "nvls_tree":
        return 0.7 * inputs.nodes / (2 * (inputs.nodes - 1))
    return 5 / 6


def _collnet(inputs: Inputs, kind: str, algorithm: Algorithm, table: Constants) -> float:
    graph = inputs.collnet or inputs.ring
    bus = graph.channels * graph.intra
    if algorithm == "collnet_chain" or not table.collnet_factor:
        return bus
    if kind != "all_reduce":
        if table.nvls_rule == "efficiency":
            return inputs.per_node * min(graph.intra, 0.9 * graph.between)
        weight = (inputs.per_node - 1) / 7
        return inputs.per_node * graph.intra * (weight * 0.85 + (1 - weight) * 0.95)
    crowd = inputs.per_node / graph.channels
    bus /= crowd - (crowd - 1) / 2
    return bus * (0.85 if inputs.capability >= 9.0 else 1.0)


def _ll_cap(inputs: Inputs, table: Constants) -> float:
    """LL is bound by the GPU inside a node, by the CPU that posts its messages between nodes."""
    if inputs.nodes == 1:
        return cap(inputs, table.ll_cap)
    return table.ll_cap[1 if inputs.cpu in ("amd", "mixed") else 0][inputs.span]


def cap(inputs: Inputs, rows: Rows) -> float:
    """The entry of a table of caps for this GPU and number of nodes [B/s]."""
    return rows[GENERATIONS.index(inputs.generation)][inputs.span]


def _efficiency(inputs: Inputs, table: Constants) -> float:
    return table.nvls_efficiency[GENERATIONS.index(inputs.generation)]


# latency


_POSTING = 1e-6
"""time in which the proxy posts a network operation [s]; twice that on AMD"""


def latency(inputs: Inputs, kind: str, algorithm: Algorithm, protocol: Protocol, table: Constants) -> float:
    """Time of a collective without bytes [s]."""
    number = PROTOCOLS.index(protocol)
    base = table.base[algorithm][number]
    local = table.step[inputs.path][algorithm][number]
    if inputs.cpu == "ibm" and inputs.path == "pcie" and algorithm == "tree" and protocol == "simple":
        local = table.step["pcie"]["ring"][number]  # the library prefers trees on POWER
    network = table.step["network"]["tree" if table.lone_gpu_tree_latency and inputs.per_node == 1 else algorithm][number]
    network += inputs.network_latency * (2 if protocol == "simple" else 1)  # Simple flushes
    inner = inputs.ranks // inputs.nodes - 1
    deep = depth(inputs)
    match algorithm:
        case "ring":
            return base + _ring_latency(inputs, kind, protocol, local, network, table)
        case "tree":
            return base + 2 * (inner * local * _slower(inputs, protocol, table) + deep * network)
        case "collnet_direct":
            return base + 2 * (min(1, inner) * local + inner * table.arity_latency) + network
        case "collnet_chain":
            return base + 2 * inner * local + network
        case "nvls":
            return base + local + (network if inputs.nodes > 1 else 0.0)
        case "nvls_tree":
            return base + local + 2 * (inputs.nodes - 1 if table.nvls_rule == "plain" else deep) * network
        case "pat":
            return base + deep * network / 3.5 + inputs.ranks * 2.8e-6


def depth(inputs: Inputs) -> int:
    """Levels of a tree over the machines, below its root."""
    return math.floor(math.log2(inputs.nodes))


def _ring_latency(inputs: Inputs, kind: str, protocol: Protocol, local: float, network: float, table: Constants) -> float:
    number = PROTOCOLS.index(protocol)
    wire = inputs.path if inputs.nodes == 1 else "network"
    if kind in ("broadcast", "reduce"):
        if inputs.same_order:
            return table.step[wire]["ring"][number]
        return inputs.ranks * table.step[wire]["tree" if protocol == "simple" else "ring"][number]
    total = steps(kind, inputs.ranks)
    between = 0
    if inputs.nodes > 1:
        between = total * (inputs.nodes - 1) // (inputs.ranks - 1)
        if kind == "all_reduce":
            between += table.network_steps_extra
        local *= _slower(inputs, protocol, table)
        if table.posting:
            local = max(local, _POSTING * (2 if inputs.cpu == "amd" else 1) * (3 if protocol == "simple" else 1))
    return (total - between) * local + between * network


def _slower(inputs: Inputs, protocol: Protocol, table: Constants) -> float:
    return table.ll_local_factor if inputs.nodes > 1 and protocol == "ll" else 1.0


def plateau(inputs: Inputs, kind: str, algorithm: Algorithm, protocol: Protocol, size: float, table: Constants) -> float:
    """Factor on the latency of a large ring all-reduce between nodes."""
    if kind != "all_reduce" or algorithm != "ring" or protocol != "simple" or inputs.nodes == 1:
        return 1.0
    least = 4096 * inputs.ranks if table.plateau_rule == "per rank" else 64 * channels_run(inputs) * inputs.ranks
    large = size >= least
    return table.plateau[0 if inputs.capability >= 8.0 else 1] if large else 1.0


def head_blocks(inputs: Inputs) -> int:
    """Thread blocks of NVLS, within what the machines set (NVIDIA/nccl src/transport/nvls.cc, nvlsChannels)."""
    count = 16 if inputs.generation != "blackwell" else 24 if inputs.nodes == 1 else 32
    return max(min(count, inputs.library.max_channels or 64), inputs.library.min_channels)


def channels_run(inputs: Inputs) -> int:
    """Channels that the communicator runs: the search's, each twice, at most 64, within what the machines set."""
    library = inputs.library
    return max(min(2 * inputs.ring.channels, 64, library.max_channels or 64), library.min_channels)

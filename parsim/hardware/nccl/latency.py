"""Latency of every algorithm and protocol (NVIDIA/nccl src/graph/tuning.cc, ncclTopoTuneModel)."""

from __future__ import annotations

import math

from parsim.hardware.nccl.bandwidth import steps
from parsim.hardware.nccl.inputs import Inputs
from parsim.hardware.nccl.tables import PROTOCOLS, Algorithm, Constants, Protocol

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
    depth = math.floor(math.log2(inputs.nodes))
    match algorithm:
        case "ring":
            return base + _ring(inputs, kind, protocol, local, network, table)
        case "tree":
            return base + 2 * (inner * local * _slower(inputs, protocol, table) + depth * network)
        case "collnet_direct":
            return base + 2 * (min(1, inner) * local + inner * table.arity_latency) + network
        case "collnet_chain":
            return base + 2 * inner * local + network
        case "nvls":
            return base + local + (network if inputs.nodes > 1 else 0.0)
        case "nvls_tree":
            return base + local + 2 * (inputs.nodes - 1 if table.nvls_rule == "plain" else depth) * network
        case "pat":
            return base + depth * network / 3.5 + inputs.ranks * 2.8e-6


def _ring(inputs: Inputs, kind: str, protocol: Protocol, local: float, network: float, table: Constants) -> float:
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


def channels_run(inputs: Inputs) -> int:
    """Channels that the communicator runs: the search's, each twice, at most 64."""
    return min(2 * inputs.ring.channels, 64)

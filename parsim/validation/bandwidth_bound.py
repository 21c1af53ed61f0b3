"""How fast a collective could be at best: the bytes that must pass, over the signalling rates of the ports they pass.

No algorithm, library or setting is faster; a prediction that is shows a mistake. Every GPU must send what the others need and
receive what it needs, through its own ports; so must every machine, through its NICs. Reductions inside an NVSwitch save a GPU the
second trip of an all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.direct import GraphFabric

_REDUCING_SWITCHES = 9.0
"""compute capability from which NVSwitches add (NVLink SHARP)"""


def least_time(cluster: Cluster, group: tuple[int, ...], kind: str, size: int, wire: Mapping[str, float]) -> float:
    """Lower bound on the time of a collective [s].

    Args:
        cluster: where the GPUs are.
        group: GPU numbers; equally many on every machine.
        kind: all_reduce, all_gather, reduce_scatter, all_to_all or sendrecv.
        size: bytes, as in nccl-tests.
        wire: signalling rate by kind of link, per link and direction [B/s].

    Raises:
        TopologyError: another kind of collective; a kind of link without a rate.
    """
    if kind not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv"):
        raise TopologyError(Finding(f"no bound is known for {kind}", "collective", kind))
    ranks = len(group)
    nodes: dict[int, list[int]] = {}
    for gpu in group:
        nodes.setdefault(cluster.node_of(gpu), []).append(gpu)
    count = len(nodes)
    plugs = {node: _plugs(cluster, node, wire) for node in nodes} if count > 1 else {}
    ports = {
        gpu: _ports(cluster, gpu, members, wire) + plugs.get(node, 0.0) / len(members) for node, members in nodes.items() for gpu in members
    }
    if kind == "all_reduce":
        if all(_reduces(cluster, gpu) for gpu in group):
            inside = size / max(ports.values())
        else:
            inside = 2 * (ranks - 1) * size / math.fsum(ports.values())
        return max(inside, 2 * (count - 1) * size / math.fsum(plugs.values()) if plugs else 0.0)
    if kind == "sendrecv":  # everyone sends to the next: one message leaves every machine
        return max(size / rate for rate in (*ports.values(), *plugs.values()))
    inside = max((ranks - 1) / ranks * size / rate for rate in ports.values())
    if kind == "all_to_all":  # every GPU has its own bytes for every GPU of another machine
        each = {node: len(members) * (ranks - len(members)) / ranks * size for node, members in nodes.items()}
        return max(inside, max((each[node] / rate for node, rate in plugs.items()), default=0.0))
    return max(inside, max(((count - 1) / count * size / rate for rate in plugs.values()), default=0.0))


def _reduces(cluster: Cluster, gpu: int) -> bool:
    """Whether the GPU sits on an NVSwitch that adds."""
    machine = cluster.machine(cluster.node_of(gpu))
    name = machine.gpu_names[cluster.local(gpu)]
    switched = any(machine.finder.kind[other] == "nvswitch" for other in machine.finder.adjacent[name])
    return switched and cluster.device(gpu).compute_capability >= _REDUCING_SWITCHES


def _ports(cluster: Cluster, gpu: int, members: list[int], wire: Mapping[str, float]) -> float:
    """Signalling rate out of a GPU towards the members of its machine [B/s].

    Links to GPUs outside the group do not count, nor does PCIe where NVLink joins all members: no library mixes the two.
    """
    machine = cluster.machine(cluster.node_of(gpu))
    name = machine.gpu_names[cluster.local(gpu)]
    inside = {machine.gpu_names[cluster.local(member)] for member in members}
    nvlink = pcie = 0.0
    for other, data in machine.finder.adjacent[name].items():
        kind = data["link_kind"]
        rate = _rate(wire, kind.name) * data["link"].capacity / kind.capacity if len(members) > 1 or kind.medium == "network" else 0.0
        if kind.medium == "nvlink":
            nvlink += rate if other in inside or machine.finder.kind[other] == "nvswitch" else 0.0
        else:
            pcie += rate
    return nvlink if _joined(cluster, members) else nvlink + pcie


def _joined(cluster: Cluster, members: list[int]) -> bool:
    """Whether NVLink joins all members, through switches or one another."""
    machine = cluster.machine(cluster.node_of(members[0]))
    names = {machine.gpu_names[cluster.local(member)] for member in members}
    reached, todo = set(), [machine.gpu_names[cluster.local(members[0])]]
    while todo:
        vertex = todo.pop()
        if vertex in reached:
            continue
        reached.add(vertex)
        for other, data in machine.finder.adjacent[vertex].items():
            if data["link_kind"].medium == "nvlink" and (other in names or machine.finder.kind[other] == "nvswitch"):
                todo.append(other)
    return names <= reached


def _plugs(cluster: Cluster, node: int, wire: Mapping[str, float]) -> float:
    """Signalling rate of all NICs of a machine [B/s]."""
    fabric = cluster.network
    if not isinstance(fabric, GraphFabric):
        return len(cluster.machine(node).ports) * _rate(wire, fabric.link_kind.name)
    cables = [data for name in fabric.port_names[node] for data in fabric.finder.adjacent[name].values()]
    rates = [_rate(wire, data["link_kind"].name) * data["link"].capacity / data["link_kind"].capacity for data in cables]
    return math.fsum(rates)


def _rate(wire: Mapping[str, float], kind: str) -> float:
    if kind not in wire:
        raise TopologyError(Finding("no signalling rate is known for this kind of link", f"wire.{kind}", kind, "add it under wire"))
    return wire[kind]

"""The channel search of one machine: which rings a group of its GPUs runs on, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from parsim.errors import Finding, TopologyError
from parsim.hardware.node import Node
from parsim.hardware.search.candidates import wiring
from parsim.hardware.search.result import Found, Heads
from parsim.hardware.search.shortcuts import on_switches, over_pcie, switch_bandwidth
from parsim.hardware.search.speeds import head_speed, speed_list
from parsim.hardware.search.task import Ports, Task, make_task


def search(node: Node, group: tuple[int, ...], *, network: bool = False, ports: Ports = None) -> Found:
    """The channels of GPUs of one machine as NCCL's search would lay them: the largest count x speed without an overbooked link.

    Args:
        node: the machine.
        group: local GPU indices; their order is of no consequence.
        network: whether the group goes on in other machines: rings then come in and leave by ports.
        ports: what the network takes from a port in each direction [B/s]: one rate for all, or the usable ports and their
            rates; None: as much as the port's links inside the machine.

    Raises:
        TopologyError: members that cannot reach each other or any port; a GPU twice; indices the machine does not have.
    """
    members = tuple(sorted(group))
    _check(node, members, ports, network)
    capability = min(node.devices[gpu].compute_capability for gpu in members)
    task = make_task(node, members, speed_list(capability, network=network), capability, ports, network)
    key = ("rings", members, task.ports, task.speeds)
    known = task.wiring.found
    if key not in known:
        known[key] = _search(task)
    return known[key]


def nvls_heads(node: Node, group: tuple[int, ...]) -> Heads | None:
    """Channels of an all-reduce that the NVSwitch adds up (NVLS), or None: no common NVSwitch, or compute capability below 9.0.

    One head per GPU; every GPU's link carries each head's traffic once and its own twice, so a head gets
    NVLink bandwidth / (heads + 1). NCCL plans with the next entry of its list (NVIDIA/nccl src/graph/search.cc).
    """
    members = tuple(sorted(group))
    _check(node, members, None, False)
    capability = min(node.devices[gpu].compute_capability for gpu in members)
    order = wiring(node).switch_order(members)
    if capability < 9.0 or order is None:
        return None
    task = make_task(node, members, speed_list(capability, network=False), capability, None, False)
    bandwidth = switch_bandwidth(task, order)
    heads = len(members)
    return Heads(heads, head_speed(bandwidth, heads, task.speeds), bandwidth / (heads + 1))


def _search(task: Task) -> Found:
    wires = task.wiring
    order = wires.switch_order(task.group)
    if order is not None or len(task.group) == 1:
        return on_switches(task, order or task.group)
    if not any(wires.direct(a, b) for a in task.group for b in task.group if a != b):
        return over_pcie(task)
    from parsim.hardware.search.packing import pack_rings

    return pack_rings(task)


def _check(node: Node, members: tuple[int, ...], ports: Ports, network: bool) -> None:
    """Refuse what cannot be searched."""
    if any(a == b for a, b in pairwise(members)):
        raise TopologyError(Finding(f"a GPU appears twice in the group {members}", "cluster.placement", list(members)))
    if not members or members[0] < 0 or members[-1] >= node.gpus:
        problem = f"the group {members} is not within GPUs 0 ... {node.gpus - 1} of {node.name}"
        raise TopologyError(Finding(problem, "cluster", list(members)))
    if len(members) < 2 and not network:
        raise TopologyError(Finding("a single GPU has no channels", "cluster", list(members), "ask for at least two, or for a network"))
    if isinstance(ports, Mapping) and any(not 0 <= port < len(node.ports) for port in ports):
        wrong = next(port for port in ports if not 0 <= port < len(node.ports))
        raise TopologyError(Finding(f"{node.name} has ports 0 ... {len(node.ports) - 1}, not {wrong}", "cluster.fabric.nics", wrong))
    if network and not node.ports:
        raise TopologyError(Finding(f"{node.name} has no NIC, so a group cannot leave it", "cluster.fabric.nics", None, "add nic vertices"))

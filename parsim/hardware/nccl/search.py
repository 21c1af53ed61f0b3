"""The ring search of one machine: which rings a group of its GPUs runs on, and how fast (NVIDIA/nccl src/graph/search.cc, ncclTopoCompute).

`search` answers for any GPUs of any machine, alone or as part of a group that spans machines; `nvls_heads` for all-reduces
inside an NVSwitch. Groups on NVSwitches and pure PCIe have closed forms; meshes and bridges are packed
(`parsim.hardware.nccl.packing`). Results are kept per machine graph, group and list of speeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from weakref import WeakKeyDictionary

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.node import Node
from parsim.hardware.fabric.routes import Route, unreachable
from parsim.hardware.nccl.task import (
    EPSILON,
    STOP,
    MachineRings,
    NvlsChannels,
    Ports,
    Ring,
    Task,
    head_speed,
    largest_product,
    make_ring,
    make_task,
    share,
    speed_list,
    split,
    times,
)
from parsim.hardware.nccl.wiring import MachineGraph, wiring

_FOUND: WeakKeyDictionary[MachineGraph, dict[object, MachineRings]] = WeakKeyDictionary()
"""answers by what was asked"""


def search(node: Node, group: tuple[int, ...], *, network: bool = False, ports: Ports = None, cross: bool = True) -> MachineRings:
    """The channels of GPUs of one machine as NCCL's search would lay them: the largest count x speed without an overbooked link.

    Args:
        node: the machine.
        group: local GPU indices; their order is of no consequence.
        network: whether the group goes on in other machines: rings then come in and leave by ports.
        ports: what the network takes from a port in each direction [B/s]: one rate for all, or the usable ports and their
            rates; None: as much as the port's links inside the machine.
        cross: whether a ring may leave by another port than it came by (NCCL_CROSS_NIC, whose default 2 allows it).

    Raises:
        TopologyError: members that cannot reach each other or any port; a GPU twice; indices the machine does not have.
    """
    members = tuple(sorted(group))
    _check(node, members, ports, network)
    capability = min(node.devices[gpu].compute_capability for gpu in members)
    task = make_task(node, members, speed_list(capability, network=network), capability, ports, network, cross)
    key = ("rings", members, task.ports, task.speeds, cross)
    known = _FOUND.setdefault(task.wiring, {})
    if key not in known:
        known[key] = _search(task)
    return known[key]


def nvls_heads(node: Node, group: tuple[int, ...]) -> NvlsChannels | None:
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
    return NvlsChannels(heads, head_speed(bandwidth, heads, task.speeds), bandwidth / (heads + 1))


def _search(task: Task) -> MachineRings:
    wires = task.wiring
    order = wires.switch_order(task.group)
    if order is not None or len(task.group) == 1:
        return on_switches(task, order or task.group)
    if not any(wires.direct(a, b) for a in task.group for b in task.group if a != b):
        return over_pcie(task)
    from parsim.hardware.nccl.packing import pack_rings

    return pack_rings(task) or one_ring(task)


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


# closed forms: NVSwitches, pure PCIe, and both with a network


_MOST_CHANNELS = 64
"""MAXCHANNELS of NVIDIA/nccl src/include/device.h"""


def on_switches(task: Task, order: tuple[int, ...]) -> MachineRings:
    """GPUs that meet through NVSwitches: equal rings in index order, as many and as fast as a GPU's NVLink allows.

    They move count x speed (times what a link really moves over what it is planned with), as measured on NVSwitches.
    """
    if task.ports is not None:
        return _rails(task, order)
    ring = _closed(task, order)
    count, speed = _product(task, ring)
    most = count * speed * _gain(task, ring)
    count, speed = split(count, speed, task.capability)
    return task.result([ring] * count, speed, most=most)


def switch_bandwidth(task: Task, order: tuple[int, ...]) -> float:
    """What the library takes a GPU's NVLink into the NVSwitch for [B/s]."""
    return share([_closed(task, order)], task.planned)


def over_pcie(task: Task) -> MachineRings:
    """No NVLink between any two: one depth-first order, which crosses every edge of the tree once in each direction."""
    order = task.wiring.depth_first(task.group)
    if task.ports is not None:
        return _rotations(task, order)
    ring = _closed(task, order)
    count, speed = _product(task, ring)
    return task.result([ring] * count, speed)


def one_ring(task: Task) -> MachineRings:
    """What is left where no speed of the list fits: the depth-first order at the rate of its narrowest link."""
    order = task.wiring.depth_first(task.group)
    ring = _closed(task, order) if task.ports is None else _any_rotation(task, order)
    return task.result([ring], share([ring], task.planned))


def _closed(task: Task, order: tuple[int, ...]) -> Ring:
    return make_ring(order, [task.best(a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)])


def _product(task: Task, ring: Ring) -> tuple[int, float]:
    """How often `ring` can run at which speed; once at the rate of its narrowest link where every speed is too fast."""
    most = share([ring], task.planned)
    count, speed = largest_product(most, task.trials(ring.hops))
    return (min(count, _MOST_CHANNELS), speed) if count else (1, most)


def _gain(task: Task, ring: Ring) -> float:
    """Bytes really moved per byte planned."""
    return min((task.capacity[link] / task.planned[link] for link, _ in ring.load), default=1.0)


# NVSwitch and network


def _rails(task: Task, order: tuple[int, ...]) -> MachineRings:
    """A ring per port: in at the port's GPU, past the others in index order, and out by the same port. Only the nearest kind of port."""
    ports = sorted({port for gpu in task.group for port in task.owned[gpu]})
    if not ports:
        raise unreachable(task.node.gpu_names[task.group[0]], "any NIC")
    rings = [_rail(task, order, port) for port in ports]
    nearest = min(ring.tier for ring in rings)
    rings = [ring for ring in rings if ring.tier == nearest]
    kinds = [rings, crossed] if task.cross and (crossed := _crossed(task, order, rings)) else [rings]
    best: list[Ring] = []
    speed = 0.0
    for trial in task.trials(hop for ring in rings for hop in ring.hops):
        if best and trial < STOP * speed:
            break
        for kind in kinds:
            fitting = _fill(task, kind, trial)
            if len(fitting) * trial > len(best) * speed * (1 + EPSILON):
                best, speed = fitting, trial
    if not best:
        best = [max(rings, key=lambda ring: (share([ring], task.planned), -ring.entry))]
        speed = share(best, task.planned)
    return task.result(best, speed, most=_moved(task, order, best, speed))


def _fill(task: Task, rings: list[Ring], speed: float) -> list[Ring]:
    """The rings of `speed` that fit, one after the other."""
    left = [capacity * (1 + EPSILON) / speed for capacity in task.planned]
    fitting: list[Ring] = []
    for ring in rings:
        if len(fitting) < _MOST_CHANNELS and all(left[link] >= load for link, load in ring.load):
            for link, load in ring.load:
                left[link] -= load
            fitting.append(ring)
    return fitting


def _moved(task: Task, order: tuple[int, ...], rings: list[Ring], speed: float) -> float:
    """What the rings move: NICs and PCIe their true rate, NVLink what the rings of the machine alone would be given."""
    capacity = [
        math.inf if link < task.wiring.outside and task.wiring.medium[link] == "nvlink" else value
        for link, value in enumerate(task.capacity)
    ]
    inside = math.inf
    if len(order) > 1:
        alone = _closed(task, order)
        count, fast = _product(task, alone)
        inside = count * fast * _gain(task, alone)
    return max(len(rings) * speed, min(inside, len(rings) * share(rings, capacity)))


def _rail(task: Task, order: tuple[int, ...], port: int) -> Ring:
    """The ring of one port. It leaves by a second GPU that owns the port too, else hops back over NVLink to the first (PXN)."""
    far = min(task.node.distance(gpu, port) for gpu in task.group)
    near = [gpu for gpu in task.group if task.node.distance(gpu, port) == far]
    owners = [gpu for gpu in near if port in task.owned[gpu]] or near[:1]
    first = owners[0]
    at = order.index(first)
    turned = list(order[at:] + order[:at])
    if len(owners) > 1:
        turned.remove(owners[1])
        turned.append(owners[1])
    hops = [task.from_port(port, first), *(task.best(a, b) for a, b in pairwise(turned))]
    if len(owners) > 1 or len(turned) == 1:
        hops.append(task.to_port(turned[-1], port))
    else:
        back, out = task.best(turned[-1], first), task.to_port(first, port)
        links, loads = back.links + out.links, back.coefficients + out.coefficients
        hops.append(Route(links, loads, back.latency + out.latency, max(back.tier, out.tier), min(back.cap, out.cap)))
    return make_ring(turned, hops, port, port)


def _crossed(task: Task, order: tuple[int, ...], rings: list[Ring]) -> list[Ring]:
    """Two rings for every two ports of different GPUs: in by the one, past the others in index order, out by the other.

    They need no hop back, so every GPU's NVLink has one ring less to carry. None where a port is left over or GPUs share one.
    """
    firsts = [ring.order[0] for ring in rings]
    shared = any(ring.entry in task.owned[ring.order[-1]] for ring in rings)
    if len(rings) % 2 or shared or len(set(firsts)) < len(firsts):
        return []
    made = []
    for number in range(0, len(rings), 2):
        for here, there in ((number, number + 1), (number + 1, number)):
            first, last = firsts[here], firsts[there]
            turned = (first, *(gpu for gpu in order if gpu not in (first, last)), last)
            hops = [
                task.from_port(rings[here].entry, first),
                *(task.best(a, b) for a, b in pairwise(turned)),
                task.to_port(last, rings[there].entry),
            ]
            made.append(make_ring(turned, hops, rings[here].entry, rings[there].entry))
    return made


# PCIe and network


def _rotations(task: Task, order: tuple[int, ...]) -> MachineRings:
    """The depth-first order from every start, alone or together with its reverse; in and out by the nearest port."""
    turns = [order[turn:] + order[:turn] for turn in range(len(order))]
    pairs = [(_through(task, turned), _through(task, turned[::-1])) for turned in turns if _ends(task, turned)]
    if not pairs:
        raise unreachable(task.node.gpu_names[order[0]], "any NIC")
    rates = [(share([ring], task.planned), share([ring, back], task.planned)) for ring, back in pairs]
    best: list[Ring] = []
    speed = 0.0
    for trial in task.trials(hop for pair in pairs for ring in pair for hop in ring.hops):
        if best and trial < STOP * speed:
            break
        for (ring, back), (alone, together) in zip(pairs, rates, strict=True):
            twice = min(times(together, trial), _MOST_CHANNELS // 2)
            count = max(2 * twice, min(1, times(alone, trial)))
            if count * trial > len(best) * speed * (1 + EPSILON):
                best, speed = [ring, back] * twice or [ring], trial
    return task.result(best, speed) if best else one_ring(task)


def _ends(task: Task, order: tuple[int, ...]) -> bool:
    return bool(task.owned[order[0]] and task.owned[order[-1]])


def _through(task: Task, order: tuple[int, ...]) -> Ring:
    entry, leave = task.owned[order[0]][0], task.owned[order[-1]][0]
    hops = [task.from_port(entry, order[0]), *(task.best(a, b) for a, b in pairwise(order)), task.to_port(order[-1], leave)]
    return make_ring(order, hops, entry, leave)


def _any_rotation(task: Task, order: tuple[int, ...]) -> Ring:
    """The rotation whose narrowest link is widest."""
    turns = [order[turn:] + order[:turn] for turn in range(len(order))]
    rings = [_through(task, turned) for turned in turns if _ends(task, turned)]
    if not rings:
        raise unreachable(task.node.gpu_names[order[0]], "any NIC")
    return max(rings, key=lambda ring: share([ring], task.planned))

"""Groups whose channels follow from a closed form: NVSwitches, pure PCIe, and both with a network."""

from __future__ import annotations

import math
from itertools import pairwise

from parsim.hardware.routes import Route, unreachable
from parsim.hardware.search.result import Found, Ring, make_ring
from parsim.hardware.search.speeds import EPSILON, STOP, largest_product, split, times
from parsim.hardware.search.task import Task, share

_MOST_CHANNELS = 64
"""MAXCHANNELS of NVIDIA/nccl src/include/device.h"""


def on_switches(task: Task, order: tuple[int, ...]) -> Found:
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


def over_pcie(task: Task) -> Found:
    """No NVLink between any two: one depth-first order, which crosses every edge of the tree once in each direction."""
    order = task.wiring.depth_first(task.group)
    if task.ports is not None:
        return _rotations(task, order)
    ring = _closed(task, order)
    count, speed = _product(task, ring)
    return task.result([ring] * count, speed)


def one_ring(task: Task) -> Found:
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


def _rails(task: Task, order: tuple[int, ...]) -> Found:
    """A ring per port: in at the port's GPU, past the others in index order, and out by the same port. Only the nearest kind of port."""
    ports = sorted({port for gpu in task.group for port in task.owned[gpu]})
    if not ports:
        raise unreachable(task.node.gpu_names[task.group[0]], "any NIC")
    rings = [_rail(task, order, port) for port in ports]
    nearest = min(ring.tier for ring in rings)
    rings = [ring for ring in rings if ring.tier == nearest]
    best: list[Ring] = []
    speed = 0.0
    for trial in task.trials(hop for ring in rings for hop in ring.hops):
        if best and trial < STOP * speed:
            break
        found = _fill(task, rings, trial)
        if len(found) * trial > len(best) * speed * (1 + EPSILON):
            best, speed = found, trial
    if not best:
        best = [max(rings, key=lambda ring: (share([ring], task.planned), -ring.entry))]
        speed = share(best, task.planned)
    return task.result(best, speed, most=_moved(task, order, best, speed))


def _fill(task: Task, rings: list[Ring], speed: float) -> list[Ring]:
    """The rings of `speed` that fit, one after the other."""
    left = [capacity * (1 + EPSILON) / speed for capacity in task.planned]
    found: list[Ring] = []
    for ring in rings:
        if len(found) < _MOST_CHANNELS and all(left[link] >= load for link, load in ring.load):
            for link, load in ring.load:
                left[link] -= load
            found.append(ring)
    return found


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


# PCIe and network


def _rotations(task: Task, order: tuple[int, ...]) -> Found:
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

"""Topology files: a machine repeated on a fabric, or an explicit graph of vertices and edges.

A topology tree has ``name``, ``aliases``, ``links`` (kinds of links), ``collectives`` (what its image sets for the library of collectives),
``price``, ``storage`` (where checkpoints go), and either ``node`` (one machine: vertices
and edges) with ``fabric`` (how machines are connected), or ``vertices`` and ``edges`` of the whole cluster. Vertex names
tell the kind: gpu, nvswitch, pcie, cpu, memory, nic, switch (leaf, spine); otherwise write ``{name: x, kind: nic}``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from parsim.errors import Finding, TopologyError
from parsim.hardware.device import Device
from parsim.hardware.fabric.library import Library, read_library
from parsim.hardware.fabric.links import STANDARD, LinkKind, link_kinds, standard_kind
from parsim.hardware.fabric.node import Edge, Node
from parsim.hardware.fabric.storage import Storage, read_storage
from parsim.hardware.tree import Tree, closest

_PREFIXES = {
    "gpu": "gpu", "tpu": "gpu", "chip": "gpu", "nvswitch": "nvswitch", "nvs": "nvswitch", "pcie": "pcie", "plx": "pcie", "cpu": "cpu",
    "memory": "memory", "mem": "memory", "nic": "nic", "hca": "nic", "mlx": "nic", "leaf": "switch", "spine": "switch", "switch": "switch",
    "core": "switch", "rail": "switch", "nvme": "nvme", "drive": "nvme",
}  # fmt: skip
VERTEX_KINDS = ("gpu", "nvswitch", "pcie", "cpu", "memory", "nic", "switch", "nvme")
CPU_VENDORS = ("intel", "amd", "ibm", "arm")
"""what ``cpu`` of a machine may say; only intel matters: its root complexes make GPU to GPU packets cost 6/5"""
_LARGEST_MACHINE = 10_000
_RANGE = re.compile(r"(.*?)([0-9]+)\.\.([0-9]+)")


PRICE_KINDS = ("on-demand", "reserved", "spot")
"""contracts under which GPUs are rented; prices of two kinds are not compared without a word"""


class GpuPrice(NamedTuple):
    """What one GPU costs per hour, when and where it was asked."""

    gpu_hour: float
    currency: str = "USD"
    date: str = ""
    source: str = ""
    kind: str = ""
    """one of `PRICE_KINDS`; empty: the file does not say"""


@dataclass(slots=True)
class Topology:
    """A topology file, read: machines by kind, the fabric's settings, link kinds."""

    name: str
    nodes: list[Node]
    """one machine per template; for an explicit graph, every machine of it in order of appearance"""
    explicit: bool
    fabric: Tree
    links: dict[str, LinkKind]
    aliases: tuple[str, ...] = ()
    price: GpuPrice | None = None
    library: Library = field(default_factory=Library)
    storage: Storage | None = None
    network_vertices: dict[str, str] = field(default_factory=dict)
    network_edges: list[Edge] = field(default_factory=list)

    def kind(self, name: str) -> LinkKind | None:
        """Link kind by name: the file's own, or a standard one."""
        return self.links.get(name) or standard_kind(name)


DeviceOf = Callable[[str], Device]
Host = Literal["", "memory", "nvme"]


class HostSide(NamedTuple):
    """A machine beyond its GPUs, as far as its file says."""

    cpu: str = ""
    """maker of the CPUs"""
    memory: int | None = None
    """of all of them [B]"""
    overhead_power: float | None = None
    """drawn beside the GPUs [W]"""
    used: Host = ""
    """what something is offloaded to"""


def read_topology(top: Tree, device_of: DeviceOf, p2p: bool | None, host: Host = "") -> Topology:
    """Read a topology tree whose inline boxes and overrides are already resolved; findings go to `top.findings`.

    `host`: what a machine gets that its file does not draw (see `make_node`).
    """
    name = top.text("name", "unnamed")
    aliases = top.names("aliases")
    top.raw("description")
    links = link_kinds(top)
    price = _price(top)
    fabric = top.child("fabric")
    topology = Topology(name, [], False, fabric, links, aliases, price, read_library(top), read_storage(top))
    if top.has("node") == top.has("vertices"):
        top.fail("node", "a topology has either node (one machine, repeated) or vertices and edges (an explicit graph)")
        top.stop()
    if top.has("node"):
        machine = top.child("node")
        vertices = {f"gpu{number}": "gpu" for number in range(machine.whole("gpus", high=_LARGEST_MACHINE))}
        vertices |= read_vertices(machine, "vertices")
        edges = read_edges(machine, "edges", vertices, topology)
        devices = _devices(machine, vertices, device_of)
        ports = _ports(machine, fabric, vertices)
        wants = machine.flag("p2p", devices[0].has("p2p") if devices else True)
        beside = HostSide(_cpu(machine), _host_memory(machine), _overhead_power(machine), host)
        machine.close()
        top.close()
        top.stop()
        node_p2p = wants if p2p is None else p2p
        topology.nodes.append(make_node(name, vertices, edges, devices, ports, node_p2p, topology, beside))
    else:
        _explicit(top, topology, device_of, p2p, host)
    return topology


def make_node(
    name: str,
    vertices: dict[str, str],
    edges: list[Edge],
    devices: tuple[Device, ...],
    ports: tuple[str, ...],
    p2p: bool,
    topology: Topology,
    host: HostSide | None = None,
) -> Node:
    """A machine; without peer-to-peer every CPU gets a host memory, through which transfers are staged.

    Where something is offloaded it gets one too, and for drives one beside each, unless the file draws them.
    """
    host = host or HostSide()
    cpus = [vertex for vertex, kind in vertices.items() if kind == "cpu"]
    if (not p2p or host.used) and "memory" not in vertices.values():
        memory = topology.kind("host-memory") or STANDARD["host-memory"]
        vertices = vertices | {f"memory-{cpu}": "memory" for cpu in cpus}
        edges = edges + [Edge(cpu, f"memory-{cpu}", memory) for cpu in cpus]
    if host.used == "nvme" and "nvme" not in vertices.values():
        read, write = (topology.kind(name) or STANDARD[name] for name in ("nvme-read", "nvme-write"))
        vertices = vertices | {f"nvme-{cpu}": "nvme" for cpu in cpus}
        edges = edges + [Edge(f"nvme-{cpu}", cpu, read, both_ways=False) for cpu in cpus]
        edges = edges + [Edge(cpu, f"nvme-{cpu}", write, both_ways=False) for cpu in cpus]
    machine = Node(name, vertices, edges, devices, ports, p2p, host.cpu, host.memory)
    machine.overhead_power = host.overhead_power
    return machine


def _host_memory(tree: Tree) -> int | None:
    """Memory of a machine's CPUs [B], if the file says so."""
    return int(tree.quantity("host_memory", "memory", 0.0)) if tree.has("host_memory") else None


def _overhead_power(tree: Tree) -> float | None:
    """What a machine draws beside its GPUs: CPUs, memory, NICs, switches, fans, losses [W]."""
    return tree.quantity("overhead_power", "power", 0.0, positive=False) if tree.has("overhead_power") else None


def _cpu(tree: Tree) -> str:
    """Maker of the machine's CPUs, if the file names it."""
    cpu = tree.text("cpu", "")
    if cpu and cpu not in CPU_VENDORS:
        tree.fail("cpu", f"unknown maker of CPUs {cpu!r}", closest(cpu, CPU_VENDORS))
    return cpu


def _price(top: Tree) -> GpuPrice | None:
    if not top.has("price"):
        return None
    tree = top.child("price")
    source = tree.text("source", "")
    kind = tree.text("kind", "")
    if kind and kind not in PRICE_KINDS:
        tree.fail("kind", f"unknown kind of price {kind!r}", closest(kind, PRICE_KINDS))
    price = GpuPrice(tree.number("gpu_hour"), tree.text("currency", "USD"), str(tree.raw("date", "")), source, kind)
    if not price.date:
        tree.fail("date", "a price needs the date it was valid", "for example date: 2026-11-01")
    tree.close()
    return price


def expand(name: str) -> list[str]:
    """``nic0..3`` as nic0, nic1, nic2, nic3; any other name as itself."""
    match = _RANGE.fullmatch(name)
    if not match:
        return [name]
    if int(match[3]) - int(match[2]) >= _LARGEST_MACHINE:
        raise TopologyError(Finding(f"{name} stands for more than {_LARGEST_MACHINE} names", "vertices", name))
    return [f"{match[1]}{number}" for number in range(int(match[2]), int(match[3]) + 1)]


def vertex_kind(name: str) -> str:
    """Kind of a vertex by the letters its name begins with; empty where they say nothing."""
    letters = re.match(r"[a-z]*", name.lower())
    return _PREFIXES.get(letters[0] if letters else "", "")


def read_vertices(tree: Tree, key: str) -> dict[str, str]:
    """Vertex names and kinds of a list such as ``[nvswitch, cpu0..1, {name: hca, kind: nic}]``."""
    kinds: dict[str, str] = {}
    for entry in tree.items(key):
        name, kind = (entry.get("name"), entry.get("kind", "")) if isinstance(entry, Mapping) else (entry, "")
        for vertex in expand(str(name)):
            actual = kind or vertex_kind(vertex)
            if actual not in VERTEX_KINDS:
                tree.findings.append(
                    Finding(
                        f"cannot tell what kind of vertex {vertex!r} is", tree.where(key), entry,
                        f"write {{name: {vertex}, kind: ...}} with one of {', '.join(VERTEX_KINDS)}",
                    )
                )  # fmt: skip
            if vertex in kinds:
                tree.findings.append(Finding(f"vertex {vertex!r} is listed twice", tree.where(key), entry))
            kinds[vertex] = actual
    return kinds


def read_edges(tree: Tree, key: str, vertices: dict[str, str], topology: Topology) -> list[Edge]:
    """Edges of a list such as ``[{from: gpu*, to: nvswitch, kind: nvlink3, count: 12}]``, wildcards and ranges expanded."""
    edges: list[Edge] = []
    seen: dict[tuple[str, str], None] = {}
    for number, entry in enumerate(tree.items(key)):
        edge = Tree(entry, f"{tree.where(key)}[{number}]", tree.findings)
        sources, targets = _matching(edge, "from", vertices), _matching(edge, "to", vertices)
        name = edge.text("kind")
        kind = topology.kind(name)
        if kind is None:
            if name:
                edge.fail("kind", f"unknown kind of link {name!r}", closest(name, [*topology.links, *STANDARD, "pcie4-x16"]))
            kind = LinkKind(name, "pcie", 1.0)
        count = edge.number("count", 1.0, 1e-3)
        both = not edge.flag("directed", False)
        for source, target in _pairs(edge, sources, targets):
            if (source, target) in seen:
                edge.fail("", f"{source} and {target} are connected twice", "use count for parallel links of one kind")
            seen[source, target] = None
            if both:
                seen[target, source] = None
            edges.append(Edge(source, target, kind, count, both))
        edge.close()
    _one_nvswitch(tree, key, vertices, edges)
    return edges


def _one_nvswitch(tree: Tree, key: str, vertices: dict[str, str], edges: list[Edge]) -> None:
    """Parallel NVSwitch chips are one vertex: a transfer is spread over all of them."""
    plugged: dict[str, dict[str, None]] = {}
    for edge in edges:
        for gpu, switch in ((edge.source, edge.target), (edge.target, edge.source)):
            if vertices.get(gpu) == "gpu" and vertices.get(switch) == "nvswitch":
                plugged.setdefault(gpu, {})[switch] = None
    for gpu, switches in plugged.items():
        if len(switches) > 1:
            names = ", ".join(switches)
            repair = "write one nvswitch vertex whose count is the sum of the links"
            tree.fail(key, f"{gpu} is plugged into several NVSwitches ({names})", repair)
            return


def _matching(edge: Tree, key: str, vertices: dict[str, str]) -> list[str]:
    matching: dict[str, None] = {}
    for pattern in edge.names(key):
        pieces = [re.compile(fnmatch.translate(piece)) for piece in expand(pattern)]
        names = [vertex for piece in pieces for vertex in vertices if piece.match(vertex)]
        if not names:
            edge.fail(key, f"no vertex matches {pattern!r}", closest(pattern, vertices))
        matching.update(dict.fromkeys(names))
    if not edge.has(key):
        edge.fail(key, "missing: a vertex name")
    return list(matching)


def _pairs(edge: Tree, sources: list[str], targets: list[str]) -> list[tuple[str, str]]:
    """Which vertices an edge entry connects; all pairs of one set once, or one-to-one."""
    how = edge.text("pair", "")
    if how not in ("", "all", "one-to-one"):
        edge.fail("pair", "expected all or one-to-one")
    if sources == targets and len(sources) > 1:
        return [(a, b) for number, a in enumerate(sources) for b in sources[number + 1 :]]
    if how == "one-to-one":
        if len(sources) != len(targets):
            edge.fail("pair", f"one-to-one needs as many sources as targets, not {len(sources)} and {len(targets)}")
        return list(zip(sources, targets, strict=False))
    if not how and len(sources) > 1 and len(targets) > 1:
        edge.fail("pair", f"{len(sources)} sources and {len(targets)} targets", "add pair: one-to-one or pair: all")
    return [(a, b) for a in sources for b in targets if a != b]


def _devices(tree: Tree, vertices: dict[str, str], device_of: DeviceOf) -> tuple[Device, ...]:
    """The device of each GPU: one name for all, or a list with one name per GPU."""
    count = sum(kind == "gpu" for kind in vertices.values())
    names = list(tree.names("device"))
    if not names:
        tree.fail("device", "missing: which GPU is it?", "for example device: a100-sxm-80gb")
        return ()
    if len(names) == 1:
        names *= count
    if len(names) != count:
        tree.fail("device", f"{len(names)} device names for {count} GPUs")
        return ()
    return tuple(device_of(name) for name in names)


def _ports(machine: Tree, fabric: Tree, vertices: dict[str, str]) -> tuple[str, ...]:
    """The fabric's NICs; without a list, every vertex of kind nic. ``node.nics`` keeps some, evenly spread."""
    written = [name for pattern in fabric.names("nics") for name in expand(pattern)]
    ports = tuple(written or (vertex for vertex, kind in vertices.items() if kind == "nic"))
    for port in ports:
        if port not in vertices:
            fabric.fail("nics", f"unknown vertex {port!r}", closest(port, vertices))
    keep = machine.whole("nics", len(ports), low=0)
    if keep > len(ports):
        machine.fail("nics", f"the machine has {len(ports)} NICs, not {keep}", "add nic vertices and their edges")
    return tuple(ports[number * len(ports) // keep] for number in range(keep))


def _explicit(top: Tree, topology: Topology, device_of: DeviceOf, p2p: bool | None, host: Host) -> None:
    """Cut an explicit graph at its network edges into machines and the network between them."""
    topology.explicit = True
    vertices = read_vertices(top, "vertices")
    edges = read_edges(top, "edges", vertices, topology)
    devices = _devices(top, vertices, device_of)
    wants = top.flag("p2p", devices[0].has("p2p") if devices else True)
    beside = HostSide(_cpu(top), _host_memory(top), _overhead_power(top), host)
    if not any(kind == "gpu" for kind in vertices.values()):
        top.fail("vertices", "there is no GPU")
    top.close()
    top.stop()
    device = dict(zip((vertex for vertex, kind in vertices.items() if kind == "gpu"), devices, strict=True))
    inner = [edge for edge in edges if edge.kind.medium != "network" and "switch" not in (vertices[edge.source], vertices[edge.target])]
    outer = [edge for edge in edges if edge not in inner]
    machine_of = _components(vertices, inner)
    machines: dict[str, dict[str, str]] = {}
    for vertex, kind in vertices.items():
        if kind != "switch":
            machines.setdefault(machine_of[vertex], {})[vertex] = kind
    plugged = dict.fromkeys(end for edge in outer for end in (edge.source, edge.target))
    for number, part in enumerate(machines.values()):
        gpus = [vertex for vertex, kind in part.items() if kind == "gpu"]
        if not gpus:
            continue
        ports = tuple(vertex for vertex in part if vertex in plugged)
        own = [edge for edge in inner if edge.source in part]
        node_p2p = wants if p2p is None else p2p
        topology.nodes.append(
            make_node(f"{topology.name}.{number}", part, own, tuple(device[gpu] for gpu in gpus), ports, node_p2p, topology, beside)
        )
    ends = dict.fromkeys(end for edge in outer for end in (edge.source, edge.target))
    topology.network_vertices = {vertex: kind for vertex, kind in vertices.items() if vertex in ends}
    topology.network_edges = outer


def _components(vertices: dict[str, str], edges: list[Edge]) -> dict[str, str]:
    """Representative vertex of each vertex's connected component."""
    parent = {vertex: vertex for vertex in vertices}

    def root(vertex: str) -> str:
        while parent[vertex] != vertex:
            parent[vertex] = parent[parent[vertex]]
            vertex = parent[vertex]
        return vertex

    for edge in edges:
        parent[root(edge.target)] = root(edge.source)
    return {vertex: root(vertex) for vertex in vertices}

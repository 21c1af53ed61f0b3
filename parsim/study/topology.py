"""What a topology is made of: links by class, how much it can move from one half to the other, and who shares what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.bisection import Bisection, fabric_bisection, machine_bisections
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.direct import GraphFabric
from parsim.hardware.fabric.joined import JoinedFabric
from parsim.hardware.fabric.node import Node
from parsim.hardware.fabric.routes import TIER_HOST, TIER_NETWORK, TIER_SOCKET, TIER_SWITCH, Route
from parsim.report.table import Column, Table
from parsim.scenario import files
from parsim.scenario.build_machine import machine as machine_of
from parsim.scenario.load import load
from parsim.scenario.machines import machines
from parsim.units import format_rate, format_time

_RELATIONS = {TIER_HOST: "PHB", TIER_SOCKET: "SYS", TIER_NETWORK: "own"}


@dataclass(frozen=True, slots=True)
class EqualLinks:
    """A class of equal links."""

    name: str
    """what they connect, e.g. gpu->nvswitch"""
    kind: str
    count: int
    capacity: float
    """[B/s]"""
    latency: float
    """per hop [s]"""
    duplex: str


@dataclass(frozen=True, slots=True)
class NicPath:
    """A GPU's path to one of its NICs."""

    gpu: str
    nic: str
    relation: str
    """PIX: one switch between; PXB: several; PHB: a CPU; SYS: two CPUs; own: a port of the GPU (as `nvidia-smi topo -m` says)"""
    links: tuple[str, ...]
    alone: float
    """bandwidth while nobody else sends, the NIC's own cable included [B/s]"""
    together: float
    """while every GPU of the machine sends to all its NICs [B/s]"""
    latency: float
    """[s]"""


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link inside a machine that several GPUs need for the same purpose."""

    link: str
    kind: str
    capacity: float
    """[B/s]"""
    users: tuple[str, ...]
    towards: str
    """NICs | host"""


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A run of equal machines."""

    first_node: int
    count: int
    name: str
    gpus: int
    """of each"""
    devices: tuple[str, ...]
    nics: int
    port: float
    """of one NIC, each way [B/s]"""
    region: str = ""


@dataclass(frozen=True, slots=True)
class Survey:
    """All of it; machines of a kind are described once."""

    cluster: Cluster
    links: tuple[EqualLinks, ...]
    bisections: tuple[Bisection, ...]
    ways: tuple[NicPath, ...]
    shared: tuple[SharedLink, ...]
    half_duplex: tuple[str, ...]
    """links whose two directions share one capacity"""
    machines: tuple[MachineRow, ...] = ()
    """runs of equal machines where there are several kinds; then what is inside machines is said of the first kind"""


def described(topology: str, nodes: int = 1) -> Cluster:
    """`nodes` machines of a topology, or the whole cluster of a scenario: a file or a shipped one.

    Raises:
        ScenarioError: there is no such topology, device or scenario.
        TopologyError: what is wrong in it.
    """
    path = Path(topology)
    written = path.suffix in (".yaml", ".yml") and path.is_file() and isinstance(files.read(path).tree.get("cluster"), (str, Mapping))
    if not written and topology not in files.names("scenarios"):
        return machines(topology, nodes)
    if nodes != 1:
        text = f"{path.name} is a scenario, which says itself how many machines there are"
        raise TopologyError(Finding(text, "--nodes", nodes, "leave --nodes out"))
    return machine_of(load(topology))[0]


def survey(topology: str, nodes: int = 1) -> Survey:
    """What `nodes` machines of a topology are made of.

    Raises:
        ScenarioError: there is no such topology or device.
        TopologyError: what is wrong in it.
    """
    cluster = described(topology, nodes)
    machine = cluster.machine(0)
    cables = _cables(cluster, topology)
    bisections = machine_bisections(machine)
    between = fabric_bisection(cluster)
    return Survey(
        cluster,
        _classes(cluster),
        bisections if between is None else (*bisections, between),
        _ways(machine, cables),
        (*_shared(machine, _nic_routes(machine), "NICs"), *_shared(machine, _host_routes(machine), "host")),
        tuple(link.name for link in machine.links if link.duplex == "half"),
        _machine_rows(cluster),
    )


def _machine_rows(cluster: Cluster) -> tuple[MachineRow, ...]:
    """The runs of machines of a joined network."""
    fabric = cluster.fabric
    if not isinstance(fabric, JoinedFabric):
        return ()
    return tuple(
        MachineRow(
            block.first_node,
            block.count,
            block.node.name,
            block.node.gpus,
            tuple(dict.fromkeys(device.name for device in block.node.devices)),
            len(block.node.ports),
            fabric.port_kind(block.first_node).capacity,
            fabric.region_of(block.first_node),
        )
        for block in cluster.blocks
    )


def _cables(cluster: Cluster, topology: str) -> tuple[float, ...]:
    """Capacity of the cable of each NIC of the first machine [B/s]; infinite where the topology has no fabric."""
    ports = cluster.machine(0).ports
    fabric = cluster.fabric
    if fabric is None and ports:
        try:
            fabric = machines(topology, 2).fabric
        except TopologyError:
            fabric = None
    if fabric is None:
        return (math.inf,) * len(ports)
    if isinstance(fabric, JoinedFabric):
        return (fabric.port_kind(0).capacity,) * len(ports)
    if isinstance(fabric, GraphFabric):
        wires = fabric.finder.adjacent
        return tuple(math.fsum(data["link"].capacity for data in wires[port].values()) for port in ports)
    return (fabric.link_kind.capacity,) * len(ports)


def _classes(cluster: Cluster) -> tuple[EqualLinks, ...]:
    """Links of every machine times how many there are, then the fabric's."""
    counts: dict[tuple[str, str, float, float, str], int] = {}
    for block in cluster.blocks:
        for link, name in zip(block.node.links, block.node.classes, strict=True):
            key = (name, link.kind, link.capacity, link.latency, link.duplex)
            counts[key] = counts.get(key, 0) + block.count
    for number in range(cluster.first_fabric_link, cluster.link_count):
        link = cluster.link(number)
        key = (cluster.link_class_name(number), link.kind, link.capacity, link.latency, link.duplex)
        counts[key] = counts.get(key, 0) + 1
    return tuple(
        EqualLinks(name, kind, count, capacity, latency, duplex) for (name, kind, capacity, latency, duplex), count in counts.items()
    )


def _nic_routes(machine: Node) -> dict[str, list[Route]]:
    """Per GPU the routes to its NICs."""
    return {name: [machine.to_port(gpu, port) for port in machine.owned_ports[gpu]] for gpu, name in enumerate(machine.gpu_names)}


def _host_routes(machine: Node) -> dict[str, list[Route]]:
    """Per GPU the route to its nearest CPU."""
    routes: dict[str, list[Route]] = {}
    cpus = [vertex for vertex, kind in machine.finder.kind.items() if kind == "cpu"]
    for name in machine.gpu_names:
        paths = [path for cpu in cpus if (path := machine.finder.path(name, cpu, ("pcie",), ("pcie",)))]
        routes[name] = [machine.finder.along(min(paths, key=len), TIER_HOST)] if paths else []
    return routes


def _ways(machine: Node, cables: Sequence[float]) -> tuple[NicPath, ...]:
    load: dict[int, float] = {}
    senders: dict[int, int] = {}
    routes = _nic_routes(machine)
    for gpu, name in enumerate(machine.gpu_names):
        for port, route in zip(machine.owned_ports[gpu], routes[name], strict=True):
            senders[port] = senders.get(port, 0) + 1
            for link, coefficient in zip(route.links, route.coefficients, strict=True):
                load[link] = load.get(link, 0.0) + coefficient
    ways = []
    for gpu, name in enumerate(machine.gpu_names):
        for port, route in zip(machine.owned_ports[gpu], routes[name], strict=True):
            capacities = [machine.capacities[link] / load[link] for link in route.links]
            ways.append(
                NicPath(
                    name,
                    machine.ports[port],
                    _relation(machine, gpu, port),
                    tuple(machine.links[link].name for link in route.links),
                    min(cables[port], route.bottleneck(machine.capacities.__getitem__)),
                    min([cables[port] / senders[port], *capacities]),
                    route.latency,
                )
            )
    return tuple(ways)


def _relation(machine: Node, gpu: int, port: int) -> str:
    tier, switches = divmod(int(machine.distance(gpu, port)), 100)
    if tier == TIER_SWITCH:
        return "PIX" if switches <= 1 else "PXB"
    return _RELATIONS.get(tier, "own")


def _shared(machine: Node, routes: dict[str, list[Route]], towards: str) -> Iterable[SharedLink]:
    """Links that are on the routes of more than one GPU."""
    users: dict[int, dict[str, None]] = {}
    for name, ones in routes.items():
        for route in ones:
            for link in route.links:
                users.setdefault(link, {})[name] = None
    for number, names in sorted(users.items()):
        if len(names) > 1:
            shared = machine.links[number]
            yield SharedLink(shared.name, shared.kind, shared.capacity, tuple(names), towards)


def picture(topology: str, nodes: int = 1, kind: Literal["svg", "png"] = "svg") -> bytes:
    """The tiers of `nodes` machines of a topology.

    Raises:
        ScenarioError: there is no such topology or device.
        TopologyError: what is wrong in it.
    """
    from parsim.report.plots.figure import save
    from parsim.report.plots.topology import topology_figure

    return save(topology_figure(described(topology, nodes)), kind)


def document(survey: Survey) -> dict[str, Any]:
    """The survey as one JSON document."""
    cluster = survey.cluster
    return {
        "parsim": 1, "topology": cluster.name, "nodes": cluster.nodes, "gpus": cluster.installed_gpus,
        "gpus_per_node": cluster.gpus_per_node, "devices": list(dict.fromkeys(device.name for device in cluster.machine(0).devices)),
        "fabric": None if cluster.fabric is None else cluster.fabric.kind, "peer_to_peer": cluster.machine(0).p2p,
        "machines": [
            {"first_node": one.first_node, "count": one.count, "topology": one.name, "gpus": one.gpus, "devices": list(one.devices),
             "nics": one.nics, "port_Bps": one.port, "region": one.region or None}
            for one in survey.machines
        ],
        "links": [
            {"link": one.name, "kind": one.kind, "count": one.count, "capacity_Bps": one.capacity, "latency_s": one.latency,
             "duplex": one.duplex}
            for one in survey.links
        ],
        "bisections": [
            {"over": one.over, "bandwidth_Bps": one.bandwidth, "halves": [list(half) for half in one.halves], "exact": one.exact}
            for one in survey.bisections
        ],
        "gpu_nic": [
            {"gpu": way.gpu, "nic": way.nic, "relation": way.relation, "links": list(way.links), "alone_Bps": way.alone,
             "together_Bps": way.together, "latency_s": way.latency}
            for way in survey.ways
        ],
        "shared": [
            {"link": one.link, "kind": one.kind, "capacity_Bps": one.capacity, "users": list(one.users), "towards": one.towards}
            for one in survey.shared
        ],
        "half_duplex": list(survey.half_duplex),
        "collectives": {key: list(value) if isinstance(value, tuple) else value for key, value in cluster.library.changed().items()},
    }  # fmt: skip


def text(survey: Survey) -> str:
    """The survey as tables."""
    cluster = survey.cluster
    machine = cluster.machine(0)
    devices = ", ".join(dict.fromkeys(device.name for device in machine.devices))
    fabric = f", {cluster.fabric.kind} fabric" if cluster.fabric is not None else ""
    machines_ = f"{cluster.nodes} machines, " if cluster.nodes > 1 else ""
    if survey.machines:
        devices = ", ".join(dict.fromkeys(name for one in survey.machines for name in one.devices))
    lines = [f"{cluster.name}: {machines_}{cluster.installed_gpus} GPUs ({devices}){fabric}", ""]
    if survey.machines:
        kinds = [
            Column("nodes", align="left", margin=2), Column("topology", align="left"), Column("GPUs"), Column("kind", align="left"),
            Column("NICs"), Column("each", write=format_rate), Column("region", align="left"),
        ]  # fmt: skip
        runs = [
            (ranges(range(one.first_node, one.first_node + one.count)), one.name, one.gpus, ", ".join(one.devices), one.nics, one.port,
             one.region or "-")
            for one in survey.machines
        ]  # fmt: skip
        lines += [Table(kinds, runs).text(), ""]
    columns = [
        Column("link", align="left", margin=2), Column("kind", align="left"), Column("count", write=lambda count: f"{count:,}"),
        Column("capacity", write=format_rate), Column("latency", write=format_time), Column("duplex", align="left"),
    ]  # fmt: skip
    rows = [(one.name, one.kind, one.count, one.capacity, one.latency, one.duplex) for one in survey.links]
    lines.append(Table(columns, rows).text())
    inside = f"; inside a machine: {machine.name}" if survey.machines else ""
    lines += ["", f"bisection bandwidth, one way, for the worst halves{inside}"]
    lines += [f"  {_halves(one)}" for one in survey.bisections] or ["  there is one GPU"]
    if not machine.p2p:
        lines.append("  GPUs do not reach each other over PCIe directly: the bytes pass through host memory")
    if survey.ways:
        columns = [
            Column("GPU", align="left", margin=2), Column("NIC", align="left"), Column("path", align="left"),
            Column("alone", write=format_rate), Column("all at once", write=format_rate), Column("latency", write=format_time),
            Column("links", align="left"),
        ]  # fmt: skip
        ways = [(way.gpu, way.nic, way.relation, way.alone, way.together, way.latency, " ".join(way.links)) for way in survey.ways]
        lines += ["", Table(columns, ways, "GPUs and their NICs").text()]
    for towards in ("NICs", "host"):
        ones = [one for one in survey.shared if one.towards == towards]
        lines += ["", f"links that GPUs share on the way to {'their NICs' if towards == 'NICs' else 'the host'}"]
        lines += [f"  {one.link:<22} {format_rate(one.capacity):>12}  {_users(one.users)}" for one in ones] or ["  none"]
    if settings := cluster.library.changed():
        lines += ["", "what the machines set for NCCL (collectives of the file)"]
        lines += [f"  {key}: {', '.join(value) if isinstance(value, tuple) else str(value).lower()}" for key, value in settings.items()]
    if survey.half_duplex:
        lines += ["", "half duplex, both directions share the capacity", *(f"  {name}" for name in survey.half_duplex)]
    return "\n".join(line.rstrip() for line in lines)


def _halves(one: Bisection) -> str:
    what = "machines" if one.over == "fabric" else "GPUs"
    first, second = (ranges(half) for half in one.halves)
    bound = "" if one.exact else "; other halves may have less"
    return f"{format_rate(one.bandwidth):<12} over {one.over}, {what} {first} to {second}{bound}"


def _users(names: Sequence[str]) -> str:
    """``gpu0, gpu1``; of many only the number."""
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} GPUs: {names[0]} ... {names[-1]}"


def ranges(numbers: Sequence[int]) -> str:
    """``0-3, 8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)

"""From a topology tree to a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from parsim.errors import Finding, TopologyError
from parsim.hardware.device import Device, device_from_tree
from parsim.hardware.fabric.cluster import Cluster, Placement
from parsim.hardware.fabric.direct import FullMesh, GraphFabric, Torus
from parsim.hardware.fabric.links import STANDARD, LinkKind
from parsim.hardware.fabric.node import wire
from parsim.hardware.fabric.routes import PathFinder
from parsim.hardware.fabric.switches import Fabric, FatTree, RailOptimised
from parsim.hardware.fabric.topology import Host, Topology, read_topology
from parsim.hardware.fabric.trees import changed_device, changed_links, expand_box, merged, parse_line
from parsim.hardware.tree import Tree, closest
from parsim.limits import MOST_GPUS, beyond

FABRICS = ("single-switch", "fat-tree", "rail-optimised", "torus", "full-mesh")


def build_cluster(  # noqa: PLR0913
    tree: Mapping[str, Any] | str,
    *,
    device_lookup: Callable[[str], Mapping[str, Any]],
    nodes: int = 1,
    gpus: int | str | None = None,
    per_node: int | str | None = None,
    placement: Placement = "packed",
    fabric: Mapping[str, Any] | str | None = None,
    overrides: Mapping[str, Any] | None = None,
    p2p: bool | None = None,
    seed: int = 0,
    host: Host = "",
) -> Cluster:
    """The cluster a scenario asks for.

    Args:
        tree: a topology tree, an inline box ``{gpu: ..., count: ...}`` or a line such as ``4x v100-32gb``.
        device_lookup: device name or alias to device tree.
        nodes: how often the machine of a template is repeated; 1 for an explicit graph.
        gpus: use the first so many; None or "all" uses every one.
        per_node: use the first so many of every machine; None or "all" uses every one.
        placement: where ranks go: packed, scattered, or the GPU of each rank.
        fabric: keys that replace those of the topology's fabric; None or "default" keeps it.
        overrides: the scenario's ``cluster.set``: changes under device, node, links, fabric and collectives, ``xF`` multiplies.
        seed: of the hash that spreads flows over uplinks (``routing: ecmp``).
        host: "memory" where something is offloaded to the CPU's memory, "nvme" where to drives; adds what the file does not draw.
        p2p: whether GPUs exchange data over PCIe directly; None takes the machine's or the device's word.

    Raises:
        TopologyError: with every finding at once.
    """
    findings: list[Finding] = []
    change = sections(overrides, findings)
    device_of = devices_of(device_lookup, change.get("device"), findings, {})
    topology = template(tree, device_of, change, fabric, findings, p2p=p2p, host=host)
    count = _node_count(nodes, topology, findings)
    machines = [(node, 1) for node in topology.nodes] if topology.explicit else [(topology.nodes[0], count)]
    built = _graph_fabric(topology) if topology.explicit else fabric_of(topology, count, findings, seed)
    if findings:
        raise TopologyError(findings)
    wanted = None if gpus in (None, "all") else gpus
    if wanted is not None and (isinstance(wanted, (bool, str)) or not isinstance(wanted, int)):
        raise TopologyError(Finding("expected a number of GPUs or all", "cluster.gpus", wanted))
    each = None if per_node in (None, "all") else cast("int", per_node)
    cluster = Cluster(
        topology.name, machines, built, gpus=wanted, per_node=each, placement=placement, price=topology.price, library=topology.library
    )
    cluster.storage = topology.storage
    return cluster


def template(
    tree: Mapping[str, Any] | str,
    device_of: Callable[[str], Device],
    change: Mapping[str, Mapping[str, Any]],
    fabric: Mapping[str, Any] | str | None,
    findings: list[Finding],
    *,
    p2p: bool | None = None,
    host: Host = "",
) -> Topology:
    """A topology with changes on top, read. Raises `TopologyError` with every finding."""
    if isinstance(tree, str):
        tree = parse_line(tree)
    whole: dict[str, Any] = dict(tree)
    if "gpu" in whole and "node" not in whole:
        whole = expand_box(whole, device_of)
    _apply(whole, change, fabric, findings)
    if findings:
        raise TopologyError(findings)
    return read_topology(Tree(whole, "", findings), device_of, p2p, host)


def sections(overrides: Mapping[str, Any] | None, findings: list[Finding]) -> dict[str, Mapping[str, Any]]:
    """The changes of ``cluster.set`` by section."""
    known = ("device", "node", "links", "fabric", "collectives", "price", "storage")
    result: dict[str, Mapping[str, Any]] = {}
    for key, value in (overrides or {}).items():
        section, *rest = str(key).split(".")
        if rest and section in known:
            hint = f"write {section}: {{{': {'.join(rest)}: ...{'}' * len(rest)}"
            findings.append(Finding("a key with dots is read on the command line only", f"cluster.set.{key}", value, hint))
        elif key not in known:
            findings.append(Finding("unknown section", f"cluster.set.{key}", value, closest(key, known)))
        elif not isinstance(value, Mapping):
            findings.append(Finding("expected a mapping", f"cluster.set.{key}", value))
        else:
            result[key] = value
    return result


def devices_of(
    lookup: Callable[[str], Mapping[str, Any]], change: Mapping[str, Any] | None, findings: list[Finding], loaded: dict[str, Device]
) -> Callable[[str], Device]:
    """Devices by name, each built once (a device is compared by identity); `loaded` are those known so far, by what they are made of."""
    named: dict[str, Device] = {}

    def device_of(name: str) -> Device:
        if name not in named:
            tree = lookup(name)
            if change:
                tree = changed_device(tree, change, "cluster.set.device", findings)
                if findings:
                    raise TopologyError(findings)
            key = f"{name} {tree}"
            if key not in loaded:
                loaded[key] = device_from_tree(tree, f"device {name}")
            named[name] = loaded[key]
        return named[name]

    return device_of


def _apply(whole: dict[str, Any], change: Mapping[str, Mapping[str, Any]], fabric: object, findings: list[Finding]) -> None:
    """Put the scenario's changes on top of the topology tree."""
    if "links" in change:
        whole["links"] = changed_links(whole.get("links") or {}, change["links"], "cluster.set.links", findings)
    for section in ("node", "fabric", "collectives", "price", "storage"):
        if section in change:
            if section == "node" and "node" not in whole:
                findings.append(Finding("an explicit graph has no node template to change", "cluster.set.node"))
                continue
            whole[section] = merged(whole.get(section) or {}, change[section], f"cluster.set.{section}", findings)
    if isinstance(fabric, Mapping):
        if "vertices" in whole:
            findings.append(Finding("an explicit graph brings its own fabric", "cluster.fabric", dict(fabric)))
        whole["fabric"] = merged(whole.get("fabric") or {}, fabric, "cluster.fabric", findings)
    elif fabric not in (None, "default"):
        findings.append(Finding("expected default or a mapping such as {kind: fat-tree, oversubscription: 2}", "cluster.fabric", fabric))


def _node_count(nodes: int, topology: Topology, findings: list[Finding]) -> int:
    if type(nodes) is not int or nodes < 1:
        findings.append(Finding("expected a whole number of at least 1", "cluster.nodes", nodes))
        return 1
    if not topology.explicit and (many := beyond(nodes * topology.nodes[0].gpus, MOST_GPUS, "GPUs", "cluster.nodes", f"{nodes:,} nodes")):
        findings += many
        return 1
    if topology.explicit and nodes != 1:
        findings.append(Finding("an explicit graph is the whole cluster; it cannot be repeated", "cluster.nodes", nodes, "remove nodes"))
    return nodes


def fabric_of(topology: Topology, nodes: int, findings: list[Finding], seed: int, *, alone: bool = True) -> Fabric | None:
    """The fabric of `nodes` equal machines; None for a single machine that is `alone`."""
    tree = topology.fabric
    node = topology.nodes[0]
    kind = tree.text("kind", "single-switch")
    if kind not in FABRICS:
        tree.fail("kind", f"unknown kind of fabric {kind!r}", closest(kind, FABRICS))
    routing = tree.text("routing", "spray")
    if routing not in ("spray", "ecmp"):
        tree.fail("routing", f"unknown routing {routing!r}", closest(routing, ("spray", "ecmp")))
    hashed = routing == "ecmp"
    queue_pairs = tree.whole("queue_pairs", 1)
    if queue_pairs > 1 and not hashed:
        tree.fail("queue_pairs", "how many there are makes no difference where traffic is sprayed", "use routing: ecmp, or queue_pairs: 1")
    name = tree.text("link", "")
    leaf_ports = tree.whole("leaf_ports", 32)
    oversubscription = tree.number("oversubscription", 1.0, 0.01, 1000.0)
    dims = tree.raw("dims")
    tree.names("nics")
    tree.close()
    if kind in ("single-switch", "torus", "full-mesh") and oversubscription != 1.0:
        tree.fail("oversubscription", f"a {kind} fabric has no trunks to oversubscribe", "use kind: fat-tree or rail-optimised")
    if hashed:
        _hashable(tree, kind, leaf_ports, oversubscription)
    link = topology.kind(name) if name else None
    if nodes == 1 and alone:
        return None
    if link is None:
        known = [*topology.links, *(other for other, entry in STANDARD.items() if entry.medium == "network")]
        problem = f"unknown kind of link {name!r}" if name else "missing: the kind of link between machines"
        tree.fail("link", problem, closest(name, known))
        return None
    if not node.ports:
        tree.fail("nics", f"{topology.name} has no NIC, so {nodes} of them are not connected", "add nic vertices with edges, or nodes: 1")
        return None
    blocks = [(nodes, len(node.ports))]
    if kind == "torus":
        return _torus(tree, link, blocks, dims)
    if findings:
        return None
    if kind == "fat-tree":
        return FatTree(link, blocks, leaf_ports, oversubscription, hashed=hashed, seed=seed, queue_pairs=queue_pairs)
    if kind == "rail-optimised":
        return RailOptimised(link, blocks, leaf_ports, oversubscription, hashed=hashed, seed=seed, queue_pairs=queue_pairs)
    return FullMesh(link, blocks) if kind == "full-mesh" else Fabric(link, blocks)


def _hashable(tree: Tree, kind: str, leaf_ports: int, oversubscription: float) -> None:
    """Hashing needs a whole number of equal paths between two leaves."""
    if kind not in ("fat-tree", "rail-optimised"):
        tree.fail("routing", f"a {kind} fabric has no equal paths to hash over", "use kind: fat-tree or rail-optimised, or routing: spray")
        return
    uplinks = leaf_ports / oversubscription
    if uplinks < 1 or abs(uplinks - round(uplinks)) > 1e-9 * uplinks:
        text = f"{leaf_ports} leaf ports / oversubscription {oversubscription:g} = {uplinks:g} uplinks; ecmp needs a whole number of them"
        fitting = [number for number in range(1, leaf_ports + 1) if leaf_ports % number == 0]
        nearest = min(fitting, key=lambda number: (abs(number - oversubscription), number))
        tree.fail("oversubscription", text, f"use oversubscription {nearest}, other leaf_ports, or routing: spray")


def _torus(tree: Tree, link: LinkKind, blocks: list[tuple[int, int]], dims: object) -> Fabric | None:
    nodes, ports = blocks[0]
    if not isinstance(dims, (list, tuple)) or not dims or not all(isinstance(size, int) and size > 0 for size in dims):
        tree.fail("dims", "a torus needs its dimensions", f"for example dims: [{nodes}]")
        return None
    if len(dims) > 6:
        tree.fail("dims", f"{len(dims)} dimensions; at most 6 are supported")
        return None
    if math.prod(dims) != nodes:
        product = " x ".join(map(str, dims))
        tree.fail("dims", f"{product} = {math.prod(dims)} points for {nodes} machines", "make the product equal to cluster.nodes")
        return None
    if ports != 1:
        tree.fail("nics", f"machines on a torus have one port each, not {ports}", "use nics: [gpu0] or one NIC")
        return None
    return Torus(link, blocks, tuple(dims))


def _graph_fabric(topology: Topology) -> Fabric | None:
    """The network of an explicit graph, with link ids of its own."""
    if not topology.network_edges:
        return None
    links, classes, adjacent = wire(topology.network_vertices, topology.network_edges)
    return GraphFabric(PathFinder(topology.network_vertices, adjacent), links, classes, [node.ports for node in topology.nodes])

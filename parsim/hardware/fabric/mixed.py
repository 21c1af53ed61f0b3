"""A cluster of several kinds of machines: runs of equal machines, each with the network of its own topology, joined at their top."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parsim.errors import Finding, TopologyError
from parsim.hardware.device import Device
from parsim.hardware.fabric.builder import build_cluster, devices_of, fabric_of, sections, template
from parsim.hardware.fabric.cluster import Cluster, Placement
from parsim.hardware.fabric.joined import JoinedFabric, RegionLink
from parsim.hardware.fabric.topology import GpuPrice, Host, Topology
from parsim.limits import MOST_GPUS, beyond

_JOINABLE = ("single-switch", "fat-tree", "rail-optimised")
Lookup = Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True)
class MachineGroup:
    """A run of equal machines as a scenario asks for it."""

    tree: Mapping[str, Any] | str
    """the topology"""
    device_lookup: Lookup
    count: int = 1
    per_node: int | None = None
    """use the first so many GPUs of each; None: all"""
    region: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """changes to the device and topology files, as of ``cluster.set``"""
    name: str = ""
    """what the scenario calls the topology"""

    def equals(self, other: MachineGroup) -> bool:
        """The same machines in the same region."""
        mine = (self.tree, self.per_node, self.region, self.overrides, self.name)
        return mine == (other.tree, other.per_node, other.region, other.overrides, other.name)


def mixed_cluster(
    groups: Sequence[MachineGroup],
    *,
    regions: Mapping[tuple[str, str], RegionLink] | None = None,
    gpus: int | str | None = None,
    per_node: int | str | None = None,
    placement: Placement = "packed",
    fabric: Mapping[str, Any] | None = None,
    seed: int = 0,
    host: Host = "",
) -> Cluster:
    """The cluster of these groups, in their order; other arguments as of `build_cluster`.

    Neighbours that are equal are one run: with one run left this is `build_cluster` of its topology.

    Raises:
        TopologyError: with every finding of the first topology that is wrong; regions without a link between them.
    """
    runs = merged_runs(groups)
    if len(runs) == 1:
        one = runs[0]
        limit = one.per_node if one.per_node is not None else per_node
        return build_cluster(
            one.tree, device_lookup=one.device_lookup, nodes=one.count, gpus=gpus, per_node=limit, placement=placement,
            fabric=fabric, overrides=one.overrides, seed=seed, host=host,
        )  # fmt: skip
    if many := beyond(sum(run.count for run in runs), MOST_GPUS, "nodes", "cluster.nodes", ""):
        raise TopologyError(many)
    loaded: dict[str, Device] = {}
    read: list[Topology] = []
    islands = []
    for run in runs:
        topology = next((read[at] for at, other in enumerate(runs[: len(read)]) if run.equals(replace(other, region=run.region))), None)
        findings: list[Finding] = []
        if topology is None:
            topology = _read(run, fabric, host, loaded, findings)
        read.append(topology)
        island = fabric_of(topology, run.count, findings, seed, alone=False)
        _joinable(run, topology, findings)
        if findings or island is None:
            raise TopologyError([_of_group(finding, run) for finding in findings])
        islands.append(island)
    joined = JoinedFabric(islands, [run.region for run in runs], regions)
    every = None if per_node in (None, "all") else int(per_node)
    limits = [run.per_node if run.per_node is not None else every for run in runs]
    machines = [(topology.nodes[0], run.count) for topology, run in zip(read, runs, strict=True)]
    cluster = Cluster(
        " + ".join(f"{run.count} x {topology.name}" for topology, run in zip(read, runs, strict=True)),
        machines,
        joined,
        gpus=None if gpus in (None, "all") else int(gpus),
        per_node=[node.gpus if limit is None else limit for (node, _), limit in zip(machines, limits, strict=True)],
        placement=placement,
        price=_price([(topology.price, count * node.gpus) for topology, (node, count) in zip(read, machines, strict=True)]),
        library=read[0].library,
    )
    cluster.storage = read[0].storage
    joined.check_regions()
    return cluster


def merged_runs(groups: Sequence[MachineGroup]) -> list[MachineGroup]:
    """The groups, neighbours that are equal together."""
    runs: list[MachineGroup] = []
    for group in groups:
        if runs and runs[-1].equals(group):
            runs[-1] = replace(runs[-1], count=runs[-1].count + group.count)
        else:
            runs.append(group)
    return runs


def _read(run: MachineGroup, fabric: Mapping[str, Any] | None, host: Host, loaded: dict[str, Device], findings: list[Finding]) -> Topology:
    """The topology of a group."""
    change = sections(run.overrides, findings)
    device_of = devices_of(run.device_lookup, change.get("device"), findings, loaded)
    try:
        topology = template(run.tree, device_of, change, fabric, findings, host=host)
    except TopologyError as error:
        raise TopologyError([_of_group(finding, run) for finding in error.findings]) from None
    if topology.explicit:
        text = f"{run.name} is an explicit graph: it is a whole cluster, not a machine"
        findings.append(Finding(text, "cluster.nodes", run.name, "use topologies with a node template"))
        raise TopologyError(findings)
    return topology


def _joinable(run: MachineGroup, topology: Topology, findings: list[Finding]) -> None:
    """What cannot be joined with other networks."""
    kind = topology.fabric.data.get("kind", "single-switch")
    if kind not in _JOINABLE and not findings:
        text = f"not supported yet: a {kind} network joined with others ({topology.name})"
        findings.append(Finding(text, "cluster.fabric.kind", kind, f"use {' or '.join(_JOINABLE)}"))
    if topology.fabric.data.get("routing", "spray") != "spray" and not findings:
        text = "not supported yet: hashed routing (ecmp) where several kinds of machines are joined"
        findings.append(Finding(text, "cluster.fabric.routing", "ecmp", "use routing: spray"))
    machine = topology.nodes[0]
    if run.per_node is not None and run.per_node > machine.gpus:
        text = f"{run.per_node} GPUs of every machine requested, {topology.name} has {machine.gpus} in each"
        findings.append(Finding(text, "cluster.nodes", run.per_node, f"use at most {machine.gpus}"))


def _of_group(finding: Finding, run: MachineGroup) -> Finding:
    """A finding with the group that it is about."""
    if finding.file or finding.path.startswith(("cluster.", "device ")):
        return finding
    return replace(
        finding, path="cluster.nodes", message=f"{run.name}: {finding.path}: {finding.message}" if finding.path else finding.message
    )


def _price(prices: Sequence[tuple[GpuPrice | None, int]]) -> GpuPrice | None:
    """What a GPU of all machines costs on average, if every topology says it in one currency; as old as the oldest."""
    known = [(price, gpus) for price, gpus in prices if price is not None]
    if len(known) < len(prices) or len({price.currency for price, _ in known}) > 1:
        return None
    if len({price for price, _ in known}) == 1:
        return known[0][0]
    mean = math.fsum(price.gpu_hour * gpus for price, gpus in known) / math.fsum(gpus for _, gpus in known)
    parts = " + ".join(f"{gpus} GPUs at {price.gpu_hour:g}" for price, gpus in known)
    sources = "; ".join(dict.fromkeys(price.source for price, _ in known if price.source))
    kinds = {price.kind for price, _ in known}
    source = f"mean of {parts}" + (f" ({sources})" if sources else "")
    return GpuPrice(mean, known[0][0].currency, min(price.date for price, _ in known), source, kinds.pop() if len(kinds) == 1 else "")

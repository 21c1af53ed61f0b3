"""``cluster.nodes`` as a list: runs of equal machines of several kinds, in regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding, ScenarioError, TopologyError
from parsim.scenario.references import beside, lookup, topology_document
from parsim.scenario.values import did_you_mean

if TYPE_CHECKING:
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.hardware.fabric.mixed import MachineGroup
    from parsim.hardware.fabric.topology import Host
    from parsim.scenario.files import Document
    from parsim.scenario.machine import ClusterSection

KEYS = ("use", "count", "gpus", "nics", "region", "set")
EXAMPLE = "for example [{use: hgx-h100, count: 4}, {use: hgx-h200, count: 2}]"


def group_problems(groups: list[Any]) -> list[str]:
    """What is wrong in the entries of a list of machines, each with its number."""
    problems = []
    for number, group in enumerate(groups):
        if not isinstance(group, dict):
            problems.append(f"entry {number} is no mapping; {EXAMPLE}")
            continue
        unknown = [str(key) for key in group if key not in KEYS]
        problems += [f"entry {number}: unknown key {key!r}; {did_you_mean(key, KEYS) or 'known: ' + ', '.join(KEYS)}" for key in unknown]
        if not isinstance(group.get("use"), (str, dict)) or not group["use"]:
            problems.append(f"entry {number}: use is missing: the name, path or box of a topology; {EXAMPLE}")
        for key, least in (("count", 1), ("gpus", 1), ("nics", 0)):
            value = group.get(key, 1)
            if type(value) is not int or not least <= value <= 10**6:
                problems.append(
                    f"entry {number}: {key} {value!r} is not a whole number from {least} to 1000000; write {key}: {max(1, least)}"
                )
        if "region" in group and (not isinstance(group["region"], str) or not group["region"].strip()):
            problems.append(f"entry {number}: region {group['region']!r} is not a name; for example region: b")
        if "set" in group and not isinstance(group["set"], dict):
            problems.append(f"entry {number}: set is not a mapping; it changes files as cluster.set does")
    return problems


def group_findings(tree: Mapping[str, Any]) -> list[Finding]:
    """What does not go together in the cluster of a scenario as written: a topology and a list, regions that nobody is in."""
    cluster = tree.get("cluster")
    if not isinstance(cluster, Mapping):
        return []
    topology, nodes, regions = cluster.get("topology"), cluster.get("nodes"), cluster.get("regions") or []
    if not isinstance(nodes, list):
        found = [Finding("required", "cluster.topology", None, "write for example topology: dgx-a100-80gb")] if topology is None else []
        if regions:
            text = "regions join machines of a list, and cluster.nodes is a number"
            found.append(Finding(text, "cluster.regions", regions, "write cluster.nodes as a list with a region each"))
        return found
    found = []
    if topology is not None:
        text = "the list of nodes names the topologies of all machines, so cluster.topology has no effect"
        found.append(Finding(text, "cluster.topology", topology, "leave topology out, or write nodes as a number"))
    if not all(isinstance(group, Mapping) for group in nodes) or not isinstance(regions, list):
        return found
    return found + _region_findings(nodes, regions)


def _region_findings(nodes: list[Any], regions: list[Any]) -> list[Finding]:
    found = []
    joined = [tuple(link.get("between") or ()) for link in regions if isinstance(link, Mapping) and isinstance(link.get("between"), list)]
    first = next((str(pair[0]) for pair in joined if pair), "")
    used = dict.fromkeys(str(group.get("region") or first) for group in nodes)
    known = dict.fromkeys(str(name) for pair in joined for name in pair)
    seen: set[frozenset[str]] = set()
    for number, pair in enumerate(joined):
        path = f"cluster.regions.{number}.between"
        for name in pair:
            if str(name) not in used:
                text = f"no machines are in region {name} (regions of cluster.nodes: {', '.join(filter(None, used))})"
                found.append(
                    Finding(text, path, list(pair), did_you_mean(str(name), list(used)) or f"give an entry of nodes region: {name}")
                )
        names = frozenset(map(str, pair))
        if len(names) == 2 and names in seen:
            found.append(Finding(f"regions {pair[0]} and {pair[1]} are joined twice", path, list(pair), "keep one link, with the sum"))
        seen.add(names)
    if not found and len(used) > 1:
        missing = [name for name in used if name and name not in known]
        for name in missing:
            text = f"region {name} is not joined to another region"
            neighbour = next(other for other in used if other != name) or "a"
            hint = f"add regions: [{{between: [{neighbour}, {name}], bandwidth: 1 Gb/s, latency: 30 ms}}]"
            found.append(Finding(text, "cluster.regions", None, hint))
    return found


def cluster_of_groups(
    section: ClusterSection,
    relative: str | None,
    documents: dict[str, Document],
    *,
    seed: int,
    host: Host,
    fabric: Mapping[str, Any] | None,
) -> Cluster:
    """The cluster of a list of machines. Raises `TopologyError` with every finding; `documents` are the device files read."""
    from parsim.hardware.fabric.joined import RegionLink
    from parsim.hardware.fabric.mixed import MachineGroup, mixed_cluster

    first = section.regions[0].between[0] if section.regions else ""
    groups: list[MachineGroup] = []
    findings: list[Finding] = []
    for number, group in enumerate(section.nodes):
        try:
            document = topology_document(group["use"], relative)
        except ScenarioError as error:
            findings += [finding if finding.file else _at(finding, number, group) for finding in error.findings]
            continue
        tree = document.tree
        own = tree.pop("devices", None) or {}
        changes = _changes(section.set, group)
        name = group["use"] if isinstance(group["use"], str) else str(group["use"].get("name") or group["use"].get("gpu") or "a box")
        find = _devices(own, lookup("devices", beside(document, relative), documents))
        region = group.get("region") or first
        groups.append(MachineGroup(tree, find, group.get("count", 1), group.get("gpus"), region, changes, name))
    if findings:
        raise TopologyError(findings)
    links = {(link.between[0], link.between[1]): RegionLink(link.bandwidth, link.latency) for link in section.regions}
    return mixed_cluster(
        groups, regions=links, gpus=section.gpus, per_node=section.gpus_per_node, placement=section.placement,
        fabric=fabric, seed=seed, host=host,
    )  # fmt: skip


def _at(finding: Finding, number: int, group: Mapping[str, Any]) -> Finding:
    return Finding(finding.message, f"cluster.nodes.{number}.use", group["use"], finding.suggestion)


def _devices(own: Mapping[str, Any], find: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda name: own[name] if name in own else find(name)


def _changes(common: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
    """What a group changes: the scenario's own changes, those of the group on top."""
    changes = {key: dict(value) if isinstance(value, Mapping) else value for key, value in common.items()}
    for key, value in (group.get("set") or {}).items():
        below = changes.get(key)
        changes[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, Mapping) else value
    if "nics" in group:
        changes["node"] = {**changes.get("node", {}), "nics": group["nics"]}
    return changes

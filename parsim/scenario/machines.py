"""Clusters without a scenario: for questions about the network alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.builder import build_cluster
from parsim.hardware.fabric.cluster import Cluster
from parsim.scenario.references import beside, lookup, topology_document


def machines(
    topology: str | Mapping[str, Any],
    nodes: int = 1,
    *,
    fabric: Mapping[str, Any] | None = None,
    change: Mapping[str, Any] | None = None,
    relative_to: str | None = None,
) -> Cluster:
    """`nodes` machines of a topology: a shipped name, a path, a box such as ``4x v100-32gb``, or a tree.

    `fabric` and `change` are what a scenario writes under ``cluster.fabric`` and ``cluster.set``.

    Raises:
        ScenarioError: there is no such topology or device.
        TopologyError: what is wrong in it.
    """
    document = topology_document(topology, relative_to, "")
    tree = document.tree
    own = tree.pop("devices", None) or {}
    find = lookup("devices", beside(document, relative_to))
    return build_cluster(
        tree, device_lookup=lambda name: own[name] if name in own else find(name), nodes=nodes, fabric=fabric, overrides=change
    )


def group(topology: str | Mapping[str, Any], gpus: int | None = None, nodes: int | None = None) -> tuple[Cluster, tuple[int, ...]]:
    """A cluster just large enough, and `gpus` of it: the first ones of every machine, equally many of each.

    Without `gpus` all of the machines; without `nodes` as few machines as hold the GPUs.

    Raises:
        ScenarioError: there is no such topology or device.
        TopologyError: GPUs and machines do not go together.
    """
    machine = machines(topology)
    if machine.nodes > 1:  # an explicit graph is the whole cluster
        return _of_graph(machine, gpus, nodes)
    each = machine.gpus
    count = nodes if nodes is not None else 1 if gpus is None else -(-gpus // each)
    wanted = gpus if gpus is not None else count * each
    if wanted < 1 or count < 1 or wanted % count or wanted > count * each:
        spread = f"{wanted} GPUs on {count} machines of {machine.name} with {each} each"
        fitting = [number for number in range(1, wanted + 1) if wanted % number == 0 and wanted // number <= each]
        repair = f"the same number on every machine: --nodes {' or '.join(map(str, fitting[:4]))}" if fitting else "at least one GPU"
        raise TopologyError(Finding(spread, "--gpus", wanted, repair))
    cluster = machine if count == 1 else machines(topology, count)
    return cluster, tuple(cluster.gpu(node, local) for node in range(count) for local in range(wanted // count))


def _of_graph(cluster: Cluster, gpus: int | None, nodes: int | None) -> tuple[Cluster, tuple[int, ...]]:
    if nodes is not None and nodes != cluster.nodes:
        repair = "leave --nodes out"
        raise TopologyError(
            Finding(f"{cluster.name} is a graph of {cluster.nodes} machines; it cannot be repeated", "--nodes", nodes, repair)
        )
    wanted = cluster.gpus if gpus is None else gpus
    if not 1 <= wanted <= cluster.gpus:
        raise TopologyError(Finding(f"{wanted} GPUs wanted, {cluster.name} has {cluster.gpus}", "--gpus", wanted))
    return cluster, tuple(range(wanted))

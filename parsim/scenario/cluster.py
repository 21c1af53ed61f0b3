"""What the `cluster` section means for the hardware, and where findings about the hardware stand in what the user wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding, TopologyError
from parsim.scenario.files import Document, is_shipped
from parsim.scenario.machine import BackgroundSection, ClusterSection, CollectivesSection, FabricSection

if TYPE_CHECKING:
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.hardware.nccl.inputs import Settings
    from parsim.hardware.transfers import Background


def background_traffic(cluster: Cluster, sections: Sequence[BackgroundSection]) -> tuple[Background, ...]:
    """One stream, or row of transfers, per entry.

    Raises:
        TopologyError: GPUs that the cluster does not have, or that are not connected.
    """
    from parsim.hardware.transfers import background

    streams: list[Background] = []
    findings: list[Finding] = []
    for number, section in enumerate(sections):
        path = f"cluster.background.{number}"
        outside = [
            Finding(f"gpu{gpu} is not in gpu0 ... gpu{cluster.installed_gpus - 1}", f"{path}.{key}", f"gpu{gpu}")
            for key, gpu in (("from", section.source), ("to", section.target))
            if gpu >= cluster.installed_gpus
        ]
        findings += outside
        if outside:
            continue
        try:
            one = background(
                cluster,
                section.source,
                section.target,
                rate=inf if section.rate is None else section.rate,
                volume=inf if section.bytes is None else section.bytes,
                begin=section.at or 0.0,
                every=section.every or 0.0,
                duty=1.0 if section.duty is None else section.duty,
            )
        except TopologyError as error:
            findings += [replace(finding, path=path) for finding in error.findings]
            continue
        streams.append(one)
    if findings:
        raise TopologyError(findings)
    return tuple(streams)


APPLIES = {
    "ring": ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    "tree": ("all_reduce",),
    "nvls": ("all_reduce", "all_gather", "reduce_scatter"),
    "nvls_tree": ("all_reduce",),
    "collnet_direct": ("all_reduce", "all_gather", "reduce_scatter"),
    "collnet_chain": ("all_reduce",),
    "pat": ("all_gather", "reduce_scatter"),
}
"""algorithm -> the collectives that know it; the others keep choosing (NVIDIA/nccl src/graph/tuning.cc)"""


def collective_settings(section: CollectivesSection) -> Settings | None:
    """None for the profile `ring`."""
    if section.profile == "ring":
        return None
    from parsim.hardware.nccl.inputs import Settings

    algorithm = "auto" if section.algorithm == "auto" else dict.fromkeys(APPLIES[section.algorithm], section.algorithm)
    return Settings(profile=section.profile, algorithm=algorithm, protocol=section.protocol)


TOPOLOGY = "cluster.topology"
_RATES = ("line_rate", "per_direction")
"""keys of a link that ``bandwidth`` stands for in ``cluster.set``"""


def machine_findings(
    findings: Iterable[Finding], section: ClusterSection, tree: Mapping[str, Any], devices: Mapping[str, Document]
) -> list[Finding]:
    """`findings` with paths of the scenario, or with a place in the user's own device file.

    Keys of the topology `tree` stand under cluster.topology, unless cluster.set or cluster.fabric changes them; `devices` are the
    documents that were looked up, by name.
    """
    return [_placed(finding, section, tree, devices) for finding in findings]


def _placed(finding: Finding, section: ClusterSection, tree: Mapping[str, Any], devices: Mapping[str, Document]) -> Finding:
    path = finding.path
    if finding.file or path == "cluster" or path.startswith(("cluster.", "training.")):
        return finding
    if path.startswith("device "):
        return _in_device(finding, section, devices)
    if not path:
        named = next(_naming(tree, finding.value), "")
        return replace(finding, path=f"{TOPOLOGY}.{named}".rstrip("."))
    if written(section.set, path):
        return replace(finding, path=f"cluster.set.{path}")
    key = path.removeprefix("fabric.")
    if key in FabricSection.model_fields and key != path and any(value != "default" for _, value in section.fabric):
        return replace(finding, path=f"cluster.{path}")
    return replace(finding, path=f"{TOPOLOGY}.{path}")


def _in_device(finding: Finding, section: ClusterSection, devices: Mapping[str, Document]) -> Finding:
    label = finding.path.removeprefix("device ")
    name = max((name for name in devices if label == name or label.startswith(f"{name}.")), key=len, default="")
    key = label.removeprefix(name).lstrip(".")
    if written(section.set, f"device.{key}"):
        return replace(finding, path=f"cluster.set.device.{key}")
    if name and not is_shipped(devices[name].path):
        return replace(finding, path=key).at(*devices[name].locate(key))
    return finding


def written(change: Mapping[str, Any], path: str) -> bool:
    """Whether ``cluster.set`` gives the key at a dotted path, also by a short form (``bandwidth``, ``memory: 40 GiB``)."""
    holder: Any = change
    keys = path.split(".")
    for key in keys:
        if not isinstance(holder, Mapping):
            return True
        if key not in holder:
            return key in _RATES and keys[0] == "links" and "bandwidth" in holder
        holder = holder[key]
    return True


def _naming(tree: Any, name: object) -> Iterator[str]:
    """Paths of the keys ``device`` and ``gpu`` that name a device."""
    if not isinstance(tree, Mapping):
        return
    for key, item in tree.items():
        if key in ("device", "gpu") and (item == name or (isinstance(item, list) and name in item)):
            yield str(key)
        else:
            yield from (f"{key}.{below}" for below in _naming(item, name))

"""Where the findings of the hardware room stand in what the user wrote: the scenario, its topology file, or a device file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from parsim.errors import Finding
from parsim.scenario.files import Document, is_shipped
from parsim.scenario.machine import ClusterSection, FabricSection

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

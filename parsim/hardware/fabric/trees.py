"""Topology trees before they are read: machines in one line written out, and what a scenario changes.

A box is ``4x v100-32gb`` or ``{gpu: rtx-3090, count: 6, interconnect: pcie3-x8, p2p: false}``; ``cluster.set`` changes device and
topology trees.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from parsim.errors import Finding, InputWarning, TopologyError
from parsim.hardware.device import Device
from parsim.hardware.fabric.links import STANDARD, standard_kind
from parsim.hardware.tree import Tree, closest
from parsim.limits import MOST_BOX
from parsim.units import multiplier, parse

_LINE = re.compile(r"\s*([0-9]+)\s*[x×*](?:\s+|(?=[^\W_]))(\S.*?)\s*")
_WIRINGS = ("nvswitch", "nvlink-mesh", "nvlink-pairs")


def parse_line(text: str) -> dict[str, Any]:
    """The box of a line such as ``4x v100-32gb``.

    Raises:
        TopologyError: the text is not of that form.
    """
    match = _LINE.fullmatch(text)
    if match is None or not int(match[1]):
        raise TopologyError(Finding(f"{text!r} is no box of GPUs", "cluster", text, 'write for example "4x v100-32gb"'))
    return {"gpu": match[2], "count": int(match[1])}


def expand_box(box: dict[str, Any], device_of: Callable[[str], Device], where: str = "cluster.topology") -> dict[str, Any]:
    """The topology tree of an inline box.

    Keys: ``gpu``, ``count``; ``interconnect`` (a PCIe kind such as pcie3-x8, nvswitch, nvlink-mesh, nvlink-pairs; default by
    device); ``sockets`` (default 2 for more than 4 GPUs), ``socket_link``; ``nic`` (a network kind) and ``nics``; ``p2p``; ``cpu`` (maker);
    ``host_memory`` (of the machine); ``overhead_power`` (what it draws beside its GPUs).

    Raises:
        TopologyError: unknown keys or wiring that the device does not have.
    """
    findings: list[Finding] = []
    tree = Tree(box, where, findings)
    count = tree.whole("count", 1, high=MOST_BOX)
    gpu = tree.text("gpu")
    tree.stop()
    device = device_of(gpu)
    wiring = tree.text("interconnect", device.interconnect if count > 1 else device.pcie)
    sockets = tree.whole("sockets", 2 if count > 4 else 1)
    socket_link = tree.text("socket_link", "socket-amd")
    nic = tree.text("nic", "")
    nics = tree.whole("nics", 1 if nic else 0, low=0)
    name = tree.text("name", f"{count}x {gpu}")
    links = tree.raw("links", {})
    pcie = wiring if wiring.startswith("pcie") else device.pcie
    edges: list[dict[str, Any]] = []
    per_socket = -(-count // sockets)
    edges += [{"from": f"gpu{number}", "to": f"cpu{number // per_socket}", "kind": pcie} for number in range(count)]
    if sockets > 1:
        edges.append({"from": "cpu*", "to": "cpu*", "kind": socket_link})
    edges += [{"from": f"nic{number}", "to": f"cpu{number % sockets}", "kind": pcie} for number in range(nics)]
    vertices = [f"cpu{number}" for number in range(sockets)] + [f"nic{number}" for number in range(nics)]
    if wiring in _WIRINGS:
        edges += _nvlink(tree, wiring, device, count)
        vertices += ["nvswitch"] if wiring == "nvswitch" else []
    elif standard_kind(wiring) is None and wiring not in links:
        tree.fail("interconnect", f"unknown interconnect {wiring!r}", closest(wiring, (*_WIRINGS, "pcie3-x8", "pcie4-x16", *STANDARD)))
    node: dict[str, Any] = {"gpus": count, "device": gpu, "vertices": vertices, "edges": edges}
    for key in ("p2p", "cpu", "host_memory", "overhead_power"):
        if tree.has(key):
            node[key] = tree.raw(key)
    tree.raw("price")
    tree.raw("storage")
    tree.close()
    tree.stop()
    topology: dict[str, Any] = {"name": name, "node": node, "links": links}
    if nic:
        topology["fabric"] = {"kind": "single-switch", "link": nic}
    topology |= {key: box[key] for key in ("price", "storage") if key in box}
    return topology


def _nvlink(tree: Tree, wiring: str, device: Device, count: int) -> list[dict[str, Any]]:
    """NVLink edges of a box, from the links the device has."""
    if not device.nvlinks:
        tree.fail("interconnect", f"{device.name} has no NVLink", f"leave interconnect out, or write {device.pcie}")
        return []
    if wiring == "nvswitch":
        return [{"from": "gpu*", "to": "nvswitch", "kind": device.nvlink, "count": device.nvlinks}]
    if wiring == "nvlink-pairs":
        return [
            {"from": f"gpu{number}", "to": f"gpu{number + 1}", "kind": device.nvlink, "count": device.nvlinks}
            for number in range(0, count - 1, 2)
        ]
    each = device.nvlinks // (count - 1)
    if not each:
        tree.fail(
            "interconnect",
            f"{device.nvlinks} NVLinks do not connect a {device.name} with {count - 1} others",
            "name a topology instead, for example dgx-1-v100",
        )
        return []
    return [{"from": "gpu*", "to": "gpu*", "kind": device.nvlink, "count": each}]


# changes to device and topology trees


_QUANTITY = re.compile(r"\s*([0-9._]+(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*")


def merged(base: Mapping[str, Any], change: Mapping[str, Any], where: str, findings: list[Finding]) -> dict[str, Any]:
    """`base` with `change` on top, key by key; ``xF`` multiplies the number that stands there."""
    result = dict(base)
    for key, value in change.items():
        place = f"{where}.{key}"
        old = base.get(key)
        if isinstance(value, Mapping):
            if old is not None and not isinstance(old, Mapping):
                findings.append(Finding("a mapping cannot replace a value", place, value))
                continue
            result[key] = merged(old or {}, value, place, findings)
        elif isinstance(value, str) and re.fullmatch(r"\s*[x×]\s*[0-9.eE+-]+\s*", value):
            result[key] = _multiplied(old, value, place, findings)
        elif isinstance(old, Mapping):
            findings.append(Finding(f"{key} is a mapping", place, value, f"name one of its keys: {', '.join(map(str, old))}"))
        else:
            result[key] = value
    return result


def changed_device(tree: Mapping[str, Any], change: Mapping[str, Any], where: str, findings: list[Finding]) -> dict[str, Any]:
    """A device tree with a change. ``memory: 40 GiB`` sets the installed size; the driver's share shrinks in proportion."""
    change = dict(change)
    memory = change.get("memory")
    if memory is not None and not isinstance(memory, Mapping):
        change["memory"] = {"size": memory}
    memory = change.get("memory")
    result = merged(tree, change, where, findings)
    if isinstance(memory, Mapping) and "size" in memory and "visible" not in memory:
        result["memory"] = {**result["memory"], **_visible(tree, result, f"{where}.memory.size", findings)}
    return _without_stale(result, change, where)


_MEASURES = {"compute": ("gemm", "attention"), "gemm": ("gemm",), "attention": ("attention",), "kernel_latency": ("copy",),
             "memory.bandwidth": ("copy", "optimizer"), "memory.efficiency": ("copy", "optimizer"),
             "memory.l2": ("copy",), "memory.l2_gain": ("copy",)}  # fmt: skip
"""changed key -> the measured tables of a device that no longer speak of it"""


def _without_stale(tree: dict[str, Any], change: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The device without the measured tables that a change makes untrue, otherwise the change would do nothing; with a warning."""
    memory = change.get("memory")
    changed = [*change, *(f"memory.{key}" for key in (memory if isinstance(memory, Mapping) else ()))]
    stale = dict.fromkeys(table for key in changed for table in _MEASURES.get(key, ()))
    measured = tree.get("measured")
    own = change.get("measured") or {}
    gone = [table for table in stale if isinstance(measured, Mapping) and measured.get(table) and table not in own]
    if not isinstance(measured, Mapping) or not gone:
        return tree
    because = ", ".join(f"{where}.{key}" for key in changed if set(_MEASURES.get(key, ())) & set(gone))
    text = (
        f"measured times ({', '.join(gone)}) of {tree.get('name')} are not used: {because} describes another device than the measured one"
    )
    warnings.warn(text, InputWarning, stacklevel=4)
    return {**tree, "measured": {key: rows for key, rows in measured.items() if key not in gone}}


def _visible(old: Mapping[str, Any], new: Mapping[str, Any], where: str, findings: list[Finding]) -> dict[str, Any]:
    try:
        size, before = parse(new["memory"]["size"], "bytes"), parse(old["memory"]["size"], "bytes")
        visible = parse(old["memory"].get("visible", old["memory"]["size"]), "bytes")
    except (ValueError, KeyError) as error:
        findings.append(Finding(str(error), where, new["memory"].get("size")))
        return {}
    return {"visible": f"{int(Fraction(int(size)) * Fraction(int(visible)) / Fraction(int(before)))} B"}


def changed_links(links: Mapping[str, Any], change: Mapping[str, Any], where: str, findings: list[Finding]) -> dict[str, Any]:
    """The `links` table with a change; ``bandwidth`` means per_direction or line_rate, whichever the kind uses."""
    result = {name: dict(entry) for name, entry in links.items() if isinstance(entry, Mapping)}
    for name, entry in change.items():
        place = f"{where}.{name}"
        if not isinstance(entry, Mapping):
            findings.append(Finding("expected a mapping such as {bandwidth: x2}", place, entry))
            continue
        base = result.get(name, {})
        standard = standard_kind(name)
        rated = any(key in base for key in ("per_direction", "bandwidth", "line_rate"))
        if not base and standard is None:
            own = ", ".join(result) or "none of its own"
            findings.append(Finding(f"unknown kind of link {name!r}", place, entry, f"the topology has {own}"))
            continue
        if not rated and standard is not None and standard.medium == "network":
            share = standard.capacity / standard.planning
            base = {"line_rate": f"{standard.planning!r} B/s", "efficiency": share, **base}
        elif not rated and standard is not None:
            base = {**base, "per_direction": f"{standard.capacity!r} B/s"}
        if "latency" not in base and standard is not None:
            base = {**base, "latency": f"{standard.latency!r} s"}
        wanted = dict(entry)
        if "bandwidth" in wanted and "bandwidth" not in base:
            wanted["line_rate" if "line_rate" in base else "per_direction"] = wanted.pop("bandwidth")
        result[name] = merged(base, wanted, place, findings)
    return result


def _multiplied(old: Any, value: str, where: str, findings: list[Finding]) -> Any:
    try:
        factor = multiplier(value)
    except ValueError as error:
        findings.append(Finding(str(error), where, value))
        return old
    if isinstance(old, (int, float)) and not isinstance(old, bool):
        product = old * factor
        return int(product) if isinstance(old, int) and product == int(product) else product
    match = _QUANTITY.fullmatch(old) if isinstance(old, str) else None
    if match is None:
        findings.append(Finding(f"nothing to multiply: the value there is {old!r}", where, value))
        return old
    return f"{float(Fraction(match[1].replace('_', '')) * Fraction(str(factor)))!r} {match[2]}"

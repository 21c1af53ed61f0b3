"""Machines in one line: ``4x v100-32gb`` or ``{gpu: rtx-3090, count: 6, interconnect: pcie3-x8, p2p: false}``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from parsim.errors import Finding, TopologyError
from parsim.hardware.device import Device
from parsim.hardware.links import STANDARD, standard_kind
from parsim.hardware.tree import Tree, closest
from parsim.limits import MOST_BOX

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
    tree.close()
    tree.stop()
    topology: dict[str, Any] = {"name": name, "node": node, "links": links}
    if nic:
        topology["fabric"] = {"kind": "single-switch", "link": nic}
    if "price" in box:
        topology["price"] = box["price"]
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

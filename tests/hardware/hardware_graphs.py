"""Small clusters that the hardware tests build by hand, and the shipped ones."""

from __future__ import annotations

from functools import cache
from typing import Any

from parsim.hardware.builder import build_cluster
from parsim.hardware.cluster import Cluster
from parsim.hardware.device import Device, device_from_tree
from parsim.scenario.files import find, names, read

CHIP: dict[str, Any] = {
    "name": "chip",
    "memory": {"size": "80 GiB", "bandwidth": "2 TB/s"},
    "compute": {"sms": 108, "peak": {"fp32": "19.5 TFLOP/s"}},
    "features": ["p2p"],
}


def chip(name: str = "chip") -> dict[str, Any]:
    return {**CHIP, "name": name}


def device_tree(name: str) -> dict[str, Any]:
    return CHIP if name == "chip" else dict(read(find("devices", name)).tree)


@cache
def device(name: str) -> Device:
    return device_from_tree(device_tree(name), f"device {name}")


def topology_tree(name: str) -> dict[str, Any]:
    return dict(read(find("topologies", name)).tree)


def shipped(name: str, nodes: int = 1, **options: Any) -> Cluster:
    return build_cluster(topology_tree(name), device_lookup=device_tree, nodes=nodes, **options)


def build(tree: dict[str, Any] | str, **options: Any) -> Cluster:
    return build_cluster(tree, device_lookup=device_tree, **options)


def shipped_topologies() -> list[str]:
    return names("topologies")


def wire(rate: float, medium: str = "network", **extra: Any) -> dict[str, Any]:
    """A link kind of `rate` GB/s."""
    return {"medium": medium, "per_direction": f"{rate!r} GB/s", **extra}


def switched(count: int, rate: float, **extra: Any) -> Cluster:
    """`count` GPUs on one NVSwitch, ports of `rate` GB/s."""
    node = {"gpus": count, "device": "chip", "vertices": ["nvswitch"], "edges": [{"from": "gpu*", "to": "nvswitch", "kind": "port"}]}
    return build({"name": "switched", "node": node, "links": {"port": wire(rate, "nvlink", **extra)}})


def nodes_on_rails(nodes: int, gpus: int, nics: int, nic: float, *, inner: float = 1000.0, **fabric: Any) -> Cluster:
    """Machines of `gpus` GPUs on an NVSwitch of `inner` GB/s and `nics` NICs of `nic` GB/s shared evenly."""
    share = gpus // nics
    edges: list[dict[str, Any]] = [{"from": "gpu*", "to": "nvswitch", "kind": "nv"}]
    edges += [{"from": f"gpu{gpu}", "to": f"pcie{gpu // share}", "kind": "bus"} for gpu in range(gpus)]
    edges += [{"from": f"nic{number}", "to": f"pcie{number}", "kind": "bus"} for number in range(nics)]
    vertices = ["nvswitch", f"pcie0..{nics - 1}", f"nic0..{nics - 1}"]
    tree = {
        "name": "rails",
        "node": {"gpus": gpus, "device": "chip", "vertices": vertices, "edges": edges},
        "fabric": {"kind": "rail-optimised", "link": "net", **fabric},
        "links": {"nv": wire(inner, "nvlink"), "bus": wire(1000.0, "pcie"), "net": wire(nic)},
    }
    return build(tree, nodes=nodes)


def leaf_spine(spine: bool = True) -> Cluster:
    """Oracle: four single-GPU machines with NICs of 25, two per leaf, one uplink of 25 per leaf."""
    edges = [{"from": f"gpu{gpu}", "to": f"leaf{gpu // 2}", "kind": "nic"} for gpu in range(4)]
    edges.append({"from": "leaf*", "to": "spine", "kind": "nic"})
    return build(
        {
            "name": "leaf-spine",
            "vertices": ["gpu0..3", "leaf0..1", "spine"],
            "edges": edges,
            "device": "chip",
            "links": {"nic": wire(25.0)},
        }
    )


def two_sockets(socket: float = 10.0, port: float = 24.0) -> Cluster:
    """Oracle: eight GPUs on ports of 24, four per socket, a socket link of 10 in each direction."""
    edges = [{"from": f"gpu{gpu}", "to": f"cpu{gpu // 4}", "kind": "port"} for gpu in range(8)]
    edges.append({"from": "cpu0", "to": "cpu1", "kind": "sys"})
    node = {"gpus": 8, "device": "chip", "vertices": ["cpu0..1"], "edges": edges}
    return build({"name": "two-sockets", "node": node, "links": {"port": wire(port, "pcie"), "sys": wire(socket, "socket")}})

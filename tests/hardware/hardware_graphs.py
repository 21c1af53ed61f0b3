"""Small clusters that the hardware tests build by hand, and the shipped ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from parsim.hardware.device import Device, device_from_tree
from parsim.hardware.fabric.builder import build_cluster
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.flows import CollectiveCost
from parsim.hardware.interconnect import Interconnect
from parsim.hardware.nccl.inputs import Settings
from parsim.program.program import Collective, Lane, Program
from parsim.scenario.files import find, names, read
from parsim.simulation.engine import Engine

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


def pcie_and_nic_chain() -> Cluster:
    """Oracle: two machines, GPU to NIC over PCIe of 24, NICs of 25 on one switch; hop latencies add up to 3.3 us."""
    edges = [{"from": f"{end}{side}", "to": to, "kind": f"{kind}{side}"} for side in (0, 1) for end, to, kind in (
        ("gpu", f"nic{side}", "bus"), ("nic", "leaf", "net"))]  # fmt: skip
    buses = {f"bus{side}": wire(24.0, "pcie", latency="0.5 us") for side in (0, 1)}
    nets = {f"net{side}": wire(25.0, latency="1.15 us") for side in (0, 1)}
    vertices = ["gpu0", "gpu1", "cpu0", "cpu1", "nic0", "nic1", "leaf"]
    return build({"name": "chain", "device": "chip", "vertices": vertices, "edges": edges, "links": {**buses, **nets}})


def hashed(counts: tuple[int, ...], rate: float = 50.0) -> Cluster:
    """Oracle: as many senders on each uplink as a hash put there, ports and uplinks of `rate`; GPU k sends to GPU n + k."""
    senders = sum(counts)
    leaf = [number for number, count in enumerate(counts) for _ in range(count)]
    edges = [{"from": f"gpu{gpu}", "to": f"leaf{up}", "kind": "nic"} for gpu, up in enumerate(leaf)]
    edges += [{"from": f"leaf{up}", "to": "spine", "kind": "nic"} for up in range(len(counts))]
    edges += [{"from": "spine", "to": f"gpu{gpu}", "kind": "nic"} for gpu in range(senders, 2 * senders)]
    vertices = [f"gpu0..{2 * senders - 1}", f"leaf0..{len(counts) - 1}", "spine"]
    return build({"name": "hashed", "device": "chip", "vertices": vertices, "edges": edges, "links": {"nic": wire(rate)}})


def pcie_switch() -> Cluster:
    """Oracle: two GPUs (24) and a NIC (25) below a PCIe switch with one upstream port of 24; a third GPU beyond the network."""
    edges = [
        {"from": "gpu0", "to": "pcie0", "kind": "bus"},
        {"from": "gpu1", "to": "pcie0", "kind": "bus"},
        {"from": "cpu0", "to": "pcie0", "kind": "bus"},
        {"from": "nic0", "to": "pcie0", "kind": "wide"},
        {"from": "nic0", "to": "leaf", "kind": "net"},
        {"from": "gpu2", "to": "leaf", "kind": "far"},
    ]
    links = {"bus": wire(24.0, "pcie"), "wide": wire(25.0, "pcie"), "net": wire(25.0), "far": wire(100.0)}
    vertices = ["gpu0..2", "pcie0", "cpu0", "nic0", "leaf"]
    return build({"name": "pcie-switch", "device": "chip", "vertices": vertices, "edges": edges, "links": links})


def two_sockets(socket: float = 10.0, port: float = 24.0) -> Cluster:
    """Oracle: eight GPUs on ports of 24, four per socket, a socket link of 10 in each direction."""
    edges = [{"from": f"gpu{gpu}", "to": f"cpu{gpu // 4}", "kind": "port"} for gpu in range(8)]
    edges.append({"from": "cpu0", "to": "cpu1", "kind": "sys"})
    node = {"gpus": 8, "device": "chip", "vertices": ["cpu0..1"], "edges": edges}
    return build({"name": "two-sockets", "node": node, "links": {"port": wire(port, "pcie"), "sys": wire(socket, "socket")}})


# what happens when collectives meet


class Quiet(Interconnect):
    """Costs without their latencies: only bytes take time. `weights` are by kind."""

    def __init__(self, cluster: Cluster, settings: Settings | None = None, **weights: float) -> None:
        super().__init__(cluster, range(cluster.gpus), settings)
        self.weights = weights

    def cost(self, collective: Any) -> CollectiveCost:
        found = super().cost(collective)
        weight = self.weights.get(collective.kind, 1.0)
        return found._replace(latency=0.0, flows=tuple(flow._replace(weight=weight) for flow in found.flows))


@dataclass(frozen=True)
class Job:
    """A collective that starts at a time [s]."""

    kind: str
    group: tuple[int, ...]
    bytes: int
    at: float = 0.0


def ends(interconnect: Any, jobs: Iterable[Job]) -> list[float]:
    """When each job ends if they share the fabric [s], by the simulation."""
    program = Program()
    for number, job in enumerate(jobs):
        lane = (Lane(job.group[0], f"job {number}"),)
        program.add(job.kind, "data_comm", lane, duration=job.at, collective=Collective(job.kind, "data", job.group, job.bytes))
    return list(Engine(program, interconnect).run().end)

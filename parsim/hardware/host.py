"""A GPU and its own host: copies over PCIe into host memory, transfers to and from drives, and work of the CPU in host memory.

Copies cross the links of the machine's graph (GPU, PCIe switch, CPU, host memory), so they contend with each other, with
staged transfers and with the NIC behind the same switch. Host memory is one resource per socket that reads and writes
share; pinned buffers and the processes of a GPU are taken to be on the socket nearest to it.
"""

from __future__ import annotations

from parsim.errors import Finding, TopologyError
from parsim.hardware.cluster import Cluster
from parsim.hardware.flows import CollectiveCost, Flow
from parsim.hardware.node import Node
from parsim.hardware.routes import TIER_HOST, Route, shift

COPIES = ("d2h", "h2d", "nvme_read", "nvme_write", "cpu_step")
"""device to host, host to device, drive to host memory, host memory to drive, and bytes that the CPU moves in host memory"""
LAUNCH = 10e-6
"""of an asynchronous copy or a drive request [s]; a cudaMemcpyAsync of a few bytes takes 8 to 12 us end to end (assumption)"""


def host_cost(cluster: Cluster, gpu: int, kind: str, size: int) -> CollectiveCost:
    """Cost of one of `COPIES` of `size` bytes for `gpu`.

    Raises:
        TopologyError: the machine has no host memory, or no drive.
    """
    node = cluster.node_of(gpu)
    route = shift(host_route(cluster.machine(node), cluster.local(gpu), kind), cluster.first_link(node))
    latency = LAUNCH + route.latency
    if not size:
        return CollectiveCost(latency, (), "copy", "none")
    path = tuple(zip(route.links, route.coefficients, strict=True))
    return CollectiveCost(latency, (Flow(path, float(size), route.bottleneck(cluster.capacity)),), "copy", "none")


def host_route(machine: Node, gpu: int, kind: str) -> Route:
    """The links of a copy, in local ids of the machine.

    Raises:
        TopologyError: there is no way from the GPU to host memory, or from there to a drive.
    """
    key = (gpu, kind)
    if (found := machine.host_routes.get(key)) is None:
        found = machine.host_routes[key] = _search(machine, machine.gpu_names[gpu], kind)
    return found


def _search(machine: Node, gpu: str, kind: str) -> Route:
    out = _nearest(machine, gpu, "memory")
    if out is None:
        text = f"{machine.name} has no way from {gpu} to host memory: nothing can be offloaded"
        raise TopologyError(Finding(text, "cluster.topology", None, "connect the GPU to a CPU with a PCIe edge"))
    match kind:
        case "d2h":
            vertices = out
        case "h2d":
            vertices = out[::-1]
        case "cpu_step":
            vertices = out[-2:]
        case _:
            drive = _nearest(machine, out[-1], "nvme")
            if drive is None:
                raise TopologyError(Finding(f"{machine.name} has no drive near {gpu}", "cluster.topology", None, "offload to cpu"))
            vertices = drive if kind == "nvme_write" else drive[::-1]
    return machine.finder.along(vertices, TIER_HOST)


def _nearest(machine: Node, source: str, kind: str) -> list[str] | None:
    """The shortest path to a vertex of a kind: host memory beside the nearest CPU."""
    ends = [vertex for vertex, other in machine.finder.kind.items() if other == kind]
    media = ("pcie", "socket", "memory", "storage")
    paths = [path for end in ends if (path := machine.finder.path(source, end, media, ("pcie", "cpu"))) is not None]
    return min(paths, key=len) if paths else None

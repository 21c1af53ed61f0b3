"""What a predicted collective is worth: how far healthy machines lie from it, and how much slower other machines of the kind are.

The prediction is for healthy machines that run alone. Bands: the share of published rows inside them is in validation/nccl/README.md. The
tail has one side: nothing makes a cluster faster than its links, and much makes it slower. Evidence: one all-reduce on one cluster of
64 GPUs in ten jobs, 236 to 329 GB/s with a median of 321; eight pairs of systems of one kind, of which one in ten differs by 18 to 30 %.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.networks import network_class
from parsim.units import format_bytes

EDGES = (2**20, 128 * 2**20, 512 * 2**20)
"""of the classes of sizes: [0, a), [a, b], (b, c), [c, ...) [B]"""
ONE, TWO, MORE = (0.40, 0.25, 0.25, 0.05), (0.40, 0.25, 0.25, 0.10), (0.40, 0.25, 0.25, 0.20)
"""bands by class of sizes: one machine with NVLink, two machines, more (as in validation/nccl/systems.yaml)"""
TAIL = 0.30
"""goodput that a slow cluster loses between machines"""


class Worth(NamedTuple):
    """What is known about the predictions of one group."""

    bands: tuple[float, ...]
    """by class of sizes, both ways"""
    tail: float
    """goodput that a slow cluster loses"""
    network: str
    """the cable between machines and its numbers; empty for one machine"""

    def document(self) -> dict[str, Any]:
        """For the JSON document."""
        return {"size_edges": EDGES, "bands": self.bands, "slow_tail": self.tail, **({"network": self.network} if self.network else {})}

    def lines(self) -> list[str]:
        """For people."""
        edges = [f"below {format_bytes(EDGES[0])}", f"to {format_bytes(EDGES[2])}", "beyond"]
        bands = ", ".join(f"±{100 * self.bands[number]:.0f} % {edge}" for number, edge in zip((0, 1, 3), edges, strict=True))
        lines = [f"# healthy machines that run alone: {bands}"]
        if self.tail:
            lines.append(f"# slow machines: down to {100 * self.tail:.0f} % less bandwidth (one cluster, ten jobs: 236 to 329 GB/s)")
            lines.append(f"# network: {self.network}")
        return lines


def worth(cluster: Cluster, members: tuple[int, ...]) -> Worth:
    """What predictions for the GPUs `members` are worth."""
    nodes = len({cluster.node_of(gpu) for gpu in members})
    if nodes == 1 or cluster.fabric is None:
        return Worth(ONE, 0.0, "")
    return Worth(TWO if nodes == 2 else MORE, TAIL, _network(cluster))


def _network(cluster: Cluster) -> str:
    """The numbers of the cable between machines, and whether anybody measured such a network."""
    from parsim.hardware.fabric.direct import GraphFabric

    if isinstance(cluster.network, GraphFabric):
        return "as drawn"
    kind = cluster.network.link_kind
    known = network_class(kind.name)
    numbers = f"{kind.name}, {kind.capacity / 1e9:.4g} GB/s each way"
    if kind.planned:
        numbers += f" ({100 * kind.capacity / kind.planning:.3g} % of the line rate)"
    numbers += f", {kind.message_latency * 1e6:.3g} us per message, {kind.handshake * 1e6:.3g} us handshake for a large one"
    return numbers + ("" if known.measured else "; no published measurement of such a network: assumptions")

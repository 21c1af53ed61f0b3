"""Memory of the machines' CPUs (and drives) that training takes: what the ranks of a node keep there, over time.

Counted are offloaded tensors and the buffers they pass through. The training processes themselves, the data loader and
the page cache come on top (a few GiB per rank), and so does what a pinned allocator rounds up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from parsim.simulation.ledger import Ledger, MemoryTimeline

if TYPE_CHECKING:
    from parsim.report.assemble import Run


class Machines(Protocol):
    """What this file asks of a cluster."""

    def node_of(self, gpu: int) -> int: ...
    def machine(self, node: int) -> Machine: ...


class Machine(Protocol):
    """One machine's host memory."""

    @property
    def host_memory(self) -> int | None: ...


@dataclass(frozen=True)
class HostMemory:
    """The fullest node."""

    node: int
    bytes: int
    """highest host memory in use by the ranks of the node [B]"""
    at_peak: Mapping[str, int]
    """category -> bytes; sums to `bytes`"""
    capacity_bytes: int | None
    """of the node; None if the topology does not say"""
    nvme_bytes: int = 0
    """what the node's ranks keep on drives [B]"""

    @property
    def headroom(self) -> int | None:
        """Bytes left; negative: it does not fit; None if nobody knows."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.bytes

    @property
    def lacks(self) -> int:
        """Bytes too few; 0 if it fits or nobody knows."""
        return 0 if self.headroom is None else max(0, -self.headroom)

    def document(self) -> dict[str, Any]:
        """As the report's JSON has it."""
        fits = None if self.headroom is None else self.headroom >= 0
        return {**asdict(self), "fits": fits, "headroom_bytes": self.headroom}


def host_memory(run: Run, machines: Machines) -> HostMemory | None:
    """Host memory of the node that lacks most, or has most in use; None if nothing is offloaded."""
    offload = run.plan.training.offload
    if not offload.states and offload.activations == "none":
        return None
    ranks_of: dict[int, Counter[int]] = {}
    for rank, gpu in enumerate(run.plan.gpus):
        ranks_of.setdefault(machines.node_of(gpu), Counter())[run.classes.represents[rank]] += 1
    ledger = Ledger(run.trace.program, run.trace, sorted(set(run.classes.represents.values())))
    known: dict[tuple[tuple[tuple[int, int], ...], int | None], HostMemory] = {}
    for node, counts in ranks_of.items():
        capacity = machines.machine(node).host_memory
        key = (tuple(sorted(counts.items())), capacity)
        if key not in known:
            known[key] = _node(ledger, node, counts, capacity)
    return min(known.values(), key=lambda host: (host.headroom if host.headroom is not None else 0, -host.bytes, host.node))


def _node(ledger: Ledger, node: int, counts: Mapping[int, int], capacity: int | None) -> HostMemory:
    """The ranks of one node together; `counts`: representative -> how many of the node's ranks it stands for."""
    curves = {rank: ledger.measure(rank, where="host") for rank in counts}
    size, row_of = _peak(curves, counts)
    at_peak: dict[str, int] = {}
    for rank, curve in curves.items():
        for category, held in curve.composition(row_of[rank]).items():
            if held:
                name = category.removeprefix("host ")
                at_peak[name] = at_peak.get(name, 0) + held * counts[rank]
    drives = sum(ledger.measure(rank, where="nvme").peak * count for rank, count in counts.items())
    return HostMemory(node, size, at_peak, capacity, drives)


def _peak(curves: Mapping[int, MemoryTimeline], counts: Mapping[int, int]) -> tuple[int, dict[int, int]]:
    """Highest sum of the curves [B], and the row of each curve at that moment."""
    times = np.concatenate([curve.times for curve in curves.values()])
    deltas = np.concatenate([curve.delta * counts[rank] for rank, curve in curves.items()])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(deltas[order])
    if not len(level):
        return 0, dict.fromkeys(curves, -1)
    top = int(level.argmax())
    taken = order[: top + 1]
    rows, begin = {}, 0
    for rank, curve in curves.items():
        rows[rank] = int(np.count_nonzero((taken >= begin) & (taken < begin + len(curve.times)))) - 1
        begin += len(curve.times)
    return int(level[top]), rows

"""How long a collective takes between machines, once the library has chosen algorithm and protocol.

    t = L + T (1 + h C / (S + ramp C))

L, before the bytes move: the kernel's start, the library's latency with the network's own time per message (Simple counts it twice: it
flushes), and for messages above the eager limit a handshake at every step between machines (Simple: two).
T, while they move: the busiest link of the algorithm's channels, a NIC at its share of the line rate; what the thread blocks of an
algorithm move at most; for LL the library's own bandwidth. h C / (S + ramp C), Simple only: the pipeline is filled, h chunks of all
channels (C) deep, before it flows; a small message has fewer chunks to fill.

What is the network's alone (time per message, handshake, share of the line rate) stands with the link (`parsim.hardware.fabric.networks`);
the numbers here are the library's and hold for every network. A table's latencies steer its choice; some were no time (28 us per step of
Simple, 2.12; 20.9 us per step of an NVLS tree since 2.28, where 13 are measured and 14 stood before), so L always has the newest table's.
Which rows the numbers come from, and how far they move when a system is left out: validation/nccl/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from parsim.hardware.fabric.networks import EAGER_LIMIT
from parsim.hardware.nccl.inputs import Inputs
from parsim.hardware.nccl.tables import Algorithm, Generation, Protocol, constants
from parsim.hardware.nccl.tuning import NO_HEADS, cap, channels_run, depth, head_blocks, latency, steps

_SLOTS = 8
"""steps that a channel's buffer is divided into (NCCL_STEPS)"""
_MOST_CHANNELS = 32
"""channels that fill a pipeline at the same time, of rings and trees; a network proxy serves no more at once (assumption)"""
_HEAD_CHUNK = 512 * 1024
"""of a block of NVLS, which has buffers of its own [B]"""
_LL128_SHARE = 120 / 128
"""payload of a line"""


class Crossing(NamedTuple):
    """A collective between machines: group, kind, and what the library chose."""

    inputs: Inputs
    kind: str
    algorithm: Algorithm
    protocol: Protocol
    size: float
    """as in nccl-tests [B]"""

    @property
    def message(self) -> float:
        """What is sent at once between machines [B]."""
        return self.size if self.kind in ("all_reduce", "broadcast", "reduce") else self.size / self.inputs.ranks

    @property
    def network_steps(self) -> int:
        """Messages between machines that follow one another."""
        if self.algorithm in ("tree", "nvls_tree"):
            return 2 * depth(self.inputs)
        rounds = self.inputs.nodes - 1
        return 2 * rounds if self.kind == "all_reduce" and self.algorithm == "ring" else rounds


class Between(NamedTuple):
    """The numbers of the law that are the library's."""

    launch: float
    """start of the kernel [s]"""
    tree_share: float
    """what a tree moves of what its busiest link allows"""
    fill: Mapping[str, float]
    """h: chunks per channel that fill the pipeline, by algorithm"""
    ramp: float
    """chunks per channel at which half of that is paid"""
    head_step: float
    """of an NVLS tree between machines [s]"""
    heads: Mapping[Generation, float]
    """bus bandwidth of an NVLS tree per head at two machines [B/s]; other GPUs have the library's cap"""
    blocks: Mapping[Generation, float]
    """bus bandwidth of an all-reduce per thread block at more than two machines, ring or NVLS tree [B/s]"""
    source: str = ""

    def latency(self, asked: Crossing) -> float:
        """Time before the bytes move [s]."""
        inputs = asked.inputs
        table = constants()
        wait = self.launch + latency(inputs, asked.kind, asked.algorithm, asked.protocol, table)
        if asked.algorithm == "nvls_tree":
            wait += 2 * depth(inputs) * (self.head_step - table.step["network"]["nvls_tree"][2])
        if asked.message > EAGER_LIMIT:
            wait += (2 if asked.protocol == "simple" else 1) * inputs.handshake * asked.network_steps
        return wait

    def transfer(self, asked: Crossing, busiest: float, bandwidth: float) -> float:
        """Time in which the bytes move [s].

        Args:
            asked: the collective.
            busiest: seconds that the busiest link needs per byte of the size [s/B].
            bandwidth: the library's, bytes of the size per second [B/s].
        """
        if not asked.size:
            return 0.0
        if asked.protocol == "ll":
            return asked.size / bandwidth
        if asked.protocol == "ll128":
            time = busiest / _LL128_SHARE
            return asked.size * (max(time, 1 / bandwidth) if asked.algorithm == "tree" else time)
        flowing = asked.size * max(busiest / (self.tree_share if asked.algorithm == "tree" else 1.0), self._blocks(asked))
        chunks = self._chunks(asked)
        return flowing * (1 + self.fill.get(asked.algorithm, 0.0) * chunks / (asked.size + self.ramp * chunks))

    def _blocks(self, asked: Crossing) -> float:
        """Seconds per byte that the thread blocks of an algorithm need at least [s/B]."""
        inputs = asked.inputs
        bus = steps("all_reduce", inputs.ranks) / inputs.ranks
        more = inputs.nodes > 2
        if asked.algorithm == "tree" and more:
            graph = inputs.tree or inputs.ring
            return 2 / (graph.channels * cap(inputs, constants().tree_cap))
        if asked.algorithm == "nvls_tree":
            heads = inputs.nvls or NO_HEADS
            if more and inputs.generation in self.blocks:
                return bus / (head_blocks(inputs) * self.blocks[inputs.generation])
            rate = self.heads.get(inputs.generation, cap(inputs, constants().nvls_tree_cap))
            return bus / (heads.count * rate) if heads.count and rate else 0.0
        if asked.algorithm == "ring" and asked.kind == "all_reduce" and more and inputs.generation in self.blocks:
            return bus / (channels_run(inputs) * self.blocks[inputs.generation])
        return 0.0

    def _chunks(self, asked: Crossing) -> float:
        """Bytes of one chunk on every channel [B]."""
        if asked.algorithm in ("nvls", "nvls_tree"):
            return head_blocks(asked.inputs) * _HEAD_CHUNK
        return min(channels_run(asked.inputs), _MOST_CHANNELS) * asked.inputs.library.buffer / _SLOTS


def planned_links(inputs: Inputs, kind: str, algorithm: str) -> float:
    """What the busiest link needs per byte of a collective's size, as the library's search planned it [s/B]."""
    if algorithm in ("ring", "pat"):
        return steps(kind, inputs.ranks) / inputs.ranks / (inputs.ring.channels * inputs.ring.between)
    if algorithm == "tree":
        graph = inputs.tree or inputs.ring
        return max(2 / (graph.channels * graph.intra), (1 if inputs.nodes == 2 else 2) / (graph.channels * graph.between))
    heads = inputs.nvls or NO_HEADS
    return (1 if inputs.nodes == 2 else 2) / (heads.count * heads.between) if heads.count else 0.0


BETWEEN = Between(
    launch=3e-6,
    tree_share=0.9,
    fill={"tree": 8.0, "ring": 1.0, "nvls_tree": 5.5},
    ramp=2.5,
    head_step=13e-6,
    heads={"hopper": 58.8e9},
    blocks={"hopper": 21.5e9},
    source="validation/nccl/fit.yaml; heads: near the cap of NVIDIA/nccl src/graph/tuning.cc; "
    "blocks: NVIDIA/nccl-tests issue 309, 320 to 366 GB/s with 16 blocks where 24 reach 391",
)

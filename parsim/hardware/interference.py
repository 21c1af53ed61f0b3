"""What communication kernels take from compute that runs beside them, and the other way round.

A collective's kernel holds streaming multiprocessors for as long as it runs, one block per channel however slow the wire, and HBM
bandwidth (each byte on the wire is read and written, and summed if it is reduced). A GEMM has the other multiprocessors; a memory-bound
kernel streams with few of them and feels the bandwidth.

    simple: compute rate = (1 - m) (1 - sum of SM shares) + m (1 - sum of HBM shares), m the share of memory-bound time
    full:   compute rate = (1 - sum of SM shares) x (1 - mu x sum of HBM shares), and communication is slowed, too

Published, kernel by kernel: beside NCCL's all-gather of 24 blocks a GEMM of 132 blocks on the 132 multiprocessors of an H100 gets
the others only and runs its last blocks in a second wave, at 47 instead of 80 % of the peak (forums.developer.nvidia.com/t/337991,
with Nsight Systems); 24 is what NCCL's model gives there (`parsim.hardware.nccl.estimate.ctas`). The rule counts the average of many
waves, 1 - 24/132. Of whole steps: overlapped compute is slowed by 18.9 % on average and up to 40 % on A100, H100, MI250 and MI210 (arXiv
2507.03114); BatchNorm's backward doubles to quadruples beside an all-reduce on V100 (NVIDIA/nccl issue 338).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.flows import CollectiveCost, CollectiveFacts


class Load(NamedTuple):
    """What one collective takes from a device while it moves data, or a memory-bound kernel on a stream of its own."""

    multiprocessors: float
    """share of the SMs"""
    memory: float
    """share of the HBM bandwidth"""
    network: bool
    """crosses machines"""
    kernel: bool = False
    """not a collective but a kernel of another stream"""


KERNEL = Load(0.0, 1.0, network=False, kernel=True)
"""A copy or sum on a stream of its own streams at the rate of HBM; its blocks find room beside those of a GEMM."""
GEMM_SENSITIVITY, MEMORY_SENSITIVITY = 0.3, 1.0
"""mu of a GEMM and of a memory-bound kernel (assumptions)"""
LEAST = 0.2
"""compute never gets slower than this (assumption)"""


@dataclass(frozen=True, slots=True)
class Simple:
    """Multiprocessors that collectives hold are lost to GEMMs, HBM bandwidth to memory-bound kernels; nothing slows communication."""

    def compute_rate(self, loads: Iterable[Load], memory_bound: float) -> float:
        """Rate of a kernel mix of which `memory_bound` is the share of memory-bound time."""
        known = list(loads)
        if not known:
            return 1.0
        held = min(1.0, math.fsum(load.multiprocessors for load in known))
        kernels = min(1.0, math.fsum(load.memory for load in known if load.kernel))
        gemm = (1 - held) * (1 - GEMM_SENSITIVITY * kernels)
        streaming = 1 - min(1.0, math.fsum(load.memory for load in known))
        return max(LEAST, gemm * (1 - memory_bound) + streaming * memory_bound)

    def alike(self, loads: Iterable[Load]) -> tuple[Load, ...]:
        """Loads that slow every kernel, also with others besides, as much as these: their sums count."""
        return tuple(loads)

    def communication_rate(self, memory_bound: float) -> float:
        """Communication is not slowed."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Full:
    """SMs and HBM as in the module's formula."""

    gemm_sensitivity: float = GEMM_SENSITIVITY
    """mu of a GEMM"""
    memory_sensitivity: float = MEMORY_SENSITIVITY
    """mu of a memory-bound kernel"""
    beside_gemm: float = 0.05
    """share of its rate that communication loses beside a GEMM"""
    beside_memory: float = 0.15
    """the same beside a memory-bound kernel"""
    least: float = LEAST
    """compute never gets slower than this"""

    def compute_rate(self, loads: Iterable[Load], memory_bound: float) -> float:
        """Rate of a kernel mix of which `memory_bound` is the share of memory-bound time."""
        known = list(loads)
        if not known:
            return 1.0
        multiprocessors = math.fsum(load.multiprocessors for load in known)
        memory = min(1.0, math.fsum(load.memory for load in known))
        mu = self.gemm_sensitivity * (1 - memory_bound) + self.memory_sensitivity * memory_bound
        return max(self.least, (1 - min(1.0, multiprocessors)) * (1 - mu * memory))

    def alike(self, loads: Iterable[Load]) -> tuple[Load, ...]:
        """Loads that slow every kernel, also with others besides, as much as these: their sums count."""
        return tuple(loads)

    def communication_rate(self, memory_bound: float) -> float:
        """Rate of collectives beside a running kernel."""
        return 1 - (self.beside_gemm * (1 - memory_bound) + self.beside_memory * memory_bound)


Model = Simple | Full


def load_of(kind: str, cost: CollectiveCost, members: int, blocks: int, *, sms: int, bandwidth: float, network: bool) -> Load:
    """The load of a collective of `members` ranks with `blocks` CUDA blocks on a device with `sms` and HBM `bandwidth` [B/s].

    HBM bytes per byte on the wire: a reducing ring step reads two operands and writes one, a copying step reads and
    writes: (3 + 2) / 2 for an all-reduce (half its steps reduce), 3 for reduce-scatter and reduce, 2 otherwise.
    """
    transfer = cost.time - cost.latency
    if transfer <= 0 or members < 2:
        return Load(0.0, 0.0, network)
    per_byte = {"all_reduce": 2.5, "reduce_scatter": 3.0, "reduce": 3.0}.get(kind, 2.0)
    wire = math.fsum(flow.volume for flow in cost.flows) / transfer
    return Load(min(1.0, blocks / sms), min(1.0, per_byte * wire / bandwidth), network)


BLOCKS_LOCAL, BLOCKS_NETWORK, BLOCKS_SEND = 24, 16, 4
"""CUDA blocks where the collective's model does not say, inside a machine, across machines, and of a send: NCCL's on A100 and H100
(NVIDIA/nccl 2.30 src/graph/tuning.cc; Megatron-LM distributed_data_parallel_config.py lists 16 to 24 without registered buffers)"""

MODELS: dict[str, Model | None] = {"off": None, "simple": Simple(), "full": Full()}
"""scenario word -> model"""


class DeviceInterference:
    """A model on the devices of a job: what each collective takes from the devices it runs on."""

    def __init__(self, model: Model, cost: Callable[[CollectiveFacts], CollectiveCost], cluster: Cluster, gpus: tuple[int, ...]) -> None:
        self._model = model
        self._cost = cost
        self._cluster = cluster
        self._gpus = gpus
        self._kinds = len({cluster.device(gpu) for gpu in gpus})

    def load(self, collective: CollectiveFacts) -> Load:
        """See `load_of`; the member with the fewest multiprocessors stands for all."""
        members = [self._gpus[rank] for rank in collective.group]
        every = members if self._kinds > 1 else members[:1]
        device = min((self._cluster.device(gpu) for gpu in every), key=lambda one: one.sms)
        home = self._cluster.node_of(members[0])
        network = any(self._cluster.node_of(gpu) != home for gpu in members)
        cost = self._cost(collective)
        usual = BLOCKS_SEND if collective.kind in ("send", "sendrecv") else BLOCKS_NETWORK if network else BLOCKS_LOCAL
        blocks = cost.blocks or usual
        return load_of(collective.kind, cost, len(members), blocks, sms=device.sms, bandwidth=device.bandwidth, network=network)

    def kernel_load(self) -> Load:
        """What a kernel on a stream of its own takes."""
        return KERNEL

    def compute_rate(self, loads: Iterable[Load], memory_bound: float) -> float:
        """See the model."""
        return self._model.compute_rate(loads, memory_bound)

    def alike(self, loads: Iterable[Load]) -> tuple[Load, ...]:
        """See the model."""
        return self._model.alike(loads)

    def communication_rate(self, memory_bound: float) -> float:
        """See the model."""
        return self._model.communication_rate(memory_bound)

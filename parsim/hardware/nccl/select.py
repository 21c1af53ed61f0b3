"""Which algorithm and protocol the library picks: the smallest predicted time (NVIDIA/nccl src/enqueue.cc, topoGetAlgoInfo)."""

from __future__ import annotations

from dataclasses import dataclass

from parsim.errors import Finding, TopologyError
from parsim.hardware.nccl.bandwidth import bandwidth, obstacle, possible
from parsim.hardware.nccl.inputs import AUTOMATIC, Inputs, Settings
from parsim.hardware.nccl.latency import channels_run, latency, plateau
from parsim.hardware.nccl.tables import ALGORITHMS, PROTOCOLS, Algorithm, Constants, Protocol, constants

_THREADS: dict[Protocol, int] = {"ll": 512, "ll128": 640, "simple": 512}
_BYTES_PER_THREAD: dict[Protocol, int] = {"ll": 8, "ll128": 8, "simple": 64}
_SLOW_RING = 12e9
"""a ring this slow runs with 256 threads [B/s]"""


@dataclass(frozen=True, slots=True)
class Choice:
    """One algorithm and protocol for one size."""

    algorithm: Algorithm
    protocol: Protocol
    latency: float
    """[s], plateau included"""
    bandwidth: float
    """bytes of the collective's size per second, tree correction included [B/s]"""
    size: float

    @property
    def time(self) -> float:
        """Predicted time [s]."""
        return self.latency + self.size / self.bandwidth


def predict(inputs: Inputs, kind: str, algorithm: Algorithm, protocol: Protocol, size: float, table: Constants) -> Choice | None:
    """The library's own prediction for one combination, or None where it is not possible."""
    speed = bandwidth(inputs, kind, algorithm, protocol, table)
    if speed <= 0:
        return None
    speed *= correction(inputs, kind, algorithm, protocol, size, table)
    wait = latency(inputs, kind, algorithm, protocol, table) * plateau(inputs, kind, algorithm, protocol, size, table)
    return Choice(algorithm, protocol, wait, speed, size)


def correction(inputs: Inputs, kind: str, algorithm: Algorithm, protocol: Protocol, size: float, table: Constants) -> float:
    """Factor on the bandwidth of a tree of medium size."""
    if kind != "all_reduce" or size < 64:
        return 1.0
    place = (int(size) >> 6).bit_length() - 1
    row = table.tree_correction[PROTOCOLS.index(protocol)]
    if algorithm == "tree" and place < 23:
        return row[place]
    if algorithm == "nvls_tree" and table.nvls_tree_corrected and inputs.generation == "blackwell" and inputs.x86 and place < len(row):
        return row[place]
    return 1.0


def candidates(inputs: Inputs, kind: str, size: float, settings: Settings = AUTOMATIC) -> list[Choice]:
    """Every possible combination that the settings allow, in the library's order.

    Raises:
        TopologyError: the settings ask for something that is not possible here; names what is.
    """
    table = constants(settings.version)
    algorithm, protocol = settings.wanted(kind)
    found = [
        choice
        for name in ALGORITHMS
        if algorithm in ("auto", name)
        for wire in PROTOCOLS
        if protocol in ("auto", wire) and (choice := predict(inputs, kind, name, wire, size, table)) is not None
    ]
    if not found:
        raise _refusal(inputs, kind, algorithm, protocol, table)
    return found


def choose(inputs: Inputs, kind: str, size: float, settings: Settings = AUTOMATIC) -> Choice:
    """The fastest combination by the library's own prediction; of equal ones the first.

    Raises:
        TopologyError: as `candidates`.
    """
    return min(candidates(inputs, kind, size, settings), key=lambda choice: choice.time)


def _refusal(inputs: Inputs, kind: str, algorithm: str, protocol: str, table: Constants) -> TopologyError:
    able = [f"{name} with {wire}" for name in ALGORITHMS for wire in PROTOCOLS if possible(inputs, kind, name, wire, table)]
    reasons = dict.fromkeys(
        reason
        for name in ALGORITHMS
        for wire in PROTOCOLS
        if algorithm in ("auto", name) and protocol in ("auto", wire) and (reason := obstacle(inputs, kind, name, wire, table))
    )
    wanted = " and ".join(name for name in (algorithm, protocol) if name != "auto")
    key = "collectives.algorithm" if algorithm != "auto" else "collectives.protocol"
    message = f"{kind} over {inputs.ranks} ranks on {inputs.nodes} node{'s' * (inputs.nodes > 1)} cannot use {wanted}: {'; '.join(reasons)}"
    repair = f"possible: {', '.join(able)}; a choice may be given per collective, e.g. {{all_reduce: {able[0].split()[0]}}}"
    return TopologyError(Finding(message, key, wanted, repair))


def ctas(inputs: Inputs, choice: Choice, settings: Settings = AUTOMATIC) -> int:
    """CUDA blocks that a collective occupies: one per channel, fewer for small sizes (NVIDIA/nccl src/enqueue.cc)."""
    limit = settings.max_ctas or 64
    if choice.algorithm in ("nvls", "nvls_tree"):
        count = 16 if inputs.generation != "blackwell" else 24 if inputs.nodes == 1 else 32
        return min(count, limit)
    count = min(channels_run(inputs), limit)
    threads, each = _THREADS[choice.protocol], _BYTES_PER_THREAD[choice.protocol]
    if choice.algorithm == "ring":
        if choice.protocol == "ll":
            each *= inputs.ranks
        elif choice.protocol == "simple" and inputs.ring.channels * inputs.ring.intra <= _SLOW_RING:
            threads = 256
    elif choice.algorithm in ("collnet_direct", "collnet_chain"):
        each = 512
    return max(1, min(count, int(choice.size) // (threads * each)))

"""Which algorithm and protocol the library picks, and how long a collective takes: its own prediction, or what is measured.

The choice is always the library's: the smallest predicted time (NVIDIA/nccl src/enqueue.cc, topoGetAlgoInfo). How long it takes is
another matter: its constants steer the choice, and some are no time at all. What the measured profile takes instead is in
`parsim.hardware.nccl.profiles` (inside a machine) and `parsim.hardware.nccl.between` (between machines).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from parsim.errors import Finding, TopologyError
from parsim.hardware.nccl.between import Crossing, planned_links
from parsim.hardware.nccl.inputs import AUTOMATIC, Inputs, Settings
from parsim.hardware.nccl.profiles import NcclProfile, profile
from parsim.hardware.nccl.tables import ALGORITHMS, PROTOCOLS, Algorithm, Constants, Protocol, constants
from parsim.hardware.nccl.tuning import bandwidth, channels_run, head_blocks, latency, obstacle, plateau, possible, steps

# the library's choice


_THREADS: dict[Protocol, int] = {"ll": 512, "ll128": 640, "simple": 512}
_BYTES_PER_THREAD: dict[Protocol, int] = {"ll": 8, "ll128": 8, "simple": 64}
_SLOW_RING = 12e9
"""a ring this slow runs with 256 threads [B/s]"""


class AlgorithmChoice(NamedTuple):
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


def predict(inputs: Inputs, kind: str, algorithm: Algorithm, protocol: Protocol, size: float, table: Constants) -> AlgorithmChoice | None:
    """The library's own prediction for one combination, or None where it is not possible."""
    speed = bandwidth(inputs, kind, algorithm, protocol, table)
    if speed <= 0:
        return None
    speed *= correction(inputs, kind, algorithm, protocol, size, table)
    wait = latency(inputs, kind, algorithm, protocol, table) * plateau(inputs, kind, algorithm, protocol, size, table)
    return AlgorithmChoice(algorithm, protocol, wait, speed, size)


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


def candidates(inputs: Inputs, kind: str, size: float, settings: Settings = AUTOMATIC) -> list[AlgorithmChoice]:
    """Every possible combination that the settings allow, in the library's order.

    Raises:
        TopologyError: the settings ask for something that is not possible here; names what is.
    """
    table = constants(settings.version)
    algorithm, protocol = settings.wanted(kind)
    choices = [
        choice
        for name in ALGORITHMS
        if _allowed(algorithm, name, inputs.library.algorithms)
        for wire in PROTOCOLS
        if _allowed(protocol, wire, inputs.library.protocols) and (choice := predict(inputs, kind, name, wire, size, table)) is not None
    ]
    if not choices:
        raise _refusal(inputs, kind, algorithm, protocol, table)
    return choices


def _allowed(wanted: str, name: str, library: tuple[str, ...]) -> bool:
    """Whether a scenario's wish, or else what the machines set, allows a name."""
    return name == wanted if wanted != "auto" else not library or name in library


def choose(inputs: Inputs, kind: str, size: float, settings: Settings = AUTOMATIC) -> AlgorithmChoice:
    """The fastest combination by the library's own prediction; of equal ones the first.

    Raises:
        TopologyError: as `candidates`.
    """
    return min(candidates(inputs, kind, size, settings), key=lambda choice: choice.time)


def _refusal(inputs: Inputs, kind: str, algorithm: str, protocol: str, table: Constants) -> TopologyError:
    set_here = inputs.library
    able = [
        f"{name} with {wire}"
        for name in ALGORITHMS
        for wire in PROTOCOLS
        if possible(inputs, kind, name, wire, table)
        and _allowed("auto", name, set_here.algorithms)
        and _allowed("auto", wire, set_here.protocols)
    ]
    reasons = dict.fromkeys(
        reason
        for name in ALGORITHMS
        for wire in PROTOCOLS
        if algorithm in ("auto", name) and protocol in ("auto", wire) and (reason := obstacle(inputs, kind, name, wire, table))
    )
    wanted = " and ".join(name for name in (algorithm, protocol) if name != "auto")
    if not able:
        allowed = f"algorithms {list(set_here.algorithms) or 'all'}, protocols {list(set_here.protocols) or 'all'}"
        message = f"these machines allow no {kind} over {inputs.ranks} ranks: {allowed}"
        return TopologyError(
            Finding(message, "collectives.algorithms", allowed, "change cluster.set.collectives, for example algorithms: []")
        )
    key = "collectives.algorithm" if algorithm != "auto" else "collectives.protocol"
    message = f"{kind} over {inputs.ranks} ranks on {inputs.nodes} node{'s' * (inputs.nodes > 1)} cannot use {wanted}: {'; '.join(reasons)}"
    repair = f"possible: {', '.join(able)}; a choice may be given per collective, e.g. {{all_reduce: {able[0].split()[0]}}}"
    return TopologyError(Finding(message, key, wanted, repair))


def ctas(inputs: Inputs, choice: AlgorithmChoice, settings: Settings = AUTOMATIC) -> int:
    """CUDA blocks that a collective occupies: one per channel, fewer for small sizes (NVIDIA/nccl src/enqueue.cc)."""
    limit = settings.max_ctas or inputs.library.max_channels or 64
    if choice.algorithm in ("nvls", "nvls_tree"):
        return min(head_blocks(inputs), limit)
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


class CollectiveEstimate(NamedTuple):
    """What one collective takes on an idle fabric."""

    choice: AlgorithmChoice
    latency: float
    """before the bytes move: launch and latency [s]"""
    transfer: float
    """while they move [s]"""
    ctas: int
    """CUDA blocks"""

    @property
    def time(self) -> float:
        """All of it [s]."""
        return self.latency + self.transfer


Links = Callable[[str], float]
"""algorithm -> seconds that its busiest link needs per byte of the collective's size [s/B]"""


def estimate(
    inputs: Inputs, kind: str, size: float, settings: Settings = AUTOMATIC, used: NcclProfile | None = None, links: Links | None = None
) -> CollectiveEstimate:
    """Time of a collective of `size` bytes (sizes as in nccl-tests); a barrier is an all_reduce of no bytes.

    Args:
        inputs: the group.
        kind: one of `parsim.hardware.nccl.inputs.COLLECTIVES`, or barrier.
        size: bytes.
        settings: library version, overrides, host.
        used: the profile, instead of the one that the settings name.
        links: what the algorithms ask of a cluster's links; None: what the search planned.

    Raises:
        TopologyError: unknown kind or profile; an override that is not possible.
    """
    used = used or profile(settings.profile)
    if kind == "barrier":
        kind, size = "all_reduce", 0
    choice = choose(planned(inputs, used), kind, size, settings)
    blocks = ctas(inputs, choice, settings)
    if inputs.nodes == 1 or used.between is None:
        return CollectiveEstimate(
            choice, choice.latency + (used.launch if inputs.nodes == 1 else 0.0), transfer(inputs, kind, choice, used), blocks
        )
    question = Crossing(inputs, kind, choice.algorithm, choice.protocol, size)
    busiest = 0.0
    if size and choice.protocol != "ll":  # what LL moves is the library's own number; the links of a large group take long to find
        busiest = links(choice.algorithm) if links is not None else planned_links(inputs, kind, choice.algorithm)
    moving = used.between.transfer(question, busiest, choice.bandwidth)
    if inputs.nodes > 2 and settings.scale_exponent:
        moving *= (inputs.nodes / 2) ** settings.scale_exponent
    return CollectiveEstimate(choice, used.between.latency(question), moving, blocks)


def planned(inputs: Inputs, used: NcclProfile) -> Inputs:
    """The group as the library plans it under a profile."""
    heads = inputs.nvls
    if used.unquantised_heads and heads is not None and heads.unquantised and inputs.generation == "blackwell" and inputs.nodes == 1:
        return replace(inputs, nvls=replace(heads, speed=heads.unquantised))
    return inputs


def transfer(inputs: Inputs, kind: str, choice: AlgorithmChoice, used: NcclProfile) -> float:
    """Time in which the bytes move inside a machine, or by the library's own prediction [s]."""
    if not choice.size:
        return 0.0
    speed = choice.bandwidth
    if inputs.nodes > 1:
        return choice.size / speed
    pace = used.pace(inputs, choice.algorithm)
    if choice.protocol != "ll":
        speed *= pace.rate * _gain(inputs, choice, used)
    stretch = 1.0
    if choice.algorithm == "ring":
        stretch += pace.ring_steps / steps(kind, inputs.ranks)
    return choice.size / speed * stretch + pace.ramp * choice.size / (choice.size + pace.half)


def _gain(inputs: Inputs, choice: AlgorithmChoice, used: NcclProfile) -> float:
    """What the wires carry relative to what the search planned."""
    if choice.algorithm in ("nvls", "nvls_tree"):
        heads = inputs.nvls
        if heads is None or not used.unquantised_heads or not heads.unquantised or inputs.generation == "blackwell":
            return 1.0
        return heads.unquantised / heads.speed
    graph = (inputs.tree or inputs.ring) if choice.algorithm == "tree" else inputs.ring
    return graph.gain if used.real_rate else 1.0

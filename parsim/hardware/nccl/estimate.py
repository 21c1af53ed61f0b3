"""Which algorithm and protocol the library picks, and how long a collective takes: its own prediction, or what is measured.

The choice is always the library's: the smallest predicted time (NVIDIA/nccl src/enqueue.cc, topoGetAlgoInfo).
On top of its time the measured profile has

    t = t_launch + L + (S / bandwidth) (1 + r / steps) / rate + E S / (S + S_h)

`rate`: what the wires of a fabric move relative to the library's constant (not for LL); r: further steps of every ring loop;
E and S_h: filling the pipeline. Parameters hold per fabric, never per message size or machine. NVLS inside a node moves what a
head's share of the NVLinks comes to, not the next lower entry of the library's list of speeds.

Sources of the measured profile, by name below:
vtrain: VIA-Research/vTrain, V100 profile (cube mesh, 2 to 8 GPUs); ml-engineering: stas00/ml-engineering network/README.md (A100,
H200, B200 sweeps); vidur: microsoft/vidur data/profiling/network; awslabs: awslabs/awsome-distributed-training
micro-benchmarks/nccl-tests (p5, EFA); nccl-tests: NVIDIA/nccl-tests issues 119, 152, 252; Hetu-Galvatron: PKU-DAIR/Hetu-Galvatron
galvatron/profile_hardware (all_to_all on a node of A100).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from parsim.errors import Finding, TopologyError
from parsim.hardware.nccl.inputs import AUTOMATIC, Inputs, Settings
from parsim.hardware.nccl.tables import ALGORITHMS, PROTOCOLS, Algorithm, Constants, Generation, Protocol, constants
from parsim.hardware.nccl.tuning import bandwidth, channels_run, latency, obstacle, plateau, possible, steps

# the library's choice


_THREADS: dict[Protocol, int] = {"ll": 512, "ll128": 640, "simple": 512}
_BYTES_PER_THREAD: dict[Protocol, int] = {"ll": 8, "ll128": 8, "simple": 64}
_SLOW_RING = 12e9
"""a ring this slow runs with 256 threads [B/s]"""


class Choice(NamedTuple):
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
    choices = [
        choice
        for name in ALGORITHMS
        if algorithm in ("auto", name)
        for wire in PROTOCOLS
        if protocol in ("auto", wire) and (choice := predict(inputs, kind, name, wire, size, table)) is not None
    ]
    if not choices:
        raise _refusal(inputs, kind, algorithm, protocol, table)
    return choices


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


# what is measured


class Pace(NamedTuple):
    """Corrections of one kind of wire."""

    rate: float = 1.0
    """bytes moved per byte the library counts on; not for LL"""
    ring_steps: float = 0.0
    """steps of a ring beyond the library's"""
    ramp: float = 0.0
    """time that a large message loses to filling the pipeline [s]"""
    half: float = 1.0
    """size at which half of it is lost [B]"""
    by_generation: Mapping[Generation, float] = {}
    """`rate` where it differs by GPU"""
    source: str = ""

    def rate_of(self, inputs: Inputs) -> float:
        """The rate for the GPUs of a group."""
        return self.by_generation.get(inputs.generation, self.rate)


class Pairs(NamedTuple):
    """Point-to-point operations over one kind of wire."""

    send: float = 1.0
    """what one message moves relative to the links [-]"""
    exchange: float = 1.0
    """what a GPU moves in an exchange with several peers, relative to its links"""
    pair: float = 1.0
    """the same with one peer"""
    start: float = 0.0
    """fixed part of an exchange besides the launch [s]"""
    peer: float = 1e-6
    """per peer [s]"""
    source: str = ""


NEUTRAL = Pace(source="the library's own prediction")


class Profile(NamedTuple):
    """Everything that is added to the library's own prediction."""

    name: Literal["nccl", "measured"]
    launch: tuple[float, float] = (0.0, 0.0)
    """start of the kernel on one node, on several [s]"""
    unquantised_heads: bool = False
    """NVLS heads move their share of the NVLinks; on Blackwell the library's choice counts on it, too"""
    real_rate: bool = False
    """rings carry what the links do, not what the search planned"""
    local: Mapping[str, Pace] = {}
    network: Mapping[str, Pace] = {}
    local_nvls: Mapping[str, Pace] = {}
    network_nvls: Mapping[str, Pace] = {}

    pairs: Mapping[str, Pairs] = {}
    """point-to-point operations by wire inside a node"""
    network_latency: Mapping[str, float] = {}
    """of a message, where the topology does not say [s]"""

    def pace(self, inputs: Inputs, algorithm: str) -> Pace:
        """The corrections for a group and an algorithm."""
        switched = algorithm in ("nvls", "nvls_tree")
        if inputs.nodes > 1:
            return (self.network_nvls if switched else self.network).get(inputs.network, NEUTRAL)
        return (self.local_nvls if switched else self.local).get(inputs.local, NEUTRAL)


MEASURED = Profile(
    name="measured",
    launch=(2e-6, 5e-6),
    unquantised_heads=True,
    real_rate=True,
    local={
        "nvlink2": Pace(ramp=20e-6, half=2e6, source="vtrain; its rate of 22.5 / 20 is that of the links themselves"),
        "nvlink3": Pace(0.985, 0.4, 50e-6, 10e6, source="vtrain, ml-engineering: A100 groups of 2 to 8"),
        "nvlink4": Pace(1.02, 0.07, 100e-6, 20e6, source="ml-engineering: H200, ring; the ramp is weakly determined"),
        "nvlink5": Pace(0.955, 0.14, 100e-6, 20e6, source="ml-engineering: B200, ring; the ramp is an assumption"),
        "xgmi": Pace(source="ml-engineering: MI300X; no correction needed"),
        "pcie": Pace(source="no correction needed where the path is known"),
    },
    network={
        "ib": Pace(by_generation={"ampere": 0.985}, source="nccl-tests; A100 with HDR"),
        "roce": Pace(by_generation={"ampere": 0.985}, source="like InfiniBand; two systems"),
        "efa": Pace(1.0, 0.0, 240e-6, 25e6, source="awslabs"),
        "tcp": Pace(0.6, 0.0, 200e-6, 20e6, source="assumption: sockets reach 0.35 to 0.8 of the line rate"),
        "ethernet": Pace(1.0, 0.0, 200e-6, 20e6, source="assumption: TCP fills links of up to 25 Gb/s"),
    },
    local_nvls={
        "nvlink4": Pace(0.972, 0.0, 65e-6, 8e6, source="ml-engineering: H200, 5 to 8 GPUs"),
        "nvlink5": Pace(1.012, 0.0, 65e-6, 8e6, source="ml-engineering: B200, 6 to 8 GPUs"),
    },
    pairs={
        "nvlink2": Pairs(0.93, 0.83, 0.646, 15e-6, 6e-6, "assumption: as nvlink3"),
        "nvlink3": Pairs(
            0.93, 0.83, 0.646, 15e-6, 6e-6, "vidur: 223 of 240 GB/s; Hetu-Galvatron: 199 GB/s, 155 between two; 75, 80, 110 us"
        ),
        "nvlink4": Pairs(0.976, 0.83, 0.646, 15e-6, 6e-6, "vidur: 362 of 370.8 GB/s; exchange: assumption, as nvlink3"),
        "nvlink5": Pairs(0.955, 0.745, 0.646, 15e-6, 6e-6, "MooreThreads/SimuMax configs/system: 0.597 of 900 GB/s; else assumption"),
    },
    network_latency={"tcp": 25e-6, "ethernet": 25e-6},
    network_nvls={
        "ib": Pace(1.0, 0.0, 100e-6, 20e6, source="assumption"),
        "roce": Pace(1.0, 0.0, 100e-6, 20e6, source="assumption: as InfiniBand"),
        "efa": Pace(1.03, 0.0, 240e-6, 25e6, source="awslabs"),
    },
)
NCCL = Profile(name="nccl")
PROFILES: dict[str, Profile] = {"measured": MEASURED, "nccl": NCCL}


def profile(name: str) -> Profile:
    """A profile by name.

    Raises:
        TopologyError: unknown.
    """
    if name not in PROFILES:
        raise TopologyError(Finding("unknown profile", "collectives.profile", name, f"known: {', '.join(PROFILES)}"))
    return PROFILES[name]


class Estimate(NamedTuple):
    """What one collective takes on an idle fabric."""

    choice: Choice
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


def estimate(inputs: Inputs, kind: str, size: float, settings: Settings = AUTOMATIC, used: Profile | None = None) -> Estimate:
    """Time of a collective of `size` bytes (sizes as in nccl-tests); a barrier is an all_reduce of no bytes.

    Args:
        inputs: the group.
        kind: one of `parsim.hardware.nccl.inputs.COLLECTIVES`, or barrier.
        size: bytes.
        settings: library version, overrides, host.
        used: the profile, instead of the one that the settings name.

    Raises:
        TopologyError: unknown kind or profile; an override that is not possible.
    """
    used = used or profile(settings.profile)
    if kind == "barrier":
        kind, size = "all_reduce", 0
    choice = choose(planned(inputs, used), kind, size, settings)
    latency = choice.latency + used.launch[0 if inputs.nodes == 1 else 1]
    return Estimate(choice, latency, transfer(inputs, kind, choice, used, settings), ctas(inputs, choice, settings))


def planned(inputs: Inputs, used: Profile) -> Inputs:
    """The group as the library plans it under a profile."""
    heads = inputs.nvls
    if used.unquantised_heads and heads is not None and heads.unquantised and inputs.generation == "blackwell" and inputs.nodes == 1:
        return replace(inputs, nvls=replace(heads, speed=heads.unquantised))
    return inputs


def transfer(inputs: Inputs, kind: str, choice: Choice, used: Profile, settings: Settings = AUTOMATIC) -> float:
    """Time in which the bytes move [s]."""
    if not choice.size:
        return 0.0
    speed = choice.bandwidth
    pace = used.pace(inputs, choice.algorithm)
    if choice.protocol != "ll":
        speed *= pace.rate_of(inputs) * _gain(inputs, choice, used)
    stretch = 1.0
    if choice.algorithm == "ring":
        stretch += pace.ring_steps / steps(kind, inputs.ranks)
    if inputs.nodes > 2 and settings.scale_exponent:
        stretch *= (inputs.nodes / 2) ** settings.scale_exponent
    return choice.size / speed * stretch + pace.ramp * choice.size / (choice.size + pace.half)


def _gain(inputs: Inputs, choice: Choice, used: Profile) -> float:
    """What the wires carry relative to what the search planned."""
    if choice.algorithm in ("nvls", "nvls_tree"):
        heads = inputs.nvls
        if heads is None or not used.unquantised_heads or not heads.unquantised or inputs.nodes > 1 or inputs.generation == "blackwell":
            return 1.0
        return heads.unquantised / heads.speed
    graph = (inputs.tree or inputs.ring) if choice.algorithm == "tree" else inputs.ring
    return graph.gain if used.real_rate else 1.0

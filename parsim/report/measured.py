"""What a report is made from: the trace, and facts that other rooms know.

`parsim.run` fills these plain records; the report only measures, it never asks a model or a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from parsim.errors import Finding
from parsim.hardware.flows import CollectiveCost
from parsim.parallel.optimizer import StateBytes
from parsim.program.program import Collective
from parsim.report.communication import LinkClass
from parsim.report.economics import Economics
from parsim.report.estimate import Confidence
from parsim.report.experts import ExpertFacts
from parsim.report.faults import Faults
from parsim.report.local_steps import LocalSteps
from parsim.report.slow_gpu import SlowGpu
from parsim.report.steady import SteadyWindow
from parsim.report.training_faults import TrainingFault
from parsim.report.variability import RunStatistics
from parsim.report.wiring import Wiring
from parsim.report.workers import WorkerSlowdowns
from parsim.simulation.replay import Mode
from parsim.simulation.trace import Trace

if TYPE_CHECKING:
    from parsim.report.training_paths import Player
    from parsim.simulation.interrupted import InterruptedTraining

CATEGORIES = (
    "context",
    "communicators",
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "temporaries",
    "buffers",
    "workspace",
    "fragmentation",
)
"""Memory categories from the flat base to what comes and goes: the order of stacked figures."""

AT_PEAK = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "buffers",
    "temporaries",
    "workspace",
    "context",
    "communicators",
    "fragmentation",
)
"""The same in the order of the report."""


def compress_ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them: ``compress_ranges([0, 1, 2, 3, 8]) == "0-3,8"``."""
    parts: list[str] = []
    ordered = sorted(set(numbers))
    first = 0
    for place, number in enumerate(ordered):
        if place + 1 < len(ordered) and ordered[place + 1] == number + 1:
            continue
        parts.append(str(number) if first == place else f"{ordered[first]}-{number}")
        first = place + 1
    return ",".join(parts)


@dataclass(frozen=True)
class Ranks:
    """How many devices there are and how they are split."""

    total: int = 1
    """used GPUs"""
    tensor: int = 1
    context: int = 1
    data: int = 1
    pipeline: int = 1
    expert: int = 1
    """ranks over which the experts of a layer are spread"""
    expert_tensor: int = 1
    """ranks that share the width of every expert, where experts are spread"""
    expert_data: int = 1
    """ranks with the same experts, where experts are spread"""
    outer: int = 1
    """groups of replicas that step alone between two exchanges"""
    micro_batches: int = 1
    nodes: int = 1
    idle_gpus: int = 0


@dataclass(frozen=True)
class RankClass:
    """Ranks that do the same on equivalent links; `rank` stands for all `members`."""

    rank: int
    """the simulated representative"""
    members: tuple[int, ...]
    stage: int | None = None

    @property
    def count(self) -> int:
        """How many ranks the class has."""
        return len(self.members)

    @property
    def ranks(self) -> str:
        """The members as compressed ranges."""
        return compress_ranges(self.members)


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of the model and the floating-point work of one optimizer step of the whole job."""

    parameters: int
    parameters_padded: int
    parameters_active: int
    flop_per_step: float
    """in the convention below; what mfu counts [FLOP]"""
    hardware_flop_per_step: float
    """with recomputed forward work; what hfu counts [FLOP]"""
    peak_flop_per_gpu: float
    """dense datasheet peak of the matmul type [FLOP/s]; the mean where GPUs differ"""
    samples_per_step: int
    tokens_per_step: float | None = None
    """None for models without sequences"""
    flop_convention: str = "palm"
    memory_bound_fraction: float | None = None
    """part of the compute time whose kernels wait for HBM, not for arithmetic"""
    trainable: int | None = None
    """None: all parameters"""

    @property
    def parameters_trainable(self) -> int:
        """Parameters that get gradients."""
        return self.parameters if self.trainable is None else self.trainable


@dataclass(frozen=True)
class ScheduleFacts:
    """The pipeline schedule and how the model lies on it."""

    name: str = "none"
    stages: int = 1
    virtual_stages: int = 1
    layers_per_stage: tuple[int, ...] = ()
    stage_time_s: tuple[Mapping[str, float], ...] = ()
    """per stage: forward, backward_input, backward_weight of one micro-batch"""
    bubble_fraction_theory: float | None = None


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes per category over time on one rank: `bytes[category][i]` holds from `times[i]` [s] on."""

    times: Sequence[float]
    bytes: Mapping[str, Sequence[int]]
    reserved: Sequence[tuple[float, int]] = ()
    """each change of the memory that the caching allocator holds: (time [s], bytes); empty where it was not replayed"""

    def within(self, begin: float, end: float) -> MemoryCurve:
        """The part from `begin` to `end` [s], with the level that holds at `begin`."""
        times = np.asarray(self.times, dtype=np.float64)
        first = max(0, int(np.searchsorted(times, begin, side="right")) - 1)
        last = int(np.searchsorted(times, end, side="right"))
        return MemoryCurve(
            np.maximum(times[first:last], begin).tolist(), {name: list(volume[first:last]) for name, volume in self.bytes.items()}
        )

    def thinned(self, most: int) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """Times and bytes with at most about `most` points, in the order of a stack.

        Of each bin of time the highest and the lowest, so the peak stays, and the last, which holds until the next bin has any.
        """
        times = np.asarray(self.times, dtype=np.float64)
        known = [name for name in CATEGORIES if name in self.bytes] + [name for name in self.bytes if name not in CATEGORIES]
        levels = {name: np.asarray(self.bytes[name], dtype=np.float64) for name in known}
        if len(times) <= most:
            return times, levels
        total = np.sum(list(levels.values()), axis=0)
        edges = np.searchsorted(times, np.linspace(times[0], times[-1], max(2, most // 3 + 1))[1:-1])
        begins = np.unique(np.append(0, edges[edges < len(times)]))
        bin_of = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(times)))
        places = [begins[1:] - 1, np.array([0, len(times) - 1])]
        for extreme in (np.maximum, np.minimum):
            reached = np.flatnonzero(total == extreme.reduceat(total, begins)[bin_of])
            places.append(reached[np.unique(bin_of[reached], return_index=True)[1]])
        chosen = np.unique(np.concatenate(places))
        return times[chosen], {name: volume[chosen] for name, volume in levels.items()}


@dataclass(frozen=True)
class DeviceMemory:
    """Peaks of one rank [B] and what they are made of; `rank` is a representative."""

    rank: int
    allocated_bytes: int
    reserved_bytes: int
    device_used_bytes: int
    """reserved + context + communicators: what nvidia-smi shows, and what must fit"""
    at_peak: Mapping[str, int]
    """category -> bytes when device_used peaks; sums to device_used_bytes"""
    resident_bytes: Mapping[str, int] = field(default_factory=dict)
    """category -> bytes that stay between steps"""
    peak_time_s: float | None = None
    peak_op: str | None = None
    in_flight_micro_batches: int | None = None
    weight_versions: int = 1
    capacity_bytes: int | None = None
    """of this device where it differs from the job's"""
    method: Literal["replayed", "shortened"] = "replayed"
    """what went through the caching allocator: every allocation and release, or not all micro-batches that repeat a pattern"""
    drawn: Callable[[], MemoryCurve] | None = None
    """makes the curve over time; None: it cannot be drawn"""

    @cached_property
    def curve(self) -> MemoryCurve | None:
        """Memory over time, made when it is first asked for; None where it cannot be drawn."""
        return None if self.drawn is None else self.drawn()


@dataclass(frozen=True)
class HostMemory:
    """Host memory of the node that has least of it left."""

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
        """Bytes by which the need exceeds the node's memory; 0 if it fits or the capacity is unknown."""
        return 0 if self.headroom is None else max(0, -self.headroom)

    def document(self) -> dict[str, Any]:
        """The mapping that stands in the report's JSON document."""
        fits = None if self.headroom is None else self.headroom >= 0
        return {**asdict(self), "fits": fits, "headroom_bytes": self.headroom}


@dataclass(frozen=True)
class MemoryFacts:
    """Memory of the job: device peaks by class of ranks, and what the strategy keeps on hosts."""

    capacity_bytes: int
    """what the driver reports"""
    devices: tuple[DeviceMemory, ...]
    reserve_bytes: int = 0
    host_bytes: int = 0
    """host memory of the fullest node that the strategy takes"""
    at_save_bytes: int | None = None
    bytes_per_parameter: str | None = None
    """in words: ``2+2+4+8 = 16 B/parameter``"""
    states: StateBytes = field(default_factory=StateBytes)
    """the same as numbers"""
    host: HostMemory | None = None
    """None where nothing is offloaded"""

    def usable(self, device: DeviceMemory) -> int:
        """What a device class may use [B]."""
        return (self.capacity_bytes if device.capacity_bytes is None else device.capacity_bytes) - self.reserve_bytes

    @property
    def worst_device(self) -> DeviceMemory | None:
        """The device class with the least headroom."""
        return min(self.devices, key=lambda device: self.usable(device) - device.device_used_bytes, default=None)

    @property
    def headroom(self) -> int:
        """Bytes left on the fullest device; negative: it does not fit."""
        worst = self.worst_device
        return (self.capacity_bytes - self.reserve_bytes) if worst is None else self.usable(worst) - worst.device_used_bytes

    @property
    def peak_bytes(self) -> int:
        """The highest device memory in use on any rank, as nvidia-smi would show it [B]."""
        return max((device.device_used_bytes for device in self.devices), default=0)


@dataclass(frozen=True)
class ProfiledGpu:
    """What the profiler says of a device."""

    name: str
    memory: int
    """[B]"""
    sms: int

    def properties(self, number: int) -> dict[str, Any]:
        """The device's entry among the `deviceProperties` of a trace."""
        return {"id": number, "name": self.name, "totalGlobalMem": self.memory, "numSms": self.sms}


@dataclass(frozen=True)
class Profiled:
    """What the profiler would know of a run beside its events."""

    gpus: Mapping[int, ProfiledGpu] = field(default_factory=dict)
    """rank -> device"""
    types: Mapping[str, str] = field(default_factory=dict)
    """activations | parameters | gradients | reduce -> PyTorch's name of the element type"""
    allocator: Mode = "segments"
    loads: Callable[[Collective], CollectiveCost] | None = None
    """what a collective puts on the simulated links, with the load of all ranks that its own stand for"""


@dataclass(frozen=True)
class AssumptionEffect:
    """What else an assumption might be, and between what the answer then lies."""

    step_time_s: tuple[float, float]
    """shortest and longest [s]"""
    peak_bytes: tuple[int, int]
    """lowest and highest [B]"""
    tried: tuple[str, ...]


@dataclass(frozen=True)
class ReportedAssumption:
    """A number that nobody stated, where it comes from, and how it is called when overridden."""

    name: str
    value: str
    source: str
    origin: str = ""
    effect: AssumptionEffect | None = None
    """None where nobody asked, or nothing else can be simulated"""


@dataclass(frozen=True)
class Measured:
    """Everything that a report needs."""

    trace: Trace
    ranks: Ranks
    classes: tuple[RankClass, ...]
    """every used rank is a member of exactly one"""
    model: ModelFacts
    memory: MemoryFacts
    schedule: ScheduleFacts = field(default_factory=ScheduleFacts)
    experts: ExpertFacts | None = None
    """None: every rank holds all experts, or there are none"""
    local_steps: LocalSteps | None = None
    """None: all replicas step together"""
    name: str = "unnamed"
    scenario: Mapping[str, Any] = field(default_factory=dict)
    """the resolved scenario; loading it again gives the same report"""
    origins: Mapping[str, str] = field(default_factory=dict)
    """dotted key of the scenario -> where it was written (``file:line``, or the argument); keys at their defaults are absent"""
    window: SteadyWindow | None = None
    """for schedules without a flush; None: the step is the whole trace"""
    costs: Callable[[Collective], CollectiveCost] | None = None
    """an interconnect's ``cost``"""
    links: Mapping[int, LinkClass] = field(default_factory=dict)
    idle_links: int = 0
    """links of the cluster that no transfer crosses"""
    wiring: Callable[[], Wiring] | None = None
    """counts what the cluster is wired with, for its picture"""
    steps_simulated: float = 1.0
    """optimizer steps in the trace (more than one only without a flush); scales what links carried"""
    assumptions: tuple[ReportedAssumption, ...] = ()
    warnings: tuple[Finding, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """catalogue_sha256, command, trusted_code, python"""
    folded: bool = False
    wall_s: float | None = None
    seed: int = 0
    training_tokens: float | None = None
    """of the whole training; None: nobody asks how long it takes"""
    confidence: Confidence = field(default_factory=Confidence)
    steps_to_train: int | None = None
    """optimizer steps of the whole training; None: the scenario gives its length in tokens, or not at all"""
    economics: Economics | None = None
    """prices, power and failures; None: nobody asked"""
    weeks: InterruptedTraining | None = None
    """the training with its failures, to be simulated; None: no horizon"""
    weeks_runs: int = 1
    """how many sample paths of it are played"""
    weeks_faults: tuple[TrainingFault, ...] = ()
    """what breaks in it at given moments"""
    play: Player | None = None
    """plays the paths; None: this process"""
    profiled: Profiled = field(default_factory=Profiled)
    faults: Faults | None = None
    """what breaks during the step, and what comes of it; None: nothing"""
    marks: tuple[tuple[float, str], ...] = ()
    """moments that pictures mark: (time [s], text)"""
    slow_gpu: SlowGpu | None = None
    """what one slow GPU costs; None: nobody asked"""
    workers: Callable[[], WorkerSlowdowns | None] | None = None
    """finds what each worker costs; None: nothing tells them apart"""
    plan: Mapping[str, Any] | None = None
    """what a search says of the strategy; None: it was not searched for"""
    variability: RunStatistics | None = None
    """what many runs of the step say; None: there is one, undisturbed"""

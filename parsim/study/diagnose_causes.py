"""What may be other than the scenario says: one-dimensional families of changes, and settings with other values.

A `UncertainParameter` turns a number into overrides of a scenario; a `Setting` is another value of a key. Each knows the command that
would decide whether it is the cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from parsim.scenario import files
from parsim.scenario.scenario import flow
from parsim.units import multiplier, parse

if TYPE_CHECKING:
    from parsim.hardware.device import Device
    from parsim.report import Report
    from parsim.scenario.built import Built
    from parsim.scenario.scenario import Scenario
SLOWEST = 50.0
"""a parameter is at most so many times worse than it stands"""
LONGEST = 1000.0
"""a time that the scenario takes for nothing is at most so many steps"""
FASTEST_LINK = 10.0
"""a link is at most so many times faster than it stands"""
_NARROWEST = 0.02
"""half-width of a range, logarithmic, below which distances are not divided by it"""


@dataclass(frozen=True, slots=True)
class Plausible:
    """The values that were found for one parameter, in the parameter's own unit."""

    low: float
    high: float
    basis: str
    """fitted | measured | assumption"""
    source: str

    def beyond(self, value: float) -> float:
        """How far `value` lies outside: 0 inside, 1 where it is as far outside as the range is wide on one side of its middle.

        Logarithmic where the range has a ratio, linear where it begins at zero.
        """
        if self.low <= value <= self.high:
            return 0.0
        if self.low <= 0.0 or value <= 0.0:
            return (value - self.high) / (0.5 * (self.high - self.low)) if value > self.high else 1.0
        half = max(0.5 * math.log(self.high / self.low), _NARROWEST)
        return math.log(value / self.high if value > self.high else self.low / value) / half


@cache
def _tree() -> Mapping[str, Any]:
    return files.read(files.home("devices").parent / "plausible.yaml").tree


def plausible(name: str, now: float, device: str = "", unit: float = 1.0) -> Plausible:
    """The range of a cause.

    Args:
        name: a block of the file.
        now: what the scenario has; relative ranges multiply it.
        device: name of the GPU, for a range of its own.
        unit: what 1 of the file is in the parameter's unit.
    """
    row = _tree()[name]
    own = (row.get("devices") or {}).get(device)
    if own is not None:
        return Plausible(float(own["low"]) * unit, float(own["high"]) * unit, own["basis"], own["source"])
    scale = now if row["relative"] else unit
    return Plausible(float(row["low"]) * scale, float(row["high"]) * scale, row["basis"], row["source"])


@dataclass(frozen=True)
class UncertainParameter:
    """A number of the run that may be other than the scenario says."""

    name: str
    title: str
    now: float
    unit: str
    """what `value` is measured in: empty for a share, s, B/s"""
    rate: bool
    """more of it is faster"""
    slowest: float
    fastest: float
    """bounds of what is possible"""
    range: Plausible
    arguments: Callable[[float], tuple[str, ...]]
    """value -> overrides of the scenario"""
    command: str
    """what would decide"""

    def at(self, slowness: float) -> float:
        """The value at a coordinate in which time grows about linearly: now / value of a rate, else the value itself."""
        return self.now / slowness if self.rate else slowness

    def slowness(self, value: float) -> float:
        """The coordinate of a value, in which time grows about linearly."""
        return self.now / value if self.rate else value

    def overrides(self, value: float | None) -> tuple[str, ...]:
        """Overrides that give the parameter a value; None: the value it has."""
        return self.arguments(self.now if value is None else value)


@dataclass(frozen=True)
class Setting:
    """Another value of a key that is not a number of the machine."""

    name: str
    title: str
    key: str
    now: Any
    value: Any
    command: str

    def overrides(self, _value: float | None = None) -> tuple[str, ...]:
        """Overrides that change the setting."""
        return (f"{self.key}={flow(self.value)}",)


Cause = UncertainParameter | Setting
_PER_KERNEL = ("per_kernel_forward", "per_kernel_backward")
"""keys of software.host that the effects of training multiply"""


def parameters(scenario: Scenario, built: Built, report: Report, slow_ranks: Iterable[int] = ()) -> list[UncertainParameter]:
    """The parameters that the scenario has; `slow_ranks` are those that may be slow (default: the one with the most work)."""
    device = built.cluster.device(built.gpus[0])
    known = [
        *_device_parameters(built, device),
        *_wires(scenario, built, report),
        *_host_parameters(built, report),
        *(_slow(built, rank, report) for rank in (tuple(slow_ranks) or (report.bottleneck_rank,))),
    ]
    if not built.training.backward or not built.training.step:
        known = [entry for entry in known if entry.name != "boundary"]
    return known


def _share(key: str, effect: float = 1.0) -> Callable[[float], tuple[str, ...]]:
    """The key of the device file for a value as training finds it, `effect` times the file's."""
    return lambda value: (f"cluster.set.device.{key}={value / effect!r}",)


def _device_parameters(built: Built, device: Device) -> Iterator[UncertainParameter]:
    """Efficiencies of the GPU; times that were measured on it stand as they are."""
    tables, effects = device.measured, built.effects
    calibrate = "parsim calibrate: times products, copies and attention on your GPU and writes its device file"
    gemm, clock = device.gemm, device.clock_derate * effects.compute
    if tables is None or not tables.gemm.rows:
        dtype = built.training.precision.matmul
        now = gemm.of(dtype)

        def scaled(value: float) -> tuple[str, ...]:
            if not gemm.by_dtype:
                return _share("gemm.efficiency")(value)
            known = {"default": gemm.efficiency, **gemm.by_dtype}
            return tuple(f"cluster.set.device.gemm.efficiency.{key}={min(1.0, old * value / now)!r}" for key, old in known.items())

        yield UncertainParameter(
            "gemm", "GEMM efficiency", now, "", True, max(0.01, now / SLOWEST), 1.0,
            plausible("gemm", now, device.name), scaled, calibrate,
        )  # fmt: skip
        throttled = "nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE while it trains: is the clock below its maximum, and why?"
        yield UncertainParameter(
            "clock", "sustained clock", clock, "", True, max(0.1, clock / SLOWEST), effects.compute,
            plausible("clock", clock, device.name), _share("compute.clock_derate", effects.compute), throttled,
        )  # fmt: skip
    if tables is None or tables.copy is None:
        now = device.memory_efficiency * effects.memory
        yield UncertainParameter(
            "memory", "HBM efficiency", now, "", True, max(0.01, now / SLOWEST), effects.memory,
            plausible("memory", now, device.name), _share("memory.efficiency", effects.memory), calibrate,
        )  # fmt: skip
    kernel = device.attention.get(built.training.attention)
    if kernel is not None and built.model.head_dim and (tables is None or not tables.attention.rows):
        name, ratio = built.training.attention, kernel.backward / kernel.forward

        def both(value: float) -> tuple[str, ...]:
            place = f"cluster.set.device.attention.{name}"
            return (f"{place}.forward={value!r}", f"{place}.backward={value * ratio!r}")

        yield UncertainParameter(
            "attention", f"attention efficiency ({name}, forward)", kernel.forward, "", True,
            0.01 * max(1.0, 1 / ratio), min(1.0, 1.0 / ratio), plausible("attention", kernel.forward, device.name), both, calibrate,
        )  # fmt: skip


def _wires(scenario: Scenario, built: Built, report: Report) -> Iterator[UncertainParameter]:
    """Links inside a machine and between machines, as far as the job crosses them."""
    used = [row for row in report.links if row.bytes > 0]
    nodes = len({built.cluster.node_of(gpu) for gpu in built.gpus})
    fabric = built.cluster.fabric if nodes > 1 else None
    network = {fabric.link_kind.name} if fabric is not None else set()
    local = {row.kind for row in used if row.kind.startswith(("nvlink", "xgmi"))}
    pcie = {row.kind for row in used} if not local and nodes == 1 else set()
    size = f"all_reduce_perf -b 8M -e 8G -f 2 (nccl-tests) on {len(built.gpus)} GPUs, then"
    compare = f"{size} parsim collective all-reduce --on ... --nodes {nodes} --nccl-log LOG, or this command with --nccl-log LOG"
    for name, title, kinds in (
        ("nvlink", "NVLink bandwidth", local),
        ("pcie", "PCIe path bandwidth", pcie),
        ("network", "NIC bandwidth", network),
    ):
        if not kinds:
            continue
        rows = [row for row in used if row.kind in kinds]
        now = max(rows, key=lambda row: row.utilisation).capacity_Bps if rows else fabric.link_kind.capacity if fabric else 0.0
        yield UncertainParameter(
            name, f"{title} ({', '.join(sorted(kinds))})", now, "B/s", True, now / SLOWEST, now * FASTEST_LINK, plausible(name, now),
            _linked(scenario, sorted(kinds), now), compare,
        )  # fmt: skip


def _linked(scenario: Scenario, kinds: list[str], now: float) -> Callable[[float], tuple[str, ...]]:
    """Overrides that multiply the bandwidth of links, on top of what the scenario itself sets."""
    written: Any = scenario.written.get("cluster")
    changes: Mapping[str, Any] = (written.get("set") or {}).get("links") or {} if isinstance(written, Mapping) else {}

    def arguments(value: float) -> tuple[str, ...]:
        factor, overrides = value / now, []
        for kind in kinds:
            old = (changes.get(kind) or {}).get("bandwidth")
            if old is None:
                text = f"x{factor!r}"
            elif str(old).strip().startswith(("x", "×")):
                text = f"x{multiplier(str(old)) * factor!r}"
            else:
                text = f"{float(parse(old, 'rate')) * factor!r} B/s"
            overrides.append(f"cluster.set.links.{kind}.bandwidth={text}")
        return tuple(overrides)

    return arguments


def _host_parameters(built: Built, report: Report) -> Iterator[UncertainParameter]:
    """The launching thread, data loading, and what happens between steps."""
    host, step, effects = built.runtime.host, report.step_time, built.effects
    keys = ("per_layer_forward", "per_layer_backward", "per_collective", "per_kernel_forward", "per_kernel_backward")
    times = {key: getattr(host, key) for key in keys}
    profile = "a PyTorch trace (torch.profiler, two steps after warm-up), then this command with --profile"
    leading = "per_kernel_forward" if times["per_kernel_forward"] or not any(times.values()) else next(k for k in keys if times[k])
    if not built.scenario.settings.software.host.graphs:
        now = times[leading]

        def launched(value: float) -> tuple[str, ...]:
            if not now:
                return tuple(f"software.host.{key}={value / effects.launch!r} s" for key in _PER_KERNEL)
            without = {key: old / effects.launch if key in _PER_KERNEL else old for key, old in times.items() if old}
            return tuple(f"software.host.{key}={old * value / now!r} s" for key, old in without.items())

        yield UncertainParameter(
            "launch", f"host launch time ({leading.removeprefix('per_').replace('_', ', ')})", now, "s", False,
            LONGEST * step, 0.0, plausible("launch", now or 12e-6), launched, profile,
        )  # fmt: skip
    per_micro = step / max(1, built.training.micro_batches)
    yield UncertainParameter(
        "data_loading", "data loading per micro-batch", built.training.data_loading, "s", False, LONGEST * per_micro, 0.0,
        plausible("data_loading", built.training.data_loading, unit=per_micro), lambda value: (f"training.data_loading={value!r} s",),
        "train 20 steps on one batch that stays on the GPU: is it faster then? Or --profile",
    )  # fmt: skip
    yield UncertainParameter(
        "step_constant", "time between steps", built.runtime.step_constant, "s", False, LONGEST * step, 0.0,
        plausible("step_constant", built.runtime.step_constant), lambda value: (f"software.step_constant={value!r} s",),
        "py-spy record on one rank, or a PyTorch trace and --profile",
    )  # fmt: skip
    local = report.measured.model.parameters / max(1, built.parallelism.tensor.size * built.parallelism.pipeline.size) / 1e9
    yield UncertainParameter(
        "boundary", "optimizer per 1e9 local parameters", built.runtime.boundary, "s", False,
        LONGEST * step / max(local, 1e-9), effects.boundary, plausible("boundary", built.runtime.boundary),
        lambda value: (f"software.boundary={max(0.0, value - effects.boundary)!r} s",), profile,
    )  # fmt: skip


def _slow(built: Built, rank: int, report: Report) -> UncertainParameter:
    """One rank that computes slower than the others."""
    others = {known: speed for known, speed in built.slow.items() if known != rank}

    def arguments(value: float) -> tuple[str, ...]:
        rows = [{"rank": known, "speed": speed} for known, speed in {**others, rank: value}.items()]
        return (f"variability.slow={flow(rows)}",)

    now = built.slow.get(rank, 1.0)
    return UncertainParameter(
        f"slow_rank_{rank}", f"slow rank ({rank} or one like it)" if report.measured.ranks.total > 1 else "a slow GPU",
        now, "", True, now / SLOWEST, 1.0, plausible("slow_rank", now), arguments,
        "nvidia-smi -q -d CLOCK,PERFORMANCE,ECC on every machine; or traces of two ranks and --profile twice",
    )  # fmt: skip


_SETTINGS: tuple[tuple[str, str, str, tuple[Any, ...], str], ...] = (
    ("recompute", "activation recomputation", "training.recompute", ("none", "selective", "full"),
     "print the arguments of the run; in a trace, full recomputation runs the forward attention kernels twice"),
    ("attention_kernel", "attention kernel", "training.attention", ("eager", "mem-efficient", "triton-fa1", "flash2", "flash3", "cudnn"),
     "torch.profiler: is there a kernel named flash_fwd, fmha_cutlassF or cudnn..sdpa, or a softmax between two products?"),
    ("overlap_reduce", "gradients reduced beside backward", "parallel.data.overlap_reduce", (True, False),
     "a trace: do the NCCL kernels overlap with those of backward?"),
    ("overlap_gather", "parameters gathered beside forward", "parallel.data.overlap_gather", (True, False),
     "a trace: do the NCCL kernels overlap with those of forward?"),
    ("prefetch", "units gathered ahead", "parallel.data.prefetch", (0, 1, 2), "print the arguments of FSDP or ZeRO; a trace"),
    ("accumulate", "reduction in every micro-batch", "parallel.data.accumulate", ("no_sync", "every"),
     "is no_sync() around all but the last micro-batch? Count the reductions in a trace"),
    ("tensor_overlap", "tensor-parallel overlap", "parallel.tensor.overlap", ("none", "backward", "full", "async"),
     "CUDA_DEVICE_MAX_CONNECTIONS=1 set? A trace: do the NCCL kernels overlap with those of backward?"),
    ("overlap_sends", "pipeline messages beside compute", "parallel.pipeline.overlap_sends", (True, False), "a trace of a middle stage"),
    ("interference", "interference", "cluster.interference", ("off", "simple", "full"),
     "a trace: how long is the same kernel during NCCL and alone?"),
    ("fusion", "norm and activation kernels", "software.fusion", ("eager", "fused", "compiled"),
     "torch.profiler: are the kernels named triton_ (compiled) or elementwise (eager)?"),
    ("optimizer", "optimizer kernels", "training.optimizer.implementation", ("fused", "foreach", "loop"),
     "print the optimizer; in a trace multi_tensor_apply (foreach) or FusedAdam (fused)"),
    ("graphs", "CUDA graphs", "software.host.graphs", (True, False), "a trace: cudaGraphLaunch instead of cudaLaunchKernel?"),
    ("allocator", "caching allocator", "software.memory.allocator", ("segments", "expandable", "exact"),
     "PYTORCH_CUDA_ALLOC_CONF; torch.cuda.memory_stats: reserved less allocated"),
)  # fmt: skip


def settings(scenario: Scenario, built: Built) -> list[Setting]:
    """Every other value of the settings that a run may have had; what changes nothing is found by simulating it."""
    meant = {
        "training.attention": built.training.attention,
        "training.optimizer.implementation": built.training.optimizer.implementation,
        "parallel.data.accumulate": built.parallelism.data.accumulate,
    }
    others = []
    for name, title, key, values, command in _SETTINGS:
        now: Any = scenario.tree
        for part in key.split("."):
            now = now.get(part) if isinstance(now, Mapping) else None
        now = meant.get(key, now) if now == "auto" else now
        others += [Setting(name, title, key, now, value, command) for value in values if value != now]
    return others

"""What was measured, before it is written: rows with a time and how much it spread, and the device as the machine names it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from parsim.hardware.device import device_from_tree
from parsim.kernel import Attention, Gemm
from parsim.scenario import files

BYTES_PER_PARAMETER = 28
"""fp32 Adam: gradient, weight and two moments read, the latter three written: (1 + 2 x 3) x 4 B"""


@dataclass(frozen=True, slots=True)
class Timing:
    """A repeated measurement."""

    seconds: float
    """median [s]"""
    spread: float = 0.0
    """distance of the quartiles over the median"""


def timing(samples: Sequence[float]) -> Timing:
    """Median and spread of repeated times [s]."""
    ordered = sorted(samples)
    middle = median(ordered)
    if len(ordered) < 4 or middle <= 0:
        spread = (ordered[-1] - ordered[0]) / middle if middle > 0 else 0.0
    else:
        quarter = len(ordered) // 4
        spread = (ordered[-1 - quarter] - ordered[quarter]) / middle
    return Timing(middle, spread)


@dataclass(frozen=True, slots=True)
class MeasuredProduct:
    """A measured matrix product."""

    shape: Gemm
    step: str
    """forward | backward_input | backward_weight"""
    time: Timing


@dataclass(frozen=True, slots=True)
class Core:
    """A measured attention core."""

    shape: Attention
    time: Timing


@dataclass(frozen=True, slots=True)
class Copy:
    """A measured copy inside the device's memory."""

    bytes: int
    """read plus written [B]"""
    time: Timing


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """A measured fp32 Adam step."""

    kernels: str
    """fused | foreach"""
    parameters: int
    time: Timing

    @property
    def bytes(self) -> int:
        """What any implementation must move [B]."""
        return BYTES_PER_PARAMETER * self.parameters


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """A measured collective, with sizes as nccl-tests counts them."""

    kind: str
    ranks: int
    bytes: int
    time: Timing
    note: str = ""


@dataclass(slots=True)
class MeasuredTables:
    """Everything that one calibration or one trace measured."""

    gemm: list[MeasuredProduct] = field(default_factory=list)
    attention: list[Core] = field(default_factory=list)
    copy: list[Copy] = field(default_factory=list)
    optimizer: list[OptimizerStep] = field(default_factory=list)
    kernel: Timing | None = None
    """the smallest kernel on the device"""
    issue: Timing | None = None
    """one operation on the host"""
    collectives: list[CollectiveTime] = field(default_factory=list)
    date: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    source: str = ""
    notes: list[str] = field(default_factory=list)
    """what could not be measured, and why"""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Data types of the products, in the order in which they were measured."""
        return tuple(dict.fromkeys(row.shape.dtype for row in self.gemm))


def best_rate(rows: Iterable[MeasuredProduct], dtype: str) -> float:
    """The fastest product of a data type [FLOP/s]; 0 if none was measured."""
    return max((row.shape.flop / row.time.seconds for row in rows if row.shape.dtype == dtype), default=0.0)


def streaming_rate(rows: Sequence[Copy]) -> float:
    """Rate of the largest copy [B/s], read plus write; 0 if none was measured."""
    largest = max(rows, key=lambda row: row.bytes, default=None)
    return 0.0 if largest is None else largest.bytes / largest.time.seconds


_MEMORY_MATCH = 0.12
"""a driver reports somewhat less than the installed memory"""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device as the machine names it."""

    name: str
    memory: int
    """what a process can see [B]"""
    sms: int
    """streaming multiprocessors; of a CPU, the threads that compute"""
    cache: int
    """last-level cache [B], 0 if unknown"""
    capability: float
    """CUDA compute capability; 0: not an NVIDIA GPU"""
    vendor: str
    dtypes: tuple[str, ...]
    """data types worth measuring"""
    count: int = 1
    """such devices in the machine"""


def cpu_facts(torch: Any) -> DeviceFacts:
    """The processor that PyTorch computes on."""
    name = platform.processor() or platform.machine() or "CPU"
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        name = model[1].strip() if model else name
    except OSError:
        pass
    threads = int(torch.get_num_threads())
    has_bf16 = bool(re.search(r"avx512_?bf16|amx", str(torch.backends.cpu.get_cpu_capability()) + _cpu_flags(), re.IGNORECASE))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**34
    return DeviceFacts(f"CPU {name}", memory, threads, _last_cache(), 0.0, "", ("fp32", "bf16") if has_bf16 else ("fp32",))


def cuda_facts(torch: Any, index: int = 0) -> DeviceFacts:
    """A GPU, by its driver."""
    properties = torch.cuda.get_device_properties(index)
    hip = getattr(torch.version, "hip", None)
    capability = 0.0 if hip else float(f"{properties.major}.{properties.minor}")
    dtypes = ["fp16", "fp32"] if not hip and capability < 8.0 else ["bf16", "fp16", "tf32", "fp32"]
    return DeviceFacts(
        name=str(properties.name),
        memory=int(properties.total_memory),
        sms=int(properties.multi_processor_count),
        cache=int(getattr(properties, "L2_cache_size", 0)),
        capability=capability,
        vendor="AMD" if hip else "NVIDIA",
        dtypes=tuple(dtypes),
        count=int(torch.cuda.device_count()),
    )


def catalogue_name(name: str, memory: int = 0, sms: int = 0) -> str | None:
    """The shipped device called `name` by its driver ("NVIDIA A100-SXM4-80GB"), None if there is none.

    The words of a catalogue name but form factor and memory must all stand in `name`; then memory, multiprocessors and form
    factor decide, as far as they are given.
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    candidates = []
    for candidate in files.names("devices"):
        parts = candidate.split("-")
        family = {part for part in parts if part not in ("pcie", "sxm", "sxm2") and not re.fullmatch(r"[0-9]+gb", part)}
        if not family <= words:
            continue
        device = device_from_tree(files.read(files.find("devices", candidate)).tree, candidate)
        if memory and abs(memory / device.visible_memory - 1) > _MEMORY_MATCH:
            continue
        if sms and sms != device.sms:
            continue
        said = [word for word in words if re.fullmatch(r"[0-9]+gb", word)]
        form = ("pcie" in parts) == ("pcie" in words)
        candidates.append((not form, bool(said) and not set(said) & set(parts), candidate))
    return min(candidates)[2] if candidates else None


def _cpu_flags() -> str:
    try:
        flags = re.search(r"^flags\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return ""
    return flags[1] if flags else ""


def _last_cache() -> int:
    """The largest cache of the first core [B]."""
    sizes = [0]
    for path in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")):
        text = path.read_text(encoding="utf-8").strip()
        if match := re.fullmatch(r"([0-9]+)([KM])", text):
            sizes.append(int(match[1]) * (1024 if match[2] == "K" else 1024**2))
    return max(sizes)


def slug(name: str) -> str:
    """`name` as a file name: ``cpu-amd-epyc``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "device"

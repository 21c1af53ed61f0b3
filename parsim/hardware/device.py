"""One accelerator: its memory, its peaks and how much of each a kernel really gets."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parsim.errors import Finding, InputWarning
from parsim.hardware.measured import MeasuredKernels, read_measured
from parsim.hardware.tree import Tree, closest
from parsim.units import format_flops

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
FEATURES = ("bf16", "fp8", "fp4", "tf32", "flash2", "flash3", "mem-efficient", "triton-fa1", "cudnn", "p2p", "nvlink")
ATTENTION_KERNELS = ("flash2", "flash3", "cudnn", "mem-efficient", "triton-fa1")
FP8 = "-fp8"
"""behind the name of an attention kernel: the efficiency of its fp8 kernels, as a share of the fp8 peak"""


@dataclass(frozen=True, slots=True)
class GemmEfficiency:
    """The parameters of the tile and wave model of a matrix product (see `parsim.hardware.kernels`)."""

    efficiency: float
    """share of the (sustained) peak that a full wave of the largest tiles with infinite K reaches"""
    by_dtype: Mapping[str, float] = field(default_factory=dict)
    """`efficiency` where it differs by type, e.g. fp8"""
    k_half: float = 145.0
    """K at which prologue and epilogue cost as much as the main loop of a 16-bit product [elements]"""
    wave_quantisation: float = 0.65
    """1: a partial last wave costs a full one; 0: it costs its share"""
    tile_128: float = 0.71
    """rate of tiles below 256 x 128 relative to those"""
    weight_gradient: float = 0.954
    """rate of a product that accumulates into an fp32 gradient"""
    unaligned: float = 0.44
    """rate where a contiguous dimension is not a multiple of 16 bytes"""
    unaligned_4: float = 0.0
    """rate where one is not even a multiple of 4 bytes: an odd number of 16-bit elements; 0 = as `unaligned`"""
    unaligned_128: float = 0.9
    """rate where a contiguous dimension is not a multiple of 128 bytes"""
    k_major: float = 1.0
    """rate for each operand that is contiguous along K (Volta must transpose those in shared memory)"""
    k_major_stream: float = 1.0
    """share of the streaming rate that a product with a side of at most 64 reaches on a large operand contiguous along K"""
    exposed: float = 0.2
    """share of the shorter of computing and moving data that a grouped product does not hide behind the longer"""
    latency: float | None = None
    """fixed time of a product [s]; None: the device's kernel latency"""

    def of(self, dtype: str) -> float:
        """Efficiency for `dtype`."""
        return self.by_dtype.get(dtype, self.efficiency)


@dataclass(frozen=True, slots=True)
class AttentionEfficiency:
    """Share of the dense 16-bit peak that one fused attention kernel reaches (see `parsim.hardware.attention`)."""

    forward: float
    backward: float
    s_half: float = 93.0
    """number of keys at which the ramp of a kernel without mask is one half, head size 128 [tokens]"""
    d64: float = 1.0
    """factor for head sizes of 64 and below"""
    d64_backward: float = 0.0
    """the same of the backward kernel; 0 = as `d64`"""
    d256: float = 1.0
    """factor for a head size of 256"""
    d256_backward: float = 0.0
    """the same of the backward kernel; 0 = as `d256`"""
    unequal_backward: float = 0.0
    """factor for a backward kernel of values whose heads are smaller than those of keys (multi-head latent attention); 0 = as `d256`"""
    block: int = 128
    """query rows of a block of the forward kernel"""
    tail_forward: float = 0.0
    """by what share of the longest block a causal forward kernel ends late; 1 is Graham's bound for list scheduling"""
    tail_backward: float = 0.0
    """the same of the backward kernel"""
    window_backward: bool = True
    """the backward kernel leaves out keys beyond a sliding window; else it works on all of them"""
    dtype: str = ""
    """the type whose peak is meant; empty = that of the kernel"""


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One accelerator. Compared and hashed by identity: load a device once and share it."""

    name: str
    memory: int
    """installed memory [B]"""
    visible_memory: int
    """what the driver reports to a process [B]"""
    bandwidth: float
    """datasheet memory bandwidth, read plus write [B/s]"""
    l2: int
    """last-level cache [B]"""
    memory_efficiency: float
    """share of `bandwidth` that a large streaming kernel reaches"""
    l2_gain: float
    """extra rate of a kernel whose tensors fit in the cache"""
    half_size: float
    """bytes at which a memory-bound kernel reaches half of the streaming rate; 0: what the kernel latency makes it [B]"""
    sms: int
    """streaming multiprocessors (compute units)"""
    clock_derate: float
    """clock that this machine sustains over that of the card's published kernel times; scales matrix products and attention. 1 in
    every shipped file: a machine that throttles is described by its scenario (``cluster.set``), by a calibration or by a fit"""
    peak: Mapping[str, float]
    """dense datasheet peak by dtype [FLOP/s]"""
    gemm: GemmEfficiency
    attention: Mapping[str, AttentionEfficiency]
    """by implementation; with `FP8` behind its name where operands are fp8, if the file has that"""
    kernel_latency: float
    """fixed cost of a kernel on the device [s]"""
    tdp: float
    """board power limit [W]"""
    idle_power: float
    """[W]"""
    features: frozenset[str]
    interconnect: str = "pcie4-x16"
    """how cards of this kind are wired in an inline box: a PCIe kind | nvswitch | nvlink-mesh | nvlink-pairs"""
    nvlink: str = ""
    """link kind of its NVLink ports (empty: none)"""
    nvlinks: int = 0
    """how many of them"""
    pcie: str = "pcie4-x16"
    """link kind of its host port"""
    aliases: tuple[str, ...] = ()
    compute_capability: float = 0.0
    """CUDA compute capability, e.g. 8.0; 0 = not an NVIDIA GPU, or unknown"""
    architecture: str = ""
    """volta, hopper, cdna3 ...: that of the file, else of its compute capability (`ARCHITECTURES`); empty: unknown"""
    assumptions: tuple[str, ...] = ()
    """dotted keys whose values are guesses"""
    sustained: float = 1.0
    """rate of matrix products in training over that of single ones (`parsim.scenario.effects`); other kernels lose less: `pace`"""
    issue: float = 0.0
    """time that the CPU on such a board needs to issue one operation [s]; 0: the board has no CPU of its own"""
    issue_source: str = ""
    """who measured that"""
    measured: MeasuredKernels | None = None
    """times that were measured on such a device; they win over the model"""
    most_gpus: int = 0
    """GPUs of the largest machine (or NVLink domain) that is sold with it; 0: unknown"""
    sold_in: tuple[str, ...] = ()
    """shipped topologies of such machines, the most common first"""

    def has(self, feature: str) -> bool:
        """Whether the device can do `feature` (one of `FEATURES`)."""
        return feature in self.features

    def pace(self, dtype: str, share: float) -> float:
        """Rate in training over that of published kernel times, for a kernel that reaches `share` of the peak of `dtype`.

        Matrix products draw the most power and lose all of what `sustained` says; a kernel that uses half as much of the tensor cores
        loses half of it, in logarithms (an assumption between two ends: idle tensor cores cost no clock).
        """
        left: float = self.sustained ** min(1.0, share / self.gemm.of(dtype))
        return self.clock_derate * left

    @property
    def host_timed(self) -> bool:
        """Whether somebody timed what the host beside it needs to issue an operation."""
        launch = self.measured.launch if self.measured is not None else None
        return bool(self.issue) or (launch is not None and launch.issue is not None)

    @property
    def attention_kernels(self) -> tuple[str, ...]:
        """The implementations of fused attention that a scenario can name."""
        return tuple(name for name in self.attention if not name.endswith(FP8))

    def __repr__(self) -> str:
        return f"<Device {self.name}>"


def device_from_tree(tree: Mapping[str, Any], where: str = "device") -> Device:
    """Build a device from a parsed device YAML; `where` prefixes the dotted paths of findings.

    A peak that looks like a marketing number with sparsity is an `InputWarning`.

    Raises:
        TopologyError: with every finding at once (unknown keys, missing or absurd values).
    """
    findings: list[Finding] = []
    top = Tree(tree, where, findings)
    name = top.text("name")
    aliases = top.names("aliases")
    vendor = str(top.raw("vendor", ""))
    top.raw("year")
    memory = top.child("memory")
    size = int(memory.quantity("size", "memory"))
    visible = int(memory.quantity("visible", "memory", size))
    if visible > size:
        memory.fail("visible", f"visible memory {visible} B exceeds the installed {size} B")
    bandwidth = memory.quantity("bandwidth", "rate")
    l2 = int(memory.quantity("l2", "bytes", 0, positive=False))
    memory_efficiency = memory.number("efficiency", 0.82, 0.01, 1.0)
    l2_gain = memory.number("l2_gain", 0.0, 0.0, 4.0)
    half_size = memory.quantity("half_size", "bytes", 0, positive=False)
    memory.close()
    compute = top.child("compute")
    sms = compute.whole("sms")
    derate = compute.number("clock_derate", 1.0, 0.1, 1.0)
    peak = _peaks(compute)
    written = compute.number("compute_capability", 0.0, 0.0, 99.0)
    architecture = compute.text("architecture", "")
    compute.close()
    gemm = _gemm(top.child("gemm"))
    attention = {key: _attention(key, child, top) for key, child in top.children("attention").items()}
    measured = read_measured(top.child("measured"), peak, bandwidth, tuple(name for name in attention if not name.endswith(FP8)))
    launch = measured.launch.kernel if measured is not None and measured.launch is not None else 2e-6
    latency = top.quantity("kernel_latency", "latency", launch, positive=False)
    power = top.child("power")
    tdp = power.quantity("tdp", "power", 0.0, positive=False)
    idle = power.quantity("idle", "power", 0.15 * tdp, positive=False)
    power.close()
    host = top.child("host")
    issue = host.quantity("issue", "time", 0.0, positive=False)
    issue_source = host.text("source", "") if issue else ""
    host.close()
    features = top.names("features")
    for feature in features:
        if feature not in FEATURES:
            top.fail("features", f"unknown feature {feature!r}", closest(feature, FEATURES))
    links = top.child("links")
    pcie = links.text("pcie", "pcie4-x16")
    nvlink = links.text("nvlink", "")
    nvlinks = links.whole("nvlinks", 0, low=0)
    interconnect = links.text("interconnect", pcie)
    links.close()
    sold = top.child("sold")
    most = sold.whole("most_gpus", 0, low=0)
    sold_in = sold.names("topologies")
    sold.close()
    assumptions = top.items("assumptions")
    top.close()
    top.stop()
    _warn_sparse(where, peak)
    capability = written if compute.has("compute_capability") else _capability(vendor, nvlink, peak)
    return Device(
        name=name, memory=size, visible_memory=visible, bandwidth=bandwidth, l2=l2, memory_efficiency=memory_efficiency,
        l2_gain=l2_gain, half_size=half_size, sms=sms, clock_derate=derate, peak=peak, gemm=gemm,
        attention=attention, kernel_latency=latency, tdp=tdp, idle_power=idle, features=frozenset(features),
        interconnect=interconnect, nvlink=nvlink, nvlinks=nvlinks, pcie=pcie, aliases=aliases,
        compute_capability=capability, architecture=architecture or _architecture(capability),
        assumptions=tuple(map(str, assumptions)), issue=issue, issue_source=issue_source, measured=measured,
        most_gpus=most, sold_in=sold_in,
    )  # fmt: skip


ARCHITECTURES = {
    "volta": (7.0, 7.5), "turing": (7.5, 8.0), "ampere": (8.0, 8.9), "ada": (8.9, 9.0), "hopper": (9.0, 10.0), "blackwell": (10.0, 13.0),
}  # fmt: skip
"""name -> compute capability from, to"""


def _architecture(capability: float) -> str:
    return next((name for name, (low, high) in ARCHITECTURES.items() if low <= capability < high), "")


_NVLINK_CAPABILITY = {"nvlink1": 6.0, "nvlink2": 7.0, "nvlink3": 8.0, "nvlink3-rtx": 8.6, "nvlink4": 9.0, "nvlink5": 10.0}
"""the architecture that brought each generation of NVLink (NVIDIA/nccl src/graph/topo.h)"""


def _capability(vendor: str, nvlink: str, peak: Mapping[str, float]) -> float:
    """Compute capability by architecture: the NVLink generation, else (of a device marked NVIDIA) the newest data type."""
    if nvlink in _NVLINK_CAPABILITY:
        return _NVLINK_CAPABILITY[nvlink]
    if vendor.lower() != "nvidia":
        return 0.0
    return next((value for dtype, value in (("fp4", 10.0), ("fp8", 8.9), ("bf16", 8.0)) if dtype in peak), 7.0)


def _peaks(compute: Tree) -> dict[str, float]:
    inner = compute.child("peak")
    peaks: dict[str, float] = {}
    for dtype in inner.data:
        if dtype == "source":
            continue
        if dtype not in DTYPES:
            inner.fail(str(dtype), "unknown dtype", closest(dtype, DTYPES))
            continue
        peaks[dtype] = inner.quantity(dtype, "flops")
    if "fp32" not in peaks:
        compute.fail("peak", "the fp32 peak is required")
    return peaks


def _gemm(tree: Tree) -> GemmEfficiency:
    by_dtype: dict[str, float] = {}
    if isinstance(tree.data.get("efficiency"), Mapping):
        inner = tree.child("efficiency")
        default = inner.number("default", low=0.01, high=1.0)
        for dtype in inner.data:
            if dtype in DTYPES:
                by_dtype[dtype] = inner.number(dtype, low=0.01, high=1.0)
        inner.close()
    else:
        default = tree.number("efficiency", 0.75, 0.01, 1.0)
    result = GemmEfficiency(
        efficiency=default,
        by_dtype=by_dtype,
        k_half=tree.number("k_half", 145.0, 0.0, 4096.0),
        wave_quantisation=tree.number("wave_quantisation", 0.65, 0.0, 1.0),
        tile_128=tree.number("tile_128", 0.71, 0.05, 1.0),
        weight_gradient=tree.number("weight_gradient", 0.954, 0.05, 1.0),
        unaligned=tree.number("unaligned", 0.44, 0.01, 1.0),
        unaligned_4=tree.number("unaligned_4", 0.0, 0.0, 1.0),
        unaligned_128=tree.number("unaligned_128", 0.9, 0.01, 1.0),
        k_major=tree.number("k_major", 1.0, 0.5, 1.0),
        k_major_stream=tree.number("k_major_stream", 1.0, 0.1, 1.0),
        exposed=tree.number("exposed", 0.2, 0.0, 1.0),
        latency=tree.quantity("latency", "latency", 0.0, positive=False) if tree.has("latency") else None,
    )
    tree.close()
    return result


def _attention(name: str, tree: Tree, top: Tree) -> AttentionEfficiency:
    if name.removesuffix(FP8) not in ATTENTION_KERNELS:
        top.child("attention").fail(name, "unknown attention implementation", closest(name, ATTENTION_KERNELS))
    result = AttentionEfficiency(
        forward=tree.number("forward", low=0.01, high=1.0),
        backward=tree.number("backward", low=0.01, high=1.0),
        s_half=tree.number("s_half", 93.0, 0.0, 65536.0),
        d64=tree.number("d64", 1.0, 0.05, 1.0),
        d64_backward=tree.number("d64_backward", 0.0, 0.0, 1.0),
        d256=tree.number("d256", 1.0, 0.05, 1.0),
        d256_backward=tree.number("d256_backward", 0.0, 0.0, 1.0),
        unequal_backward=tree.number("unequal_backward", 0.0, 0.0, 1.0),
        block=tree.whole("block", 128),
        tail_forward=tree.number("tail_forward", 0.0, 0.0, 1.0),
        tail_backward=tree.number("tail_backward", 0.0, 0.0, 1.0),
        window_backward=tree.flag("window_backward", True),
        dtype=tree.text("dtype", ""),
    )
    tree.close()
    return result


_SPARSE_16_BIT = (624e12, 661e12, 733e12, 1513e12, 1979e12, 2615e12, 4500e12, 5000e12)
"""16-bit peaks "with sparsity" that stand in the datasheets of A100, RTX 4090, L40S, H100, MI300X, B200 and GB200 [FLOP/s]"""


def _warn_sparse(where: str, peak: Mapping[str, float]) -> None:
    """Datasheets print tensor peaks with 2:4 sparsity, twice the dense number that training can use."""
    for dtype, base in (("fp16", "tf32"), ("bf16", "tf32"), ("fp8", "bf16")):
        value, reference = peak.get(dtype, 0.0), peak.get(base, 0.0)
        reason = ""
        if reference > peak["fp32"] and value > 3.8 * reference:
            reason = f"{value / reference:.1f} times the {base} peak"
        elif dtype != "fp8" and any(abs(value / sparse - 1) < 0.005 for sparse in _SPARSE_16_BIT):
            reason = "printed in a datasheet with a footnote about sparsity"
        if reason:
            dense = f"training uses the dense peak, half of it: {format_flops(value / 2)}"
            warnings.warn(f"{where}.compute.peak.{dtype}: {format_flops(value)} is {reason}; {dense}", InputWarning, stacklevel=3)

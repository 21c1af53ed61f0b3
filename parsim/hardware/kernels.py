"""Seconds of one kernel on one device.

Matrix products follow tiles and waves: the output is cut into tiles, one wave is one tile per multiprocessor, a partial
last wave costs between its share and a full wave, and K has a ramp for prologue and epilogue. Fused attention has one
efficiency per implementation with a ramp in the sequence length; everything else moves bytes.
Alignment rules: NVIDIA, "Matrix Multiplication Background User's Guide"; Anthony et al., arXiv:2401.14489.
A device with measured tables answers from them what they reach (`parsim.hardware.measured`).
The shape parameters were fitted to the matrix products that MooreThreads/SimuMax published for one A100 PCIe
(configs/system/a100_pcie.json): median error 1 %, 90th percentile 8 %.
"""

from __future__ import annotations

import math
from functools import lru_cache

from parsim.errors import Finding, TopologyError
from parsim.hardware.device import Device
from parsim.kernel import AdamStep, Attention, Fixed, Gemm, Kernel, Memory

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128))
"""output tiles (m, n) a GEMM library chooses from"""
_SPLITS = (1, 2, 4, 8)
_TENSOR_BYTES = {"tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 0.5}
_SHORTEST_SPLIT = 512


@lru_cache(maxsize=1 << 16)
def kernel_time(device: Device, kernel: Kernel) -> float:
    """Time of `kernel` on `device`, launch included [s].

    Raises:
        TopologyError: the device has no peak for the kernel's dtype or no such attention implementation.
    """
    match kernel:
        case Gemm() | Attention():
            return shape_time(device, kernel)
        case AdamStep():
            return step_time(device, kernel)
        case Memory():
            return memory_time(device, kernel)
        case Fixed():
            return kernel.seconds


def shape_time(device: Device, kernel: Gemm | Attention) -> float:
    """Time of a matrix product or an attention core [s]: measured, interpolated between measured ones, or analytic."""

    def analytic(shape: Gemm | Attention) -> float:
        return gemm_time(device, shape) if isinstance(shape, Gemm) else attention_time(device, shape)

    if device.measured is None:
        return analytic(kernel)
    least = kernel.flop / peak_of(device, kernel.dtype)
    return device.measured.table(kernel).time(kernel, analytic, least)


def step_time(device: Device, step: AdamStep) -> float:
    """Time of an Adam step [s]: as measured for this implementation, else that of its bytes."""
    curve = device.measured.optimizer.get(step.implementation) if device.measured is not None else None
    return curve.time(step.needed, device.kernel_latency) if curve is not None else memory_time(device, step)


def tiles(m: int, n: int, batch: int, tile: tuple[int, int]) -> int:
    """Number of output tiles of a product [m, n], `batch` times."""
    return math.ceil(m / tile[0]) * math.ceil(n / tile[1]) * batch


def waves(count: float, sms: int, quantisation: float = 1.0) -> float:
    """Waves that `count` tiles need on `sms` multiprocessors: at least 1; `quantisation` 1 rounds a partial wave up."""
    share = count / sms
    if share < 1:
        return 1.0
    return share + quantisation * (math.ceil(share) - share)


def wave_efficiency(m: int, n: int, tile: tuple[int, int], sms: int) -> float:
    """Useful share of the multiply-adds when waves are rounded up: edge tiles and the last wave are waste."""
    rounded = waves(tiles(m, n, 1, tile), sms) * sms * tile[0] * tile[1]
    return m * n / rounded


def gemm_time(device: Device, gemm: Gemm) -> float:
    """Time of a matrix product [s]: the best tile and split of K, or moving the operands if that takes longer."""
    peak = peak_of(device, gemm.dtype)
    shape = device.gemm
    rate = peak * device.clock_derate * shape.of(gemm.dtype) * alignment(device, gemm) / device.sms
    if gemm.weight_gradient:
        rate *= shape.weight_gradient
    stream = device.bandwidth * device.memory_efficiency
    best = math.inf
    for tile in TILES:
        area = tile[0] * tile[1]
        tile_rate = rate if area > 128 * 128 else rate * shape.tile_128
        count = tiles(gemm.m, gemm.n, gemm.batch, tile)
        for split in _SPLITS:
            depth = math.ceil(gemm.k / split)
            if split > 1 and depth < _SHORTEST_SPLIT:
                break
            time = waves(count * split, device.sms, shape.wave_quantisation) * 2 * area * (depth + shape.k_half) / tile_rate
            if split > 1:
                # partial sums are written in fp32, read back and reduced by a second kernel
                time += gemm.batch * gemm.m * gemm.n * (4 * split + gemm.element) / stream + device.kernel_latency
            best = min(best, time)
    return max(best, gemm.bytes / stream) + device.kernel_latency


def alignment(device: Device, gemm: Gemm) -> float:
    """Rate factor for contiguous dimensions that break 16-byte loads (0.44) or 128-byte lines (0.9).

    Contiguous dimensions are K and N of the row-major product, M and N where it is a weight gradient.
    """
    if gemm.dtype not in _TENSOR_BYTES:
        return 1.0
    element = _TENSOR_BYTES[gemm.dtype]
    dims = (gemm.m if gemm.weight_gradient else gemm.k, gemm.n)
    if any(size * element % 16 for size in dims):
        return device.gemm.unaligned
    if any(size * element % 128 for size in dims):
        return device.gemm.unaligned_128
    return 1.0


def attention_time(device: Device, attention: Attention) -> float:
    """Time of a fused attention core [s]: exact FLOPs over the implementation's efficiency at this shape."""
    table = device.attention.get(attention.implementation)
    if table is None:
        known = ", ".join(device.attention) or "none"
        raise TopologyError(
            Finding(f"{device.name} has no attention implementation {attention.implementation!r}; it has {known}", "training.attention")
        )
    peak = peak_of(device, table.dtype or attention.dtype)
    sequence = attention.keys if not attention.window else min(attention.keys, attention.window)
    efficiency = table.backward if attention.backward else table.forward
    efficiency *= sequence / (sequence + table.s_half)
    if attention.head_dim <= 64:
        efficiency *= table.d64
    blocks = attention.batch * attention.heads * math.ceil(attention.queries / 128)
    occupancy = min(1.0, blocks / device.sms)
    moved = 2.0 * attention.batch * (attention.heads * attention.queries + attention.kv_heads * attention.keys)
    moved *= (attention.head_dim + (attention.value_dim or attention.head_dim)) * (2 if attention.backward else 1)
    stream = device.bandwidth * device.memory_efficiency
    return max(attention.flop / (peak * efficiency * occupancy), moved / stream) + device.kernel_latency


def memory_time(device: Device, kernel: Memory) -> float:
    """Time of memory-bound work [s]: bytes at the streaming rate, faster while the tensors fit in the cache.

    Where copies were measured, every launch takes as long as a copy of its bytes.
    """
    if not kernel.launches and not kernel.bytes:
        return 0.0
    launches = max(kernel.launches, 1)
    if device.measured is not None and device.measured.copy is not None:
        each = device.measured.copy.time(kernel.bytes / launches, device.kernel_latency)
        # work without a launch of its own is part of another kernel
        return launches * max(each, device.kernel_latency) - (launches - kernel.launches) * device.kernel_latency
    return kernel.bytes / memory_rate(device, kernel.bytes / launches) + kernel.launches * device.kernel_latency


def memory_rate(device: Device, size: float) -> float:
    """Streaming rate of one kernel that reads and writes `size` bytes [B/s].

    Half of the bytes are read and half written in most kernels, so one tensor is size / 2; the gain of a cached tensor
    decays with tensor / cache.
    """
    rate = device.bandwidth * device.memory_efficiency
    if device.l2 and device.l2_gain:
        rate *= 1 + device.l2_gain * math.exp(-size / 2 / device.l2)
    return rate


def peak_of(device: Device, dtype: str) -> float:
    """Dense peak of `device` for `dtype` [FLOP/s].

    Raises:
        TopologyError: the device cannot compute in `dtype`.
    """
    peak = device.peak.get(dtype)
    if peak is None:
        known = ", ".join(device.peak)
        raise TopologyError(
            Finding(f"{device.name} has no {dtype} arithmetic; it has {known}", "training.precision", dtype, f"choose one of {known}")
        )
    return peak

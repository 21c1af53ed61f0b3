"""Seconds of one kernel on one device.

Matrix products follow tiles and waves: the output is cut into tiles, one wave is one tile per multiprocessor, a partial
last wave costs between its share and a full wave, and K has a ramp for prologue and epilogue. Fused attention has one
efficiency per implementation with a ramp in the sequence length and the blocks of a causal kernel, which are unequal, are
scheduled over the multiprocessors; everything else moves bytes.
Alignment rules: NVIDIA, "Matrix Multiplication Background User's Guide"; Anthony et al., arXiv:2401.14489.
The parameters stand in the device files; `parsim validate gemm` compares with published kernel times. A device with
measured tables answers from them what they reach (`parsim.hardware.measured`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from parsim.errors import Finding, TopologyError
from parsim.hardware.device import FP8, AttentionEfficiency, Device
from parsim.kernel import AdamStep, Attention, ChunkScan, Factorisation, Fixed, Gemm, Kernel, Memory, SparseAttention

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32))
"""output tiles (m, n) a GEMM library chooses from"""
_SPLITS = (1, 2, 4, 8, 16, 32, 64)
_TENSOR_BYTES = {"tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 0.5}
_SHORTEST_SPLIT = 512
_SKINNY = 64
"""a product with a side of at most so many elements streams its large operand once"""
_REUSE = 128 * 64 / (128 + 64)
"""multiply-adds per loaded element of the smallest tile that is not slowed by its loads"""
_BACKWARD_BLOCK = 128
"""keys of a block of an attention kernel's backward pass"""
SCAN_SHARE = 0.3
"""rate of the small products of a linear-attention core over that of FlashAttention-2's forward pass on the same device: an estimate.
Mamba-2's core of Triton kernels, state 64 and chunks of 256, is as fast as FlashAttention-2 at 2,048 tokens on an A100 (Dao and Gu
2024, 2405.21060, figure 10), which is a share of 0.2 to 0.3; products of 128 x 128 states are larger."""
_HEAD_SIZES = (32, 64, 96, 128, 192, 256)
"""head sizes that attention kernels are compiled for; others are padded (Dao-AILab/flash-attention csrc/flash_attn/src)"""


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
        case ChunkScan():
            return scan_time(device, kernel)
        case SparseAttention():
            return sparse_attention_time(device, kernel)
        case Factorisation():
            return factorisation_time(device, kernel)
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
    if isinstance(kernel, Gemm) and kernel.occupied:  # nobody measures on a part of a device
        return shape_time(device, replace(kernel, occupied=0)) * device.sms / free_multiprocessors(device, kernel)
    least = kernel.flop / peak_of(device, kernel.dtype)
    return device.measured.table(kernel).time(kernel, analytic, least)


def free_multiprocessors(device: Device, gemm: Gemm) -> int:
    """Multiprocessors that a product runs on: at least one."""
    return max(1, device.sms - gemm.occupied)


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
    """Time of a matrix product [s]: the best tile and split of K, or moving the operands if that takes longer.

    A grouped product does not hide the shorter of the two altogether: few tiles use the weights of a group, and what a group
    moves at its beginning and end no main loop of its own covers.
    """
    shape = device.gemm
    rate = peak_of(device, gemm.dtype) * device.pace(gemm.dtype, 1.0) * shape.of(gemm.dtype) * alignment(device, gemm) / device.sms
    tensor = gemm.dtype in _TENSOR_BYTES
    # prologue and epilogue take as long in any type; in that time faster arithmetic gets further along K
    ramp = shape.k_half * device.peak[gemm.dtype] / device.peak.get("fp16", device.peak[gemm.dtype])
    if tensor:
        rate *= shape.k_major ** sum(gemm.along_k)
    if gemm.weight_gradient and not gemm.grouped:
        rate *= shape.weight_gradient
    latency = device.kernel_latency if shape.latency is None else shape.latency
    stream = device.bandwidth * device.memory_efficiency
    sms = free_multiprocessors(device, gemm)
    best = math.inf
    for tile in TILES:
        tile_rate = rate * (tile_share(tile, shape.tile_128) if tensor else 1.0)
        count = tiles(gemm.m, gemm.n, gemm.batch, tile)
        for split in _SPLITS:
            depth = math.ceil(gemm.k / split)
            if split > 1 and depth < _SHORTEST_SPLIT:
                break
            work = 2 * tile[0] * tile[1] * (depth + ramp)
            time = waves(count * split, sms, shape.wave_quantisation) * work / tile_rate
            if split > 1:
                # partial sums are written in fp32, read back and reduced by a second kernel
                time += gemm.batch * gemm.m * gemm.n * (4 * split + gemm.element) / stream + device.kernel_latency
            best = min(best, time)
    if min(gemm.m, gemm.n) <= _SKINNY and gemm.along_k[gemm.n > gemm.m]:
        stream *= shape.k_major_stream
    moving = gemm.bytes / stream
    exposed = shape.exposed * min(best, moving) if gemm.grouped else 0.0
    return max(best, moving) + exposed + latency


def tile_share(tile: tuple[int, int], tile_128: float) -> float:
    """Rate of a tile relative to the largest: below 256 x 128 `tile_128`, and less where a loaded element is used less often.

    A step along K loads m + n elements for m n multiply-adds; tiles under 128 x 64 slow down in proportion to that ratio.
    That is for tensor cores: arithmetic without them is too slow for loads to matter.
    """
    m, n = tile
    if m * n > 128 * 128:
        return 1.0
    return tile_128 * min(1.0, m * n / (m + n) / _REUSE)


def alignment(device: Device, gemm: Gemm) -> float:
    """Rate factor for contiguous dimensions that break 4-byte loads, 16-byte loads (0.44 unless the device says otherwise) or 128-byte
    lines (0.9).

    Contiguous dimensions are that of the [m, k] operand (K, or M in a weight gradient) and N, in which results are written.
    """
    if gemm.dtype not in _TENSOR_BYTES:
        return 1.0
    element = _TENSOR_BYTES[gemm.dtype]
    dims = (gemm.k if gemm.along_k[0] else gemm.m, gemm.n)
    if device.gemm.unaligned_4 and any(size * element % 4 for size in dims) and not gemm.padded:
        return device.gemm.unaligned_4
    if any(size * element % 16 for size in dims) and not gemm.padded:
        return device.gemm.unaligned
    if any(size * element % 128 for size in dims):
        return device.gemm.unaligned_128
    return 1.0


def attention_time(device: Device, attention: Attention) -> float:
    """Time of a fused attention core [s]: exact FLOPs over the implementation's efficiency at this shape.

    The work of all blocks is spread over the multiprocessors. It ends no earlier than the longest block, and where causal
    blocks differ, up to one longest block after the average: Graham, "Bounds on Multiprocessing Timing Anomalies", 1969.
    """
    table = device.attention.get(attention_table(device, attention))
    if table is None:
        known = ", ".join(device.attention_kernels) or "none"
        raise TopologyError(
            Finding(f"{device.name} has no attention implementation {attention.implementation!r}; it has {known}", "training.attention")
        )
    if attention.backward and not table.window_backward:
        attention = replace(attention, window=0)
    sequence = attention.keys if not attention.window else min(attention.keys, attention.window)
    efficiency = (table.backward if attention.backward else table.forward) * head_size_share(table, attention)
    efficiency *= sequence / (sequence + attention_ramp(table, attention))
    dtype = table.dtype or attention.dtype
    rate = peak_of(device, dtype) * device.pace(dtype, efficiency) * efficiency / device.sms
    rows = _BACKWARD_BLOCK if attention.backward else table.block
    longest = 2.0 * min(rows, attention.queries) * sequence * attention.width
    share = attention.flop / device.sms
    tail = (table.tail_backward if attention.backward else table.tail_forward) if attention.causal else 0.0
    stream = device.bandwidth * device.memory_efficiency
    return max(max(longest, share + tail * longest) / rate, attention.bytes / stream) + device.kernel_latency


def attention_table(device: Device, attention: Attention) -> str:
    """Which of the device's efficiencies holds: that of the fp8 kernels of an implementation where operands are fp8 and the file has it."""
    narrow = attention.implementation + FP8
    return narrow if attention.dtype == "fp8" and narrow in device.attention else attention.implementation


def scan_time(device: Device, scan: ChunkScan) -> float:
    """Time of a linear-attention core [s]: what was measured of such kernels, else its products at `SCAN_SHARE` of the rate of fused
    attention, or its bytes.
    """
    if scan.vector:
        return memory_time(device, scan)
    table = device.attention.get("flash2") or next(iter(device.attention.values()), None)
    efficiency = SCAN_SHARE * (table.forward if table is not None else 0.5)
    computing = scan.flop / (peak_of(device, scan.dtype) * device.pace(scan.dtype, efficiency) * efficiency)
    return max(memory_time(device, scan), computing + scan.launches * device.kernel_latency)


def sparse_attention_time(device: Device, kernel: SparseAttention) -> float:
    """Time of attention to chosen keys, or of scoring keys [s]: products at the rate of large matrix products, or memory.

    Keys that every query reads anew make the core memory-bound: 2 x 128 x (576 + 512) FLOP for 1,156 bytes a pair. deepseek-ai/FlashMLA
    (README) reaches up to 640 TFLOP/s on an H800 and 1,450 on a B200 forward; rates of backward and of the indexer are not published.
    """
    rate = peak_of(device, kernel.dtype) * device.pace(kernel.dtype, 1.0) * device.gemm.of(kernel.dtype)
    return max(memory_time(device, kernel), kernel.flop / rate + kernel.launches * device.kernel_latency)


def factorisation_time(device: Device, kernel: Factorisation) -> float:
    """Time of orthogonal factorisations [s]: a kernel for every column, and then products with all columns that are left."""
    rate = peak_of(device, "fp32") * device.pace("fp32", 1.0) * device.gemm.of("fp32")
    return memory_time(device, kernel) + kernel.flop / rate


def attention_ramp(table: AttentionEfficiency, attention: Attention) -> float:
    """Number of keys at which the ramp of the kernel is one half [tokens].

    The prologue and the epilogue of a block grow with the head size. A block of a causal kernel meets half of the keys on
    average, and half of its last tile of 128 keys is masked: n (n + 1) / 2 tiles for n^2 / 2, so s / (s + 128).
    """
    half = table.s_half * max(1.0, attention.head_dim / 128)
    return 2 * half + 128 if attention.causal else half


def head_size_share(table: AttentionEfficiency, attention: Attention) -> float:
    """Rate at this head size relative to 128: linear between 64, 128 and 256, less the padding of other sizes.

    Values with smaller heads than keys take some libraries another kernel backward: Composable Kernel's, where AITER's is for one size.
    """
    sizes = (attention.head_dim, attention.value_dim or attention.head_dim)
    padded = [next((size for size in _HEAD_SIZES if size >= one), one) for one in sizes]
    largest = padded[0]
    if attention.backward and table.unequal_backward and padded[1] < largest:
        share = table.unequal_backward
    elif largest <= 128:
        d64 = table.d64_backward if attention.backward and table.d64_backward else table.d64
        share = 1 - (1 - d64) * min(1.0, (128 - largest) / 64)
    else:
        d256 = table.d256_backward if attention.backward and table.d256_backward else table.d256
        share = 1 - (1 - d256) * min(1.0, (largest - 128) / 128)
    return share * sum(sizes) / sum(padded)


def memory_time(device: Device, kernel: Memory) -> float:
    """Time of memory-bound work [s]: bytes at the streaming rate, faster while the tensors fit in the cache.

    The fixed time of a launch is the bandwidth ramp of small kernels as well: x bytes in x / rate + t are a rate of
    x / (x + t rate), so that 2 us make 3.2 MiB the size at which an A100 reaches half of its streaming rate.
    Where copies were measured, every launch takes as long as a copy of its bytes. A kernel that keeps the multiprocessors longer than
    the memory (`Memory.vector`) takes that long instead: more of them, or a higher clock, make it faster, more bandwidth does not.
    """
    if not kernel.launches and not kernel.bytes:
        return 0.0
    if kernel.vector:
        issuing = kernel.vector / issue_rate(device) + kernel.launches * device.kernel_latency
        return max(memory_time(device, replace(kernel, vector=0.0)), issuing)
    launches = max(kernel.launches, 1)
    if device.measured is not None and device.measured.copy is not None:
        each = device.measured.copy.time(kernel.bytes / launches, device.kernel_latency)
        # work without a launch of its own is part of another kernel
        return launches * max(each, device.kernel_latency) - (launches - kernel.launches) * device.kernel_latency
    fixed = max(device.kernel_latency, device.half_size / (device.bandwidth * device.memory_efficiency))
    return kernel.bytes / memory_rate(device, kernel.bytes / launches) + kernel.launches * fixed


def issue_rate(device: Device) -> float:
    """What the multiprocessors would do with an fp32 multiply-add in every slot in which they can issue an instruction [FLOP/s].

    That is the fp32 peak, but for NVIDIA's chips of 64 fp32 lanes per multiprocessor and 128 slots: V100, T4, A100 (CUDA C++ Programming
    Guide, throughput of arithmetic instructions, compute capability 7.x and 8.0).
    """
    return peak_of(device, "fp32") * (2 if 7.0 <= device.compute_capability <= 8.0 else 1)


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

"""Frozen weights in four bits: what they occupy and what it costs to read them (QLoRA, Dettmers et al. 2023, 2305.14314).

nf4: 4 bits per element and an fp32 scale (absmax) per block of 64: 0.5 + 4/64 = 0.5625 B = 4.5 bit per element.
nf4-dq: the scales themselves in 8 bits, with an fp32 scale per 256 of them: 0.5 + 1/64 + 4/(64 x 256) B = 4.126953125 bit.
The 16 values of the code and the scales' mean (some 1.3 KiB per tensor) are left out.
"""

from __future__ import annotations

from parsim.kernel import Memory

BLOCK = 64
"""elements per scale (bitsandbytes, ``functional.quantize_4bit``)"""
SCALE_BLOCK = 256
"""scales per scale of scales"""
FORMATS = ("nf4", "nf4-dq")
DEQUANTISATION_TRAFFIC = 3.0
"""bitsandbytes' dequantisation takes about 3 times as long as its bytes at the streaming rate: Lightning-AI/litgpt,
tutorials/resource-tables.md, LoRA of Llama 2 on an A100 40 GB, bf16 against nf4, per 1000 iterations of forward and backward:
7B 141.6 -> 220.8 s = 6.0 ps per element, 13B 191.4 -> 382.8 s = 7.4 ps; 2.5 B at 0.82 x 1555 GB/s are 2.0 ps."""


def stored_bytes(count: int, storage: str) -> int:
    """Bytes of `count` quantised elements with their scales [B].

    >>> stored_bytes(64 * 256, "nf4") * 8 / (64 * 256)
    4.5
    >>> stored_bytes(64 * 256, "nf4-dq") * 8 / (64 * 256)
    4.126953125
    """
    scales = -(-count // BLOCK)
    packed = -(-count // 2)
    return packed + (4 * scales if storage == "nf4" else scales + 4 * -(-scales // SCALE_BLOCK))


def dequantisation(count: int, storage: str, element: int) -> Memory:
    """The kernels that write `count` elements of `element` bytes from their quantised form; the product reads those."""
    traffic = stored_bytes(count, storage) + element * count
    return Memory(DEQUANTISATION_TRAFFIC * traffic, launches=1 if storage == "nf4" else 2)

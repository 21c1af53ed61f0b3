"""Model states: weights, gradients, optimizer; whole, sharded, offloaded, quantised."""

from __future__ import annotations

from typing import Final

BYTES_PER_PARAMETER: Final[dict[str, tuple[int, int, int, int]]] = {
    "fp32-sgd": (4, 4, 0, 0),
    "fp32-momentum": (4, 4, 0, 4),
    "fp32-adam": (4, 4, 0, 8),
    "mixed-adam": (2, 2, 4, 8),
    "mixed-adam-fp32-gradients": (2, 4, 4, 8),
    "pure-bf16-adam": (2, 2, 0, 4),
    "mixed-lion": (2, 2, 4, 4),
}
"""bytes of (weight, gradient, fp32 master, optimizer state) per parameter; mixed-adam is ZeRO's 16
(Rajbhandari et al., arXiv 1910.02054, §3.1), fp32 gradients are Megatron-LM's 18"""


def state_bytes(parameters: int, mode: str) -> int:
    """Weights, gradients, master copy and optimizer state on one device [B]; `mode` is a key of `BYTES_PER_PARAMETER`.

    >>> [state_bytes(10**9, mode) // 10**9 for mode in ("fp32-adam", "mixed-adam", "pure-bf16-adam")]
    [16, 16, 8]
    """
    return parameters * sum(BYTES_PER_PARAMETER[mode])


def zero_bytes(parameters: float, ranks: int, stage: int, weight: float = 2, gradient: float = 2, optimizer: float = 12) -> float:
    """ZeRO model states per rank [B] (arXiv 1910.02054, §5): stage 1 shards the optimizer, 2 also gradients, 3 also weights.

    >>> [zero_bytes(7.5e9, 64, stage) / 1e9 for stage in range(4)]
    [120.0, 31.40625, 16.640625, 1.875]
    """
    sharded = (0.0, optimizer, optimizer + gradient, optimizer + gradient + weight)[stage]
    whole = weight + gradient + optimizer - sharded
    return parameters * (whole + sharded / ranks)


def distributed_optimizer_bytes(parameters: int, ranks: int) -> float:
    """Megatron-LM's distributed optimizer per rank [B]: (6 + 12/N) P, with fp32 gradients (``docs/.../dist_optimizer``); N = 1: 18 P.

    >>> round(distributed_optimizer_bytes(6_738_415_616, 8) / 2**30, 3)
    47.067
    """
    return (6 + 12 / ranks) * parameters


def deepspeed_zero2_bytes(parameters: float, gpus: int, offload: bool = False) -> float:
    """DeepSpeed's ``estimate_zero2_model_states_mem_needs`` per GPU [B]: 4 P + 16 P/N, or 2 P with the optimizer on the host.

    >>> round(deepspeed_zero2_bytes(2851e6, 8) / 2**30, 2), round(deepspeed_zero2_bytes(2851e6, 8, offload=True) / 2**30, 2)
    (15.93, 5.31)
    """
    return 2 * parameters if offload else 4 * parameters + 16 * parameters / gpus


def deepspeed_zero2_host_bytes(parameters: float, gpus_per_node: int, buffers: float = 1.5) -> float:
    """Host memory of a node in the same estimator, optimizer offloaded [B]: P max(4 N, 16) x buffer factor.

    >>> round(deepspeed_zero2_host_bytes(2851e6, 8) / 2**30, 2)
    127.45
    """
    return parameters * max(4 * gpus_per_node, 16) * buffers


def deepspeed_zero3_bytes(
    parameters: float, largest_layer: float, gpus: int, offload_optimizer: bool = False, offload_parameters: bool = False
) -> float:
    """DeepSpeed's ``estimate_zero3_model_states_mem_needs`` per GPU [B].

    4 largest + 18 P/N, or + 2 P/N with the optimizer offloaded, or nothing more with both offloaded.

    >>> [round(deepspeed_zero3_bytes(2851e6, 32e6, 8, *offload) / 2**30, 2) for offload in ((False, False), (True, False), (True, True))]
    [6.09, 0.78, 0.12]
    """
    kept = (0 if offload_parameters else 2) if offload_optimizer else 18
    return 4 * largest_layer + kept * parameters / gpus


def deepspeed_zero3_host_bytes(parameters: float, offload_parameters: bool, buffers: float = 1.5) -> float:
    """Host memory of one node in the same estimator, with ``zero.Init`` [B]: 16 P, or 18 P with parameters offloaded, x buffer factor.

    >>> [round(deepspeed_zero3_host_bytes(2851e6, both) / 2**30, 2) for both in (False, True)]
    [63.72, 71.69]
    """
    return (18 if offload_parameters else 16) * parameters * buffers


def lora_bytes(base: int, adapters: int) -> int:
    """LoRA model states [B]: a frozen 16-bit base and adapters in mixed precision, 2 P + 16 A (arXiv 2106.09685).

    >>> lora_bytes(6_738_415_616, 39_976_960)
    14116462592
    """
    return 2 * base + 16 * adapters


def qlora_bytes(linears: int, rest: int, adapters: int, double_quantisation: bool = True) -> float:
    """QLoRA model states [B]: NF4 linears, the rest of the base in 16 bit, 16 B per adapter parameter (Dettmers et al., arXiv 2305.14314).

    4 bit + 32/64 bit of block scales = 4.5 bit; quantised scales 4 + 8/64 + 32/(64 x 256) = 4.126953125 bit.

    >>> qlora_bytes(6_476_005_376, 262_410_240, 39_976_960)
    4505223168.0
    """
    bits = 4 + 8 / 64 + 32 / (64 * 256) if double_quantisation else 4 + 32 / 64
    return linears * bits / 8 + 2 * rest + 16 * adapters


def key_value_bytes_per_token(layers: int, key_value_heads: int, head: int, element: int = 2) -> int:
    """Key-value cache per token [B]: 2 L k d e.

    >>> key_value_bytes_per_token(32, 32, 128), key_value_bytes_per_token(80, 8, 128)
    (524288, 327680)
    """
    return 2 * layers * key_value_heads * head * element


def checkpoint_bytes(parameters: int, with_weights: bool = True) -> int:
    """A training checkpoint [B]: fp32 master and two Adam moments, 12 P; with 16-bit weights 14 P.

    >>> checkpoint_bytes(68_976_648_192) / 1e12
    0.965673074688
    """
    return parameters * (14 if with_weights else 12)

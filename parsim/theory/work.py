"""Floating-point operations and utilisation, under the conventions that papers use. Never mix them."""

from __future__ import annotations


def transformer_forward_flops(
    layer_weights: int, layers: int, attention_width: int, sequence: int, head_weights: int, causal: bool = True
) -> int:
    """Exact forward FLOP per token: 2 per weight of every matrix, and 4 s w per layer of attention core, half of it when causal.

    `layer_weights` and `head_weights` are matrix elements (no biases, norms); `attention_width` is heads x head dimension.

    >>> transformer_forward_flops(12 * 768**2, 12, 768, 1024, 768 * 50257)
    265938432
    """
    core = (2 if causal else 4) * sequence * attention_width
    return layers * (2 * layer_weights + core) + 2 * head_weights


def attention_forward_flops(batch: int, sequence: int, heads: int, head: int) -> int:
    """Attention core of one layer, not causal: Q K^T and A V, 2 b s^2 a d each."""
    return 4 * batch * sequence**2 * heads * head


def flops_6n(parameters: int, tokens: float = 1) -> float:
    """6 N per token, forward and backward (Kaplan et al., arXiv 2001.08361); attention scores not counted.

    >>> f"{flops_6n(405_853_388_800, 15.6e12):.4e}"
    '3.7988e+25'
    """
    return 6 * parameters * tokens


def flops_palm(parameters: int, layers: int, hidden: int, sequence: int, tokens: float = 1) -> float:
    """(6 N + 12 L h s) per token, forward and backward, attention not halved (Chowdhery et al., arXiv 2204.02311, appendix B).

    >>> flops_palm(6_738_415_616, 32, 4096, 2048)
    43651719168
    """
    return (6 * parameters + 12 * layers * hidden * sequence) * tokens


def megatron_step_flops(batch: int, sequence: int, layers: int, hidden: int, vocabulary: int, recompute: bool = True) -> float:
    """One step: 96 B s L h^2 (1 + s/6h + V/16Lh) with full recomputation, 72 without (Narayanan et al., arXiv 2104.04473, appendix).

    >>> f"{megatron_step_flops(1536, 2048, 96, 12288, 51200):.4e}"
    '4.5110e+18'
    """
    factor = 96 if recompute else 72
    shape = 1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden)
    return factor * batch * sequence * layers * hidden**2 * shape


def mfu(tokens_per_second: float, flop_per_token: float, peak: float, devices: int = 1) -> float:
    """Model FLOP utilisation (arXiv 2204.02311): tokens/s x FLOP/token / (devices x peak FLOP/s).

    >>> round(mfu(3300, flops_6n(6_738_415_616), 312e12), 4)
    0.4276
    """
    return tokens_per_second * flop_per_token / (devices * peak)


def hfu_over_mfu(recomputed_fraction: float = 1.0) -> float:
    """Hardware over model FLOP utilisation when this part of the forward is run again: (3 + r)/3; 4/3 for full recomputation."""
    return (3 + recomputed_fraction) / 3

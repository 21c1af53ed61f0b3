"""Parameters of textbook architectures (norms, biases and tied weights included), and floating-point operations under the conventions of
papers, which are never to be mixed.
"""

from __future__ import annotations

from collections.abc import Iterable


def linear_parameters(inputs: int, outputs: int, bias: bool = True) -> int:
    """A fully connected layer: M N (+ N).

    >>> linear_parameters(1024, 1024) * 2 + linear_parameters(1024, 2048)
    4198400
    """
    return inputs * outputs + (outputs if bias else 0)


def gpt_parameters(hidden: int, layers: int, vocabulary: int, positions: int, mlp: int | None = None, tied: bool = True) -> int:
    """GPT-2 architecture (Radford et al. 2019): V h + positions h + L (4h^2 + 2hf + 9h + f) + 2h; f = 4h gives 12h^2 + 13h per layer.

    >>> gpt_parameters(768, 12, 50257, 1024), gpt_parameters(12288, 96, 50257, 2048)
    (124439808, 174604259328)
    """
    width = 4 * hidden if mlp is None else mlp
    attention = 4 * linear_parameters(hidden, hidden)
    feed_forward = linear_parameters(hidden, width) + linear_parameters(width, hidden)
    norm = 2 * hidden
    tables = (vocabulary + positions) * hidden + (0 if tied else vocabulary * hidden)
    return tables + layers * (attention + feed_forward + 2 * norm) + norm


def bert_parameters(hidden: int, mlp: int, layers: int, vocabulary: int, positions: int = 512, types: int = 2, pooler: bool = True) -> int:
    """BERT encoder (Devlin et al., arXiv 1810.04805) with embedding norm and pooler, without a task head.

    >>> bert_parameters(768, 3072, 12, 30522), bert_parameters(1024, 4096, 24, 30522)
    (109482240, 335141888)
    """
    norm = 2 * hidden
    layer = 4 * linear_parameters(hidden, hidden) + linear_parameters(hidden, mlp) + linear_parameters(mlp, hidden) + 2 * norm
    tables = (vocabulary + positions + types) * hidden + norm
    return tables + layers * layer + (linear_parameters(hidden, hidden) if pooler else 0)


def llama_layer_parameters(
    hidden: int, mlp: int, heads: int, key_value_heads: int | None = None, head: int | None = None, norms: bool = True
) -> int:
    """One Llama layer (Touvron et al., arXiv 2302.13971): q, k, v, o, a gated MLP of three matrices and two RMSNorms; no biases.

    >>> llama_layer_parameters(4096, 11008, 32)
    202383360
    """
    dimension = head or hidden // heads
    kv = heads if key_value_heads is None else key_value_heads
    return 2 * hidden * dimension * (heads + kv) + 3 * hidden * mlp + (2 * hidden if norms else 0)


def llama_parameters(
    hidden: int,
    mlp: int,
    layers: int,
    heads: int,
    vocabulary: int,
    key_value_heads: int | None = None,
    head: int | None = None,
    tied: bool = False,
) -> int:
    """Llama family, Mistral included: embedding, L layers, final norm, output projection unless tied.

    >>> llama_parameters(4096, 11008, 32, 32, 32000), llama_parameters(8192, 28672, 80, 64, 128256, key_value_heads=8)
    (6738415616, 70553706496)
    """
    layer = llama_layer_parameters(hidden, mlp, heads, key_value_heads, head)
    return (1 if tied else 2) * vocabulary * hidden + layers * layer + hidden


def mixture_parameters(
    hidden: int, mlp: int, layers: int, heads: int, vocabulary: int, experts: int, key_value_heads: int, active: int | None = None
) -> int:
    """Mixtral architecture (Jiang et al., arXiv 2401.04088): Llama with E gated experts and a router h E per layer.

    `active` experts counts only what one token uses (None: all of them).

    >>> mixture_parameters(4096, 14336, 32, 32, 32000, 8, 8), mixture_parameters(4096, 14336, 32, 32, 32000, 8, 8, active=2)
    (46702792704, 12879925248)
    """
    used = experts if active is None else active
    dense = llama_parameters(hidden, 0, layers, heads, vocabulary, key_value_heads)
    return dense + layers * (hidden * experts + used * 3 * hidden * mlp)


def lora_parameters(rank: int, shapes: Iterable[tuple[int, int]]) -> int:
    """LoRA adapters (Hu et al., arXiv 2106.09685): sum of r (in + out) over the adapted matrices.

    >>> 32 * lora_parameters(8, [(4096, 4096)] * 2)
    4194304
    """
    return sum(rank * (inputs + outputs) for inputs, outputs in shapes)


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

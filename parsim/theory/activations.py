"""Saved activations: what the forward pass keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Literal


def transformer_layer_activation_bytes(
    sequence: int,
    micro_batch: int,
    hidden: int,
    heads: int,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: Literal["none", "selective", "full"] = "none",
) -> float:
    """One GPT layer in 16 bit with dropout [B] (Korthikanti et al., arXiv 2205.05198, table 2).

    none sbh (34 + 5as/h) without tensor parallelism, sbh (10 + 24/t + 5as/(ht)) with it, sbh/t (34 + 5as/h) with sequence
    parallelism; selective drops 5as/h (flash attention does too, but for 4 B per head and token); full keeps 2sbh.

    >>> gpt3 = (2048, 1, 12288, 96)
    >>> [transformer_layer_activation_bytes(*gpt3, 8, sp) / 2**20 for sp in (False, True)]
    [552.0, 342.0]
    """
    sbh = sequence * micro_batch * hidden
    if recompute == "full":
        return 2 * sbh / (tensor if sequence_parallel else 1)
    scores = 5 * heads * sequence / hidden if recompute == "none" else 0.0
    if sequence_parallel:
        return sbh / tensor * (34 + scores)
    return sbh * (10 + (24 + scores) / tensor)


def interleaved_activation_factor(stages: int, virtual_stages: int) -> float:
    """How much more the first stage holds under interleaved 1F1B: 1 + (p - 1)/(p v) (arXiv 2205.05198, §4.2.3).

    >>> interleaved_activation_factor(4, 1)
    1.75
    """
    return 1 + (stages - 1) / (stages * virtual_stages)


def llama_saved_bytes_per_layer(
    tokens: int, hidden: int, mlp: int, heads: int, key_value_heads: int | None = None, fused: bool = False
) -> float:
    """One Llama layer in bf16 with flash attention [B], counted from what autograd saves in Hugging Face's eager code.

    T ((20 + 4k/a) h + 8f + 4a + 8): two norms 16h (fp32 copy 4, normalised 2, output 2 each), q and o 4h, k and v 4hk/a, MLP
    8f (gate, silu(gate), up, product), log-sum-exp 4a, norm statistics 8. Fused norms and SwiGLU: T ((12 + 4k/a) h + 6f + 4a + 8).

    >>> 40 * llama_saved_bytes_per_layer(1024, 5120, 13824, 40)
    9569894400.0
    """
    ratio = 1.0 if key_value_heads is None else key_value_heads / heads
    wide, gate = (12, 6) if fused else (20, 8)
    return tokens * ((wide + 4 * ratio) * hidden + gate * mlp + 4 * heads + 8)


def bert_saved_bytes(  # noqa: PLR0913
    batch: int,
    sequence: int,
    hidden: int,
    mlp: int,
    heads: int,
    layers: int,
    *,
    element: int = 4,
    dropout: bool = False,
    eager_attention: bool = True,
) -> int:
    """A BERT encoder with embeddings and pooler [B], counted from what autograd saves; inputs (token ids) not included.

    Per layer T e (8h + 2f) and b a s^2 (e, with dropout 2e + 1) of scores (4 a T without eager attention); 2L + 1 norms with 8 T of
    statistics and, with dropout, as many masks of T h; 2 T h e around the embedding; b h e in the pooler.

    >>> bert_saved_bytes(32, 512, 768, 3072, 12, 12) / 2**20
    13923.21875
    """
    tokens = batch * sequence
    scores = batch * heads * sequence**2 * (2 * element + 1 if dropout else element) if eager_attention else 4 * heads * tokens
    layer = tokens * element * (8 * hidden + 2 * mlp) + scores
    norms = (2 * layers + 1) * tokens * (8 + (hidden if dropout else 0))
    return layers * layer + norms + 2 * tokens * hidden * element + batch * hidden * element


def mlp_saved_bytes(batch: int, widths: Sequence[int], element: int = 4) -> int:
    """A stack of linear layers [B]: each keeps its input; a ReLU between them keeps nothing more (its output is the next input).

    >>> mlp_saved_bytes(10240, (1024, 1024, 1024, 2048)) / 2**20
    120.0
    """
    return batch * element * sum(widths[:-1])


def loss_peak_bytes(tokens: int, vocabulary: int, element: int = 2) -> int:
    """Peak of logits and an eager cross-entropy, in its backward [B]: 14 T V for a 16-bit model, 16 T V for fp32.

    16 bit: logits 2, fp32 copy 4, gradient of log-softmax 4, gradient of logits 4. A fused or chunked loss avoids most of it.

    >>> round(loss_peak_bytes(8192, 128256) / 2**30, 2)
    13.7
    """
    return tokens * vocabulary * (14 if element == 2 else 16)


def checkpointed_bytes(layers: int, layer_input: float, layer_full: float, every: int = 1) -> float:
    """Peak with a checkpoint every k layers [B]: ceil(L/k) inputs and k layers recomputed at once (Chen et al., arXiv 1604.06174).

    >>> checkpointed_bytes(16, 1, 1, every=4)
    8
    """
    return ceil(layers / every) * layer_input + every * layer_full


def optimal_checkpoint_interval(layers: int, layer_input: float, layer_full: float) -> float:
    """The k that minimises `checkpointed_bytes`: sqrt(L A_in / A_full); memory falls from O(L) to O(sqrt L).

    >>> optimal_checkpoint_interval(16, 1, 1)
    4.0
    """
    return sqrt(layers * layer_input / layer_full)

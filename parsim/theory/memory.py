"""Memory of a training: model states whole, sharded, offloaded and quantised; tensors saved for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Final, Literal

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


def distributed_optimizer_bytes(parameters: int, ranks: int, instances: int = 1) -> float:
    """Megatron-LM's distributed optimizer per rank [B]: (6 + 12 I/N) P, with fp32 gradients (``docs/.../dist_optimizer``); N = 1: 18 P.

    In each of I `instances` the N/I ranks share the optimizer states.

    >>> round(distributed_optimizer_bytes(6_738_415_616, 8) / 2**30, 3)
    47.067
    >>> [round(distributed_optimizer_bytes(8_030_261_248, 64, instances) / 2**30, 4) for instances in (1, 2, 8)]
    [46.2748, 47.6771, 56.0907]
    """
    return (6 + 12 * instances / ranks) * parameters


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

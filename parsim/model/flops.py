"""Floating-point operations under the conventions people quote, selectable and never mixed.

All conventions count 2 per multiply-add and forward plus backward (3 x forward). `exact` walks the operators;
the others are closed forms of published accounts. Per token; per sample for models without sequences.

Sources: PaLM (2204.02311, appendix B), Kaplan et al. (2001.08361), Megatron-LM (2104.04473, section 5.1 and appendix),
Korthikanti et al. (2205.05198, appendix A), mosaicml/llm-foundry ``scripts/train/benchmarking``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple

from parsim.errors import Finding, ModelError
from parsim.kernel import Attention, ChunkScan, Gemm, Kernel, SparseAttention
from parsim.model.attention import AttentionCore
from parsim.model.linear_attention import LinearAttention, ShortConvolution
from parsim.model.mixture import GroupedLinear, Router
from parsim.model.model import Block, Model, Operator, Parameter
from parsim.model.parameter_counts import active_parameter_count, layer_parameter_count
from parsim.model.pooling import PoolByPosition
from parsim.model.sparse_attention import LightningIndexer
from parsim.model.workload import Workload

Recompute = Literal["none", "selective", "full"]


def _is_one_stack(model: Model) -> bool:
    """All of it works on the same tokens: closed forms have one number of them."""
    return model.sequence and not model.facts.get("encoder") and not model.facts.get("vision")


class Convention(NamedTuple):
    """One way to count, and what it counts."""

    name: str
    meaning: str
    flop: Callable[[Model, int, Recompute], float]
    """(model, sequence length, recomputation) -> FLOP per token, forward and backward"""
    applies: Callable[[Model], bool] = _is_one_stack


class Again(NamedTuple):
    """Forward work that recomputation executes a second time [FLOP]."""

    products: float
    """of weights"""
    core: float
    """of attention cores, as executed (causal ones by half)"""
    square: float
    """of attention cores, all pairs of positions counted"""
    layers: float
    """what all layers execute in one forward: recomputation of everything would be products + core = layers"""


class PassFlop(NamedTuple):
    """FLOP of one block for one sample, per pass."""

    forward: float
    backward_input: float
    backward_weight: float


def forward_flop(model: Model, sequence: int = 1) -> float:
    """Matrix-product FLOP of one token's forward pass, averaged over a sample of `sequence` tokens; causal attention halved."""
    whole = math.fsum(count * block_flop(block, sequence).forward for block, count in _distinct(model))
    return whole / (sequence if model.sequence else 1)


def flop_per_token(model: Model, sequence: int = 1, convention: str = "exact", recompute: Recompute = "none") -> float:
    """FLOP per token of training under `convention` (a key of `CONVENTIONS`), forward and backward.

    `recompute` matters to the hardware conventions (hfu, megatron-hardware) only. Raises `ModelError` where the
    convention is unknown or a closed form does not describe this architecture.
    """
    if convention not in CONVENTIONS:
        raise ModelError(Finding(f"unknown FLOP convention {convention!r}", "", convention, f"known: {', '.join(CONVENTIONS)}"))
    chosen = CONVENTIONS[convention]
    if not chosen.applies(model):
        raise ModelError(Finding(f"the {convention} formula does not describe {model.name}", "", convention, "use exact or hfu"))
    return chosen.flop(model, sequence, recompute)


def flop_per_step(model: Model, sequence: int, global_batch: int, convention: str = "exact", recompute: Recompute = "none") -> float:
    """FLOP of one optimizer step over `global_batch` samples; see `flop_per_token`."""
    return flop_per_token(model, sequence, convention, recompute) * global_batch * (sequence if model.sequence else 1)


def repeated_flop(convention: str, model_flop: float, again: Again) -> float:
    """What HFU adds to `model_flop` under `convention` when the work `again` is repeated [FLOP].

    Attention counts as the convention counts it in the model's work: as all pairs where the published formula of the
    convention's hardware FLOP does so (Megatron's 96 for 72), not at all where it leaves attention out (6n); otherwise as
    executed. llm-foundry multiplies by 4/3 when all layers are recomputed.
    """
    if convention in _SQUARE:
        return again.products + again.square
    if convention in _WITHOUT_ATTENTION:
        return again.products
    if convention == "llm-foundry":
        return model_flop / 3 * (again.products + again.core) / again.layers if again.layers else 0.0
    return again.products + again.core


def repeated_work(model: Model, sequence: int, recompute: Recompute) -> Again:
    """What `recompute` of every layer repeats per token (full: the layers' forward; selective: the attention core)."""
    products = core = square = 0.0
    for block, count in _distinct(model):
        if block.kind in ("embedding", "head"):
            continue
        whole, half = count * block_flop(block, sequence).forward, count * _core(block, sequence)
        products, core, square = products + whole - half, core + half, square + count * _core(block, sequence, causal=False)
    tokens = sequence if model.sequence else 1
    layers = (products + core) / tokens
    if recompute == "none":
        return Again(0.0, 0.0, 0.0, layers)
    return Again(products / tokens if recompute == "full" else 0.0, core / tokens, square / tokens, layers)


def block_flop(block: Block, sequence: int = 1) -> PassFlop:
    """Matrix-product FLOP of one sample through `block`, per pass.

    Attention's backward counts its 4 products (2 x forward, none of them a weight gradient), not what a fused kernel
    recomputes.
    """
    at = _workload(sequence).tokens_in(block)
    each = [operator_flop(operator, at) for operator in block.operators]
    return PassFlop(
        math.fsum(passes.forward for passes in each),
        math.fsum(passes.backward_input for passes in each),
        math.fsum(passes.backward_weight for passes in each),
    )


def operator_flop(operator: Operator, at: Workload) -> PassFlop:
    """Matrix-product FLOP of one operator on the whole workload, as `block_flop` counts them (fused attention only)."""
    work = operator.work(at)
    attention = math.fsum(_useful(kernel) for kernel in work.forward if isinstance(kernel, Attention))
    attention += math.fsum(kernel.flop for kernel in work.forward if isinstance(kernel, ChunkScan | SparseAttention))
    if isinstance(operator, LightningIndexer):  # chooses, and learns nothing
        return PassFlop(attention + _gemm(work.forward), 0.0, 0.0)
    forward, backward_input, backward_weight = map(_gemm, (work.forward, work.backward_input, work.backward_weight))
    if isinstance(operator, GroupedLinear):  # experts run on equal whole numbers of rows: what fills them up is no work
        share = operator.filled(at)
        forward, backward_input, backward_weight = forward * share, backward_input * share, backward_weight * share
    return PassFlop(attention + forward, 2 * attention + backward_input, backward_weight)


def _workload(sequence: int) -> Workload:
    return Workload(batch=1, sequence=sequence, attention="flash2")


def _gemm(kernels: tuple[Kernel, ...]) -> float:
    return math.fsum(kernel.flop for kernel in kernels if isinstance(kernel, Gemm))


def _useful(kernel: Attention | SparseAttention, *, causal: bool = True) -> float:
    """FLOP of the forward scores that matter: half of a causal square, a window's band, chosen keys."""
    if isinstance(kernel, SparseAttention):
        return kernel.flop
    pairs: float = kernel.queries * kernel.keys
    window = kernel.window if 0 < kernel.window < kernel.keys else 0
    if window:
        pairs = kernel.queries * window - (window * window / 2 if kernel.causal else 0)
    elif kernel.causal and causal:
        pairs /= 2
    return 2.0 * pairs * kernel.batch * kernel.heads * (kernel.head_dim + (kernel.value_dim or kernel.head_dim))


def _distinct(model: Model) -> list[tuple[Block, int]]:
    """Different blocks, and how often each stands in the model."""
    return list(Counter(model.blocks).items())


def _core(block: Block, sequence: int, *, causal: bool = True) -> float:
    """Forward FLOP of the attention core of one sample; `causal` False counts masked pairs too."""
    at = _workload(sequence).tokens_in(block)
    works = (operator.work(at) for operator in block.operators)
    kernels = (kernel for work in works for kernel in work.forward)
    return math.fsum(_useful(kernel, causal=causal) for kernel in kernels if isinstance(kernel, Attention | SparseAttention))


def _chooses(block: Block, sequence: int) -> float:
    """Forward FLOP of one sample in what has no backward pass: indexers; half of those that have one product there, not two: pooling."""
    at = _workload(sequence).tokens_in(block)
    shares = {LightningIndexer: 1.0, PoolByPosition: 0.5}
    return math.fsum(
        share * operator_flop(one, at).forward for one in block.operators for kind, share in shares.items() if type(one) is kind
    )


def masked_flop(block: Block, sequence: int) -> float:
    """Forward FLOP of one sample's attention scores that causal masks discard."""
    return _core(block, sequence, causal=False) - _core(block, sequence)


def forward_alone(model: Model, sequence: int) -> float:
    """Forward FLOP per token that no backward pass follows: indexers, and half of what has no gradient of a weight: pooling."""
    return math.fsum(count * _chooses(block, sequence) for block, count in _distinct(model)) / (sequence if model.sequence else 1)


def _trained(model: Model, sequence: int) -> float:
    """Three times the forward pass, but once of what has no backward pass; FLOP per token."""
    return 3.0 * forward_flop(model, sequence) - 2.0 * forward_alone(model, sequence)


def _exact(model: Model, sequence: int, _: Recompute) -> float:
    return _trained(model, sequence)


def _exact_full(model: Model, sequence: int, _: Recompute) -> float:
    masked = math.fsum(count * masked_flop(block, sequence) for block, count in _distinct(model))
    return _trained(model, sequence) + 3.0 * masked / (sequence if model.sequence else 1)


def _hfu(model: Model, sequence: int, recompute: Recompute) -> float:
    again = repeated_work(model, sequence, recompute)
    return _trained(model, sequence) + again.products + again.core


def attention_width(model: Model) -> float:
    """a*d, or its mean over queries/keys and values where they differ (MLA), or over layers whose heads differ (Gemma 4)."""
    if (mean := model.facts.get("attention_width")) is not None:
        return float(str(mean))
    value_dim = model.facts.get("value_dim") or model.head_dim
    return model.heads * (model.head_dim + int(str(value_dim))) / 2


def attention_layers(model: Model) -> int:
    """Layers with an attention core: all, unless linear attention takes turns with it."""
    return int(str(model.facts.get("attention_layers", model.layers)))


def _palm(model: Model, sequence: int, _: Recompute) -> float:
    return 6.0 * active_parameter_count(model) + 12.0 * attention_layers(model) * attention_width(model) * sequence


def _six_n(model: Model, _sequence: int, _: Recompute) -> float:
    return 6.0 * active_parameter_count(model)


def _kaplan(model: Model, _sequence: int, _: Recompute) -> float:
    return 6.0 * layer_parameter_count(model)


def _megatron(model: Model, sequence: int, recompute: Recompute) -> float:
    passes = 4.0 if recompute == "full" else 3.0
    h, layers = model.hidden, model.layers
    core = 4.0 * sequence * h
    total = layers * passes * (24.0 * h * h + core) + 6.0 * model.vocabulary_padded * h
    return total + (layers * core if recompute == "selective" else 0.0)


def _megatron_model(model: Model, sequence: int, _: Recompute) -> float:
    return _megatron(model, sequence, "none")


def _megatron_today(model: Model, sequence: int, _: Recompute) -> float:
    routers = 2.0 * model.hidden * sum(op.experts for block in model.blocks for op in block.operators if isinstance(op, Router))
    return _trained(model, sequence) + 3.0 * (_scans_by_megatron(model, sequence) - routers)


def _scans_by_megatron(model: Model, sequence: int) -> float:
    """What Megatron-LM counts of linear-attention layers, less their matrix products."""
    more = 0.0
    for block, count in _distinct(model):
        taps = sum(one.features * one.taps for one in block.operators if isinstance(one, ShortConvolution))
        for one in block.operators:
            if isinstance(one, LinearAttention):
                more += count * (one.counted_by_megatron(taps) - one.flop(_workload(sequence)).forward)
    return more


def _is_gpt(model: Model) -> bool:
    """Multi-head attention of width h and a two-matrix MLP of width 4h: what Megatron's closed form describes."""
    facts = model.facts
    plain = not facts.get("mixer") and not facts.get("gated") and not facts.get("experts") and not facts.get("latent")
    same = model.kv_heads == model.heads and model.heads * model.head_dim == model.hidden
    return _is_one_stack(model) and plain and same and facts.get("mlp") == 4 * model.hidden


def _reads_all_keys(model: Model) -> bool:
    """PaLM's s keys for every token would be many times the work of attention to chosen ones."""
    return _is_one_stack(model) and not model.facts.get("chosen_keys")


def _is_dense(model: Model) -> bool:
    return _is_one_stack(model) and not model.facts.get("experts")


CONVENTIONS: dict[str, Convention] = {
    c.name: c
    for c in (
        Convention("exact", "3 x the matrix products of the forward pass, causal attention halved", _exact, lambda _: True),
        Convention("exact-full", "exact with attention not halved (NeMo's tables, torchtitan up to norms)", _exact_full),
        Convention("palm", "6 N + 12 L h s; N active parameters, attention not halved (PaLM's MFU)", _palm, _reads_all_keys),
        Convention("llm-foundry", "3 (2 N + 4 L h s); the same number as palm", _palm, _reads_all_keys),
        Convention("6n", "6 N; N active parameters, attention left out", _six_n),
        Convention("6n-non-embedding", "6 N without embeddings and LM head (Kaplan)", _kaplan, _is_dense),
        Convention("megatron", "72 L h^2 (1 + s/6h + V/12Lh); model FLOPs of 2205.05198", _megatron_model, _is_gpt),
        Convention("megatron-hardware", "96 L h^2 (1 + s/6h + V/16Lh) of 2104.04473", _megatron, _is_gpt),
        Convention(
            "megatron-lm",
            "exact without routers, linear attention by its own rule: what Megatron-LM's training loop prints today",
            _megatron_today,
        ),
        Convention("hfu", "exact plus what recomputation executes again", _hfu, lambda _: True),
    )
}
"""Name -> convention, in the order in which reports print them."""

HARDWARE_CONVENTIONS = ("megatron-hardware", "hfu")
MODEL_CONVENTIONS = tuple(name for name in CONVENTIONS if name not in HARDWARE_CONVENTIONS)
"""those of model FLOP, which MFU may use"""
_SQUARE = ("megatron", "exact-full")
_WITHOUT_ATTENTION = ("6n", "6n-non-embedding")


# What a partly frozen model saves. A frozen parameter has no weight gradient (2 per token); before the first trained parameter there is no
# backward pass at all (another 2, and the backward of attention). LoRA therefore counts about 4 N instead of 6 N.

COUNTED = ("palm", "exact", "exact-full", "llm-foundry", "6n", "6n-non-embedding")
"""conventions that tell parameters apart; Megatron's closed forms describe full training"""


def untrained_flop(model: Model, sequence: int, convention: str) -> float:
    """FLOP of one sample that training `model` saves against training all of it; `convention` is one of `COUNTED`."""
    trains = False
    total = 0.0
    for index, block in enumerate(model.blocks):
        trains = trains or any(p.trainable and not p.buffer for p in block.parameters())
        if convention.startswith("exact"):
            total += _untrained_products(block, sequence, differentiated=trains, full=convention == "exact-full")
        else:
            total += _by_parameters(model, index, sequence, convention, differentiated=trains)
    return total


def _by_parameters(model: Model, index: int, sequence: int, convention: str, *, differentiated: bool) -> float:
    block = model.blocks[index]
    own = [p for p in _counted(block, convention) if not p.buffer and not p.tied]
    share = model.active_fraction_blocks.get(index, 1.0)
    frozen = share * sum(p.count for p in own if not p.trainable)
    if differentiated:
        return 2.0 * frozen * sequence
    core = next((operator for operator in block.operators if isinstance(operator, AttentionCore)), None)
    attention = 0.0
    if core is not None and convention not in _WITHOUT_ATTENTION:
        mean = core.heads * (core.head_dim + (core.value_dim or core.head_dim)) / 2
        width = mean if any(model.full_heads) else attention_width(model)
        attention = 8.0 * width * sequence
    return (4.0 * frozen + attention) * sequence


def _counted(block: Block, convention: str) -> tuple[Parameter, ...]:
    """The parameters of a block that the convention counts (as `parsim.model.parameter_counts.layer_parameter_count` does)."""
    if convention != "6n-non-embedding":
        return tuple(block.parameters())
    if block.kind == "embedding":
        return ()
    return tuple(p for o in block.operators if block.kind != "head" or o.split != "vocab" for p in block.by_operator[o.name])


def _untrained_products(block: Block, sequence: int, *, differentiated: bool, full: bool) -> float:
    flop = block_flop(block, sequence)
    spent = flop.forward + flop.backward_weight + (flop.backward_input if differentiated else 0.0)
    masked = 2.0 * masked_flop(block, sequence) if full and not differentiated else 0.0
    return 3.0 * flop.forward - 2.0 * _chooses(block, sequence) - spent + masked

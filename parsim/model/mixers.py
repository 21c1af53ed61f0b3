"""Layers that carry a state: projections, short convolution, core, gate and norm of linear attention.

One product makes everything that the layer needs of its input (Mamba-2's and Gated DeltaNet's ``in_proj``), split by heads over
tensor ranks; its counterpart is split by rows. Low-rank projections (GLA's decay, Kimi Delta Attention's decay and gate) come
from the replicated small one. Structure: huggingface/transformers ``models/mamba2``, ``models/qwen3_next``; fla-org's
flash-linear-attention ``fla/layers/multiscale_retention.py``, ``gla.py``, ``kda.py``.
"""

from __future__ import annotations

from parsim.model.attention import Rotary
from parsim.model.elementwise import Scale
from parsim.model.gated_convolution import add_gated_convolution
from parsim.model.layer_kinds import LinearMixer
from parsim.model.linear import Linear
from parsim.model.linear_attention import DECAYING, GatedNorm, LinearAttention, ShortConvolution
from parsim.model.row import Row
from parsim.model.rwkv import add_time_mixing
from parsim.model.selective_scan import SelectiveScan
from parsim.model.transformer import TransformerConfig

GLA_DECAY_RANK = 16
"""``gate_low_rank_dim`` of fla's GatedLinearAttention"""


def add_mixer(config: TransformerConfig, mixer: LinearMixer, row: Row, source: str, *, alone: bool = True) -> None:
    """Adds the operators from the normed input `source` up to the projection that joins the residual stream.

    `alone`: nothing else reads that input.
    """
    if mixer.kind == "rwkv":
        add_time_mixing(config, mixer, row, source)
        return
    if mixer.kind == "mamba":
        _add_mamba(config, mixer, row, source)
        return
    if mixer.kind == "convolution":
        add_gated_convolution(config, mixer, row, source, alone=alone)
        return
    widths, names = _projections(mixer)
    projected = row.add(
        Linear(
            "mixer_in", (source,), "mixer_in", config.hidden, widths, bias=False, split="column", parameter_names=names, after_norm=alone
        )
    )
    if mixer.kind in DECAYING:
        _low_rank(config, mixer, row, source)
        row.last = projected
    total = sum(widths)
    if config.scale_projections:
        projected = row.add(Scale("mixer_projection_scale", (projected,), "mixer_projection_scale", total, "column"))
    if mixer.convolution:
        row.add(
            ShortConvolution(
                "mixer_convolution", (projected,), "mixer_convolution", mixer.convolved, mixer.convolution, mixer.convolution_bias,
                source_features=total,
            )
        )  # fmt: skip
    if mixer.kind == "retention" and config.position == "rotary":
        row.add(Rotary("mixer_rotary", (row.last,), "mixer_rotary", mixer.heads, mixer.key_heads, mixer.key_dim))
    inputs = (row.last, projected) if mixer.convolution else (row.last,)
    if mixer.kind in DECAYING:
        inputs = (*inputs, "mixer_decay_up")
    core = row.add(
        LinearAttention(
            "mixer_core", inputs, "mixer_core", mixer.kind, mixer.heads, mixer.key_heads, mixer.key_dim, mixer.value_dim, mixer.chunk,
            mixer.convolution,
        )
    )  # fmt: skip
    if mixer.gate:
        gate, held = ("mixer_gate_up", mixer.values) if mixer.kind == "kda" else (projected, total)
        whole = mixer.kind == "mamba2"
        width = mixer.values // mixer.key_heads if whole else mixer.value_dim
        row.add(
            GatedNorm(
                "mixer_gate_norm", (core, gate), "mixer_gate_norm", mixer.values, width,
                per_head=not whole, gate_in=held, normed=mixer.gate_norm,
            )
        )  # fmt: skip
    row.add(Linear("mixer_out", (row.last,), "mixer_out", mixer.values, (config.hidden,), bias=False, split="row"))


def _add_mamba(config: TransformerConfig, mixer: LinearMixer, row: Row, source: str) -> None:
    """Channels and gate from one product, the scan, and the product back."""
    inner = mixer.values
    row.add(Linear("mixer_in", (source,), "mixer_in", config.hidden, (2 * inner,), bias=False, split="column", after_norm=True))
    row.add(
        SelectiveScan(
            "mixer_core", (row.last,), "mixer_core", "mamba", inner, 1, mixer.key_dim, 1, mixer.chunk, mixer.convolution,
            step_rank=mixer.step_rank, convolution_bias=mixer.convolution_bias, norms=mixer.step_norms,
        )
    )  # fmt: skip
    row.add(Linear("mixer_out", (row.last,), "mixer_out", inner, (config.hidden,), bias=False, split="row"))


def _projections(mixer: LinearMixer) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Widths and names of the weights that `mixer_in` multiplies with."""
    keys, values, heads = mixer.key_heads * mixer.key_dim, mixer.values, mixer.heads
    gate = values if mixer.gate else 0
    match mixer.kind:
        case "mamba2":  # values, B, C, gate and the step of every head
            return (gate + mixer.convolved + heads,), ("mixer_in",)
        case "gated-delta":  # beta and decay of every head
            return (mixer.convolved + gate, 2 * heads), ("mixer_in", "mixer_beta_decay")
        case "kda":  # beta; decay and gate are low-rank
            return (keys, keys, values, heads), ("mixer_query", "mixer_key", "mixer_value", "mixer_beta")
    each = ((keys, "mixer_query"), (keys, "mixer_key"), (values, "mixer_value"), (gate, "mixer_gate"))
    return tuple(width for width, _ in each if width), tuple(name for width, name in each if width)


def _low_rank(config: TransformerConfig, mixer: LinearMixer, row: Row, source: str) -> None:
    decays = mixer.heads * mixer.key_dim
    rank, bias = (GLA_DECAY_RANK, True) if mixer.kind == "gla" else (mixer.value_dim, False)
    pairs = [("mixer_decay", rank, decays, bias)]
    if mixer.kind == "kda" and mixer.gate:
        pairs.append(("mixer_gate", mixer.value_dim, mixer.values, mixer.gate_bias))
    for name, inner, width, biased in pairs:
        down = row.add(Linear(f"{name}_down", (source,), f"{name}_down", config.hidden, (inner,), bias=False))
        row.add(Linear(f"{name}_up", (down,), f"{name}_up", inner, (width,), bias=biased, split="column"))

"""What stands behind attention in a layer: a dense MLP, experts, or both side by side."""

from __future__ import annotations

from dataclasses import replace

from parsim.model.architecture_records import Experts
from parsim.model.clamps import add_product
from parsim.model.elementwise import Activation, Dropout, GatedActivation, LayerScale, ResidualAdd, Scale
from parsim.model.linear import Linear
from parsim.model.mixture import mixture_of_experts
from parsim.model.model import Operator
from parsim.model.norms import RMSNorm
from parsim.model.row import Row, norm
from parsim.model.rwkv import add_channel_mixing
from parsim.model.transformer import TransformerConfig


def norms_feed_products(config: TransformerConfig) -> bool:
    """The product behind a norm is the only one that reads what the norm makes."""
    alone = config.norm_placement in ("pre", "sandwich") and not config.parallel_residual
    return alone and "H" not in config.layer_pattern


def add_feed_forward(config: TransformerConfig, count: int, row: Row, source: str) -> str:
    """Dense MLP or experts, up to what joins the residual stream."""
    row.last = source
    if count and config.experts is not None:
        row.add(*_experts(config, replace(config.experts, count=count), source))
        if config.experts.output_norm:
            row.add(norm(config, "mixture.output_norm", row.last))
        return leave(config, row, "mlp")
    if config.channel_mixing:
        add_channel_mixing(config, row, source)
        return leave(config, row, "mlp")
    _dense(config, row, source)
    return leave(config, row, "mlp")


def _dense(config: TransformerConfig, row: Row, source: str) -> None:
    """Up product, activation and down product."""
    widths: tuple[int, ...] = (config.mlp, config.mlp) if config.gated else (config.mlp,)
    names: tuple[str, ...] = ("gate", "up") if config.gated else ()
    if config.gated and config.fused_gate_up:
        widths, names = (2 * config.mlp,), ()
    alone, bias = norms_feed_products(config), config.mlp_bias
    up = Linear("mlp_up", (source,), "mlp_up", config.hidden, widths, bias, "column", names, selective="mlp", after_norm=alone)
    add_product(config, row, up)
    if config.gated:
        row.add(GatedActivation("mlp_activation", (row.last,), "mlp_activation", config.mlp, config.activation, bounded=config.clamp_mlp))
    else:
        row.add(Activation("mlp_activation", (row.last,), "mlp_activation", config.mlp, config.activation, "column", "mlp"))
    if config.activation_dropout:
        row.add(Dropout("mlp_activation_dropout", (row.last,), "mlp_activation_dropout", config.mlp, "column"))
    add_product(config, row, Linear("mlp_down", (row.last,), "mlp_down", config.mlp, (config.hidden,), config.mlp_bias, "row"))


def add_beside(config: TransformerConfig, experts: Experts, row: Row, stream: str, normed: str) -> str:
    """A dense MLP, which reads `normed`, beside experts, which read the residual stream, up to what joins that.

    huggingface/transformers ``models/gemma4/modeling_gemma4.py``: Gemma4TextDecoderLayer, Gemma4TextRouter. The router's norm has a weight
    per feature (``scale``) and is followed by a constant.
    """
    _dense(config, row, normed)
    dense = row.add(norm(config, "dense_output_norm", row.last))
    row.add(RMSNorm("mixture.router_norm", (stream,), "mixture.router_norm", config.hidden, by_power=config.norm_by_power))
    router = row.add(Scale("mixture.router_scale", (row.last,), "mixture.router_scale", config.hidden))
    source = row.add(norm(config, "mixture_norm", stream))
    row.add(*_experts(config, experts, source, router))
    mixed = row.add(norm(config, "mixture_output_norm", row.last))
    row.add(ResidualAdd("mlp_sum", (dense, mixed), "mlp_sum", config.hidden))
    return leave(config, row, "mlp")


def _experts(config: TransformerConfig, experts: Experts, source: str, router: str = "") -> tuple[Operator, ...]:
    return mixture_of_experts(
        "mixture",
        source,
        "mixture",
        config.hidden,
        experts.mlp,
        experts.count,
        experts.top_k,
        gated=config.gated,
        kind=config.activation,
        shared_width=experts.shared,
        shared_gate=experts.shared_gate,
        router_bias=experts.router_bias,
        router_bias_counted=experts.router_bias_counted,
        router_fp32=experts.router_dtype == "fp32",
        renormalise=experts.renormalise,
        groups=(experts.groups, experts.groups_kept),
        bias=experts.bias,
        clamp=experts.clamp,
        wide_sum=experts.wide_sum,
        bounded=config.clamp_mlp,
        latent=experts.latent,
        router_source=router,
        scaled=experts.scaled,
        parameter_names=("router.proj" if router else "gate", "experts.gate_up_proj", "experts.down_proj"),  # the dense MLP has a gate, too
    )


def leave(config: TransformerConfig, row: Row, sublayer: str) -> str:
    """Behind a sublayer: a weight per feature, its dropout, its norm where that stands here, and a constant."""
    if config.layer_scale:
        row.add(LayerScale(f"{sublayer}_scale", (row.last,), f"{sublayer}_scale", config.hidden))
    row.add(Dropout(f"{sublayer}_dropout", (row.last,), f"{sublayer}_dropout", config.hidden))
    if config.scale_residual:
        row.add(Scale(f"{sublayer}_scale", (row.last,), f"{sublayer}_scale", config.hidden))
    if config.norm_placement in ("sandwich", "output"):
        row.add(norm(config, f"{sublayer}_output_norm", row.last))
    return row.last

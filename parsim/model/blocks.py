"""A transformer architecture as blocks of operators: embedding, layers, head.

Splits over tensor ranks are Megatron-LM's (1909.08053): query-key-value and MLP-up by columns, their counterparts by
rows, embedding and head by vocabulary. Parameters stand in Hugging Face's registration order.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import lru_cache

from parsim.model.architecture_records import Experts
from parsim.model.attention import AttentionCore, QKNorm, Rotary, RotaryTables
from parsim.model.convolution import Conv2d
from parsim.model.cross_attention import RelativeBias
from parsim.model.disentangled import position_table, with_positions
from parsim.model.elementwise import Activation, Dropout, GatedActivation, LayerScale, Prefix, ResidualAdd, Scale
from parsim.model.encoder_memory import add_cross_attention
from parsim.model.families import FAMILIES
from parsim.model.heads import head_block
from parsim.model.latent_attention import add_latent_attention, add_sparse_attention
from parsim.model.layer_kinds import ATTENTION
from parsim.model.linear import Embedding, Linear
from parsim.model.linear_attention import OutputGate
from parsim.model.mixers import add_mixer
from parsim.model.mixture import mixture_of_experts
from parsim.model.model import Block, Model, Operator
from parsim.model.prediction import begin_prediction, end_prediction
from parsim.model.row import Row, norm
from parsim.model.rwkv import add_channel_mixing
from parsim.model.transformer import LayerKind, TransformerConfig


@lru_cache(maxsize=64)
def build_transformer(config: TransformerConfig, *, name: str, tensor: int = 1, loss: str = "auto", divisor: int = 0) -> Model:
    """The model of `config` for a tensor-parallel group of `tensor` ranks.

    `loss`: auto (the task's) | cross_entropy | mse | sum. `divisor`: what the stack pads vocabularies to a multiple of, times
    `tensor`, where the architecture does not say it; 0 = it does not pad.

    Models of equal configs are one object, as equal layers are one block: what is known of a block (its parameters, its tapes, what
    searches found of its cost) is then known in all scenarios of a study.
    """
    config = config.resolved()
    config = replace(config, vocab_divisible_by=config.vocab_divisible_by or divisor)
    padded = padded_vocabulary(config, tensor)
    kinds = [config.kind(i) for i in range(config.layers)]
    made = {kind: layer_block(config, kind) for kind in dict.fromkeys(kinds)}
    active = {kind: _active_share(config, block, kind.experts) for kind, block in made.items() if kind.mixture}
    predicts = [_prediction(config, padded, number) for number in range(config.mtp)]
    shares = {1 + i: active[kind] for i, kind in enumerate(kinds) if kind in active}
    if config.mtp and kinds[-1].mixture:
        shares |= {1 + config.layers + number: _active_share(config, block, kinds[-1].experts) for number, block in enumerate(predicts)}
    return Model(
        name=name,
        blocks=(embedding_block(config, padded), *(made[kind] for kind in kinds), *predicts, head_block(config, padded, loss)),
        block_names=("embedding", *(f"layer {i}" for i in range(config.layers)), *_prediction_names(config), "head"),
        hidden=config.hidden,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocabulary,
        vocabulary_padded=padded,
        maximum_sequence=config.maximum_sequence,
        active_fraction_blocks=shares,
        facts=architecture_facts(config),
    )


def padded_vocabulary(config: TransformerConfig, tensor: int) -> int:
    """Rows of the word table: a multiple of vocab_divisible_by x tensor, where that is not 0.

    Megatron-LM pads on one rank too (``megatron/training/vocab_utils.py``: calculate_padded_vocab_size).
    """
    multiple = config.vocab_divisible_by * tensor
    return -(-config.vocabulary // multiple) * multiple if multiple else config.vocabulary


def architecture_facts(config: TransformerConfig) -> dict[str, object]:
    """Every architectural field, the nested ones as plain numbers."""
    facts: dict[str, object] = asdict(config)
    experts, latent = config.experts, config.latent
    facts["experts"] = 0 if experts is None else experts.count
    facts["top_k"] = 0 if experts is None else experts.top_k
    facts["expert_mlp"] = 0 if experts is None else experts.mlp
    facts["shared_mlp"] = 0 if experts is None else experts.shared
    facts["latent"] = latent is not None
    facts["chosen_keys"] = latent.chosen if latent is not None else 0
    facts["mixer"] = config.mixer.kind if config.mixer is not None else ""
    facts["attention_layers"] = config.attention_layers
    if config.image is not None:
        facts["sequence_length"] = config.maximum_sequence
        facts["input_elements"] = config.image.channels * config.image.size**2
    facts["value_dim"] = config.head_dim if latent is None else latent.value_dim
    return facts


def _active_share(config: TransformerConfig, block: Block, count: int) -> float:
    """Share of a mixture layer's parameters that one token uses."""
    parameters = [p for p in block.parameters() if not p.buffer and not p.tied]
    everything, experts = sum(p.count for p in parameters), sum(p.count for p in parameters if p.expert)
    visited = experts * config.experts.top_k // count if config.experts else experts
    return (everything - experts + visited) / everything


def embedding_block(config: TransformerConfig, vocabulary: int) -> Block:
    """Everything before the first layer."""
    row, image = Row(), config.image
    if image is not None:
        patch, side = (image.patch, image.patch), (image.size, image.size)
        row.add(Conv2d("patches", ("input",), "patches", image.channels, config.hidden, patch, side, patch, bias=image.bias))
        row.add(Prefix("prefix", (row.last,), "prefix", config.hidden, image.tokens, image.class_tokens, image.mask_token))
        if config.embedding_norm:
            row.add(norm(config, "embedding_norm", row.last))
        row.add(Dropout("embedding_dropout", (row.last,), "embedding_dropout", config.hidden))
        return row.block("embedding", ("prefix", "patches"))
    embed_words(config, vocabulary, row)
    return row.block("embedding")


def embed_words(config: TransformerConfig, vocabulary: int, row: Row, words: str = "input", tied: str = "") -> None:
    """The hidden states that the first layer reads, of the ids called `words`; `tied`: the table they are rows of, if another block's."""
    width = config.embedding_width
    frozen = config.position == "sinusoidal"
    positions = config.maximum_sequence + config.position_offset if config.position == "learned" or frozen else 0
    last = width != config.hidden and config.embedding_projects_last
    projected = width != config.hidden and not last
    at_once = 0 if projected or frozen else positions
    row.add(
        Embedding(
            "word_embeddings",
            (words,),
            "word_embeddings",
            vocabulary,
            width,
            "vocab",
            at_once,
            config.token_types,
            config.positions_per_sample,
            tied=tied,
        )
    )
    if projected:
        row.add(Linear("project_in", (row.last,), "project_in", width, (config.hidden,), bias=False))
    if positions and not at_once:
        row.add(Prefix("positions", (row.last,), "positions", config.hidden, positions, tokens=0, trainable=not frozen))
    if config.embedding_norm:
        row.add(norm(replace(config, hidden=width) if last else config, "embedding_norm", row.last))
    if config.embedding_dropout:
        row.add(Dropout("embedding_dropout", (row.last,), "embedding_dropout", width if last else config.hidden))
    if last:
        row.add(Linear("project_in", (row.last,), "project_in", width, (config.hidden,)))
    for table in position_table(config, row.last):
        row.add(table)
    if config.position == "rotary":
        rotated = config.latent.rotary_dim if config.latent else int(config.head_dim * config.rotary_fraction)
        if config.mixer is not None and not config.attention_layers:
            rotated = config.mixer.key_dim
        row.add(RotaryTables("rotary_tables", (row.last,), "rotary_tables", rotated))


def _prediction_names(config: TransformerConfig) -> tuple[str, ...]:
    return ("mtp", *(f"mtp {number}" for number in range(2, 1 + config.mtp)))[: config.mtp]


def _prediction(config: TransformerConfig, vocabulary: int, number: int) -> Block:
    """Module `number`, the first of which predicts the token after the next; its layer is of the last one's kind."""
    row = Row()
    hidden = begin_prediction(config, vocabulary, row, number)
    _add_layer(config, config.kind(config.layers - 1), row)
    end_prediction(config, hidden, row, number)
    return row.block("mtp")


def layer_block(config: TransformerConfig, kind: LayerKind) -> Block:
    """A layer of this kind."""
    row = Row()
    if config.one_sublayer:
        _add_sublayer(config, kind, row)
    else:
        _add_layer(config, kind, row)
    return row.block("layer", FAMILIES[config.family].registration)


def _add_layer(config: TransformerConfig, kind: LayerKind, row: Row) -> None:
    post = config.norm_placement == "post"
    output = config.norm_placement == "output"
    stream = normed = row.last
    if kind.letter == "M":
        stream = _mixed(config, row)
        normed = row.add(norm(config, "mlp_norm", stream))
        row.add(ResidualAdd("mlp_residual", (_mlp(config, kind.experts, row, normed), stream), "mlp_residual", config.hidden))
        return
    if not post and not output and kind.normed:
        normed = row.add(norm(config, "attention_norm", stream))
    mixed = (_beside(config, row, normed),) if kind.letter == "H" else ()
    attended = _attention(config, kind, row, _scaled(config, row, normed, "attention") if mixed else normed)
    if config.parallel_residual:
        if not config.shared_norm:
            normed = row.add(norm(config, "mlp_norm", stream))
        added = _mlp(config, kind.experts, row, normed)
        row.add(ResidualAdd("mlp_residual", (added, attended, stream), "mlp_residual", config.hidden))
        return
    stream = row.add(ResidualAdd("attention_residual", (attended, *mixed, stream), "attention_residual", config.hidden))
    normed = stream
    if post:
        stream = normed = row.add(norm(config, "attention_norm", stream))
    if config.encoder is not None:
        stream = normed = add_cross_attention(config, config.encoder.tokens, row, stream)
    if not post and not output:
        normed = row.add(norm(config, "mlp_norm", stream))
    added = _mlp(config, kind.experts, row, normed)
    row.add(ResidualAdd("mlp_residual", (added, stream), "mlp_residual", config.hidden))
    if post:
        row.add(norm(config, "mlp_norm", row.last))


def _add_sublayer(config: TransformerConfig, kind: LayerKind, row: Row) -> None:
    """A layer of one sublayer."""
    if kind.letter == "M":
        _mixed(config, row)
    else:
        name, stream = ("attention" if kind.letter in ATTENTION else "mlp"), row.last
        normed = row.add(norm(config, f"{name}_norm", stream))
        added = _attention(config, kind, row, normed) if name == "attention" else _mlp(config, kind.experts, row, normed)
        row.add(ResidualAdd(f"{name}_residual", (added, stream), f"{name}_residual", config.hidden))


def _beside(config: TransformerConfig, row: Row, source: str) -> str:
    """What the mixer makes of the normed input `source`, which attention reads, too."""
    if config.mixer is None:  # patterns are checked with the architecture: unreachable
        message = f"{config.family} has no mixer"
        raise ValueError(message)
    add_mixer(config, config.mixer, row, _scaled(config, row, source, "mixer"), alone=False)
    return _leave(config, row, "mixer")


def _scaled(config: TransformerConfig, row: Row, source: str, sublayer: str) -> str:
    """`source`, times a constant where the architecture has one there."""
    name = f"{sublayer}_input_scale"
    return row.add(Scale(name, (source,), name, config.hidden)) if config.scale_projections else source


def _mixed(config: TransformerConfig, row: Row) -> str:
    """The residual stream behind a mixer."""
    if config.mixer is None:  # patterns are checked with the architecture: unreachable
        message = f"{config.family} has no mixer"
        raise ValueError(message)
    stream = row.last
    normed = row.add(norm(config, "mixer_norm", stream))
    add_mixer(config, config.mixer, row, normed)
    added = _leave(config, row, "mixer")
    return row.add(ResidualAdd("mixer_residual", (added, stream), "mixer_residual", config.hidden))


def _attention(config: TransformerConfig, kind: LayerKind, row: Row, source: str) -> str:
    """Projections and core, up to what joins the residual stream."""
    width = config.heads * config.head_dim
    if config.latent is not None and config.latent.chosen:
        value, width = add_sparse_attention(config, config.latent, row, source), config.heads * config.latent.value_dim
        row.add(Linear("attention_output", (value,), "attention_output", width, (config.hidden,), config.output_bias, "row"))
        return _leave(config, row, "attention")
    if config.latent is None:
        row.last = source
        _query_key_value(config, kind, row)
        queries: tuple[str, ...] = (row.last,)
        value_dim = 0
    else:
        queries, value_dim = add_latent_attention(config, config.latent, row, source), config.latent.value_dim
        width = config.heads * value_dim
    core = AttentionCore(
        "attention",
        queries,
        "attention",
        config.heads,
        config.heads if config.latent else config.kv_heads,
        config.head_dim,
        config.causal,
        kind.window,
        value_dim,
        dropout=config.attention_dropout,
        upcast_softmax=config.upcast_softmax,
        heads_first=config.rotary_concatenates,
        softcap=config.softcap_attention,
        expand_kv=config.expand_key_value,
        chunk=kind.chunk,
        sinks=config.attention_sinks,
        replaced=config.latent is None and (_normed(config, kind) or _rotated(config, kind)),
    )
    row.add(with_positions(core, config))
    if config.attention_gate:
        row.add(OutputGate("attention_gate", (row.last, queries[0]), "attention_gate", width, _fused_width(config)))
    row.add(Linear("attention_output", (row.last,), "attention_output", width, (config.hidden,), config.output_bias, "row"))
    return _leave(config, row, "attention")


def _fused_width(config: TransformerConfig) -> int:
    """Features of queries, their gate, keys and values."""
    return ((1 + config.attention_gate) * config.heads + 2 * config.kv_heads) * config.head_dim


def _norms_feed_products(config: TransformerConfig) -> bool:
    """The product behind a norm is the only one that reads what the norm makes."""
    alone = config.norm_placement in ("pre", "sandwich") and not config.parallel_residual
    return alone and "H" not in config.layer_pattern


def _normed(config: TransformerConfig, kind: LayerKind) -> bool:
    """Queries and keys are normed."""
    return config.query_key_norm and (kind.rotates or config.query_key_norm_everywhere)


def _rotated(config: TransformerConfig, kind: LayerKind) -> bool:
    """Queries and keys are rotated."""
    return config.position == "rotary" and kind.rotates


def _query_key_value(config: TransformerConfig, kind: LayerKind, row: Row) -> None:
    """The fused tensor of queries, keys and values, normed and rotated where the architecture says so."""
    heads, kv_heads, d = config.heads, config.kv_heads, config.head_dim
    widths: tuple[int, ...] = ((1 + config.attention_gate) * heads * d, kv_heads * d, kv_heads * d)
    names: tuple[str, ...] = ("query", "key", "value")
    if config.fused_query_key_value:
        widths, names = (sum(widths),), ()
    bias: bool | tuple[bool, ...] = config.query_key_value_bias
    if not config.key_bias and names:
        bias = (config.query_key_value_bias, False, config.query_key_value_bias)
    alone = _norms_feed_products(config)
    row.add(Linear("query_key_value", (row.last,), "query_key_value", config.hidden, widths, bias, "column", names, after_norm=alone))
    if kind.relative:
        row.add(RelativeBias("relative_bias", (row.last,), "relative_bias", config.relative_buckets, heads))
    if config.clip_query_key_value:
        row.add(Activation("query_key_value_clip", (row.last,), "query_key_value_clip", sum(widths), "clamp", "column"))
    if _normed(config, kind):
        row.add(
            QKNorm(
                "query_key_norm", (row.last,), "query_key_norm", heads, kv_heads, d, weights=config.query_key_norm_weights,
                over=config.query_key_norm_over, kind=config.query_key_normalisation, bias=config.query_key_norm_bias,
                wide=config.norm_in_fp32, factor=config.norm_offset,
            )
        )  # fmt: skip
    if _rotated(config, kind):
        sliced = d if config.fused_query_key_value else 0
        row.add(Rotary("rotary", (row.last,), "rotary", heads, kv_heads, int(d * config.rotary_fraction), sliced, config.rotary_scaled))


def _mlp(config: TransformerConfig, count: int, row: Row, source: str) -> str:
    """Dense MLP or experts, up to what joins the residual stream."""
    row.last = source
    if count and config.experts is not None:
        row.add(*_experts(config, replace(config.experts, count=count), source))
        return _leave(config, row, "mlp")
    if config.channel_mixing:
        add_channel_mixing(config, row, source)
        return _leave(config, row, "mlp")
    widths: tuple[int, ...] = (config.mlp, config.mlp) if config.gated else (config.mlp,)
    names: tuple[str, ...] = ("gate", "up") if config.gated else ()
    if config.gated and config.fused_gate_up:
        widths, names = (2 * config.mlp,), ()
    alone, bias = _norms_feed_products(config), config.mlp_bias
    row.add(Linear("mlp_up", (source,), "mlp_up", config.hidden, widths, bias, "column", names, selective="mlp", after_norm=alone))
    if config.gated:
        row.add(GatedActivation("mlp_activation", (row.last,), "mlp_activation", config.mlp, config.activation))
    else:
        row.add(Activation("mlp_activation", (row.last,), "mlp_activation", config.mlp, config.activation, "column", "mlp"))
    if config.activation_dropout:
        row.add(Dropout("mlp_activation_dropout", (row.last,), "mlp_activation_dropout", config.mlp, "column"))
    row.add(Linear("mlp_down", (row.last,), "mlp_down", config.mlp, (config.hidden,), config.mlp_bias, "row"))
    return _leave(config, row, "mlp")


def _experts(config: TransformerConfig, experts: Experts, source: str) -> tuple[Operator, ...]:
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
        router_fp32=experts.router_dtype == "fp32",
        renormalise=experts.renormalise,
        groups=(experts.groups, experts.groups_kept),
        bias=experts.bias,
        clamp=experts.clamp,
        latent=experts.latent,
    )


def _leave(config: TransformerConfig, row: Row, sublayer: str) -> str:
    """Behind a sublayer: a weight per feature, its dropout, its norm where that stands here, and a constant."""
    if config.layer_scale:
        row.add(LayerScale(f"{sublayer}_scale", (row.last,), f"{sublayer}_scale", config.hidden))
    row.add(Dropout(f"{sublayer}_dropout", (row.last,), f"{sublayer}_dropout", config.hidden))
    if config.scale_residual:
        row.add(Scale(f"{sublayer}_scale", (row.last,), f"{sublayer}_scale", config.hidden))
    if config.norm_placement in ("sandwich", "output"):
        row.add(norm(config, f"{sublayer}_output_norm", row.last))
    return row.last

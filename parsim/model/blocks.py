"""A transformer architecture as blocks of operators: embedding, layers, head.

Splits over tensor ranks are Megatron-LM's (1909.08053): query-key-value and MLP-up by columns, their counterparts by
rows, embedding and head by vocabulary. Parameters stand in Hugging Face's registration order.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import lru_cache

from parsim.model.architecture_records import FullAttention
from parsim.model.attention import AttentionCore, QKNorm, Rotary, RotaryTables
from parsim.model.clamps import add_product
from parsim.model.convolution import Conv2d
from parsim.model.cross_attention import RelativeBias
from parsim.model.disentangled import position_table, with_positions
from parsim.model.elementwise import Activation, Dropout, Prefix, ResidualAdd, Scale
from parsim.model.encoder_memory import add_cross_attention
from parsim.model.families import FAMILIES
from parsim.model.feed_forward import add_beside, add_feed_forward, leave, norms_feed_products
from parsim.model.heads import head_block
from parsim.model.latent_attention import add_latent_attention, add_sparse_attention
from parsim.model.layer_kinds import ATTENTION, LayerKind
from parsim.model.linear import Embedding, Linear
from parsim.model.linear_attention import HeadGate, OutputGate
from parsim.model.mixers import add_mixer
from parsim.model.model import Block, Model
from parsim.model.per_layer import PER_LAYER, PerLayerTable, ShowKeys, add_per_layer, beside, embed_per_layer, shown_keys, sum_beside
from parsim.model.prediction import begin_prediction, end_prediction
from parsim.model.row import Row, norm
from parsim.model.transformer import TransformerConfig
from parsim.model.value_norm import ValueNorm


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
    kinds = _kinds(config)
    made = {kind: layer_block(config, kind) for kind in dict.fromkeys(kinds)}
    active = {kind: _active_share(config, block, kind.experts) for kind, block in made.items() if kind.mixture}
    embedding = embedding_block(config, padded)
    predicts = [_prediction(config, padded, number) for number in range(config.mtp)]
    shares = {1 + i: active[kind] for i, kind in enumerate(kinds) if kind in active}
    if config.per_layer_inputs is not None:
        shares[0] = share_without_tables(embedding)
    if config.mtp and (experts := max(kind.experts for kind in _module_kinds(config))):
        own = predicts[:1] if config.mtp_repeated else predicts
        shares |= {1 + config.layers + number: _active_share(config, block, experts) for number, block in enumerate(own)}
    return Model(
        name=name,
        blocks=(embedding, *(made[kind] for kind in kinds), *predicts, head_block(config, padded, loss)),
        block_names=("embedding", *(f"layer {i}" for i in range(config.layers)), *_prediction_names(config), "head"),
        hidden=config.hidden,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        full_heads=_full_heads(config.full_attention),
        vocabulary=config.vocabulary,
        vocabulary_padded=padded,
        maximum_sequence=config.maximum_sequence,
        active_fraction_blocks=shares,
        facts=architecture_facts(config),
    )


def _full_heads(full: FullAttention | None) -> tuple[int, int, int]:
    return (0, 0, 0) if full is None else (full.kv_heads, full.head_dim, full.heads)


def _kinds(config: TransformerConfig) -> list[LayerKind]:
    """Of every layer."""
    return [config.kind(i) for i in range(config.layers)]


def _heads(config: TransformerConfig) -> list[FullAttention | TransformerConfig]:
    """What says the sizes of every layer's heads."""
    return [config.full_heads(kind) or config for kind in _kinds(config)]


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
    facts["value_dim"] = config.value_dim or config.head_dim if latent is None else latent.value_dim
    if config.full_attention is not None:
        widths = [one.heads * (one.head_dim + (config.value_dim or one.head_dim)) / 2 for one in _heads(config)]
        facts["attention_width"] = math.fsum(widths) / config.layers
    return facts


def _active_share(config: TransformerConfig, block: Block, count: int) -> float:
    """Share of a mixture layer's parameters that one token uses."""
    parameters = [p for p in block.parameters() if not p.buffer and not p.tied]
    everything, experts = sum(p.count for p in parameters), sum(p.count for p in parameters if p.expert)
    visited = experts * config.experts.top_k // count if config.experts else experts
    return (everything - experts + visited) / everything


def share_without_tables(block: Block) -> float:
    """Share of an embedding's parameters outside the table of per-layer inputs, of which a token reads a row and multiplies nothing."""
    table = sum(p.count for one in block.operators if isinstance(one, PerLayerTable) for p in one.parameters())
    everything = sum(p.count for p in block.parameters() if not p.buffer and not p.tied)
    return (everything - table) / everything


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
    embed_per_layer(config, row)
    return replace(row.block("embedding"), shows=shown_per_layer(config))


def shown_per_layer(config: TransformerConfig) -> tuple[str, ...]:
    """What the block of the embedding makes for all layers."""
    return (PER_LAYER,) if config.per_layer_inputs is not None else ()


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
        computed = config.positions_computed
        row.add(Prefix("positions", (row.last,), "positions", config.hidden, positions, tokens=0, trainable=not frozen, buffer=computed))
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
        if config.full_attention is not None:  # tables of either size
            rotated = sum({int(one.head_dim * one.rotary_fraction) for one in _heads(config)})
        row.add(RotaryTables("rotary_tables", (row.last,), "rotary_tables", rotated))


def _prediction_names(config: TransformerConfig) -> tuple[str, ...]:
    return ("mtp", *(f"mtp {number}" for number in range(2, 1 + config.mtp)))[: config.mtp]


def _prediction(config: TransformerConfig, vocabulary: int, number: int) -> Block:
    """Module `number`, the first of which predicts the token after the next."""
    row = Row()
    hidden = begin_prediction(config, vocabulary, row, number)
    for kind in _module_kinds(config):
        (_add_sublayer if config.one_sublayer else _add_layer)(config, kind, row)
    end_prediction(config, hidden, row, number)
    return replace(row.block("mtp"), repeats="mtp" if config.mtp_repeated and number else "")


def _module_kinds(config: TransformerConfig) -> tuple[LayerKind, ...]:
    """Of the layers of a module that predicts further words: those of its pattern, as they stand among the model's, or the last one's."""
    letters = [config.layer_letter(layer) for layer in range(config.layers)]
    return tuple(config.kind(letters.index(letter)) for letter in config.mtp_pattern) or (config.kind(config.layers - 1),)


def layer_block(config: TransformerConfig, kind: LayerKind) -> Block:
    """A layer of this kind."""
    row = Row()
    if (full := config.full_heads(kind)) is not None:
        config = replace(config, heads=full.heads, kv_heads=full.kv_heads, head_dim=full.head_dim, rotary_fraction=full.rotary_fraction)
    if kind.keys == "read" and config.shared_key_value_mlp:
        config = replace(config, mlp=config.shared_key_value_mlp)
    if config.one_sublayer:
        _add_sublayer(config, kind, row)
    else:
        _add_layer(config, kind, row)
    add_per_layer(config, row)
    if config.scale_layer:
        row.add(Scale("layer_scalar", (row.last,), "layer_scalar", config.hidden, buffer="layer_scalar"))
    sum_beside(config, kind, row)
    shows = (shown_keys(kind),) if kind.keys == "shown" else ()
    return replace(row.block("layer", FAMILIES[config.family].registration), beside=beside(config, kind), shows=shows)


def _add_layer(config: TransformerConfig, kind: LayerKind, row: Row) -> None:
    post = config.norm_placement == "post"
    output = config.norm_placement == "output"
    stream = normed = row.last
    if kind.letter == "M":
        stream = _mixed(config, row)
        normed = row.add(norm(config, "mlp_norm", stream))
        row.add(ResidualAdd("mlp_residual", (add_feed_forward(config, kind.experts, row, normed), stream), "mlp_residual", config.hidden))
        return
    if not post and not output and kind.normed:
        normed = row.add(norm(config, "attention_norm", stream))
    mixed = (_beside(config, row, normed),) if kind.letter == "H" else ()
    attended = _attention(config, kind, row, _scaled(config, row, normed, "attention") if mixed else normed)
    if config.parallel_residual:
        if not config.shared_norm:
            normed = row.add(norm(config, "mlp_norm", stream))
        added = add_feed_forward(config, kind.experts, row, normed)
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
    if kind.mixture and config.experts is not None and config.experts.beside:
        added = add_beside(config, replace(config.experts, count=kind.experts), row, stream, normed)
    else:
        added = add_feed_forward(config, kind.experts, row, normed)
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
        added = _attention(config, kind, row, normed) if name == "attention" else add_feed_forward(config, kind.experts, row, normed)
        row.add(ResidualAdd(f"{name}_residual", (added, stream), f"{name}_residual", config.hidden))


def _beside(config: TransformerConfig, row: Row, source: str) -> str:
    """What the mixer makes of the normed input `source`, which attention reads, too."""
    if config.mixer is None:  # patterns are checked with the architecture: unreachable
        message = f"{config.family} has no mixer"
        raise ValueError(message)
    add_mixer(config, config.mixer, row, _scaled(config, row, source, "mixer"), alone=False)
    return leave(config, row, "mixer")


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
    added = leave(config, row, "mixer")
    return row.add(ResidualAdd("mixer_residual", (added, stream), "mixer_residual", config.hidden))


def _attention(config: TransformerConfig, kind: LayerKind, row: Row, source: str) -> str:
    """Projections and core, up to what joins the residual stream."""
    width = config.heads * (config.value_dim or config.head_dim)
    if config.latent is not None and config.latent.chosen:
        value = add_sparse_attention(config, config.latent, row, source, chooses=kind.chooses)
        width = config.heads * config.latent.value_dim
        row.add(Linear("attention_output", (value,), "attention_output", width, (config.hidden,), config.output_bias, "row"))
        return leave(config, row, "attention")
    if config.latent is None:
        row.last = source
        queries, value_dim = _query_key_value(config, kind, row), config.value_dim
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
        bounded=config.bounded_scores,
        expand_kv=config.expand_key_value,
        chunk=kind.chunk,
        sinks=config.attention_sinks and not (config.sinks_in_windows and not kind.window),
        sinks_scale=config.sinks_scale,
        replaced=config.latent is None and (_normed(config, kind) or _rotated(config, kind)),
        values_apart=len(queries) == 2 and config.latent is None and kind.keys != "read",
    )
    row.add(with_positions(core, config))
    if config.attention_gate:
        row.add(OutputGate("attention_gate", (row.last, queries[0]), "attention_gate", width, _fused_width(config)))
    if config.head_gate != "none":
        _add_head_gate(config, row, source)
    output = Linear("attention_output", (row.last,), "attention_output", width, (config.hidden,), config.output_bias, "row")
    add_product(config, row, output)
    return leave(config, row, "attention")


def _add_head_gate(config: TransformerConfig, row: Row, source: str) -> None:
    """Multiplies every head of the core's output by one number, made of the core's input."""
    core, name = row.last, "attention_gate_projection"
    gate = row.add(Linear(name, (source,), name, config.hidden, (config.heads,), False, "column"))
    width = config.heads * (config.value_dim or config.head_dim)
    row.add(HeadGate("attention_gate", (core, gate), "attention_gate", width, config.heads, wide=config.head_gate == "softplus"))


def _fused_width(config: TransformerConfig) -> int:
    """Features of queries, their gate, keys and values."""
    keys, values = config.head_dim, config.value_dim or config.head_dim
    return (1 + config.attention_gate) * config.heads * keys + config.kv_heads * (keys + values)


def _normed(config: TransformerConfig, kind: LayerKind) -> bool:
    """Queries and keys are normed."""
    return config.query_key_norm and (kind.rotates or config.query_key_norm_everywhere)


def _rotated(config: TransformerConfig, kind: LayerKind) -> bool:
    """Queries and keys are rotated."""
    return config.position == "rotary" and kind.rotates


def _query_key_value(config: TransformerConfig, kind: LayerKind, row: Row) -> tuple[str, ...]:
    """The fused tensor of queries, keys and values, normed and rotated where the architecture says so; behind it, values of their own.

    A layer that reads the keys and values of another has queries, and behind them those.
    """
    reads = kind.keys == "read"
    heads, kv_heads, d = config.heads, 0 if reads else config.kv_heads, config.head_dim
    full = config.full_heads(kind)
    from_keys = full is not None and full.values_from_keys and not reads
    widths: tuple[int, ...] = ((1 + config.attention_gate) * heads * d, kv_heads * d, kv_heads * (config.value_dim or d))
    names: tuple[str, ...] = ("query", "key", "value")
    if config.fused_query_key_value:
        widths, names = (sum(widths),), ()
    if from_keys or reads:
        widths, names = widths[: 1 if reads else 2], names[: 1 if reads else 2]
    bias: bool | tuple[bool, ...] = config.query_key_value_bias
    if not config.key_bias and names:
        bias = (config.query_key_value_bias, False, config.query_key_value_bias)[: len(names)]
    alone = norms_feed_products(config)
    add_product(
        config,
        row,
        Linear("query_key_value", (row.last,), "query_key_value", config.hidden, widths, bias, "column", names, after_norm=alone),
    )
    if kind.relative:
        row.add(RelativeBias("relative_bias", (row.last,), "relative_bias", config.relative_buckets, heads))
    if config.clip_query_key_value:
        row.add(Activation("query_key_value_clip", (row.last,), "query_key_value_clip", sum(widths), "clamp", "column"))
    if config.scale_values:
        row.add(Scale("value_scale", (row.last,), "value_scale", kv_heads * (config.value_dim or d), "column", inside=True))
    values: tuple[str, ...] = ()
    if config.value_norm and not reads:
        product = row.last
        named = row.add(ValueNorm("value_norm", (product,), "value_norm", kv_heads, d, from_keys, config.norm_by_power))
        row.last, values = (product, (named,)) if from_keys else (named, ())
    if _normed(config, kind):
        row.add(
            QKNorm(
                "query_key_norm", (row.last,), "query_key_norm", heads, kv_heads, d, weights=config.query_key_norm_weights,
                over=config.query_key_norm_over, kind=config.query_key_normalisation, bias=config.query_key_norm_bias,
                wide=config.norm_in_fp32, factor=config.norm_offset, by_power=config.norm_by_power,
            )
        )  # fmt: skip
    if _rotated(config, kind):
        sliced = d if config.fused_query_key_value else 0
        row.add(Rotary("rotary", (row.last,), "rotary", heads, kv_heads, int(d * config.rotary_fraction), sliced, config.rotary_scaled))
    if kind.keys == "shown":
        row.add(ShowKeys("show_keys", (row.last,), "show_keys", kv_heads, d, shown_keys(kind)))
    return (row.last, shown_keys(kind)) if reads else (row.last, *values)

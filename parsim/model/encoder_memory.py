"""How the parts of a decoder that read an encoder's output are laid in a row; the operators are in `parsim.model.cross_attention`."""

from __future__ import annotations

from parsim.model.cross_attention import MEMORY, CrossAttentionCore, ReadMemory
from parsim.model.elementwise import Dropout, ResidualAdd
from parsim.model.linear import Linear
from parsim.model.row import Row, norm
from parsim.model.transformer import TransformerConfig


def add_cross_attention(config: TransformerConfig, tokens: int, row: Row, stream: str) -> str:
    """Attention to a memory of `tokens` tokens per sample (0: as many as the target's) behind the stream; returns the stream behind it."""
    post, width = config.norm_placement == "post", config.heads * config.head_dim
    source = stream if post else row.add(norm(config, "cross_norm", stream))
    bias = config.query_key_value_bias
    query = row.add(Linear("cross_query", (source,), "cross_query", config.hidden, (width,), bias, "column", after_norm=not post))
    row.add(ReadMemory("cross_memory", (MEMORY,), "cross_memory", config.hidden, tokens))
    biases = (bias and config.key_bias, bias)
    names = ("cross_key", "cross_value")
    row.add(
        Linear(
            "cross_key_value", (row.last,), "cross_key_value", config.hidden, (width, width), biases, "column", names, tokens=tokens
        )
    )  # fmt: skip
    core = CrossAttentionCore(
        "cross_attention",
        (query, row.last),
        "cross_attention",
        config.heads,
        config.heads,
        config.head_dim,
        dropout=config.attention_dropout,
        upcast_softmax=config.upcast_softmax,
        keys=tokens,
    )
    row.add(core)
    row.add(Linear("cross_output", (row.last,), "cross_output", width, (config.hidden,), config.output_bias, "row"))
    row.add(Dropout("cross_dropout", (row.last,), "cross_dropout", config.hidden))
    stream = row.add(ResidualAdd("cross_residual", (row.last, stream), "cross_residual", config.hidden))
    return row.add(norm(config, "cross_norm", stream)) if post else stream

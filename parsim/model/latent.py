"""Multi-head latent attention: the projections before the core (DeepSeek-V2, 2405.04434, section 2.1)."""

from __future__ import annotations

from parsim.model.operators import Concatenate, Linear, RMSNorm, Rotary
from parsim.model.row import Row
from parsim.model.transformer import LatentAttention, TransformerConfig


def add_latent_attention(config: TransformerConfig, latent: LatentAttention, row: Row, source: str) -> tuple[str, str, str]:
    """Adds queries, keys and values decompressed for every head; returns the names of the three tensors.

    The compressing products are replicated over tensor ranks, the decompressing ones split by heads. The value is
    the second part of the tensor that decompression makes.
    """
    heads, key_dim = config.heads, latent.plain_dim + latent.rotary_dim
    bias = config.query_key_value_bias
    row.last = source
    if latent.query_rank:
        row.add(Linear("query_down", (source,), "query_down", config.hidden, (latent.query_rank,), bias))
        row.add(RMSNorm("query_norm", (row.last,), "query_norm", latent.query_rank))
    width = latent.query_rank or config.hidden
    row.add(Linear("query_up", (row.last,), "query_up", width, (heads * key_dim,), bias=False, split="column"))
    query = row.add(Rotary("query_rotary", (row.last,), "query_rotary", heads, 0, latent.rotary_dim))
    compressed = row.add(Linear("key_value_down", (source,), "key_value_down", config.hidden, (latent.key_rank + latent.rotary_dim,), bias))
    row.add(RMSNorm("key_value_norm", (compressed,), "key_value_norm", latent.key_rank))
    plain_and_value = heads * (latent.plain_dim + latent.value_dim)
    value = row.add(Linear("key_value_up", (row.last,), "key_value_up", latent.key_rank, (plain_and_value,), bias=False, split="column"))
    shared = row.add(Rotary("key_rotary", (compressed,), "key_rotary", 0, 1, latent.rotary_dim))
    widths = (heads * latent.plain_dim, heads * latent.rotary_dim)
    key = row.add(Concatenate("keys", (value, shared), "keys", widths, "heads"))
    return query, key, value

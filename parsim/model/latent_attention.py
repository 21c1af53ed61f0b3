"""Multi-head latent attention (DeepSeek-V2, 2405.04434, section 2.1): what stands before the core, and the whole of it on chosen keys."""

from __future__ import annotations

from parsim.model.architecture_records import LatentAttention
from parsim.model.attention import Rotary
from parsim.model.elementwise import Concatenate
from parsim.model.linear import Linear
from parsim.model.norms import RMSNorm
from parsim.model.row import Row
from parsim.model.sparse_attention import HeadProducts, LightningIndexer, SparseCore
from parsim.model.transformer import TransformerConfig


def add_latent_attention(config: TransformerConfig, latent: LatentAttention, row: Row, source: str) -> tuple[str, str, str]:
    """Adds queries, keys and values decompressed for every head; returns the names of the three tensors.

    The compressing products are replicated over tensor ranks, the decompressing ones split by heads. The value is
    the second part of the tensor that decompression makes.
    """
    heads, again = config.heads, "mla_up_proj"
    query = _add_latent_query(config, latent, row, source)
    compressed = _add_compressed(config, latent, row, source)
    plain_and_value = heads * (latent.plain_dim + latent.value_dim)
    up = Linear("key_value_up", (row.last,), "key_value_up", latent.key_rank, (plain_and_value,), False, "column", selective=again)
    value = row.add(up)
    shared = compressed
    if config.position != "none":
        shared = row.add(Rotary("key_rotary", (compressed,), "key_rotary", 0, 1, latent.rotary_dim, latent=True, selective=again))
    widths = (heads * latent.plain_dim, heads * latent.rotary_dim)
    key = row.add(Concatenate("keys", (value, shared), "keys", widths, "heads", again))
    return query, key, value


def _add_latent_query(config: TransformerConfig, latent: LatentAttention, row: Row, source: str) -> str:
    """Adds the queries of all heads, rotated."""
    heads, key_dim, again = config.heads, latent.plain_dim + latent.rotary_dim, "mla_up_proj"
    row.last = source
    if latent.query_rank:
        row.add(Linear("query_down", (source,), "query_down", config.hidden, (latent.query_rank,), config.query_key_value_bias))
        row.add(RMSNorm("query_norm", (row.last,), "query_norm", latent.query_rank))
    width = latent.query_rank or config.hidden
    row.add(Linear("query_up", (row.last,), "query_up", width, (heads * key_dim,), False, "column", selective=again))
    if config.position == "none":
        return row.last
    return row.add(Rotary("query_rotary", (row.last,), "query_rotary", heads, 0, latent.rotary_dim, latent=True, selective=again))


def _add_compressed(config: TransformerConfig, latent: LatentAttention, row: Row, source: str) -> str:
    """Adds the compressed keys and values, of which the norm's output, the row's last, is the part without positions."""
    width = (latent.key_rank + latent.rotary_dim,)
    compressed = row.add(Linear("key_value_down", (source,), "key_value_down", config.hidden, width, config.query_key_value_bias))
    row.add(RMSNorm("key_value_norm", (compressed,), "key_value_norm", latent.key_rank))
    return compressed


def add_sparse_attention(config: TransformerConfig, latent: LatentAttention, row: Row, source: str, *, chooses: bool = True) -> str:
    """Adds attention to chosen keys in the absorbed form (`parsim.model.sparse_attention`); returns the values of all heads.

    `chooses`: by an indexer of the layer's own.
    """
    heads, again, key_dim = config.heads, "mla_up_proj", latent.key_rank + latent.rotary_dim
    query = _add_latent_query(config, latent, row, source)
    query = row.add(
        HeadProducts(
            "key_value_up", (query,), "absorbed_query", heads, latent.plain_dim + latent.rotary_dim, latent.plain_dim, latent.key_rank,
            latent.plain_dim + latent.value_dim, selective=again,
        )
    )  # fmt: skip
    compressed = _add_compressed(config, latent, row, source)
    normed = row.last
    shared = row.add(Rotary("key_rotary", (compressed,), "key_rotary", 0, 1, latent.rotary_dim, latent=True, selective=again))
    key = row.add(Concatenate("keys", (normed, shared), "keys", (latent.key_rank, latent.rotary_dim), selective=again))
    read: tuple[str, ...] = (query, key)
    if chooses:
        indexer = LightningIndexer(
            "indexer",
            (source, "query_norm"),
            "indexer",
            config.hidden,
            latent.query_rank,
            latent.index_heads,
            latent.index_dim,
            latent.chosen,
        )
        read = (query, key, row.add(indexer))
    row.add(SparseCore("attention", read, "attention", heads, 1, key_dim, value_dim=latent.key_rank, chosen=latent.chosen))
    return row.add(HeadProducts("value_up", (row.last,), "value_up", heads, latent.key_rank, latent.key_rank, latent.value_dim))

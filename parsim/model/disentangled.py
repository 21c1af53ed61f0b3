"""Disentangled attention (DeBERTa, 2006.03654, section 3.1): scores of words with words, of words with positions, of positions with words.

Every layer turns one table of relative positions into queries and keys, with the projections of its words or with two of its own. Both
are multiplied with the keys and queries of the words, and every pair of tokens picks the product of its distance. As in
huggingface/transformers, models/deberta_v2/modeling_deberta_v2.py, which has no fused kernel for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from parsim.kernel import Gemm, Kernel, Memory
from parsim.model.attention import AttentionCore
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.transformer import TransformerConfig
from parsim.model.workload import Split, Workload, shard

INDEX = 8
"""bytes of a position (int64)"""


@dataclass(frozen=True, slots=True)
class PositionTable(Layer):
    """The rows [2 x buckets, hidden] of all distances, normed, which every layer reads; stands once, behind the embedding."""

    rows: int
    hidden: int
    normed: bool = True
    split: Split = "replicated"
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """The table, and weight and bias of its norm."""
        table = Parameter("rel_embeddings.weight", (self.rows, self.hidden), trainable=self.trainable)
        norm = (Parameter(f"rel_embeddings.norm.{word}", (self.hidden,), trainable=self.trainable) for word in ("weight", "bias"))
        return (table, *(norm if self.normed else ()))

    def training_work(self, at: Workload) -> Work:
        """A norm of few rows, and the distances of all pairs (about ten kernels on int64 numbers), which all layers keep."""
        size, pairs = self.rows * self.hidden * at.element, at.sequence**2
        norm = (Memory(2.0 * size),) if self.normed else ()
        saves = (Save(f"{self.name}.statistics", 8 * self.rows),) if self.normed else ()
        if self.normed and not at.dropout:  # with dropout every layer keeps rows of its own
            saves = (*saves, Save(f"{self.name}.rows", size))
        backward = (Memory(3.0 * size, launches=2),) if self.normed and self.trainable else ()
        distances = Memory(2.0 * INDEX * 10 * pairs, launches=10)
        masked = Memory(2.0 * at.tokens * self.hidden * at.element)  # words of padding become zeros
        kept = (*saves, Save(f"{self.name}.padding", at.tokens * at.element))
        return Work((masked, *norm, distances), (masked,), backward, input_gradients=(0,), saves=kept, forward_temporary=2 * INDEX * pairs)


@dataclass(frozen=True, slots=True)
class DisentangledCore(AttentionCore):
    """softmax(Q K^T + Q P_k^T + K P_q^T) V, with the rows of P_k and P_q that belong to the distance of every pair; always eager."""

    causal: bool = False
    hidden: int = 0
    rows: int = 0
    """of the table: distances to either side"""
    shared: bool = True
    """P_k and P_q are made by the projections of keys and queries"""

    def parameters(self) -> tuple[Parameter, ...]:
        """Projections of the table's rows, where they are not the words' own."""
        width = self.heads * self.head_dim
        names = () if self.shared else ("pos_key_proj", "pos_query_proj")
        shapes = (("weight", (width, self.hidden)), ("bias", (width,)))
        return tuple(Parameter(f"{name}.{word}", shape, 0, trainable=self.trainable) for name in names for word, shape in shapes)

    def training_work(self, at: Workload) -> Work:
        """The work of eager attention, and that of the two further products."""
        at = replace(at, attention="eager")
        work = AttentionCore.training_work(self, at)
        if at.context > 1:  # by heads, on whole samples: this method has been asked for those
            return work
        forward, backward, weight = self._products(at)
        heads, e, drop = shard(self.heads, at), at.element, bool(self.dropout and at.dropout)
        width, pairs = heads * self.head_dim, at.sequence**2
        scores = at.batch * heads * pairs
        saves = [
            Save(f"{self.name}.positions", 2 * at.batch * self.rows * width * e),
            Save(f"{self.name}.distances", 2 * INDEX * pairs),
            Save(f"{self.name}.key", at.tokens * width * e),  # beside its copy, scaled, for the product of words with words
            Save(f"{self.name}.padding", at.batch * pairs),
        ]
        if drop:  # every layer drops some of the table for itself
            saves.append(Save(f"{self.name}.rows", self.rows * self.hidden * (e + 1)))
        products = at.batch * heads * at.sequence * self.rows * e
        saves.append(Save(f"{self.name}.products", 2 * products))  # gather keeps what it picks from
        return work._replace(
            forward=(*forward, *work.forward),
            backward_input=(*work.backward_input, *backward),
            backward_weight=(*work.backward_weight, *weight),
            saves=(*work.saves, *saves),
            forward_temporary=work.forward_temporary + 2 * scores * e,
            backward_temporary=work.backward_temporary + products + scores * e,
        )

    def _products(self, at: Workload) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], tuple[Kernel, ...]]:
        """What the table's queries and keys take forward, for the gradients of what goes in, and for those of the projections."""
        heads, s, d, e, rows = shard(self.heads, at), at.sequence, self.head_dim, at.element, self.rows
        width, batch = heads * d, at.batch * shard(self.heads, at)
        scores, made, dtype = batch * s * s * e, rows * width * e, at.product_type("attention")
        project = Gemm(rows, width, self.hidden, dtype=at.dtype, element=at.operand)
        wide = Gemm(s, rows, d, batch, dtype, e)
        copies = Memory(2 * (2 * made + (1 + at.batch) * made), launches=4)
        # per product: the rows of its pairs are picked and scaled; then three sums, and bounds of the distances
        picked = Memory(2 * 4 * scores + 8 * scores + 4 * 2 * INDEX * s * s, launches=11)
        forward = (project, project, copies, wide, picked, wide)
        # zeros, into which the gradients of the pairs are added; the sums over the batch and of all gradients of queries and keys
        scattered = Memory(2 * 4 * scores + 2 * batch * s * rows * e, launches=6)
        summed = Memory(2 * (1 + at.batch) * made + 2 * 3 * at.tokens * width * e + 3 * rows * self.hidden * e, launches=5)
        of_words = Gemm(s, d, rows, batch, dtype, e, layout="NN")
        of_rows = Gemm(rows, d, s, batch, dtype, e, layout="NT")
        table = replace(project, n=self.hidden, k=width, layout="NN")
        backward = (scattered, of_words, of_words, of_rows, of_rows, summed, table, table)
        weight = replace(project, m=width, n=self.hidden, k=rows, weight_gradient=True, layout="NT")
        return forward, backward, (weight, weight) if self.trainable else ()


def position_table(config: TransformerConfig, source: str) -> tuple[PositionTable, ...]:
    """The table behind the embedding `source`; nothing where attention has no such products."""
    own = config.disentangled
    return () if own is None else (PositionTable("positions", (source,), "positions", 2 * own.buckets, config.hidden, own.normed),)


def with_positions(core: AttentionCore, config: TransformerConfig) -> AttentionCore:
    """`core` with products of words and positions, where the architecture has them."""
    own = config.disentangled
    if own is None:
        return core
    return DisentangledCore(
        core.name, core.inputs, core.output, core.heads, core.kv_heads, core.head_dim, core.causal, dropout=core.dropout,
        hidden=config.hidden, rows=2 * own.buckets, shared=own.shared,
    )  # fmt: skip

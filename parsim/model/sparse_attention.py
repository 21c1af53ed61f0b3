"""DeepSeek Sparse Attention: an indexer scores all keys of a token, attention reads the best of them (DeepSeek-V3.2, 2512.02556).

Attention runs in the form of latent attention whose decompression is absorbed: each of the a heads takes its query to the rank of the
compressed keys (r_kv + d_r wide), all heads read one key of that width and one value of width r_kv, and each takes its output back to
d_v. The products that do so cost what decompressing costs. Forward FLOP per token and layer, s tokens, n chosen keys, H index heads of
width D:

    indexer   2 H D x (s + 1) / 2 of all keys before it
    core      2 a (2 r_kv + d_r) x mean(min(i, n)) of the chosen ones

Decompressed, the core is 2 a (d_n + d_r + d_v) x (s + 1) / 2. The indexer's projections are replicated and multiply in 16 bits, its scores
in fp8 under a recipe of narrow products (deepseek-ai/DeepGEMM fp8_mqa_logits), else in the job's type.

Over several ranks as Megatron-LM does it (experimental_attention_variant/dsa.py, absorbed_mla.py). Tensor ranks, always with sequence
parallelism: each computes the whole indexer, for which it gathers the layer's input and the compressed queries, and the core of its heads
on gathered keys, whose gradients are reduce-scattered. Context ranks gather the indexer's keys and the core's, which the core keeps, put
them in the order of the sample, and reduce-scatter the gradients of the latter (cp_comm_type allgather, the only one). Scores are shared
evenly by the zig-zag split; pairs of the core are those of the rank with the two middle chunks.

The indexer is not trained here, and nothing flows back through it: Hugging Face runs it under ``no_grad``
(``models/deepseek_v32/modeling_deepseek_v32.py``), Megatron-LM gives it a loss only with ``dsa_indexer_loss_coeff``.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Gemm, Kernel, Memory, SparseAttention
from parsim.model.attention import AttentionCore
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.workload import Split, Workload, shard

SCORED_AT_ONCE = 1024
"""queries whose scores of all keys exist at once: an assumption; those of 131,072 queries would be 64 GiB"""
_INDEX = 4
"""bytes of a score, and of the number of a chosen key"""


def chosen_pairs(sequence: int, chosen: int) -> int:
    """Pairs of a query and a key that it reads in one causal sample: sum of min(i, chosen)."""
    few = min(sequence, chosen)
    return few * (few + 1) // 2 + (sequence - few) * few


def busiest_pairs(sequence: int, chosen: int, context: int) -> int:
    """Those pairs of the context rank that has most: the two middle of 2 c chunks, for which the first keys are all there.

    >>> busiest_pairs(16, 4, 1), busiest_pairs(16, 4, 2), chosen_pairs(16, 4)
    (58, 32, 58)
    """
    chunk = sequence // (2 * context)
    if context == 1:
        return chosen_pairs(sequence, chosen)
    return chosen_pairs((context + 1) * chunk, chosen) - chosen_pairs((context - 1) * chunk, chosen)


@dataclass(frozen=True, slots=True)
class LightningIndexer(Layer):
    """Chooses the keys of every token: `inputs` are the layer's normed input and the compressed query; the output has their numbers.

    The score of a key is the sum over heads of weight x relu(query . key), with one key of width `width` for all heads.
    """

    hidden: int
    query_rank: int
    heads: int
    width: int
    chosen: int
    """keys per token"""
    split: Split = "replicated"
    selective: str = ""

    def parameters(self) -> tuple[Parameter, ...]:
        """Projections of queries, of the key with its norm, and of the heads' weights."""
        shapes: tuple[tuple[str, tuple[int, ...]], ...] = (
            ("query.weight", (self.heads * self.width, self.query_rank)),
            ("key.weight", (self.width, self.hidden)),
            ("key_norm.weight", (self.width,)),
            ("key_norm.bias", (self.width,)),
            ("weights.weight", (self.heads, self.hidden)),
        )
        return tuple(Parameter(f"{self.name}.{name}", shape, trainable=False) for name, shape in shapes)

    def training_work(self, at: Workload) -> Work:
        """Three products, what prepares queries and keys, scores and the choice; forward only."""
        tokens, keys, wide = at.tokens, at.tokens * at.context, "bf16" if at.narrow else at.dtype
        sequence = at.sequence * at.context
        made, operands = tokens * (self.heads + 1) * self.width, (tokens * self.heads + keys) * self.width
        sizes = ((self.heads * self.width, self.query_rank), (self.width, self.hidden), (self.heads, self.hidden))
        products: tuple[Kernel, ...] = tuple(Gemm(tokens, n, k, dtype=wide, element=at.element) for n, k in sizes)
        pairs = at.batch * at.sequence * (sequence + 1) // 2
        parts = -(-tokens // SCORED_AT_ONCE)
        scores = SparseAttention(
            float(operands * (1 if at.narrow else at.element) + _INDEX * pairs),
            2.0 * self.heads * self.width * pairs,
            parts,
            "fp8" if at.narrow else at.dtype,
        )
        output = tokens * min(self.chosen, sequence) * _INDEX
        # norm of the keys, rotation, Hadamard transform and cast; the choice reads the scores for a threshold and again
        prepared = Memory(6.0 * made * at.element, launches=4)
        choice = Memory(float(2 * _INDEX * pairs + output), launches=2 * parts)
        temporary = operands * at.element + _INDEX * min(SCORED_AT_ONCE, tokens) * sequence
        if at.local_tokens != tokens:
            temporary += tokens * (self.hidden + self.query_rank) * at.element
        return Work((*products, prepared, scores, choice), output=output, input_gradients=(-1, -1), forward_temporary=temporary)


@dataclass(frozen=True, slots=True)
class HeadProducts(Layer):
    """Each head's rows times a matrix of its own: an absorbed half of ``kv_b_proj`` [heads (d_n + d_v), r_kv].

    Of an input head's `width` elements the first `in_features` are multiplied, the others are copied behind the product. The half that
    runs first, on queries, has the whole parameter (`rows` per head); the other has none.
    """

    heads: int
    width: int
    in_features: int
    out_features: int
    rows: int = 0
    """rows per head of the parameter, 0: it is the other half's"""
    split: Split = "heads"
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """Both halves, as Hugging Face has them."""
        shape = (self.heads * self.rows, min(self.in_features, self.out_features) if not self.rows else self.out_features)
        return (Parameter(f"{self.name}.weight", shape, 0, trainable=self.trainable),) if self.rows else ()

    def training_work(self, at: Workload) -> Work:
        """One batch of products forward and for each gradient, in 16 bits under a recipe of narrow ones."""
        heads, tokens, n, k = shard(self.heads, at), at.tokens, self.out_features, self.in_features
        dtype, rest = "bf16" if at.narrow else at.dtype, self.width - self.in_features
        source = tokens * heads * self.width * at.element
        copied = (Memory(2.0 * tokens * heads * rest * at.element),) if rest else ()
        weight = Gemm(n, k, tokens, heads, dtype, at.element, weight_gradient=True, layout="NT")
        return Work(
            (Gemm(tokens, n, k, heads, dtype, at.element), *copied),
            (Gemm(tokens, k, n, heads, dtype, at.element, layout="NN"), *copied),
            (weight,) if self.trainable else (),
            output=tokens * heads * (n + rest) * at.element,
            input_gradients=(source,),
            saves=(Save(self.inputs[0], source, "weight"),) if self.trainable else (),
        )


@dataclass(frozen=True, slots=True)
class SparseCore(AttentionCore):
    """The core on chosen keys; `inputs` are queries at the keys' rank, the compressed keys, and the numbers of those that a query reads.

    Without the third it reads the numbers that the last layer with an indexer holds (GLM-5.2, ``indexer_types``).

    Every query reads its keys from memory for all of its heads; backward computes scores again, and adds its part of their gradients to
    fp32 sums (tile-ai/tilelang ``examples/deepseek_v32``: sparse_mla_fwd.py, sparse_mla_bwd.py).
    """

    chosen: int = 2048
    """keys per token"""

    def training_work(self, at: Workload) -> Work:
        """Products on chosen pairs alone; keeps its inputs, gathered ones as they are then, its output and the log-sum-exp of every row."""
        heads, e, value = shard(self.heads, at), at.element, self.value_dim or self.head_dim
        queries, output = (at.tokens * heads * width * e for width in (self.head_dim, value))
        sequence, rows = at.sequence * at.context, at.tokens * at.context
        keys, own, numbers = rows * self.head_dim * e, at.local_tokens * self.head_dim * e, at.tokens * min(self.chosen, sequence) * _INDEX
        pairs = at.batch * busiest_pairs(sequence, self.chosen, at.context)
        read, dtype = pairs * (self.head_dim * e + _INDEX), "bf16" if at.narrow else at.dtype
        forward = SparseAttention(float(read + queries + output), 2.0 * heads * (self.head_dim + value) * pairs, 1, dtype)
        added = pairs * self.head_dim * 8
        backward = SparseAttention(
            float(read + added + 2 * (queries + output) + 2 * keys), 2.0 * heads * (3 * self.head_dim + 2 * value) * pairs, 3, dtype
        )
        # keys in the order of the sample: index_select, and the sum into zeros that is its gradient
        ordered, summed = ((Memory(2.0 * keys),), (Memory(4.0 * keys, launches=2),)) if at.context > 1 else ((), ())
        gathered = keys != own
        return Work(
            (*ordered, forward),
            (backward, *summed),
            output=output,
            input_gradients=(queries, own, -1)[: len(self.inputs)],
            saves=(
                Save(self.inputs[0], queries),
                Save(f"{self.name}.gathered" if gathered else self.inputs[1], keys),
                *(Save(name, numbers) for name in self.inputs[2:]),
                Save(self.output, output),
                Save(f"{self.name}.log_sum_exp", 4 * at.tokens * heads),
            ),
            forward_temporary=gathered * keys,
            backward_temporary=4 * rows * self.head_dim + gathered * keys,
        )

"""A decoder that attends to what an encoder has made (1706.03762; T5 1910.10683, BART 1910.13461, Whisper 2212.04356).

The encoder's output, the *memory*, goes into the block of the decoder's embedding and stays there until the decoder's backward has ended;
every decoder layer reads it from the side (`parsim.model.model.Block.beside`). Its gradient is one tensor, into which layer after layer
adds. Of it, only the layer that adds counts the memory: between two such layers it is left out, where most of the saved tensors are gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Gemm, Memory
from parsim.model.attention import AttentionCore
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.workload import Split, Workload, shard

MEMORY = "memory"
"""the encoder's output, beside a decoder layer's input"""


def memory_bytes(at: Workload, tokens: int, features: int) -> int:
    """Of the encoder's output of `tokens` tokens per sample (0: as many as the decoder's), on one rank [B]."""
    count = at.batch * (tokens or at.sequence)
    return (-(-count // at.tensor) if at.sequence_parallel else count) * features * at.element


@dataclass(frozen=True, slots=True)
class ReadMemory(Layer):
    """The memory as a decoder layer sees it: a view; backward adds to the gradient that the layers behind have summed."""

    features: int
    tokens: int = 0
    """of a sample; 0 = as many as the decoder's"""
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Nothing forward."""
        size = memory_bytes(at, self.tokens, self.features)
        return Work(backward_input=(Memory(3.0 * size),), input_gradients=(0,), backward_temporary=size)


@dataclass(frozen=True, slots=True)
class OwnWords(Layer):
    """Ids of the words that a block embeds, where its input is something else: a target's (moved by one), a text's with images."""

    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """A copy of 8 B per token; what the block's input is has no part in it."""
        size = 8 * at.tokens
        return Work((Memory(2.0 * size),), output=size, input_gradients=(-1,) * len(self.inputs))


@dataclass(frozen=True, slots=True)
class BeginDecoder(Layer):
    """The decoder's first hidden states beside the memory: `inputs` is (states, memory). The memory is kept until here in backward."""

    features: int
    tokens: int = 0
    """of a sample of the memory; 0 = as many as the decoder's"""
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """No work: a view of the states; the gradient of the memory is the sum of what the layers have added."""
        size = memory_bytes(at, self.tokens, self.features)
        return Work(input_gradients=(0, size), saves=(Save(self.inputs[1], size),))


@dataclass(frozen=True, slots=True)
class RelativeBias(Layer):
    """T5's learned bias per head and distance of positions (1910.10683, section 2.1), made once and added to the scores of all layers.

    It stands in the first layer of a stack, on the way to the attention core, and works in place. The bias [a, s, s] lives as long as
    the layers behind it need it, and its gradient, as large, while they run backward: both are one tensor here.
    """

    buckets: int
    heads: int
    split: Split = "heads"
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """Table [buckets, heads]."""
        return (Parameter("relative_attention_bias.weight", (self.buckets, self.heads), 1, trainable=self.trainable),)

    def training_work(self, at: Workload) -> Work:
        """Buckets of all pairs (about ten kernels on int64 numbers), then rows of the table; backward scatters into it."""
        pairs = at.sequence**2
        size = shard(self.heads, at) * pairs * at.element
        saves = (Save(f"{self.name}.bias", size, "weight"), Save(f"{self.name}.buckets", 8 * pairs, "weight"))
        weight = (Memory(2.0 * size + 8 * pairs, launches=2),) if self.trainable else ()
        return Work(
            (Memory(2.0 * 8 * 10 * pairs, launches=10), Memory(2.0 * size + 8 * pairs, launches=2)),
            (),
            weight,
            input_gradients=(0,),
            saves=saves,
            forward_temporary=2 * 8 * pairs,
        )


@dataclass(frozen=True, slots=True)
class CrossAttentionCore(AttentionCore):
    """softmax(Q K^T) V whose keys and values are the memory's; `inputs` is (query, key-value). Every query sees all of them."""

    causal: bool = False
    keys: int = 0
    """tokens of a sample of the memory; 0 = as many as the decoder's"""

    def training_work(self, at: Workload) -> Work:
        """Two products of s x s' per head forward, four backward; fused kernels recompute the first."""
        query, key, value = self.widths(at)
        keys, element = self.keys or at.sequence, at.element
        sizes = query * at.tokens * element, (key + value) * at.batch * keys * element
        operands = tuple(Save(name, size) for name, size in zip(self.inputs, sizes, strict=True))
        context = shard(self.heads, at) * self.head_dim * at.tokens * element
        if at.attention == "eager":
            work = self._eager_products(at, keys, sum(sizes), context)
        else:
            rows = -(-at.sequence // 32) * 32 if at.attention == "mem-efficient" else at.sequence
            statistics = Save(f"{self.name}.log_sum_exp", 4 * at.batch * shard(self.heads, at) * rows)
            state = Save(f"{self.name}.random_state", 16 if at.attention == "mem-efficient" else 24)
            forward, backward = (self._kernel(at, at.sequence, keys, causal=False, backward=way) for way in (False, True))
            work = Work((forward,), (backward,), saves=(Save(self.output, context), statistics, state))
        return work._replace(output=context, input_gradients=sizes, saves=(*operands, *work.saves))

    def _eager_products(self, at: Workload, keys: int, operands: int, context: int) -> Work:
        """Scores of all pairs, as `AttentionCore` keeps them."""
        heads, s, d, e = at.batch * shard(self.heads, at), at.sequence, self.head_dim, at.element
        scores, drop = heads * s * keys, bool(self.dropout and at.dropout)
        upcast = self.upcast_softmax and e < 4 and not at.library
        dtype = at.product_type("attention")
        wide = 4 if upcast else e
        saves = [Save(f"{self.name}.softmax", wide * scores)]
        if drop:
            saves += [Save(f"{self.name}.dropped", e * scores), Save(f"{self.name}.mask", scores)]
        elif upcast:
            saves += [Save(f"{self.name}.cast", e * scores)]
        saved = wide + (e if upcast or drop else 0) + drop
        forward = 6 * e + (6 + e) * upcast + (2 * e + 1) * drop
        backward = 5 * e + (2 * e + 12) * upcast + (2 * e + 1) * drop

        def gemm(m: int, n: int, k: int, layout: str = "NN") -> Gemm:
            return Gemm(m, n, k, heads, dtype, e, layout=layout)

        return Work(
            (
                Memory(2 * (operands + context), launches=4),
                gemm(s, keys, d, "TN"),
                Memory(forward * scores, launches=3 + upcast + drop),
                gemm(s, d, keys),
            ),
            (
                gemm(keys, d, s),
                gemm(s, keys, d, "TN"),
                Memory(backward * scores, launches=2 + upcast + drop),
                gemm(s, d, keys),
                gemm(keys, d, s),
                Memory(2 * operands + context, launches=4),
            ),
            saves=tuple(saves),
            forward_temporary=max(0, 2 * e - saved) * scores,
            backward_temporary=2 * wide * scores,
        )

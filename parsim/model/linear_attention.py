"""Linear attention: a state of fixed size per head in place of keys and values, updated token by token, computed chunk by chunk.

S_t = decay_t S_(t-1) + k_t v_t^T, o_t = S_t^T q_t. Chunks of C tokens turn that into matrix products: inside a chunk scores
of all C x C pairs, between chunks one state of d_k x d_v per head. The delta rule first takes away what the state already
holds for a key, which inside a chunk is the solution of a triangular system (WY representation).

=============  ============================================================  ==================================================
kind           forward FLOP per token                                        computed again in backward
=============  ============================================================  ==================================================
retention,     H (4 d_k d_v + 2 C d_v) + 2 C H_s d_k                         states and scores: 2 H d_k d_v + 2 C H_s d_k
gla, mamba2
gated-delta,   H (6 d_k d_v + 6 C d_k + 4 C d_v)                             states, W, U and scores:
kda                                                                          H (4 d_k d_v + 4 C d_k + 2 C d_v)
=============  ============================================================  ==================================================

H heads of values, H_s heads of scores: H, but Mamba-2's scores are those of its groups. Backward makes both gradients of every
product, twice the forward, beside what it computes again: 2.5 and 2.6 times the forward at d_k = d_v = 2 C = 128. The triangular
solve (C of d_k) and elementwise work are left out. Chunks are whole squares: nothing is halved for causality.

Sources: RetNet 2307.08621; GLA 2312.06635; Mamba-2 2405.21060 (section 6; state-spaces/mamba ``ops/triton/ssd_combined.py``);
Gated DeltaNet 2412.06464; fla-org/flash-linear-attention ``fla/ops/gated_delta_rule/chunk.py``, ``fla/ops/simple_gla/chunk.py``:
the kernels there, what they keep and what they compute again. `parsim.kernel.ChunkScan` says how they are timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from parsim.kernel import ChunkScan, Kernel, Memory
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.workload import Split, Workload, elements, rows, shard

Kind = Literal["retention", "gla", "mamba", "mamba2", "gated-delta", "kda", "rwkv"]
DELTA = ("gated-delta", "kda")
"""kinds with the delta rule"""
DECAYING = ("gla", "kda")
"""kinds with a decay for every element of a key, from a product of its own"""
ISSUES: Mapping[str, tuple[float, float]] = {
    "retention": (28.7, 41.0), "gla": (67.4, 82.3), "mamba2": (26.4, 43.0), "gated-delta": (25.7, 30.6), "kda": (49.1, 69.1),
}  # fmt: skip
"""of the kernels of a core, forward and backward, for a byte that `LinearAttention` counts [FLOP]: `Memory.vector`. Means of logarithms
over the four large shapes on an H100 and a B200: flash-linear-attention's Triton kernels, timed by pytorch/helion
(examples/linear/BENCHMARKS.md: validation/gemm/linear_attention.csv). The B200 is 1.2 to 1.7 times as fast as the H100, but slower in gla,
which is off by 20 to 50 %; other errors are below 20 % but for three (35, 31 and 26 %). mamba2: 0.649 ms forward for 8,192 tokens of 128
heads on an H100 (vllm-project/vllm pull request 27299), and 2.14 ms both ways for 64 heads in a training step on a GH200
(GeodesicResearch/geodesic-megatron, E-036)"""


class ScanFlop(NamedTuple):
    """FLOP of one token in all heads."""

    forward: float
    again: float
    """what backward computes again"""


def scan_flop(kind: Kind, heads: int, score_heads: int, key_dim: int, value_dim: int, chunk: int) -> ScanFlop:
    """The table of the module's text; `score_heads` differ from `heads` for Mamba-2 alone."""
    state, keys, values = heads * key_dim * value_dim, chunk * heads * key_dim, chunk * heads * value_dim
    if kind in DELTA:
        return ScanFlop(6.0 * state + 6.0 * keys + 4.0 * values, 4.0 * state + 4.0 * keys + 2.0 * values)
    scores = chunk * score_heads * key_dim
    return ScanFlop(4.0 * state + 2.0 * scores + 2.0 * values, 2.0 * state + 2.0 * scores)


@dataclass(frozen=True, slots=True)
class LinearAttention(Layer):
    """The core: `inputs` is the tensor of queries, keys and values (what the short convolution made), and the projections' one; last the
    decay of `DECAYING` kinds.

    Keeps what the libraries' kernels keep. retention and gla (fla): queries, keys, values. gated-delta and kda (fla): queries
    and keys normed and repeated for all heads with a statistic each, values, the inverse of the triangle (C per head and
    token), decay and beta. mamba2 (state-spaces/mamba): the projections alone; convolution and steps are made again.
    """

    kind: Kind
    heads: int
    """of values"""
    key_heads: int
    """of queries and keys; Mamba-2's groups"""
    key_dim: int
    """elements of a query or key (Mamba-2: the state size)"""
    value_dim: int
    chunk: int = 64
    """tokens of a chunk: 64 in fla, 128 to 256 in Mamba-2"""
    convolution: int = 0
    """taps of the convolution before it, where backward makes that again"""
    split: Split = "heads"
    selective: str = ""
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """Decay and step of every head: A_log and dt_bias [H] (kda: dt_bias [H d_k]), Mamba-2 also the skip D [H]."""
        steps = self.heads * self.key_dim if self.kind == "kda" else self.heads
        shapes = {"mamba2": (("dt_bias", self.heads), ("A_log", self.heads), ("D", self.heads))}
        delta = (("dt_bias", steps), ("A_log", self.heads)) if self.kind in DELTA else ()
        return tuple(Parameter(f"{self.name}.{name}", (n,), 0, trainable=self.trainable) for name, n in shapes.get(self.kind, delta))

    @property
    def state(self) -> int:
        """Elements of the state of one sample in all heads: what decoding keeps, and what would cross context ranks."""
        return self.heads * self.key_dim * self.value_dim

    def counted_by_megatron(self, width: int) -> float:
        """FLOP of one token as Megatron-LM's training loop counts them (``megatron/training/training.py``, num_floating_point_operations);
        `width` = channels of the convolution times its taps, which it counts for Gated DeltaNet alone.
        """
        if self.kind == "mamba2":
            return 7.0 * self.heads * self.value_dim * self.key_dim
        if self.kind in DELTA:
            return 8.0 * self.heads * self.value_dim**2 + 2.0 * width
        return self.flop().forward

    def flop(self, at: Workload | None = None) -> ScanFlop:
        """FLOP of one token on one rank; without a workload in whole chunks on one rank."""
        heads = shard(self.heads, at) if at else self.heads
        scores = (shard(self.key_heads, at) if at else self.key_heads) if self.kind == "mamba2" else heads
        chunk = min(self.chunk, at.sequence) if at else self.chunk
        return scan_flop(self.kind, heads, scores, self.key_dim, self.value_dim, chunk)

    def training_work(self, at: Workload) -> Work:
        """One `ChunkScan` each way, with the traffic of its kernels."""
        heads, key_heads = shard(self.heads, at), shard(self.key_heads, at)
        e, tokens, dtype = at.element, at.tokens, "bf16" if at.dtype == "fp8" else at.dtype
        keys, wide, values = (tokens * n * e for n in (key_heads * self.key_dim, heads * self.key_dim, heads * self.value_dim))
        chunk = min(self.chunk, at.sequence)
        # boundary states, one per chunk: bf16 in fla, fp32 in Mamba-2
        states = -(-at.sequence // chunk) * at.batch * heads * self.key_dim * self.value_dim * (4 if self.kind == "mamba2" else e)
        scores = tokens * chunk * (key_heads if self.kind == "mamba2" else heads) * e
        moved, launches, prepared = self._traffic(keys, wide, values, states, scores, at)
        flop = self.flop(at)
        issued, returned = ISSUES[self.kind]
        forward: tuple[Kernel, ...] = (ChunkScan(moved, tokens * flop.forward, launches, dtype, vector=issued * moved),)
        # gradients of both operands of every product, after the states (and W, U) are there again
        again = tokens * (2 * flop.forward + flop.again)
        backward: tuple[Kernel, ...] = (ChunkScan(3.0 * moved, again, 3 * launches, dtype, vector=returned * 3.0 * moved),)
        if prepared:
            forward, backward = (Memory(prepared, launches=4), *forward), (*backward, Memory(1.5 * prepared, launches=4))
        operands = 2 * keys + values
        if self.kind == "mamba2" and self.convolution:
            backward = (Memory(2.0 * operands, flop=2.0 * self.convolution * operands / e), *backward)
        decays = (wide,) if self.kind in DECAYING else ()
        others = len(self.inputs) - 1 - len(decays)
        gradients = (operands, *(0 if self.kind in ("retention", "gla") else tokens * heads * 2 * e for _ in range(others)), *decays)
        if not others:  # queries, keys and values are slices of the projections, whose gradient is one tensor
            gradients = (operands + values, *decays)
        return Work(
            forward,
            backward,
            output=values,
            input_gradients=gradients,
            saves=self._saves(at, wide, values, operands),
            forward_temporary=states + (2 * wide + 2 * values if self.kind in DELTA else scores),
            backward_temporary=2 * states + 2 * wide + 2 * values + (operands if self.kind == "mamba2" else 0),
        )

    def _traffic(self, keys: int, wide: int, values: int, states: int, scores: int, at: Workload) -> tuple[float, int, float]:
        """Bytes of the scan's kernels, how many there are, and bytes of what prepares queries, keys, decay and beta."""
        if self.kind == "mamba2":  # states of chunks, states passed on, scores, outputs with the skip
            return float(keys + values + 3 * states + 2 * keys + scores + keys + scores + states + 3 * values), 5, 0.0
        if self.kind in DELTA:  # K K^T in fp32, its inverse, W and U, states with new values, outputs
            triangle = wide + 2 * scores + 3 * scores
            solved = wide + values + scores + wide + values
            prepared = 2 * (keys + wide) + 4 * wide + (at.tokens * shard(self.heads, at) * 16.0)
            return float(triangle + solved + 2 * wide + 2 * values + states + 2 * wide + 2 * values + states), 6, prepared
        gates = at.tokens * shard(self.heads, at) * self.key_dim * 4 * 3 if self.kind == "gla" else 0
        return float(wide + values + states + 2 * wide + values + states + values + gates), 2 + 2 * (self.kind == "gla"), 0.0

    def _saves(self, at: Workload, wide: int, values: int, operands: int) -> tuple[Save, ...]:
        if self.kind in DELTA:
            each = at.tokens * shard(self.heads, at)
            decay = 4 * each * (self.key_dim if self.kind == "kda" else 1)
            return (
                Save(f"{self.name}.queries_keys", 2 * wide),
                Save(f"{self.name}.values", values),
                Save(f"{self.name}.inverse", each * self.chunk * at.element),
                Save(f"{self.name}.decay", decay),
                Save(f"{self.name}.beta", each * at.element),
                Save(f"{self.name}.statistics", 8 * each),
            )
        source = self.inputs[-1] if self.kind == "mamba2" else self.inputs[0]
        saves: tuple[Save, ...] = (Save(source, operands),)
        if self.kind == "gla":
            saves += (Save(f"{self.name}.decay", 4 * at.tokens * shard(self.heads, at) * self.key_dim),)
        return saves


@dataclass(frozen=True, slots=True)
class ShortConvolution(Layer):
    """A causal depthwise convolution over a few tokens, SiLU in the same kernel where there is one (Dao-AILab/causal-conv1d); keeps its
    input.

    `features` are the channels; its input may have more, behind them, that it does not read.
    """

    features: int
    taps: int = 4
    bias: bool = False
    split: Split = "heads"
    selective: str = ""
    trainable: bool = True
    source_features: int = 0
    """width of its input, where that is wider; 0 = features"""

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight [channels, 1, taps] and bias [channels]."""
        weight = Parameter(f"{self.name}.weight", (self.features, 1, self.taps), 0, trainable=self.trainable)
        return (weight, Parameter(f"{self.name}.bias", (self.features,), 0, trainable=self.trainable)) if self.bias else (weight,)

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways; the gradient of the weight is made with that of the input."""
        count = elements(at, self.features, self.split)
        size, source = count * at.element, elements(at, self.source_features or self.features, self.split) * at.element
        flop = 2.0 * self.taps * count
        return Work(
            (Memory(2 * size, flop=flop),),
            (Memory(3 * size, flop=2 * flop),),
            output=size,
            input_gradients=(source,),
            saves=(Save(self.inputs[0], source),),
        )


@dataclass(frozen=True, slots=True)
class GatedNorm(Layer):
    """RMSNorm of a core's output times SiLU of a gate, one kernel (fla's FusedRMSNormGated, mamba's RMSNormGated).

    `inputs` is (core, tensor that holds the gate). The norm is over `width` elements, one weight for all such groups
    (`per_head`) or one element each. Keeps both inputs and an fp32 statistic per group.
    """

    features: int
    width: int
    per_head: bool = True
    gate_in: int = 0
    """features of the tensor that holds the gate"""
    split: Split = "heads"
    selective: str = ""
    trainable: bool = True
    normed: bool = True
    """without it the gate alone, in one kernel with nothing else to keep"""

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight [width], or [features]; none without the norm."""
        if not self.normed:
            return ()
        shape, split = ((self.width,), None) if self.per_head else ((self.features,), 0)
        return (Parameter(f"{self.name}.weight", shape, split, trainable=self.trainable),)

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        size = elements(at, self.features, self.split) * at.element
        groups = rows(at, self.split) * -(-shard(self.features, at) // self.width)
        return Work(
            (Memory(3 * size),),
            (Memory(5 * size, launches=2 if self.normed else 1),),
            output=size,
            input_gradients=(size, size),
            saves=(
                Save(self.inputs[0], size),
                Save(self.inputs[1], elements(at, self.gate_in, self.split) * at.element),
                *((Save(f"{self.name}.statistics", 4 * groups),) if self.normed else ()),
            ),
        )


@dataclass(frozen=True, slots=True)
class OutputGate(Layer):
    """core * sigmoid(gate) of as many features (gated attention, 2505.06708; Qwen3-Next); `inputs` is (core, tensor that holds the gate).

    PyTorch keeps the core's output, the gate's sigmoid, and both once more as the operands of the product.
    """

    features: int
    gate_in: int
    split: Split = "heads"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        size = elements(at, self.features, self.split) * at.element
        saves: tuple[Save, ...] = (Save(self.inputs[0], size), Save(f"{self.name}.sigmoid", size))
        if at.fused:
            saves = (Save(self.inputs[0], size), Save(self.inputs[1], elements(at, self.gate_in, self.split) * at.element))
            return Work((Memory(3 * size),), (Memory(5 * size),), output=size, input_gradients=(size, size), saves=saves)
        kernels = Memory(5 * size, launches=2), Memory(9 * size, launches=3)
        return Work((kernels[0],), (kernels[1],), output=size, input_gradients=(size, size), saves=saves)


@dataclass(frozen=True, slots=True)
class HeadGate(Layer):
    """Every head of a core's output times one number; `inputs` is (core, projection of `heads` numbers).

    The number is a sigmoid (Step 3.5), or a softplus made in fp32 (`wide`; Laguna). PyTorch keeps what that function's derivative needs,
    the core's output and the numbers.
    """

    features: int
    heads: int
    wide: bool = False
    split: Split = "heads"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways: the product with the numbers, and in backward a second one and its sum over every head."""
        count = elements(at, self.heads, self.split)
        size, numbers = elements(at, self.features, self.split) * at.element, count * at.element
        saves: tuple[Save, ...] = (Save(self.inputs[0], size), Save(f"{self.name}.numbers", numbers))
        forward, backward = Memory(2 * size + numbers), Memory(4 * size + numbers)
        if at.fused:
            return Work((forward,), (backward,), output=size, input_gradients=(size, numbers), saves=saves)
        casts = self.wide and at.element < 4
        saves += (Save(f"{self.name}.fp32", 4 * count),) if casts else (Save(self.inputs[1], numbers),) if self.wide else ()
        small = (Memory(8 * count + 2 * (4 + at.element) * count, launches=3) if casts else Memory(2 * numbers)), Memory(12 * count)
        return Work(
            (small[0], forward),
            (Memory(6 * size + 2 * numbers, launches=3), small[1]),
            output=size,
            input_gradients=(size, numbers),
            saves=saves,
        )

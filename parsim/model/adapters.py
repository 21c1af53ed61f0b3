"""Linear layers whose weights are frozen, with or without low-rank adapters beside them (LoRA, Hu et al. 2021, 2106.09685).

A frozen product has no weight gradient and keeps nothing but its weight (autograd: ``mm`` needs its input only for the
weight). An adapter adds y += s B A x with A [r, in] and B [out, r], both trained: two small products forward and four backward,
a scaling and an addition. It keeps its input (shared by all adapters of one layer, unless each drops elements of its own copy)
and A x. A product in eight bits keeps its input although nothing needs it (bitsandbytes/autograd/_functions.py, MatMul8bitLt), and so
did one in four bits before bitsandbytes 0.43.2 (MatMul4Bit; pull request 1270); it shows where nothing is recomputed.

Tensor parallelism (as S-LoRA, Sheng et al. 2023, 2311.03285, joins the adapter with its base): beside a column-parallel weight A is
replicated and B split by outputs, beside a row-parallel one A is split by inputs and B replicated. The partial sums join those
of the base before its collective, so activations cost no communication of their own; the replicated half sees a part of its
gradient on each rank and is summed at the step.

DoRA (Liu et al. 2024, 2402.09353) scales every output of base and adapter by m / |W + s B A|, with a trained m [out] and the norm of each
row taken as a constant. PEFT (tuners/lora/dora.py, DoraLinearLayer) makes the norm anew in every forward pass: B A as the adapter of an
identity matrix [in, in], which is scaled, added to the (dequantised) weight and normed; the gradient of m needs the outputs of base and
adapter, which are kept. Where the adapter drops its input, the base is multiplied a second time, by what is left of it.

Frozen weights in four bits: what they occupy and what it costs to read them (QLoRA, Dettmers et al. 2023, 2305.14314).

nf4: 4 bits per element and an fp32 scale (absmax) per block of 64: 0.5 + 4/64 = 0.5625 B = 4.5 bit per element.
nf4-dq: the scales themselves in 8 bits, with an fp32 scale per 256 of them: 0.5 + 1/64 + 4/(64 x 256) B = 4.126953125 bit.
The 16 values of the code and the scales' mean (some 1.3 KiB per tensor) are left out. A matrix is written out in the type that it had when
it was quantised, and once more where products have another one (MatMul4Bit: dequantize_4bit(B, state).to(A.dtype)).

Frozen weights in eight bits (LLM.int8(), Dettmers et al. 2022, 2208.07339): a byte per element and an fp32 scale per row (output).
Forward, bitsandbytes casts the input to fp16, looks for columns with values beyond its threshold of 6, quantises each row to int8,
multiplies in int8 into 32-bit integers and scales those back to 16 bits; backward it writes the weight out in 16 bits and multiplies by
that (bitsandbytes/autograd/_functions.py, MatMul8bitLt; backends/cuda/ops.py, int8_vectorwise_quant and int8_mm_dequant). The columns
that it finds depend on the data, are few, and their product in 16 bits is left out, like the host's wait for their number.

Frozen weights as products in fp8 or nvfp4 read them (``AS_READ``: Transformer Engine's fp8_model_init, NeMo's fp8_params): they were
quantised when they were loaded, no step casts them, and nothing else is kept of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from parsim.kernel import Gemm, Kernel, Memory
from parsim.model.adapter_types import FP32, AdapterSizes, beside, widened
from parsim.model.linear import Linear
from parsim.model.model import Model, Parameter, Save, Work, kept
from parsim.model.workload import Workload, rows, shard


class Adapter(NamedTuple):
    """A B pair beside one weight, or beside a slice of a fused one."""

    name: str
    """of the adapted weight; the parameters are NAME.lora_A.weight and NAME.lora_B.weight"""
    out_features: int
    rank: int
    dropout: bool = False
    """its input is dropped first: a mask of 1 B per element and a copy of the input are kept"""
    slice: bool = False
    """beside a slice of a fused weight: the slices' adapters share one dropped input, and B A x is kept by the ``index_copy`` that
    puts it in its place (litgpt's LoRAQKVLinear.zero_pad; autograd expands the gradient to the source's shape)"""
    magnitude: bool = False
    """DoRA: outputs have a trained length; NAME.lora_magnitude_vector.weight"""
    fp32: bool = False
    """its parameters are fp32 beside 16-bit activations, which its layer casts (`parsim.model.adapter_types`)"""


class FourBits(NamedTuple):
    """How bitsandbytes multiplies by weights in four bits."""

    quantised_from: str = ""
    """fp16 | bf16 | fp32: type that the weights had when they were quantised; '' = that of the products"""
    keeps_inputs: bool = False
    """a product keeps its input, as before version 0.43.2"""

    def _cast_from(self, at: Workload) -> int:
        """Bytes of an element that is written out before a cast; 0 where nothing is cast."""
        products = at.dtype if at.element == 2 else "fp32"
        return WRITTEN[self.quantised_from] if self.quantised_from not in ("", products) else 0

    def kernels(self, count: int, storage: str, at: Workload) -> tuple[Memory, ...]:
        """What writes out `count` elements in the type of the products."""
        element, source = max(2, at.element), self._cast_from(at)
        if not source:
            return (dequantisation(count, storage, element),)
        return dequantisation(count, storage, source), Memory((source + element) * count)

    def held(self, count: int, at: Workload) -> int:
        """Bytes of `count` elements that are written out, with what they are cast from."""
        return (max(2, at.element) + self._cast_from(at)) * count

    def kept(self, tensor: str, size: int) -> tuple[Save, ...]:
        """The input of a product, `size` bytes, if it is kept."""
        return (Save(tensor, size),) if self.keeps_inputs else ()


LATEST = FourBits()
"""as bitsandbytes has been since 0.43.2, with weights quantised in the type of the products"""


@dataclass(frozen=True, slots=True)
class FrozenLinear(Linear):
    """A `Linear` that is not trained; see the module's text."""

    trainable: bool = False
    storage: str = ""
    """nf4 | nf4-dq | int8 | fp8 | nvfp4 | '' (the precision's)"""
    adapters: tuple[Adapter, ...] = ()
    four_bits: FourBits = LATEST
    """of weights in nf4"""

    def parameters(self) -> tuple[Parameter, ...]:
        """The base's weights and biases, then the adapters' A and B."""
        base = (replace(p, storage=self.storage if len(p.shape) == 2 else "") for p in Linear.parameters(self))
        row, sharded = self.split == "row", self.split != "replicated"
        pairs = (
            (
                Parameter(f"{a.name}.lora_A.weight", (a.rank, self.in_features), 1 if row else None, partial=sharded and not row),
                Parameter(f"{a.name}.lora_B.weight", (a.out_features, a.rank), 0 if sharded and not row else None, partial=row),
            )
            for a in self.adapters
        )
        lengths = tuple(Parameter(f"{a.name}.lora_magnitude_vector.weight", (a.out_features,)) for a in self.adapters if a.magnitude)
        return (*base, *(parameter for pair in pairs for parameter in pair), *lengths)

    def training_work(self, at: Workload) -> Work:
        """The base's two products, reading dequantised weights where they are quantised, and the adapters' six."""
        work = kept(at, Linear.training_work(self, at), (*self.inputs, self.output))
        if self.storage == INT8:
            work = self._eight_bits(work, at)
        elif self.storage in FORMATS:
            work = self._dequantised(work, at)
        for adapter in self.adapters:
            work = self._adapted(work, adapter, at)
            if adapter.magnitude:
                work = self._scaled(work, adapter, at)
        return work

    def _entering(self, at: Workload) -> int:
        """Elements of the input as this rank keeps it."""
        if self.split == "row":
            return rows(at, self.split, self.per_sample) * shard(self.in_features, at)
        return (at.batch if self.per_sample else at.local_tokens) * self.in_features

    def _dequantised(self, work: Work, at: Workload) -> Work:
        """Every matrix is written out before its product, forward and again backward, and dropped behind it."""
        counts = [p.local_count(at.tensor) for p in Linear.parameters(self) if len(p.shape) == 2]
        kernels = [kernel for count in counts for kernel in self.four_bits.kernels(count, self.storage, at)]
        held = self.four_bits.held(max(counts), at)
        return work._replace(
            forward=(*kernels, *work.forward),
            backward_input=(*kernels, *work.backward_input) if work.backward_input else (),
            saves=(*work.saves, *self.four_bits.kept(self.inputs[0], self._entering(at) * at.element)),
            forward_temporary=work.forward_temporary + held,
            backward_temporary=work.backward_temporary + held * bool(work.backward_input),
        )

    def _eight_bits(self, work: Work, at: Workload) -> Work:
        """LLM.int8(): the input is quantised for every weight, the product is in int8; backward the weight is written out in 16 bits."""
        m = rows(at, self.split, self.per_sample)
        k = shard(self.in_features, at) if self.split == "row" else self.in_features
        outs = [out if self.split in ("replicated", "row") else shard(out, at) for out in self.out_features]
        element, cast = max(2, at.element), 0 if at.dtype == "fp16" else at.element + 2
        forward: list[Kernel] = []
        for out in outs:
            forward += [
                Memory((cast + SEARCH + CAST_ROWS) * m * k, launches=6 if cast else 5),
                Gemm(m, out, k, dtype="int8", element=1),
                Memory((WIDE + SCALED + cast) * m * out, launches=2 if cast else 1),
            ]
        products = [index for index, kernel in enumerate(work.forward) if isinstance(kernel, Gemm)]
        before, behind = work.forward[: products[0]], work.forward[products[-1] + 1 :]
        back = tuple(Memory((3 + 2 * element) * out * k, launches=2) for out in outs)
        held = max((cast and 2) + 4, *(1 + (4 + (cast and 2)) * out / k for out in outs)) * m * k
        return work._replace(
            forward=(*before, *forward, *behind),
            backward_input=(*back, *work.backward_input) if work.backward_input else (),
            saves=(*work.saves, Save(self.inputs[0], self._entering(at) * at.element)),
            forward_temporary=work.forward_temporary + round(held),
            backward_temporary=work.backward_temporary + element * max(outs) * k * bool(work.backward_input),
        )

    def _adapted(self, work: Work, adapter: Adapter, at: Workload) -> Work:
        m, r = rows(at, self.split, self.per_sample), adapter.rank
        n = adapter.out_features if self.split in ("replicated", "row") else shard(adapter.out_features, at)
        k = shard(self.in_features, at) if self.split == "row" else self.in_features
        entering = self._entering(at)
        wide, bits = adapter.fp32 and not adapter.slice, self.storage in FORMATS
        around = beside(at, AdapterSizes(entering, m * k, m * n), fp32=wide, quantised=bits, dropout=adapter.dropout)
        e, dtype = around.element, around.dtype
        first = not adapter.slice or adapter == self.adapters[0]
        name = f"{self.name}.{adapter.name}"
        saves: tuple[Save, ...] = (Save(self.inputs[0], entering * e, "weight"),)
        if around.own_input:
            saves = (Save(f"{self.name}.input_fp32" if at.compiled else f"{name}.input", entering * e, "weight"),)
        if adapter.dropout:
            own = f"{self.name}.slices" if adapter.slice else name
            saves = (Save(f"{own}.dropped", entering * e, "weight"), Save(f"{own}.mask", entering))
        saves += (Save(f"{name}.lora_A", m * r * e, "weight"),)
        saves += (Save(f"{name}.lora_B", m * n * e),) if adapter.slice else ()
        one_cast = around.own_input and at.compiled and adapter != self.adapters[0] and not adapter.dropout
        before = around.entering if first and not one_cast else ()
        returning = around.returning if first else around.returning[-1:]
        forward = (*before, Gemm(m, r, k, dtype=dtype, element=e), Gemm(m, n, r, dtype=dtype, element=e), *around.leaving)
        products = Gemm(m, r, n, dtype=dtype, element=e), Gemm(m, k, r, dtype=dtype, element=e)
        weight = (
            Gemm(n, r, m, dtype=dtype, element=e, weight_gradient=True),
            Gemm(r, k, m, dtype=dtype, element=e, weight_gradient=True),
        )
        return work._replace(
            forward=(*work.forward, *forward),
            backward_input=(*work.backward_input, *around.gradient, *products, *returning),
            backward_weight=(*work.backward_weight, *weight),
            saves=(*work.saves, *(save for save in saves if save not in work.saves)),
            forward_temporary=max(work.forward_temporary, around.forward_held),
            backward_temporary=max(work.backward_temporary, around.backward_held),
        )

    def _scaled(self, work: Work, adapter: Adapter, at: Workload) -> Work:
        """DoRA's part beside one weight, on one tensor rank; `work` has the adapter's sum and scaling already, which are part of it here.

        Forward, element by element of the output: base x (m / norm - 1), B A x x m / norm, the sum of both and that of all (2 + 2 + 3 + 3,
        of which the adapter's sum is 3). Backward: the gradient of the base's output and its sum (2 + 3), of B A x (2), and of m for both
        terms (3 + 1 each).
        """
        m, n, k, e, r = rows(at, self.split, self.per_sample), adapter.out_features, self.in_features, at.element, adapter.rank
        bits = self.storage in FORMATS
        around = beside(at, AdapterSizes(m * k, m * k, m * n), fp32=adapter.fp32, quantised=bits, dropout=adapter.dropout)
        dtype, p = around.dtype, around.element
        w = FP32 if around.own_input else e  # of the trained lengths and of what they scale
        eye = FP32 if at.autocast else p
        stored: tuple[Kernel, ...] = self.four_bits.kernels(n * k, self.storage, at) if self.storage else ()
        stored += (widened(n * k, e),) if w > e else ()
        again: tuple[Kernel, ...] = (Gemm(m, n, k, dtype=dtype, element=p),) if adapter.dropout else ()
        back: tuple[Kernel, ...] = (Gemm(m, k, n, dtype=dtype, element=p), Memory(3.0 * m * k * w)) if adapter.dropout else ()
        unbiased = Memory(2.0 * m * n * e) if self.bias and not adapter.dropout and not at.fused else Memory(0, launches=0)
        norm: tuple[Kernel, ...] = (
            Memory((eye + (eye + e) * at.autocast) * k * k, launches=2 + at.autocast),  # the identity
            Gemm(k, r, k, dtype=dtype, element=p),
            Gemm(k, n, r, dtype=dtype, element=p),
            *stored,
            Memory((2.0 if at.fused else 6.0) * n * k * w, launches=1 if at.fused else 3),
        )
        forward = Memory(0, launches=0) if at.fused else Memory(7.0 * m * n * w, launches=3)
        backward = Memory((5.0 if at.fused else 15.0) * m * n * w, launches=1 if at.fused else 7)
        saves: tuple[Save, ...] = (
            Save(f"{self.name}.{adapter.name}.base", m * n * (p if adapter.dropout else e)),
            Save(f"{self.name}.{adapter.name}.lora_result", m * n * p),
        )
        copied = self.storage or w > e
        if copied and adapter.dropout:
            saves += (Save(f"{self.name}.{adapter.name}.dequantised", n * k * max(2, p)),)
        held = eye * k * k + (3 * w + (max(2, e) if copied else 0)) * n * k
        return work._replace(
            forward=(*work.forward, *norm, *again, unbiased, forward),
            backward_input=(backward, *work.backward_input, *back),
            saves=(*work.saves, *saves),
            forward_temporary=max(work.forward_temporary, held, 3 * m * n * w),
            backward_temporary=max(work.backward_temporary, 2 * m * n * w),
        )


# frozen weights in four and in eight bits


INT8 = "int8"
SEARCH, CAST_ROWS = 9, 3
"""LLM.int8(), bytes per element of the input: |a| (2 + 2), its comparison (2 + 1), any of it (1), any of a column (1); rows (2 + 1)"""
WIDE, SCALED = 2, 6
"""and of the output: what a 32-bit integer has beyond the product's 16 bits (`Gemm.bytes`); its scaling (4 + 2)"""
BLOCK = 64
"""elements per scale (bitsandbytes, ``functional.quantize_4bit``)"""
SCALE_BLOCK = 256
"""scales per scale of scales"""
FORMATS = ("nf4", "nf4-dq", INT8)
AS_READ = ("fp8", "nvfp4")
"""frozen weights in the form in which low-precision products read them"""
WRITTEN = {"fp16": 2, "bf16": 2, "fp32": 4}
"""bytes of an element that is written out"""
DEQUANTISATION_TRAFFIC = 1.8
"""bitsandbytes' dequantisation takes about 1.8 times as long as its bytes at the streaming rate: Lightning-AI/litgpt,
tutorials/resource-tables.md, LoRA of Llama 2 on an A100 40 GB, bf16 against nf4, per 1000 iterations of forward and backward:
7B 141.6 -> 220.8 s = 6.0 ps per element, 13B 191.4 -> 382.8 s = 7.4 ps. Lightning quantises fp16 weights beside bf16 products: the cast's
4 B take 3.1 ps at 0.82 x 1555 GB/s; the other 2.9 and 4.3 ps are 1.4 and 2.1 times the 2.0 ps of 2.56 B."""


def stored_bytes(count: int, storage: str, scales: int = 0) -> int:
    """Bytes of `count` quantised elements with their scales [B]; in int8 there are `scales`, one for each row.

    >>> stored_bytes(64 * 256, "nf4") * 8 / (64 * 256)
    4.5
    >>> stored_bytes(64 * 256, "nf4-dq") * 8 / (64 * 256)
    4.126953125
    >>> stored_bytes(64 * 256, "int8", scales=64) - 64 * 256
    256
    """
    if storage == INT8:
        return count + 4 * scales
    scales = -(-count // BLOCK)
    packed = -(-count // 2)
    return packed + (4 * scales if storage == "nf4" else scales + 4 * -(-scales // SCALE_BLOCK))


def dequantisation(count: int, storage: str, element: int) -> Memory:
    """The kernels that write `count` elements of `element` bytes from their quantised form; the product reads those."""
    traffic = stored_bytes(count, storage) + element * count
    return Memory(DEQUANTISATION_TRAFFIC * traffic, launches=1 if storage == "nf4" else 2)


# what adapters may stand beside, under the names that people write: parsim's, Hugging Face's, PEFT's, torchtune's, litgpt's


ALL_LINEAR = "all-linear"
"""every linear layer except the language-model head (PEFT's word)"""
_QUERY = ("query", "q", "q_proj", "query_proj", "wq")
_KEY = ("key", "k", "k_proj", "key_proj", "wk")
_VALUE = ("value", "v", "v_proj", "value_proj", "wv")
_FUSED = ("query_key_value", "qkv", "qkv_proj", "c_attn", "Wqkv", "in_proj")
_OUTPUT = ("attention_output", "o", "o_proj", "out_proj", "output_proj", "projection", "c_proj", "wo")
GATE = ("gate", "gate_proj", "w1", "mlp")
UP = ("up", "up_proj", "w3", "mlp")
_SINGLE_UP = ("mlp_up", "up", "up_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h", "mlp")
DOWN = ("mlp_down", "down", "down_proj", "w2", "fc2", "c_proj", "dense_4h_to_h", "mlp")
_HEAD = ("lm_head", "head", "output")
_SHARED = ("shared_expert", "shared_experts")
"""modules that every token visits beside experts: ``shared_expert.gate_proj`` names a layer of theirs"""


class Target(NamedTuple):
    """A weight, or a slice of a fused one, that can have an adapter."""

    name: str
    """the weight's parameter name, or NAME.query for a slice"""
    words: tuple[str, ...]
    """what it may be called; the first two are shown in messages"""
    out_features: int
    whole: bool = True
    """not a slice of a fused weight"""
    linear: bool = True
    """all-linear means it too"""


def targets_of(linear: Linear, model: Model) -> tuple[Target, ...]:
    """Everything in one operator that an adapter can stand beside.

    A fused query-key-value weight is one target, or (as in loralib's MergedLinear and litgpt) three slices.
    """
    outputs = linear.out_features
    names = linear.parameter_names or ((linear.name,) if len(outputs) == 1 else tuple(f"{linear.name}.{i}" for i in range(len(outputs))))
    words = _words(linear)
    whole = tuple(
        Target(name, tuple(dict.fromkeys((*word, name))), out, linear=linear.split != "vocab")
        for name, word, out in zip(names, words, outputs, strict=True)
    )
    if linear.name != "query_key_value" or len(outputs) > 1 or linear.parameter_names:
        return whole
    widths = (model.heads * model.head_dim, *(model.kv_heads * model.head_dim,) * 2)
    slices = (
        Target(f"{linear.name}.{word[0]}", word, width, whole=False) for word, width in zip((_QUERY, _KEY, _VALUE), widths, strict=True)
    )
    return (*whole, *slices)


def _words(linear: Linear) -> tuple[tuple[str, ...], ...]:
    """Other names of each weight of an operator."""
    several = len(linear.out_features) > 1
    if linear.parameter_names == ("query",):  # of a layer that reads keys and values of another
        return ((*_QUERY, *_FUSED[:2]),)
    if linear.name == "query_key_value":
        return tuple((*word, *_FUSED[:2]) for word in (_QUERY, _KEY, _VALUE)[: len(linear.out_features)]) if several else (_FUSED,)
    if linear.name == "mlp_up":
        return ((*GATE, "mlp_up"), (*UP, "mlp_up")) if several else (_SINGLE_UP,)
    if linear.name.endswith("shared_up_projection") and several:
        return _shared(GATE), _shared(UP)
    if linear.name.endswith(("shared_up_projection", "shared_down_projection")):
        return (_shared(UP if "up" in linear.name.rpartition(".")[2] else DOWN),)
    known = {"attention_output": _OUTPUT, "attention_gate_projection": ("attention_gate", "g_proj"), "mlp_down": DOWN, "lm_head": _HEAD}
    return (known.get(linear.name, ()),) if not several else ((linear.name,),) * len(linear.out_features)


def _shared(words: tuple[str, ...]) -> tuple[str, ...]:
    """Names of a layer of a shared expert."""
    return (*words, *(f"{module}.{word}" for module in _SHARED for word in words))


def matching(word: str, targets: Sequence[Target]) -> list[Target]:
    """The targets that `word` names."""
    if word == ALL_LINEAR:
        return [target for target in targets if target.whole and target.linear]
    return [target for target in targets if word in target.words]


def known_names(targets: Sequence[Target]) -> list[str]:
    """What may be written, each target once."""
    return list(dict.fromkeys((ALL_LINEAR, *(target.words[0] for target in targets))))

"""Norms. Traffic as in `parsim.model.elementwise`; they are wholly part of the backward-input pass."""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import ROWS_SCALED, SPREAD, WEIGHED, WIDENED, Memory
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.workload import Split, Workload, elements, rows


def _norm_traffic(size: int, at: Workload, *, trainable: bool) -> tuple[Memory, Memory]:
    """Kernels of a norm whose input has `size` bytes, forward and backward.

    PyTorch's (aten/src/ATen/native/cuda/layer_norm_kernel.cu) and apex's first ones (csrc/layer_norm_cuda_kernel.cu) read the input for
    the statistics and once more to scale it, and in backward input and gradient for two sums and once more; the parameters' gradients
    read both again: 3 and 7 passes. Kernels that keep a row on the chip (apex FastLayerNorm, Transformer Engine) read once: 2 and 3.
    Published: 4096 x 8192 in fp32 takes PyTorch 258 us and 572 us on an A100 of 2039 GB/s (linkedin/Liger-Kernel,
    benchmark/data/all_benchmark_data.csv), 0.77 and 0.81 of that bandwidth; apex's 75 and 176 us became 54 and 87 us with
    FastLayerNorm (NVIDIA/apex pull request 1037).
    """
    if not at.norm_reads_twice:
        return Memory(2 * size), Memory(3 * size)
    return Memory(3 * size), Memory(7 * size, launches=2) if trainable else Memory(5 * size)


@dataclass(frozen=True, slots=True)
class LayerNorm(Layer):
    """Keeps its input and two fp32 statistics per row (8 B)."""

    hidden: int
    bias: bool = True
    split: Split = "replicated"
    selective: str = "norm"
    per_sample: bool = False
    trainable: bool = True
    weights: bool = True
    wide: bool = False
    """on an fp32 copy; with weights spelled out in Python (transformers' OlmoLayerNorm, CohereLayerNorm)"""

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight and bias [hidden]."""
        if not self.weights:
            return ()
        weight = Parameter(f"{self.name}.weight", (self.hidden,), trainable=self.trainable)
        return (weight, Parameter(f"{self.name}.bias", (self.hidden,), trainable=self.trainable)) if self.bias else (weight,)

    def training_work(self, at: Workload) -> Work:
        """One kernel forward; see `_norm_traffic`."""
        size = elements(at, self.hidden, self.split, self.per_sample) * at.element
        forward, backward = _norm_traffic(size * 4 // at.element if at.wide_stream else size, at, trainable=self.trainable and self.weights)
        if self.wide and not at.fused:
            return self._in_fp32(at, size)
        kept = Save(self.inputs[0], 4 * size // at.element if at.wide_stream else size)
        return Work(
            forward=(forward,),
            backward_input=(backward,),
            output=size,
            input_gradients=(size,),
            saves=(kept, Save(f"{self.name}.statistics", 8 * rows(at, self.split, self.per_sample))),
        )

    def _in_fp32(self, at: Workload, size: int) -> Work:
        """A cast, the norm, and a cast back."""
        count, statistics = size // at.element, rows(at, self.split, self.per_sample)
        copy = Save(self.inputs[0], size) if at.element == 4 else Save(f"{self.name}.fp32", 4 * count)
        saves: tuple[Save, ...] = (copy, Save(f"{self.name}.statistics", 8 * statistics))
        forward, backward = Memory(12 * count + 2 * size, launches=3), Memory(20 * count + 2 * size, launches=3)
        if self.weights:
            saves = spelled_out(self.name, count, self.hidden, statistics)
            forward, backward = Memory(48 * count + 2 * size, launches=10), Memory(112 * count + 2 * size, launches=18)
        work = Work((forward,), (backward,), output=size, input_gradients=(size,), saves=saves)
        return work._replace(forward_temporary=4 * count, backward_temporary=8 * count)


def spelled_out(name: str, count: int, weights: int, statistics: int) -> tuple[Save, ...]:
    """What a LayerNorm of `count` elements keeps that is written in Python, all in fp32.

    The distance from the mean twice, for its square and for its quotient; the quotient; the root; the weights.
    """
    each = tuple(Save(f"{name}.{word}", 4 * count) for word in ("centred", "distance", "normalised"))
    return (*each, Save(f"{name}.root", 4 * statistics), Save(f"{name}.weights", 4 * weights))


def eager_rms_norm(
    count: int, element: int, norms: int = 1, *, wide_weight: bool = False, weights: bool = True
) -> tuple[tuple[Memory, ...], tuple[Memory, ...]]:
    """Kernels of `norms` RMSNorms in Python on `count` elements in all, forward and backward, the weight's gradient included.

    Forward (transformers ``models/llama/modeling_llama.py``, LlamaRMSNorm): cast to fp32 (read `element`, written 4 B), square (8),
    mean (4), epsilon, root, product with it (8), cast back, product with the weight (2 `element`); `wide_weight`: that product (8)
    before the cast back. Backward: the product with the weight, the gradient times what it multiplied and its sum over rows, a cast,
    two products with input and root, a sum along rows, three small ones, its spread over the row (4), a copy, twice the input, their
    product and the sum of both branches (8 + 8 + 12 + 12), a cast back. The casts to fp32 and what is multiplied or spread row by row or
    column by column are bound by what the multiprocessors issue. Without `weights` the products with them
    are missing. 8,192 x 4,096 on an H200: 443 and 970 us (PyTorch 2.11, November 2026).
    """
    narrow = element < 4
    weight, scaled = (8, ROWS_SCALED) if wide_weight or not narrow else (2 * element, WEIGHED)
    product = 12 if wide_weight or not narrow else 3 * element  # gradient times what the weight multiplied
    cast, widened = (4 + element, WIDENED) if narrow else (0, 0.0)
    if not weights:
        weight, scaled, product = 0, 0.0, 0
    forward = (
        Memory((cast + 8 + weight) * count, launches=(1 + weights + narrow) * norms, vector=(widened + ROWS_SCALED + scaled) * count),
        Memory((12 + cast) * count, launches=(4 + narrow) * norms),
    )
    issued = widened + scaled + ROWS_SCALED + SPREAD
    backward = (
        Memory((cast + weight + 8 + 4) * count, launches=(2 + weights + narrow) * norms, vector=issued * count),
        Memory((product + product // 3 + 12 + 4 + 40 + cast) * count, launches=(9 + 2 * weights + narrow) * norms),
    )
    return forward, backward


@dataclass(frozen=True, slots=True)
class RMSNorm(Layer):
    """Root-mean-square norm (1910.07467).

    A fused kernel keeps its input and one fp32 statistic per row. The Python formula of Hugging Face's Llama keeps the fp32
    copy of the input, the normalised tensor and the statistic (in fp32 the copy is the input itself). Gemma's (`offset`)
    multiplies by 1 + weight before it casts back: the normalised tensor is kept in fp32, and so is that sum (transformers
    ``models/gemma/modeling_gemma.py``; both equal what autograd saves, to the byte). T5's (`keeps_input`) takes the statistic from an fp32
    copy and scales the input itself, so that both are kept.
    """

    hidden: int
    offset: bool = False
    keeps_input: bool = False
    split: Split = "replicated"
    selective: str = "norm"
    trainable: bool = True
    wide: bool = False
    """it multiplies by the weight before it casts back, as with `offset`, but by the weight itself (transformers' Olmo2RMSNorm)"""
    weights: bool = True
    by_power: bool = False
    """mean ** -0.5 keeps the mean beside the root, and `wide` weights of 16 bits are copied to fp32 (transformers' Gemma4RMSNorm)"""
    groups: int = 1
    """a token has so many rows of `hidden` features, which share the weight (Gemma 4's per-layer inputs)"""

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight [hidden]."""
        if not self.weights:
            return ()
        return (Parameter(f"{self.name}.weight", (self.hidden,), trainable=self.trainable),)

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways; unfused, see `eager_rms_norm`."""
        count = self.groups * elements(at, self.hidden, self.split)
        size, statistics = count * at.element, 4 * self.groups * rows(at, self.split)
        if at.fused:
            kernels = _norm_traffic(size, at, trainable=self.trainable and self.weights)
            forward: tuple[Memory, ...] = kernels[:1]
            backward: tuple[Memory, ...] = kernels[1:]
            saves: tuple[Save, ...] = (Save(self.inputs[0], size),)
            temporary = 0
        else:
            temporary = 4 * count
            wide = self.offset or self.wide
            forward, backward = eager_rms_norm(count, 4 if at.wide_stream else at.element, wide_weight=wide, weights=self.weights)
            copy = Save(self.inputs[0], size) if at.element == 4 else Save(f"{self.name}.fp32", 4 * count)
            saves = (copy,)
            if self.keeps_input and at.element < 4:
                saves = (copy, Save(self.inputs[0], size))
            if self.by_power:
                saves += (Save(f"{self.name}.mean", statistics),)
                saves += (Save(f"{self.name}.factor", 4 * self.hidden),) if self.wide and self.weights and at.weight_element < 4 else ()
            if self.offset:
                saves = (copy, Save(f"{self.name}.factor", 4 * self.hidden))
            if self.trainable and self.weights:  # only the weight's gradient needs the normalised tensor
                saves += (Save(f"{self.name}.normalised", 4 * count if wide or at.wide_stream else size),)
            elif self.weights:  # no product with it, no sum over rows
                product = 16 * count if wide or at.wide_stream else 4 * size
                issued, streamed = backward
                backward = (issued, Memory(streamed.bytes - product, launches=streamed.launches - 2))
        saves += (Save(f"{self.name}.statistics", statistics),)
        return Work(
            forward,
            backward,
            output=size,
            input_gradients=(size,),
            saves=saves,
            forward_temporary=temporary,
            backward_temporary=2 * temporary,
        )

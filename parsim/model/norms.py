"""Norms. Traffic as in `parsim.model.elementwise`; they are wholly part of the backward-input pass."""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Memory
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
        forward, backward = _norm_traffic(size, at, trainable=self.trainable and self.weights)
        if self.wide and not at.fused:
            return self._in_fp32(at, size)
        return Work(
            forward=(forward,),
            backward_input=(backward,),
            output=size,
            input_gradients=(size,),
            saves=(Save(self.inputs[0], size), Save(f"{self.name}.statistics", 8 * rows(at, self.split, self.per_sample))),
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

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight [hidden]."""
        return (Parameter(f"{self.name}.weight", (self.hidden,), trainable=self.trainable),)

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways; unfused, about nine passes forward and nineteen backward in fp32."""
        count = elements(at, self.hidden, self.split)
        size = count * at.element
        if at.fused:
            forward, backward = _norm_traffic(size, at, trainable=self.trainable)
            saves: tuple[Save, ...] = (Save(self.inputs[0], size),)
            temporary = 0
        else:
            temporary = 4 * count
            forward, backward = Memory(28 * count + 4 * size, launches=6), Memory(60 * count + 8 * size, launches=12)
            copy = Save(self.inputs[0], size) if at.element == 4 else Save(f"{self.name}.fp32", 4 * count)
            saves = (copy,)
            if self.keeps_input and at.element < 4:
                saves = (copy, Save(self.inputs[0], size))
            if self.offset:
                forward, backward = Memory(36 * count + 2 * size, launches=8), Memory(84 * count + 2 * size, launches=14)
                saves = (copy, Save(f"{self.name}.factor", 4 * self.hidden))
            if self.trainable:  # only the weight's gradient needs the normalised tensor
                saves += (Save(f"{self.name}.normalised", 4 * count if self.offset or self.wide else size),)
            else:  # no product with it, no sum over rows
                backward = Memory(backward.bytes - 4 * size, launches=backward.launches - 2)
        saves += (Save(f"{self.name}.statistics", 4 * rows(at, self.split)),)
        return Work(
            (forward,),
            (backward,),
            output=size,
            input_gradients=(size,),
            saves=saves,
            forward_temporary=temporary,
            backward_temporary=2 * temporary,
        )

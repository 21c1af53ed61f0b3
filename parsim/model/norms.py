"""Normalisations over the hidden dimension: wholly part of the backward-input pass."""

from __future__ import annotations

from dataclasses import dataclass

from parsim.kernel import Memory
from parsim.model.local import elements, kept, rows
from parsim.model.model import Parameter, Save, Split, Work, Workload


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Keeps its input and two fp32 statistics per row (8 B)."""

    name: str
    inputs: tuple[str, ...]
    output: str
    hidden: int
    bias: bool = True
    split: Split = "replicated"
    selective: str = "norm"
    per_sample: bool = False
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight and bias [hidden]."""
        weight = Parameter(f"{self.name}.weight", (self.hidden,), trainable=self.trainable)
        return (weight, Parameter(f"{self.name}.bias", (self.hidden,), trainable=self.trainable)) if self.bias else (weight,)

    def work(self, at: Workload) -> Work:
        """One kernel forward; backward reads input and gradient a second time for the parameters unless fused or frozen."""
        size = elements(at, self.hidden, self.split, self.per_sample) * at.element
        work = Work(
            forward=(Memory(2 * size),),
            backward_input=(Memory(3 * size) if at.fused or not self.trainable else Memory(5 * size, launches=2),),
            output=size,
            input_gradients=(size,),
            saves=(Save(self.inputs[0], size), Save(f"{self.name}.statistics", 8 * rows(at, self.split, self.per_sample))),
        )
        return kept(at, work, (*self.inputs, self.output))


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Root-mean-square norm (1910.07467).

    A fused kernel keeps its input and one fp32 statistic per row. The Python formula of Hugging Face's Llama keeps the fp32
    copy of the input, the normalised tensor and the statistic (in fp32 the copy is the input itself). Gemma's (`offset`)
    multiplies by 1 + weight before it casts back: the normalised tensor is kept in fp32, and so is that sum (transformers
    ``models/gemma/modeling_gemma.py``; both equal what autograd saves, to the byte).
    """

    name: str
    inputs: tuple[str, ...]
    output: str
    hidden: int
    offset: bool = False
    split: Split = "replicated"
    selective: str = "norm"
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight [hidden]."""
        return (Parameter(f"{self.name}.weight", (self.hidden,), trainable=self.trainable),)

    def work(self, at: Workload) -> Work:
        """Memory-bound both ways; unfused, about nine passes forward and nineteen backward in fp32."""
        count = elements(at, self.hidden, self.split)
        size = count * at.element
        if at.fused:
            forward, backward = Memory(2 * size), Memory(3 * size)
            saves: tuple[Save, ...] = (Save(self.inputs[0], size),)
            temporary = 0
        else:
            temporary = 4 * count
            forward, backward = Memory(28 * count + 4 * size, launches=6), Memory(60 * count + 8 * size, launches=12)
            copy = Save(self.inputs[0], size) if at.element == 4 else Save(f"{self.name}.fp32", 4 * count)
            saves = (copy,)
            if self.offset:
                forward, backward = Memory(36 * count + 2 * size, launches=8), Memory(84 * count + 2 * size, launches=14)
                saves = (copy, Save(f"{self.name}.factor", 4 * self.hidden))
            if self.trainable:  # only the weight's gradient needs the normalised tensor
                saves += (Save(f"{self.name}.normalised", 4 * count if self.offset else size),)
            else:  # no product with it, no sum over rows
                backward = Memory(backward.bytes - 4 * size, launches=backward.launches - 2)
        saves += (Save(f"{self.name}.statistics", 4 * rows(at, self.split)),)
        work = Work(
            (forward,),
            (backward,),
            output=size,
            input_gradients=(size,),
            saves=saves,
            forward_temporary=temporary,
            backward_temporary=2 * temporary,
        )
        return kept(at, work, (*self.inputs, self.output))

"""Operators on images [channels, height, width]; an image is one row of the workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parsim.kernel import Gemm, Kernel, Memory
from parsim.model.model import Layer, Parameter, Save, Work
from parsim.model.workload import Split, Workload


def window_count(size: int, kernel: int, stride: int, padding: int, dilation: int = 1, ceil: bool = False) -> int:
    """Positions of a window along one axis."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    return (-(-room // stride) if ceil else room // stride) + 1


@dataclass(frozen=True, slots=True)
class Conv2d(Layer):
    """A convolution as its implicit matrix product; keeps its input. `size` is the input's (height, width)."""

    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = True
    split: Split = "replicated"
    selective: str = ""
    trainable: bool = True

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of the output."""
        height, width = (window_count(*axis) for axis in zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True))
        return height, width

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight [out, in / groups, height, width] and bias [out]."""
        weight = Parameter(
            f"{self.name}.weight", (self.out_channels, self.in_channels // self.groups, *self.kernel), trainable=self.trainable
        )
        return (weight, Parameter(f"{self.name}.bias", (self.out_channels,), trainable=self.trainable)) if self.bias else (weight,)

    def training_work(self, at: Workload) -> Work:
        """2 b Cout Ho Wo (Cin/g) K^2 operations forward and for each gradient."""
        height, width = self.output_size
        positions = at.batch * height * width
        reduced, out = self.in_channels // self.groups * self.kernel[0] * self.kernel[1], self.out_channels // self.groups
        source = at.batch * self.in_channels * self.size[0] * self.size[1] * at.element
        output = positions * self.out_channels * at.element
        weight: tuple[Kernel, ...] = ()
        if self.trainable:
            weight = (Gemm(out, reduced, positions, self.groups, at.dtype, at.element, weight_gradient=True, layout="NT"),)
            weight += (Memory(output),) if self.bias else ()
        return Work(
            (Gemm(positions, out, reduced, self.groups, at.dtype, at.element),),
            (Gemm(positions, reduced, out, self.groups, at.dtype, at.element, layout="NN"),),
            weight,
            output,
            (source,),
            (Save(self.inputs[0], source, "weight"),) if self.trainable else (),
        )


@dataclass(frozen=True, slots=True)
class BatchNorm(Layer):
    """Per-channel norm over batch and image; keeps its input and two fp32 statistics per channel."""

    channels: int
    size: tuple[int, int] = (1, 1)
    split: Split = "replicated"
    selective: str = "norm"
    trainable: bool = True

    def parameters(self) -> tuple[Parameter, ...]:
        """Weight and bias; running mean, running variance and a counter as buffers."""
        shape = (self.channels,)
        return (
            Parameter(f"{self.name}.weight", shape, trainable=self.trainable),
            Parameter(f"{self.name}.bias", shape, trainable=self.trainable),
            Parameter(f"{self.name}.running_mean", shape, trainable=False, buffer=True, element=4),
            Parameter(f"{self.name}.running_var", shape, trainable=False, buffer=True, element=4),
            Parameter(f"{self.name}.num_batches_tracked", (), trainable=False, buffer=True, element=8),
        )

    def training_work(self, at: Workload) -> Work:
        """Two readings of the input forward (statistics, result), two of input and gradient backward."""
        size = at.batch * self.channels * self.size[0] * self.size[1] * at.element
        return Work(
            (Memory(3 * size, launches=2),),
            (Memory(5 * size, launches=2),),
            output=size,
            input_gradients=(size,),
            saves=(
                Save(self.inputs[0], size),
                Save(f"{self.name}.mean", 4 * self.channels),
                Save(f"{self.name}.inverse_deviation", 4 * self.channels),
            ),
        )


@dataclass(frozen=True, slots=True)
class Pool(Layer):
    """max | average pooling over windows. Max keeps its input and the int64 indices of its output, average its input."""

    channels: int
    size: tuple[int, int]
    output_size: tuple[int, int]
    kind: Literal["max", "average", "global"] = "max"
    """global: the mean of the whole image, which keeps nothing"""
    split: Split = "replicated"
    selective: str = ""

    def training_work(self, at: Workload) -> Work:
        """Memory-bound both ways."""
        source = at.batch * self.channels * self.size[0] * self.size[1] * at.element
        count = at.batch * self.channels * self.output_size[0] * self.output_size[1]
        output, indices = count * at.element, 8 * count if self.kind == "max" else 0
        saves: tuple[Save, ...] = () if self.kind == "global" else (Save(self.inputs[0], source),)
        if indices:
            saves += (Save(f"{self.name}.indices", indices),)
        kernel = Memory(source + output + indices)
        return Work((kernel,), (kernel,), (), output, (source,), saves)

"""A module's operators as a tracer lists them: names, shapes and arguments, without the library that made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Ref(NamedTuple):
    """An argument that is a tensor."""

    name: str


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor of the trace."""

    shape: tuple[int, ...]
    element: int
    """bytes per element"""
    floating: bool
    stride: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Elements that exist in memory: those that an expansion repeats (stride 0) once."""
        total = 1
        for size, step in zip(self.shape, self.stride or (1,) * len(self.shape), strict=True):
            total *= size if step else 1
        return total


@dataclass(frozen=True, slots=True)
class TracedNode:
    """One call."""

    name: str
    op: str
    """the operator of ATen without its overload, such as ``scaled_dot_product_attention``"""
    arguments: tuple[Any, ...]
    """as called: tensors are `Ref`, also inside tuples"""
    tensor: TensorFacts | None
    """the result; of several results, the first"""
    module: str
    """path of the innermost module, such as ``transformer.h.0.mlp``"""
    recorded: bool = True
    """False: under no_grad"""
    view: bool = False
    """the result is another view of the first argument's memory"""
    causal: bool | None = None
    """of an attention: whether its module calls itself causal; None: it says neither"""

    @property
    def refs(self) -> tuple[str, ...]:
        """Names of all tensors among the arguments."""
        return tuple(_refs(self.arguments))


def _refs(argument: Any) -> list[str]:
    if isinstance(argument, Ref):
        return [argument.name]
    if isinstance(argument, tuple):
        return [name for item in argument for name in _refs(item)]
    return []


@dataclass(frozen=True, slots=True)
class TracedParameter:
    """A parameter of the module."""

    name: str
    """its whole name in the module"""
    shape: tuple[int, ...]
    trainable: bool


@dataclass(frozen=True, slots=True)
class ModuleTrace:
    """One forward pass on a batch."""

    batch: int
    nodes: tuple[TracedNode, ...]
    parameters: Mapping[str, TracedParameter]
    """by the name of the tensor; one that the module has under several names appears under each, with one `TracedParameter.name`"""
    buffers: Mapping[str, TensorFacts]
    """and constants"""
    inputs: Mapping[str, TensorFacts]
    outputs: tuple[str, ...]
    element: int
    """bytes per element of the module's own type"""
    dtype: str
    """fp32 | fp16 | bf16"""
    parameter_count: int
    flop: tuple[int, int] = (0, 0)
    """what torch.utils.flop_counter counts, forward and backward"""
    flop_by_operator: Mapping[str, int] = field(default_factory=dict)
    tool: str = "torch"

"""Two traces with batches of different sizes, side by side: what grows with the batch, and what of it is one sample's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.interop.traced_nodes import ModuleTrace, Ref, TensorFacts, TracedNode


class ForeignShapeError(ScenarioError):
    """A tensor grows with the batch otherwise than by whole samples."""


@dataclass
class Traces:
    """The same program on two batches."""

    small: ModuleTrace
    large: ModuleTrace
    facts: dict[str, tuple[TensorFacts, TensorFacts]] = field(default_factory=dict)
    """tensor -> what it is in both"""

    def __post_init__(self) -> None:
        first, second = [(node.name, node.op) for node in self.small.nodes], [(node.name, node.op) for node in self.large.nodes]
        if first != second:
            where = next((a for a, b in zip(first, second, strict=False) if a != b), ("its end", ""))[0]
            message = f"the module runs other operators on {self.large.batch} samples than on {self.small.batch}, from {where} on"
            raise ScenarioError(Finding(message, value=where))
        for one, two in zip(self.small.nodes, self.large.nodes, strict=True):
            if one.tensor is not None and two.tensor is not None:
                self.facts[one.name] = one.tensor, two.tensor
        for name, facts in self.small.inputs.items():
            self.facts[name] = facts, self.large.inputs[name]
        for name, facts in self.small.buffers.items():
            self.facts[name] = facts, facts
        for name, parameter in self.small.parameters.items():
            self.facts[name] = (TensorFacts(parameter.shape, self.small.element, True),) * 2

    def per_sample(self, small: int, large: int, what: str) -> tuple[int, bool]:
        """A number that two batches have, for one sample; True: all samples share it.

        Errors: ForeignShapeError where it is neither.
        """
        if small == large:
            return small, True
        each, rest = divmod(large - small, self.large.batch - self.small.batch)
        if rest or each * self.small.batch != small:
            message = (
                f"{what} has {small:,} elements for {self.small.batch} samples and {large:,} for {self.large.batch}: "
                "not the same number per sample"
            )
            raise ForeignShapeError(Finding(message, value=what))
        return each, False

    def count(self, name: str) -> tuple[int, bool]:
        """Elements of a tensor for one sample."""
        small, large = self.facts[name]
        return self.per_sample(small.count, large.count, name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the smaller batch."""
        return self.facts[name][0].shape

    def rows(self, name: str, features: int) -> tuple[int, bool]:
        """Rows of `features` for one sample, also those that an expansion repeats."""
        small, large = (_product(facts.shape) // features for facts in self.facts[name])
        return self.per_sample(small, large, name)

    def images(self, name: str) -> int:
        """How many images a sample is."""
        small, large = (facts.shape[0] for facts in self.facts[name])
        images, shared = self.per_sample(small, large, name)
        if shared:
            raise ForeignShapeError(Finding(f"{name} is an image that all samples share", value=name))
        return images

    def size(self, *names: str) -> Any:
        """Tensors as a traced model writes them: elements, or bytes where the precision does not decide."""
        parts: list[Any] = []
        for name in names:
            count, shared = self.count(name)
            facts = self.facts[name][0]
            own = facts.floating and facts.element == self.small.element
            amount = count if own else count * facts.element
            unit = ("" if own else "B") + (" once" if shared else "")
            parts.append(f"{amount}{unit}" if unit else amount)
        whole = sum(part for part in parts if isinstance(part, int))
        marked = [part for part in parts if not isinstance(part, int)]
        listed = ([whole] if whole or not marked else []) + marked
        return listed[0] if len(listed) == 1 else listed


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def tensors(node: TracedNode) -> list[str]:
    """Names of the arguments that are tensors themselves, not lists of them."""
    return [argument.name for argument in node.arguments if isinstance(argument, Ref)]

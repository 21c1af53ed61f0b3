"""Ranks on a grid: which rank has which coordinates, and who forms a group along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Mesh:
    """A grid of ranks. `order` names the axes fastest varying first; `sizes` are their lengths, in that order.

    Megatron's default order is (tensor, context, data, pipeline): tensor-parallel neighbours are consecutive ranks,
    hence on one node.
    """

    order: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    def size(self, axis: str) -> int:
        """Length of one axis."""
        return self.sizes[self.order.index(axis)]

    def stride(self, axis: str) -> int:
        """Distance in rank numbers between neighbours along an axis."""
        return prod(self.sizes[: self.order.index(axis)])

    def coordinate(self, rank: int, axis: str) -> int:
        """Where `rank` stands along `axis`."""
        return rank // self.stride(axis) % self.size(axis)

    def move(self, rank: int, axis: str, coordinate: int) -> int:
        """The rank that differs from `rank` only by standing at `coordinate` along `axis`."""
        return rank + (coordinate - self.coordinate(rank, axis)) * self.stride(axis)

    def group(self, rank: int, *axes: str) -> tuple[int, ...]:
        """The ranks that share all coordinates with `rank` except along `axes`, ascending."""
        members = [rank]
        for axis in axes:
            members = [self.move(member, axis, coordinate) for member in members for coordinate in range(self.size(axis))]
        return tuple(sorted(members))

    def at(self, **coordinates: int) -> list[int]:
        """All ranks with the given coordinates, ascending."""
        ranks = [0]
        for axis, size, stride in zip(self.order, self.sizes, self._strides(), strict=True):
            chosen = [coordinates[axis]] if axis in coordinates else range(size)
            ranks = [rank + coordinate * stride for rank in ranks for coordinate in chosen]
        return sorted(ranks)

    def _strides(self) -> list[int]:
        return [prod(self.sizes[:i]) for i in range(len(self.sizes))]

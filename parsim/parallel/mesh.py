"""Ranks on a grid: which rank has which coordinates, and who forms a group along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
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
        return self._shape[axis][0]

    def stride(self, axis: str) -> int:
        """Distance in rank numbers between neighbours along an axis."""
        return self._shape[axis][1]

    @cached_property
    def _shape(self) -> dict[str, tuple[int, int]]:
        """axis -> (size, stride)"""
        return {axis: (size, prod(self.sizes[:i])) for i, (axis, size) in enumerate(zip(self.order, self.sizes, strict=True))}

    def coordinate(self, rank: int, axis: str) -> int:
        """Where `rank` stands along `axis`."""
        size, stride = self._shape[axis]
        return rank // stride % size

    def coordinates(self, axis: str) -> list[int]:
        """Where every rank stands along `axis`."""
        size, stride = self._shape[axis]
        return [rank // stride % size for rank in range(self.ranks)]

    def move(self, rank: int, axis: str, coordinate: int) -> int:
        """The rank that differs from `rank` only by standing at `coordinate` along `axis`."""
        size, stride = self._shape[axis]
        return rank + (coordinate - rank // stride % size) * stride

    def group(self, rank: int, *axes: str) -> tuple[int, ...]:
        """The ranks that share all coordinates with `rank` except along `axes`, ascending."""
        base = rank - sum(self.coordinate(rank, axis) * self.stride(axis) for axis in axes)
        return tuple(base + offset for offset in self._offsets(axes))

    def _offsets(self, axes: tuple[str, ...]) -> list[int]:
        offsets = [0]
        for axis in axes:
            size, stride = self._shape[axis]
            offsets = [offset + step * stride for offset in offsets for step in range(size)]
        return sorted(offsets)

    def at(self, **coordinates: int) -> list[int]:
        """All ranks with the given coordinates, ascending."""
        ranks = [0]
        for axis, (size, stride) in self._shape.items():
            chosen = [coordinates[axis]] if axis in coordinates else range(size)
            ranks = [rank + coordinate * stride for rank in ranks for coordinate in chosen]
        return sorted(ranks)

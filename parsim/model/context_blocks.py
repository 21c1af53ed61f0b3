"""What the attention core of one context-parallel rank consists of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from parsim.kernel import Kernel

CoreKernel = Callable[[int, int, bool, bool], Kernel]
"""(queries, keys, causal, backward) -> the fused kernel of this rank's heads"""


class CoreSizes(NamedTuple):
    """Tensors of one rank [B]."""

    query: int
    key: int
    value: int
    output: int
    statistics: int
    """fp32 log-sum-exp of each row"""

    @property
    def key_value(self) -> int:
        """What a ring passes on."""
        return self.key + self.value


class CoreBlock(NamedTuple):
    """Kernels between two messages, and those that need the second one to have arrived."""

    kernels: tuple[Kernel, ...]
    then: tuple[Kernel, ...] = ()


class SpreadCore(NamedTuple):
    """The attention core of one rank."""

    forward: tuple[CoreBlock, ...]
    backward: tuple[CoreBlock, ...]
    forward_temporary: int
    """live only while the forward runs, beyond operands, output and statistics [B]"""
    backward_temporary: int

    def with_copy(self, copy: tuple[Kernel, ...]) -> SpreadCore:
        """With `copy` of the whole output behind forward's last block, and of its gradient before backward's first."""
        if not copy:
            return self
        *before, last = self.forward
        first, *after = self.backward
        forward = (*before, CoreBlock((*last.kernels, *last.then, *copy)))
        return self._replace(forward=forward, backward=(CoreBlock((*copy, *first.kernels), first.then), *after))

    def kernels(self, *, backward: bool) -> tuple[Kernel, ...]:
        """All of one direction, in order."""
        blocks = self.backward if backward else self.forward
        return tuple(kernel for block in blocks for kernel in (*block.kernels, *block.then))

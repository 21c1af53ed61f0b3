"""What the ops of a program are, as columns: most repeat one of a few kinds, micro-batch after micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from parsim.program.program import Op, Program

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


class OpColumns:
    """Ops by number; those of one kind have the same spec."""

    def __init__(self, program: Program) -> None:
        spec = np.array(program.spec, dtype=np.int64)
        used = np.flatnonzero(np.bincount(spec, minlength=len(program.specs)))
        numbers = np.zeros(len(program.specs), dtype=np.int64)
        numbers[used] = np.arange(len(used))
        self.kind: Integers = numbers[spec]
        """number of each op's kind"""
        self.instance: Integers = program.instances()
        """micro-batch; below zero: none"""
        self.duration: Floats = np.array([one.duration for one in program.specs], dtype=np.float64)[spec]
        """[s]"""
        self.order: Integers = np.argsort(self.kind, kind="stable")
        """the ops of the first kind, then those of the second, ..."""
        self.bounds: Integers = np.concatenate(([0], np.cumsum(np.bincount(self.kind, minlength=len(used)))))
        """where in `order` each kind begins"""
        self.examples: list[Op] = [program.ops[index] for index in self.order[self.bounds[:-1]].tolist()]
        """the first op of each kind"""

    def of(self, kinds: Sequence[int]) -> Integers:
        """The ops of these kinds, ascending."""
        parts = [self.order[self.bounds[kind] : self.bounds[kind + 1]] for kind in kinds]
        if len(parts) == 1:
            return parts[0]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]), kind="stable")

    def flags(self, what: Callable[[Op], bool]) -> Flags:
        """What is true of each kind, for every op."""
        return np.array([what(op) for op in self.examples], dtype=bool)[self.kind]

    def flags_of(self, ops: Integers, what: Callable[[Op], bool]) -> Flags:
        """The same for these ops; only their kinds are asked."""
        kinds, place = np.unique(self.kind[ops], return_inverse=True)
        return np.array([what(self.examples[kind]) for kind in kinds.tolist()], dtype=bool)[place]

    def grouped(self, what: Callable[[Op], Hashable]) -> Integers:
        """Numbers that are equal where `what` says the same of two ops, for every op."""
        known: dict[Hashable, int] = {}
        return np.array([known.setdefault(what(op), len(known)) for op in self.examples], dtype=np.int64)[self.kind]

"""Which pass of which stage each kind of op belongs to, as far as its name says."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from parsim.program.program import Op
from parsim.report.plots.style import role
from parsim.simulation.op_columns import Flags, Integers

LETTERS = {"forward": "F", "backward": "B", "recompute": "B", "weight": "W"}
"""role -> the pass it belongs to"""


class PassKinds:
    """By kind of op: its role, the letter of its pass and the number of its stage; empty where there is none."""

    def __init__(self, examples: Sequence[Op]) -> None:
        self.roles: list[str] = [role(op.kind, op.name) for op in examples]
        self.letters: list[str] = [LETTERS.get(name, "") for name in self.roles]
        self.stages: list[str] = [_stage(op.name) if letter else "" for op, letter in zip(examples, self.letters, strict=True)]
        self.staged: Flags = np.array([bool(stage) for stage in self.stages], dtype=bool)
        """the name says of which stage it is"""
        passes = [(letter or name, stage) for name, letter, stage in zip(self.roles, self.letters, self.stages, strict=True)]
        self.role = _numbers(self.roles)
        """a number of each role"""
        self.of = _numbers(passes)
        """a number of each pass of each stage"""
        self.lettered: Flags = np.array([bool(letter) for letter in self.letters], dtype=bool)
        self.backward: Flags = np.array([letter == "B" for letter in self.letters], dtype=bool)
        self.unnamed: Flags = np.array([name == "recompute" for name in self.roles], dtype=bool) & ~self.staged
        """recomputation that does not say of which stage it is"""


def _numbers(values: Sequence[Hashable]) -> Integers:
    """Numbers that are equal where values are."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)


def _stage(name: str) -> str:
    """The stage in the name of an op such as ``F5 layer 17``; empty if it has none."""
    stage = name.split(" ", 1)[0][1:]
    return stage if stage.isdigit() else ""

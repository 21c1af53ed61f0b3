"""Ends of ops that are read off a run: of which ops, in which replicas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Watched:
    """The end of the last of some ops."""

    ops: Integers | None = None
    """None: all"""
    columns: Integers | None = None
    """in these columns of a `StepArrays` only; None: in all"""


WHOLE = Watched()
"""the end of the step"""

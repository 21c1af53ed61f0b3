"""Ops that take longer or shorter than others of their spec: every op gets a work of its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from parsim.errors import ParsimError
from parsim.program.program import Program
from parsim.simulation.contention import Transfers
from parsim.simulation.devices import Kernel


def scaled(program: Program, works: Sequence[Any], factors: Sequence[float], transfers: Transfers) -> list[Any]:
    """By op, its work (of those by spec: seconds, a kernel or a transfer) as many times as long as its factor says.

    Raises ParsimError unless there is one finite factor > 0 for every op.
    """
    if len(factors) != len(program.spec):
        raise ParsimError(f"{len(factors)} factors for {len(program.spec)} ops; there must be one for each")
    found: list[Any] = []
    for index, (spec, factor) in enumerate(zip(program.spec, factors, strict=True)):
        if not 0 < factor < inf:
            raise ParsimError(f"factor of {program.ops[index]!r} (={factor}) must be finite and > 0")
        work = works[spec]
        if factor == 1.0:
            found.append(work)
        elif type(work) is float:
            found.append(work * factor)
        elif type(work) is Kernel:
            found.append(Kernel(work.device, work.seconds * factor, work.rates, work.beside))
        else:
            found.append(transfers.scaled(work, factor))
    return found

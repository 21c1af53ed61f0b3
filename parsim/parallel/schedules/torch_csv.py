"""Tables of torch.distributed.pipelining (``_dump_csv``, ``_load_csv``): one row per rank, cells such as ``1F3``, ``0I2``, ``0W2``.

A lowered table (``compute_comms``) also says when messages are sent and awaited, and when FSDP gathers, frees and reduces the
parameters of a stage. parsim places messages and collectives itself: such cells are checked against the passes that they
belong to, and left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from parsim.errors import Finding
from parsim.parallel.schedules.slot import APART, Overlapped, Precedence, Schedule, Slot, SlotKind

_CELL = re.compile(r"([0-9]{1,9})(SEND_F|SEND_B|RECV_F|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)([0-9]{0,9})")
_GRADIENT = (SlotKind.FULL_BACKWARD, SlotKind.BACKWARD_INPUT)


class Communication(NamedTuple):
    """A cell that is no pass."""

    word: str
    stage: int
    micro_batch: int | None
    behind: int
    """passes of its rank before it"""
    place: tuple[int, int]
    """line and column"""


def communication(cell: str, behind: int, place: tuple[int, int]) -> Communication | None:
    """The message or collective of a cell such as ``0SEND_F1`` or ``1UNSHARD``; None for others.

    >>> communication("2RECV_B0", 5, (1, 1)).word
    'RECV_B'
    """
    match = _CELL.fullmatch(cell)
    if match is None:
        return None
    return Communication(match[2], int(match[1]), int(match[3]) if match[3] else None, behind, place)


def communication_findings(rows: Schedule, cells: Sequence[Sequence[Communication]], path: str, file: str) -> list[Finding]:
    """A finding for every message or collective that does not stand where a pass needs it.

    A stage sends behind the pass that makes what is sent, and receives before the pass that needs it; collectives are of a stage that
    the row has.
    """
    findings = []
    for row, own in zip(rows, cells, strict=True):
        position = {slot: place for place, slot in enumerate(row)}
        stages = {slot.stage for slot in row}
        findings += [
            Finding(problem, path, _text(cell), file=file, line=cell.place[0], column=cell.place[1])
            for cell in own
            if (problem := _problem(cell, position, stages))
        ]
    return findings


def _problem(cell: Communication, position: dict[Slot, int], stages: set[int]) -> str:
    if cell.word in ("UNSHARD", "RESHARD", "REDUCE_GRAD"):
        return "" if cell.stage in stages else f"{_text(cell)}: the row has no pass of stage {cell.stage}"
    if cell.micro_batch is None:
        return f"{_text(cell)}: of which micro-batch?"
    kinds = (SlotKind.FORWARD,) if cell.word.endswith("F") else _GRADIENT
    places = [place for kind in kinds if (place := position.get(Slot(kind, cell.stage, cell.micro_batch))) is not None]
    if not places:
        return f"{_text(cell)}: the row has no such pass of stage {cell.stage} and micro-batch {cell.micro_batch}"
    if cell.word.startswith("SEND") and places[0] >= cell.behind:
        return f"{_text(cell)} comes before the pass whose result it sends"
    if cell.word.startswith("RECV") and places[0] < cell.behind:
        return f"{_text(cell)} comes after the pass that needs it"
    return ""


def _text(cell: Communication) -> str:
    return f"{cell.stage}{cell.word}{'' if cell.micro_batch is None else cell.micro_batch}"


def torch_text(rows: Schedule, overlapped: Overlapped = APART) -> str:
    r"""A schedule as ``_load_csv`` of torch.distributed.pipelining reads it (``compute_only``), a line per rank.

    >>> torch_text(((Slot(SlotKind.FORWARD, 0, 0), Slot(SlotKind.FULL_BACKWARD, 0, 0)),))
    '0F0,0B0\n'
    """
    precedence = Precedence(rows, overlapped)
    lines = []
    for row in rows:
        cells = []
        for slot in row:
            pair = precedence.pair(slot)
            if slot == pair[0]:
                cells.append(_pass(slot) if len(pair) == 1 else f"({';'.join(map(_pass, pair))})OVERLAP_F_B")
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def _pass(slot: Slot) -> str:
    return f"{slot.stage}{slot.kind.value}{slot.micro_batch}"

"""The timeline of a training in so many rows at most: one by one, save by save taken together, or period by period."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import fsum
from typing import Any

from parsim.simulation.interrupted import Piece

MOST = 2000
"""rows of a timeline in a report"""
_CYCLE = ("train", "save")


@dataclass
class _Row:
    """Stretches that are told together."""

    begin: float
    end: float
    cause: str
    lengths: dict[str, list[float]] = field(default_factory=dict)

    def add(self, piece: Piece, begin: float, end: float) -> None:
        self.end = end
        self.lengths.setdefault(piece.kind, []).append(end - begin)

    def document(self) -> dict[str, Any]:
        spent = {kind: fsum(lengths) for kind, lengths in self.lengths.items()}
        row: dict[str, Any] = {
            "from_s": self.begin, "to_s": self.end, "kind": max(spent, key=lambda kind: spent[kind]), "cause": self.cause or None,
        }  # fmt: skip
        return row if len(spent) == 1 else row | {"spent_s": spent}


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Stretches of one kind and cause that follow each other, as one."""
    found: list[Piece] = []
    for piece in pieces:
        if found and (found[-1].kind, found[-1].cause) == (piece.kind, piece.cause):
            found[-1] = Piece(found[-1].begin, piece.end, piece.kind, piece.cause)
        else:
            found.append(piece)
    return found


def rows(stretches: Sequence[Piece], most: int = MOST) -> list[dict[str, Any]]:
    """At most `most` rows that follow each other from the first begin to the last end.

    A row of several kinds has ``spent_s``, the time of each; its own kind is the longest of them.
    """
    if len(stretches) <= most:
        return [row.document() for row in _one_by_one(stretches)]
    found = list(_cycles(stretches))
    if len(found) > most:
        found = _periods(stretches, most)
    return [row.document() for row in found]


def _one_by_one(stretches: Sequence[Piece]) -> Iterator[_Row]:
    for piece in stretches:
        row = _Row(piece.begin, piece.end, piece.cause)
        row.add(piece, piece.begin, piece.end)
        yield row


def _cycles(stretches: Sequence[Piece]) -> Iterator[_Row]:
    """Training with its saves, up to the next stretch of another kind or cause."""
    row: _Row | None = None
    for piece in stretches:
        together = row is not None and piece.kind in _CYCLE and set(row.lengths) <= set(_CYCLE) and row.cause == piece.cause
        if row is None or not together:
            if row is not None:
                yield row
            row = _Row(piece.begin, piece.end, piece.cause)
        row.add(piece, piece.begin, piece.end)
    if row is not None:
        yield row


def _periods(stretches: Sequence[Piece], most: int) -> list[_Row]:
    """Periods of equal length, whatever happens in them."""
    begin, end = stretches[0].begin, stretches[-1].end
    edges = [begin + (end - begin) * number / most for number in range(most)] + [end]
    found = [_Row(low, high, "") for low, high in pairwise(edges)]
    place = 0
    for piece in stretches:
        now = piece.begin
        while now < piece.end:
            upto = min(piece.end, edges[place + 1])
            if upto > now:
                found[place].add(piece, now, upto)
                found[place].end = edges[place + 1]
            now = max(now, upto)
            if upto == edges[place + 1] and place + 1 < most:
                place += 1
    return found

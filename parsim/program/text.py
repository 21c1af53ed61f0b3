"""A program as text, both ways: for tests, for diffs, and for people.

One op per line: ``op <index> <name> <kind>`` and then only the fields that differ from nothing::

    op 7 F0.1 compute lanes=0:compute needs=3,5 time=0.0015 micro_batch=1 moves=all_reduce:data:0-7:4096 memory=0:+2@0.0,-1@0.0015

``needs`` lists the ops that block this one beyond the ops before it in its lanes. Words that could be misread are quoted as JSON
strings. Numbers are written with `repr`, so a text gives the same program to the last bit.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

from parsim.errors import Finding, PlanError
from parsim.parallel.schedules.slot import Slot
from parsim.program.check import lanes
from parsim.program.program import Collective, Effect, Lane, Op, Program, Tensor

HEADER = "parsim program 1"

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_FIELDS = re.compile(rf'(?:[^\s"]|{_QUOTED})+|"')
_SPLITTERS = {mark: re.compile(rf'(?:[^{mark}"]|{_QUOTED})+') for mark in ",:;"}
_TENSOR_WORD = re.compile(rf"per_micro_batch|stream=(?:[^\s\"]|{_QUOTED})+")
_EFFECT = re.compile(r"([+-])(\d+)@(\S+)")


# -- writing ----------------------------------------------------------------------------------------------------------


def to_text(program: Program) -> str:
    """The whole program as text; `from_text` is its inverse."""
    blockers: list[list[int]] = [[] for _ in program.ops]
    for op in program.ops:
        for other in op.after:
            blockers[other.index].append(op.index)
    lines = [HEADER]
    for rank, table in program.tensors.items():
        lines.append(f"tensors {rank} {len(table)}")
        lines += [f"tensor {rank}.{row} {_tensor(tensor)}" for row, tensor in enumerate(table)]
    lines += [f"resident {rank} {ranges(rows)}".rstrip() for rank, rows in program.resident.items()]
    lines += [f"slots {rank} {' '.join(map(_slot, slots))}".rstrip() for rank, slots in program.slots.items()]
    tail: dict[Lane, int] = {}
    after = _After(len(program.ops))
    for op in program.ops:
        chain = list(dict.fromkeys(tail[lane] for lane in op.lanes if lane in tail))
        tail.update(dict.fromkeys(op.lanes, op.index))
        beyond = Counter(blockers[op.index])
        beyond.subtract(chain)
        needs = [index for index in blockers[op.index] if _take(beyond, index)]
        after.add(op.index, chain + needs)
        lines.append(_op(op, f"needs={ranges(needs)}" if needs else ""))
    for op, plain in zip(program.ops, after.lists(), strict=True):
        if (real := [other.index for other in op.after]) != plain:
            lines.append(f"after {op.index} {ranges(real)}")
    return "\n".join(lines) + "\n"


class _After:
    """The order of successors that `from_text` makes by itself: forward edges as ops appear, then backward ones."""

    def __init__(self, count: int) -> None:
        self._lists: list[list[int]] = [[] for _ in range(count)]
        self._later: list[tuple[int, int]] = []

    def add(self, index: int, blockers: Iterable[int]) -> None:
        for before in blockers:
            if before < index:
                self._lists[before].append(index)
            else:
                self._later.append((before, index))

    def lists(self) -> list[list[int]]:
        for before, index in self._later:
            self._lists[before].append(index)
        return self._lists


def _take(left: Counter[int], index: int) -> bool:
    if left[index] <= 0:
        return False
    left[index] -= 1
    return True


def _op(op: Op, needs: str) -> str:
    parts = [f"op {op.index} {_word(op.name)} {_word(op.kind)}"]
    if op.lanes:
        parts.append(f"lanes={','.join(map(_lane, op.lanes))}")
    if needs:
        parts.append(needs)
    if op.duration:
        parts.append(f"time={float(op.duration)!r}")
    if op.instance:
        parts.append(f"micro_batch={op.instance}")
    if op.collective is not None:
        kind, axis, group, size = op.collective.kind, op.collective.axis, op.collective.group, op.collective.bytes
        parts.append(f"moves={_word(kind)}:{_word(axis)}:{ranges(group)}:{size}")
    if op.effects:
        parts.append(f"memory={';'.join(_memory(rank, effects) for rank, effects in op.effects)}")
    return " ".join(parts)


def _slot(slot: tuple[str, int, int]) -> str:
    kind, stage, micro_batch = slot
    return f"{kind}{stage}.{micro_batch}"


def _lane(lane: Lane) -> str:
    return f"{lane.rank}:{_word(lane.name)}"


def _memory(rank: int, effects: Iterable[Effect]) -> str:
    return f"{rank}:" + ",".join(f"{'+' if effect.allocate else '-'}{effect.tensor}@{float(effect.offset)!r}" for effect in effects)


def _tensor(tensor: Tensor) -> str:
    text = f"{_word(tensor.name)} {_word(tensor.category)} {tensor.bytes}"
    text += " per_micro_batch" if tensor.per_micro_batch else ""
    return f"{text} stream={_word(tensor.stream)}" if tensor.stream else text


def _word(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in their order, runs of equal steps compressed.

    >>> ranges([0, 1, 2, 3, 9]), ranges([0, 8, 16, 24]), ranges([1, 0])
    ('0-3,9', '0-24/8', '1,0')
    """
    parts = []
    at = 0
    while at < len(numbers):
        first = numbers[at]
        step = numbers[at + 1] - first if at + 1 < len(numbers) else 0
        stop = at + 1
        while step > 0 and stop < len(numbers) and numbers[stop] == numbers[stop - 1] + step:
            stop += 1
        if stop - at > 2:
            parts.append(f"{first}-{numbers[stop - 1]}" + (f"/{step}" if step > 1 else ""))
        else:
            stop = at + 1
            parts.append(str(first))
        at = stop
    return ",".join(parts)


# -- reading ----------------------------------------------------------------------------------------------------------


def from_text(text: str) -> Program:
    """Read what `to_text` wrote. Empty lines and lines that start with ``#`` are skipped.

    Raises `PlanError` with the line that cannot be read.
    """
    return _ProgramReader().read(text)


class _ProgramReader:
    """Builds a program line by line; equal collectives and effects become one shared object."""

    def __init__(self) -> None:
        self.program = Program()
        self._needs: list[list[int]] = []
        self._orders: list[tuple[int, list[int]]] = []
        self._collectives: dict[Collective, Collective] = {}
        self._effects: dict[tuple[tuple[int, tuple[Effect, ...]], ...], tuple[tuple[int, tuple[Effect, ...]], ...]] = {}
        self._lanes: dict[tuple[Lane, ...], tuple[Lane, ...]] = {}

    def read(self, text: str) -> Program:
        header, *lines = text.split("\n")
        if header.strip() != HEADER:
            raise PlanError(Finding(f"the first line is not {HEADER!r}", value=header, file="program text", line=1))
        number = 1
        try:
            for number, line in enumerate(lines, start=2):  # noqa: B007
                fields = _FIELDS.findall(line)
                if fields and not fields[0].startswith("#"):
                    self._line(fields)
            self._link()
        except (ValueError, KeyError, IndexError, TypeError, PlanError) as error:
            raise PlanError(Finding(f"cannot be read: {error}", file="program text", line=number)) from error
        return self.program

    def _line(self, fields: list[str]) -> None:
        program = self.program
        match fields:
            case ["tensors", rank, _]:
                program.tensors[int(rank)] = []
            case ["tensor", place, name, category, size, *rest] if all(map(_TENSOR_WORD.fullmatch, rest)):
                owner, _, row = place.partition(".")
                table = program.tensors[int(owner)]
                if int(row) != len(table):
                    raise ValueError(f"tensor {place} is out of order")
                streams = [_unquote(word.removeprefix("stream=")) for word in rest if word.startswith("stream=")]
                table.append(Tensor(_unquote(name), int(size), _unquote(category), "per_micro_batch" in rest, *streams))
            case ["resident", rank, *rows]:
                program.resident[int(rank)] = tuple(_numbers("".join(rows)))
            case ["slots", rank, *slots]:
                program.slots[int(rank)] = tuple(map(Slot.parse, slots))
            case ["op", index, name, kind, *rest]:
                self._op(int(index), _unquote(name), _unquote(kind), dict(_pairs(rest)))
            case ["after", index, *numbers]:
                self._orders.append((int(index), list(_numbers("".join(numbers)))))
            case _:
                raise ValueError(f"unknown line {' '.join(fields)!r}")

    def _op(self, index: int, name: str, kind: str, fields: dict[str, str]) -> None:
        program = self.program
        if index != len(program.ops):
            raise ValueError(f"op {index} is out of order, {len(program.ops)} was expected")
        queues = tuple(map(_read_lane, _split(fields.pop("lanes", ""), ",")))
        queues = self._lanes.setdefault(queues, queues)
        collective = _collective(fields.pop("moves")) if "moves" in fields else None
        effects = tuple(map(_effects, _split(fields.pop("memory", ""), ";")))
        needs = list(_numbers(fields.pop("needs", "")))
        self._needs.append([before for before in needs if before >= index])
        program.add(
            name,
            kind,
            queues,
            [program.ops[before] for before in needs if before < index],
            float(fields.pop("time", 0.0)),
            self._collectives.setdefault(collective, collective) if collective else None,
            self._effects.setdefault(effects, effects),
            int(fields.pop("micro_batch", 0)),
        )
        if fields:
            raise ValueError(f"unknown fields {', '.join(fields)}")

    def _link(self) -> None:
        program = self.program
        for index, needs in enumerate(self._needs):
            for before in needs:
                program.block(before, index)
        for index, numbers in self._orders:
            offsets = [number - index for number in numbers]
            if sorted(offsets) != sorted(program.successors[index]):
                raise ValueError(f"after {index} does not list the ops that op {index} blocks")
            program.successors[index] = tuple(offsets)


def _split(text: str, mark: str) -> list[str]:
    return _SPLITTERS[mark].findall(text)


def _unquote(word: str) -> str:
    return str(json.loads(word)) if word.startswith('"') else word


def _pairs(fields: Iterable[str]) -> Iterator[tuple[str, str]]:
    for field in fields:
        key, mark, value = field.partition("=")
        if not mark:
            raise ValueError(f"{field!r} is not key=value")
        yield key, value


def _numbers(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        yield from range(int(first), int(last) + 1, int(step or 1)) if dash else (int(first),)


def _read_lane(text: str) -> Lane:
    rank, name = _split(text, ":")
    return Lane(int(rank), _unquote(name))


def _collective(text: str) -> Collective:
    kind, axis, group, size = _split(text, ":")
    return Collective(_unquote(kind), _unquote(axis), tuple(_numbers(group)), int(size))


def _effects(text: str) -> tuple[int, tuple[Effect, ...]]:
    rank, _, rest = text.partition(":")
    effects = []
    for word in filter(None, rest.split(",")):
        if not (match := _EFFECT.fullmatch(word)):
            raise ValueError(f"{word!r} is not an effect such as +3@0.0")
        effects.append(Effect(float(match[3]), int(match[2]), match[1] == "+"))
    return int(rank), tuple(effects)


# -- for people -------------------------------------------------------------------------------------------------------


class Times(Protocol):
    """Start and end of every op [s], by op index; a `Trace` is one."""

    @property
    def start(self) -> Sequence[float]: ...
    @property
    def end(self) -> Sequence[float]: ...


def grid(program: Program, trace: Times | None = None, blocked: Collection[int] = ()) -> str:
    """One line per lane, ``rank 0 compute | F0.0 F0.1 ...``; with a trace ``F0.0@0-1``.

    `blocked` are indices of ops to be marked with ``!``, e.g. those of a deadlock.
    """
    rows = lanes(program)
    labels = {lane: f"rank {lane.rank} {lane.name}" for lane in rows}
    width = max(map(len, labels.values()), default=0)
    return "\n".join(
        f"{labels[lane]:<{width}} | " + " ".join(_cell(op, trace) + ("!" if op.index in blocked else "") for op in ops)
        for lane, ops in rows.items()
    )


def _cell(op: Op, trace: Times | None) -> str:
    name = op.name.replace(" ", "_")
    if op.instance > 0 and not name.endswith(f".{op.instance}"):
        name += f"#{op.instance}"
    return name if trace is None else f"{name}@{trace.start[op.index]:.6g}-{trace.end[op.index]:.6g}"

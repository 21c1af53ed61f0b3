"""Lines of a trace in blocks: cut where one differentiated tensor passes, joined by the module that they belong to, equal ones folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from parsim.interop.traced_reading import RAW, OperatorLine, TraceWalk

_LAYER = 3
"""lines that a numbered module has at least to be a block of its own"""


@dataclass
class TracedBlock:
    """Lines from one cut to another."""

    lines: list[OperatorLine]
    key: str = ""
    """the numbered module that it is, such as ``transformer.h.0``"""
    given: str = ""
    """the tensor that it begins with; empty for the first"""
    made: str = ""
    """the tensor that it ends with"""
    written: list[dict[str, Any]] = field(default_factory=list)

    @property
    def heavy(self) -> bool:
        return any(line.heavy for line in self.lines)


def blocks(reading: TraceWalk) -> list[TracedBlock]:
    """The lines of `reading` in blocks, in order, as they are written."""
    units = _units(reading.lines)
    keys = _keys(units)
    joined: list[TracedBlock] = []
    for unit, key in zip(units, keys, strict=True):
        last = joined[-1] if joined else None
        same = last is not None and (key == last.key if key else not last.key and not _begins(unit, last))
        if last is None or not same:
            joined.append(TracedBlock(unit.lines, key, unit.given, unit.made))
        else:
            last.lines = last.lines + unit.lines
            last.made = unit.made
    _write(joined, reading)
    return joined


def _begins(unit: TracedBlock, last: TracedBlock) -> bool:
    """Whether a unit begins a new block behind `last`: products do behind products or look-ups."""
    return unit.heavy and last.heavy and any(line.heavy and line.op != "embedding" for line in (*unit.lines, *last.lines))


def _units(lines: list[OperatorLine]) -> list[TracedBlock]:
    """The smallest pieces between which one tensor passes."""
    made = {line.name: index for index, line in enumerate(lines) if line.grad}
    last_read: dict[str, int] = {}
    for index, line in enumerate(lines):
        for name in line.of:
            last_read[name] = index
    units: list[TracedBlock] = []
    begin, alive, given = 0, set[str](), ""
    for index, line in enumerate(lines):
        if line.name in made:
            alive.add(line.name)
        alive = {name for name in alive if last_read.get(name, -1) > index}
        if len(alive) == 1 and index + 1 < len(lines) and line.name in alive and RAW not in _raw_later(lines, index):
            made_here = next(iter(alive))
            units.append(TracedBlock(lines[begin : index + 1], "", given, made_here))
            begin, given = index + 1, made_here
    ends = [line.name for line in lines[begin:] if line.grad]
    units.append(TracedBlock(lines[begin:], "", given, ends[-1] if ends else lines[-1].name))
    for before, unit in pairwise(units):  # masks for all layers are made before the first of them
        while len(unit.lines) > 1 and not _stays(unit.lines[0]):
            before.lines = [*before.lines, unit.lines[0]]
            unit.lines = unit.lines[1:]
    return units


def _stays(line: OperatorLine) -> bool:
    """Whether a line is more than a constant."""
    return line.grad or line.heavy or bool(line.parameters)


def _raw_later(lines: list[OperatorLine], index: int) -> set[str]:
    """Whether a product behind `index` reads what the module was given."""
    return {RAW for line in lines[index + 1 :] if RAW in line.of and line.op in ("linear", "conv2d")}


def _keys(units: Sequence[TracedBlock]) -> list[str]:
    """The numbered module of each unit; one level deeper where one module holds all parameters."""
    for depth in range(1, 5):
        counts = Counter(_prefix(line.module, depth) for unit in units for line in unit.lines)
        keys = [_key(unit, counts, depth) for unit in units]
        heavy = {key for key, unit in zip(keys, units, strict=True) if unit.heavy}
        if len(heavy) != 1 or "" in heavy or len(units) == 1:
            return keys
    return keys


def _key(unit: TracedBlock, counts: Counter[str], depth: int) -> str:
    owner = next((line for line in unit.lines if line.parameters), unit.lines[0])
    key = _prefix(owner.module, depth)
    return key if counts[key] >= _LAYER else ""


def _prefix(module: str, depth: int) -> str:
    """``transformer.h.0`` of ``transformer.h.0.mlp.2``: up to the numbered part of that depth; empty where there is none."""
    parts = module.split(".")
    places = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: places[depth - 1] + 1]) if len(places) >= depth else ""


# --- written form ---------------------------------------------------------------------------------------------------


def _write(found: list[TracedBlock], reading: TraceWalk) -> None:
    """Operators as a file has them: names inside the block, parameters where they are first used."""
    homes: dict[str, str] = {}
    for number, block in enumerate(found):
        names: dict[str, str] = {block.given: RAW} if block.given else {}
        used: set[str] = {RAW}
        constants: list[OperatorLine] = []
        rows: list[dict[str, Any]] = []
        for line in block.lines:
            if not _stays(line):
                constants.append(line)
                continue
            label = _label(line, block.key, reading, used)
            names[line.name] = label
            rows.append(_row(line, label, names, reading, homes, number))
        if constants:
            rows.insert(0, _constants(constants, used))
        if not number:
            _reads_input(rows)
        block.made = names.get(block.made, block.made)
        block.written = rows


def _reads_input(rows: list[dict[str, Any]]) -> None:
    """The first block reads what the module is given."""
    if any(RAW in row.get("of", ()) for row in rows):
        return
    first = next((row for row in rows if row["op"] in ("embedding", "linear", "conv2d") and not row.get("of")), None)
    if first is not None:
        first["of"] = [RAW]
    elif rows[0]["op"] == "kernel" and not rows[0].get("of"):
        rows[0] |= {"of": [RAW], "reads": [0]}
    else:
        rows.insert(0, {"op": "kernel", "name": "given", "of": [RAW], "reads": [0], "writes": 1, "launches": 0})


def _label(line: OperatorLine, key: str, reading: TraceWalk, used: set[str]) -> str:
    """A name that equal blocks have in common: that of the weight, or of the module and the operator."""
    weights = [reading.traces.small.parameters[name].name for name in line.parameters]
    path = weights[0].removesuffix(".weight") if weights and line.op != "kernel" else f"{line.module}.{line.label or line.aten.rstrip('_')}"
    stem = (path.removeprefix(f"{key}.") if key else path).strip(".") or line.op
    name, number = stem, 1
    while name in used or name == "output":
        number += 1
        name = f"{stem}-{number}"
    used.add(name)
    return name


def _row(line: OperatorLine, label: str, names: dict[str, str], reading: TraceWalk, homes: dict[str, str], number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"op": line.op, "name": label}
    if line.of:
        row["of"] = [RAW if name == RAW else names[name] for name in line.of]
    settings = {key: value for key, value in line.settings.items() if key != "cast"}
    if "keeps" in settings:
        settings["keeps"] = [names[name] for name in settings["keeps"]]
    row |= settings
    own_names = [] if line.piece else line.parameters
    shared = [homes[_stored(reading, name)] for name in own_names if _stored(reading, name) in homes]
    if line.op == "kernel" and line.parameters:
        own = {f"{label}.{_leaf(reading, name)}": list(reading.traces.shape(name)) for name in line.parameters}
        row["parameters"] = own
        places = dict(zip(line.parameters, own, strict=True))
    else:
        places = dict(zip(line.parameters, (f"{label}.weight", f"{label}.bias"), strict=False))
        if line.op == "embedding":
            row["table"] = label
    if shared:
        row["tied"] = shared[0]
    for name, place in () if line.piece else places.items():
        homes.setdefault(_stored(reading, name), f"layer {number}.{place}")
    return row


def _stored(reading: TraceWalk, name: str) -> str:
    return reading.traces.small.parameters[name].name


def _leaf(reading: TraceWalk, name: str) -> str:
    return _stored(reading, name).rpartition(".")[2]


def _constants(lines: Iterable[OperatorLine], used: set[str]) -> dict[str, Any]:
    """What training does not differentiate (masks, positions, rotary tables) as one line."""
    sizes: list[Any] = []
    launches = 0
    for line in lines:
        launches += int(line.settings.get("launches", 1))
        for key in ("also", "writes"):
            value = line.settings.get(key, [])
            sizes += value if isinstance(value, list) else [value]
    name = "constants"
    while name in used:
        name += "-"
    return {"op": "kernel", "name": name, "reads": [], "writes": _sum(sizes), "launches": launches}


def _sum(sizes: list[Any]) -> Any:
    """Written sizes added up by unit."""
    units = {"": 0, "B": 0, " once": 0, "B once": 0}
    for size in sizes:
        text = str(size)
        digits = text.rstrip("Bonce ")
        units[text[len(digits) :]] += int(digits)
    parts: list[Any] = [total if not unit else f"{total}{unit}" for unit, total in units.items() if total]
    return parts[0] if len(parts) == 1 else parts or 0


def folded(found: Sequence[TracedBlock]) -> list[dict[str, Any]]:
    """Blocks as a file lists them; equal ones in succession once, with ``times``. The last stands alone."""
    listed: list[dict[str, Any]] = []
    for index, block in enumerate(found):
        row: dict[str, Any] = {"name": block.key or f"layer {index}", "operators": block.written, "output": block.made}
        last = index == len(found) - 1
        if listed and not last and (listed[-1]["operators"], listed[-1]["output"]) == (row["operators"], row["output"]):
            listed[-1]["times"] = listed[-1].get("times", 1) + 1
        else:
            listed.append(row)
    return listed

"""Files of `parsim diagnose`: a scenario with what explains the run, and recorded beside predicted steps for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from parsim.report.trace_files import trace_text
from parsim.scenario.files import parse_value
from parsim.scenario.load import put
from parsim.scenario.scenario import flow
from parsim.study.diagnose_classes import COMPUTE, GpuSlice, Recorded, Window

MOST = 200_000
"""slices per rank and side"""


def write_comparison(path: Path, recorded: Recorded, *predictions: tuple[str, Recorded]) -> int:
    """Write the first recorded step of every rank and the predicted ones, each from 0; the number of slices.

    Raises:
        ScenarioError: the file cannot be written.
    """
    with trace_text(path) as out:
        return _write(out, (("recorded", recorded), *predictions))


def _write(out: TextIO, sides: Sequence[tuple[str, Recorded]]) -> int:
    out.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    count, first = 0, True
    for place, (label, side) in enumerate(sides):
        for rank, windows in sorted(side.ranks.items()):
            for row in _process(f"rank {rank}: {label}", rank * len(sides) + place, windows[0]):
                out.write(("" if first else ",\n") + json.dumps(row, ensure_ascii=False, separators=(",", ":")))
                first = False
                count += row["ph"] == "X"
    out.write("\n]}\n")
    return count


def _process(name: str, process: int, window: Window) -> Iterator[dict[str, object]]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    lanes: dict[str, list[GpuSlice]] = {"compute": [], "communication": []}
    for stretch in window.stretches[:MOST]:
        lanes["compute" if stretch.kind in COMPUTE else "communication"].append(stretch)
    thread = 0
    for lane, stretches in lanes.items():
        for number, row in enumerate(_rows(stretches)):
            title = lane if number == 0 else f"{lane} {number + 1}"
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": title}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": {"sort_index": thread}}
            for stretch, begin, length in row:
                at = (begin - round(window.begin * 1e9)) / 1000
                yield {
                    "ph": "X", "pid": process, "tid": thread, "ts": at, "dur": length / 1000, "name": stretch.name, "cat": stretch.kind,
                    "args": {"class": stretch.kind, "waited_us": round(stretch.waited * 1e6, 3)},
                }  # fmt: skip
            thread += 1


def _rows(stretches: Sequence[GpuSlice]) -> list[list[tuple[GpuSlice, int, int]]]:
    """Slices [ns] on as few tracks as keep them from overlapping: streams run side by side."""
    rows: list[list[tuple[GpuSlice, int, int]]] = []
    ends: list[int] = []
    for stretch in sorted(stretches, key=lambda one: one.start):
        begin, end = round(stretch.start * 1e9), round(stretch.end * 1e9)
        if end <= begin:
            continue
        place = next((number for number, last in enumerate(ends) if last <= begin), None)
        if place is None:
            rows.append([])
            ends.append(0)
            place = len(rows) - 1
        rows[place].append((stretch, begin, end - begin))
        ends[place] = end
    return rows


def saved(extends: str, given: Sequence[str], named: Sequence[str], blocks: Mapping[str, Sequence[str]], file: str) -> str:
    """A scenario that extends the diagnosed one, with a named block of overrides for each explanation.

    Args:
        extends: the diagnosed scenario, as the new file finds it.
        given: ``key=value`` that the user gave.
        named: overrides of the scenario that the user chose.
        blocks: name -> ``key=value``.
        file: name of the new file, for the command in its head.
    """
    chosen = ",".join([*named, next(iter(blocks), "")])
    lines = [f"# One block per explanation; for example: parsim run {file} --override {chosen}", f"extends: {flow(extends)}"]
    lines += _block(_tree(given), "")
    lines.append("overrides:")
    for name, arguments in blocks.items():
        lines.append(f"  {name}:")
        lines += _block(_tree(arguments), "    ")
    return "\n".join(lines) + "\n"


def _tree(arguments: Iterable[str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for argument in arguments:
        path, _, value = argument.partition("=")
        put(tree, path, parse_value(value))
    return tree


def _block(tree: Mapping[str, Any], margin: str) -> list[str]:
    return [f"{margin}{key}: {flow(value)}" for key, value in tree.items()]

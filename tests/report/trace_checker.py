"""A trace read as strictly as Perfetto's importer reads it: what it would count as an error, under its names.

After google/perfetto src/trace_processor: importers/json/json_trace_parser_impl.cc and json_trace_tokenizer.cc,
importers/common/slice_tracker.cc and flow_tracker.cc, storage/stats.h. Where the importer is lenient (a flow may bind to a slice
that has just ended, a counter may have several values) this is not. Names of its own begin with "own_".
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

PHASES = "MXCsfti"


def nanoseconds(microseconds: float) -> int:
    """Whole nanoseconds; a time with more decimals is refused."""
    exact = Fraction(repr(microseconds)) * 1000
    assert exact.denominator == 1, f"{microseconds} us is no whole number of ns"
    return int(exact)


def import_errors(document: dict[str, Any]) -> Counter[str]:
    """The importer's error counters after reading `document`; empty: it opens without warnings."""
    found: Counter[str] = Counter()
    timed: list[tuple[int, dict[str, Any]]] = []
    named: set[tuple[Any, ...]] = set()
    used: set[tuple[Any, ...]] = set()
    for event in document["traceEvents"]:
        phase = event.get("ph")
        if phase not in tuple(PHASES) or type(event.get("pid")) is not int or not isinstance(event.get("name"), str):
            found["json_tokenizer_failure"] += 1
            continue
        track = event["pid"], event.get("tid")
        if phase == "M":
            key = event["name"], *track
            found["own_named_twice"] += key in named
            found["own_named_after_use"] += event["name"] == "thread_name" and track in used
            named.add(key)
            continue
        if not isinstance(event.get("ts"), (int, float)) or event["ts"] < 0:
            found["json_tokenizer_failure"] += 1
            continue
        used.add(track)
        timed.append((nanoseconds(event["ts"]), event))
    timed.sort(key=lambda row: row[0])  # stable: at equal times the order of the file counts
    stacks: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    flows: dict[tuple[Any, ...], int] = {}
    for at, event in timed:
        stack = stacks.setdefault((event["pid"], event.get("tid")), [])
        while stack and stack[-1][1] <= at:
            stack.pop()
        if event["ph"] == "X":
            _slice(at, event, stack, found)
        elif event["ph"] == "C":
            values = list(event["args"].values()) if isinstance(event.get("args"), dict) else []
            found["json_parser_failure"] += len(values) != 1 or type(values[0]) not in (int, float)
        elif event["ph"] in "sf":
            _flow(event, stack, flows, found)
    found["own_flow_without_end"] += sum(ends != 1 for ends in flows.values())
    slices = {(event["pid"], event.get("tid")) for _, event in timed if event["ph"] == "X"}
    found["own_thread_without_name"] += len(slices - {(pid, tid) for name, pid, tid in named if name == "thread_name"})
    return +found


def _slice(at: int, event: dict[str, Any], stack: list[tuple[int, int]], found: Counter[str]) -> None:
    if not isinstance(event.get("dur"), (int, float)):
        found["json_parser_failure"] += 1
        return
    end = at + nanoseconds(event["dur"])
    found["slice_negative_duration"] += end < at
    found["own_slice_without_duration"] += end == at
    if stack and end > stack[-1][1]:
        found["slice_drop_overlapping_complete_event"] += 1
        return
    stack.append((at, end))


def _flow(event: dict[str, Any], stack: list[tuple[int, int]], flows: dict[tuple[Any, ...], int], found: Counter[str]) -> None:
    if type(event.get("id")) is not int:
        found["flow_invalid_id"] += 1
        return
    key = event["id"], event.get("cat"), event["name"]
    found["flow_no_enclosing_slice"] += not stack
    if event["ph"] == "s":
        found["flow_duplicate_id"] += key in flows
        flows[key] = 0
    elif key not in flows:
        found["flow_end_without_start"] += 1
    else:
        flows[key] += 1
        found["own_flow_without_bp"] += event.get("bp") != "e"

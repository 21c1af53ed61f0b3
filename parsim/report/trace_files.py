"""Traces as files: all ranks in one, or one file per rank as PyTorch writes them; simulated and recorded ones side by side.

Recorded traces keep their events; ids of processes and flows move out of the way, processes get a label and a place below the
simulated process of the same rank, and time is moved so that the recorded step begins where the simulated one does.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from parsim.report.chrome_trace import WrittenTrace, write_chrome_trace
from parsim.report.trace_slices import SORT_STEP
from parsim.report.write import LEVEL, Content, replacing, write_together

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

Event = Mapping[str, Any]

STEP = "ProfilerStep"
_ROOM = 1000
"""processes of different traces begin at multiples of this"""


def merge(predicted: Iterable[Event], measured: Iterable[Any], *, label: str = "measured", rank: int | None = None) -> list[dict[str, Any]]:
    """The events of both: `predicted` first, then `measured` with other ids, a `label`, and in time with the first.

    `rank` is whose trace `measured` is, where it is known (distributedInfo): its processes stand below that rank's. May be applied
    again to its own result. Neither input is changed; what is no event is left out of `measured`.
    """
    kept = [dict(event) for event in predicted]
    added = [dict(event) for event in measured if isinstance(event, Mapping)]
    offset = _ROOM * (-(-(1 + max((pid for pid in map(_pid, kept) if pid is not None), default=0)) // _ROOM))
    flows = 1 + max((number for event in kept if (number := _flow(event)) is not None), default=0)
    shift = _begin(kept) - _begin(added)
    orders = {event.get("pid"): _order(event) for event in kept if event.get("name") == "process_sort_index"}
    first = orders.get(rank, max(orders.values(), default=0))
    below = max((order for order in orders.values() if first <= order < first + SORT_STEP), default=first)
    return kept + list(_moved(added, offset, flows, shift, label, (below, first + SORT_STEP - 1)))


def _moved(
    events: Sequence[dict[str, Any]], offset: int, flows: int, shift: float, label: str, orders: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """Recorded events with their new ids and times; what names their processes comes first."""
    pids: dict[str, int] = {}
    said_of: dict[str, dict[str, Any]] = {"process_name": {}, "process_labels": {}}
    for event in events:
        if "pid" in event:
            pids.setdefault(str(event["pid"]), offset + len(pids))
        if event.get("ph") == "M" and event.get("name") in ("process_name", "process_labels"):
            said_of[event["name"]][str(event.get("pid"))] = _args(event).get("name", _args(event).get("labels"))
    for place, (old, new) in enumerate(pids.items()):
        said = " ".join(
            str(part) for part in (said_of["process_name"].get(old) or f"process {old}", said_of["process_labels"].get(old)) if part
        )
        yield {"ph": "M", "name": "process_name", "pid": new, "tid": 0, "args": {"name": f"{label} · {said}"}}
        order = min(orders[0] + 1 + place, orders[1])
        yield {"ph": "M", "name": "process_sort_index", "pid": new, "tid": 0, "args": {"sort_index": order}}
    for event in events:
        if event.get("ph") == "M" and event.get("name") in ("process_name", "process_sort_index"):
            continue
        if "pid" in event:
            event["pid"] = pids[str(event["pid"])]
        if event.get("ph") != "M" and isinstance(event.get("ts"), (int, float)):
            event["ts"] = round(event["ts"] + shift, 3)
        if event.get("ph") in ("s", "t", "f") and (number := _flow(event)) is not None:
            event["id"] = flows + number
        yield event


def _begin(events: Sequence[Event]) -> float:
    """When the first step begins, without steps the first slice [us]."""
    slices = [event for event in events if event.get("ph") == "X" and isinstance(event.get("ts"), (int, float))]
    steps = [event["ts"] for event in slices if str(event.get("name")).startswith(STEP) and event.get("cat") == "user_annotation"]
    return float(min(steps or [event["ts"] for event in slices], default=0.0))


def _order(event: Event) -> int:
    index = _args(event).get("sort_index", 0)
    return index if isinstance(index, int) else 0


def _args(event: Event) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, Mapping) else {}


def _pid(event: Event) -> int | None:
    pid = event.get("pid")
    return pid if isinstance(pid, int) else None


def _flow(event: Event) -> int | None:
    """The number of a flow; text is hexadecimal."""
    if event.get("ph") not in ("s", "t", "f"):
        return None
    number = event.get("id")
    if isinstance(number, str):
        try:
            return int(number, 16)
        except ValueError:
            return None
    return number if isinstance(number, int) else None


@contextmanager
def trace_text(path: Path) -> Iterator[TextIO]:
    """An open text file that takes the place of `path` when all is written; gzipped, the same bytes every time, for a name in .gz."""
    with replacing(path) as out, _text(out, gz=path.suffix == ".gz") as text:
        yield text


@contextmanager
def _text(out: BinaryIO, *, gz: bool) -> Iterator[TextIO]:
    """`out` as a text file, packed where `gz`."""
    with _packed(out, gz=gz) as binary:
        text = TextIOWrapper(binary, encoding="utf-8", newline="\n")
        yield text
        text.detach()


@contextmanager
def _packed(out: BinaryIO, *, gz: bool) -> Iterator[BinaryIO]:
    if not gz:
        yield out
        return
    with gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=out, mtime=0) as packed:
        yield packed  # type: ignore[misc]


def write_trace(report: Metrics, path: Path, ranks: Sequence[int] | None = None, most_spans: int | None = None) -> WrittenTrace:
    """All of `ranks` (default: one per class, at most 16) in one file. Raises ValueError for a rank that was not simulated."""
    with trace_text(path) as out:
        return write_chrome_trace(report, out, ranks, most_spans=most_spans)


def write_per_rank(report: Metrics, directory: Path, ranks: Sequence[int] | None = None, most_spans: int | None = None) -> list[Path]:
    """One file per rank (default: all that were simulated), ``rank-3.json.gz``, as Holistic Trace Analysis wants them.

    No arrows between them. Raises ValueError for a rank that was not simulated.
    """
    chosen = list(ranks if ranks is not None else report.timeline.ranks)

    def content(rank: int) -> Content:
        def write(out: BinaryIO) -> None:
            with _text(out, gz=True) as text:
                write_chrome_trace(report, text, [rank], most_spans=most_spans)

        return write

    return write_together(directory, {f"rank-{rank}.json.gz": content(rank) for rank in chosen})


def write_merged(
    report: Metrics,
    path: Path,
    recorded: Sequence[tuple[str, dict[str, Any]]],
    ranks: Sequence[int] | None = None,
    most_spans: int | None = None,
) -> WrittenTrace:
    """The simulated trace with recorded ones beside it; `recorded` are labels and whole documents of the profiler."""
    text = StringIO()
    written = write_chrome_trace(report, text, ranks, most_spans=most_spans)
    document = json.loads(text.getvalue())
    for label, other in recorded:
        document["traceEvents"] = merge(document["traceEvents"], other["traceEvents"], label=label, rank=rank_of(other))
    document["otherData"]["merged"] = [label for label, _ in recorded]
    with trace_text(path) as out:
        out.write('{"traceEvents":[\n')
        out.write(",\n".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in document.pop("traceEvents")))
        out.write(f"\n],{json.dumps(document, ensure_ascii=False)[1:]}\n")
    return written


def rank_of(document: dict[str, Any]) -> int | None:
    """The rank whose trace a profiler's document is, where it says so."""
    told = document.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, dict) else None
    return rank if isinstance(rank, int) else None

"""Simulated and recorded traces in one file, so that a viewer shows them side by side.

Recorded traces keep their events; ids of processes and flows move out of the way, processes get a label and a place below the
simulated process of the same rank, and time is moved so that the recorded step begins where the simulated one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from parsim.report.profiled import SORT_STEP

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

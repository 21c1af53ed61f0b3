"""The memory of one rank as a snapshot of PyTorch's caching allocator, for the memory viewer (pytorch.org/memory_viz).

The form is that of `torch.cuda.memory._dump_snapshot` (pytorch torch/csrc/cuda/memory_snapshot.cpp): segments with their blocks as
they are after the step, and every allocation and release of the step with its address. As there, the size of an event is what was
asked for and that of a block what it occupies; `block_size` beside the former is ours, and its peak is the report's allocated memory.
The viewer's own unpickler (torch/utils/viz/MemoryViz.js) reads protocols 2 to 4 and wants the category "unknown" wherever there are
categories; the last entry carries it.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, BinaryIO

from parsim.simulation.allocator_history import History, history
from parsim.simulation.ledger import Ledger, MemoryTimeline

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

PROTOCOL = 4
BASE = 0x7F00_0000_0000
"""added to addresses, so that they look like those of a device"""
COMPUTE_STREAM = 0
_NO_FRAMES: list[dict[str, Any]] = []


def write_memory_snapshot(report: Metrics, out: BinaryIO, rank: int | None = None) -> int:
    """Write the snapshot of `rank` (default: the fullest), and return the rank; see `memory_snapshot`."""
    chosen = fullest(report) if rank is None else rank
    pickle.dump(memory_snapshot(report, chosen), out, protocol=PROTOCOL)
    return chosen


def fullest(report: Metrics) -> int:
    """The rank with the least headroom. Raises ValueError if the run measured no memory."""
    worst = report.worst_device
    if worst is None:
        raise ValueError("this run has no memory to show")
    return worst.rank


def memory_snapshot(report: Metrics, rank: int) -> dict[str, Any]:
    """The snapshot of a simulated rank: dictionaries, lists, strings and numbers only; times in us from the start of the step.

    All events are replayed through the allocator, so that each has an address. Nothing is given back where memory runs out: an
    "oom" entry marks the first reservation that does not fit. Raises ValueError if the rank was not simulated.
    """
    if rank not in report.timeline.lanes:
        same = next((group.rank for group in report.measured.classes if rank in group.members), None)
        hint = "" if same is None else f"; it does what rank {same} does"
        raise ValueError(f"rank {rank} was not simulated{hint}")
    trace = report.measured.trace
    curve = Ledger(trace.program, trace, [rank]).measure(rank)
    rows = [row for row, delta in enumerate(curve.delta.tolist()) if delta]
    keys: dict[tuple[int, int], int] = {}
    events: list[tuple[int, int]] = []
    for row in rows:
        tensor = int(curve.tensor[row])
        key = keys.setdefault((tensor, int(curve.instance[row])), len(keys))
        events.append((key, curve.tensors[tensor].bytes * (1 if curve.delta[row] > 0 else -1)))
    mode = report.measured.profiled.allocator
    streams = [] if curve.streams is None else curve.streams[rows].tolist()
    done = history(events, mode, streams)
    facts = _EventFacts(report, curve, rows, events)
    entries = _entries(done, facts, _room(report, rank))
    return {
        "segments": _segments(done, facts, expandable=mode == "expandable"),
        "device_traces": [entries],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": _setting(mode), "expandable_segments": mode == "expandable"},
        "external_annotations": [],
    }


def _setting(mode: str) -> str:
    return "expandable_segments:True" if mode == "expandable" else ""


def _room(report: Metrics, rank: int) -> int | None:
    """What the allocator may reserve on a rank [B]; None where nobody knows."""
    for device in report.measured.memory.devices:
        if device.rank == rank:
            return report.capacity(device) - device.at_peak.get("context", 0) - device.at_peak.get("communicators", 0)
    return None


class _EventFacts:
    """What an entry says beside addresses: when, which tensor, in which op."""

    def __init__(self, report: Metrics, curve: MemoryTimeline, rows: list[int], events: list[tuple[int, int]]) -> None:
        self.curve = curve
        self.rows = rows
        self.events = events
        self._ops = report.timeline.program.ops
        self._frames: dict[int, list[dict[str, Any]]] = {}
        self._tensors: dict[tuple[int, int], dict[str, Any]] = {}
        self._places: dict[tuple[str, int], dict[str, Any]] = {}
        self.born: dict[int, int] = {}
        """key -> event that allocated it last"""

    def time(self, event: int) -> int:
        """When the event happens, from the start of the step [us]."""
        return round(float(self.curve.times[self.rows[event]]) * 1e6)

    def category(self, event: int) -> str:
        return self.curve.tensors[int(self.curve.tensor[self.rows[event]])].category

    def stream(self, event: int) -> int:
        """Number of the stream that the tensor is taken from."""
        return COMPUTE_STREAM if self.curve.streams is None else int(self.curve.streams[self.rows[event]])

    def requested(self, event: int) -> int:
        """Size of the tensor before the allocator rounds it up [B]."""
        return abs(self.events[event][1])

    def frames(self, event: int) -> list[dict[str, Any]]:
        """The tensor, and the op that allocates it, in place of a stack; shared by what repeats it."""
        born = self.born.get(self.events[event][0], event)
        if (stack := self._frames.get(born)) is None:
            row = self.rows[born]
            number, instance, index = int(self.curve.tensor[row]), int(self.curve.instance[row]), int(self.curve.op[row])
            tensor = self.curve.tensors[number]
            what = self._tensors.setdefault(
                (number, instance), {"name": tensor.name, "filename": tensor.category, "line": max(instance, 0)}
            )
            name = "before the step" if index < 0 else self._ops[index].name
            micro_batch = -1 if index < 0 else self._ops[index].instance
            place = {"name": name, "filename": "micro-batch", "line": micro_batch} if micro_batch >= 0 else None
            where = self._places.setdefault((name, micro_batch), place or {"name": name, "filename": "step", "line": 0})
            stack = self._frames[born] = [what, where]
        return stack


def _entries(done: History, facts: _EventFacts, room: int | None) -> list[dict[str, Any]]:
    """The device trace: what PyTorch records with `_record_memory_history`."""
    entries: list[dict[str, Any]] = []
    reserved = 0
    for step in done.steps:
        event = step.event
        time, category = facts.time(event), facts.category(event)
        entry: dict[str, Any] = {"addr": BASE + step.address, "size": step.size, "stream": facts.stream(event), "time_us": time}
        if step.action in ("segment_alloc", "segment_map"):
            if room is not None and reserved <= room < reserved + step.size:
                oom = {"action": "oom", "device_free": room - reserved, "size": step.size, "stream": facts.stream(event)}
                entries.append(oom | {"time_us": time, "frames": facts.frames(event)})
            reserved += step.size
        elif step.action == "segment_free":
            reserved -= step.size
        if step.action == "alloc":
            facts.born[facts.events[event][0]] = event
        if step.action in ("alloc", "free"):
            entry |= {"size": facts.requested(event), "block_size": step.size, "category": category, "frames": facts.frames(event)}
        else:
            entry |= {"frames": _NO_FRAMES}
        actions = ("free_requested", "free_completed") if step.action == "free" else (step.action,)
        entries += [{"action": action, **entry} for action in actions]
    last = entries[-1]["time_us"] if entries else 0
    end = {"action": "snapshot", "addr": 0, "size": 0, "stream": COMPUTE_STREAM, "time_us": last, "frames": _NO_FRAMES}
    end["category"] = "unknown"
    return [*entries, end]


def _segments(done: History, facts: _EventFacts, *, expandable: bool) -> list[dict[str, Any]]:
    """What is reserved after the step, with its blocks without a gap."""
    blocks = iter(done.blocks)
    block = next(blocks, None)
    segments: list[dict[str, Any]] = []
    for segment in done.segments:
        address, end = segment.address, segment.address + segment.size
        listed: list[dict[str, Any]] = []
        while block is not None and block.address < end:
            if block.address > address:
                listed.append(_block(address, block.address - address))
            event = facts.born[block.key]
            listed.append(_block(block.address, block.size, facts.requested(event), facts.frames(event)))
            address, block = block.address + block.size, next(blocks, None)
        if address < end:
            listed.append(_block(address, end - address))
        live = [part for part in listed if part["state"] == "active_allocated"]
        allocated = sum(int(part["size"]) for part in live)
        segments.append(
            {
                "device": 0,
                "address": BASE + segment.address,
                "total_size": segment.size,
                "allocated_size": allocated,
                "active_size": allocated,
                "requested_size": sum(int(part["requested_size"]) for part in live),
                "stream": segment.stream,
                "segment_type": "small" if segment.small else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": expandable,
                "frames": _NO_FRAMES,
                "blocks": listed,
            }
        )
    return segments


def _block(address: int, size: int, requested: int = 0, frames: list[dict[str, Any]] = _NO_FRAMES) -> dict[str, Any]:
    state = "active_allocated" if requested else "inactive"
    return {"address": BASE + address, "size": size, "requested_size": requested, "state": state, "frames": frames}

"""The snapshot for PyTorch's memory viewer: the report's peaks from its own entries, and the rules the viewer lives by."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import Counter
from itertools import pairwise

import pytest

from parsim.report.memory_snapshot import fullest, memory_snapshot, write_memory_snapshot
from parsim.run import simulate

CASES = (
    ("gpt2-ddp-4x-a100",),
    ("gpt2-ddp-4x-a100", "software.memory.allocator=expandable"),
    ("gpt2-ddp-4x-a100", "software.memory.allocator=exact"),
    ("gpt2-xl-gpipe-4x-v100",),
    ("llama-7b-zero3-offload-2x-rtx-3090",),
)
OPCODES = {
    "PROTO", "FRAME", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "BININT", "BININT1",
    "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "SETITEM", "SETITEMS", "APPEND", "APPENDS", "TUPLE1", "TUPLE2",
    "TUPLE3", "TUPLE", "NONE", "NEWTRUE", "NEWFALSE", "STOP",
}  # fmt: skip
"""what the unpickler of torch/utils/viz/MemoryViz.js understands"""


@pytest.fixture(name="report", scope="module", params=CASES, ids=" ".join)
def report_fixture(request):
    return simulate(*request.param)


@pytest.fixture(name="snapshot", scope="module")
def snapshot_fixture(report):
    return memory_snapshot(report, fullest(report))


def levels(snapshot, key="block_size"):
    """(allocated, reserved) after each entry [B]."""
    allocated = reserved = 0
    for entry in snapshot["device_traces"][0]:
        action = entry["action"]
        allocated += {"alloc": 1, "free_completed": -1}.get(action, 0) * entry.get(key, 0)
        reserved += {"segment_alloc": 1, "segment_map": 1, "segment_free": -1}.get(action, 0) * entry["size"]
        yield allocated, reserved


def test_the_peaks_are_those_of_the_report(report, snapshot):
    rows = list(levels(snapshot))
    device = next(device for device in report.measured.memory.devices if device.rank == fullest(report))
    assert max(allocated for allocated, _ in rows) == device.allocated_bytes
    assert max(reserved for _, reserved in rows) == device.reserved_bytes
    document = report.document()["memory"]
    assert max(allocated for allocated, _ in rows) == document["peak_allocated_bytes"]
    assert max(reserved for _, reserved in rows) == document["peak_reserved_bytes"]


def test_what_was_asked_for_is_the_sum_of_the_tensors(report, snapshot):
    """Sizes of entries are requests, so they are at most the blocks and add up to what is live in the end."""
    asked = [allocated for allocated, _ in levels(snapshot, "size")]
    got = [allocated for allocated, _ in levels(snapshot)]
    assert all(a <= b for a, b in zip(asked, got, strict=True))
    assert asked[-1] == sum(segment["requested_size"] for segment in snapshot["segments"])
    assert got[-1] == sum(segment["allocated_size"] for segment in snapshot["segments"])


def test_the_state_in_the_end_follows_from_the_entries(snapshot):
    """Blocks fill their segments without a gap, and the live ones are those that the entries leave."""
    live = {}
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["block_size"]
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["block_size"]
    found = {}
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
            if block["state"] == "active_allocated":
                found[block["address"]] = block["size"]
        assert address == segment["address"] + segment["total_size"]
    assert found == live
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == list(levels(snapshot))[-1][1]


def test_blocks_lie_in_segments_and_never_overlap(snapshot):
    """Every block at every time: inside reserved memory, beside all other live blocks."""
    segments, live = [], {}
    for entry in snapshot["device_traces"][0]:
        begin = entry.get("addr", 0)
        if entry["action"] in ("segment_alloc", "segment_map"):
            segments.append([begin, begin + entry["size"]])
            segments = joined(segments)
        elif entry["action"] == "segment_free":
            segments.remove([begin, begin + entry["size"]])
        elif entry["action"] == "alloc":
            end = begin + entry["block_size"]
            assert any(low <= begin and end <= high for low, high in segments)
            live[begin] = end
        elif entry["action"] == "free_completed":
            del live[begin]
    ordered = sorted(live.items())
    assert all(end <= following for (_, end), (following, _) in pairwise(ordered))


def joined(segments):
    """Neighbours as one: mapped memory grows."""
    found = []
    for low, high in sorted(segments):
        if found and found[-1][1] == low:
            found[-1][1] = high
        else:
            found.append([low, high])
    return found


def test_times_and_frames(report, snapshot):
    entries = snapshot["device_traces"][0]
    times = [entry["time_us"] for entry in entries]
    assert times == sorted(times)
    assert times[-1] <= round(report.timeline.makespan * 1e6)
    for entry in entries:
        assert all(set(frame) == {"name", "filename", "line"} for frame in entry["frames"])
        if entry["action"] in ("alloc", "free_requested", "free_completed"):
            assert len(entry["frames"]) == 2
    first = next(entry for entry in entries if entry["action"] == "alloc")
    assert first["frames"][1]["name"] == "before the step"
    assert first["frames"][0]["filename"] == first["category"]
    assert entries[-1]["action"] == "snapshot"
    assert entries[-1]["category"] == "unknown"  # the viewer stops at categories without it


def test_categories_add_up_to_the_report(report, snapshot):
    """At the first entry with the highest level, each category holds what the report says, its rounding aside."""
    device = next(device for device in report.measured.memory.devices if device.rank == fullest(report))
    rows = [allocated for allocated, _ in levels(snapshot)]
    held = Counter()
    for entry in snapshot["device_traces"][0][: rows.index(max(rows)) + 1]:
        sign = {"alloc": 1, "free_completed": -1}.get(entry["action"], 0)
        if sign:
            held[entry["category"]] += sign * entry["block_size"]
    inside = {name: size for name, size in device.at_peak.items() if size and name not in ("context", "communicators", "fragmentation")}
    assert {name: size for name, size in held.items() if size} == inside


def test_the_file_is_one_that_the_viewer_reads(report):
    packed = []
    for _ in range(2):
        out = io.BytesIO()
        assert write_memory_snapshot(report, out) == fullest(report)
        packed.append(out.getvalue())
    assert packed[0] == packed[1]
    assert {opcode.name for opcode, _, _ in pickletools.genops(packed[0])} <= OPCODES
    assert packed[0][1] == 4  # protocols 2 to 4
    loaded = pickle.loads(packed[0])
    assert list(loaded) == ["segments", "device_traces", "allocator_settings", "external_annotations"]
    assert max(entry.get("addr", 0) for entry in loaded["device_traces"][0]) < 2**53  # exact in JavaScript


def test_what_does_not_fit_is_marked():
    report = simulate("llama-7b-ddp-8x-a100")
    assert not report.fits
    entries = memory_snapshot(report, 0)["device_traces"][0]
    marks = [place for place, entry in enumerate(entries) if entry["action"] == "oom"]
    assert len(marks) == 1
    device = report.measured.memory.devices[0]
    room = report.capacity(device) - device.at_peak["context"] - device.at_peak["communicators"]
    reserved = sum(entry["size"] for entry in entries[: marks[0]] if entry["action"] == "segment_alloc")
    mark, refused = entries[marks[0]], entries[marks[0] + 1]
    assert mark["device_free"] == room - reserved
    assert refused["action"] == "segment_alloc"
    assert mark["size"] == refused["size"] > mark["device_free"] >= 0


def test_ranks_that_are_not_there():
    report = simulate("gpt2-ddp-4x-a100")
    with pytest.raises(ValueError, match="rank 3 was not simulated; it does what rank 0 does"):
        memory_snapshot(report, 3)
    with pytest.raises(ValueError, match=r"rank 9 was not simulated$"):
        memory_snapshot(report, 9)

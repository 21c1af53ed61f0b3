"""PyTorch's own tools on our memory snapshots (``torch.cuda._memory_viz``): every verb runs, and its sums are the report's."""

from __future__ import annotations

import pickle
import re

import pytest
from torch_side import torch  # noqa: F401 - skips where PyTorch is missing

from parsim.report.memory_snapshot import fullest, memory_snapshot
from parsim.run import simulate


@pytest.fixture(name="case", params=["segments", "expandable", "exact"], scope="module")
def case_fixture(request):
    report = simulate("gpt2-ddp-4x-a100", f"software.memory.allocator={request.param}")
    return report, memory_snapshot(report, fullest(report))


@pytest.fixture(name="viz", scope="module")
def viz_fixture():
    from torch.cuda import _memory_viz

    return _memory_viz


def test_stats_accounts_for_every_byte(case, viz):
    """segsum raises an AssertionError where blocks do not fill their segments."""
    _, snapshot = case
    text = viz.segsum(snapshot)
    held = sum(segment["total_size"] for segment in snapshot["segments"])
    assert f"segments: {len(snapshot['segments'])}\n" in text
    assert f"total_reserved: {viz.Bytes(held)}\n" in text


def test_trace_lists_every_entry(case, viz):
    report, snapshot = case
    entries = snapshot["device_traces"][0]
    text = viz.trace(snapshot)
    assert text.startswith(f"Device 0 ----------------\n{len(entries)} entries\n")
    reserved = [entry for entry in entries if entry["action"] == "segment_alloc"]
    assert len(re.findall(r"cudaMalloc\(", text)) == len(reserved)
    freed = [entry for entry in entries if entry["action"] == "free_requested"]
    assert len(re.findall(r"^del ", text, re.MULTILINE)) == len(freed)
    if reserved and not any(entry["action"] == "segment_free" for entry in entries):
        assert sum(entry["size"] for entry in reserved) == report.document()["memory"]["peak_reserved_bytes"]


def test_plots_hold_the_snapshot(case, viz):
    _, snapshot = case
    for page in (viz.trace_plot(snapshot), viz.trace_plot(snapshot, plot_segments=True), viz.segment_plot(snapshot)):
        assert "MemoryViz.js" in page
        assert '"name": "snapshot.pickle"' in page


def test_pairs_can_be_filtered(case, viz):
    """What was allocated and freed drops out; what stays is what the segments hold."""
    _, snapshot = case
    copied = pickle.loads(pickle.dumps(snapshot))
    left = viz.filter_alloc_free_pairs(copied)["device_traces"][0]
    kept = [entry["size"] for entry in left if entry["action"] == "alloc"]
    assert sum(kept) == sum(segment["requested_size"] for segment in snapshot["segments"])
    assert not any(entry["action"].startswith("free") for entry in left)


@pytest.mark.parametrize("verb", ["memory", "segments"])
def test_flame_graph_rows_add_up(case, viz, verb):
    """The rows for flamegraph.pl (a script that would be downloaded) carry every reserved byte, split as the segments say."""
    _, snapshot = case
    rows = [row.rsplit(" ", 1) for row in getattr(viz, verb)(snapshot, format_flamegraph=str.splitlines)]
    sums = {}
    for names, size in rows:
        state = next(part for part in names.split(";") if part in ("active_allocated", "inactive"))
        sums[state] = sums.get(state, 0) + int(size)
    segments = snapshot["segments"]
    live = sum(segment["allocated_size"] for segment in segments)
    free = sum(segment["total_size"] for segment in segments) - live
    assert sums == {"active_allocated": live} | ({"inactive": free} if free else {})

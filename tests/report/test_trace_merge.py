"""Simulated and recorded traces side by side: what moves, what stays, and what Perfetto says of the result."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_checker import import_errors

from parsim.calibration.kineto import parse_trace, read_trace
from parsim.report.chrome_trace import write_chrome_trace
from parsim.report.trace_files import merge, rank_of, write_merged, write_per_rank, write_trace
from parsim.run import simulate

SAMPLE = Path(__file__).parent.parent / "data" / "kineto" / "gpu-step.json"


@pytest.fixture(name="simulated", scope="module")
def simulated_fixture():
    return simulate("gpt2-ddp-4x-a100")


@pytest.fixture(name="unfolded", scope="module")
def unfolded_fixture():
    return simulate("gpt2-ddp-4x-a100", unfolded=True)


def document(report, **options):
    out = io.StringIO()
    write_chrome_trace(report, out, **options)
    return json.loads(out.getvalue())


RECORDED = [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 5000.0, "args": {"name": "python"}},
    {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 5000.0, "args": {"labels": "GPU 0"}},
    {"ph": "M", "name": "process_sort_index", "pid": 0, "tid": 0, "ts": 5000.0, "args": {"sort_index": 16777216}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 5000.0, "args": {"name": "stream 7 "}},
    {"ph": "M", "name": "thread_name", "pid": 1234, "tid": 99, "ts": 5000.0, "args": {"name": "thread 99 (python)"}},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#5", "pid": 1234, "tid": 99, "ts": 5000.5, "dur": 1000.0, "args": {}},
    {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 1234,
        "tid": 99,
        "ts": 5001.0,
        "dur": 2.0,
        "args": {"correlation": 8},
    },
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5010.125, "dur": 20.0, "args": {"correlation": 8}},
    {"ph": "s", "id": 8, "pid": 1234, "tid": 99, "ts": 5001.5, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 8, "pid": 0, "tid": 7, "ts": 5010.125, "cat": "ac2g", "name": "ac2g", "bp": "e"},
]


def test_a_recorded_trace_stands_beside_the_simulated_one(simulated):
    ours = document(simulated)
    events = merge(ours["traceEvents"], RECORDED, label="real", rank=0)
    assert import_errors({"traceEvents": events}) == Counter()
    assert events[: len(ours["traceEvents"])] == ours["traceEvents"]
    added = events[len(ours["traceEvents"]) :]
    assert {event["pid"] for event in added} == {1000, 1001}
    names = {event["pid"]: event["args"]["name"] for event in added if event["name"] == "process_name"}
    assert names == {1000: "real · python GPU 0", 1001: "real · process 1234"}
    orders = {event["pid"]: event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index"}
    assert (orders[0], orders[1000], orders[1001]) == (0, 1, 2)
    kernel = next(event for event in added if event["name"] == "gemm")
    assert (kernel["ts"], kernel["dur"]) == (9.625, 20.0)  # 5010.125 - 5000.5, where the step begins
    flow = {event["ph"]: event for event in added if event["ph"] in "sf"}
    used = {event["id"] for event in ours["traceEvents"] if event["ph"] in "sf"}
    assert flow["s"]["id"] == flow["f"]["id"]
    assert flow["s"]["id"] not in used


def test_inputs_stay_as_they_are(simulated):
    ours = document(simulated)["traceEvents"]
    before = json.dumps([ours, RECORDED])
    merge(ours, RECORDED)
    assert json.dumps([ours, RECORDED]) == before


def test_several_recordings_keep_apart(simulated):
    events = document(simulated)["traceEvents"]
    for label in ("first", "second", "third"):
        events = merge(events, RECORDED, label=label, rank=0)
    assert import_errors({"traceEvents": events}) == Counter()
    names = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert [names[f"{label} · python GPU 0"] for label in ("first", "second", "third")] == [1000, 2000, 3000]
    orders = [event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index" and event["pid"] >= 1000]
    assert orders == [1, 2, 3, 4, 5, 6]


def test_simulated_beside_simulated(simulated, unfolded):
    """What we write can be read as a recording, too: all arrows and slices are there twice."""
    one, two = document(simulated)["traceEvents"], document(unfolded)["traceEvents"]
    events = merge(one, two, label="unfolded")
    assert import_errors({"traceEvents": events}) == Counter()
    assert Counter(event["ph"] for event in events) == Counter(event["ph"] for event in [*one, *two])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=2), max_leaves=3
)
event_like = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from([*"XMCsftibe", 3]),
        "name": st.sampled_from(["process_name", "process_labels", "process_sort_index", "ProfilerStep#1", "k", 4]),
        "pid": st.integers(0, 9) | st.sampled_from(["Spans", "Traces", ""]) | st.just([1]),
        "ts": st.floats(0, 1e6) | st.none() | st.text(max_size=3),
        "id": st.integers(0, 99) | st.sampled_from(["0x1f", "zz"]),
        "args": st.none() | st.dictionaries(st.sampled_from(["name", "labels", "sort_index"]), json_values, max_size=2) | st.just([1]),
    },
)


@given(st.lists(event_like | json_values, max_size=8))
def test_any_recording_can_be_merged(recorded):
    """No event is lost but those that name processes anew, whatever stands in the file, and processes never meet."""
    ours = [{"ph": "X", "pid": 3, "tid": 7, "ts": 0.0, "dur": 1.0, "name": "F", "cat": "kernel"}]
    events = merge(ours, recorded)
    real = [event for event in recorded if isinstance(event, dict)]
    renamed = [e for e in real if e.get("ph") == "M" and e.get("name") in ("process_name", "process_sort_index")]
    pids = {str(event["pid"]) for event in real if "pid" in event}
    assert len(events) == 1 + len(real) - len(renamed) + 2 * len(pids)
    assert all(event["pid"] >= 1000 for event in events[1:] if "pid" in event)


def test_files_of_all_kinds(simulated, unfolded, tmp_path):
    plain, packed = tmp_path / "t.json", tmp_path / "t.json.gz"
    write_trace(simulated, plain)
    write_trace(simulated, packed)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    again = packed.read_bytes()
    write_trace(simulated, packed)
    assert packed.read_bytes() == again
    recorded = json.loads(SAMPLE.read_bytes())
    assert rank_of(recorded) == 0
    write_merged(simulated, tmp_path / "m.json", [("sample", recorded)])
    merged = json.loads((tmp_path / "m.json").read_bytes())
    assert merged["otherData"]["merged"] == ["sample"]
    whole, ours, theirs = (len(parse_trace(json.dumps(part).encode(), "t").kernels) for part in (merged, document(simulated), recorded))
    assert whole == ours + theirs
    paths = write_per_rank(unfolded, tmp_path)
    assert [path.name for path in paths] == [f"rank-{rank}.json.gz" for rank in range(4)]
    for rank, path in enumerate(paths):
        told = read_trace(path).about["distributedInfo"]
        assert (told["rank"], told["world_size"]) == (rank, 4)
        assert import_errors(json.loads(gzip.decompress(path.read_bytes()))) == Counter()

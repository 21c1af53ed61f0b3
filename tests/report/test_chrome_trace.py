"""The trace: what Kineto writes, what Perfetto reads without complaint, and the report's own figures in it."""

from __future__ import annotations

import io
import json
import re
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_checker import import_errors, nanoseconds

from parsim.calibration.kineto import parse_trace
from parsim.calibration.profile import COLLECTIVES, tables_of
from parsim.program.program import Collective
from parsim.report import Report
from parsim.report.chrome_trace import write_chrome_trace
from parsim.report.communication import link_curves
from parsim.report.timeline import COMMUNICATION, COMPUTE_LANE, KEYS, sweep
from parsim.report.trace_slices import collective_args, element, kernel_name, listed, streams
from parsim.run import simulate

SCENARIOS = (
    "gpt2-ddp-4x-a100",
    "gpt2-xl-gpipe-4x-v100",
    "gpt3-22b-8x-a100",
    "llama-7b-zero3-offload-2x-rtx-3090",
    "llama-3-8b-context-16x-h100",
    "pipeline-unit-interleaved",
    "llama-7b-zero3-8x-a100",
)
GIB = 2**30


@pytest.fixture(name="report")
def report_fixture(run, make_pipeline, make_measured):
    return Report(make_measured(run(make_pipeline(4, 8, send=0.3, optimizer=0.5)), 4, name='a "name"'))


@pytest.fixture(name="shipped", scope="module", params=SCENARIOS)
def shipped_fixture(request):
    return simulate(request.param)


def written(report, **options):
    out = io.StringIO()
    result = write_chrome_trace(report, out, **options)
    return json.loads(out.getvalue()), result


def kernels(document, rank):
    return [
        event
        for event in document["traceEvents"]
        if event["ph"] == "X" and event["pid"] == rank and event["cat"] in ("kernel", "gpu_memcpy", "cpu_op")
    ]


def test_perfetto_finds_nothing_to_complain_about(report, shipped):
    for subject in (report, shipped):
        document, _ = written(subject, most_spans=None)
        assert import_errors(document) == Counter()


def test_the_breakdown_follows_from_the_trace(shipped):
    """Sweep the events of a rank as the report sweeps its ops: the same seconds per class, to the rounding of each slice."""
    document, _ = written(shipped, most_spans=None)
    rank = shipped.breakdown_rank
    layers = defaultdict(lambda: ([], []))
    for event in kernels(document, rank):
        layer = layers[event["args"].get("stream") == 7, event["args"]["class"]]
        layer[0].append(nanoseconds(event["ts"]) * 1e-9)
        layer[1].append((nanoseconds(event["ts"]) + nanoseconds(event["dur"])) * 1e-9)
    beside = ("tensor_comm", "expert_comm", "context_comm", "pipeline_comm", "data_comm", "offload", "optimizer")
    order = [(True, key) for key in KEYS] + [(False, key) for key in (*beside, "compute", "recompute", "other", "launch")]
    order = [key for key in order if key in layers]
    times, top = sweep([tuple(map(np.array, layers[key])) for key in order], shipped.begin, shipped.end)
    found = dict.fromkeys(KEYS, 0.0)
    for layer, seconds in zip(top, np.diff(times), strict=True):
        found["bubble" if layer < 0 else order[layer][1]] += seconds
    factor = shipped.step_time / (shipped.end - shipped.begin)
    count = len(kernels(document, rank))
    assert {key: value * factor for key, value in found.items()} == pytest.approx(shipped.breakdown, abs=1e-9 * count, rel=1e-9)


def test_calibration_reads_our_trace(shipped):
    """Kernel time per class, read by the reader of PyTorch's traces, is what the report says."""
    rank = shipped.breakdown_rank
    document, _ = written(shipped, ranks=[rank], most_spans=None)
    trace = parse_trace(json.dumps(document).encode(), "trace.json")
    seconds, counts, copied = Counter(), Counter(), Counter()
    for kernel in trace.kernels:
        key = kernel.args["class"]
        if key in COMMUNICATION and "Collective name" not in kernel.args:
            copied[key] += kernel.duration * 1e-6
            continue
        seconds[key] += kernel.duration * 1e-6
        counts[key] += 1
    read = {(row.kind, row.ranks, row.bytes) for row in tables_of(trace, "").collectives}
    assert read == {(row.kind, row.group_size, row.bytes) for row in shipped.collectives if row.kind in COLLECTIVES.values()}
    if shipped.measured.window is None:
        for key in ("compute", "recompute", "optimizer"):
            if not any(lane == "cpu_step" for lane in shipped.timeline.lanes[rank]):
                assert seconds[key] == pytest.approx(shipped.breakdown[key], abs=1e-9 * (1 + counts[key]))
        busy = Counter()
        for row in shipped.collectives:
            busy[f"{row.axis}_comm"] += row.busy_s
        for key in COMMUNICATION:
            assert seconds[key] == pytest.approx(busy[key], abs=1e-9 * (1 + counts[key]))
        # kernels beside compute that are no collectives: the copies around those of ZeRO-3
        timeline = shipped.timeline
        ops = timeline.program.ops
        copies = [op for op in timeline.beside(rank).tolist() if ops[op].collective is None and ops[op].kind == "data_comm"]
        lasting = (timeline.end[copies] - timeline.start[copies]).sum()
        assert set(copied) <= {"data_comm"}
        assert copied["data_comm"] == pytest.approx(lasting, abs=1e-9 * (1 + len(copies)))
        assert (copied["data_comm"] > 0) == (shipped.document()["scenario"]["parallel"]["data"]["strategy"] == "zero3")
    assert trace.devices[0]["name"] == shipped.measured.profiled.gpus[rank].name
    assert trace.about["distributedInfo"]["world_size"] == shipped.measured.ranks.total


def test_counters_reach_the_peaks(shipped):
    """The highest value of a counter is the report's peak, to the byte."""
    document, result = written(shipped)
    highest = defaultdict(float)
    for event in document["traceEvents"]:
        if event["ph"] == "C" and "GiB" in event["args"]:
            key = event["pid"], event["name"]
            highest[key] = max(highest[key], event["args"]["GiB"] * GIB)
    devices = [device for device in shipped.measured.memory.devices if device.rank in result.ranks and device.curve is not None]
    for device in devices:
        assert highest[device.rank, "memory allocated"] == device.allocated_bytes
        assert highest[device.rank, "memory reserved"] == device.reserved_bytes
    if devices:
        worst = shipped.worst_device
        assert highest[worst.rank, "memory reserved"] + worst.at_peak["context"] + worst.at_peak["communicators"] == worst.device_used_bytes


def test_link_counters_carry_the_bytes_of_the_links(shipped):
    """The integral of a curve is what the engine's links carried, all of them together.

    A curve spreads every transfer evenly over its time, so that where transfers with changing rates meet it can show 1 % more than a link.
    """
    measured = shipped.measured
    curves = link_curves(shipped.timeline, measured.profiled.loads, measured.links, shipped.timeline.makespan)
    carried, copies = Counter(), Counter(measured.links.values())
    for link, use in measured.trace.links.items():
        if (kind := measured.links.get(link)) is not None:
            carried[f"{kind.name} ({kind.kind})"] += use.bytes * kind.count / copies[kind]
    assert {curve.name: curve.bytes for curve in curves} == pytest.approx({name: size for name, size in carried.items() if size}, rel=1e-9)
    assert all(curve.share.max() <= 1.01 for curve in curves)
    document, _ = written(shipped)
    names = {event["name"] for event in document["traceEvents"] if event["ph"] == "C" and "%" in event["args"]}
    assert names == {f"use of {curve.name}" for curve in curves if curve.share.max() > 5e-9}


def test_times_are_microseconds_with_three_decimals(run, make_pipeline, make_measured):
    report = Report(make_measured(run(make_pipeline(2, 3, forward=1 / 3e6, backward=2 / 3e6)), 2, micro_batches=3))
    out = io.StringIO()
    write_chrome_trace(report, out)
    stamps = re.findall(r'"(?:ts|dur)":([^,}]+)', out.getvalue())
    assert stamps
    assert all(re.fullmatch(r"\d+\.\d{3}", stamp) for stamp in stamps)
    first = kernels(json.loads(out.getvalue()), 0)[:2]
    assert [(event["ts"], event["dur"]) for event in first] == [(0.0, 0.333), (0.333, 0.334)]


def test_every_send_has_its_arrow(report):
    events = written(report)[0]["traceEvents"]
    flows = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]][event["ph"]] = event
    assert len(flows) == 2 * 3 * 8  # every activation and every gradient
    ends = {
        (event["args"]["correlation"], event["args"]["Collective name"]): event
        for event in events
        if event["ph"] == "X" and "SendRecv" in event["name"]
    }
    for number, pair in flows.items():
        send, receive = ends[number + 1, "send"], ends[number + 1, "recv"]
        assert (pair["s"]["pid"], pair["f"]["pid"]) == (send["pid"], receive["pid"])
        assert send["args"]["Dst Rank"] == receive["pid"]
        assert receive["args"]["Src Rank"] == send["pid"]
        assert send["ts"] < pair["s"]["ts"] < pair["f"]["ts"] < receive["ts"] + receive["dur"]


def test_the_head_is_that_of_kineto():
    document, _ = written(simulate("gpt2-ddp-4x-a100"))
    assert document["schemaVersion"] == 1
    assert document["baseTimeNanoseconds"] == 0
    assert document["displayTimeUnit"] == "ms"
    assert document["deviceProperties"] == [{"id": 0, "name": "A100 SXM 80GB", "totalGlobalMem": 85094039552, "numSms": 108}]
    told = document["distributedInfo"]
    assert (told["backend"], told["rank"], told["world_size"], told["pg_count"]) == ("nccl", 0, 4, 2)
    assert told["pg_config"] == [
        {"pg_name": "default_pg", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": "data 0-3 x4", "pg_desc": "data", "backend_config": "cuda:nccl", "pg_size": 4, "ranks": [0, 1, 2, 3]},
    ]
    named = {(event["name"], event["tid"]): event["args"] for event in document["traceEvents"] if event["ph"] == "M" and event["pid"] == 0}
    assert named["process_labels", 0] == {"labels": "GPU 0"}
    assert named["thread_name", 7] == {"name": "stream 7 (compute)"}
    assert named["thread_name", 20] == {"name": "stream 20 (data)"}
    assert named["thread_name", 1] == {"name": "thread 1 (python)"}
    step = next(event for event in document["traceEvents"] if event.get("cat") == "user_annotation")
    assert step["name"] == "ProfilerStep#0"


def test_a_collective_is_named_as_nccl_names_it():
    report = simulate("gpt2-ddp-4x-a100")
    document, _ = written(report)
    reduce = next(event for event in kernels(document, 0) if event["args"]["class"] == "data_comm")
    assert re.fullmatch(r"ncclDevKernel_AllReduce_Sum_(f32|bf16|f16)_(RING|TREE)_LL\(ncclDevKernelArgsStorage<4096ul>\)", reduce["name"])
    args = reduce["args"]
    size = {"Float": 4, "BFloat16": 2, "Half": 2}[args["dtype"]]
    assert args["In msg nelems"] * size == args["Out msg nelems"] * size == args["bytes"]
    assert (args["Collective name"], args["Group size"], args["stream"]) == ("allreduce", 4, 20)
    assert (args["Process Group Name"], args["Process Group Description"]) == ("data 0-3 x4", "data")
    assert args["Process Group Ranks"] == "[0, 1, 2, 3]"


@pytest.mark.parametrize(
    ("kind", "dtype", "algorithm", "name"),
    [
        ("all_reduce", "BFloat16", "ring", "AllReduce_Sum_bf16_RING_LL"),
        ("all_reduce", "Half", "tree", "AllReduce_Sum_f16_TREE_LL"),
        ("all_reduce", "Float", "nvls_tree", "AllReduce_Sum_f32_RING_LL"),
        ("reduce_scatter", "Float", "ring", "ReduceScatter_Sum_f32_RING_LL"),
        ("all_gather", "BFloat16", "ring", "AllGather_RING_LL"),
        ("broadcast", "BFloat16", "ring", "Broadcast_RING_LL"),
        ("send", "BFloat16", "ring", "SendRecv"),
        ("all_to_all", "BFloat16", "ring", "SendRecv"),
    ],
)
def test_kernel_names(kind, dtype, algorithm, name):
    found = kernel_name(Collective(kind, "data", (0, 1), 8), dtype, algorithm)
    assert found == f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("kind", "axis", "bytes_", "expected"),
    [
        ("all_reduce", "data", 4000, ("Float", 1000)),
        ("all_gather", "data", 4000, ("BFloat16", 2000)),
        ("all_reduce", "tensor", 4000, ("Half", 2000)),
        ("all_reduce", "data", 4, ("Float", 1)),
        ("all_reduce", "pipeline", 4000, ("BFloat16", 2000)),
        ("send", "pipeline", 4001, ("Byte", 4001)),
    ],
)
def test_element_types(kind, axis, bytes_, expected):
    types = {"activations": "Half", "parameters": "BFloat16", "gradients": "BFloat16", "reduce": "Float"}
    assert element(Collective(kind, axis, (0, 1), bytes_), types) == expected


def test_elements_in_and_out():
    """nccl-tests' bytes are those of the whole buffer of a gather and of the send buffer of a scatter."""
    group = (0, 1, 2, 3)
    pairs = {
        kind: (args["In msg nelems"], args["Out msg nelems"])
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        for args in [collective_args(Collective(kind, "data", group, 800), "BFloat16", 400)]
    }
    assert pairs == {"all_reduce": (400, 400), "all_gather": (100, 400), "reduce_scatter": (400, 100), "all_to_all": (400, 400)}
    assert listed(tuple(range(30))).count(",") == 29
    assert listed(tuple(range(64))) == f"[{', '.join(map(str, range(29)))}, ..., 63]"


@given(
    st.sets(st.sampled_from(["compute", "tensor", "data", "send forward", "receive forward", "d2h", "h2d", "launch", "cpu_step", "world"]))
)
def test_threads_have_numbers_of_their_own(lanes):
    found = streams(lanes)
    assert set(found) == lanes
    assert len(set(found.values())) == len(lanes)
    assert found.get(COMPUTE_LANE, 7) == 7
    assert 1 not in found.values()


def test_copies_and_the_host():
    report = simulate("llama-7b-zero3-offload-2x-rtx-3090")
    document, _ = written(report, most_spans=None)
    copies = [event for event in kernels(document, 0) if event["cat"] == "gpu_memcpy"]
    assert {event["name"] for event in copies} == {"Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"}
    for event in copies:
        assert event["args"]["memory bandwidth (GB/s)"] == pytest.approx(event["args"]["bytes"] / nanoseconds(event["dur"]), rel=1e-5)
    host = [event for event in kernels(document, 0) if event["cat"] == "cpu_op"]
    assert {event["args"]["class"] for event in host} >= {"optimizer"}
    assert not any("stream" in event["args"] for event in host)


def test_annotations_hold_the_kernels_of_their_micro_batch(report):
    document, _ = written(report)
    notes = [event for event in document["traceEvents"] if event.get("cat") == "gpu_user_annotation"]
    assert Counter(event["name"].split(" micro-batch")[0] for event in notes) == {"forward": 4 * 8, "backward": 4 * 8}
    for note in notes:
        inside = [
            event
            for event in kernels(document, note["pid"])
            if event["tid"] == note["tid"] and note["ts"] <= event["ts"] < note["ts"] + note["dur"]
        ]
        assert {event["args"]["micro-batch"] for event in inside} == {int(note["name"].split()[-1])}


def test_what_is_left_out_is_said(report):
    document, result = written(report, most_ranks=2, most_spans=10)
    assert len(result.ranks) <= 2
    assert 0 in result.ranks
    assert document["otherData"]["spans_written"] == result.spans == sum(len(kernels(document, rank)) for rank in result.ranks)
    assert 10 <= result.spans <= 14  # those that start together stay together
    assert document["otherData"]["spans_left_out"] == result.spans_left_out > 0
    assert document["otherData"]["ranks_total"] == 4
    assert document["otherData"]["scenario"] == 'a "name"'
    only, _ = written(report, ranks=[2])
    assert {event["pid"] for event in only["traceEvents"]} == {2}
    with pytest.raises(ValueError, match="rank 9 was not simulated"):
        written(report, ranks=[9])


def test_the_same_run_gives_the_same_bytes():
    texts = set()
    for _ in range(2):
        out = io.StringIO()
        write_chrome_trace(simulate("gpt2-xl-gpipe-4x-v100"), out)
        texts.add(out.getvalue())
    assert len(texts) == 1


def test_the_checker_checks(report):
    """Each way to break a trace is noticed under the importer's name for it."""

    def broken(change):
        document, _ = written(report)
        change(document["traceEvents"])
        return set(import_errors(document))

    def first(events, phase):
        return next(event for event in events if event["ph"] == phase and event.get("cat") != "user_annotation")

    assert broken(lambda events: first(events, "X").pop("ts")) >= {"json_tokenizer_failure"}
    assert broken(lambda events: first(events, "C")["args"].update(more=1)) == {"json_parser_failure"}
    assert broken(lambda events: first(events, "s").update(ts=1e12)) >= {"flow_no_enclosing_slice"}
    assert broken(lambda events: first(events, "f").update(id=10**9)) == {"flow_end_without_start", "own_flow_without_end"}
    assert broken(lambda events: first(events, "s").update(id="x")) >= {"flow_invalid_id"}
    assert broken(lambda events: first(events, "X").update(dur=first(events, "X")["dur"] + 5e5)) >= {
        "slice_drop_overlapping_complete_event"
    }
    assert broken(lambda events: first(events, "X").update(tid=99)) == {"own_thread_without_name"}

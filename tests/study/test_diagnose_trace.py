"""`parsim diagnose --trace`: what a trace holds by class, and which causes it shows."""

import csv
import gzip
import importlib.util
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from parsim import load, simulate
from parsim.calibration.recorded import read_recorded
from parsim.errors import PlanError, ScenarioError
from parsim.report.chrome_trace import write_chrome_trace
from parsim.scenario.build import build
from parsim.study.diagnose_classes import (
    ATTENTION,
    GEMM,
    MEMORY,
    OPTIMIZER,
    GpuSlice,
    Recorded,
    Timed,
    Window,
    features,
    predicted,
    told_apart,
)
from parsim.study.diagnose_files import write_comparison
from parsim.study.diagnose_trace import attributed, suspects

ROOT = Path(__file__).resolve().parents[2]
DDP = {
    "model": {"base": "gpt2", "layers": 1},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 2},
    "training": {"sequence_length": 512, "micro_batch": 2, "gradient_accumulation": 1},
    "parallel": {"data": {"strategy": "ddp"}},
}


@pytest.fixture(scope="module")
def cases():
    """validation/diagnose/cases.py."""
    spec = importlib.util.spec_from_file_location("diagnose_cases", ROOT / "validation/diagnose/cases.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def quiet(_doing, causes, _total):
    return causes


def one(*stretches, begin=0.0, end=10.0, steps=1):
    return Recorded({0: (Window(begin, end, stretches, steps),)})


class TestFeatures:
    def test_a_step_by_hand(self):
        """Compute 1-5; all-reduce 4-7, of which 5-7 is exposed; idle before 1, idle after 3."""
        run = one(GpuSlice(GEMM, "g", 1.0, 3.0), GpuSlice(MEMORY, "m", 4.0, 1.0), GpuSlice("comm all_reduce x4", "c", 4.0, 3.0))
        assert {key[1]: value for key, value in features(run).items()} == {
            GEMM: 3.0, MEMORY: 1.0, "#gemm": 1.0, "comm all_reduce x4": 3.0, "waiting for others": 0.0,
            "exposed communication": 2.0, "idle before": 1.0, "idle within": 0.0, "idle after": 3.0,
        }  # fmt: skip

    def test_what_is_longer_than_the_others_of_its_kind_waited(self):
        """Lengths 1, 1, 1 and 4 of the same bytes: the last waited 3, and moves data in its last second."""
        comm = [GpuSlice("comm all_reduce x4", "c", place, 1.0, bytes=8) for place in (1.0, 2.0, 3.0)]
        found = features(one(*comm, GpuSlice("comm all_reduce x4", "c", 5.0, 4.0, bytes=8)))
        assert (found[0, "comm all_reduce x4"], found[0, "waiting for others"], found[0, "idle within"]) == (4.0, 3.0, 1.0)

    def test_who_came_last_did_not_wait(self):
        """The same collective is 5 s long on the rank that came first and 1 s on the last: moving the data takes 1 s."""

        def window(length):
            return (Window(0.0, 6.0, (GpuSlice("comm all_reduce x2", "c", 6.0 - length, length, bytes=8),)),)

        found = features(Recorded({0: window(5.0), 1: window(1.0)}))
        assert (found[0, "comm all_reduce x2"], found[0, "waiting for others"]) == (1.0, 4.0)
        assert (found[1, "comm all_reduce x2"], found[1, "waiting for others"]) == (1.0, 0.0)

    def test_per_step(self):
        assert features(one(GpuSlice(GEMM, "g", 0.0, 6.0, count=4), steps=2))[0, GEMM] == 3.0
        two = Recorded({0: (Window(0.0, 2.0, (GpuSlice(GEMM, "g", 0.0, 1.0),)), Window(2.0, 4.0, (GpuSlice(GEMM, "g", 2.0, 2.0),)))})
        assert features(two)[0, GEMM] == 1.5
        assert two.step_time == 2.0

    def test_durations_remember_their_classes(self):
        gemm, memory = Timed.of(2.0, (2.0, 0, 0, 1.0, 0, 0)), Timed.of(1.0, (0, 0, 1.0, 0, 0, 3.0))
        total = sum([gemm, memory, gemm])
        assert (float(total), total.parts) == (5.0, (4.0, 0, 1.0, 2.0, 0, 3.0))
        assert (total / 2).parts == (2.0, 0, 0.5, 2.0, 0, 3.0)
        assert type(total + 1.0) is float

    def test_a_predicted_step_is_what_the_report_says(self):
        """Classes of compute sum to the breakdown's compute, and with exposed communication and the optimizer to the step."""
        scenario = load(DDP)
        found, report = features(predicted(scenario, [0])), simulate(scenario)
        compute = sum(found[0, kind] for kind in (GEMM, ATTENTION, MEMORY))
        assert compute == pytest.approx(report.breakdown["compute"], rel=1e-9)
        assert found[0, OPTIMIZER] == pytest.approx(report.breakdown["optimizer"], rel=1e-9)
        assert found[0, "comm all_reduce x2"] == pytest.approx(sum(row.busy_s for row in report.collectives), rel=1e-9)
        idle = found[0, "idle before"] + found[0, "idle within"] + found[0, "idle after"]
        rest = compute + found[0, OPTIMIZER] + found[0, "exposed communication"] + idle
        assert rest == pytest.approx(report.step_time, rel=1e-9)


class TestReading:
    def test_kernels_by_name(self):
        """gpu-step.json: sums of the durations in the file, and the collectives with their ranks."""
        found = features(read_recorded([ROOT / "tests/data/kineto/gpu-step.json"], 1))
        products = 2400 + 2300 + 60 + 2500 + 2350 + 40 + 44 + 41  # us; with the reduction of a split product
        assert found[0, GEMM] == pytest.approx(products * 1e-6)
        assert found[0, ATTENTION] == pytest.approx((520 + 1400) * 1e-6)
        assert {key[1] for key in found if key[1].startswith("comm")} == {
            "comm all_reduce x8", "comm reduce_scatter x8", "comm all_gather x8",
        }  # fmt: skip

    def test_marked_steps_and_the_rank(self, tmp_path):
        events = []
        for step in range(3):
            at = 1000.0 * step
            events.append(
                {"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 1000, "pid": 0, "tid": 7}
            )
            events.append(
                {"ph": "X", "cat": "kernel", "name": "flash_bwd_kernel", "ts": at + 100, "dur": 200 + 100 * step, "pid": 0, "tid": 7}
            )
        path = tmp_path / "trace.json.gz"
        path.write_bytes(gzip.compress(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 5}}).encode()))
        run = read_recorded([path])
        assert features(run)[5, ATTENTION] == pytest.approx(300e-6)
        assert run.step_time == pytest.approx(1e-3)
        assert features(run)[5, "#attention"] == 1.0
        with pytest.raises(ScenarioError, match="2 steps, but the profiler marked 3"):
            read_recorded([path], 2)

    def test_files_that_are_none_are_all_named(self, tmp_path):
        (tmp_path / "cpu.json").write_text(
            json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]})
        )
        (tmp_path / "text.json").write_text("hello")
        with pytest.raises(ScenarioError) as caught:
            read_recorded([tmp_path / "cpu.json", tmp_path / "text.json", tmp_path / "none.json"])
        assert [finding.message[:24] for finding in caught.value.findings] == [
            "holds no work of a GPU",
            "not JSON: Expecting valu",
            "no such file",
        ]

    def test_the_same_rank_twice(self, tmp_path):
        text = (ROOT / "tests/data/kineto/gpu-step.json").read_text()
        paths = [tmp_path / "rank0.json", tmp_path / "again-rank0.json"]
        for path in paths:
            path.write_text(text)
        with pytest.raises(ScenarioError, match="rank 0 stands in an earlier file, too"):
            read_recorded(paths, 1)


class TestOwnTraces:
    """A trace that parsim wrote names ops, not kernels."""

    def written(self, change, path):
        with path.open("w") as out:
            write_chrome_trace(simulate(load(DDP).with_overrides(change)), out)
        return read_recorded([path])

    def test_an_unchanged_trace_is_divided_as_predicted(self, tmp_path):
        run, like = self.written("name=the same", tmp_path / "trace.json"), predicted(load(DDP), [0])
        found, truth = features(told_apart(run, like)), features(like)
        for kind in (GEMM, ATTENTION, MEMORY, "#gemm", "#attention"):
            assert found[0, kind] == pytest.approx(truth[0, kind], rel=2e-3), kind

    def test_kernels_are_told_apart_by_what_ops_are_made_of(self, tmp_path):
        """HBM at 0.7 of its efficiency. One factor per class is an approximation: small kernels keep the fixed part of their time."""
        run = self.written("cluster.set.device.memory.efficiency=x0.7", tmp_path / "trace.json")
        scenario = load(DDP)
        truth = features(predicted(scenario.with_overrides("cluster.set.device.memory.efficiency=x0.7"), [0]))
        found = features(told_apart(run, predicted(scenario, [0])))
        assert found[0, GEMM] + found[0, MEMORY] + found[0, ATTENTION] == pytest.approx(
            truth[0, GEMM] + truth[0, MEMORY] + truth[0, ATTENTION], rel=1e-6
        )
        assert found[0, MEMORY] == pytest.approx(truth[0, MEMORY], rel=0.1)

    def test_the_cause_is_found(self, tmp_path):
        scenario = load(DDP)
        for number, (change, name) in enumerate(
            [
                ("software.step_constant=4 ms", "step_constant"),
                ("cluster.set.device.memory.efficiency=x0.6", "memory"),
                ("training.recompute=full", "recompute"),
            ]
        ):
            run = self.written(change, tmp_path / f"{number}.json")
            found = attributed(scenario, build(scenario), simulate(scenario), run, quiet)
            assert found.ranking[0].cause.name == name
            assert found.after < 0.1 * found.before


class TestAttributed:
    def test_an_unchanged_run_needs_no_cause(self):
        scenario = load(DDP)
        found = attributed(scenario, build(scenario), simulate(scenario), predicted(scenario, [0]), quiet)
        assert (found.best, found.before) == ((), pytest.approx(0.0, abs=1e-9))

    def test_the_value_and_what_it_leaves(self):
        scenario = load(DDP)
        run = predicted(scenario.with_overrides("cluster.set.device.memory.efficiency=0.6"), [0])
        found = attributed(scenario, build(scenario), simulate(scenario), run, quiet)
        first = found.ranking[0]
        assert (found.best, first.cause.name) == (("memory",), "memory")
        assert first.value == pytest.approx(0.6, rel=0.02)
        assert first.error == pytest.approx(0.025, rel=0.5)
        assert found.after < 0.05

    def test_ranks_that_the_scenario_does_not_have(self):
        scenario = load(DDP)
        strange = Recorded({7: predicted(scenario, [0]).ranks[0]})
        with pytest.raises(ScenarioError, match="rank 7 is in the trace, the scenario has 2"):
            attributed(scenario, build(scenario), simulate(scenario), strange, quiet)

    def test_a_schedule_without_the_end_of_a_step(self):
        scenario = load(
            {**DDP, "training": {**DDP["training"], "gradient_accumulation": 4}},
            "model.layers=2",
            "parallel.pp=2",
            "parallel.pipeline.schedule=pipedream",
        )
        with pytest.raises(PlanError, match="without a flush"):
            attributed(scenario, build(scenario), simulate(scenario), Recorded({}), quiet)

    def test_the_slowest_recorded_rank_is_suspected_and_one_that_was_not_recorded(self):
        scenario = load(DDP).with_overrides("cluster.gpus=4")
        base = predicted(scenario, [0, 1])
        run = predicted(scenario.with_overrides("variability.slow=[{rank: 1, speed: 0.8}]"), [0, 1])
        assert suspects(run, base, 4) == [1, 2]


def test_both_sides_in_one_file_without_overlaps(tmp_path):
    """Every track's slices follow each other; the recorded step begins at 0 like the predicted one."""
    scenario = load(DDP)
    side = predicted(scenario, [0, 1])
    count = write_comparison(tmp_path / "both.json", side, ("predicted", side))
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == count > 0
    tracks = {}
    for event in slices:
        tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        spans.sort()
        assert all(first[1] <= second[0] + 1e-6 for first, second in pairwise(spans))
    names = [event["args"]["name"] for event in events if event.get("name") == "process_name"]
    assert sorted(names) == ["rank 0: predicted", "rank 0: recorded", "rank 1: predicted", "rank 1: recorded"]


@pytest.mark.slow
def test_two_dozen_changed_runs(cases):
    """A draw of validation/diagnose/cases.py: one change of 30 % comes first, two come in the first three, and a time alone lists it."""
    found = list(cases.results(16, 8, seed=3, names=("DDP, NVLink", "tensor parallel")))
    single, double = [case for case in found if len(case.changes) == 1], [case for case in found if len(case.changes) == 2]
    assert (len(single), len(double)) == (16, 8)
    assert sum(case.right for case in single) >= 15
    assert sum(case.right for case in double) >= 7
    assert all(case.listed for case in single)


def test_the_table_in_the_readme_is_that_of_the_results(cases):
    with (ROOT / "validation/diagnose/results.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert cases.table(rows) in (ROOT / "validation/diagnose/README.md").read_text(encoding="utf-8")
    single, double = [row for row in rows if row["listed_with_time_only"]], [row for row in rows if not row["listed_with_time_only"]]
    assert sum(row["right"] == "true" for row in single) >= 0.9 * len(single)
    assert sum(row["right"] == "true" for row in double) >= 0.9 * len(double)
    assert all(row["listed_with_time_only"] == "true" for row in single)

"""compare(): the numbers are those of the runs, and the sentence says what the numbers say."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from io import StringIO
from math import fsum
from pathlib import Path
from typing import Any

import pytest

import parsim
from parsim.errors import DeadlockError, InputError, ScenarioError
from parsim.report import Report
from parsim.run import simulate
from parsim.scenario.load import load
from parsim.study.compare import Comparison, compare, is_argument, nothing_simulated
from parsim.study.compare_files import names
from parsim.study.compare_text import csv_text, markdown, text
from parsim.study.comparison import Run
from parsim.study.differences import METRICS, Compared, ComparedMetric, inputs, results
from parsim.study.winner import thriftiest, winner

GIB = 2**30
SMALL = """\
name: small
model: gpt2
cluster: {topology: dgx-a100-80gb, gpus: 2}
training: {sequence_length: 128, global_batch: 8, micro_batch: 4}
"""
UNIT = ("pipeline-unit-gpipe", "pipeline-unit-1f1b", "pipeline-unit-pipedream")


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def report(step: float, peak: float, capacity: float = 80.0, *, tokens: float = 1000.0, gpus: int = 8, **parts: float) -> dict[str, Any]:
    """A report with as much in it as a comparison asks for; the rest of the step is compute."""
    zero = dict.fromkeys(simulate("mlp-1x-a100").breakdown, 0.0)
    at_peak = dict.fromkeys(("parameters", "gradients", "optimizer", "activations", "buffers", "temporaries", "workspace", "context"), 0)
    at_peak |= {"communicators": 0, "fragmentation": 0, "activations": int(peak * GIB)}
    device = {
        "peak_bytes": int(peak * GIB),
        "at_peak": at_peak,
        "ranks": "0-7",
        "stage": 0,
        "in_flight_micro_batches": 1,
        "weight_versions": 1,
    }
    return {
        "step_time_s": step, "estimate": {"step_time_s": step, "of": "simulation"},
        "tokens_per_s": tokens / step, "samples_per_s": 1 / step, "ranks": {"total": gpus},
        "breakdown_s": zero | parts | {"compute": step - fsum(parts.values())}, "collectives": [],
        "memory": {"fits": peak <= capacity, "peak_bytes": int(peak * GIB), "capacity_bytes": int(capacity * GIB), "reserve_bytes": 0,
                   "headroom_bytes": int((capacity - peak) * GIB), "devices": [device]},
    }  # fmt: skip


def row(found, key: str):
    return next(result for result in found.results if result.metric.key == key)


# the numbers ------------------------------------------------------------------------------------------------------


def test_the_unit_pipelines_as_in_the_textbook() -> None:
    """(m + p - 1)(tF + tB) = 33 s twice, m (tF + tB) = 24 s without a flush; the bubble is all of the difference."""
    found = parsim.compare(*UNIT)
    assert found.labels == ("gpipe", "1f1b", "pipedream")
    step = row(found, "step_time_s")
    assert step.metric.key == "step_time_s"
    assert step.values == pytest.approx((33.0, 33.0, 24.0))
    assert step.differences == pytest.approx((0.0, 0.0, -9.0))
    assert step.relative == pytest.approx((0.0, 0.0, 24 / 33 - 1))
    by_key = {row.metric.key: row for row in (*found.results, *found.parts)}
    assert by_key["bubble_fraction"].values == pytest.approx((3 / 11, 3 / 11, 0.0))
    assert by_key["in_flight_micro_batches"].values == (8, 4, 4)
    assert by_key["weight_versions"].values == (1, 1, 4)
    assert by_key["breakdown_s.bubble"].values == pytest.approx((9.0, 9.0, 0.0))
    assert found.verdict.splitlines()[0] == "pipedream wins: 24 s per step, 27 % less than gpipe (33 s per step): 9 s less bubble."
    assert found.winner is not None
    assert found.winner.parts_s is not None
    assert found.winner.parts_s["bubble"] == pytest.approx(-9.0)


def test_each_run_is_what_run_says(small: str) -> None:
    found = compare(small, "parallel.data.strategy=ddp,zero3")
    for run, strategy in zip(found, ("ddp", "zero3"), strict=True):
        alone = simulate(small, f"parallel.data.strategy={strategy}").document()
        assert run.document is not None
        assert {**run.document, "simulation": None} == {**alone, "simulation": None}
        assert run.status == "fits"
        assert isinstance(run.report, Report)
        assert run.report.step_time == alone["step_time_s"]
    assert [label for label, _ in found.reports] == ["ddp", "zero3"]
    assert found["zero3"] is found[1]


def test_the_former_name_of_workers_is_understood(small: str) -> None:
    with pytest.warns(DeprecationWarning, match=r"compare\(jobs=...\) is now called compare\(workers=...\)"):
        found = compare(small, "training.micro_batch=1,2", jobs=1)
    assert len(found.labels) == 2


def test_processes_change_nothing(small: str) -> None:
    arguments = (small, "parallel.data.strategy=ddp,zero1", "training.micro_batch=1,2")
    one, two = compare(*arguments), compare(*arguments, workers=2)

    def timeless(comparison: Comparison) -> dict[str, Any]:
        document = comparison.document()
        for variant in document["variants"]:
            variant["report"]["simulation"].pop("wall_s")
        return document

    assert timeless(one) == timeless(two)
    for mine, other in zip(one, two, strict=True):
        assert mine.lanes is not None
        assert other.lanes is not None
        assert (mine.lanes.end, mine.lanes.bars) == (other.lanes.end, other.lanes.bars)
    # what stayed in the other process is simulated again when it is asked for
    assert two[3].report is not None
    assert two[3].report.step_time == one[3].document["step_time_s"]  # type: ignore[index]


def test_differences_of_the_parts_sum_to_the_difference_of_the_step(small: str) -> None:
    found = compare(small, "parallel.data.strategy=ddp,zero3", "training.recompute=none,full")
    step = row(found, "step_time_s").differences
    for place in range(4):
        assert fsum(row.differences[place] or 0.0 for row in found.parts) == pytest.approx(step[place], rel=1e-9, abs=1e-15)
    peaks = next(row for row in found.results if row.metric.key == "memory.peak_bytes").values
    for place in range(4):
        assert fsum(row.values[place] or 0.0 for row in found.categories) == peaks[place]
    assert found.winner is not None
    assert found.winner.against is not None
    gain = step[found.winner.place or 0] or 0.0
    gain -= step[found.winner.against] or 0.0
    assert fsum((found.winner.parts_s or {}).values()) == pytest.approx(gain, rel=1e-9)


def test_a_python_list_varies_a_key(small: str) -> None:
    found = compare(small, vary={"parallel.data.strategy": ["ddp", "zero1"], "training.recompute": [{"selective": ["attention"]}, "full"]})
    assert found.labels == (
        "ddp, recompute={selective: [attention]}",
        "ddp, full",
        "zero1, recompute={selective: [attention]}",
        "zero1, full",
    )


def test_progress_sees_every_run(small: str) -> None:
    seen: list[tuple[str, int]] = []

    def watch(runs: Any, total: int) -> Any:
        for run in runs:
            seen.append((run.label, total))
            yield run

    compare(small, "training.mbs=1,2", watch=watch)
    assert seen == [("mbs=1", 2), ("mbs=2", 2)]


# the input --------------------------------------------------------------------------------------------------------


def test_the_input_is_compared_resolved_not_as_text(small: str, tmp_path: Path) -> None:
    """Short and long forms, defaults written out and the name make no difference."""
    other = tmp_path / "other.yaml"
    other.write_text(
        "name: another\nmodel: gpt2\ncluster: {topology: dgx-a100-80gb, gpus: 2}\n"
        "training: {seq: 128, gbs: 8, mbs: 4}\nparallel: {data: {strategy: ddp}, tensor: {size: 1}}\n", encoding="utf-8",
    )  # fmt: skip
    found = compare(small, str(other))
    assert found.inputs == []
    assert "do not differ" in str(found)
    assert not any(row.differs for row in found.results)


def test_origins_say_where_a_value_comes_from(small: str) -> None:
    scenarios = [load(small), load(small, "parallel.zero=2"), None]
    (row,) = inputs(scenarios, [None, None, None])
    assert row.key == "parallel.data.strategy"
    assert row.values == ("ddp", "zero2", None)
    assert row.origins == ("default", "command line: parallel.zero=2", None)
    (row,) = inputs([load(small), load(small, "training.mbs=2")], [None, None])
    assert row.origins[0] is not None
    assert row.origins[0].endswith("small.yaml:4")


def test_a_mapping_against_a_name_is_one_difference(small: str) -> None:
    box = "cluster.topology={gpu: v100-sxm2-32gb, count: 2, interconnect: pcie3-x16}"
    rows = inputs([load(small), load(small, box)], [None, None])
    assert [row.key for row in rows] == ["cluster.topology"]
    assert rows[0].values == ("dgx-a100-80gb", "{gpu: v100-sxm2-32gb, count: 2, interconnect: pcie3-x16}")


def test_what_follows_from_the_input_is_derived(small: str) -> None:
    found = compare(small, "cluster.gpus=1,2")
    rows = {row.key: row for row in found.inputs}
    assert rows["cluster.gpus"].values == ("1", "2")
    assert rows["micro-batches"].values == ("2", "1")
    assert rows["micro-batches"].origins == ("derived", "derived")
    assert "data size" not in rows, "it says what cluster.gpus says"


# failures ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_simulated_stands_beside_what_can(small: str) -> None:
    found = compare(small, "parallel.tensor.size=3,1", "training.micro_batch=4")
    bad, good = found
    assert (bad.status, good.status) == ("refused", "fits")
    assert bad.reason.startswith("parallel.tensor.size: ")
    assert found.baseline == 1
    assert found.winner is not None
    assert found.winner.why.startswith("tp=1 is the only one that can be simulated")
    assert found.document()["variants"][0]["report"] is None
    assert found.document()["variants"][0]["errors"][0]["path"] == "parallel.tensor.size"
    assert nothing_simulated(found) is None
    shown = str(found)
    assert "tp=3 was not simulated; differences are against tp=1." in shown
    assert "Not simulated\n  tp=3: " in shown
    assert found.reports[0] == ("tp=3", bad.reason)


def test_if_nothing_can_be_simulated_all_problems_are_said_once(small: str) -> None:
    found = compare(small, "training.mbs=3,5", "training.nope=1")
    error = nothing_simulated(found)
    assert isinstance(error, InputError)
    assert [finding.path for finding in error.findings] == ["training.nope"]
    assert found.verdict == "Nothing could be simulated."
    assert names(found) == []
    with pytest.raises(InputError, match="nothing in this comparison"):
        found.figure("breakdown")


def test_a_deadlock_is_a_result(small: str) -> None:
    stopped = Run("stuck", None, "deadlock", None, None, "the program waits for itself")
    ran = compare(small, "training.mbs=1,2")[0]
    found = Comparison("two", [ran, stopped])
    assert [run.status for run in found] == ["fits", "deadlock"]
    assert "stuck: the program waits for itself" in str(found)
    only = Comparison("one", [replace(stopped, findings=load_error())])
    assert isinstance(nothing_simulated(only), DeadlockError)


def load_error() -> tuple[Any, ...]:
    with pytest.raises(ScenarioError) as error:
        load({})
    return error.value.findings[:1]


def test_an_unknown_baseline_is_said(small: str) -> None:
    with pytest.raises(ScenarioError, match=r"no variant is called 'zero4'; did you mean 'zero1'\?"):
        compare(small, "parallel.data.strategy=ddp,zero1", baseline="zero4")
    found = compare(small, "parallel.data.strategy=ddp,zero1", baseline="zero1")
    assert row(found, "step_time_s").differences[1] == 0.0


def test_key_and_value_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=3.yaml").write_text(SMALL, encoding="utf-8")
    assert is_argument("training.mbs=1,2")
    assert not is_argument("lr=3.yaml")
    assert not is_argument("runs/lr=4.yaml")
    assert not is_argument("gpt2-ddp-4x-a100")


# who wins ---------------------------------------------------------------------------------------------------------


def sentence(*reports: dict[str, Any], baseline: int = 0) -> str:
    found = winner("ABCDE"[: len(reports)], reports, baseline)
    assert found is not None
    return found.why


def test_the_fastest_that_fits_wins_and_the_parts_say_why() -> None:
    slow = report(10.0, 20.0, data_comm=3.0, bubble=1.0)
    fast = report(8.0, 20.0, data_comm=0.5, bubble=1.5)
    assert sentence(slow, fast) == (
        "B wins: 8 s per step, 20 % less than A (10 s per step): 2.5 s less exposed data-parallel communication, "
        "against 500 ms more bubble."
    )
    assert sentence(slow, fast) == sentence(fast, slow, baseline=1).replace("A", "#").replace("B", "A").replace("#", "B")
    found = winner("AB", [fast, slow], 0)
    assert found is not None
    assert (found.place, found.against) == (0, 1), "a baseline that wins is explained by the next best"


def test_what_does_not_fit_cannot_win_but_is_named() -> None:
    big, small_, slow = report(5.0, 100.0), report(8.0, 20.0), report(10.0, 20.0, recompute=2.0)
    assert sentence(slow, small_, big) == (
        "B wins: 8 s per step, 20 % less than A (10 s per step): 2 s less recomputation; C would take 5 s per step, "
        "but needs 100.0 of 80.0 GiB."
    )
    assert sentence(big, small_, slow) == (
        "B is the fastest that fits, 8 s per step; A needs 100.0 of 80.0 GiB (80.0 GiB less of activations)."
    )
    assert sentence(big, small_).startswith("B is the only one that fits")
    assert sentence(big, report(4.0, 90.0)) == "None fits; B comes closest, 10.0 GiB too much."


def test_of_equally_fast_ones_the_smaller_wins() -> None:
    text_ = sentence(report(10.0, 30.0), report(10.0, 20.0))
    assert text_ == "B is as fast as A (10 s per step) and needs 10.0 GiB less memory (10.0 GiB less of activations)."
    # less than a thousandth is no difference
    assert sentence(report(10.0, 30.0), report(9.995, 40.0)).startswith("A is as fast as B")


def test_unequal_steps_are_compared_by_what_they_do() -> None:
    few, many = report(10.0, 20.0, tokens=1000.0, data_comm=2.0), report(15.0, 20.0, tokens=2000.0, data_comm=2.0)
    found = winner("AB", [few, many], 0)
    assert found is not None
    assert (found.place, found.criterion) == (1, "seconds_per_token")
    assert found.why == (
        "B wins: 7.5 s per 1,000 tokens, 25 % less than A (10 s per 1,000 tokens): 1.5 s less compute and 1 s less exposed "
        "data-parallel communication."
    )
    assert fsum((found.parts_s or {}).values()) == pytest.approx(15 / 2000 - 10 / 1000)


def test_more_gpus_have_their_price() -> None:
    one, two = report(10.0, 20.0, gpus=8), report(6.0, 20.0, gpus=16)
    assert sentence(one, two).endswith("; on 16 GPUs instead of 8, 20 % more GPU-seconds.")


def test_who_needs_least_memory() -> None:
    assert thriftiest("AB", [report(1.0, 30.0), report(2.0, 20.0)]) == (1, "Least memory: B, 20.0 GiB at the peak; most: 30.0 GiB.")
    assert thriftiest("AB", [report(1.0, 30.0), report(2.0, 30.0)]) == (0, "All need 30.0 GiB at the peak.")
    assert thriftiest("AB", [report(1.0, 30.0), None]) is None
    assert winner("A", [None], 0) is None


def test_relative_differences_need_a_baseline_that_is_not_zero() -> None:
    row = Compared(ComparedMetric("x", "x", "s", lambda _: None), (0.0, 2.0, None), 0.0)
    assert row.relative == (None, None, None)
    assert row.differences == (0.0, 2.0, None)
    (step, *_) = results([None, report(4.0, 1.0), report(5.0, 1.0)], 1, METRICS[:1])
    assert step.relative == (None, 0.0, pytest.approx(0.25))


# forms ------------------------------------------------------------------------------------------------------------


def test_the_tables_hold_the_same_numbers(small: str) -> None:
    found = compare(small, "parallel.data.strategy=ddp,zero3")
    wide, narrow = text(found, 200), text(found, 40)
    assert "parallel.data.strategy" in wide
    assert (wide.count("\nTime\n"), narrow.count("\nTime\n")) == (1, 2), "a block of columns per variant where numbers are too wide"
    assert max(map(len, narrow.splitlines())) <= 40
    step = row(found, "step_time_s").values
    rows = list(csv.DictReader(StringIO(csv_text(found))))
    assert [row["label"] for row in rows] == ["ddp", "zero3"]
    assert [float(row["step_time_s"]) for row in rows] == list(step)
    assert float(rows[1]["breakdown_s.data_comm"]) == found.parts[3].values[1]
    assert int(float(rows[0]["at_peak.parameters_bytes"])) == found.categories[0].values[0]
    lines = markdown(found).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {4}
    assert "**Where the step goes**" in markdown(found)


def test_the_document_is_json_and_complete(small: str) -> None:
    found = compare(small, "parallel.data.strategy=ddp,zero3")
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    assert list(document) == [
        "parsim", "version", "provenance", "comparison", "labels", "baseline", "winner", "tie", "criterion", "verdict",
        "explained_by", "inputs", "results", "paired_differences", "variants",
    ]  # fmt: skip
    assert document["labels"] == ["ddp", "zero3"]
    assert document["winner"] in document["labels"]
    assert document["tie"] in {*document["labels"], None} - {document["winner"]}
    for row in document["results"]:
        assert len(row["values"]) == len(row["differences"]) == len(row["relative"]) == 2
    assert load(document["variants"][1]["report"]["scenario"]).settings.parallel.data.strategy == "zero3"


def test_it_shows_itself_in_a_notebook(small: str) -> None:
    html = compare(small, "parallel.data.strategy=ddp,zero3,nope")._repr_html_()
    assert "<svg" in html
    assert "<script" not in html
    assert "http" not in html.replace("http://www.w3.org", "")
    assert "Not simulated" in html
    assert html.count("<th scope='col'>") == 3


def test_files_and_figures(small: str, tmp_path: Path) -> None:
    found = compare(small, "parallel.data.strategy=ddp,zero3")
    paths = found.write(tmp_path / "out", ("svg", "pdf"), width=3.5)
    figures = ("breakdown", "memory", "timelines", "collectives", "pareto")
    assert [path.name for path in paths] == [
        "comparison.json", "comparison.md", "comparison.csv", *(f"{name}.{kind}" for name in figures for kind in ("svg", "pdf"))
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in paths)
    starts = {".svg": b"<?xml", ".pdf": b"%PDF"}
    assert all(path.read_bytes().startswith(starts[path.suffix]) for path in paths if path.suffix in starts)
    again = {path.name: path.read_bytes() for path in found.write(tmp_path / "again", ("svg",), width=3.5)}
    assert all((tmp_path / "out" / name).read_bytes() == content for name, content in again.items()), "the same bytes for the same data"
    with pytest.raises(InputError, match="known: svg, png, pdf"):
        found.write(tmp_path / "bmp", ("bmp",))
    assert not (tmp_path / "bmp").exists()
    with pytest.raises(InputError, match="there is no figure 'pie'"):
        found.figure("pie")
    assert names(compare("pipeline-unit-gpipe", "pipeline-unit-1f1b")) == ["breakdown", "memory", "timelines", "pareto"]

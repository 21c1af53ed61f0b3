"""Many sample paths of a training, and its timeline in a bounded number of rows."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from math import fsum, inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_training_run import DAY, WEEKS, M

from parsim import theory
from parsim.report.goodput import Failures
from parsim.report.order_statistics import quantile
from parsim.report.page.page import page
from parsim.report.stretches import merged, rows
from parsim.report.training_paths import SamplePath, SamplePaths, sample_path, sample_paths
from parsim.run import simulate
from parsim.scenario import load
from parsim.simulation.interrupted import FailureCause, InterruptedTraining, Piece
from parsim.simulation.training import train
from parsim.study.monte_carlo.runs import simulate_runs

JOB = InterruptedTraining((FailureCause("any", M, 0.0, 300.0),), 1138.0, 60.0, 30 * DAY)


def test_quantiles_as_for_runs_of_a_step() -> None:
    """p5 and p95 from 60 paths, p99 from 299; each is a path that was played."""
    found = sample_paths(replace(JOB, horizon=3 * DAY), range(60))
    document = SamplePaths(tuple(found), 0.8).document()
    goodputs = sorted(row.goodput for row in found)
    assert [document["goodput"][name] for name in ("p5", "p50", "p95", "p99")] == [
        quantile(goodputs, 0.05), quantile(goodputs, 0.5), quantile(goodputs, 0.95), None,
    ]  # fmt: skip
    assert document["failures"]["mean"] == pytest.approx(fsum(row.failures for row in found) / 60)
    assert (document["finish_s"], document["finished_share"]) == (None, 0.0)
    few = SamplePaths(tuple(found[:59]), 0.8).document()
    assert (few["goodput"]["p5"], few["goodput"]["p95"], few["lost_s"]["p95"]) == (None, None, None)
    assert found[7] == sample_path(train(replace(JOB, horizon=3 * DAY, run=7))), "a path is its number's, whoever else is played"


def test_the_spread_of_the_finish_is_that_of_the_renewals() -> None:
    """200 intervals of work: 259,803 s on average (closed form); p5 and p95 of 400 SimPy paths elsewhere: 252,050 and 267,839 s."""
    whole = SamplePaths(tuple(sample_paths(replace(JOB, work=200 * 1138.0, horizon=inf), range(80))), 0.8).document()["finish_s"]
    assert whole["mean"] == pytest.approx(theory.finite_wall_time(200, 1138, 60, 300, M), rel=0.01)
    assert whole["p5"] == pytest.approx(252_050, rel=0.01)
    assert whole["p95"] == pytest.approx(267_839, rel=0.01)


def test_the_spread_is_that_of_the_closed_form() -> None:
    """Of 200 independent intervals the sum is nearly normal: p5 and p95 are 1.645 deviations from the mean."""
    sd = Failures(M, 60.0, 300.0, 1138.0).wall_sd(200 * 1138.0)
    assert 2 * 1.645 * sd == pytest.approx(267_839 - 252_050, rel=0.01)


def test_what_is_not_done_in_time_is_beyond_the_quantiles() -> None:
    """Half of 60 paths are done: the median may be known, p95 is not, and there is no mean."""
    paths = [SamplePath(0.9, 0.9, 3, 10.0, 100.0 + run if run < 45 else inf) for run in range(60)]
    finish = SamplePaths(tuple(paths), 0.9).document()["finish_s"]
    assert (finish["p5"], finish["p50"], finish["p95"], finish["mean"]) == (102.0, 129.0, None, None)


def runs(count: int, **changes: Any) -> dict[str, Any]:
    return {**WEEKS, "variability": {"runs": count}, **changes}


def test_the_same_bytes_whoever_plays() -> None:
    scenario = load(runs(61))
    alone = json.dumps(simulate(runs(61)).document()["training_run"])
    with ThreadPoolExecutor(3) as executor:
        assert json.dumps(simulate_runs(scenario, workers=None, executor=executor).document()["training_run"]) == alone
    assert json.dumps(simulate_runs(scenario, workers=2).document()["training_run"]) == alone


def test_a_report_of_many_paths() -> None:
    """The first is the sample path of before; nothing warns that steps do not vary; all shows on the page and in the terminal."""
    report = simulate(runs(60))
    found = report.document()["training_run"]
    alone = simulate(WEEKS).document()["training_run"]
    assert {**found, "paths": None} == alone
    assert found["paths"]["runs"] == 60
    assert found["paths"]["goodput"]["p5"] <= found["paths"]["goodput"]["p50"] <= found["paths"]["goodput"]["p95"]
    assert not [one for one in report.warnings if "every run is the same" in one.message]
    assert "60 sample paths" in page([("weeks", report)])


# the timeline


def pieces(lengths: list[int], kinds: list[str]) -> list[Piece]:
    now, made = 0.0, []
    for length, kind in zip(lengths, kinds, strict=False):
        made.append(Piece(now, now + length, kind, "x" if kind in ("lost", "detect") else ""))  # type: ignore[arg-type]
        now += length
    return merged(made)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    kinds=st.lists(st.sampled_from(["train", "save", "lost", "detect"]), min_size=60, max_size=60), most=st.integers(1, 30),
)  # fmt: skip
def test_rows_are_bounded_and_no_second_is_lost(lengths: list[int], kinds: list[str], most: int) -> None:
    stretches = pieces(lengths, kinds)
    found = rows(stretches, most)
    assert len(found) <= most or len(found) == len(stretches) <= most
    assert found[0]["from_s"] == 0
    assert found[-1]["to_s"] == stretches[-1].end
    assert all(one["to_s"] == other["from_s"] for one, other in pairwise(found))
    for kind in ("train", "save", "lost", "detect"):
        known = [row.get("spent_s", {row["kind"]: row["to_s"] - row["from_s"]}).get(kind, 0.0) for row in found]
        assert fsum(known) == pytest.approx(fsum(one.end - one.begin for one in stretches if one.kind == kind), rel=1e-9, abs=1e-9)


def test_saves_between_two_failures_are_one_row() -> None:
    stretches = pieces([10, 1, 10, 1, 5, 3, 10, 1, 4], ["train", "save", "train", "save", "lost", "detect", "train", "save", "train"])
    assert rows(stretches, 4) == [
        {"from_s": 0, "to_s": 22, "kind": "train", "cause": None, "spent_s": {"train": 20, "save": 2}},
        {"from_s": 22, "to_s": 27, "kind": "lost", "cause": "x"},
        {"from_s": 27, "to_s": 30, "kind": "detect", "cause": "x"},
        {"from_s": 30, "to_s": 45, "kind": "train", "cause": None, "spent_s": {"train": 14, "save": 1}},
    ]

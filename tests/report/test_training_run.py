"""The training in the report: expected values against theory and against the weeks played through, and what is said about them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import theory
from parsim.report.goodput import Failures, exact_interval
from parsim.report.page.page import page
from parsim.report.training_run import played
from parsim.run import simulate
from parsim.simulation.interrupted import FailureCause, InterruptedTraining

M = theory.observed_mtbf(54 * 24, 419)
DAY = 86_400.0
WEEKS: dict[str, Any] = {
    "model": {"family": "gpt2", "hidden": 256, "layers": 4, "heads": 4, "vocabulary": 1024, "maximum_sequence": 512},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 4},
    "training": {"sequence_length": 256, "micro_batch": 2, "gradient_accumulation": 2},
    "economics": {
        "failures": [
            {"cause": "gpu", "per_gpu": "100 h", "detect": "30 s"}, {"cause": "<network>", "per_gpu": "300 h", "detect": "hang"},
        ],
        "checkpoint": {"stall": "60 s"}, "horizon": "20 d",
    },
}  # fmt: skip


def test_the_forms_of_the_report_are_those_of_the_literature() -> None:
    assert Failures(M, 60, 300, 1138).goodput == pytest.approx(theory.exact_goodput(M, 1138, 60, 300), rel=1e-12)
    assert Failures(M, 5, 300, 600, lag=120).goodput == pytest.approx(theory.exact_goodput(M, 600, 5, 300, lag=120), rel=1e-12)
    assert round(Failures(M, 60, 300, 1138, restarts=((0.9, 120), (0.1, 1800))).goodput, 7) == 0.8776236
    replicas = Failures(50_677 / 16_384, 0, 0, 1.0, policy="replica", replicas=32, repair=2)
    assert round(replicas.goodput, 6) == 0.980194
    spares = Failures(M, 60, 300, 1138, repair=48 * 3600)
    assert (round(spares.in_repair, 4), [spares.spares_for(share) for share in (0.95, 0.99, 0.999)]) == (15.5185, [22, 25, 29])


@given(stall=st.floats(1, 1e5), mtbf=st.floats(600, 1e7))
def test_the_best_interval_is_lamberts(stall: float, mtbf: float) -> None:
    if stall < mtbf:
        assert exact_interval(stall, mtbf) == pytest.approx(max(1.0, theory.exact_interval(stall, mtbf)), rel=1e-6)


@pytest.mark.parametrize(
    ("failures", "training"),
    [
        (Failures(M, 60, 300, 1100, policy="elastic", replicas=64, repair=6 * 3600.0), {"restart": 300.0}),
        (Failures(M, 60, 300, 1100, policy="replica", replicas=64, repair=6 * 3600.0), {}),
        (Failures(M, 60, 300, 1100, policy="replica", replicas=8, repair=6 * 3600.0, spares=3), {}),
        (Failures(M, 60, 300, 1100, lag=200.0, in_memory=1.0), {}),
    ],
)  # fmt: skip
def test_policies_meet_their_first_order(failures: Failures, training: dict[str, float]) -> None:
    """To 1 %; the forms neither know that a stop may bring two replicas back nor that the last ones do not fail."""
    causes = (FailureCause("any", failures.mtbf, 0.0, failures.restart, failures.repair, in_memory=failures.in_memory > 0),)
    job = InterruptedTraining(
        causes, failures.interval, failures.checkpoint, 2000 * M, failures.lag, failures.policy,  # type: ignore[arg-type]
        failures.replicas, failures.spares, **training,
    )  # fmt: skip
    assert played(job, failures, 16_384, None).run.goodput == pytest.approx(failures.goodput, rel=0.01)


def test_the_document() -> None:
    report = simulate(WEEKS)
    found = report.document()["training_run"]
    assert found["wall_s"] == 20 * DAY
    lengths = [row["to_s"] - row["from_s"] for row in found["timeline"]]
    assert sum(lengths) == pytest.approx(found["wall_s"], rel=1e-12)
    assert all(one["to_s"] == two["from_s"] for one, two in zip(found["timeline"], found["timeline"][1:], strict=False))
    for kind, seconds in found["spent_s"].items():
        assert sum(row["to_s"] - row["from_s"] for row in found["timeline"] if row["kind"] == kind) == pytest.approx(seconds)
    assert found["failures"] == sum(found["failures_by_cause"].values()) > 5
    assert found["goodput"] == pytest.approx(found["useful_s"] / found["wall_s"])
    assert found["expected_failures"] == pytest.approx(20 * DAY / (75 * 3600 / 4))
    again = simulate(WEEKS).document()["training_run"]
    assert json.dumps(found) == json.dumps(again)
    other = simulate(WEEKS, "variability.seed=1").document()["training_run"]
    assert other["timeline"] != found["timeline"]
    slower = simulate(WEEKS, "economics.checkpoint.stall=2min").document()["training_run"]
    assert slower["failures_by_cause"] == found["failures_by_cause"], "the same bad luck"


def test_a_training_ends_when_it_is_done() -> None:
    """5M tokens take a second or so: nothing fails, nothing is saved."""
    report = simulate(WEEKS, "training.tokens=5M")
    found = report.document()["training_run"]
    assert found["wall_s"] == pytest.approx(report.bill.economics.steps * report.step_time)  # type: ignore[union-attr]
    assert [row["kind"] for row in found["timeline"]] == ["train"]


def test_curves_go_through_the_job() -> None:
    """Goodput is best at the best interval; it falls with the size, though of replicas that come back the same share is away."""
    failures = Failures.at_best(M, 60, 300, policy="elastic", replicas=64, repair=3600.0)
    weeks = played(
        InterruptedTraining((FailureCause("any", M, 0.0, 300.0, 3600.0),), 0.0, 60, DAY, 0.0, "elastic", 64), failures, 16_384, None
    )
    assert max(point.goodput for point in weeks.by_interval()) <= failures.every(failures.optimum).goodput * (1 + 1e-6)  # type: ignore[arg-type]
    sizes = {round(point.at): point.goodput for point in weeks.by_size()}
    assert sizes[16_384] == pytest.approx(failures.goodput, rel=1e-12)
    assert sorted(sizes.values(), reverse=True) == list(sizes.values())
    assert weeks._of_size(4.0).capacity == pytest.approx(failures.capacity)


def test_no_horizon_no_weeks() -> None:
    tree = {**WEEKS, "economics": {**WEEKS["economics"], "horizon": None}}
    report = simulate(tree)
    assert report.document()["training_run"] is None
    assert report.document()["goodput"] is not None
    assert "training-section" not in page([("weeks", report)])


def test_the_page_draws_it() -> None:
    """A strip with a row per cause, and two curves with the job's own point inside; texts are escaped."""
    html = page([("weeks", simulate(WEEKS))])
    section = html[html.index('<section id="training-section">') : html.index('<section id="step">')]
    assert section.count('class="ticks"') == 2
    assert "&lt;network&gt;" in section
    assert section.count('class="plot"') == 2
    for place in re.findall(r"(?:left|bottom):(-?[\d.]+)%", section):
        assert 0 <= float(place) <= 100
    assert "NaN" not in section
    assert "nan" not in section

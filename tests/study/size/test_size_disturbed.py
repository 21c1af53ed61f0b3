"""Ranking by the disturbed step: against runs of the scenario, closed forms, and with nothing that varies."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from parsim.errors import ScenarioError
from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import prepare
from parsim.run import simulate
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.study.size.answer import AnswerData
from parsim.study.size.recommendation import recommendation
from parsim.study.size.size import size
from parsim.study.size.text import text

SMALL: dict[str, Any] = {"tokens": "10B", "sequence_length": 1024, "global_batch": 64, "gpus": 8}
HALF = {"slow": [{"rank": 3, "speed": 0.5}]}
SPREAD = {"gpus": {"spread": 0.05, "node_share": 0}}


def ask(**keys: Any) -> AnswerData:
    return size("gpt2", workers=1, **{**SMALL, **keys})


def test_the_ranking_flips_where_one_machine_has_slow_gpus() -> None:
    on = ["dgx-a100-80gb", "8x a100-sxm-80gb"]
    clean = ask(on=on, gpu_hour="2 USD")
    first, other = (one.machine for one in clean.ranked)
    flipped = ask(on=on, gpu_hour="2 USD", variability={first: HALF, other: SPREAD}, runs=3)
    assert [one.machine for one in flipped.ranked] == [other, first]
    slow = flipped.ranked[1]
    assert slow.simulated_step_time == clean.ranked[0].simulated_step_time, "the clean step stands beside it"
    assert slow.simulated_step_time < slow.step_time < 2 * slow.simulated_step_time * (1 + 1e-9)
    assert slow.runs is not None
    assert slow.runs.count == 1, "nothing is drawn"


def test_the_step_is_the_median_of_the_runs_of_its_scenario() -> None:
    best = ask(on="dgx-a100-80gb", variability=SPREAD, runs=5).ranked[0]
    step = DisturbedStep(prepare(build(load(best.tree))))
    times = [one.step_time for one in step.samples(range(5))]
    assert best.step_time == median(times)
    assert best.runs is not None
    assert (best.runs.count, best.step_time * best.runs.least) == (5, pytest.approx(min(times), rel=1e-12))
    assert best.step_time * best.runs.most == pytest.approx(max(times), rel=1e-12)
    assert best.simulated_step_time == pytest.approx(step.nominal, rel=1e-9)
    assert best.bill.time_to_train == pytest.approx(best.seconds)
    assert (best.status, best.band, best.ratio) == ("unvalidated", None, 1.0)


def test_how_many_runs_is_said() -> None:
    answer = ask(on="dgx-a100-80gb", runs=3)
    assert answer.question.machines[0].variability == {"profile": "typical"}
    assert "median of 3 disturbed runs" in text(answer)
    assert any("median of 3 runs" in line for line in recommendation(answer).lines)
    assert answer.document()["ranked"][0]["variability"]["runs"] == 3


def test_without_variability_nothing_is_said_of_it() -> None:
    answer = ask(on="dgx-a100-80gb")
    assert answer.ranked[0].runs is None
    document = answer.document()
    assert "variability" not in document["ranked"][0]
    assert "variability" not in document["question"]["on"][0]
    assert "disturbed" not in text(answer)
    assert "variability" not in answer.ranked[0].tree


@pytest.mark.parametrize(
    ("variability", "words"),
    [(3, "is no variability"), ({"runs": 5}, "--runs"), ("bda", "bda"), ({"gpus": {"spraed": 1}}, "spraed")],
)
def test_mistakes(variability: object, words: str) -> None:
    with pytest.raises(ScenarioError) as found:
        ask(on="dgx-a100-80gb", variability=variability)
    assert words in str(found.value)


def test_the_best_option_says_what_one_slow_gpu_costs() -> None:
    """Where machines differ; its goodput falls as its undisturbed step grows."""
    assert ask(on=["dgx-a100-80gb"]).document()["slow_gpu"] is None
    answer = ask(on=["dgx-a100-80gb"], variability=SPREAD, runs=3)
    found = answer.document()["slow_gpu"]
    tree = {**answer.ranked[0].tree, "variability": {}}
    step, slower = (simulate(tree, *some).step_time for some in ((), ("variability.slow=[{rank: 0, speed: 0.8}]",)))
    assert (found["speed"], found["rank"]) == (0.8, 0)
    assert found["step_time_s"] == pytest.approx(slower, rel=1e-9)
    assert found["goodput"] == pytest.approx(answer.ranked[0].goodput * step / slower, rel=1e-9)
    assert "Option 1, undisturbed: with one GPU at 0.8 of its speed, rank 0, a step takes" in text(answer)

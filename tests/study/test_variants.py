"""Variants: whatever goes wrong with one is its outcome, and the others go on, in order, wherever they are simulated."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from parsim.errors import DeadlockError
from parsim.run import simulate
from parsim.scenario.scenario import Scenario
from parsim.study.variants import Variant, document, figures, in_order, outcome, outcomes, whole

TINY = {"name": "tiny", "model": "gpt2", "cluster": "single-a100", "training": {"mbs": 1, "gas": 1, "sequence_length": 128}}
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")


def test_a_variant_that_fits_is_the_scenario_with_its_changes() -> None:
    came = outcome(Variant(TINY, ("training.micro_batch=2",)), whole)
    changed = simulate(TINY, "training.micro_batch=2")
    assert (came.status, came.reason, came.refusal, came.findings) == ("fits", "", "", ())
    assert came.answer is not None
    assert came.answer.step_time == changed.step_time
    assert came.scenario is not None
    assert came.scenario.tree["training"]["micro_batch"] == 2


def test_figures_are_those_of_the_report() -> None:
    report = simulate(TINY)
    found = outcome(Variant(TINY), figures).answer
    assert found == (report.step_time, report.measured.model.samples_per_step, report.peak_memory, 0)
    assert found.seconds_per_sample == report.step_time


def test_what_does_not_fit_says_why() -> None:
    came = outcome(Variant(TINY, ("training.micro_batch=4096",)), document)
    assert came.status == "does not fit"
    assert came.answer is not None
    assert came.reason == came.answer["limiter"]
    assert not came.refusal


def test_what_is_refused_says_where() -> None:
    came = outcome(Variant(TINY, ("training.micro_batch=0", "parallel.tensor.size=3")), document)
    assert (came.status, came.answer) == ("refused", None)
    assert came.reason.startswith("training.micro_batch: ")
    assert came.refusal == came.findings[0].message


def test_a_deadlock_and_a_failure_are_outcomes() -> None:
    def stuck(_: Scenario) -> Any:
        raise DeadlockError("the program waits for itself\nrank 0 | F0.0")

    came = outcome(Variant(TINY), stuck)
    assert (came.status, came.refusal) == ("deadlock", "the program waits for itself")
    came = outcome(Variant(TINY), lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
    assert (came.status, came.refusal) == ("failed", "internal error: ZeroDivisionError: division by zero")


@linux
@pytest.mark.parametrize("jobs", [1, 2])
def test_outcomes_come_in_order_from_any_number_of_processes(jobs: int) -> None:
    batches = (4, 1, 2)
    came = list(outcomes([Variant(TINY, (f"training.micro_batch={count}",)) for count in batches], figures, jobs=jobs))
    assert [one.answer.samples for one in came if one.answer is not None] == list(batches)
    assert all(one.scenario is None for one in came)


def _dies_of_two(number: int) -> int:
    if number == 2:
        os._exit(7)
    return number


@linux
def test_only_what_kills_its_worker_is_lost() -> None:
    found = list(in_order(_dies_of_two, [0, 1, 2, 3, 4], 2, lost=lambda item, reason: 100 * item if "died twice" in reason else -1))
    assert found == [0, 1, 200, 3, 4]

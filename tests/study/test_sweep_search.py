"""Studies with the lattice and the bounds of the search: the same best with fewer simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import parsim
from parsim.parallel.schedules import V_SHAPED
from parsim.run import step_of
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.study.sweep.prover import bounds_of
from parsim.study.sweep.space import Space
from parsim.study.sweep.study import StudyData
from parsim.study.sweep.study_file import definition_of

WORDS = ("tp=1,2,4", "mbs=2,4,8", "recompute=none,full")
KEYS = {"step_time": "step_time_s", "peak_memory": "peak_bytes"}
"""objective -> its key in a row"""


def test_the_standard_strategies_are_those_of_the_machine_of_each_point() -> None:
    space = Space(definition_of("gpt2-ddp-4x-a100").changed(arguments=["strategy=auto", "cluster.gpus=2,4"]))
    points = list(space.points())
    axes = ("tensor", "context", "pipeline", "data")
    for point in points:
        product = 1
        for axis in axes:
            product *= point[f"parallel.{axis}.size"]
        assert product == point["cluster.gpus"]
    assert {point["cluster.gpus"] for point in points} == {2, 4}
    assert {point["parallel.tensor.size"] for point in points} == {1, 2, 4}


@cache
def everything() -> StudyData:
    """All points, simulated."""
    return parsim.sweep("gpt2-ddp-4x-a100", *WORDS, minimise=("step_time", "peak_memory"), exhaustive=True)


@pytest.mark.parametrize("word", KEYS)
def test_the_best_rows_are_those_of_simulating_everything(word: str) -> None:
    best = sorted(everything().entries, key=lambda entry: (entry.rows[0][KEYS[word]], entry.rows[0]["step_time_s"]))[:2]
    less = parsim.sweep("gpt2-ddp-4x-a100", *WORDS, minimise=word, top=2)
    assert [entry.key for entry in less.entries[:2]] == [entry.key for entry in best]
    assert len(less.rows) + len(less.passed) == len(everything().rows) == 18
    assert len(less.rows) <= 9
    assert all("at least" in reason for _, _, reason in less.why_not() if reason.startswith(("proved", "its step")))
    assert not less.judged or word == "step_time", "a step says nothing of memory"


@pytest.mark.parametrize("word", ["bubble", "gpus"])
def test_of_equal_rows_the_shorter_step_is_best_and_the_objective_has_a_column(word: str) -> None:
    """No pipeline: the bubble is 0 everywhere, and the GPUs are 4."""
    words = ("mbs=1,2,4", "recompute=full,none")
    study = parsim.sweep("gpt2-ddp-4x-a100", *words, minimise=word, top=2)
    steps = sorted(row["step_time_s"] for row in parsim.sweep("gpt2-ddp-4x-a100", *words, exhaustive=True).rows)
    assert [entry.rows[0]["step_time_s"] for entry in study.shown] == steps[:2]
    heading = next(line for line in str(study).splitlines() if line.startswith("#"))
    assert study.objectives[0].metric.title in heading


def test_two_objectives_give_the_front_of_simulating_everything() -> None:
    words = ("step_time", "peak_memory")
    less = parsim.sweep("gpt2-ddp-4x-a100", *WORDS, minimise=words)
    assert [entry.key for entry in less.shown] == [entry.key for entry in everything().front]
    assert [entry.layer for entry in less.shown] == [1] * len(less.shown)
    assert len(less.rows) < len(everything().rows)
    assert len(less.rows) + len(less.passed) == 18
    assert "excluded by proof" in str(less)
    reasons = [reason for _, _, reason in less.why_not() if reason.startswith("proved worse")]
    assert reasons
    assert all("step time is at least" in reason and "a row has" in reason for reason in reasons)


def test_seeds_are_pruned_by_their_mean() -> None:
    """Every seed of the best candidates has a row; of the others none."""
    words = ("gpt2-ddp-4x-a100", "tp=1,2,4", "mbs=2,4,8")
    everything = parsim.sweep(*words, seeds=2, top=1, exhaustive=True)
    less = parsim.sweep(*words, seeds=2, top=1)
    assert less.best is not None
    assert everything.best is not None
    assert [row["key"] for row in less.best.rows] == [row["key"] for row in everything.best.rows]
    assert less.best.scores == everything.best.scores
    assert len(everything.rows) == 18
    assert len(less.rows) < 18
    assert all(len(entry.rows) == 2 for entry in less.entries)


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_is_told_while_bounds_are_proved_and_while_candidates_are_simulated(workers: int) -> None:
    told: dict[str, tuple[int | None, list[str]]] = {}

    def watch(doing: str, found: Iterable[Any], total: int | None, remark: Callable[[], str]) -> Iterable[Any]:
        told[doing] = total, []
        for one in found:
            told[doing][1].append(remark())
            yield one

    study = parsim.sweep("gpt2-ddp-4x-a100", *WORDS, top=1, watch=watch, workers=workers)
    assert list(told) == ["Proving bounds", "Simulating candidates"]
    assert told["Proving bounds"] == (18, [""] * 18)
    total, remarks = told["Simulating candidates"]
    assert total is None, "nobody knows how many may still be the best"
    assert len(remarks) == len(study.judged) + 2 * len(study.rows), "a step each, and a report of those that may be the best"
    assert study.best is not None
    assert remarks[-1] == f"best: {study.objectives[0].shown(study.best.scores[0])}"


def test_what_was_simulated_before_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of another question are rows: of a study that ran in whole none is simulated, nor its step."""
    whole = parsim.sweep("gpt2-ddp-4x-a100", *WORDS, exhaustive=True, out=tmp_path)
    for name in ("simulate", "step_of"):
        monkeypatch.setattr(f"parsim.run.{name}", lambda *_: pytest.fail("simulated again"))
    monkeypatch.setattr("parsim.study.sweep.prover.step_of", lambda *_: pytest.fail("simulated again"))
    again = parsim.sweep("gpt2-ddp-4x-a100", *WORDS, top=2, out=tmp_path)
    assert [entry.key for entry in again.entries[:2]] == [entry.key for entry in whole.entries[:2]]


def test_nothing_is_proved_of_stages_in_a_v() -> None:
    """Bounds take every boundary between stages for a message; in the middle of a V there is none."""
    base = load("gpt2-ddp-4x-a100", "parallel.pipeline.size=4", "parallel.data.strategy=none", "model.tied_embeddings=false")
    schedules: list[dict[str, Any]] = [{"parallel.pipeline.schedule": name} for name in V_SHAPED]
    assert bounds_of(base, schedules) == [None] * len(V_SHAPED)
    interleaved: dict[str, Any] = {"parallel.pipeline.schedule": "interleaved-zb", "parallel.pipeline.virtual_stages": 3}
    (least,) = bounds_of(base, [interleaved])
    assert least is not None
    found = step_of(build(base.with_overrides(*(f"{key}={value}" for key, value in interleaved.items()))))
    assert 0 < least.step_time <= found.step_time * (1 + 1e-9)
    assert least.step_time >= 0.9 * found.step_time

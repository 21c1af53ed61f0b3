"""Studies with the lattice and the bounds of the search: the same best with fewer simulations."""

from __future__ import annotations

import pytest

import parsim
from parsim.study.sweep.candidates import Space
from parsim.study.sweep.study_file import definition_of

WORDS = ("tp=1,2,4", "mbs=2,4,8", "recompute=none,full")


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


@pytest.mark.parametrize("word", ["step_time", "peak_memory"])
def test_the_best_rows_are_those_of_simulating_everything(word: str) -> None:
    everything = parsim.sweep("gpt2-ddp-4x-a100", *WORDS, minimise=word, top=2, exhaustive=True)
    less = parsim.sweep("gpt2-ddp-4x-a100", *WORDS, minimise=word, top=2)
    assert [entry.key for entry in less.entries[:2]] == [entry.key for entry in everything.entries[:2]]
    assert len(less.rows) + len(less.passed) == len(everything.rows) == 18
    assert len(less.rows) <= 9
    assert all("at least" in reason for _, _, reason in less.why_not() if reason.startswith("not simulated"))

"""A few of the random jobs; ``python tests/random_jobs`` simulates as many as one likes."""

from __future__ import annotations

import pytest
from job_generator import draw, words, written
from job_laws import broken
from job_runs import run
from ruamel.yaml import YAML

from parsim.run import simulate

SEED = 2
COMPARED = 15
"""every so many jobs one is also simulated unfolded, and from the scenario in its report"""


@pytest.mark.parametrize("block", [0, 1, 2, *(pytest.param(block, marks=pytest.mark.slow) for block in (3, 4, 5))])
def test_random_jobs_keep_every_law(block: int) -> None:
    found = [run(SEED, number, compare=number % COMPARED == 0) for number in range(10 * block, 10 * block + 10)]
    assert [(job.number, job.problems) for job in found if job.problems] == []
    assert sum(job.scenario is not None for job in found) >= 9


def test_a_job_is_the_same_every_time_and_another_by_another_number() -> None:
    assert draw(1, 5) == draw(1, 5)
    assert len({repr(draw(1, number)) for number in range(20)}) == 20


def test_every_word_of_the_schema_has_its_turn() -> None:
    drawn = {(path, repr(word)) for number in range(len(_pairs())) for path, word in written(draw(SEED, number))}
    assert {(path, word) for path, word in _pairs() - drawn if not path.startswith("cluster.background.")} == set()  # few have a stream


def _pairs() -> set[tuple[str, str]]:
    return {(path, repr(word)) for path, listed in words().items() for word in listed}


def test_a_law_notices_what_is_wrong() -> None:
    report = simulate(run(SEED, 0, compare=False).scenario)
    assert broken(report) == []
    report.measured.memory.devices[0].at_peak["parameters"] += 1
    assert any(text.startswith("memory: ") for text in broken(report))


def test_a_shown_job_is_yaml() -> None:
    from job_runs import as_yaml

    scenario = draw(1, 3)
    assert YAML(typ="safe").load(as_yaml(scenario)) == scenario

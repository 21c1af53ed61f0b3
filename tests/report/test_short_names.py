"""One resolver for the names of a report's numbers, wherever one is named."""

from __future__ import annotations

import pytest

from parsim.errors import InputError, ScenarioError
from parsim.monte_carlo.stopping import until
from parsim.report.definitions import DEFINITIONS, explain
from parsim.report.short_names import SHORT, named
from parsim.study.sweep.metrics import ALIASES, NAMED, metric
from parsim.study.sweep.rows import objective
from parsim.study.sweep.vocabulary import find

WORDS = {
    "bubble": "bubble_fraction", "step_time": "step_time_s", "Step time": "step_time_s", "peak": "peak_bytes", "peak-memory": "peak_bytes",
    "MFU": "mfu", "energy": "energy_J", "throughput": "tokens_per_s",
}  # fmt: skip


@pytest.mark.parametrize(("word", "key"), WORDS.items())
def test_a_short_name_means_the_same_everywhere(word: str, key: str) -> None:
    assert explain(word).name == key
    assert metric(word) is NAMED[key]
    assert objective(word).metric is NAMED[key]
    if " " not in word and "-" not in word:
        assert find(word).name == key


def test_every_short_name_leads_to_a_number_and_none_hides_one() -> None:
    assert not set(SHORT) & {*DEFINITIONS, *NAMED}
    assert all(long in DEFINITIONS or long in NAMED for long in SHORT.values())
    assert all(ALIASES[word] == SHORT[word] for word in set(ALIASES) & set(SHORT))
    assert named("nothing like it", NAMED, ALIASES) is None


def test_a_word_that_is_none_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'bubble'"):
        explain("buble")
    with pytest.raises(ScenarioError, match="did you mean 'bubble'"):
        objective("buble")
    with pytest.raises(ScenarioError, match="runs differ in the time of the step, not in 'bubble'"):
        until("bubble:1%")
    assert until("step_time:1%") == until("mean 1%") == until("1%")
    assert until("p95_step_time:0.5%") == until("p95:0.5%")

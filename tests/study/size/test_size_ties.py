"""Which machines cannot be told from the best one, by pairs of published runs that differ in the same kinds of things."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from parsim.report.economics import Busy, Economics
from parsim.scenario import ratios
from parsim.scenario.confidence import Features, KnownRun
from parsim.scenario.ratios import RatioBand, band_of, differing_in
from parsim.study.size.answer import AnswerData, Sized
from parsim.study.size.question import Machine, Recipe, SizeQuestion
from parsim.study.size.reading import read_question
from parsim.study.size.size import size
from parsim.study.size.strategies import Configuration, Strategy
from parsim.study.size.text import text
from parsim.study.size.ties import ties

A100 = Features("A100", "ampere", "megatron-core", "bf16", "model", 8, 1e10)
H100 = replace(A100, gpu="H100", architecture="hopper")


def run(number: int, source: str, features: Features, error: float) -> KnownRun:
    return KnownRun(f"{source}-{number}", source, source, features, error, 0.0, None)


RUNS = [one for i in range(5) for one in (run(1, f"s{i}", A100, 0.0), run(2, f"s{i}", H100, 0.01 * (i + 1)))]
"""five sources with a pair each that differs in the GPU: ratios off by 1 to 5 %, four of the five by 4 % or less"""
RUNS += [run(3, f"s{i}", A100, 0.0) for i in range(5)]
"""and a pair each that differs in nothing named, whose ratio is exact"""


def of_runs(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> RatioBand | None:
    """What `ratio_band` finds in `RUNS`."""
    return band_of(differing_in(ours, theirs), RUNS)


def configuration(machine: str, step: float, features: Features = A100, rent: float | None = 1.0) -> Configuration:
    """Eight GPUs, 3600 steps: as many hours as a step has seconds, eight times as many GPU-hours."""
    economics = Economics(8, 8, 1, steps=3600.0, rent=rent)
    split, busy = Strategy(1, 1, 8, 1), Busy()
    return Configuration(machine, split, 1, 8, step, step, True, 0, 0, None, "compute", "", economics, busy, asdict(features))


@pytest.fixture
def published() -> Iterator[None]:
    """`RUNS` instead of the published runs that come with parsim."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ratios, "known_runs", lambda: tuple(RUNS))
        ratios._band.cache_clear()
        yield
    ratios._band.cache_clear()


def answer(*found: Configuration, minimise: str = "cost") -> AnswerData:
    machines = tuple(Machine(one.machine, one.machine) for one in found)
    question = SizeQuestion("gpt2", 1e9, machines, minimise=minimise)
    recipe = Recipe(1024, 64, None, None, ())
    return AnswerData(question, recipe, 124_000_000, tuple(Sized(one.machine, (8,), (), (one,)) for one in found))


def test_a_tie_by_hand() -> None:
    """Four of five pairs lie within 4 %: 3.9 % apart is a tie, 4.1 % is not."""
    best, near, far = configuration("a", 1.0), configuration("b", 1.039, H100), configuration("c", 1.041, H100)
    (tie,) = ties([best, near, far], "cost", of_runs)
    assert (tie.best, tie.other, tie.verdict, tie.differing) == ("a", "b", "tie", ("gpu",))
    assert tie.ratio == pytest.approx(1.039)
    assert tie.band is not None
    assert (tie.band.factor, tie.band.pairs, tie.band.sources) == (pytest.approx(1.04), 10, 5)
    assert tie.why == (
        "a and b are a tie, 3.9 % apart: of 10 published pairs that differ in the GPU, 80 % have a ratio within 4 % of the predicted one;"
        " measure a few steps of each to decide"
    )


def test_prices_count_as_they_are() -> None:
    """8 GPU-hours for 1.00 and 4 for 2.02 are 1 % apart in cost, and half the time."""
    slow, fast = configuration("a", 1.0), configuration("b", 0.5, H100, rent=2.02)
    (tie,) = ties([slow, fast], "cost", of_runs)
    assert tie.ratio == pytest.approx(1.01)
    assert ties([fast, slow], "time", of_runs) == []


def test_the_same_gpu_with_another_network_is_never_a_tie() -> None:
    """Pairs that differ in nothing named are exact here: what differs at all is apart, what is equal is unknown."""
    best = configuration("a", 1.0)
    (same,) = ties([best, configuration("b", 1.0), configuration("c", 1.001)], "time", of_runs)
    assert (same.other, same.verdict, same.differing) == ("b", "unknown", ())
    assert same.band is not None
    assert same.band.factor == 1.0
    assert same.why.startswith(
        "published runs cannot separate a and b (0 % apart): both have the same GPU, and published pairs do not say what"
    )


def test_what_no_pair_differs_in_is_unknown() -> None:
    """However far apart: nothing published says how far off such a ratio is."""
    other = configuration("b", 3.0, replace(H100, gpus=16))
    (tie,) = ties([configuration("a", 1.0), other], "time", of_runs)
    assert (tie.verdict, tie.differing, tie.band) == ("unknown", ("gpu", "gpus"), None)
    assert tie.why == (
        "published runs cannot separate a and b (200 % apart): there is no published pair that differs in the GPU and the number of GPUs;"
        " measure a few steps of each to decide"
    )
    found = tie.document()
    assert (found["factor"], found["pairs"], found["sources"]) == (None, 0, 0)


def test_what_is_not_judged() -> None:
    """The number of GPUs is no estimate, a machine without a price has no ratio, and one machine alone has no rival."""
    pair = [configuration("a", 1.0), configuration("b", 1.0, H100)]
    assert ties(pair, "gpus", of_runs) == []
    assert ties([pair[0], configuration("b", 1.0, H100, rent=None)], "cost", of_runs) == []
    assert ties([configuration("a", 1.0, rent=0.0), pair[1]], "cost", of_runs) == []
    assert ties(pair[:1], "cost", of_runs) == []
    assert ties([], "cost", of_runs) == []


def on_the_edge(ratio: float) -> bool:
    """Where rounding decides."""
    return abs(max(ratio, 1 / ratio) - 1.04) < 1e-6


@given(st.floats(0.5, 2.0), st.floats(1.0, 2.0), st.sampled_from([A100, H100, replace(H100, gpus=16)]))
def test_a_tie_is_symmetric_and_what_is_nearer_than_a_tie_is_one(step: float, factor: float, features: Features) -> None:
    """Also: what is `factor` times as far from a choice that is apart is apart."""
    assume(not on_the_edge(step) and not on_the_edge(step**factor))
    best = configuration("a", 1.0)

    def verdicts(one: Configuration, other: Configuration) -> list[str]:
        return [tie.verdict for tie in ties([one, other], "time", of_runs)]

    other = configuration("b", step, features)
    assert verdicts(best, other) == verdicts(other, best)
    farther = configuration("b", step**factor, features)
    if verdicts(best, farther):
        assert verdicts(best, other) == verdicts(best, farther)


@given(st.floats(0.8, 1.25), st.floats(0.1, 10.0), st.sampled_from(["time", "cost"]))
def test_only_the_ratio_counts(ratio: float, scale: float, minimise: str) -> None:
    """Longer trainings and other prices for both change no verdict, but on the edge of the band."""
    assume(not on_the_edge(ratio))
    here = ties([configuration("a", 1.0), configuration("b", ratio, H100)], minimise, of_runs)
    there = ties([configuration("a", scale, rent=3.0), configuration("b", ratio * scale, H100, rent=3.0)], minimise, of_runs)
    assert [tie.verdict for tie in here] == [tie.verdict for tie in there]


@pytest.mark.usefixtures("published")
def test_the_answer_says_it() -> None:
    """In the order of the ranking: b is best, a is 3 % and d 4.5 % more."""
    found = answer(configuration("a", 1.03), configuration("b", 1.0, H100), configuration("d", 1.045), minimise="time")
    (tie,) = found.ties
    assert (tie.best, tie.other) == ("b", "a")
    lines = text(found).split("\n")
    assert tie.why in lines
    assert lines.index(tie.why) > next(place for place, line in enumerate(lines) if line.startswith("1"))
    written = json.loads(json.dumps(found.document(), allow_nan=False))["ties"]
    assert written == [
        {
            "machines": ["b", "a"],
            "verdict": "tie",
            "ratio": pytest.approx(1.03),
            "differing": ["gpu"],
            "factor": pytest.approx(1.04),
            "pairs": 10,
            "sources": 5,
            "why": tie.why,
        }
    ]


@cache
def simulated() -> AnswerData:
    """Eight A100 and eight H100."""
    flags = {"model": "gpt2", "tokens": "10B", "on": "dgx-a100-80gb,hgx-h100", "sequence_length": 1024, "global_batch": 64, "gpus": "8"}
    return size(read_question(None, {**flags, "minimise": "time"}), workers=1)


def test_configurations_carry_their_features_between_processes() -> None:
    fast, slow = pickle.loads(pickle.dumps(simulated().ranked))
    assert (fast.machine, slow.machine) == ("hgx-h100", "dgx-a100-80gb")
    assert "gpu" in differing_in(fast.features, slow.features)
    assert fast.features["gpus"] == 8
    assert (fast.features["stack"], fast.features["parameters"]) == ("megatron-core", slow.features["parameters"])


def test_simulated_machines_tie_where_published_ratios_are_off_by_more() -> None:
    """One pair of runs like the two machines, its ratio as far off as the two are apart and a percent more, or less."""
    fast, slow = simulated().ranked
    ratio = slow.seconds / fast.seconds

    def band(off: float) -> list[str]:
        runs = [run(1, "s", Features(**fast.features), 0.0), run(2, "s", Features(**slow.features), off - 1)]
        return [tie.verdict for tie in ties([fast, slow], "time", lambda ours, theirs: band_of(differing_in(ours, theirs), runs))]

    assert band(1.01 * ratio) == ["tie"]
    assert band(ratio / 1.01) == []

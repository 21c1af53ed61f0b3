"""The exact choice: the same as simulating everything, with fewer simulations."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from parsim.study.size.search import QuickBound, fastest
from parsim.study.size.strategies import Strategy


@dataclass(frozen=True)
class Truth:
    """What a simulation would find, and how far below it the bounds are."""

    step_time: float
    fits: bool
    quick: float
    tight: float
    refused: bool = False
    lacks: int = 0


@dataclass
class Table:
    """A judge that looks answers up."""

    truths: list[Truth]
    simulated: list[int] = field(default_factory=list)

    def bound(self, strategy: Strategy) -> QuickBound:
        truth = self.truths[strategy.data]
        return QuickBound(truth.step_time * truth.quick, truth.lacks, "no" if truth.refused else "")

    def tight(self, strategy: Strategy) -> float:
        truth = self.truths[strategy.data]
        return truth.step_time * truth.tight

    def simulate(self, strategy: Strategy) -> Truth:
        self.simulated.append(strategy.data)
        return self.truths[strategy.data]


def strategies(count: int) -> list[Strategy]:
    return [Strategy(1, 1, data, 1) for data in range(count)]


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    fits = draw(st.booleans())
    quick = draw(st.floats(0.1, 1.0))
    lacks = 0 if fits else draw(st.sampled_from([0, 7]))
    return Truth(draw(st.integers(1, 20)) / 4, fits, quick, draw(st.floats(quick, 1.0)), draw(st.booleans()), lacks)


@given(st.lists(truths(), max_size=20), st.sampled_from([inf, 1.0, 2.5]))
def test_the_choice_is_that_of_simulating_everything(found: list[Truth], limit: float) -> None:
    judge, everything = Table(found), Table(found)
    choice = fastest(strategies(len(found)), judge, limit)
    brute = fastest(strategies(len(found)), everything, limit, exhaustive=True)
    possible = [
        (truth.step_time, place) for place, truth in enumerate(found) if truth.fits and not truth.refused and truth.step_time <= limit
    ]
    expected = min(possible, default=None)
    chosen = choice.strategy
    assert (None if chosen is None else (found[chosen.data].step_time, chosen.data)) == expected
    assert brute.strategy == choice.strategy
    tally = choice.tally
    assert tally.considered == len(found) == tally.refused + tally.too_large + tally.too_slow + tally.simulated
    assert tally.simulated == len(judge.simulated) <= len(everything.simulated)


def test_what_a_tight_bound_saves() -> None:
    found = [Truth(1.0, True, 0.9, 0.95), Truth(2.0, True, 0.4, 0.99), Truth(1.5, True, 0.99, 1.0), Truth(1.0, False, 1.0, 1.0, lacks=5)]
    judge = Table(found)
    choice = fastest(strategies(4), judge)
    assert judge.simulated == [0]
    assert (choice.tally.too_large, choice.tally.too_slow, choice.least_bound, choice.least_lack) == (1, 2, 0.8, 5)


def test_nothing_below_the_limit() -> None:
    judge = Table([Truth(3.0, True, 0.5, 0.9)])
    choice = fastest(strategies(1), judge, 2.0)
    assert choice.found is None
    assert judge.simulated == []
    assert choice.tally.too_slow == 1

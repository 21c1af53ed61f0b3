"""Order statistics by their exact figures, and what is made of many runs, on steps whose distribution is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, stdev

import numpy as np
import pytest

from parsim.errors import ScenarioError
from parsim.monte_carlo.gather import CAUSE_RUNS, Disturbed, gather
from parsim.monte_carlo.question import RunQuestion, Sampled
from parsim.monte_carlo.stopping import Until, until
from parsim.report.order_statistics import coverage, quantile, quantile_ranks, student_t
from parsim.report.variability import Spread, paired


@pytest.mark.parametrize(
    ("count", "ranks", "held"),
    [(100, (90, 99), 0.95145), (200, (183, 196), 0.96146), (400, (372, 389), 0.95025), (1000, (937, 964), 0.95042)],
)
def test_ranks_that_hold_the_95_percent_quantile(count: int, ranks: tuple[int, int], held: float) -> None:
    assert quantile_ranks(count, 0.95) == ranks
    exact = sum(math.comb(count, k) * 95**k * 5 ** (count - k) for k in range(*ranks)) / 100**count
    assert coverage(count, 0.95, ranks) == pytest.approx(exact, rel=1e-12)
    assert round(exact, 5) == held


def test_a_sample_that_is_too_small_has_none() -> None:
    assert quantile_ranks(58, 0.95) is None  # 1 - 0.95^58 = 0.9490
    assert quantile_ranks(59, 0.95) == (50, 59)
    assert quantile_ranks(298, 0.99) is None
    assert quantile_ranks(299, 0.99) == (289, 299)
    low, high = quantile_ranks(1_000_000, 0.95) or (0, 0)
    assert (high - low) == pytest.approx(2 * 1.959964 * math.sqrt(1e6 * 0.95 * 0.05), rel=5e-3)


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.7062047), (2, 4.3026527), (9, 2.2621572), (29, 2.0452296), (199, 1.9719565)])
def test_students_t_of_the_tables(freedom: int, t: float) -> None:
    assert student_t(freedom) == pytest.approx(t, abs=1e-7)


def test_quantiles_are_values_of_the_sample() -> None:
    ordered = [float(value) for value in range(1, 201)]
    assert [quantile(ordered, share) for share in (0.05, 0.5, 0.95, 0.99)] == [10, 100, 190, 198]
    spread = Spread(tuple(reversed(ordered)), 1.0)
    assert spread.document() == {
        "nominal": 1.0, "mean": 100.5, "sd": pytest.approx(stdev(ordered)), "p5": 10, "p50": 100, "p95": 190, "p99": None,
        "interval_95": {"mean": [pytest.approx(92.429, abs=1e-3), pytest.approx(108.571, abs=1e-3)], "p95": [183, 196]},
    }  # fmt: skip
    few = Spread(tuple(ordered[:59]), 1.0).document()
    assert (few["p5"], few["p50"], few["p95"], few["interval_95"]["p95"]) == (None, 30, None, None)
    assert Spread((2.0,), 1.0).document()["interval_95"] == {"mean": None, "p95": None}
    assert sum(spread.bins()[1]) == 200
    edges, counts, far = Spread((*ordered, 10_000.0), 1.0).bins()
    assert (edges[0], edges[-1], sum(counts), far) == (1.0, 200.0, 200, [10_000.0])
    assert Spread((2.0, 2.0, 2.0), 1.0).bins() == ([2.0, 2.0], [3], [])
    assert spread.mapped(lambda time: 1 / time).mean == pytest.approx(fmean(1 / value for value in ordered))


class Known:
    """Steps 1 + 0.1 z for each cause, the same z whatever else is on; the questions are counted."""

    def __init__(self) -> None:
        self.asked: list[RunQuestion] = []

    def __call__(self, questions: Sequence[RunQuestion]) -> Iterator[tuple[RunQuestion, Sampled]]:
        self.asked += questions
        for one in reversed(questions):  # answers come in any order
            yield one, Sampled(1.0 + sum(self.extra(one.number, cause) for cause in one.causes), one.number % 4 - 1)

    def extra(self, run: int, cause: str) -> float:
        return 0.1 * float(np.random.default_rng([run, len(cause)]).exponential())


def test_steps_and_clusters_are_two_documents() -> None:
    known = Known()
    found = gather(known, Disturbed(frozenset({"gpus", "kernel"}), frozenset({"gpus"}), 1.0, 7, "by hand"), 100)
    document = found.document(1000.0)
    assert (document["over"], document["runs"], document["seed"], document["method"]) == ("clusters", 100, 7, "by hand")
    clusters, steps = ([1.0 + known.extra(run, cause) for run in range(100)] for cause in ("gpus", "kernel"))
    assert document["sampled_s"] == pytest.approx(clusters)
    assert (document["steps"]["over"], document["steps"]["sampled_s"]) == ("steps", pytest.approx(steps))
    assert found.expected == pytest.approx(fmean(clusters) + fmean(steps) - 1.0)
    assert document["together"]["mean"] == found.expected
    assert document["tokens_per_s"]["p95"] == pytest.approx(1000.0 / sorted(clusters)[5])
    assert [row["ranks"] for row in document["slowest"]] == ["0", "1", "2"]
    assert {row["share"] for row in document["slowest"]} == {0.25}
    assert len(known.asked) == len(set(known.asked)) == 300  # one cause alone is the other one removed


def test_what_each_cause_does() -> None:
    known = Known()
    found = gather(known, Disturbed(frozenset({"step", "kernel", "collective"}), frozenset(), 1.0), 200)
    assert (found.over, found.steps, found.cause_runs) == ("steps", None, CAUSE_RUNS)
    mean = {cause: fmean(known.extra(run, cause) for run in range(CAUSE_RUNS)) for cause in ("step", "kernel", "collective")}
    for one in found.causes:
        assert one.exposed_s == pytest.approx(mean[one.cause])
        assert one.alone_s == pytest.approx(1.0 + mean[one.cause])
        assert one.removed_s == pytest.approx(1.0 + sum(mean.values()) - mean[one.cause])
    assert [one.exposed_s for one in found.causes] == sorted((one.exposed_s for one in found.causes), reverse=True)
    assert len(known.asked) == 200 + 6 * CAUSE_RUNS


def test_runs_are_enough_when_the_interval_is_narrow() -> None:
    of = Disturbed(frozenset({"kernel"}), frozenset(), 1.0)
    found = gather(Known(), of, 2000, until=Until(0.01))
    ends = found.step_times.mean_interval or (0.0, 0.0)
    assert (ends[1] - ends[0]) / 2 <= 0.01 * found.step_times.mean
    assert found.runs % 20 == 0
    before = Spread(found.step_times.values[: found.runs - 20], 1.0)
    assert not Until(0.01).enough(before)
    assert gather(Known(), of, 40, until=Until(0.001)).runs == 40  # the most there may be
    tail = gather(Known(), of, 2000, until=Until(0.05, "p95"))
    assert tail.runs >= 60
    assert Until(0.05, "p95").enough(tail.step_times)


@pytest.mark.parametrize(("text", "meant"), [("1%", Until(0.01)), (" 0.5 % ", Until(0.005)), ("p95:2%", Until(0.02, "p95"))])
def test_how_to_say_it(text: str, meant: Until) -> None:
    assert until(text) == meant


@pytest.mark.parametrize("text", ["1", "0%", "100%", "-1%", ""])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"no share of the mean or of p95"):
        until(text)


def test_of_which_number_a_share_may_be() -> None:
    with pytest.raises(ScenarioError, match="did you mean 'p95'"):
        until("p50:1%")


def test_differences_of_equal_draws() -> None:
    def document(times: Iterable[float], seed: int = 0, over: str = "steps") -> dict[str, object]:
        return {"seed": seed, "over": over, "sampled_s": list(times), "step_time_s": {"nominal": 1.0}}

    first, second = document([1.0, 2.0, 3.0]), document([1.5, 2.5, 3.5, 9.0])
    spread = paired(first, second)
    assert spread is not None
    assert spread.values == (0.5, 0.5, 0.5)
    assert spread.mean_interval == (0.5, 0.5)
    assert paired(first, document([1.0], seed=1)) is None
    assert paired(first, document([1.0], over="clusters")) is None
    assert paired(None, first) is None

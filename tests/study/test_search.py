"""The search finds what simulating everything finds."""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import pytest

from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.study.search.bounds import Bounds
from parsim.study.search.candidate import Candidate
from parsim.study.search.evaluate import Invalid, Setup
from parsim.study.search.incumbents import dominates
from parsim.study.search.lattice import Lattice, Ranges, divisors
from parsim.study.search.objective import (
    GPU_TIME_PER_SAMPLE,
    PEAK_MEMORY,
    STEP_TIME,
    TIME_PER_SAMPLE,
    AtLeast,
    AtMost,
    Fits,
    Metrics,
    metric,
)
from parsim.study.search.search import BoundError, search

CAPACITY = 100
_keys = count()


@dataclass(frozen=True)
class Table:
    """A setup whose evaluator reads from a table: candidate number -> (cheap, tight, step, memory bound, peak), None if invalid."""

    rows: tuple
    key: tuple

    def evaluator(self):
        return self

    def _row(self, candidate):
        return self.rows[candidate.changes[0][1]]

    def bounds(self, candidate):
        row = self._row(candidate)
        return Invalid("a rule") if row is None else Bounds(row[0], row[3], CAPACITY, 8, None, row[5])

    def tight(self, candidate):
        return self._row(candidate)[1]

    def simulate(self, candidate):
        _, _, step, _, peak, gpus = self._row(candidate)
        return Metrics(step, 8 / step, None, None, peak, CAPACITY, peak <= CAPACITY, gpus)


def table(rows):
    return Table(tuple(rows), ("table", next(_keys))), [Candidate.of({"n": n}) for n in range(len(rows))]


def rows(draw, size):
    """Small whole numbers, so that ties are common."""
    found = []
    for _ in range(size):
        if draw.random() < 0.1:
            found.append(None)
            continue
        step, peak = draw.randint(1, 12), draw.randint(60, 120)
        tight = draw.randint(0, step)
        found.append((draw.randint(0, tight), tight, step, draw.randint(40, peak), peak, draw.choice((4, 8))))
    return found


def fitting(table_rows):
    return [(row[2], number) for number, row in enumerate(table_rows) if row is not None and row[4] <= CAPACITY]


@pytest.mark.parametrize("seed", range(40))
def test_thousands_of_spaces_give_the_best_of_all(seed):
    """2,000 spaces of up to 40 candidates: the k best, in order, ties by number."""
    draw = random.Random(seed)
    for _ in range(50):
        entries = rows(draw, draw.randint(1, 40))
        setup, candidates = table(entries)
        top = draw.choice((1, 1, 3))
        found = search(setup, candidates, top=top)
        assert [record.index for record in found.kept] == [number for _, number in sorted(fitting(entries))[:top]]
        assert found.simulated <= found.valid


@pytest.mark.parametrize("seed", range(20))
def test_thousands_of_spaces_give_the_whole_pareto_front(seed):
    """1,000 spaces: everything that nothing else dominates, equals included."""
    draw = random.Random(1000 + seed)
    for _ in range(50):
        entries = rows(draw, draw.randint(1, 30))
        setup, candidates = table(entries)
        found = search(setup, candidates, (STEP_TIME, PEAK_MEMORY))
        points = {n: (row[2], row[4]) for n, row in enumerate(entries) if row is not None and row[4] <= CAPACITY}
        front = {n for n, point in points.items() if not any(dominates(other, point) for other in points.values())}
        assert {record.index for record in found.kept} == front


def test_tight_bounds_spare_simulations_and_every_loser_says_why():
    entries = [(5, 9, 10, 50, 60, 8), (6, 12, 13, 50, 60, 8), (1, 2, 20, 120, 130, 8), None, (8, 8, 11, 50, 60, 8), (7, 8, 9, 90, 101, 8)]
    setup, candidates = table(entries)
    found = search(setup, candidates)
    assert found.best is not None
    assert found.best.index == 0
    assert [record.metrics is not None for record in found.records] == [True, False, False, False, True, True]
    assert [record.status for record in found.records] == ["kept", "bound", "broken", "invalid", "worse", "broken"]
    assert found.records[1].why == "step_time_s at least 12, 20.00 % more (best: 10)"
    assert found.records[2].why.startswith("does not fit: at least")
    assert found.records[3].why == "a rule"
    assert found.records[4].why == "step_time_s 11, 10.00 % more (best: 10)"
    assert found.records[5].why.startswith("does not fit: 0.00 GiB")
    assert found.why_not(candidates[1]) == found.records[1].why
    assert found.why_not(candidates[0]) == ""
    assert found.why_not(Candidate.of({"n": 99})) is None


def test_exhaustive_simulates_everything_valid():
    entries = rows(random.Random(5), 30)
    setup, candidates = table(entries)
    whole, pruned = search(setup, candidates, exhaustive=True), search(setup, candidates)
    assert whole.simulated == sum(row is not None for row in entries)
    assert [r.index for r in whole.kept] == [r.index for r in pruned.kept]


def test_a_bound_above_the_truth_is_an_error():
    setup, candidates = table([(5, 11, 10, 50, 60, 8)])
    with pytest.raises(BoundError, match=r"step_time_s .* is 10, but its lower bound is 11"):
        search(setup, candidates)


def test_constraints_and_other_objectives():
    entries = [(5, 9, 10, 50, 60, 8), (5, 6, 12, 50, 55, 4), (5, 6, 30, 50, 90, 4)]
    setup, candidates = table(entries)
    assert search(setup, candidates, (GPU_TIME_PER_SAMPLE,)).kept[0].index == 1  # 12 x 4 < 10 x 8
    assert search(setup, candidates, (TIME_PER_SAMPLE,)).kept[0].index == 0
    limited = search(setup, candidates, constraints=(Fits(), AtMost("peak_bytes", 58.0, lambda b: float(b.peak_memory))))
    assert limited.kept[0].index == 1
    assert limited.records[0].why == "peak_bytes 60 > 58"
    assert search(setup, candidates, (metric("samples_per_s", maximise=True),)).kept[0].index == 0
    assert search(setup, candidates, constraints=(AtLeast("samples_per_s", 1.0),)).best is None


# -- scenarios --------------------------------------------------------------------------------------------------------

SMALL = {
    "model": {"base": "gpt2", "layers": 4},
    "cluster": {"topology": "dgx-a100-80gb"},
    "training": {"global_batch": 16, "micro_batch": 1, "sequence_length": 128},
}
NARROW = Ranges(strategy=("ddp", "zero1", "fsdp"), recompute=("none", "full"), largest_tensor=4)


@pytest.fixture(scope="module")
def small():
    scenario = load(SMALL)
    return Setup(scenario), list(Lattice(build(scenario), NARROW))


def test_a_space_of_small_scenarios_equals_brute_force(small):
    """Hundreds of real simulations of some milliseconds; bounds are checked against each."""
    setup, candidates = small
    some = random.Random(1).sample(candidates, 80)
    whole, found = search(setup, some, exhaustive=True, top=3), search(setup, some, top=3)
    assert [r.index for r in whole.kept] == [r.index for r in found.kept]
    assert found.simulated < whole.simulated / 3


def test_the_answer_does_not_depend_on_the_executor(small):
    setup, candidates = small
    some = candidates[::9]
    alone = search(setup, some, top=2)
    with ProcessPoolExecutor(2) as processes, ThreadPoolExecutor(2) as threads:
        for executor in (processes, threads):
            found = search(setup, some, top=2, executor=executor)
            assert [(r.status, r.values, r.least, r.why) for r in found.records] == [
                (r.status, r.values, r.least, r.why) for r in alone.records
            ]


def test_tight_memory_decides_as_brute_force_does():
    """A reserve that leaves little room: most candidates do not fit, and the best of the rest is found."""
    scenario = load({**SMALL, "cluster": {"topology": "dgx-a100-80gb", "memory_reserve": "77.2 GiB"}})
    candidates = list(Lattice(build(scenario), NARROW))[::7]
    setup = Setup(scenario)
    whole, found = search(setup, candidates, exhaustive=True), search(setup, candidates)
    assert found.counts["broken"] > len(candidates) / 4
    assert found.best is not None
    assert whole.best is not None
    assert found.best.index == whole.best.index


@pytest.mark.slow
def test_a_thinned_space_of_175b_equals_exhaustive():
    """The paper's cluster with a batch of 16: layouts of a node each, simulated one and all."""
    scenario = load("gpt3-175b-64x-a100", "training.global_batch=16")
    narrow = Ranges(
        tensor=(4, 8), pipeline=(8, 16), micro_batch=(1, 2), schedule=("interleaved",), virtual_stages=(2, 6), strategy=("zero1",),
        recompute=("selective",), sequence_parallel=(True,),
    )  # fmt: skip
    candidates = list(Lattice(build(scenario), narrow))
    setup = Setup(scenario)
    found, whole = search(setup, candidates, top=2), search(setup, candidates, top=2, exhaustive=True)
    assert [record.index for record in found.kept] == [record.index for record in whole.kept]
    assert found.simulated < whole.simulated / 2


# -- lattice ----------------------------------------------------------------------------------------------------------


def test_the_lattice_of_175b_on_64_gpus_has_ten_thousand_candidates():
    lattice = Lattice(build(load("gpt3-175b-64x-a100")))
    candidates = list(lattice)
    assert len(candidates) >= 10_000
    assert len({repr(sorted(map(repr, candidate.changes))) for candidate in candidates}) == len(candidates)
    assert lattice.skipped["tensor groups larger than 8 GPUs"] == 3  # 16, 32, 64


def test_every_candidate_uses_all_gpus_and_the_whole_batch(small):
    _, candidates = small
    for candidate in candidates:
        found = candidate.mapping()
        sizes = [found[f"parallel.{axis}.size"] for axis in ("tensor", "context", "pipeline", "data")]
        assert sizes[0] * sizes[1] * sizes[2] * sizes[3] == 8
        assert 16 % (found["training.micro_batch"] * sizes[3]) == 0


def test_rules_leave_out_what_the_scenario_would_refuse():
    lattice = Lattice(build(load(SMALL)), Ranges(tensor=(1, 5, 8), pipeline=(1, 2, 8), virtual_stages=(1, 2, 3)))
    sizes = {(c.mapping()["parallel.tensor.size"], c.mapping()["parallel.pipeline.size"]) for c in lattice}
    assert sizes == {(1, 1), (1, 2)}
    assert lattice.skipped["12 heads / tensor size 5 is not whole"] == 1
    assert lattice.skipped["12 heads / tensor size 8 is not whole"] == 1
    assert lattice.skipped["4 layers cannot fill more than 4 stages"] == 1


def test_divisors():
    assert divisors(64) == [1, 2, 4, 8, 16, 32, 64]

"""The search finds what simulating everything finds, whoever is faster."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from typing import Any

import pytest

import parsim
from parsim.errors import ParsimError
from parsim.run import execute, step_of
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.scenario.neighbours import Neighbours
from parsim.study.search.bounds import Bounder
from parsim.study.search.lattice import Lattice, Ranges, divisors
from parsim.study.search.search import dominates
from parsim.study.sweep.choice import BoundedQueue
from parsim.study.sweep.prover import QUESTIONS, Least, ProverQuestion
from parsim.study.sweep.rows import Row, SearchObjective, objective, scores
from parsim.study.sweep.space import Candidate, Place
from parsim.study.variants import QueueJob, Work

CAPACITY = 100
STEP, MEMORY = objective("step_time"), objective("peak_memory")
Entry = tuple[int, int, int, int, int, int]
"""cheap bound, tight bound, step [s], bound of memory, memory [B], GPUs"""


class Table:
    """A prover that looks everything up; None: nothing is known, and the candidate is refused."""

    questions: tuple[ProverQuestion, ...] = ("longest", "step")

    def __init__(self, entries: Sequence[Entry | None]) -> None:
        self.entries = entries
        self.simulated: list[int] = []
        """places whose step was asked for"""

    def least(self, number: int, time: int, *, exact: bool = False) -> Least | None:
        entry = self.entries[number]
        if entry is None:
            return None
        full = f"it needs at least {entry[3]} B" if entry[3] > CAPACITY else ""
        return Least(time, entry[3], full, samples=8, gpus=entry[5], exact=exact)

    def bounds(self, places: Sequence[Place]) -> Iterator[tuple[Place, Least | None]]:
        return ((place, None if (entry := self.entries[place.number]) is None else self.least(place.number, entry[0])) for place in places)

    def work(self, question: ProverQuestion, about: Sequence[tuple[Place, Least]]) -> Work:
        if question == "step":
            self.simulated += [place.number for place, _ in about]
        column = 1 if question == "longest" else 2
        exact = question == "step"
        return lambda: [self.least(place.number, self.entries[place.number][column], exact=exact) for place, _ in about], ()

    def row(self, place: Place) -> Row:
        entry = self.entries[place.number]
        if entry is None:
            return {"key": str(place.number), "status": "refused", "step_time_s": None, "peak_bytes": None}
        return {"key": str(place.number), "status": "fits", "step_time_s": entry[2], "peak_bytes": entry[4], "gpus": entry[5]}


def chosen(
    entries: Sequence[Entry | None],
    objectives: Sequence[SearchObjective] = (STEP,),
    top: int = 1,
    draw: random.Random | None = None,
    seeds: int = 1,
    workers: int = 3,
    size: int = 3,
) -> tuple[dict[int, tuple[float, ...] | None], BoundedQueue, Table]:
    """Rows that were asked for, by place (None: not valid), with several workers whose answers come in any order."""
    table = Table(entries)
    places = [
        Place(number, {"n": number // seeds, "variability.seed": number % seeds}, Candidate(str(number), (), {}))
        for number in range(len(entries))
    ]

    def values(_: Place, row: Row) -> tuple[float, ...] | None:
        found = scores(objectives, row)
        return found if row["status"] == "fits" and (row["peak_bytes"] or 0) <= CAPACITY else None

    choice = BoundedQueue(places, table, objectives, values, top, seeds_of=lambda place: place.settings["n"])
    rows: dict[int, tuple[float, ...] | None] = {}
    flying: list[QueueJob] = []
    sizes: Mapping[ProverQuestion, int] = dict.fromkeys(QUESTIONS, size)
    while True:
        while len(flying) < workers and (jobs := choice.take(sizes)):
            flying += jobs
        if not flying:
            return rows, choice, table
        job = flying.pop(0 if draw is None else draw.randrange(len(flying)))
        answer: Any = table.row(job.place) if job.question == "row" else choice.work([job])[0]()[0]
        if job.question == "row":
            assert job.place.number not in rows, "asked twice"
            rows[job.place.number] = values(job.place, answer)
        choice.tell([(job, answer)])


def entries_of(draw: random.Random, size: int) -> list[Entry | None]:
    """Small whole numbers, so that ties are common."""
    found: list[Entry | None] = []
    for _ in range(size):
        if draw.random() < 0.1:
            found.append(None)
            continue
        step, peak = draw.randint(1, 12), draw.randint(60, 120)
        tight = draw.randint(0, step)
        found.append((draw.randint(0, tight), tight, step, draw.randint(40, peak), peak, draw.choice((4, 8))))
    return found


def fitting(entries: Sequence[Entry | None]) -> dict[int, Entry]:
    return {number: entry for number, entry in enumerate(entries) if entry is not None and entry[4] <= CAPACITY}


@pytest.mark.parametrize("seed", range(10))
def test_hundreds_of_spaces_give_the_best_of_all(seed: int) -> None:
    """500 spaces of up to 40 candidates, any number of workers, any order of arrival: the k best, in order, ties by number."""
    draw = random.Random(seed)
    for _ in range(50):
        entries = entries_of(draw, draw.randint(1, 40))
        top = draw.choice((1, 1, 3))
        rows, choice, _ = chosen(entries, top=top, draw=draw, workers=draw.randint(1, 6))
        expected = sorted((entry[2], number) for number, entry in fitting(entries).items())[:top]
        assert sorted((values[0], number) for number, values in rows.items() if values is not None)[:top] == expected
        assert rows.keys() | choice.passed.keys() == set(range(len(entries)))
        assert not rows.keys() & choice.passed.keys()


@pytest.mark.parametrize("seed", range(10))
def test_hundreds_of_spaces_give_the_whole_pareto_front(seed: int) -> None:
    """500 spaces: everything that nothing else dominates, equals included."""
    draw = random.Random(1000 + seed)
    for _ in range(50):
        entries = entries_of(draw, draw.randint(1, 30))
        rows, choice, _ = chosen(entries, (STEP, MEMORY), draw=draw, workers=draw.randint(1, 6))
        points = {number: (entry[2], entry[4]) for number, entry in fitting(entries).items()}
        front = {number for number, point in points.items() if not any(dominates(other, point) for other in points.values())}
        found = {number: values for number, values in rows.items() if values is not None}
        assert {number for number, one in found.items() if not any(dominates(other, one) for other in found.values())} == front
        assert rows.keys() | choice.passed.keys() == set(range(len(entries)))


@pytest.mark.parametrize("seed", range(10))
def test_means_over_seeds_are_ranked_as_if_all_were_simulated(seed: int) -> None:
    """250 spaces of up to 12 candidates with 2 or 3 seeds each: a candidate with a seed that breaks a constraint is none."""
    draw = random.Random(2000 + seed)
    for _ in range(25):
        seeds, top = draw.choice((2, 3)), draw.choice((1, 2))
        entries = entries_of(draw, seeds * draw.randint(1, 12))
        rows, _, _ = chosen(entries, top=top, draw=draw, seeds=seeds, workers=draw.randint(1, 6))

        def ranked(found: Mapping[int, Any], count: int = len(entries), each: int = seeds) -> list[tuple[float, int]]:
            groups = [range(at, at + each) for at in range(0, count, each)]
            return sorted((sum(found[n] for n in group) / each, group[0]) for group in groups if all(n in found for n in group))

        mine = ranked({number: values[0] for number, values in rows.items() if values is not None})
        assert mine[:top] == ranked({number: entry[2] for number, entry in fitting(entries).items()})[:top]


def test_only_the_best_pay_for_a_report_and_every_loser_says_why() -> None:
    entries = [(5, 9, 10, 50, 60, 8), (6, 12, 13, 50, 60, 8), (1, 2, 20, 120, 130, 8), None, (8, 8, 11, 50, 60, 8), (7, 8, 9, 90, 101, 8)]
    rows, choice, table = chosen(entries, workers=1, size=1)
    assert table.simulated == [4, 5, 0]
    assert rows == {3: None, 5: None, 0: (10.0,)}  # refused; does not fit; the best
    assert choice.judged == {4}
    assert dict(choice.passed) == {
        1: "proved worse: step time is at least 12 s, the best has 10 s",
        2: "does not fit: it needs at least 120 B",
        4: "its step was simulated: step time is at least 11 s, the best has 10 s",
    }
    _, choice, _ = chosen([(5, 9, 10, 50, 60, 8), (6, 12, 13, 70, 80, 8)], (STEP, MEMORY), workers=1, size=1)
    assert dict(choice.passed) == {1: "proved worse: step time is at least 12 s and peak memory is at least 70 B, a row has 10 s and 60 B"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ((5, 11, 10, 50, 60, 8), r"0 takes 10 s, but was proved to take at least 11 s"),
        ((5, 6, 10, 70, 60, 8), r"0 needs 60 B, but was proved to need at least 70 B"),
    ],
)
def test_a_bound_above_the_truth_is_an_error(entry: Entry, message: str) -> None:
    with pytest.raises(ParsimError, match=message):
        chosen([entry, (5, 9, 12, 50, 60, 8)])


def test_other_objectives() -> None:
    entries = [(5, 9, 10, 50, 60, 8), (5, 6, 12, 50, 55, 4), (5, 6, 30, 50, 90, 4)]
    assert {number for number, values in chosen(entries, (MEMORY,))[0].items() if values == (55.0,)} == {1}
    assert chosen(entries, (objective("gpus"), STEP))[0].keys() == {0, 1}  # 30 s on 4 GPUs are beaten by 12 s on 4


# -- scenarios --------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "model": {"base": "gpt2", "layers": 4},
    "cluster": {"topology": "dgx-a100-80gb"},
    "training": {"global_batch": 16, "micro_batch": 1, "sequence_length": 128},
}
NARROW = Ranges(strategy=("ddp", "zero1", "fsdp"), recompute=("none", "full"), largest_tensor=4)


@pytest.fixture(scope="module")
def small() -> list[dict[str, Any]]:
    return list(Lattice(build(load(SMALL)), NARROW))


def swept(base: Mapping[str, Any], some: Sequence[Mapping[str, Any]], **how: Any) -> parsim.study.sweep.study.Study:
    """A study of just these candidates."""
    return parsim.sweep({**base, "study": {"zip": {key: [one[key] for one in some] for key in some[0]}}}, **how)


def simulated(base: Mapping[str, Any], some: Sequence[Mapping[str, Any]]) -> list[tuple[float, int, int]]:
    """(Step [s], peak memory [B], place) of everything that fits, simulated one and all; the fastest first."""
    neighbours, found = Neighbours(load(base)), []
    for place, settings in enumerate(some):
        built = neighbours.built(settings)
        step, run = step_of(built), execute(built)
        if (peak := max(step.peaks.values())) <= step.memory.capacity_bytes - step.memory.reserve_bytes:
            found.append((run.makespan, peak, place))
    return sorted(found, key=lambda one: (one[0], one[2]))


def best(study: parsim.study.sweep.study.Study, top: int) -> list[tuple[float, int, int]]:
    return [(entry.rows[0]["step_time_s"], entry.rows[0]["peak_bytes"], entry.place.number) for entry in study.entries[:top]]


def test_a_space_of_small_scenarios_equals_brute_force(small: list[dict[str, Any]]) -> None:
    """Two dozen real simulations of some milliseconds; bounds are checked against each step and each row."""
    some = random.Random(1).sample(small, 24)
    found, everything = swept(SMALL, some, top=3), simulated(SMALL, some)
    assert best(found, 3) == everything[:3]
    counts = found.counts()
    assert counts["simulated"] <= 4, "reports are for the best"
    assert counts["judged"] + counts["simulated"] < len(some) / 3


@pytest.mark.slow
def test_a_front_of_small_scenarios_equals_brute_force(small: list[dict[str, Any]]) -> None:
    """Step time against memory: the table is the whole front."""
    some = random.Random(2).sample(small, 36)
    found, everything = swept(SMALL, some, minimise=("step_time", "peak_memory"), top=60), simulated(SMALL, some)
    front = [one for one in everything if not any(dominates(other[:2], one[:2]) for other in everything)]
    assert {(entry.rows[0]["step_time_s"], entry.rows[0]["peak_bytes"], entry.place.number) for entry in found.shown} == set(front)
    assert found.counts()["simulated"] < len(some) / 2


@pytest.mark.slow
def test_the_answer_does_not_depend_on_the_executor(small: list[dict[str, Any]]) -> None:
    some = small[::28]
    alone = swept(SMALL, some, top=2)
    with ThreadPoolExecutor(2) as threads:
        for how in ({"workers": 2}, {"executor": threads}):
            assert best(swept(SMALL, some, top=2, **how), 2) == best(alone, 2)


def test_tight_memory_decides_as_brute_force_does(small: list[dict[str, Any]]) -> None:
    """A reserve that leaves little room: most candidates do not fit, and the best of the rest is found."""
    base, some = {**SMALL, "cluster": {"topology": "dgx-a100-80gb", "memory_reserve": "77.2 GiB"}}, small[::12]
    found, everything = swept(base, some, top=1), simulated(base, some)
    assert sum("does not fit" in reason for _, _, reason in found.why_not()) > len(some) / 4
    assert best(found, 1) == everything[:1]


MIXTURE = {
    "model": {"base": "mixtral-8x7b", "layers": 2, "hidden": 256, "heads": 8, "kv_heads": 4, "mlp": 512, "vocabulary": 1024},
    "cluster": {"topology": "hgx-h100"},
    "training": {"sequence_length": 512, "micro_batch": 1, "global_batch": 16, "precision": "bf16"},
}


def test_experts_are_spread_over_every_number_of_ranks_that_divides_them() -> None:
    """Eight experts on eight GPUs; beside tensor parallelism with sequence parallelism only."""
    lattice = Lattice(build(load(MIXTURE)), Ranges(strategy=("zero1", "fsdp"), recompute=("none",), pipeline=(1, 2)))
    found = {(c["parallel.tensor.size"], c["parallel.pipeline.size"], c["parallel.expert.size"]) for c in lattice}
    assert found == {(t, p, ep) for t in (1, 2, 4) for p in (1, 2) for ep in (1, 2, 4, 8) if 8 // p % ep == 0}
    assert lattice.skipped["tensor and expert parallelism together need sequence parallelism"] > 0
    assert all("parallel.expert.size" not in candidate for candidate in Lattice(build(load(SMALL)), NARROW))


def test_a_space_with_spread_experts_equals_brute_force() -> None:
    narrow = Ranges(
        tensor=(1, 2), pipeline=(1,), micro_batch=(1,), strategy=("zero1", "fsdp"), recompute=("none",), sequence_parallel=(True,)
    )
    some = [one for one in Lattice(build(load(MIXTURE)), narrow) if 8 % (one["parallel.expert.size"] * one["parallel.tensor.size"]) == 0]
    assert len(some) == 14
    found, everything = swept(MIXTURE, some, top=2), simulated(MIXTURE, some)
    assert best(found, 2) == everything[:2]


@pytest.mark.parametrize("base", [SMALL, MIXTURE], ids=["dense", "experts"])
def test_larger_micro_batches_need_no_less_memory_but_for_gradients(base: dict[str, Any]) -> None:
    """Why the search does not look at a micro-batch larger than one that does not fit: its bound would say so, too."""
    neighbours, bounder = Neighbours(load(base)), Bounder()
    families: dict[str, list[dict[str, Any]]] = {}
    for one in Lattice(build(load(base)), Ranges(expert=(1,), recompute=("none", "selective", {"blocks": 1}), largest_tensor=4)):
        families.setdefault(repr(one | {"training.micro_batch": 0}), []).append(one)
    several = [sorted(family, key=lambda one: one["training.micro_batch"]) for family in families.values() if len(family) > 2]
    for family in random.Random(4).sample(several, 10):
        bounds = [bounder.bounds(neighbours.built(one)) for one in family]
        assert all(larger.peak_memory >= smaller.peak_memory - smaller.gradients for smaller, larger in pairwise(bounds))


MIXED = {
    "model": {"base": "llama-7b", "layers": 6},
    "cluster": {"nodes": [{"use": "hgx-h100", "gpus": 4}, {"use": "dgx-a100-80gb", "gpus": 2}]},
    "training": {"sequence_length": 512, "micro_batch": 1, "global_batch": 24, "precision": "bf16"},
}


def test_a_space_of_mixed_gpus_tries_uneven_parts_and_equals_brute_force() -> None:
    narrow = Ranges(strategy=("ddp", "zero1", "fsdp"), schedule=("1f1b", "gpipe"), recompute=("none",), sequence_parallel=(False,))
    lattice = list(Lattice(build(load(MIXED)), narrow))
    uneven = ("parallel.pipeline.split", "parallel.data.batch_split")
    assert {tuple(one[key] for key in uneven) for one in lattice} == set(product(("even", "balanced"), repeat=2))
    some = random.Random(2).sample(lattice, 16)
    found, everything = swept(MIXED, some, top=2), simulated(MIXED, some)
    assert best(found, 2) == everything[:2]
    assert "balanced" in [some[everything[0][2]][key] for key in uneven]


@pytest.mark.slow
def test_a_thinned_space_of_175b_equals_exhaustive() -> None:
    """The paper's cluster with a batch of 16: layouts of a node each, simulated one and all."""
    base = load("gpt3-175b-64x-a100", "training.global_batch=16")
    narrow = Ranges(
        tensor=(4, 8), pipeline=(8, 16), micro_batch=(1, 2), schedule=("interleaved",), virtual_stages=(2, 6), strategy=("zero1",),
        recompute=("selective",), sequence_parallel=(True,),
    )  # fmt: skip
    some = list(Lattice(build(base), narrow))
    found, everything = swept(base.document(), some, top=2), simulated(base.document(), some)
    assert best(found, 2) == everything[:2]
    assert found.counts()["judged"] + found.counts()["simulated"] < len(some) / 2


# -- lattice ----------------------------------------------------------------------------------------------------------


def test_the_lattice_of_175b_on_64_gpus_has_ten_thousand_candidates() -> None:
    lattice = Lattice(build(load("gpt3-175b-64x-a100")))
    candidates = list(lattice)
    assert len(candidates) >= 10_000
    assert len({repr(sorted(map(repr, candidate.items()))) for candidate in candidates}) == len(candidates)
    assert lattice.skipped["tensor groups larger than 8 GPUs"] == 3  # 16, 32, 64


def test_every_candidate_uses_all_gpus_and_the_whole_batch(small: list[dict[str, Any]]) -> None:
    for found in small:
        sizes = [found[f"parallel.{axis}.size"] for axis in ("tensor", "context", "pipeline", "data")]
        assert sizes[0] * sizes[1] * sizes[2] * sizes[3] == 8
        assert 16 % (found["training.micro_batch"] * sizes[3]) == 0


def test_rules_leave_out_what_the_scenario_would_refuse() -> None:
    lattice = Lattice(build(load(SMALL)), Ranges(tensor=(1, 5, 8), pipeline=(1, 2, 8), virtual_stages=(1, 2, 3)))
    sizes = {(c["parallel.tensor.size"], c["parallel.pipeline.size"]) for c in lattice}
    assert sizes == {(1, 1), (1, 2)}
    assert lattice.skipped["12 heads / tensor size 5 is not whole"] == 1
    assert lattice.skipped["12 heads / tensor size 8 is not whole"] == 1
    assert lattice.skipped["4 layers cannot fill more than 4 stages"] == 1


def test_divisors() -> None:
    assert divisors(64) == [1, 2, 4, 8, 16, 32, 64]

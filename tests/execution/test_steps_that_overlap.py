"""Disturbed steps that are no runs of their own: of pipelines that never flush, and of groups of replicas that step alone."""

from __future__ import annotations

from math import fsum, sqrt
from typing import Any

import numpy as np
import pytest

import parsim
from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import prepare
from parsim.execution.readings import period
from parsim.parallel.settings import OuterLoop
from parsim.program.program import COMPUTE
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.simulation.draws import lane_number
from parsim.study.monte_carlo.runs import simulate_runs

E8 = 1.423600
"""mean of the largest of eight standard normals (Harter, Biometrika 1961)"""
NORMAL = {"jitter": {"kernel": 0.05, "shape": "normal"}}
STATIC = {"gpus": {"spread": 0.05, "node_share": 0.0}}
ALL = {
    "jitter": {"kernel": 0.05, "collective": 0.1, "step": 0.02},
    "gpus": {"spread": 0.02, "slow_nodes": {"share": 0.3, "speed": 0.9}},
    "host": {"pause": "10 ms", "every": 3},
}
ENDLESS = {
    "pipedream": {"schedule": "pipedream"},
    "pipedream-2bw": {"schedule": "pipedream-2bw"},
    "post-validation": {"schedule": "zb-h2", "post_validation": True},
}


def endless(name: str, variability: dict[str, Any], *, d: int = 1, parameters: int = 0) -> dict[str, Any]:
    """Four equal stages of 1 s forward and 2 s backward, eight micro-batches a step."""
    row = {"forward": "1 s", "backward_input": "1 s", "backward_weight": "1 s", "send": "0 s", "parameters": parameters}
    return {
        "name": "endless",
        "model": {"stages": [row]},
        "training": {"micro_batch": 1, "gradient_accumulation": 8},
        "parallel": {"pipeline": {"size": 4} | ENDLESS[name], "data": {"size": d}},
        "cluster": {"topology": "hgx-h100", "gpus": 4 * d, "nodes": -(-d // 2), "interference": "off"},
        "variability": variability,
    }


def local(variability: dict[str, Any], *, parameters: int = 0, groups: int = 8, replicas: int = 8, **outer: Any) -> dict[str, Any]:
    """Replicas of 1 s forward and 2 s backward, four micro-batches a step."""
    return {
        "name": "local",
        "model": {"stages": [{"forward": "1 s", "backward": "2 s", "parameters": parameters}]},
        "training": {"micro_batch": 1, "gradient_accumulation": 4, "optimizer": "sgd"},
        "parallel": {"data": {"size": replicas, "strategy": "ddp", "outer": {"size": groups, "local_steps": 16} | outer}},
        "cluster": {"topology": "hgx-h100", "gpus": replicas, "nodes": -(-replicas // 8), "interference": "off"},
        "variability": variability,
    }


def step_of(tree: dict[str, Any], **how: Any) -> DisturbedStep:
    return DisturbedStep(prepare(build(load(tree))), **how)


# -- nothing drawn ---------------------------------------------------------------------------------------------------------------------


def cases(variability: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        **{name: endless(name, variability, d=2, parameters=10_000_000) for name in ENDLESS},
        "local": local(variability, parameters=1_000_000_000),
        "streamed": local(variability, parameters=1_000_000_000, groups=2, fragments=4, overlap_steps=1),
    }


@pytest.mark.parametrize("name", cases({}))
@pytest.mark.parametrize("by_events", [True, False])
def test_draws_that_change_nothing_leave_the_step_as_it_is(name: str, by_events: bool) -> None:
    """To the last bit: no cause, and jitter of what no kernel is."""
    tree = cases({"jitter": {"host": 0.1}})[name]
    clean = parsim.simulate(tree | {"variability": {}}).step_time
    step = step_of(tree, by_events=by_events)
    assert step.nominal == clean
    assert [one.step_time for one in step.samples(range(3))] == [clean] * 3
    assert [one.step_time for one in step_of(cases(ALL)[name], by_events=by_events).samples([0], [])] == [clean]
    zero = parsim.simulate(tree | {"variability": {"runs": 3, "jitter": 0}})
    assert zero.step_time == clean
    assert zero.document()["variability"] is None


@pytest.mark.parametrize("name", [pytest.param(one, marks=[] if one == "pipedream-2bw" else pytest.mark.slow) for one in cases({})])
def test_the_same_seed_gives_the_same_bytes_from_any_number_of_workers(name: str) -> None:
    scenario = load(cases(ALL | {"runs": 5})[name])
    one, two = (simulate_runs(scenario, workers=count).document() for count in (1, 2))
    one["simulation"].pop("wall_s"), two["simulation"].pop("wall_s")
    assert one == two
    assert one["variability"]["step_time_s"]["mean"] > one["step_time_s"]


@pytest.mark.parametrize("name", cases({}))
def test_arrays_give_what_events_do(name: str) -> None:
    prepared = prepare(build(load(cases(ALL)[name])))
    events, path = (DisturbedStep(prepared, by_events=by_events) for by_events in (True, False))
    for one, other in zip(events.samples(range(3)), path.samples(range(3)), strict=True):
        assert other.step_time == pytest.approx(one.step_time, rel=1e-9)
        assert other.slowest == one.slowest


# -- pipelines that never flush --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENDLESS)
def test_the_slowest_stage_sets_the_pace(name: str) -> None:
    """Every stage works all the time but for what the slowest makes it wait: a step takes m (tF + tB) of that one."""
    step = step_of(endless(name, STATIC))
    assert step.nominal == pytest.approx(24.0, rel=1e-9)
    for sample in step.samples(range(6)):
        slow = step._drawn.of_gpus(sample.run, 4, lambda gpu: 0, spread=True, slow_nodes=False).max()
        assert sample.step_time == pytest.approx(24.0 * slow, rel=1e-9)


def test_passes_of_a_pipeline_that_never_flushes() -> None:
    """The same draws through a recurrence of their own: stage q runs p - q forwards ahead, then one forward and one backward in turn."""
    p, m = 4, 8
    step = step_of(endless("pipedream", NORMAL))
    first, last = step._reading._window.first, step._reading._window.first + step._reading._window.micro_batches  # type: ignore[attr-defined]
    count = m + 4 * p + 8
    for sample in step.samples(range(3)):
        drawn = [step._drawn.jitter(sample.run, "kernel", (rank, lane_number(COMPUTE), 0), 2 * count) for rank in range(p)]
        done: dict[tuple[str, int, int], float] = {}
        orders = []
        for q in range(p):
            order = [("F", i) for i in range(p - q)]
            for i in range(count):
                order += [("B", i)] + ([("F", i + p - q)] if i + p - q < count else [])
            orders.append(order)
        free, at = [0.0] * p, [0] * p
        while min(at) < 2 * count:
            for q in range(p):
                while at[q] < 2 * count:
                    kind, i = orders[q][at[q]]
                    before = ("F", q - 1, i) if kind == "F" else ("B", q + 1, i)
                    if 0 <= before[1] < p and before not in done:
                        break
                    free[q] = max(free[q], done.get(before, 0.0)) + (1 if kind == "F" else 2) * float(drawn[q][at[q]])
                    done[kind, q, i] = free[q]
                    at[q] += 1
        ends = [max(done["B", q, i] for q in range(p)) for i in (first, last)]
        assert sample.step_time == pytest.approx(ends[1] - ends[0], rel=1e-9)


def test_a_pause_of_one_step_costs_that_step() -> None:
    """All hosts pause together in every step, each time by 2 s of a step of 24 s."""
    tree = endless("pipedream", {"host": {"pause": "2 s", "every": 1, "aligned": True}})
    times = [sample.step_time for sample in step_of(tree).samples(range(40))]
    assert np.mean(times) == pytest.approx(26.0, abs=4 * np.std(times) / sqrt(40) + 0.5)  # a kernel under way holds it up less


# -- groups that step alone ------------------------------------------------------------------------------------------------------------


def test_groups_wait_for_the_slowest_sum_of_local_steps() -> None:
    """max over the groups of the sum of H steps, and the exchange: the same draws added up by hand."""
    step = step_of(local(NORMAL, parameters=1_000_000_000))
    parts = step._reading._prepared.local_steps  # type: ignore[attr-defined]
    program = step._prepared.lowering.program
    kernels = np.array([op.duration for op in program.ops if op.lanes and op.lanes[0] == (0, COMPUTE) and op.duration])
    assert fsum(kernels) == pytest.approx(parts.step, rel=1e-12)  # passes and the optimizer's step
    for sample in step.samples(range(4)):
        sums = []
        for rank in range(8):
            steps = (step._drawn.jitter(sample.run | h << 32, "kernel", (rank, lane_number(COMPUTE), 0), len(kernels)) for h in range(16))
            sums.append(fsum(fsum(drawn * kernels) for drawn in steps))
        assert sample.step_time == pytest.approx((max(sums) + parts.exposed) / 16, rel=1e-9)


@pytest.mark.parametrize(("steps", "excess"), [(1, 1.0), (16, 4.0)])
def test_jitter_of_local_steps_averages_out(steps: int, excess: float) -> None:
    """Relative excess sigma e_n / sqrt(H): a step of four micro-batches has sd 0.05 sqrt(4 (1 + 4)) s."""
    runs = 200
    tree = local(NORMAL, local_steps=steps)
    times = np.array([sample.step_time for sample in step_of(tree, by_events=False).samples(range(runs))])
    expected = 12.0 + E8 * 0.05 * sqrt(20) / excess
    assert times.mean() == pytest.approx(expected, abs=4 * times.std() / sqrt(runs))
    assert times.mean() - 12.0 > 8 * times.std() / sqrt(runs)


def test_gpus_that_differ_cost_as_much_as_with_a_barrier_every_step() -> None:
    step = step_of(local(STATIC))
    for sample in step.samples(range(4)):
        slow = step._drawn.of_gpus(sample.run, 8, lambda gpu: 0, spread=True, slow_nodes=False).max()
        assert sample.step_time == pytest.approx(12.0 * slow, rel=1e-6)  # an optimizer of no parameters takes microseconds


def test_ranks_of_one_group_meet_in_every_step() -> None:
    """Two groups of four: the mean of max over groups of the sum of maxima is above that of eight that meet at the end only."""
    few, alone = (
        np.array([one.step_time for one in step_of(local(NORMAL, groups=groups, parameters=1)).samples(range(40))]) for groups in (2, 8)
    )
    assert few.mean() > alone.mean() + 3 * few.std() / sqrt(40)


@pytest.mark.parametrize(("overlap", "exposed"), [(0, 46.9), (1, 24.1), (2, 1.3)])
def test_the_period_of_undisturbed_groups(overlap: int, exposed: float) -> None:
    """INTELLECT-1's exchange of 469 s in ten parts among 100 steps of 22.8 s."""
    outer = OuterLoop(size=3, local_steps=100, fragments=10, overlap_steps=overlap)
    found = period(np.full((200, 3), 22.8), np.full(20, 46.9), outer)
    assert found == pytest.approx(2280.0 + 10 * exposed, rel=1e-12)


def test_exchanges_draw_too() -> None:
    """One part and one group of ranks: a period is H steps and a drawn exchange."""
    step = step_of(local({"jitter": {"collective": 0.3, "shape": "lognormal"}}, parameters=10_000_000_000))
    parts = step._reading._prepared.local_steps  # type: ignore[attr-defined]
    for sample in step.samples(range(3)):
        factor = float(step._drawn.jitter(sample.run, "collective", (0, 7 << 24 | 8, lane_number("outer")), 1)[0])
        assert sample.step_time == pytest.approx(parts.step + factor * parts.fragment / 16, rel=1e-9)

"""What each worker costs alone: exactly the cells that are slow, against steps in which all others are as planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parsim
from parsim.errors import InputError
from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import prepare
from parsim.parallel.groups import PIPELINE
from parsim.report.page.page import page
from parsim.report.report import Report
from parsim.report.workers import WorkerSlowdowns
from parsim.report.write import write_outputs
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.simulation.step_arrays import StepArrays


def job(**variability: Any) -> dict[str, Any]:
    """Four stages of three seconds, eight micro-batches, eight replicas; rank = 8 x stage + replica."""
    return {
        "model": {"stages": [{"forward": "1 s", "backward": "2 s"}]},
        "training": {"micro_batch": 1, "gradient_accumulation": 8},
        "parallel": {"pipeline": {"size": 4}, "data": {"size": 8}},
        "cluster": {"topology": "hgx-h100", "nodes": 4},
        "variability": variability,
    }


def workers_of(report: Report) -> WorkerSlowdowns:
    assert report.workers is not None
    return report.workers


def test_one_slow_rank_lights_exactly_its_cell() -> None:
    report = parsim.simulate(job(slow=[{"rank": 8 * 2 + 3, "speed": 0.8}]))
    workers = workers_of(report)
    expected = np.zeros((4, 8))
    expected[2, 3] = 0.25 * 3.0 * (8 - (3 - 2)) / 33.0  # the critical path of 1F1B with a slow stage
    assert np.array(workers.slowdown) == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert np.count_nonzero(workers.slowdown) == 1
    assert workers.worst == (2, 3)
    assert workers.sentence() == "Stragglers: stage 2 of replica 3 (rank 19) alone makes the step 15.9 % longer; the others nothing."
    assert report.document()["variability"]["by_worker"]["worst"] == {
        "stage": 2, "replica": 3, "ranks": "19", "slowdown": pytest.approx(expected[2, 3], rel=1e-9),
    }  # fmt: skip


def test_a_worker_as_planned_costs_nothing_where_replicas_differ() -> None:
    """Tensor groups of four on machines of six GPUs: some cross machines, and their replicas are later than the others."""
    report = parsim.simulate({
        "model": {"base": "bert-base", "layers": 1, "hidden": 256, "heads": 8},
        "training": {"micro_batch": 3, "sequence_length": 64, "global_batch": 24},
        "parallel": {"tensor": {"size": 4}},
        "cluster": {
            "topology": {"gpu": "rtx-3090", "count": 6, "interconnect": "pcie3-x8", "p2p": False, "nic": "ib-edr"},
            "nodes": 8, "gpus": 32,
        },
        "variability": {"slow": [{"rank": 1, "speed": 0.5}]},
    })  # fmt: skip
    (slowdowns,) = workers_of(report).slowdown
    assert slowdowns[0] > 0.0
    assert slowdowns[1:] == (0.0,) * 7


def test_two_slow_ranks_are_told_apart() -> None:
    """Each costs what it would alone, though together they cost no more than the worse one."""
    slow = [{"rank": 3, "speed": 0.8}, {"rank": 8 * 3 + 5, "speed": 0.9}]
    found = np.array(workers_of(parsim.simulate(job(slow=slow))).slowdown)
    assert sorted(zip(*(places.tolist() for places in np.nonzero(found)), strict=True)) == [(0, 3), (3, 5)]
    for place, one in (((0, 3), slow[0]), ((3, 5), slow[1])):
        alone = parsim.simulate(job(slow=[one]))
        assert found[place] == pytest.approx(alone.step_time / 33.0 - 1.0, rel=1e-9)


def test_balanced_workers_cost_nothing() -> None:
    assert parsim.simulate(job()).workers is None
    workers = workers_of(parsim.simulate(job(slow=[{"rank": 0, "speed": 1.0}])))
    assert not np.any(workers.slowdown)
    assert workers.worst is None
    assert workers.sentence() == "Stragglers: none of 32 workers alone makes the step longer."
    common = parsim.simulate(job(jitter={"step": 0.1}, runs=20))
    assert common.workers is None  # nobody has that for itself
    with pytest.raises(InputError, match="alike"):
        common.plot.workers()


JOBS = [
    pytest.param(("gpt2-ddp-4x-a100",), id="ddp"),
    pytest.param(("llama-7b-zero3-8x-a100", "cluster.gpus=4", "model.layers=2"), id="replicas that meet in every layer"),
    pytest.param(
        (
            "gpt3-22b-8x-a100", "parallel.tensor.size=2", "parallel.pipeline.size=2", "model.layers=4", "training.global_batch=16",
            "training.gradient_accumulation=auto",
        ),
        id="all axes",
    ),
]  # fmt: skip
DRAWN = frozenset({"gpus", "kernel"})


def drawn(overrides: tuple[str, ...]) -> DisturbedStep:
    spread = ("variability.jitter.kernel=0.1", "variability.gpus.spread=0.1", "variability.runs=2")
    prepared = prepare(build(load(*overrides, *spread)))
    return DisturbedStep(replace(prepared, interference=None), by_events=False)


class OneWorker(StepArrays):
    """Arrays in which the kernels of one worker only are disturbed."""

    stage = replica = 0

    def _of_kernels(self, some, disturbances, slowest):
        found = super()._of_kernels(some, disturbances, slowest)
        others = self._factors.columns[some.rank] != self.replica
        if self._factors.plan.mesh.coordinate(some.rank, PIPELINE) != self.stage:
            others[:] = True
        found[:, others] = np.add.reduceat(self._took[some.ops], self._segments(some))
        return found


@pytest.mark.parametrize("overrides", JOBS)
def test_a_column_that_stands_for_all_others_is_as_good_as_all_of_them(overrides: tuple[str, ...]) -> None:
    step = drawn(overrides)
    found = step.by_worker(2, DRAWN, 2**27)
    one = OneWorker(step._factors, step._columns.count, step._trace)
    for run, one.stage, one.replica in np.ndindex(found.shape):
        ((seconds, _),) = one.steps([step._disturbance(run, DRAWN)])
        assert found[run, one.stage, one.replica] == pytest.approx(seconds / step.nominal - 1.0, rel=1e-9, abs=1e-12)
    assert found.max() > 0.005


@pytest.mark.parametrize("overrides", JOBS)
def test_a_worker_costs_about_what_a_step_by_events_says(overrides: tuple[str, ...]) -> None:
    """Whose links are shared anew, while arrays take them as in the undisturbed step."""
    step = drawn(overrides)
    found = step.by_worker(1, DRAWN, 2**27)[0]
    expected = np.array([[_alone(step, stage, replica) for replica in range(found.shape[1])] for stage in range(found.shape[0])])
    assert found == pytest.approx(expected, rel=0.1, abs=1e-3)


def _alone(step: DisturbedStep, stage: int, replica: int) -> float:
    """The step by events in which the kernels of one worker only are disturbed."""
    split = DisturbedStep(step._prepared, by_events=True)
    disturbance, of_ops = split._disturbance(0, DRAWN), np.ones(len(split._prepared.lowering.program.spec))
    for some in split._factors.kernels:
        if split._prepared.plan.mesh.coordinate(some.rank, PIPELINE) == stage and split._columns.of[some.rank] == replica:
            own, bounds = split._of_kernels(some, disturbance)[0], split._bounds(some)
            longest = np.argmax(np.add.reduceat(own * some.seconds, bounds, axis=1), axis=0)
            of_ops[some.ops] = own[np.repeat(longest, np.diff([*bounds, len(some.ops)])), np.arange(len(some.ops))]
    return split._prepared.trace(of_ops.tolist()).makespan / split._trace.makespan - 1.0


def test_runs_are_averaged() -> None:
    report = parsim.simulate(job(gpus={"spread": 0.02}, runs=60))
    workers = workers_of(report)
    assert (workers.stages, workers.replicas, workers.runs) == (4, 8, 20)
    assert all(0 <= value < 0.05 for row in workers.slowdown for value in row)  # other replicas wait, so none is faster
    assert "in the mean of the first 20 runs, the most of 32 workers" in workers.sentence()
    assert report.document()["variability"]["by_worker"]["slowdown"][1][2] == workers.slowdown[1][2]


def test_the_map_is_the_same_unfolded() -> None:
    variability = {"gpus": {"spread": 0.02}, "runs": 3, "slow": [{"rank": 9, "speed": 0.9}]}
    folded, whole = (workers_of(parsim.simulate(job(**variability), unfolded=unfolded)).slowdown for unfolded in (False, True))
    assert np.array(folded) == pytest.approx(np.array(whole), rel=1e-9, abs=1e-12)


def test_steps_that_overlap_have_no_map() -> None:
    assert parsim.simulate("pipeline-unit-pipedream", "variability.slow=[{rank: 1, speed: 0.8}]").workers is None


@pytest.mark.parametrize("width", ["7in", "3.5in"])
def test_the_figure_has_a_cell_for_each_worker(width: str) -> None:
    report = parsim.simulate(job(slow=[{"rank": 19, "speed": 0.8}]))
    ax, bar = report.plot.workers(width=width).axes
    (image,) = ax.images
    assert np.array(image.get_array()) == pytest.approx(100 * np.array(workers_of(report).slowdown))
    assert (ax.get_xlabel(), ax.get_ylabel(), bar.get_ylabel()) == ("replica", "pipeline stage", "longer by [%]")
    (frame,) = ax.patches
    assert frame.get_xy() == (2.5, 1.5)
    assert [text.get_text() for text in ax.texts].count("0") in (0, 31)  # numbers where there is room


def test_the_page_frames_the_worst_worker(tmp_path: Path) -> None:
    report = parsim.simulate(job(slow=[{"rank": 19, "speed": 0.8}]), slow_gpu=0.8)
    written = {path.name: path.read_text(encoding="utf-8") for path in write_outputs(report, tmp_path, ["html", "svg"])}
    assert "workers.svg" in written
    shown = written["report.html"].partition('id="stragglers"')[2].partition("</section>")[0]
    assert shown.count("<title>") == 1
    assert "<title>stage 2 of replica 3 (rank 19): +15.9 %</title>" in shown
    assert 'id="slow-gpu-places"' in written["report.html"]
    plain = page([("balanced", parsim.simulate(job()))])
    assert 'id="stragglers"' not in plain
    assert 'id="slow-gpu"' not in plain

"""`parsim validate traces`: recorded passes through the schedule and the engine, against real steps and a recurrence of numpy."""

import gzip
import json
import shutil
from dataclasses import replace
from statistics import fmean, pstdev

import numpy as np
import pytest

from parsim.cli import execute
from parsim.errors import ScenarioError
from parsim.run import simulate
from parsim.scenario.files import data_root
from parsim.validation.predicted_traces import GivenPasses, predicted, text
from parsim.validation.recorded_steps import recorded_jobs


@pytest.fixture(scope="module")
def jobs():
    return {job.name: job for job in recorded_jobs().jobs}


@pytest.fixture(scope="module")
def found(jobs):
    return {name: predicted(job) for name, job in jobs.items()}


@pytest.mark.parametrize(
    ("name", "steps", "span", "error", "sd"),
    [("AR", 44, 45.622, -0.312, 0.007), ("ST", 32, 2.0133, -0.254, 0.005), ("SE", 43, 8.967, -0.789, 0.066)],
)
def test_steps_from_recorded_passes(found, name, steps, span, error, sd):
    one = found[name]
    assert len(one.spans) == steps
    assert fmean(step.compute_span for step in one.job.steps) == pytest.approx(span, abs=5e-4)
    assert 100 * fmean(one.errors) == pytest.approx(error, abs=1e-3)
    assert 100 * pstdev(one.errors) == pytest.approx(sd, abs=6e-4)


@pytest.mark.parametrize(("name", "span"), [("AR", 46.649), ("ST", 2.2144), ("SE", 9.113)])
def test_whole_steps_are_those_of_the_traces(jobs, name, span):
    assert fmean(step.whole for step in jobs[name].steps) == pytest.approx(span, abs=1e-3)
    if name == "SE":
        quantiles = np.quantile([step.whole for step in jobs[name].steps], [0.05, 0.5, 0.95])
        assert quantiles == pytest.approx([8.078, 9.050, 10.082], abs=1e-3)


def test_distributions_of_steps_agree(found):
    """Quantiles of the simulated steps are as far from the measured ones as the means are."""
    for one in found.values():
        measured = np.quantile([step.compute_span for step in one.job.steps], [0.05, 0.5, 0.95])
        assert np.quantile(one.spans, [0.05, 0.5, 0.95]) / measured == pytest.approx(1 + fmean(one.errors), abs=1.2e-3)
        assert np.corrcoef(one.spans, [step.compute_span for step in one.job.steps])[0, 1] > 0.9999


@pytest.mark.parametrize(("name", "published", "within"), [("AR", 1.9730, 0.0015), ("ST", 1.1787, 0.002), ("SE", 1.5374, 0.014)])
def test_what_stragglers_cost(found, name, published, within):
    """Their step without stragglers contains communication, ours does not: the more of it, the larger our slowdown."""
    one = found[name]
    job, ideal = one.job, one.without_stragglers
    assert job.slowdown == published
    assert one.slowdown == pytest.approx(published, rel=within)
    # every pass at the mean of its kind: the closed form of 1F1B
    means = [np.mean([getattr(step, kind) for step in job.steps]) for kind in ("forward", "backward")]
    assert ideal == pytest.approx((job.micro_batches + job.stages - 1) * sum(means), rel=1e-12)
    # which stage and which replica is to blame, in their order
    stages, replicas = np.array(one.by_stage) / ideal, np.array(one.by_replica) / ideal
    assert stages == pytest.approx(np.array(job.slowdown_by_stage), rel=0.019)
    assert np.argmax(stages) == np.argmax(job.slowdown_by_stage)
    assert replicas == pytest.approx(np.array(job.slowdown_by_replica), rel=0.014)
    assert np.argmax(replicas) == np.argmax(job.slowdown_by_replica)


def test_the_worst_worker_is_the_one_that_was_slowed(found):
    """AR: one worker was slowed on purpose, and no other cell of the map has any colour. ST: the last stage, of both replicas."""
    slowed = found["AR"].workers
    assert slowed.worst == (0, 0)
    assert np.count_nonzero(np.round(slowed.slowdown, 3)) == 1
    assert np.argwhere(np.round(found["ST"].workers.slowdown, 3)).tolist() == [[3, 0], [3, 1]]
    for one in found.values():  # a stage costs at least what its worst worker costs
        workers = np.array(one.by_worker)
        assert workers.shape == (one.job.stages, one.job.replicas)
        assert np.all(workers.max(axis=1) <= np.maximum(one.by_stage, one.without_stragglers) * (1 + 1e-12))
    assert "AR: the worst worker alone is stage 0 of replica 0, +98.1 %" in text(list(found.values()), "")


def one_f_one_b(forward, backward, message=0.0):
    """A second way to compute: a recurrence over the passes of 1F1B, all replicas at once; arrays [replica, stage, micro-batch]."""
    stages, count = forward.shape[1:]
    orders = []
    for s in range(stages):
        warm = min(count, stages - 1 - s)
        middle = [slot for i in range(count - warm) for slot in (("F", warm + i), ("B", i))]
        orders.append([("F", i) for i in range(warm)] + middle + [("B", i) for i in range(count - warm, count)])
    ends, free, places = {}, np.zeros((stages, len(forward))), [0] * stages
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        for s, order in enumerate(orders):
            while places[s] < len(order):
                kind, i = order[places[s]]
                need = (kind, i, s - 1 if kind == "F" else s + 1) if (s if kind == "F" else s < stages - 1) else None
                if need is not None and need not in ends:
                    break
                begin = free[s] if need is None else np.maximum(free[s], ends[need] + message)
                ends[kind, i, s] = free[s] = begin + (forward if kind == "F" else backward)[:, s, i]
                places[s] += 1
    return free.max(axis=0)


def test_engine_is_the_recurrence(jobs):
    for job in jobs.values():
        step = job.steps[len(job.steps) // 2]
        pipeline = GivenPasses(job.stages, job.micro_batches)
        ours = [pipeline.seconds(*both) for both in zip(step.forward, step.backward, strict=True)]
        assert ours == pytest.approx(one_f_one_b(np.array(step.forward), np.array(step.backward)), rel=1e-12)


def test_a_scenario_with_median_times_and_a_slow_worker():
    """AR once more, as a user would write it: median stage times, one rank at 0.426 of its speed."""
    times = [(219.6, 386.6), (218.1, 382.8), (217.5, 381.7), (232.2, 396.0)]
    stages = [{"forward": f"{f} ms", "backward": f"{b} ms", "send": "14.7 ms"} for f, b in times]
    scenario = {
        "model": {"stages": stages},
        "training": {"global_batch": 64, "micro_batch": 1},  # two replicas
        "parallel": {"pipeline": {"size": 4, "schedule": "1f1b"}},
        "cluster": {"topology": "dgx-a100-40gb"},
    }
    assert simulate(scenario).step_time == pytest.approx(22.069, abs=2e-3)
    slowed = simulate(scenario | {"variability": {"slow": [{"rank": 0, "speed": 0.426}]}}).step_time
    forward, backward = (1e-3 * np.array(times)[None, :, kind, None] * np.ones((1, 1, 32)) for kind in (0, 1))
    forward[:, 0] /= 0.426
    backward[:, 0] /= 0.426
    assert slowed == pytest.approx(one_f_one_b(forward, backward, 0.0147)[0], rel=1e-9)
    assert slowed / 45.622 - 1 == pytest.approx(0.0062, abs=1e-4)  # of the recorded mean


@pytest.fixture
def own(tmp_path):
    shutil.copytree(data_root() / "validation" / "traces", tmp_path / "traces")
    return tmp_path / "traces"


def test_command_prints_and_writes(capsys, own, found):
    text_of_jobs = (own / "jobs.yaml").read_text()
    (own / "jobs.yaml").write_text(
        text_of_jobs[: text_of_jobs.index("  AR:")] + text_of_jobs[text_of_jobs.index("  ST:") : text_of_jobs.index("  SE:")]
    )
    assert execute(["validate", "traces", "--data", str(own), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(one["job"], len(one["rows"])) for one in document["jobs"]] == [("ST", 32)]
    assert document["jobs"][0]["slowdown"] == {"published": 1.1787, "predicted": pytest.approx(found["ST"].slowdown)}
    assert "Apache-2.0" in document["source"]
    assert execute(["validate", "traces", "--data", str(own)]) == 0
    assert capsys.readouterr().out == text([found["ST"]], document["source"]) + "\n"
    shown = text(list(found.values()), "somewhere")
    assert "119 recorded steps of 3 jobs" in shown
    assert max(map(len, shown.splitlines())) <= 140


def test_wrong_data_are_findings(own):
    with gzip.open(own / "st.csv.gz", "rt") as packed:
        lines = packed.read().splitlines()
    for changed, words in (
        (lines[:-1], "times are missing"),
        ([*lines[:-1], lines[-1] + " 0.5"], "5 times, but job ST has 4 micro-batches"),
        ([*lines[:-1], lines[-1].replace("forward", "sideways")], "forward or backward"),
        ([*lines[:-1], lines[-1].rsplit(" ", 1)[0] + " -1"], "not negative"),
    ):
        with gzip.open(own / "st.csv.gz", "wt") as packed:
            packed.write("\n".join(changed))
        with pytest.raises(ScenarioError, match=words):
            recorded_jobs(own)
    (own / "st.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(ScenarioError, match="cannot be read"):
        recorded_jobs(own)


def test_equal_passes_cost_nothing(jobs):
    job = jobs["ST"]
    step = job.steps[0]
    flat = tuple(((0.1,) * 4,) * 4 for _ in range(2))
    one = predicted(replace(job, steps=(replace(step, forward=flat, backward=flat),)))
    assert one.slowdown == pytest.approx(1, rel=1e-12)
    assert one.spans[0] == pytest.approx((4 + 3) * 0.2, rel=1e-12)

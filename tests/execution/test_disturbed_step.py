"""Disturbed steps: against closed forms, against a recurrence written down here, folded and unfolded, by events and as longest paths."""

from __future__ import annotations

import json
from math import fsum, sqrt

import numpy as np
import pytest

from parsim.errors import InputError
from parsim.execution.disturbed import EVENTS, DisturbedStep
from parsim.execution.prepared import prepare
from parsim.parallel.groups import TENSOR
from parsim.program.program import COMPUTE
from parsim.run import execute, simulate
from parsim.scenario import files
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.scenario.variability import PROFILES

MODEL = {"family": "gpt2", "hidden": 256, "layers": 4, "heads": 8, "vocabulary": 1024, "maximum_sequence": 512}
E8, V8 = 1.423600, 0.372897
"""mean and variance of the largest of eight standard normals (Harter, Biometrika 1961)"""


def job(variability, *, nodes=1, model=MODEL, training=None, cluster=None, **parallel):
    sequence = {} if "stages" in model else {"sequence_length": 256}
    recipe = sequence | {"micro_batch": 1, "gradient_accumulation": 2} | (training or {})
    machine = {"topology": "hgx-h100", "nodes": nodes, "interference": "off"} | (cluster or {})
    tree = {"name": "job", "model": model, "training": recipe, "parallel": parallel, "cluster": machine}
    host = {"host": {"graphs": True}}  # launching hides nothing
    return build(load(tree | {"software": host, "variability": variability}))


def stages(variability, *, p, m, d, forward=1.0, backward=2.0):
    """1F1B with equal stages of given times and free communication, d replicas."""
    row = {"forward": f"{forward} s", "backward": f"{backward} s", "send": "0 s", "parameters": 0}
    return job(
        variability,
        nodes=-(-p * d // 8),
        model={"stages": [row]},
        training={"gradient_accumulation": m},
        cluster={"gpus": p * d},
        pipeline={"size": p, "schedule": "1f1b"},
        data={"size": d},
    )


def kernels(prepared):
    """The kernels of rank 0 that run beside no collective."""
    trace = prepared.trace()
    busy = [(trace.start[op.index], trace.end[op.index]) for op in trace.program.ops if op.collective is not None]
    own = [op for op in trace.program.ops if op.collective is None and op.duration and op.lanes[0].rank == 0]
    return [op for op in own if not any(start <= trace.start[op.index] < end for start, end in busy)]


# -- closed forms ------------------------------------------------------------------------------------------------------------------------


def test_one_slow_gpu_of_64_holds_back_all_as_64_slow_ones_would():
    """What every rank waits for is the slow one's: its kernels, and nothing else, take 1/0.8 of their time."""
    steps = []
    for slow in ([], [5], range(64)):
        built = job({"slow": [{"rank": rank, "speed": 0.8} for rank in slow]}, nodes=8, data={"strategy": "ddp"})
        run = execute(built, unfolded=True)
        compute = [op for op in run.trace.program.ops if op.lanes[0].rank == 5 and op.lanes[0].name == COMPUTE]
        steps.append((run.trace.makespan, fsum(op.duration for op in compute if op.collective is None)))
    (nominal, work), (one, slowed), (everybody, _) = steps
    assert one == pytest.approx(everybody, rel=1e-9)
    assert slowed == pytest.approx(work / 0.8, rel=1e-9)
    assert nominal < one <= nominal + work * (1 / 0.8 - 1) * (1 + 1e-9)


def test_replicas_wait_for_the_slowest_gpu():
    """A step of compute and then communication takes what the slowest GPU's compute takes, and the communication."""
    built = job({"gpus": {"spread": 0.03}}, data={"strategy": "ddp", "overlap_reduce": False})
    prepared = prepare(built)
    step = DisturbedStep(prepared)
    assert step.method == EVENTS
    program = prepared.lowering.program
    parts = [(op.duration, program.memory_bound.get(op.name, 0.0)) for op in kernels(prepared)]
    for sample in step.samples(range(5)):
        speeds = step._drawn.of_gpus(sample.run, 8, built.cluster.node_of, spread=True, slow_nodes=False)
        slow = speeds.max()
        longer = fsum(seconds * ((1 - share) * slow + share * slow**0.3 - 1) for seconds, share in parts)
        assert sample.step_time == pytest.approx(step.nominal + longer, rel=1e-9)
        assert sample.slowest == int(speeds.argmax())


def test_a_tensor_parallel_group_waits_for_the_slowest_of_eight_at_every_meeting():
    """Between two meetings kernels of d_1 ... d_k take sum d_i + s e_8 sqrt(sum d_i^2) in the mean, e_8 = E[max of 8 normals]."""
    relative, runs = 0.05, 300
    step = DisturbedStep(prepare(job({"jitter": {"kernel": relative, "shape": "normal"}}, tensor={"size": 8, "overlap": "none"})))
    program = step._prepared.lowering.program
    squares, segments = 0.0, []
    for op in program.ops:
        if op.collective is not None:
            assert op.collective.axis == TENSOR
            assert any(lane.name == COMPUTE for lane in op.lanes)
            segments, squares = [*segments, squares], 0.0
        elif op.collective is None and op.lanes[0].name == COMPUTE:
            squares += op.duration**2
    segments.append(squares)
    times = np.array([sample.step_time for sample in step.samples(range(runs))])
    expected = step.nominal + relative * E8 * fsum(map(sqrt, segments))
    deviation = relative * sqrt(V8 * fsum(segments))
    assert times.mean() == pytest.approx(expected, abs=3 * deviation / sqrt(runs))
    assert times.std() == pytest.approx(deviation, rel=0.15)


@pytest.mark.parametrize(("aligned", "ranks"), [(False, 8), (True, 8)])
def test_a_pause_of_any_host_is_a_pause_of_the_step(aligned, ranks):
    built = job({"host": {"pause": "50 ms", "every": 10, "aligned": aligned}}, data={"strategy": "ddp", "overlap_reduce": False})
    step = DisturbedStep(prepare(built))
    for sample in step.samples(range(12)):
        struck = [step._drawn.pause(sample.run, rank) for rank in range(ranks)]
        longest = 0.05 if any(share is not None for share in struck) else 0.0
        gap = max(np.diff([*[step._trace.start[op.index] for op in kernels(step._prepared)], step.nominal]))
        assert step.nominal + longest - gap <= sample.step_time <= step.nominal + longest + 1e-12 or len([s for s in struck if s]) > 1


def recurrence(forward, backward):
    """1F1B without communication, shapes (runs, replicas, stages, micro-batches): when the last backward of the slowest replica ends."""
    runs, replicas, p, m = forward.shape
    done = {}
    free = np.zeros((p, runs, replicas))
    order = []
    for stage in range(p):
        warm = min(m, p - 1 - stage)
        slots = [("F", i) for i in range(warm)]
        for i in range(m - warm):
            slots += [("F", warm + i), ("B", i)]
        order.append(slots + [("B", i) for i in range(m - warm, m)])
    places = [0] * p
    while any(place < 2 * m for place in places):
        for stage in range(p):
            while places[stage] < 2 * m:
                kind, i = order[stage][places[stage]]
                before = (kind, stage - 1, i) if kind == "F" else (kind, stage + 1, i)
                if 0 <= before[1] < p and before not in done:
                    break
                took = (forward if kind == "F" else backward)[:, :, stage, i]
                free[stage] = np.maximum(free[stage], done.get(before, 0.0)) + took
                done[kind, stage, i] = free[stage].copy()
                places[stage] += 1
    return free.max(axis=(0, 2))


@pytest.mark.parametrize("static", [False, True])
def test_replicas_of_pipelines(static):
    """Jitter of each pass, or one speed per GPU: the mean of the steps is that of a recurrence with draws of its own."""
    p, m, d, relative, runs = 4, 8, 16, 0.05, 150
    said = {"gpus": {"spread": relative, "node_share": 0}} if static else {"jitter": {"kernel": relative, "shape": "normal"}}
    prepared = prepare(stages(said, p=p, m=m, d=d))
    ways = [DisturbedStep(prepared, by_events=by_events) for by_events in (False, True)]
    few, same = (way.samples(range(3)) for way in ways)
    assert [a.step_time for a in few] == pytest.approx([b.step_time for b in same], rel=1e-12)
    assert [a.slowest for a in few] == [b.slowest for b in same]
    times = np.array([sample.step_time for sample in ways[0].samples(range(runs))])
    own = np.random.Generator(np.random.Philox(11))
    shape = (20 * runs, d, p, 1 if static else m)
    one, two = (1 + relative * own.standard_normal((2, *shape))).clip(0.5)
    whole = np.ones((*shape[:3], m))
    expected = recurrence(whole * one, 2 * whole * (one if static else two))
    assert times.mean() == pytest.approx(expected.mean(), abs=3 * times.std() / sqrt(runs))
    assert times.std() == pytest.approx(expected.std(), rel=0.25)


# -- the same draws --------------------------------------------------------------------------------------------------------------------


ALL = {
    "jitter": {"kernel": 0.05, "collective": 0.1, "step": 0.02, "host": 0.1},
    "gpus": {"spread": 0.02, "slow_nodes": {"share": 0.3, "speed": 0.9}},
    "host": {"pause": "1 ms", "every": 20},
}
SHAPES = {
    "ddp": ({"data": {"strategy": "ddp"}}, 2),
    "fsdp": ({"data": {"strategy": "fsdp"}}, 2),
    "pipeline": ({"pipeline": {"size": 4}, "data": {"strategy": "zero1"}}, 2),
    "context": ({"context": {"size": 2}, "tensor": {"size": 2}}, 1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_folded_and_unfolded_meet_the_same_draws(name):
    parallel, nodes = SHAPES[name]
    built = job(ALL, nodes=nodes, cluster={"interference": "simple"}, training={"gradient_accumulation": 4}, **parallel)
    folded = DisturbedStep(prepare(built), by_events=True)
    unfolded = DisturbedStep(prepare(built, unfolded=True), by_events=True)
    for one, other in zip(folded.samples(range(2)), unfolded.samples(range(2)), strict=True):
        assert one.step_time == pytest.approx(other.step_time, rel=1e-9)
        assert (one.slowest, one.slowness) == (other.slowest, pytest.approx(other.slowness))


def test_a_tensor_parallel_group_is_one_lane_exactly():
    built = job(ALL, tensor={"size": 8}, cluster={"interference": "simple"})
    folded, unfolded = (DisturbedStep(prepare(built, unfolded=unfolded)) for unfolded in (False, True))
    for one, other in zip(folded.samples(range(3)), unfolded.samples(range(3)), strict=True):
        assert one.step_time == pytest.approx(other.step_time, rel=1e-9)


def test_replicas_of_tensor_parallel_groups_are_an_upper_estimate():
    """Messages and reductions side by side start when the slowest member is there."""
    built = job(ALL, nodes=2, tensor={"size": 4}, pipeline={"size": 2}, data={"strategy": "ddp"})
    folded, unfolded = (DisturbedStep(prepare(built, unfolded=unfolded)) for unfolded in (False, True))
    for one, other in zip(folded.samples(range(2)), unfolded.samples(range(2)), strict=True):
        assert other.step_time * (1 - 1e-12) <= one.step_time <= other.step_time * 1.005


@pytest.mark.parametrize("name", SHAPES)
def test_a_longest_path_is_the_run_by_events_where_nothing_is_shared(name):
    parallel, nodes = SHAPES[name]
    built = job(ALL, nodes=nodes, **parallel)
    prepared = prepare(built)
    events, path = (DisturbedStep(prepared, by_events=by_events) for by_events in (True, False))
    assert path.samples([0], [])[0].step_time == pytest.approx(path.nominal, rel=1e-12)
    for one, other in zip(events.samples(range(2)), path.samples(range(2)), strict=True):
        if name == "context":  # here a tensor-parallel group is one lane, and above it is not
            assert one.step_time <= other.step_time <= 1.02 * one.step_time
        else:
            assert other.step_time == pytest.approx(one.step_time, rel=1e-9)
        assert other.slowest == one.slowest


def test_causes_and_runs_do_not_disturb_each_other():
    step = DisturbedStep(prepare(job(ALL, data={"strategy": "ddp"})))
    alone = DisturbedStep(prepare(job({"gpus": {"spread": 0.02}}, data={"strategy": "ddp"})))
    assert [s.step_time for s in step.samples([4, 2], ["gpus"])] == [s.step_time for s in alone.samples([4, 2])]
    assert step.samples([2])[0] == step.samples(range(3))[2] == DisturbedStep(prepare(job(ALL, data={"strategy": "ddp"}))).samples([2])[0]
    assert step.samples([0], [])[0].step_time == step.nominal
    assert step.samples([0], [])[0].slowest == -1


# -- what a scenario says ----------------------------------------------------------------------------------------------------------------


def test_what_is_random_leaves_the_report_of_one_run_as_it_is():
    plain, said = (simulate(job_tree(v)).document() for v in ({}, {"jitter": 0.05, "gpus": {"spread": 0.02}}))
    assert said["step_time_s"] == plain["step_time_s"]
    assert said["breakdown_s"] == plain["breakdown_s"]


OFF: dict[str, dict[str, object]] = {
    "empty": {},
    "as by default": {"profile": "none", "seed": 0, "runs": 1, "faults": [], "slow": []},
    "jitter": {"jitter": 0},
    "every cause": {
        "jitter": {"kernel": 0, "collective": 0, "host": 0, "step": 0},
        "gpus": {"spread": 0, "slow_nodes": {"share": 0}},
        "host": {"pause": "0 s"},
    },
}


@pytest.mark.parametrize("name", OFF)
def test_what_is_off_changes_no_byte_of_a_report(name):
    """But for what was written itself, which the report repeats: 0 is not what a profile says."""
    plain, off = (simulate(job_tree(said)).document() for said in (None, OFF[name]))
    for document in (plain, off):
        del document["simulation"]["wall_s"]
    if name not in ("empty", "as by default"):
        assert plain["scenario"].pop("variability") != off["scenario"].pop("variability")
    assert json.dumps(off) == json.dumps(plain)


def job_tree(variability):
    cluster = {"topology": "hgx-h100"}
    training = {"sequence_length": 256, "micro_batch": 1, "gradient_accumulation": 2}
    return {"name": "job", "model": MODEL, "cluster": cluster, "training": training} | (
        {} if variability is None else {"variability": variability}
    )


def test_a_slow_node_is_its_ranks():
    node, ranks = (
        job({"slow": slow}, nodes=2, data={"strategy": "ddp", "overlap_reduce": False})
        for slow in ([{"node": 1, "speed": 0.8}], [{"rank": rank, "speed": 0.8} for rank in range(8, 16)])
    )
    assert node.slow == ranks.slow == dict.fromkeys(range(8, 16), 0.8)
    nominal = prepare(job({}, nodes=2, data={"strategy": "ddp", "overlap_reduce": False}))
    compute = fsum(op.duration for op in kernels(nominal))
    assert execute(node).makespan == pytest.approx(nominal.run().makespan + compute * (1 / 0.8 - 1), rel=1e-9)


def test_profiles():
    assert sorted(PROFILES[1:]) == files.names("variability")
    built = job("typical")
    assert built.variability.causes == ("gpus", "slow_nodes", "kernel", "collective", "step", "pause")
    assert {a.name for a in built.assumptions} >= {"variability_gpus_spread", "variability_host_pause"}
    changed = job({"profile": "typical", "gpus": {"spread": 0.03}, "jitter": 0}).variability
    assert (changed.spread, changed.kernel, changed.collective, changed.step) == (0.03, 0.0, 0.0, 0.01)
    for name in PROFILES[1:]:
        assert job(name).variability.causes


@pytest.mark.parametrize(
    ("variability", "message"),
    [
        ({"jitter": {"kernel": 0.3, "shape": "normal"}}, "a standard deviation of 0.3 makes normal times negative; at most 0.15"),
        ({"slow": [{"node": 3, "speed": 0.9}]}, r"no rank is on node 3 \(0 to 0\)"),
        ({"slow": [{"speed": 0.9}]}, "either rank or node"),
        ("typicl", "'typicl' is not one of|did you mean 'typical'"),
        ({"gpus": {"spread": 0.5}}, "0.5 is not a number in"),
    ],
)
def test_what_cannot_be(variability, message):
    with pytest.raises(InputError, match=message):
        job(variability)


def test_the_scenario_of_a_report_varies_as_its_file_does():
    scenario = load({**job_tree("typical"), "name": "job"}, "variability.gpus.spread=0.03")
    again = load(scenario.document())
    assert build(again).variability == build(scenario).variability
    assert again.hash() == scenario.hash()

"""What is known of many runs of a step, asked as a user asks: `variability.runs` of a scenario, read from its report."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import parsim
from parsim import theory
from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import prepare
from parsim.program.program import COMPUTE
from parsim.report.variability_text import LEFT_OUT, left_out
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.simulation import step_arrays

E8, V8 = 1.423600, 0.372897
"""mean and variance of the largest of eight standard normals (Harter, Biometrika 1961)"""
E16 = 1.765991
"""mean of the largest of sixteen"""


def pipeline(p: int, m: int, schedule: str = "1f1b", *, rows: list[dict[str, Any]] | None = None, **variability: Any) -> dict[str, Any]:
    """Equal stages of 1 s forward and 2 s backward, and free communication."""
    return {
        "name": "stages",
        "model": {"stages": rows or [{"forward": "1 s", "backward": "2 s", "send": "0 s", "parameters": 0}]},
        "training": {"micro_batch": 1, "gradient_accumulation": m},
        "parallel": {"pipeline": {"size": p, "schedule": schedule}},
        "cluster": {"topology": "hgx-h100", "nodes": math.ceil(p / 8), "gpus": p, "interference": "off"},
        "variability": variability,
    }


def varied(tree: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = parsim.simulate(tree).document()["variability"]
    return document


@pytest.mark.parametrize(
    ("p", "m", "schedule", "stage", "factor", "expected"),
    [
        *((4, 8, "1f1b", q, 1.2, end) for q, end in enumerate((36.0, 36.6, 37.2, 37.8))),
        *((4, 8, "gpipe", q, 1.2, 37.8) for q in range(4)),
        *((4, 8, "1f1b", q, 3.0, end) for q, end in enumerate((72.0, 75.0, 78.0, 81.0))),
        (16, 64, "1f1b", 7, 1.1, 253.8),
    ],
)
def test_a_slow_stage(p: int, m: int, schedule: str, stage: int, factor: float, expected: float) -> None:
    """GPipe: (m + p - 1) T + (f - 1) T m; 1F1B: (f - 1) T (m - (p - 1 - q)) up to f = 1 + tF / tB. Jitter of what is free adds nothing."""
    step = varied(pipeline(p, m, schedule, runs=2, jitter={"collective": 0.1}, slow=[{"rank": stage, "speed": 1 / factor}]))["step_time_s"]
    assert step["nominal"] == pytest.approx(expected, rel=1e-9)
    assert (step["mean"], step["sd"]) == (pytest.approx(expected, rel=1e-9), pytest.approx(0.0, abs=1e-9))


@pytest.mark.parametrize(("begin", "length", "expected"), [(10, 3, 36.0), (3, 3, 33.0), (12, 1, 34.0)])
def test_a_pause_of_the_first_stage(begin: int, length: int, expected: float) -> None:
    """In its first backward all of it counts; in its last forward of the fill nothing, for it would have waited; behind it, all."""
    pause = {"rank": 0, "speed": 0, "from": f"{begin} s", "to": f"{begin + length} s"}
    assert varied(pipeline(4, 8, slow=[pause]))["disturbed"]["step_time_s"] == pytest.approx(expected, rel=1e-9)


def test_jitter_of_what_is_hidden_leaves_p95_as_it_is() -> None:
    """Only the last stage has gradients to reduce, while the first one still computes its last backward."""
    rows = [{"forward": "1 s", "backward": "2 s", "send": "0 s", "parameters": parameters} for parameters in (0, 1_000_000_000)]
    tree = pipeline(2, 2, rows=rows, runs=60, jitter={"collective": 0.3})
    tree["parallel"]["data"], tree["cluster"]["gpus"] = {"size": 2}, 4
    tree["training"]["optimizer"] = {"clip_gradients": False}  # the norm of all gradients would be waited for
    report = parsim.simulate(tree)
    step = report.document()["variability"]["step_time_s"]
    assert any(op.collective is not None and op.collective.axis == "data" for op in prepare(build(load(tree))).lowering.program.ops)
    assert step["p5"] == step["p95"] == step["nominal"] == report.step_time


def groups(runs: int, replicas: int = 16) -> dict[str, Any]:
    """Replicas of a tensor-parallel group of eight that meets after every few kernels."""
    return {
        "name": "groups",
        "model": {"family": "gpt2", "hidden": 256, "layers": 4, "heads": 8, "vocabulary": 1024, "maximum_sequence": 512},
        "training": {"sequence_length": 256, "micro_batch": 1, "gradient_accumulation": 2},
        "parallel": {"tensor": {"size": 8, "overlap": "none"}, "data": {"strategy": "ddp", "overlap_reduce": False}},
        "cluster": {"topology": "hgx-h100", "nodes": replicas, "interference": "off"},
        "software": {"host": {"graphs": True}},
        "variability": {"runs": runs, "jitter": {"kernel": 0.05, "shape": "normal"}},
    }


@pytest.mark.parametrize(
    ("replicas", "slowest", "of_all"), [(16, E16, 2.594597), pytest.param(128, 2.594597, 3.248240, marks=pytest.mark.slow)]
)
def test_groups_above_groups(replicas: int, slowest: float, of_all: float) -> None:
    """The slowest of D groups, each of which takes the slowest of t at every meeting: mean and variance of the sum, and e_D on top."""
    relative, runs = 0.05, 150
    prepared = prepare(build(load(groups(1, replicas))))
    trace = prepared.trace()
    segments, squares = [], 0.0
    end = next(trace.end[op.index] for op in trace.program.ops if op.collective is not None and op.collective.axis == "data")
    for op in trace.program.ops:  # up to the reduction; behind it each rank steps by itself
        if trace.start[op.index] >= end:
            continue
        if op.collective is not None:
            segments, squares = [*segments, squares], 0.0
        elif op.lanes[0].name == COMPUTE:
            squares += op.duration**2
    behind = [op.duration**2 for op in trace.program.ops if op.collective is None and op.lanes and trace.start[op.index] >= end]
    step = varied(groups(runs, replicas))["step_time_s"]
    group = relative * E8 * math.fsum(map(math.sqrt, segments))
    above = relative * slowest * math.sqrt(V8 * math.fsum(segments))
    last = relative * of_all * math.sqrt(math.fsum(behind))  # the slowest of all ranks
    expected = step["nominal"] + group + above + last
    assert step["mean"] == pytest.approx(expected, abs=4 * step["sd"] / math.sqrt(runs) + 0.05 * (above + last))
    assert above + last > 8 * step["sd"] / math.sqrt(runs)  # enough runs to see it


@pytest.mark.parametrize(("m", "p", "mean"), [(1, 4, 4.0), (2, 2, 3.5), (3, 2, 4.875), (4, 4, 9.772284), (8, 4, 15.941765)])
def test_forward_passes_of_any_length(m: int, p: int, mean: float) -> None:
    """Exponential passes of a forward-only pipeline have an exact law (last-passage percolation), of which theory has the mean."""
    assert theory.exponential_pipeline(m, p)[0] == pytest.approx(mean, abs=1e-6)
    runs, shape = 600, {"kernel": 1.0, "shape": "exponential"}
    tree = pipeline(p, m, rows=[{"forward": "1 s", "backward": "1 s", "send": "0 s", "parameters": 0}], runs=runs, jitter=shape)
    tree["training"]["backward"] = False
    step = varied(tree)["step_time_s"]
    assert step["nominal"] == pytest.approx(m + p - 1, rel=1e-9)
    assert step["mean"] == pytest.approx(mean, abs=4 * step["sd"] / math.sqrt(runs))
    assert step["sd"] == pytest.approx(math.sqrt(theory.exponential_pipeline(m, p)[1]), rel=0.15)


@pytest.mark.parametrize(
    ("runs", "variability", "mean", "error"),
    [
        pytest.param(40, {"jitter": {"kernel": 0.05, "shape": "normal"}}, 246.78, 0.06, marks=pytest.mark.slow),
        (60, {"gpus": {"spread": 0.02, "node_share": 0.0}}, 237 * 1.0512, 237 * 0.0004),
        pytest.param(60, {"gpus": {"spread": 0.05, "node_share": 0.0}}, 237 * 1.1279, 237 * 0.0009, marks=pytest.mark.slow),
    ],
)
def test_a_large_job(runs: int, variability: dict[str, Any], mean: float, error: float) -> None:
    """16 stages, 64 micro-batches, 128 replicas, backward twice as long as forward, against draws of a recurrence in numpy of its own.

    Passes that differ by 5 % average out, GPUs that differ by 5 % all the time cost three times as much.
    """
    tree = pipeline(16, 64, runs=runs, **variability)
    tree["cluster"] |= {"nodes": 256, "gpus": 2048}
    tree["parallel"]["data"] = {"size": 128}
    step = varied(tree)["step_time_s"]
    assert step["nominal"] == pytest.approx(237.0, rel=1e-9)
    assert step["mean"] == pytest.approx(mean, abs=4 * math.hypot(step["sd"] / math.sqrt(runs), error))


@pytest.mark.slow
@pytest.mark.parametrize(("share", "excess"), [(0.5, 0.0680197), (0.0, 0.0689056)])
def test_gpus_of_a_machine_have_something_in_common(share: float, excess: float) -> None:
    """1,024 GPUs with sd 2.12 %: half of the variance common to each of 128 machines, or none; 1 s of work each."""
    runs = 200
    tree = pipeline(1, 1, rows=[{"forward": "400 ms", "backward": "600 ms", "send": "0 s", "parameters": 0}], runs=runs)
    tree["variability"]["gpus"] = {"spread": 0.015 * math.sqrt(2), "node_share": share}
    tree["cluster"] |= {"nodes": 128, "gpus": 1024}
    tree["parallel"]["data"] = {"size": 1024}
    step = varied(tree)["step_time_s"]
    assert step["mean"] == pytest.approx(1 + excess, abs=4 * step["sd"] / math.sqrt(runs))


ALL = {"jitter": {"kernel": 0.05, "collective": 0.1, "step": 0.02}, "gpus": {"spread": 0.02}, "host": {"pause": "1 ms", "every": 20}}


@pytest.mark.parametrize("nodes", [2, 3])
def test_arrays_of_any_size_give_the_same_bits(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many runs and sets of causes go together; on three machines replicas differ by the links that they cross.

    Events give the same step, too, but where a pause lets messages meet on a link that do not meet undisturbed.
    """
    tree = groups(1) | {"variability": ALL}
    tree["parallel"] = {"pipeline": {"size": 4}, "data": {"strategy": "zero1"}}
    tree["training"] = tree["training"] | {"gradient_accumulation": 4}
    tree["cluster"] = tree["cluster"] | {"nodes": nodes}
    prepared = prepare(build(load(tree)))
    asked = [(run, causes) for causes in (("gpus", "kernel", "pause", "step"), ("gpus",), ("collective", "pause"), ()) for run in range(6)]
    together = DisturbedStep(prepared, by_events=False).answers(asked)
    monkeypatch.setattr(step_arrays, "MOST_NUMBERS", 1)
    alone = DisturbedStep(prepared, by_events=False)
    assert [alone.answers([one])[0] for one in asked] == together
    assert alone.answers(reversed(asked)) == together[::-1]
    events = DisturbedStep(prepared, by_events=True).answers(asked)
    for (_, causes), event, array in zip(asked, events, together, strict=True):
        assert event.step_time == pytest.approx(array.step_time, rel=5e-3 if "pause" in causes else 1e-9)
    assert [one.slowest for one in events] == [one.slowest for one in together]
    assert np.isfinite([one.slowness for one in together]).all()


@pytest.mark.parametrize(("said", "expected"), [({}, []), ({"jitter": 0.05}, [LEFT_OUT]), ({"jitter": 0.05, "runs": 2}, [LEFT_OUT])])
def test_what_looks_at_the_undisturbed_step_says_so(said: dict[str, Any], expected: list[str]) -> None:
    assert left_out(parsim.simulate(pipeline(2, 2, **said)).measured) == expected

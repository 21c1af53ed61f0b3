"""How sure a report may be: bands from published runs, weighted by how like the scenario they are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import simulate
from parsim.report import Report
from parsim.report.estimate import Confidence
from parsim.report.quantities import seconds
from parsim.scenario.build import build
from parsim.scenario.confidence import APART, Features, KnownRun, band, confidence_of, features, weights
from parsim.scenario.load import load

A100 = Features("A100", "ampere", "megatron-core", "bf16", "model", 64, 1e10)


def run(number, family="one", error=0.1, calibrated=0.0, **others):
    return KnownRun(f"row-{number}", f"{family}-source", family, replace(A100, **others), error, calibrated, None)


def test_distance_counts_what_differs_and_octaves():
    assert A100.distance(A100) == 0
    assert A100.distance(replace(A100, gpus=256, parameters=1.25e9)) == pytest.approx(5 * APART["octave"])
    other = replace(A100, gpu="H100", architecture="hopper", precision="fp8")
    assert A100.distance(other) == pytest.approx(APART["gpu"] + APART["architecture"] + APART["precision"])
    assert A100.distance(other) == other.distance(A100)


def test_a_family_counts_by_its_most_alike_run():
    """300 alike rows of one publisher weigh what one of another weighs, and a far one e^-distance of it."""
    runs = [run(i) for i in range(300)] + [run(300, "two"), run(301, "three", gpu="A800")]
    share = weights(A100, runs)
    assert sum(share[:300]) == pytest.approx(1.0)
    assert share[300] == pytest.approx(1.0)
    assert share[301] == pytest.approx(math.exp(-APART["gpu"]))


def test_the_band_by_hand():
    """Two families of equal weight: measured / predicted of 1/1.1 and 1/0.9, so the median lies between, widened by 1 + 1/2."""
    runs = [run(0, error=0.1), run(1, "two", error=-0.1)]
    found = band(A100, runs, [0.1, -0.1], [0.0, 0.0])
    low, high = -math.log(1.1), -math.log(0.9)
    middle = (low + high) / 2
    assert found.middle == 1.0
    assert math.log(found.low) == pytest.approx(1.5 * (low - middle))
    assert math.log(found.high) == pytest.approx(1.5 * (high - middle))
    assert band(A100, [], [], []) is None


@given(st.lists(st.tuples(st.floats(-0.5, 1.0), st.floats(-0.5, 1.0), st.sampled_from("abcd")), min_size=1, max_size=40))
def test_the_estimate_is_inside_its_band(rows):
    runs = [run(i, family, error, calibrated) for i, (error, calibrated, family) in enumerate(rows)]
    found = band(A100, runs, [one.step_error for one in runs], [one.calibrated_error for one in runs])
    assert 0 < found.low <= found.middle <= found.high


def test_fewer_families_make_a_wider_band():
    errors = [0.1, -0.1, 0.05, -0.05]
    one = band(A100, [run(i) for i in range(4)], errors, errors)
    four = band(A100, [run(i, str(i)) for i in range(4)], errors, errors)
    assert one.high / one.low > four.high / four.low


@pytest.mark.parametrize(
    ("rows", "error", "changes", "status"),
    [
        (5, 0.1, {}, "validated"),
        (4, 0.1, {}, "interpolated"),
        (5, 0.11, {}, "interpolated"),
        (5, 0.1, {"precision": "fp8"}, "interpolated"),
        (5, 0.1, {"gpu": "H100", "architecture": "hopper"}, "unvalidated"),
    ],
)
def test_what_validates(rows, error, changes, status):
    found = confidence_of(A100, [run(i, error=error, **changes) for i in range(rows)])
    assert found["status"] == status
    assert found["step"] is not None, "every scenario has a band"
    same = not changes
    assert found["rows"] == (rows if same else 0)
    assert found["left_out_error"] == (pytest.approx(error) if same else None)
    assert found["nearest"][0]["differs"].items() <= changes.items()


def test_nothing_known_says_nothing():
    assert confidence_of(A100, []) == {}
    assert Confidence(**confidence_of(A100, [])).document(1.0, 10) == {
        "status": "unvalidated", "step_time_s": None, "peak_bytes": None, "basis": None, "rows": 0, "sources": [],
        "left_out_error": None, "features": {}, "nearest": [],
    }  # fmt: skip


def test_bands_multiply_the_prediction():
    sure = Confidence("validated", (0.9, 1.1), (0.95, 1.2), basis="words")
    assert sure.document(2.0, 1000)["step_time_s"] == pytest.approx([1.8, 2.2])
    assert sure.document(2.0, 1000)["peak_bytes"] == [950, 1200]


def test_features_of_a_scenario():
    found = features(build(load("gpt3-175b-64x-a100")))
    assert (found.gpu, found.architecture, found.strategy, found.gpus) == ("A100 SXM 80GB", "ampere", "model", 64)
    assert found.parameters == pytest.approx(1.746e11, rel=0.01)
    sharded = features(build(load("gpt3-175b-64x-a100", "parallel.pipeline.size=1", "parallel.data.strategy=fsdp")))
    assert sharded.strategy == "both"


def test_a_report_carries_its_band():
    report = simulate("gpt3-22b-8x-a100")
    document = report.document()["confidence"]
    low, high = document["step_time_s"]
    assert low < high
    assert f"(80 % range: {seconds(low)} to {seconds(high)}" in report.verdict
    assert len(document["nearest"]) == 5
    assert document["rows"] > 0


def test_the_verdict_states_the_estimate_in_its_band():
    report = simulate("pipeline-unit-1f1b")
    sure = Confidence("validated", (1.2, 1.5), step_ratio=1.3)
    words = "step 42.9 s (80 % range: 39.6 s to 49.5 s; simulated 33 s);"
    assert words in Report(replace(report.measured, confidence=sure)).verdict

"""How sure a report may be: bands from published runs like it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import simulate
from parsim.report import Report
from parsim.report.estimate import Confidence
from parsim.scenario.build import build
from parsim.scenario.confidence import SHARE, Features, KnownRun, band, confidence_of, features, known_runs, like
from parsim.scenario.load import load

A100 = Features("A100", "model", 64, 1e10)


def run(number, gpus=64, parameters=1e10, error=0.1, **others):
    return KnownRun(
        f"row-{number}",
        "one",
        Features(**({"gpu": "A100", "family": "model", "gpus": gpus, "parameters": parameters} | others)),
        error,
        None,
    )


def test_distance_is_in_octaves():
    assert A100.distance(Features("A100", "model", 256, 1.25e9)) == pytest.approx(3.0)
    assert A100.distance(A100) == 0


def test_only_the_same_gpu_and_kind_of_strategy_counts():
    runs = [run(1), run(2, gpu="H100"), run(3, family="sharded"), run(4, gpus=64 * 32), run(5, gpus=32)]
    assert [one.id for _, one in like(A100, runs)] == ["row-1", "row-5"]


def test_the_band_is_the_middle_80_percent_of_measured_over_predicted():
    assert band([0.25] * 7) is None
    assert band([0.25] * 9) == (0.8, 0.8)
    ratios = [0.9 + 0.02 * i for i in range(9)]
    # ranks (9 + 1) 0.1 = 1 and (9 + 1) 0.9 = 9: the smallest and the largest of nine
    assert band([1 / ratio - 1 for ratio in ratios]) == pytest.approx((0.9, 1.06))


@given(st.lists(st.floats(-0.5, 1.0), min_size=8, max_size=60))
def test_the_band_lies_inside_what_was_measured(errors):
    low, high = band(errors)
    ratios = [1 / (1 + error) for error in errors]
    assert min(ratios) <= low <= high <= max(ratios)


def test_nothing_alike_is_unvalidated():
    assert confidence_of(A100, [run(i) for i in range(7)]) == {}
    assert Confidence(**confidence_of(A100, [])).document(1.0, 10) == {
        "status": "unvalidated", "step_time_s": None, "peak_bytes": None, "basis": None, "nearest": [],
    }  # fmt: skip


def test_both_halves_together_have_no_band_but_say_what_each_shows_alone():
    """Rows of measured / predicted: 1.25 with sharded states on 8 GPUs, 0.8 with tensor or pipeline parallelism on 64 and 128."""
    sharded = [run(i, family="sharded", gpus=8, error=-0.2) for i in range(9)]
    model = [run(i, gpus=64 * (1 + i % 2), error=0.25) for i in range(30)]
    both = replace(A100, family="both", gpus=2048)
    found = confidence_of(both, sharded + model)
    assert found == {
        "basis": "no published run on A100 has sharded states and tensor or pipeline parallelism; measured over predicted, 80 % of runs:"
        " 1.25 to 1.25 with sharded states alone (9 runs on 8 to 8 GPUs),"
        " 0.80 to 0.80 with tensor or pipeline parallelism alone (24 runs on 64 to 128 GPUs)"
    }
    assert Confidence(**found).document(1.0, 10) | {"basis": None} == Confidence().document(1.0, 10)
    assert confidence_of(both, sharded[:7] + model[:7]) == {}
    assert confidence_of(both, [*model, *(run(i, family="both", gpus=2048) for i in range(8))])["status"] == "validated"


@pytest.mark.parametrize(("gpus", "status"), [(64, "validated"), (128, "validated"), (256, "interpolated")])
def test_close_runs_validate_and_far_ones_interpolate(gpus, status):
    found = confidence_of(A100, [run(i, gpus=gpus) for i in range(9)])
    assert found["status"] == status
    assert found["step"] == pytest.approx((1 / 1.1, 1 / 1.1))
    assert found["nearest"][0]["differs"] == ({} if gpus == 64 else {"gpus": gpus})


def test_bands_multiply_the_prediction():
    sure = Confidence("validated", (0.9, 1.1), (0.95, 1.2), "words")
    assert sure.document(2.0, 1000)["step_time_s"] == pytest.approx([1.8, 2.2])
    assert sure.document(2.0, 1000)["peak_bytes"] == [950, 1200]


def test_features_of_a_scenario():
    found = features(build(load("gpt3-175b-64x-a100")))
    assert (found.gpu, found.family, found.gpus) == ("A100 SXM 80GB", "model", 64)
    assert found.parameters == pytest.approx(1.746e11, rel=0.01)
    sharded = features(build(load("gpt3-175b-64x-a100", "parallel.pipeline.size=1", "parallel.data.strategy=fsdp")))
    assert sharded.family == "both", "no run of either kind alone says how far off the two together are"


def test_a_report_carries_its_band():
    report = simulate("gpt3-22b-8x-a100")
    document = report.document()["confidence"]
    assert document["status"] == "validated"
    low, high = document["step_time_s"]
    assert low < high
    assert f"{low:.3g}"[:3] in report.verdict
    assert len(document["nearest"]) == 5


def test_shipped_bands_cover_80_percent_of_runs_they_did_not_see():
    """Each row's band comes from all other rows; the share of rows inside is what was promised."""
    runs = known_runs()
    inside = []
    for one in runs:
        found = confidence_of(one.features, [other for other in runs if other is not one])
        if found and one.step_error is not None:
            low, high = found["step"]
            inside.append(low <= 1 / (1 + one.step_error) <= high)
    assert len(inside) > 400
    assert 0.75 <= sum(inside) / len(inside) <= 0.90, f"promised {SHARE}"


def test_the_verdict_states_the_estimate_in_its_band():
    report = simulate("pipeline-unit-1f1b")
    sure = Confidence("validated", (1.2, 1.5), step_ratio=1.3)
    words = "step 42.9 s (80 %: 39.6 s to 49.5 s; simulated 33 s);"
    assert words in Report(replace(report.measured, confidence=sure)).verdict

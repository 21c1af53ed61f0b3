"""Published training runs: how rows are predicted and summed up."""

from __future__ import annotations

import json

import pytest
from published_runs import PUBLISHED

from parsim.run import execute
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.validation.predicted_runs import GRADES, PredictedRun, RunValidation, document, picture, predict, step_time, text, validate
from parsim.validation.published_runs import Fits, PublishedRun, published
from parsim.validation.score import errors


def row_of(name):
    return next(row for source in PUBLISHED for row in source.rows if row.id == name)


@pytest.mark.parametrize("name", ["zerobubble-0030", "vtrain-multi-0003", "megatron-sc21-t1-0005", "mpt-0099", "vtrain-single-0016"])
def test_steps_answered_from_short_ones_equal_whole_ones(name):
    tree = row_of(name).scenario()
    whole = max(execute(build(load(tree))).trace.end)
    assert step_time(tree) == pytest.approx(whole, rel=1e-9)


def test_errors_by_hand():
    found = errors([0.1, -0.2, None, 0.05, 0.15])
    assert (found.rows, found.worst) == (4, -0.2)
    assert (found.mean, found.bias) == pytest.approx((0.125, 0.025))
    assert found.median == pytest.approx(0.125)
    assert found.p90 == pytest.approx(0.15 + 0.7 * 0.05)
    assert errors([None]) is None


def test_rows_that_cannot_be_simulated_say_why():
    settings = {"model": "gpt2", "cluster": "single-a100", "training": {"sequence_length": 4096}}
    broken = PublishedRun("x-1", {"step_time_s": 1.0}, settings, source="x")
    found = predict(broken, "a-priori", {})
    assert found.seconds is None
    assert "training" in found.refused


@pytest.fixture(scope="module")
def small():
    sources = published(names=["zero-bubble"])
    return validate(sources, Fits(constants={"zero-bubble": {"model.stages.overhead": "1 ms"}}), GRADES[:2], jobs=1)


def test_zero_bubble_rows_with_profiled_stage_times(small):
    """No parameter of a device enters: an error is the schedule's or what was not profiled, hence one sign.

    What was not profiled is there per micro-batch, so its share is larger where the bubble is smaller: 5.8 % of 1F1B, 7.1 % of ZB-1p.
    """
    found = small.times("zero-bubble", "a-priori")
    assert found.rows == 16
    assert found.mean <= 0.067
    assert found.bias == pytest.approx(-found.mean)


def test_one_overhead_per_micro_batch_and_stage_explains_most_of_it():
    source = published(names=["zero-bubble"])[0]
    from parsim.validation.published_runs import fitted

    found = validate([source], fitted(), ["calibrated"], jobs=1).times("zero-bubble", "calibrated")
    assert found.mean <= 0.03


def test_the_document_has_every_row_and_source(small):
    made = json.loads(json.dumps(document(small)))
    source = made["sources"]["zero-bubble"]
    assert source["grade"] == "calibrated"
    assert {"rows", "mean_abs_error", "median_abs_error", "p90_abs_error", "worst_abs_error", "bias"} <= source.keys()
    assert source["grades"]["a_priori"]["rows"] == 16
    assert len(made["rows"]) == 32
    assert made["rows"][0]["error"] == pytest.approx(made["rows"][0]["predicted_s"] / made["rows"][0]["measured_s"] - 1)


def test_the_text_names_rows_grades_and_constants(small):
    made = text(small)
    assert "zerobubble-0025" in made
    assert "overhead = 1 ms" in made
    assert "zerobubble-0025" not in text(small, rows=False)


def test_left_out_rows_are_printed_apart():
    rows = (
        PublishedRun("x-1", {"step_time_s": 1.0}, {}, source="x"),
        PublishedRun("x-2", {"step_time_s": 1.0}, {}, source="x", left_out="an outlier"),
    )
    source = published(names=["zero-bubble"])[0]
    made = RunValidation(
        (type(source)("x", "X", "somewhere", "gpu", "", (), rows),),
        tuple(PredictedRun(row, "a-priori", 1.1 if row.left_out == "" else 9.0) for row in rows),
        Fits(),
    )
    assert made.times("x", "a-priori").mean == pytest.approx(0.1)
    assert "an outlier" in text(made)


def test_the_picture_is_a_file(small):
    assert picture(small, "svg").startswith(b"<?xml")
    assert picture(small, "png").startswith(b"\x89PNG")

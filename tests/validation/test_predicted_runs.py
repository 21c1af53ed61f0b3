"""Published training runs: how rows are predicted and summed up."""

from __future__ import annotations

import json

import pytest
from published_runs import published as all_published

from parsim.run import execute
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.validation.predicted_runs import GRADES, Fits, PredictedRun, inputs, predict, predictions, step_time
from parsim.validation.published_runs import PublishedRun, RunSource, published
from parsim.validation.run_scores import RunScores, document, picture, row_line, summary
from parsim.validation.score import errors


def row_of(name):
    return next(row for source in all_published() for row in source.rows if row.id == name)


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
    found = predict(PublishedRun("x-1", {"step_time_s": 1.0}, settings, source="x"), {"a-priori": "none"})
    assert found.seconds == {}
    assert "training" in found.refused
    assert "cannot be simulated: training" in row_line(found, GRADES)


def test_grades_differ_in_the_effects_of_training_alone():
    fits = Fits({"ours": {"clock-ampere": 0.9}})
    assert [fits.effects(grade, "ours") for grade in GRADES] == ["none", {"clock-ampere": 0.9}, "published"]
    assert fits.effects("left-out", "theirs") is None
    row = row_of("vtrain-single-0016")
    found = predict(row, {grade: fits.effects(grade, "ours") for grade in GRADES[:2]})
    assert found.seconds["a-priori"] == step_time(row.scenario({"software.effects": "none"}))
    assert found.seconds["left-out"] == step_time(row.scenario({"software.effects": {"clock-ampere": 0.9}})) > found.seconds["a-priori"]


def test_a_row_is_known_by_its_inputs():
    row = row_of("vtrain-single-0016")
    changed = PublishedRun(row.id, row.measured, row.scenario({"training.micro_batch": 1}), source=row.source)
    assert inputs(row) == inputs(PublishedRun("other", {}, row.scenario(), source="x"))
    assert inputs(row) != inputs(changed)


def made(source, seconds, *, left_out="", gib=None, measured=1.0, number=1):
    row = PublishedRun(f"{source}-{number}", {"step_time_s": measured, "allocated_gib": 10.0}, {}, source=source, left_out=left_out)
    return PredictedRun(row, {"a-priori": seconds}, gib)


@pytest.fixture
def scores():
    found = [made("large", 1.1, number=i) for i in range(4)] + [made("large", 0.8, gib=11.0, number=4)]
    found += [made("large", 9.0, left_out="duplicate: again", number=5), made("one", 1.5), made("two", 1.3)]
    rows = {name: tuple(one.row for one in found if one.row.source == name) for name in ("large", "one", "two")}
    sources = tuple(RunSource(name, name.title(), "somewhere", name, "", "guessed", "", rows[name]) for name in rows)
    return RunScores(sources, tuple(found), ("a-priori",))


def test_sources_count_the_same_and_small_ones_together(scores):
    """large: (4 x 0.1 + 0.2) / 5 = 0.12; one and two together (0.5 + 0.3) / 2 = 0.4; the mean over sources 0.26."""
    assert scores.times("large", "a-priori").mean == pytest.approx(0.12)
    assert scores.over_sources("a-priori") == pytest.approx(0.26)
    assert scores.over_sources("left-out") is None
    assert scores.memories("large").mean == pytest.approx(0.1)


def test_the_text_says_what_counts_and_what_does_not(scores):
    text = summary(scores, [("x-1", "x", "TPUs"), ("x-2", "x", "TPUs")])
    assert "7 rows scored, 1 left out by a rule, 2 cannot be scored" in text
    assert "large: 1 (5): duplicate: again" in text
    assert "x: 2: TPUs" in text
    assert "mean over sources, a-priori: 26.0 % (nothing fitted)" in text
    assert "left out: duplicate: again" in row_line(scores.predictions[5], ("a-priori",))


def test_the_document_has_every_row_and_source(scores):
    found = json.loads(json.dumps(document(scores)))
    assert found["sources"]["large"]["grades"]["a_priori"]["rows"] == 5
    assert found["mean_over_sources"] == {"a_priori": pytest.approx(0.26)}
    assert len(found["rows"]) == 8
    assert found["rows"][0]["error"] == {"a_priori": pytest.approx(0.1)}


def test_predictions_come_one_by_one():
    source = published(names=["tinyllama"])[0]
    (found,) = predictions([source], Fits(), ["a-priori"], jobs=1)
    assert (found.row.id, set(found.seconds)) == ("tinyllama-0001", {"a-priori"})


@pytest.mark.parametrize(("kind", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_picture_is_a_file(scores, kind, start):
    assert picture(scores, kind).startswith(start)

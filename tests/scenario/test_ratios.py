"""Whether one choice is faster than another: judged by pairs of published runs that differ in the same kinds of things."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from parsim.scenario.confidence import Features, KnownRun, known_runs
from parsim.scenario.ratios import NAMED, band_of, features_of, ratio_band

HERE = Features("A100", "ampere", "megatron-core", "bf16", "model", 64, 1e10)


def run(number, error, source="one", **changes):
    return KnownRun(f"{source}-{number}", source, source, replace(HERE, **changes), error, 0.0, None)


def test_a_shared_error_leaves_the_ratio_alone():
    """Both 10 % too slow: the ratio is exact, whatever the errors."""
    runs = [run(1, 0.1), run(2, 0.1, gpus=128)]
    found = band_of(["gpus"], runs)
    assert (found.factor, found.pairs, found.sources) == (pytest.approx(1.0), 1, 1)
    assert not found.ties(1.0, 1.01)


def test_the_band_by_hand():
    """One source, five pairs that differ in the GPUs alone: ratios of 1.01 to 1.05, of which four of five lie within 1.04."""
    runs = [one for i in range(5) for one in (run(2 * i, 0.0, f"s{i}"), run(2 * i + 1, 0.01 * (i + 1), f"s{i}", gpus=128))]
    found = band_of(["gpus"], runs)
    assert found.factor == pytest.approx(1.04)
    assert found.ties(1.0, 1.0399)
    assert found.ties(1.0399, 1.0)
    assert not found.ties(1.0, 1.05)
    assert "5 published pairs that differ in the number of GPUs" in found.words()


def test_every_source_counts_the_same():
    """A hundred exact pairs of one source do not outvote four others."""
    many = [run(i, 0.0, gpus=64 + i % 2) for i in range(20)]
    others = [one for i in range(4) for one in (run(1, 0.0, f"s{i}"), run(2, 0.2, f"s{i}", gpus=128))]
    assert band_of(["gpus"], many + others).factor == pytest.approx(1.2)


def test_pairs_that_differ_in_more_serve_where_none_differ_in_just_that():
    runs = [run(1, 0.0), run(2, 0.3, gpus=128, parameters=2e10)]
    found = band_of(["gpus"], runs)
    assert found.factor == pytest.approx(1.3)
    assert "differ in the number of GPUs, and in more" in found.words()
    assert band_of(["precision"], runs) is None
    assert band_of(["gpus"], [*runs, run(3, 0.1, gpus=128)]).factor == pytest.approx(1.1)


def test_shipped_pairs_say_less_than_the_errors_of_single_runs():
    """Jobs that differ in the batch alone are compared to a few percent."""
    assert known_runs()
    same = ratio_band(asdict(HERE), asdict(HERE))
    assert 1.0 < same.factor < 1.15
    assert same.differing == ()
    assert set(NAMED) <= set(asdict(HERE))


def test_a_report_without_features_is_not_judged():
    assert features_of({"confidence": {}}) is None

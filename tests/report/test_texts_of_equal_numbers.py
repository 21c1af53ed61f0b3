"""Folded and unfolded runs agree to 1e-9; their texts must not differ because a number lies between two of them by its nature."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parsim import simulate, units
from parsim.report.quantities import GIB, cell, gib, number, percent, points, rate, seconds, size, time_unit

NOISE = st.floats(-1e-9, 1e-9)
TEXTS = {
    "cell": (cell, 1.0), "seconds": (seconds, 1.0), "rate": (rate, 1.0), "gib": (gib, GIB), "size": (size, GIB), "number": (number, 1.0),
    "percent": (percent, 0.01), "points": (points, 0.01), "flops": (units.format_flops, 1.0),
    "unit": (lambda value: time_unit(value).name, 1.0),
}  # fmt: skip
"""name -> (text, what one stands for)"""


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=60)
@given(digits=st.integers(1, 99_999), exponent=st.integers(-5, 3), noise=NOISE)
@example(digits=125, exponent=-1, noise=-1e-9)
@example(digits=2, exponent=0, noise=-1e-9)
def test_numbers_of_few_digits_are_shown_alike(name, digits, exponent, noise):
    """Every text changes at numbers of at most five digits; those are where fractions such as 1/8 lie."""
    text, one = TEXTS[name]
    value = digits * 10.0**exponent * one
    assert text(value * (1 + noise)) == text(value)


def test_snapped():
    assert units.snapped(12.5 * (1 - 1e-9)) == units.snapped(12.5 * (1 + 1e-9)) == 12.5
    assert units.snapped(123_456_789) == 123_456_789  # whole numbers are exact
    assert units.snapped(float("inf")) == float("inf")


def test_folded_and_unfolded_say_the_same():
    """Two stages, seven micro-batches: the bubble is 1/8 of the step, between 12 % and 13 %."""
    tree = {
        "model": {"stages": [{"forward": "0.1 s", "backward": "0.2 s"}]},
        "training": {"global_batch": 21, "micro_batch": 1},
        "cluster": {"topology": "dgx-a100-80gb", "gpus": 6},
        "parallel": {"pipeline": {"size": 2, "schedule": "1f1b"}, "data": {"size": 3}},
    }
    folded, whole = simulate(tree), simulate(tree, unfolded=True)
    assert folded.bubble == pytest.approx(0.125, rel=1e-9)
    assert (folded.verdict, folded.limiter) == (whole.verdict, whole.limiter)
    assert "12 % bubble" in folded.verdict

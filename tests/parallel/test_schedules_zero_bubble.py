"""Zero-bubble schedules: orders as published, legal at every size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.parallel.schedules import check, peak_in_flight
from parsim.parallel.schedules.zero_bubble import zb_h1, zb_h2, zb_v


def words(row):
    return " ".join(f"{slot.kind}{slot.micro_batch}" for slot in row)


def test_zb_h1_order():
    rows = zb_h1(4, 8)
    assert words(rows[0]) == "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7"
    assert words(rows[3]) == "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"


def test_zb_h2_order():
    rows = zb_h2(4, 8)
    assert words(rows[0]) == "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7"
    assert words(rows[3]) == "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7"


def test_zb_v_holds_two_stages_in_a_v():
    rows = zb_v(4, 8)
    assert [sorted({slot.stage for slot in row}) for row in rows] == [[0, 7], [1, 6], [2, 5], [3, 4]]


@pytest.mark.parametrize(
    ("build", "peaks"), [(zb_h1, [4, 4, 4, 4]), (zb_h2, [7, 7, 7, 7]), (zb_v, [8, 8, 8, 8])], ids=["zb-h1", "zb-h2", "zb-v"]
)
def test_in_flight(build, peaks):
    assert peak_in_flight(build(4, 8)) == peaks


@given(st.sampled_from([zb_h1, zb_h2, zb_v]), st.integers(1, 7), st.integers(1, 24))
def test_legal_at_every_size(build, p, m):
    rows = build(p, m)
    assert check(rows, None, m) == []
    assert [len(row) for row in rows] == [3 * m * (2 if build is zb_v else 1)] * p

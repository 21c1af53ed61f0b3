"""Columns survive the way into a page and back, and the same columns give the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.report.page.columns import pack, unpack

whole = st.integers(-(2**52), 2**52)  # what a page's numbers hold exactly


@given(st.dictionaries(st.text(max_size=8), st.lists(whole, max_size=40), max_size=6))
def test_what_is_packed_comes_back(columns):
    given_columns = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
    packed = pack(given_columns)
    assert packed == pack(given_columns)
    found = unpack(packed)
    assert list(found) == list(columns)
    assert {name: values.tolist() for name, values in found.items()} == columns


def test_planes_are_as_many_as_the_largest_needs():
    heads = {head["name"]: (head["planes"], head["signed"]) for head in pack(
        {"zero": [0, 0], "byte": [255], "more": [256], "minus": [-1, 127], "second": [10**9], "empty": []}
    )["columns"]}  # fmt: skip
    assert heads == {
        "zero": (0, False),
        "byte": (1, False),
        "more": (2, False),
        "minus": (1, True),
        "second": (4, False),
        "empty": (0, False),
    }


def test_other_versions_are_refused():
    with pytest.raises(ValueError, match="version 2, this reads 1"):
        unpack(pack({}) | {"version": 2})

"""Tables for narrow terminals: words are wrapped, numbers are not, and nothing is lost."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from parsim.columns import width
from parsim.report.narrow import narrow, wrapped
from parsim.report.table import Column, Table

NUMBERS = ("24,286", "1,234,567", "−85.8", "0 %", "165.0", "<0.01", "+12 %")


def test_words_break_behind_punctuation_and_numbers_stay_whole() -> None:
    assert wrapped("llama-7b-ddp-8x-a100", 10) == ["llama-7b-", "ddp-8x-", "a100"]
    assert wrapped("does not fit", 8) == ["does not", "fit"]
    assert wrapped("1,234,567", 3) == ["1,234,567"]
    assert wrapped("", 5) == [""]


@given(st.lists(st.text("ab-_/= ", max_size=30), min_size=1, max_size=4), st.integers(4, 30))
def test_wrapping_loses_no_letter(words: list[str], columns: int) -> None:
    text = " ".join(words)
    assert re.sub(r"\s", "", "".join(wrapped(text, columns))) == re.sub(r"\s", "", text)
    assert all(width(line) <= max(columns, 12) for line in wrapped(text, columns))


def test_four_variants_with_long_names_fit_beside_each_other_at_80_columns() -> None:
    names = [f"llama-3-70b-hgx-{gpu}-tp8-pp4-zero1" for gpu in ("h100", "h200", "b200", "a100")]
    rows = [["tokens per second, estimated", *NUMBERS[:4]], ["data-parallel communication [s]", *NUMBERS[3:]]]
    (one,) = narrow(Table.grouped([Column("", align="left"), *map(Column, names)], {"Time": rows}), 80)
    lines = one.text().splitlines()
    assert max(map(width, lines)) <= 80
    assert all(number in one.text() for number in NUMBERS)
    joined = ["".join(line[at : at + 14].strip() for line in lines) for at in range(0, 80, 14)]
    assert any("h100" in text for text in joined)


def test_what_is_too_wide_for_one_table_goes_on_below_with_the_first_column() -> None:
    table = Table([Column("", align="left"), *(Column(f"variant {place}") for place in range(9))], [["step time [s]", *["123,456.7"] * 9]])
    parts = narrow(table, 80)
    assert len(parts) > 1
    assert all(part.rows[0][0].startswith("step time") for part in parts)
    assert sum(len(part.columns) - 1 for part in parts) == 9
    assert all(max(map(width, part.text().splitlines())) <= 80 for part in parts)

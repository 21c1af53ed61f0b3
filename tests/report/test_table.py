"""The table type: every form says the same, and no number loses a digit."""

from __future__ import annotations

import csv
import io

import pytest

from parsim.report.quantities import percent, time_unit
from parsim.report.table import MOST_ROWS, Cell, Column, Table

STEP = 1.4230000000000005
UNIT = time_unit(STEP)
COLUMNS = (
    Column("Change", align="left"),
    Column("Step", unit=UNIT.name, write=UNIT.cell, key="step_time_s"),
    Column("MFU", write=percent, key="mfu"),
    Column("Limited by", align="left", margin=1),
)
ROWS = [["as it is", STEP, 0.484, "compute"], ["zero2 | 显存", 1.2, None, Cell("bubble", 0.25, "bubble_fraction", "<b>bubble</b>")]]


@pytest.fixture(name="table")
def table_fixture():
    return Table(COLUMNS, ROWS, title="What if", caption="Each simulated anew.", row_keys=["runs.0", "runs.1"])


@pytest.fixture(name="grouped")
def grouped_fixture():
    columns = [Column("", align="left"), *(Column(name) for name in ("zero1", "zero2", "zero3"))]
    return Table.grouped(
        columns, {"Input": [["strategy", "zero1", "zero2", "zero3"]], "Nothing": [], "Result": [["  step [s]", 1.5, 1.25, 2]]}
    )


def test_text_is_aligned_and_wide_letters_count_twice(table):
    assert table.text().split("\n") == [
        "What if",
        "Change        Step [ms]   MFU   Limited by",
        "as it is          1,423  48 %   compute",
        "zero2 | 显存      1,200     –   bubble",
        "Each simulated anew.",
    ]


def test_a_rule_is_as_long_as_the_longest_line(table):
    lines = table.text(rule=True).split("\n")
    assert lines[2] == "─" * len(lines[1])


def test_headings_of_two_lines_begin_at_the_top():
    table = Table(
        [Column("schedule", align="left"), Column("makespan", unit="s"), Column("per\nmicro-batch", unit="s")], [["1f1b", 33, 4.125]]
    )
    assert table.text().split("\n") == [
        "schedule  makespan [s]              per",
        "                        micro-batch [s]",
        "1f1b                33             4.12",
    ]


def test_groups_are_indented_and_the_first_title_stands_in_the_corner(grouped):
    assert grouped.text().split("\n") == [
        "Input         zero1  zero2  zero3",
        "  strategy    zero1  zero2  zero3",
        "",
        "Result",
        "    step [s]    1.5   1.25      2",
    ]


@pytest.mark.parametrize("width", [10, 26, 27, 33, 80])
def test_what_is_too_wide_goes_on_below_beside_the_first_column(grouped, width):
    parts = grouped.text(width).split("Input")[1:]
    assert len(parts) == {10: 3, 26: 2, 27: 2, 33: 1, 80: 1}[width]
    assert [part.count("strategy") for part in parts] == [1] * len(parts)
    assert " ".join(parts).split().count("zero3") == 2


def test_markdown_escapes_bars_and_bolds_groups(table, grouped):
    assert table.markdown().split("\n") == [
        "| Change | Step [ms] | MFU | Limited by |",
        "| --- | ---: | ---: | --- |",
        "| as it is | 1,423 | 48 % | compute |",
        "| zero2 \\| 显存 | 1,200 | – | bubble |",
    ]
    assert "| **Result** |  |  |  |\n| \N{EM SPACE}step [s] | 1.5 | 1.25 | 2 |" in grouped.markdown()


def test_csv_holds_si_numbers_in_full(table, grouped):
    first, second = csv.DictReader(io.StringIO(table.csv()))
    assert float(first["step_time_s"]) == STEP
    assert (second["mfu"], second["Limited by"], second["Change"]) == ("", "0.25", "zero2 | 显存")
    assert [row["group"] for row in csv.DictReader(io.StringIO(grouped.csv()))] == ["Input", "Result"]


def test_records_are_the_numbers_behind_the_cells(table):
    assert table.records() == [
        {"Change": "as it is", "step_time_s": STEP, "mfu": 0.484, "Limited by": "compute"},
        {"Change": "zero2 | 显存", "step_time_s": 1.2, "mfu": None, "Limited by": 0.25},
    ]


def test_html_says_which_number_of_the_document_a_cell_is(table):
    page = table.html("runs")
    assert f'<td data-key="runs.0.step_time_s" data-v="{STEP!r}">1,423</td>' in page
    assert '<td class="word" data-key="bubble_fraction" data-v="0.25"><b>bubble</b></td>' in page
    assert '<table id="runs" class="sortable"><caption>Each simulated anew.</caption>' in page
    assert 'type="search"' not in page
    assert "<button" not in table.html(sortable=False)


def test_a_name_cannot_become_markup():
    table = Table([Column("<i>")], [["<script>"]], caption="<b>", groups={0: "<u>"})
    for page in (table.html("<x>"), table.notebook()):
        assert not any(tag in page for tag in ("<i>", "<script>", "<b>", "<u>", "<x>"))


def test_a_long_table_filters_and_says_what_it_leaves_out():
    page = Table([Column("n")], [[number] for number in range(MOST_ROWS + 1)]).html("n")
    assert 'type="search"' in page
    assert "1,000 of 1,001 rows; all in report.json." in page
    assert page.count("<tr>") == MOST_ROWS + 1


def test_a_notebook_gets_styles_in_place(grouped):
    page = grouped.notebook()
    assert "<tr><th colspan='4' style='text-align:left'>Result</th></tr>" in page
    assert "<td style='text-align:right'>1.25</td>" in page
    assert "class=" not in page


def test_an_empty_table_is_false_and_says_none():
    table = Table(COLUMNS, [])
    assert not table
    assert table.html() == "<p>none</p>"
    assert table.csv() == "Change,step_time_s,mfu,Limited by\n"


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        Table(COLUMNS, [["alone"]]).text()

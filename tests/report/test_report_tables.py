"""The terminal report: units everywhere, 80 columns, any script, any terminal."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from parsim.errors import Finding
from parsim.report import Report
from parsim.report.tables import print_report
from parsim.simulation.trace import LinkUse


@pytest.fixture(name="report")
def report_fixture(run, make_pipeline, make_measured):
    trace = run(make_pipeline(4, 8, send=0.3, optimizer=0.5), {0: LinkUse(3e11, 0.5)})
    return Report(make_measured(trace, 4, name="大模型 [bold] 训练", warnings=(Finding("too long", "training.sequence_length"),)))


def shown(report, width=80, **options):
    out = io.StringIO()
    print_report(report, Console(file=out, width=width, **options))
    return out.getvalue()


def test_everything_is_there_with_units_and_no_colour(report):
    text = shown(report)
    for part in (
        "大模型 [bold] 训练",
        "4 GPUs on 1 node · pipeline 4 · 8 micro-batches · schedule 1f1b",
        "Fits: 24.5 of 40.0 GiB usable on rank 0\nStep 38.3 s, ",
        "[unvalidated] no range: too few similar published runs",
        "biggest lever",
        "Critical path [s]",
        "Device memory at its peak [GiB]",
        "977 KiB",
        "[GB/s]",
        "Model TFLOP/s per GPU",
        "1 assumption, listed in report.json, by effect with --sensitivity; confidence:",
        "warning: training.sequence_length  too long",
    ):
        assert part in text, part
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_wider_than_the_terminal(report, width):
    lines = shown(report, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert not any("…" in line for line in lines)


def test_colours_only_where_they_are_wanted(report, monkeypatch):
    assert "\x1b[" in shown(report, force_terminal=True, color_system="truecolor")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in shown(report, force_terminal=True)


def test_an_old_terminal_gets_letters_it_knows(report):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    print_report(report, Console(file=out, width=80))
    out.flush()
    assert b"micro-batches 8 > 16 take" in b" ".join(raw.getvalue().split())
    assert b"####" in raw.getvalue()


def test_a_captured_report_stays_captured(report):
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    console = Console(file=out, width=80)
    with console.capture() as captured:
        print_report(report, console)
    out.flush()
    assert "####" in captured.get()
    assert out.buffer.getvalue() == b""


def test_long_tables_say_what_they_leave_out(run, make_pipeline, make_measured):
    text = shown(Report(make_measured(run(make_pipeline(16, 16)), 16)))
    assert "12 of 16 device classes, the fullest; all in report.json." in text

"""Pictures and traces of a step with faults show that step, and mark where something breaks or is over."""

from __future__ import annotations

import base64
import gzip
import io
import json

import pytest
from trace_checker import import_errors

from parsim.report.chrome_trace import write_chrome_trace
from parsim.report.faults import hours
from parsim.report.page.page import data_of, page
from parsim.report.tables import render
from parsim.run import simulate

TREE = {
    "model": {"base": "gpt2", "layers": 2},
    "cluster": {"topology": "dgx-a100-80gb", "nodes": 2},
    "training": {"sequence_length": 256, "micro_batch": 1, "gradient_accumulation": 1},
    "parallel": {"data": {"strategy": "ddp"}},
}
FLAP = {"nic": "node0/nic3", "at": "1 ms", "until": "2 ms", "down": True}
LATE = {"nic": "node0/nic4", "at": "1 h", "bandwidth": "x0.5"}
CRASH = {"rank": 3, "at": "1 ms", "kind": "crash"}
TEXT = "NIC node0/nic3 down from 1 ms to 2 ms"


@pytest.fixture(scope="module")
def report():
    slow = [{"rank": 5, "speed": 0.5, "from": "3 ms"}]
    return simulate({**TREE, "variability": {"faults": [FLAP, LATE], "slow": slow}})


def test_the_timeline_has_a_mark_for_everything_that_happens_within_the_step(report):
    data = report.plot.timeline_data()
    assert data.marks == ((1e-3, TEXT), (2e-3, f"end of {TEXT}"), (3e-3, "rank 5 at speed 0.5 from 3 ms"))
    assert data.end == report.shown.step_time > report.step_time
    assert [mark[0] for mark in report.plot.timeline_data(window=(1.5e-3, 2.5e-3)).marks] == [2e-3]
    texts = {text.get_text() for axes in report.plot.timeline().axes for text in axes.texts}
    assert TEXT in texts


def test_the_trace_has_instants(report):
    out = io.StringIO()
    write_chrome_trace(report, out)
    document = json.loads(out.getvalue())
    assert not import_errors(document)
    instants = [event for event in document["traceEvents"] if event["ph"] == "i"]
    assert [(event["ts"], event["name"]) for event in instants][:2] == [(1000.0, TEXT), (2000.0, f"end of {TEXT}")]
    assert {event["s"] for event in instants} == {"g"}
    steps = [event for event in document["traceEvents"] if event["name"] == "ProfilerStep#0"]
    assert [event["dur"] for event in steps] == [pytest.approx(report.shown.step_time * 1e6, abs=1e-3)] * len(steps)


def test_the_page_marks_them_and_has_a_table(report):
    html = page([("flap", report)])
    run = json.loads(gzip.decompress(base64.b64decode(data_of(html)["facts"])))["runs"][0]
    seconds = 1 / run["ticks_per_second"]
    assert [(pytest.approx(time * seconds, abs=1e-8), text) for time, text in run["marks"]] == list(report.plot.timeline_data().marks)
    assert run["length"] * seconds == pytest.approx(report.shown.step_time, abs=1e-7)
    assert "Timeline and memory over time are those of the step with its faults" in html
    assert "variability.faults.1" in html


def test_a_step_without_faults_or_that_fails_shows_the_undisturbed_one():
    plain, failing = simulate(TREE), simulate({**TREE, "variability": {"faults": [CRASH]}})
    assert failing.shown is failing
    for one in (plain, failing):
        assert one.plot.timeline_data().marks == ()
    run = json.loads(gzip.decompress(base64.b64decode(data_of(page([("plain", plain)]))["facts"])))["runs"][0]
    assert "marks" not in run
    assert failing.document()["variability"]["disturbed"]["failed_at_s"] == pytest.approx(10.001, rel=1e-12)


def test_the_terminal_says_what_comes_of_it(report):
    several = report.measured.faults.lines(16)
    assert several[0].startswith("With its faults: ")
    assert several[1].startswith("16 GPUs lose ")
    assert [line.partition(", alone")[0] for line in several[2:]] == [row.fault for row in report.measured.faults.rows]
    assert render(report) is not None


@pytest.mark.parametrize(("seconds", "text"), [(1.5, "1.5 GPU-seconds"), (359.0, "359 GPU-seconds"), (9_830_400.0, "2,731 GPU-hours")])
def test_time_of_gpus(seconds, text):
    assert hours(seconds) == text

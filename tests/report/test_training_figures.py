"""Figures of a training over weeks show what the report has: shares of time, failures by cause, goodput around the job's own point."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import parsim
from parsim.errors import InputError
from parsim.report.plots.figure import save
from parsim.report.report import Report
from parsim.report.write import write_outputs

TREE: dict[str, Any] = {
    "name": "weeks",
    "model": {"stages": [{"forward": "1 s", "backward": "2 s", "parameters": 10**9}]},
    "cluster": {"topology": "dgx-a100-80gb", "nodes": 4, "gpus": 32, "storage": {"bandwidth": "2 GB/s"}},
    "training": {"micro_batch": 1, "global_batch": 32},
    "parallel": {"data": {"size": 32}},
    "economics": {
        "failures": [
            {"cause": "gpu", "per_gpu": "2_000 h", "detect": "30 s"},
            {"cause": "network", "per_gpu": "5_000 h", "detect": "hang", "repair": "0 s"},
        ],
        "recovery": {"restart_time": "10 min", "spares": 2},
        "horizon": "30 d",
    },
}


@pytest.fixture(scope="module")
def report() -> Report:
    return parsim.simulate(copy.deepcopy(TREE))


def test_the_time_and_its_failures(report):
    figure = report.plot.training()
    stack, ticks = figure.axes
    weeks = report.training_run
    assert weeks is not None
    counted = {text.get_text() for text in ticks.get_yticklabels()}
    assert counted == {f"{cause} {count}" for cause, count in weeks.run.failures.items()}
    assert sum(len(line.get_xdata()) for line in ticks.lines) == len(weeks.run.struck)
    assert {patch.get_label().rpartition(" ")[0].rpartition(" ")[0] for patch in stack.patches} >= {"training", "lost work"}
    top = max(patch.get_path().vertices[:, 1].max() for patch in stack.patches)
    assert top == pytest.approx(100.0)
    assert "failures" in figure.get_suptitle()


@pytest.mark.parametrize(("name", "across"), [("goodput_interval", "time between"), ("goodput_size", "GPUs")])
def test_goodput_as_a_curve(report, name, across):
    weeks = report.training_run
    (ax,) = getattr(report.plot, name)(title="").axes
    assert across in ax.get_xlabel()
    curve, *marks = ax.lines
    points = weeks.by_interval() if name == "goodput_interval" else weeks.by_size()
    assert [tuple(pair) for pair in zip(curve.get_xdata(), curve.get_ydata(), strict=True)] == [(p.at, 100 * p.goodput) for p in points]
    own = next(mark for mark in marks if str(mark.get_label()).startswith("this job"))
    assert list(own.get_ydata()) == [100 * weeks.failures.goodput]


def test_a_run_writes_them_and_the_same_bytes_again(report, tmp_path):
    names = [path.name for path in write_outputs(report, tmp_path, ("svg",))]
    assert names[-3:] == ["training.svg", "goodput-interval.svg", "goodput-size.svg"]
    assert (tmp_path / "training.svg").read_bytes() == save(report.plot.training(), "svg")


def test_widths_and_no_horizon(report):
    assert float(report.plot.training(width="3.5in").get_size_inches()[0]) == pytest.approx(3.5)
    tree = copy.deepcopy(TREE)
    del tree["economics"]
    with pytest.raises(InputError, match="no training over weeks"):
        parsim.simulate(tree).plot.goodput_size()

"""A title does not contradict what runs: it names what was changed."""

from __future__ import annotations

import pytest

from parsim import compare, simulate
from parsim.report.page.page import page
from parsim.scenario.load import load
from parsim.scenario.neighbours import Neighbours
from parsim.scenario.scenario import changed

GPIPE = "gpt2-xl-gpipe-4x-v100"
NAME = "GPT-2 XL on four V100, GPipe"


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ((), ""),
        (("parallel.pipeline.schedule=1f1b",), " (pipeline.schedule=1f1b)"),
        (("+1f1b", "training.global_batch=6", "cluster.gpus=8"), " (+1f1b, global_batch=6, cluster.gpus=8)"),
        (("parallel.tp=2", "parallel.tensor.size=4"), " (tensor.size=4)"),
        (("training.micro_batch=1", "training.micro_batch=2"), " (micro_batch=2)"),
        (tuple(f"a.k{i}=1" for i in range(6)), " (a.k0=1, a.k1=1, a.k2=1, a.k3=1, 2 more)"),
        (("name=Mine", "training.micro_batch=1"), ""),
        (("x.y=" + "z" * 99,), f" (x.y={'z' * 43}…)"),
    ],
)
def test_what_a_title_says_of_changes(changes: tuple[str, ...], title: str) -> None:
    assert changed(changes) == title


def test_every_way_to_change_a_scenario_is_named() -> None:
    change = "parallel.pipeline.schedule=1f1b"
    title = f"{NAME} (pipeline.schedule=1f1b)"
    assert load(GPIPE).name == NAME
    assert load(GPIPE, change).name == load(GPIPE).with_overrides(change).name == title
    assert Neighbours(load(GPIPE)).scenario({"parallel.pipeline.schedule": "1f1b"}).name == title
    assert load(GPIPE, named=["1f1b"]).name == f"{NAME} (+1f1b)"
    assert load(GPIPE, change).with_overrides("training.global_batch=6").name == f"{NAME} (pipeline.schedule=1f1b, global_batch=6)"
    assert load(GPIPE, change, "name=Mine").name == "Mine"


def test_it_goes_where_the_report_goes() -> None:
    report = simulate(GPIPE, "parallel.pipeline.schedule=1f1b")
    title = f"{NAME} (pipeline.schedule=1f1b)"
    assert repr(report).startswith(title)
    assert f"<h1>{title}</h1>" in page([(report.measured.name, report)])
    assert report.plot.timeline_data().title == title
    assert load(report.document()["scenario"]).name == title, "a report's scenario has lost what was changed, but not what it is called"


def test_variants_of_a_comparison_are_named_too() -> None:
    runs = compare("pipeline-unit-gpipe", "parallel.pipeline.schedule=gpipe,1f1b").runs
    assert [run.scenario.name for run in runs if run.scenario] == [
        f"GPipe, unit times (pipeline.schedule={one})" for one in ("gpipe", "1f1b")
    ]

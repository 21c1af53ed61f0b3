"""`parsim validate memory`: the description is complete, and a priori predictions keep their promises, stack by stack."""

from __future__ import annotations

import json

import pytest
from published_runs import published

from parsim.cli import execute
from parsim.errors import ScenarioError
from parsim.validation.predicted_memory import document, line, memory_rows, predict, sampled, summary, table


@pytest.fixture(autouse=True)
def read_once(monkeypatch):
    """The published runs are read once for all these tests."""
    monkeypatch.setattr("parsim.validation.predicted_memory.published", published)


def test_every_source_has_rows_and_says_what_it_measured():
    rows = memory_rows()
    assert {row.source for row in rows} == {
        "simumax", "simumax-experts", "zero-bubble", "bloom-prequel", "bigscience-1b3", "torchtitan", "torchao", "torchtune",
        "litgpt-tables", "litgpt-configs",
    }  # fmt: skip
    assert len({row.stack for row in rows}) >= 6
    assert all(row.peak > 1e9 for row in rows)
    assert len({row.id for row in rows}) == len(rows)
    assert {row.kind for row in rows} == {"allocated", "reserved", "device_used"}


def test_figures_and_versions():
    by_id = {row.id: row for row in memory_rows()}
    assert by_id["zerobubble-0001"].peak == 54.95 * 2**30  # printed as 59 GB
    assert by_id["simumax-0001"].peak == 66.55 * 2**30
    assert by_id["torchtitan-0002"].scenario["training"]["recompute"] == {"selective": ["matmuls"]}
    assert by_id["torchtitan-0047"].scenario["parallel"]["data"] == {"strategy": "fsdp", "unit": "block"} | {
        key: value for key, value in by_id["torchtitan-0047"].scenario["parallel"]["data"].items() if key not in ("strategy", "unit")
    }
    assert by_id["bigscience-1b3-0005"].node
    assert not by_id["simumax-0001"].node


def test_unknown_sources_are_refused():
    with pytest.raises(ScenarioError, match="unknown source"):
        memory_rows(["simuman"])


def test_a_sample_has_the_first_row_of_each_source():
    rows = memory_rows(["simumax", "torchao"])
    chosen = sampled(rows, 1000)
    assert [row.source for row in chosen] == ["simumax", "torchao"]
    assert sampled(rows, 1) == list(rows)


@pytest.mark.parametrize(
    ("row", "within"),
    [
        ("torchtitan-0002", 0.02),
        ("torchao-h100-bf16", 0.02),
        ("torchao-b200-bf16", 0.03),
        ("simumax-0001", 0.01),
        ("zerobubble-0029", 0.01),
    ],
)
def test_rows_that_nobody_tuned(row, within):
    found = predict(next(one for one in memory_rows() if one.id == row))
    assert abs(found.error) < within
    assert row in line(found)


@pytest.mark.slow
def test_the_mean_over_sources():
    """Every row of the quick sources, every twelfth of the others."""
    rows = sampled(memory_rows(["torchao", "litgpt-tables", "litgpt-configs"]), 1)
    rows += sampled(memory_rows(["simumax", "zero-bubble", "bloom-prequel", "torchtitan"]), 12)
    found = [predict(row) for row in rows]
    known = summary(found)
    assert sum(one.mean for one in known.values()) / len(known) < 0.06
    assert all(one.mean < 0.11 for one in known.values())
    assert "mean over 7 sources" in table(found)
    assert document(found)["sources"]["torchao"]["rows"] == 6


def test_the_command(capsys):
    wanted = ["validate", "memory", "--source", "simumax", "--every", "1000", "--workers", "1"]
    assert execute(wanted) == 0
    out = capsys.readouterr().out
    assert "simumax-0001" in out
    assert "Error of the peak memory" in out
    assert execute([*wanted, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["sources"]["simumax"]["kind"] == "allocated"
    assert abs(told["rows"][0]["error"]) < 0.01

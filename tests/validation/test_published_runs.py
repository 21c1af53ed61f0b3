"""Reading published runs: rows are scenarios, and say only what their source prints."""

from __future__ import annotations

import hashlib

import pytest

from parsim.errors import ScenarioError
from parsim.scenario.load import load
from parsim.validation.published_runs import Fits, fitted, published

BLOCK = """
one:
  title: One
  source: somewhere
  gpu: a100-sxm-80gb
  settings:
    model: gpt2
    cluster: {topology: dgx-a100-80gb}
    training: {sequence_length: 128}
  constants:
    host: {key: software.step_constant, unit: s, start: 0.1, from: 0, to: 1, meaning: a pause}
    flash: {key: device.gemm.efficiency, also: {device.memory.efficiency: 0.5}, start: 0.8, from: 0.5, to: 0.9, meaning: products}
"""
ROWS = "id,step_time_s,training.global_batch,training.micro_batch\none-1,1.5,8,1\none-2,2.5,16,1\n"


@pytest.fixture
def write(tmp_path):
    def made(block=BLOCK, rows=ROWS):
        (tmp_path / "sources.yaml").write_text(block, encoding="utf-8")
        (tmp_path / "one.csv").write_text(rows, encoding="utf-8")
        return tmp_path

    return made


def test_rows_are_the_settings_and_what_is_printed(write):
    (source,) = published(write())
    first = source.rows[0]
    assert first.measured == {"step_time_s": 1.5}
    assert first.scenario()["training"] == {"sequence_length": 128, "global_batch": 8, "micro_batch": 1}
    changed = first.scenario({"software.step_constant": "0.2 s", "device.gemm.efficiency": 0.7})
    assert changed["software"] == {"step_constant": "0.2 s"}
    assert changed["cluster"] == {"topology": "dgx-a100-80gb", "set": {"device": {"gemm": {"efficiency": 0.7}}}}
    assert "software" not in first.scenario()
    load(changed)


def test_constants_have_units_and_bounds(write):
    host, flash = published(write())[0].constants
    assert (host.values(0.12345), flash.values(0.76543)) == (
        {"software.step_constant": "0.1235 s"},
        {"device.gemm.efficiency": 0.7654, "device.memory.efficiency": 0.3827},
    )
    assert (host.least, host.most) == (0.0, 1.0)


def test_profiled_stages_all_change():
    row = published(names=["zero-bubble"])[0].rows[0]
    assert [stage["overhead"] for stage in row.scenario({"model.stages.overhead": "1 ms"})["model"]["stages"]] == ["1 ms"]


def test_a_row_may_not_contradict_the_settings(write):
    rows = ROWS.replace("training.micro_batch", "training.sequence_length")
    with pytest.raises(ScenarioError, match="a row may only say what its source prints") as caught:
        published(write(rows=rows))
    assert caught.value.findings[0].path == "training.sequence_length"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  title: One\n", "", "required"),
        ("  gpu: a100", "  colour: red\n  gpu: a100", "unknown key"),
        ("  constants:", "  left_out:\n    - {rows: [one-9], reason: odd}\n  constants:", "no row is called one-9"),
        ("  constants:", "  memory_left_out: 7\n  constants:", "one.memory_left_out  cannot be read"),
        ("  constants:", "  left_out: [{rows: [one-1]}]\n  constants:", "one.left_out  'reason' is missing"),
        ("from: ", "since: ", "one.constants  'from' is missing"),
    ],
)
def test_mistakes_are_found(write, old, new, problem):
    with pytest.raises(ScenarioError, match=problem):
        published(write(BLOCK.replace(old, new)))


@pytest.mark.parametrize(("old", "new", "problem"), [("id,", "name,", "has no column 'id'"), (",", "", "has no column")])
def test_rows_that_are_none(write, old, new, problem):
    with pytest.raises(ScenarioError, match=problem):
        published(write(rows=ROWS.replace(old, new)))


def test_an_unknown_source_offers_the_known():
    with pytest.raises(ScenarioError, match="unknown source 'bloomm'"):
        published(names=["bloomm"])


def test_ranges_leave_rows_out(write):
    block = BLOCK + "  left_out:\n    - {rows: [one-1..1], reason: a pilot}\n"
    assert [row.left_out for row in published(write(block))[0].rows] == ["a pilot", ""]


def test_halves_by_sha256_of_the_id():
    for row in published(names=["bloom"])[0].rows:
        assert row.fold == "ab"[int(hashlib.sha256(row.id.encode()).hexdigest()[:2], 16) % 2]


def test_grades_take_their_own_fits(write):
    row = published(write())[0].rows[0]
    fits = Fits({"gpu": {"device.x": 1}}, {"one": {"software.y": 2}}, {"one": {"a": {"device.x": 3}, "b": {"device.x": 4}}})
    assert fits.of("a-priori", row, "gpu") == {}
    assert fits.of("calibrated", row, "gpu") == {"device.x": 1, "software.y": 2}
    assert fits.of("held-out", row, "gpu") == {"device.x": {"a": 3, "b": 4}[row.fold]}


def test_every_shipped_row_is_a_scenario():
    for source in published():
        for row in source.rows[:: max(1, len(source.rows) // 6)]:
            load(row.scenario(fitted().of("calibrated", row, source.gpu)))


def test_counts_of_the_shipped_rows():
    sources = {source.name: source for source in published()}
    counted = {name: sum(not row.left_out for row in source.rows) for name, source in sources.items()}
    assert counted == {
        "korthikanti": 8, "megatron-sc21-t1": 10, "megatron-sc21-t2": 6, "vtrain-multi": 49, "vtrain-single": 297, "llm-foundry-a100": 55,
        "llm-foundry-h100": 28, "bloom": 48, "simumax-b200": 19, "zero-bubble": 16, "torchtitan": 5,
    }  # fmt: skip
    assert all(len(source.constants) <= 5 for source in sources.values())

"""Reading published runs: rows are scenarios, and say only what their source prints."""

from __future__ import annotations

from collections import Counter

import pytest
from published_runs import published as shipped

from parsim.errors import ScenarioError
from parsim.scenario.load import load
from parsim.validation.published_runs import not_expressed, published

BLOCK = """
rules:
  duplicate: printed twice
sources:
  one:
    title: One
    source: somewhere
    family: ours
    settings:
      model: gpt2
      cluster: {topology: dgx-a100-80gb}
      training: {sequence_length: 128}
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
    assert (source.family, source.convention) == ("ours", "")
    assert first.measured == {"step_time_s": 1.5}
    assert first.scenario()["training"] == {"sequence_length": 128, "global_batch": 8, "micro_batch": 1}
    changed = first.scenario({"software.step_constant": "0.2 s", "device.gemm.efficiency": 0.7})
    assert changed["software"] == {"step_constant": "0.2 s"}
    assert changed["cluster"] == {"topology": "dgx-a100-80gb", "set": {"device": {"gemm": {"efficiency": 0.7}}}}
    assert "software" not in first.scenario()
    load(changed)


def test_a_row_may_not_contradict_the_settings(write):
    rows = ROWS.replace("training.micro_batch", "training.sequence_length")
    with pytest.raises(ScenarioError, match="a row may only say what its source prints") as caught:
        published(write(rows=rows))
    assert caught.value.findings[0].path == "training.sequence_length"


LEFT = "    settings:"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("    title: One\n", "", "required"),
        ("    family: ours\n", "", "sources.one.family  required"),
        (LEFT, "    colour: red\n" + LEFT, "unknown key"),
        (LEFT, "    left_out:\n      - {rows: [one-9], rule: duplicate}\n" + LEFT, "no row is called one-9"),
        (LEFT, "    memory_left_out: 7\n" + LEFT, "sources.one.memory_left_out  cannot be read"),
        (LEFT, "    left_out: [{rows: [one-1]}]\n" + LEFT, "sources.one.left_out  'rule' is missing"),
        (LEFT, "    left_out: [{rows: [one-1], rule: odd}]\n" + LEFT, "no rule is called 'odd'; known: duplicate"),
        ("sources:", "origins:", "missing"),
    ],
)
def test_mistakes_are_found(write, old, new, problem):
    with pytest.raises(ScenarioError, match=problem):
        published(write(BLOCK.replace(old, new, 1)))


@pytest.mark.parametrize(("old", "new", "problem"), [("id,", "name,", "has no column 'id'"), (",", "", "has no column")])
def test_rows_that_are_none(write, old, new, problem):
    with pytest.raises(ScenarioError, match=problem):
        published(write(rows=ROWS.replace(old, new)))


def test_an_unknown_source_offers_the_known():
    with pytest.raises(ScenarioError, match="unknown source 'bloomm'"):
        published(names=["bloomm"])


@pytest.mark.parametrize(
    ("rows", "left"), [("[one-1..1]", ["duplicate: again", ""]), ("all", ["duplicate: again"] * 2), ("[one-2]", ["", "duplicate: again"])]
)
def test_rows_are_left_out_by_a_rule(write, rows, left):
    block = BLOCK + f"    left_out:\n      - {{rows: {rows}, rule: duplicate, because: again}}\n"
    assert [row.left_out for row in published(write(block))[0].rows] == left


def test_rows_that_cannot_be_scored_say_why(write):
    home = write()
    assert not_expressed(home) == ()
    (home / "not_expressed.csv").write_text("id,source,reason\nx-1,x,TPUs\n", encoding="utf-8")
    assert not_expressed(home) == (("x-1", "x", "TPUs"),)


def test_every_shipped_row_is_a_scenario():
    for source in shipped():
        for row in source.rows[:: max(1, len(source.rows) // 6)]:
            load(row.scenario())


def test_counts_of_the_shipped_rows():
    """Rows leave by a rule that was written before their errors were known, so this changes only with the sources."""
    sources = shipped()
    scored = {source.name: sum(not row.left_out and "step_time_s" in row.measured for row in source.rows) for source in sources}
    assert sum(scored.values()) == 1087
    left = {source.name: sum(bool(row.left_out) for row in source.rows) for source in sources}
    expected = {"bloom-prequel": 6, "mlperf-v4.1": 1, "torchtitan": 2, "zero-bubble-profiled": 16}
    assert {name: count for name, count in left.items() if count} == expected
    assert [source.name for source in sources if not source.fitted] == [
        "mbridge-nvfp4", "nemo-nemotron", "mlperf-v5.0", "mpf", "h200-transformers", "mlperf-v5.1", "mlperf-v6.0", "primus",
    ]  # fmt: skip
    launch = [source.name for source in sources if source.fitted == "launch-transformer-engine"]
    assert launch == ["simumax-experts", "mbridge-experts", "mbridge-cards", "moe-recipes"]
    rows = [row.id for source in sources for row in source.rows if source.name != "zero-bubble-profiled"]
    rows += [one for one, *_ in not_expressed()]
    assert [one for one, count in Counter(rows).items() if count > 1] == []

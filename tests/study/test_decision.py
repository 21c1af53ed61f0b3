"""The head of a comparison: which number decides, by how much, and whether the bands leave it open."""

from __future__ import annotations

from pathlib import Path

import pytest

from parsim.report.quantities import percent, seconds
from parsim.study.compare import Comparison, compare
from parsim.study.compare_text import text
from parsim.study.decision import decision

SMALL = """\
model: gpt2
cluster: {topology: dgx-a100-80gb, gpus: 2}
training: {sequence_length: 128, global_batch: 8, micro_batch: 4}
"""


@pytest.fixture(name="small")
def small_fixture(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def test_the_margin_is_that_of_the_estimates(small: str) -> None:
    found = compare(small, "training.micro_batch=1,2,4")
    won = found.winner
    assert won is not None
    assert won.place is not None
    times = sorted(time for time in found.times if time is not None)
    said = decision(found)
    assert said.title.startswith(found.labels[won.place])
    assert any(f"{percent(1 - times[0] / times[1])} less" in line and seconds(times[1]) in line for line in said.lines)


def test_one_table_of_four_variants_at_80_columns(small: str) -> None:
    found = compare(small, "training.micro_batch=1,2", "training.recompute=none,full")
    lines = text(found, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("Where the step goes") for line in lines) == 1
    for group in ("Verdict", "Time", "Memory"):
        assert sum(line.split("  ")[0] == group for line in lines) == 1


def test_memory_decides_where_one_fits(small: str) -> None:
    found = compare(small, "cluster.set.device.memory=1 GiB,80 GiB")
    assert decision(found).lines[0] == "Memory decides: it is the only one that fits."
    none = compare(small, "cluster.set.device.memory=1 GiB,900 MiB")
    assert decision(none).title == "Nothing fits"
    assert decision(none).open


def test_price_is_said_where_both_have_one(small: str) -> None:
    found = compare(small, "economics.gpu_hour=2 USD,3 USD", "training.tokens=1G")
    (line,) = (line for line in decision(found).lines if line.startswith("Least cost"))
    costs = [run.document["cost_to_train"] for run in found.simulated if run.document is not None]
    assert costs[1] == pytest.approx(1.5 * costs[0], rel=1e-12)
    assert found.labels[0] in line
    assert decision(found).lines[0].startswith(f"Price decides: {found.labels[1]} takes the same time")
    assert decision(found).lines[0].endswith("costs 50 % more.")
    swapped = compare(small, "economics.gpu_hour=3 USD,2 USD", "training.tokens=1G").winner
    assert swapped is not None
    assert swapped.place == 1, "the cheaper of two that are otherwise equal"


def test_the_page_of_a_comparison_begins_with_the_answer(small: str, tmp_path: Path) -> None:
    found: Comparison = compare(small, "training.micro_batch=1,4")
    found.write(tmp_path / "out", ("html",))
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert html.index('id="banner"') < html.index("<h2>Side by side")
    assert html.count("<th") - html.count("<thead") > 4
    assert html.count(">baseline<") > 5, "each number of the first variant is a baseline; the others have a change in the same place"

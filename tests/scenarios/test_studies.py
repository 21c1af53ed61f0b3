"""Every shipped study: it runs, and what its first lines say is so."""

from __future__ import annotations

from typing import Any

import pytest

import parsim
from parsim.scenario import files
from parsim.study.sweep.sweep import Study

NAMES = files.names("studies")
SLOW = ("split-22b-on-eight-a100", "llama-3-54-days")
"""seconds"""


@pytest.fixture(scope="module")
def ran() -> dict[str, Study]:
    return {}


def study(ran: dict[str, Study], name: str) -> Study:
    if name not in ran:
        ran[name] = parsim.sweep(name, exhaustive=True)
    return ran[name]


def best(found: Study) -> dict[str, Any]:
    assert found.best is not None
    return dict(found.best.place.settings)


def test_what_ships() -> None:
    assert NAMES == ["bubble-of-unit-stages", "gpt2-on-four-a100", "llama-3-54-days", "split-22b-on-eight-a100"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in NAMES])
def test_a_study_is_short_and_leaves_nothing_unexplained(name: str, ran: dict[str, Study]) -> None:
    assert len((files.home("studies") / f"{name}.yaml").read_text(encoding="utf-8").splitlines()) <= 25
    found = study(ran, name)
    assert found.best is not None
    assert all(reason for _, _, reason in found.why_not())
    assert {row["status"] for row in found.rows} <= {"fits", "does not fit"}


def test_the_bubble_of_unit_stages(ran: dict[str, Study]) -> None:
    found = study(ran, "bubble-of-unit-stages")
    for row in found.rows:
        batch = row["training.global_batch"]
        assert row["step_time_s"] == pytest.approx((batch + 3) * 3.0, rel=1e-9)
        assert row["bubble_fraction"] == pytest.approx(3 / (batch + 3), rel=1e-9)
    assert {row["training.global_batch"] for row in found.rows if row["bubble_fraction"] < 0.1} == {32}
    assert best(found)["training.global_batch"] == 32


def test_gpt2_on_four_a100(ran: dict[str, Study]) -> None:
    found = study(ran, "gpt2-on-four-a100")
    assert len(found.rows) == len(found.entries) == 18
    assert {row["samples_per_step"] for row in found.rows} == {32.0}, "the same work"
    assert best(found) == {
        "software.profile": "deepspeed", "parallel.data.strategy": "zero3", "training.micro_batch": 8, "training.recompute": "none",
    }  # fmt: skip
    by = {tuple(entry.place.settings.values())[1:]: entry.rows[0] for entry in found.entries}
    for strategy in ("ddp", "zero1", "zero3"):
        for batch in (2, 4, 8):
            assert by[strategy, batch, "none"]["step_time_s"] < by[strategy, batch, "full"]["step_time_s"]
            assert by[strategy, batch, "none"]["peak_bytes"] > by[strategy, batch, "full"]["peak_bytes"]


@pytest.mark.slow
def test_how_to_split_22b(ran: dict[str, Study]) -> None:
    found = study(ran, "split-22b-on-eight-a100")
    sizes = [[place.settings[f"parallel.{axis}.size"] for axis in ("tensor", "pipeline", "data")] for place in found.places]
    assert len(sizes) == 20
    assert all(tensor * pipeline * data == 8 for tensor, pipeline, data in sizes)
    assert sum(row["status"] == "does not fit" for row in found.rows) == 6
    # 2 bytes of weights, 4 of gradients and 12 of Adam with its master for 22e9 parameters on four GPUs: 18 x 22e9 / 4 = 92 GiB
    assert all(place.settings["parallel.data.size"] == 2 for place in found.places if (row := found.row(place)) and not row["fits"])
    front = [(entry.place.settings["parallel.tensor.size"], entry.place.settings["training.recompute"]) for entry in found.front]
    assert front == [(4, {"selective": ["attention"]}), (8, {"selective": ["attention"]}), (4, "full"), (8, "full")]


@pytest.mark.slow
def test_fifty_four_days_of_llama_3(ran: dict[str, Study]) -> None:
    """419 failures with Poisson's deviation, 20.5; over eight seeds the mean is within three of its own."""
    (entry,) = study(ran, "llama-3-54-days").entries
    counts = [row["failures"] for row in entry.rows]
    assert abs(sum(counts) / len(counts) - 419) < 3 * (419 / len(counts)) ** 0.5
    assert all(abs(count - 419) < 4 * 419**0.5 for count in counts)
    assert min(row["run_goodput"] for row in entry.rows) > 0.9
    assert sum(row["run_goodput"] for row in entry.rows) / len(counts) == pytest.approx(entry.rows[0]["goodput"], abs=3e-3)

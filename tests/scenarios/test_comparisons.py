"""Every shipped comparison: complete, consistent with its runs, and true to what its first lines say."""

from __future__ import annotations

import json
from math import fsum
from typing import Any

import pytest

from parsim.cli import execute
from parsim.scenario import files
from parsim.study.compare import Comparison, compare
from parsim.study.compare_variants import variants

NAMES = files.names("comparisons")
SLOW = ("tensor-across-nodes",)
"""two runs of several seconds"""


def parameters() -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in NAMES]


@pytest.fixture(scope="module")
def found() -> dict[str, Comparison]:
    return {}


def ran(found: dict[str, Comparison], name: str, *overrides: str) -> Comparison:
    key = " ".join((name, *overrides))
    if key not in found:
        found[key] = compare(name, *overrides)
    return found[key]


def times(comparison: Comparison) -> dict[str, float]:
    return {run.label: run.document["step_time_s"] if run.document else 0.0 for run in comparison}


def peaks(comparison: Comparison) -> dict[str, float]:
    return {run.label: run.document["memory"]["peak_bytes"] / 2**30 for run in comparison if run.document is not None}


def part(comparison: Comparison, label: str, key: str) -> float:
    document = comparison[label].document
    assert document is not None
    return float(document["breakdown_s"][key])


def test_what_ships() -> None:
    assert NAMES == [
        "expert-parallelism-nvlink-8-vs-72", "pipeline-schedules-gpt2-xl", "pipeline-schedules-unit", "recompute-22b",
        "tensor-across-nodes", "zero-nvlink",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_comparison_is_short_and_its_variants_load(name: str) -> None:
    lines = (files.home("comparisons") / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert len(lines) <= 30
    for variant in variants([name]).all:
        variant.scenario()


@pytest.mark.parametrize("name", parameters())
def test_a_shipped_comparison(name: str, found: dict[str, Comparison]) -> None:
    comparison = ran(found, name)
    assert all(run.document is not None for run in comparison)
    assert comparison.winner is not None
    assert comparison.winner.place is not None
    assert comparison.runs[comparison.winner.place].status == "fits"
    document = json.loads(json.dumps(comparison.document(), allow_nan=False))
    for variant in document["variants"]:
        assert fsum(variant["report"]["breakdown_s"].values()) == pytest.approx(variant["report"]["step_time_s"], rel=1e-9)
    assert document["inputs"], "something differs"


def test_the_command_runs_one_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["compare", "pipeline-schedules-unit", "--json", "--workers", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"] == ["GPipe", "1F1B", "PipeDream"]


def test_unit_schedules(found: dict[str, Comparison]) -> None:
    comparison = ran(found, "pipeline-schedules-unit")
    assert times(comparison) == pytest.approx({"GPipe": 33.0, "1F1B": 33.0, "PipeDream": 24.0})
    devices = {run.label: run.document["memory"]["devices"] for run in comparison if run.document is not None}
    flying = {label: [one["in_flight_micro_batches"] for one in rows] for label, rows in devices.items()}
    assert flying == {"GPipe": [8] * 4, "1F1B": [4, 3, 2, 1], "PipeDream": [4, 3, 2, 1]}
    assert [one["weight_versions"] for one in devices["PipeDream"]] == [4, 3, 2, 1]


def test_schedules_of_a_real_model(found: dict[str, Comparison]) -> None:
    comparison = ran(found, "pipeline-schedules-gpt2-xl")
    step, peak = times(comparison), peaks(comparison)
    assert step["1F1B"] == pytest.approx(step["GPipe"], rel=1e-3)
    assert peak["1F1B"] < 0.75 * peak["GPipe"]
    # the optimizer steps once for each of the eight micro-batches
    optimizer = {label: part(comparison, label, "optimizer") for label in comparison.labels}
    assert optimizer["PipeDream"] == pytest.approx(8 * optimizer["GPipe"], rel=1e-3)
    saved = part(comparison, "GPipe", "bubble") - part(comparison, "PipeDream", "bubble")
    assert optimizer["PipeDream"] - optimizer["GPipe"] > saved > 0
    assert comparison.verdict.startswith("1F1B is as fast as GPipe")


def test_zero_with_and_without_nvlink(found: dict[str, Comparison]) -> None:
    """Same GPUs, other wires: what PCIe costs is data-parallel communication, which NVLink hides."""
    comparison = ran(found, "zero-nvlink")
    step, peak = times(comparison), peaks(comparison)
    assert [run.label for run in comparison if run.status == "does not fit"] == ["DDP, NVLink", "DDP, PCIe"]
    fitting = [f"ZeRO-{stage}" for stage in (1, 2, 3)]
    # NVLink hides what is exchanged; kernels are slower beside it, most where weights are gathered, too
    assert step["ZeRO-1, NVLink"] < step["ZeRO-2, NVLink"] < step["ZeRO-3, NVLink"] < 1.1 * step["ZeRO-1, NVLink"]
    assert all(part(comparison, f"{one}, NVLink", "data_comm") < 0.02 * step[f"{one}, NVLink"] for one in fitting)
    # if they were not, ZeRO-2 would be as fast; ZeRO-3 adds no gradients of seven micro-batches (2 B each are read twice, written once)
    undisturbed = ran(found, "zero-nvlink", "cluster.interference=off")
    alone = times(undisturbed)
    assert alone["ZeRO-2, NVLink"] == pytest.approx(alone["ZeRO-1, NVLink"], rel=0.005)
    saved = part(undisturbed, "ZeRO-1, NVLink", "compute") - part(undisturbed, "ZeRO-3, NVLink", "compute")
    assert saved == pytest.approx(7 * 3 * 2 * 6.74e9 / (0.82 * 2039e9), rel=0.05)
    assert step["ZeRO-1, PCIe"] < step["ZeRO-2, PCIe"] < 0.5 * step["ZeRO-3, PCIe"]
    for wires in ("NVLink", "PCIe"):
        order = [peak[f"{one}, {wires}"] for one in ("DDP", *fitting)]
        assert order == sorted(order, reverse=True)
        # parameters, gradients, optimizer states of P = 6.74e9 in bf16 with an fp32 master: 2P + 2P + 12P, 2P + 2P + 12P/8, ...
        states = {label: comparison[f"{label}, {wires}"].document for label in ("DDP", "ZeRO-1")}
        held = {label: one["memory"]["devices"][0]["resident_bytes"]["optimizer"] for label, one in states.items() if one is not None}
        assert held["ZeRO-1"] == pytest.approx(held["DDP"] / 8, rel=1e-3)
    for one in fitting:
        lost = step[f"{one}, PCIe"] - step[f"{one}, NVLink"]
        wires = part(comparison, f"{one}, PCIe", "data_comm") - part(comparison, f"{one}, NVLink", "data_comm")
        assert wires > 0.55 * lost
    software = [row for row in comparison.inputs if row.key.startswith("assumptions.")]
    assert software == [], "the same stack for all"


def test_what_to_recompute(found: dict[str, Comparison]) -> None:
    comparison = ran(found, "recompute-22b")
    step, peak = times(comparison), peaks(comparison)
    assert step["no recompute"] < step["selective"] < step["full"]
    assert peak["no recompute"] > peak["selective"] > peak["full"]
    assert [run.status for run in comparison] == ["does not fit", "fits", "fits"]
    # Korthikanti et al. 2022, table 4, one layer of 22B: 19.0 ms with sequence parallelism, 20.3 ms with selective recomputation
    # besides; 19.6 ms and 27.2 ms without and with full recomputation. The optimizer is no part of a layer.
    layers = {label: step[label] - part(comparison, label, "optimizer") for label in comparison.labels}
    assert layers["selective"] / layers["no recompute"] == pytest.approx(20.3 / 19.0, abs=0.02)
    assert layers["full"] / layers["no recompute"] == pytest.approx(27.2 / 19.6, abs=0.02)


@pytest.mark.slow
def test_tensor_groups_across_nodes(found: dict[str, Comparison]) -> None:
    comparison = ran(found, "tensor-across-nodes")
    inside, across = comparison.labels
    assert times(comparison)[across] > 1.1 * times(comparison)[inside]
    assert part(comparison, across, "tensor_comm") > 2 * part(comparison, inside, "tensor_comm")
    assert part(comparison, across, "bubble") < 0.5 * part(comparison, inside, "bubble")
    # (p - 1) / (v m) of bubble over ideal: 7 / 192 and 3 / 384
    theory = [run.document["bubble_fraction_theory"] for run in comparison if run.document is not None]
    assert theory == pytest.approx([7 / (192 + 7), 3 / (384 + 3)])

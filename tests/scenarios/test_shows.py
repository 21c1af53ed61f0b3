"""What the shipped scenarios show: the figures of the papers, and the claims that their comments make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from parsim.report import Report
from parsim.run import simulate
from parsim.scenario import load

MIB = 2**20


@lru_cache(maxsize=16)
def report(name: str, *overrides: str, named: str = "", unfolded: bool = False) -> Report:
    """The report of a shipped scenario; tests that follow each other ask for the same ones."""
    return simulate(load(name, *overrides, named=[named] if named else []), unfolded=unfolded)


def document(name: str, *overrides: str, named: str = "", unfolded: bool = False) -> dict[str, Any]:
    return report(name, *overrides, named=named, unfolded=unfolded).document()


# -- memory ---------------------------------------------------------------------------------------------------------


def test_the_memory_of_the_mlp_is_that_of_pytorch_to_the_byte() -> None:
    """Weights 16.015625, input 40, two activations 40, output 80, two cuBLAS workspaces 8.125, loss and its gradient 512 B each,
    gradient of the output 80, of the last hidden layer 40, of the last weight 8 and bias 8 KiB; torch.cuda.max_memory_allocated().
    """
    parts = 16.015625 + 40 + 2 * 40 + 80 + 2 * 8.125 + 2 * 512 / MIB + 80 + 40 + 8 + 8192 / MIB
    memory = document("mlp-1x-a100")["memory"]
    assert parts == 360.2744140625
    assert memory["peak_allocated_bytes"] / MIB == parts
    assert memory["devices"][0]["peak_op"].startswith("B0")


def test_adamw_adds_two_states_per_parameter() -> None:
    first, steady = document("mlp-1x-a100")["memory"], document("mlp-1x-a100", named="steady")["memory"]
    assert steady["devices"][0]["resident_bytes"]["optimizer"] / MIB == pytest.approx(2 * 16.015625)
    assert (steady["peak_allocated_bytes"] - first["peak_allocated_bytes"]) / MIB == pytest.approx(2 * 16.015625)


def test_zero_makes_llama_7b_fit() -> None:
    """Rajbhandari et al. 2020, figure 1: 16 P, then 4 P + 12 P / N, 2 P + 14 P / N and 16 P / N bytes of model states."""
    parameters, replicas = 6738415616, 8
    expected = {
        "ddp": 16 * parameters,
        "zero1": (4 + 12 / replicas) * parameters,
        "zero2": (2 + 14 / replicas) * parameters,
        "zero3": 16 / replicas * parameters,
    }
    peaks = []
    for strategy, states in expected.items():
        memory = document(f"llama-7b-{strategy}-8x-a100")["memory"]
        resident = memory["devices"][0]["resident_bytes"]
        gradients = parameters * 2 / (replicas if strategy in ("zero2", "zero3") else 1)
        assert resident["parameters"] + resident["optimizer"] == pytest.approx(states - gradients, rel=1e-3)
        assert memory["fits"] is (strategy != "ddp")
        assert memory["peak_bytes"] > states
        peaks.append(memory["peak_bytes"])
    assert peaks == sorted(peaks, reverse=True)


def test_zero2_and_zero3_reduce_in_every_micro_batch() -> None:
    """Nobody keeps whole gradients, so the traffic of the gradients grows with the number of micro-batches."""

    def reduced(name: str) -> int:
        return sum(row["count"] * row["bytes"] for row in document(name)["collectives"] if row["kind"] == "reduce_scatter")

    once = reduced("llama-7b-zero1-8x-a100")
    assert once == pytest.approx(2 * 6738415616, rel=1e-6)
    assert reduced("llama-7b-zero2-8x-a100") == 8 * once
    assert document("llama-7b-zero3-8x-a100")["memory"]["peak_bytes"] < document("llama-7b-zero2-8x-a100")["memory"]["peak_bytes"]


# -- pipelines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "named", "seconds"),
    [
        ("naive", "", 96.0),
        ("gpipe", "", 33.0),
        ("1f1b", "", 33.0),
        ("interleaved", "", 28.5),
        ("interleaved", "four", 26.25),
        ("gpipe", "send", 36.0),
        ("1f1b", "send", 41.0),
        ("interleaved", "send", 35.5),
    ],
)
def test_schedules_take_as_long_as_on_paper(name: str, named: str, seconds: float) -> None:
    """Four stages, eight micro-batches, forward 1 s, backward 2 s, and sends of 0 or 0.5 s."""
    assert document(f"pipeline-unit-{name}", named=named)["step_time_s"] == seconds


def test_bubbles_are_those_of_the_papers() -> None:
    for name, fraction in (("naive", 3 / 4), ("gpipe", 3 / 11), ("1f1b", 3 / 11), ("interleaved", 3 / 19)):
        found = document(f"pipeline-unit-{name}")
        assert found["bubble_fraction"] == pytest.approx(fraction, rel=1e-12)
        assert found["bubble_fraction_theory"] == pytest.approx(fraction, rel=1e-12)


def test_micro_batches_in_flight() -> None:
    def in_flight(name: str) -> list[int]:
        return [device["in_flight_micro_batches"] for device in document(name)["memory"]["devices"]]

    assert in_flight("pipeline-unit-gpipe") == [8, 8, 8, 8]
    assert in_flight("pipeline-unit-1f1b") == [4, 3, 2, 1]
    assert in_flight("custom-schedule") == [5, 4, 2, 1]


def test_pipedream_has_no_bubble_and_stashes_weights() -> None:
    """Narayanan et al. 2019: a micro-batch per 3 s once the pipeline is full; started empty, eight take 33 s."""
    found = document("pipeline-unit-pipedream")
    assert found["period_s"] == pytest.approx(3.0)
    assert found["step_time_s"] == pytest.approx(24.0)
    assert found["makespan_s"] == pytest.approx(33.0)
    assert found["bubble_fraction"] == pytest.approx(0.0, abs=1e-12)
    assert [device["weight_versions"] for device in found["memory"]["devices"]] == [4, 3, 2, 1]


def test_a_schedule_of_ones_own_hides_latency_for_memory() -> None:
    own, plain = document("custom-schedule"), document("custom-schedule", "parallel.pipeline.schedule=1f1b")
    assert (own["step_time_s"], plain["step_time_s"]) == (39.0, 41.0)
    peaks = [[device["peak_bytes"] for device in found["memory"]["devices"]] for found in (own, plain)]
    assert [(a - b) / 2**30 for a, b in zip(*peaks, strict=True)] == [1, 1, 0, 0]


def test_one_f_one_b_saves_memory_not_time() -> None:
    gpipe, flush = document("gpt2-xl-gpipe-4x-v100"), document("gpt2-xl-gpipe-4x-v100", named="1f1b")
    assert flush["step_time_s"] == pytest.approx(gpipe["step_time_s"], rel=0.01)
    assert flush["memory"]["peak_bytes"] < 0.8 * gpipe["memory"]["peak_bytes"]
    balanced = document("gpt2-xl-gpipe-4x-v100", named="balanced")
    assert balanced["step_time_s"] < 0.95 * gpipe["step_time_s"]


# -- communication --------------------------------------------------------------------------------------------------


def busy(found: Mapping[str, Any], *kinds: str) -> float:
    return sum(row["busy_s"] for row in found["collectives"] if row["kind"] in kinds)


def test_pcie_cannot_feed_zero3_and_nvlink_can() -> None:
    pcie, nvlink = (document("llama-7b-zero3-8x-rtx-4090", named=named) for named in ("", "nvlink"))
    assert pcie["ranks"]["micro_batches"] == 1
    compute = [found["breakdown_s"]["compute"] + found["breakdown_s"]["recompute"] for found in (pcie, nvlink)]
    moving = [busy(found, "all_gather", "reduce_scatter") for found in (pcie, nvlink)]
    assert moving[0] > compute[0]
    assert moving[1] < compute[1]
    assert pcie["limiter_kind"] == "data_comm"
    assert nvlink["limiter_kind"] == "compute"
    assert all(found["memory"]["fits"] for found in (pcie, nvlink))


@pytest.mark.parametrize("named", ["", "four"])
def test_ddp_beats_torch_data_parallel_most_without_nvlink(named: str) -> None:
    steps = {
        (strategy, wires): document(f"bert-{strategy}-8x-v100-{wires}", named=named)["step_time_s"]
        for strategy in ("ddp", "torch-dp")
        for wires in ("nvlink", "pcie")
    }
    for wires in ("nvlink", "pcie"):
        assert steps["torch-dp", wires] > 1.4 * steps["ddp", wires]
    for strategy in ("ddp", "torch-dp"):
        assert steps[strategy, "pcie"] > 1.1 * steps[strategy, "nvlink"]


def test_ddp_scales_and_torch_data_parallel_does_not() -> None:
    """Samples per second from four GPUs to eight, on NVLink."""

    def gain(name: str) -> float:
        return float(document(name)["samples_per_s"] / document(name, named="four")["samples_per_s"])

    assert gain("bert-ddp-8x-v100-nvlink") > 1.9
    assert gain("bert-torch-dp-8x-v100-nvlink") < 1.2


def test_gpu_0_of_torch_data_parallel_holds_more() -> None:
    first, others = document("bert-torch-dp-8x-v100-pcie")["memory"]["devices"]
    assert (first["ranks"], others["ranks"]) == ("0", "1-7")
    assert first["at_peak"]["optimizer"] > 0
    assert others["at_peak"]["optimizer"] == 0
    assert first["peak_bytes"] > 1.2 * others["peak_bytes"]


def test_everybody_waits_for_a_straggler() -> None:
    """One GPU at 80 %: the step takes nearly 1 / 0.8 as long, the others idle the difference."""
    slow, even = document("gpt2-ddp-straggler"), document("gpt2-ddp-straggler", "variability.slow=[]")
    assert slow["bottleneck_rank"] == 5
    assert 1.15 < slow["step_time_s"] / even["step_time_s"] <= 1.25
    assert slow["bubble_fraction"] == pytest.approx(7 / 8 * (1 - even["step_time_s"] / slow["step_time_s"]), rel=0.1)


def test_resnet_hides_all_buckets_but_the_last() -> None:
    rows = [row for row in document("resnet50-ddp-8x-v100")["collectives"] if row["kind"] == "all_reduce"]
    assert sum(row["count"] * row["bytes"] for row in rows) == 4 * 25557032
    assert sum(row["count"] for row in rows) == 5
    assert sum(row["exposed_s"] for row in rows) < 0.5 * sum(row["busy_s"] for row in rows)


CONTEXT = "llama-3-8b-context-16x-h100"


def test_a_ring_hides_behind_long_samples_and_shows_with_short_ones() -> None:
    """Liu et al. 2310.01889: a block of (s/c)^2 scores hides the keys and values of s/c tokens once s/c is long enough."""
    long, short = document(CONTEXT), document(CONTEXT, named="short")
    rows = [[row for row in found["collectives"] if row["axis"] == "context"] for found in (long, short)]
    assert [{(row["kind"], row["group_size"]) for row in found} for found in rows] == [{("sendrecv", 8)}, {("sendrecv", 16)}]
    assert sum(row["exposed_s"] for row in rows[0]) < 1e-3 * sum(row["busy_s"] for row in rows[0])
    assert long["breakdown_s"]["context_comm"] < 1e-5 * long["step_time_s"]
    assert short["breakdown_s"]["context_comm"] > 0.05 * short["step_time_s"]


def test_a_ring_passes_keys_and_values_round_and_nothing_else() -> None:
    """7 messages of 2 (s/c) k d e = 64 MiB forward and when recomputed, 14 backward, for 32 layers and 4 micro-batches."""
    rows = [row for row in document(CONTEXT)["collectives"] if row["axis"] == "context"]
    assert sum(row["count"] * row["bytes"] for row in rows) == 4 * 32 * (7 + 7 + 14) * 64 * MIB
    exchanged = [row for row in document(CONTEXT, named="ulysses")["collectives"] if row["axis"] == "context"]
    assert {(row["kind"], row["count"], row["bytes"] // MIB) for row in exchanged} == {
        ("all_to_all", 4 * 32 * 2 * 3, 128), ("all_to_all", 4 * 32 * 2 * 3, 32),
    }  # fmt: skip


def test_context_ranks_are_replicas_of_the_parameters() -> None:
    """Gradients and weights travel among all sixteen ranks, micro-batches are those of two replicas."""
    found = document(CONTEXT)
    assert (found["ranks"]["context"], found["ranks"]["data"], found["ranks"]["micro_batches"]) == (8, 2, 4)
    assert {row["group_size"] for row in found["collectives"] if row["axis"] == "data"} == {16}
    resident = found["memory"]["devices"][0]["resident_bytes"]
    parameters = found["model"]["parameters"]
    assert resident["optimizer"] == pytest.approx(12 * parameters / 16, rel=1e-6)


def test_the_short_form_is_the_long_one() -> None:
    short, long = document(CONTEXT, "parallel.cp=4"), document(CONTEXT, "parallel.context.size=4")
    assert short["ranks"]["data"] == long["ranks"]["data"] == 4
    assert short["step_time_s"] == long["step_time_s"]


# -- published runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "seconds"),
    [("gpt3-22b-8x-a100", 1.10), ("gpt3-175b-64x-a100", 13.75), ("gpt3-530b-280x-a100", 37.83), ("gpt3-1t-512x-a100", 71.49)],
)
def test_megatron_takes_about_as_long_as_published(name: str, seconds: float) -> None:
    """Korthikanti et al. 2022, table 5, sequence parallelism and selective recomputation; nothing is fitted to these rows.

    Read from the golden files, which test_shipped.py compares with the simulation.
    """
    golden = json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text(encoding="utf-8"))
    assert golden["step_time_s"] == pytest.approx(seconds, rel=0.12)


# -- folding --------------------------------------------------------------------------------------------------------


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two documents differ by more than 1e-9."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [text for key in one for text in differences(one[key], other[key], f"{path}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [text for index in range(len(one)) for text in differences(one[index], other[index], f"{path}[{index}]")]
    if isinstance(one, float) and isinstance(other, (int, float)):
        return [] if one == pytest.approx(other, rel=1e-9, abs=1e-12) else [f"{path}: {one} and {other}"]
    return [] if one == other else [f"{path}: {one} and {other}"]


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("bert-torch-dp-8x-v100-nvlink", ()),
        ("resnet50-ddp-8x-v100", ()),
        ("llama-13b-fsdp-16x-a100", ("model.layers=8",)),
        (CONTEXT, ("model.layers=4",)),
        ("gpt3-175b-64x-a100", ("training.global_batch=8", "model.layers=24", "parallel.pipeline.virtual_stages=3")),
        ("pipeline-unit-interleaved", ()),
        ("pipeline-unit-pipedream", ()),
    ],
)  # fmt: skip
def test_a_folded_run_is_the_unfolded_run(name: str, overrides: tuple[str, ...]) -> None:
    """Of shipped scenarios those that differ in kind from the jobs of tests/program/test_folding.py."""
    folded, whole = (document(name, *overrides, unfolded=unfolded) for unfolded in (False, True))
    assert whole.pop("simulation")["ranks_simulated"] == whole["ranks"]["total"]
    assert folded.pop("simulation")["ranks_simulated"] <= folded["ranks"]["total"]
    assert differences(folded, whole) == []

"""Every shipped scenario, through the command line: one document, complete, consistent, and the numbers of last time.

After a change that is meant to change numbers, write the golden files anew and look at their diff:

    PARSIM_GOLDEN=write python -m pytest -q -m "slow or not slow" tests/scenarios/test_shipped.py
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parsim.cli import execute
from parsim.report.economics import METRICS
from parsim.report.measured import AT_PEAK
from parsim.run import simulate
from parsim.scenario import files, load

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("PARSIM_GOLDEN") == "write"
DIGITS = 9
SLOW = (
    "gpt3-175b-1024x-a100", "gpt3-530b-280x-a100", "gpt3-1t-512x-a100", "deepseek-v3-2048x-h800", "deepseek-v3-2048x-h800+mixture",
    "deepseek-v3-2048x-h800+dualpipe",
    "kimi-k2-1024x-h800", "gpt2-ddp-typical-variability", "llama-3-405b-16384x-h100",
    "qwen3-235b-256x-h100", "llama-4-scout-64x-h100", "mixtral-8x22b-128x-h100+unfolded",
)  # fmt: skip
"""several seconds each"""
TWICE = (
    "gpt2-ddp-4x-a100", "gpt2-ddp-straggler", "gpt2-link-flap", "gpt2-xl-gpipe-4x-v100+pipedream", "bert-torch-dp-8x-v100-pcie",
    "resnet50-ddp-8x-v100", "mlp-1x-a100", "custom-schedule", "pipeline-unit-interleaved+send", "llama-2-70b-2t-2048x-a100",
    "llama-3-8b-context-16x-h100+ulysses", "llama-7b-lora-1x-rtx-4090+qlora", "llama-7b-zero3-offload-2x-rtx-3090+drives",
    "llama-7b-zero1-mixed-h100-a100+far", "mixtral-8x7b-experts", "qwen3-30b-dualpipev+apart",
)  # fmt: skip
"""One of each kind is loaded from its own report and simulated again. The others' scenarios are only read back, and have the same hash
(`test_the_scenario_in_a_report_is_the_scenario`): equal scenarios give equal reports."""
DOES_NOT_FIT = ("llama-7b-ddp-8x-a100", "deepseek-v3-2048x-h800+dualpipe")

CLASSES = {
    "compute", "recompute", "tensor_comm", "data_comm", "pipeline_comm", "context_comm", "expert_comm", "optimizer", "offload", "launch",
    "bubble", "other",
}  # fmt: skip
KEYS = {
    "": {
        "parsim", "version", "provenance", "scenario", "ranks", "experts", "model", "step_time_s", "makespan_s",
        "period_s", "samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "hardware_tflops_per_gpu", "mfu",
        "hfu",
        "bubble_fraction", "bubble_over_ideal", "bubble_fraction_theory", "breakdown_rank", "bottleneck_rank", "breakdown_s",
        "critical_path_s",
        "limiter_kind", "limiter", "memory", "schedule", "collectives", "links", "unused_links", "confidence", "cost", "energy_J",
        "time_to_train_s", "gpu_hours", "goodput", "steps_to_train", "gpu_hours_billed", "cost_per_step", "cost_per_million_tokens",
        "cost_per_million_samples", "cost_to_train", "energy_per_step_J", "energy_per_token_J", "co2_kg", "economics",
        "training_run", "assumptions", "warnings", "simulation", "estimate", "variability", "slow_gpu",
    },
    "provenance": {"catalogue_sha256", "command", "trusted_code", "python"},
    "scenario": {"name", "model", "training", "parallel", "cluster", "software", "variability", "economics", "report", "assumptions"},
    "ranks": {
        "total", "tensor", "context", "data", "pipeline", "expert", "expert_tensor", "expert_data", "micro_batches", "nodes", "idle_gpus",
    },
    "model": {"parameters", "parameters_padded", "parameters_active", "parameters_trainable", "flop_per_step", "flop_convention"},
    "breakdown_s": CLASSES,
    "critical_path_s": CLASSES,
    "memory": {
        "capacity_bytes", "reserve_bytes", "fits", "headroom_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
        "peak_device_used_bytes", "peak_bytes", "host_bytes", "at_save_bytes", "bytes_per_parameter", "host", "devices",
    },
    "memory.devices.*": {
        "rank", "ranks", "count", "stage", "peak_bytes", "allocated_bytes", "reserved_bytes", "device_used_bytes", "method",
        "peak_time_s", "peak_op", "resident_bytes", "at_peak", "in_flight_micro_batches", "weight_versions",
    },
    "memory.devices.*.resident_bytes": {"parameters", "gradients", "optimizer"},
    "memory.devices.*.at_peak": set(AT_PEAK),
    "schedule": {"name", "stages", "virtual_stages", "layers_per_stage", "stage_time_s"},
    "schedule.stage_time_s.*": {"forward", "backward_input", "backward_weight"},
    "collectives.*": {
        "kind", "axis", "group_size", "count", "bytes", "busy_s", "exposed_s", "wait_s", "algorithm", "protocol", "algbw_Bps", "busbw_Bps",
    },
    "links.*": {"link", "kind", "count", "capacity_Bps", "bytes", "utilisation", "saturated_s"},
    "confidence": {"status", "step_time_s", "peak_bytes", "basis", "nearest"},
    "assumptions.*": {"name", "value", "source", "origin"},
    "warnings.*": {"path", "message"},
    "simulation": {"folded", "ranks", "ranks_simulated", "ops", "events", "wall_s", "seed"},
}  # fmt: skip
"""every key of the report's contract; more may come, none may go"""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden files do not age: it is before the date of any example price, so that none is called old."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1704067200")


def overrides_of(stem: str) -> list[str]:
    """The named overrides of a scenario's own file."""
    return list(files.read(files.home("scenarios") / f"{stem}.yaml").tree.get("overrides", ()))


STEMS = files.names("scenarios")
CASES = [case for stem in STEMS for case in (stem, *(f"{stem}+{name}" for name in overrides_of(stem)))]


def parameters() -> list[Any]:
    return [pytest.param(case, marks=[pytest.mark.slow] if case in SLOW else []) for case in CASES]


def reduced(document: dict[str, Any]) -> dict[str, Any]:
    """What the golden files keep of a report."""
    plain = ("ranks", "model", "step_time_s", "makespan_s", "period_s", "mfu", "hfu", "bubble_fraction", "bubble_fraction_theory")
    kept: dict[str, Any] = {key: document[key] for key in plain}
    if document["model"]["parameters_trainable"] == document["model"]["parameters"]:
        kept["model"] = {key: value for key, value in document["model"].items() if key != "parameters_trainable"}
    ranks = document["ranks"]
    if ranks["expert"] == ranks["expert_tensor"] == 1:  # a grid of experts only where they are spread
        kept["ranks"] = {key: value for key, value in ranks.items() if key not in ("expert_tensor", "expert_data")}
    for name in ("breakdown_s", "critical_path_s"):
        kept[name] = {key: value for key, value in document[name].items() if value}
    kept |= {key: document[key] for key in ("limiter_kind", "breakdown_rank", "bottleneck_rank")}
    if document["scenario"]["training"]["tokens"] is not None:
        kept |= {key: document[key] for key in ("cost", *METRICS, "economics")}
    if "runs" in (varied := document["variability"] or {}):
        kept["variability"] = {key: varied[key] for key in ("runs", "over", "step_time_s", "by_cause", "together")}
        kept["variability"]["steps"] = varied["steps"]["step_time_s"]
    memory = dict(document["memory"])
    memory["devices"] = [_device(device) for device in memory["devices"]]
    if memory["host"] is None:
        del memory["host"]
    kept["memory"] = memory
    schedule = document["schedule"]
    kept["schedule"] = {key: schedule[key] for key in ("name", "stages", "virtual_stages", "layers_per_stage")}
    rows = ("kind", "axis", "group_size", "count", "bytes", "busy_s", "exposed_s", "wait_s")
    kept["collectives"] = [" ".join(str(_rounded(row[key])) for key in rows) for row in document["collectives"]]
    links = ("link", "kind", "count", "bytes")
    kept["links"] = [" ".join(str(_rounded(row[key])) for key in links) for row in document["links"]]
    kept["simulation"] = {key: document["simulation"][key] for key in ("folded", "ranks_simulated", "ops")}
    kept["warnings"] = [f"{warning['path']}: {warning['message']}" for warning in document["warnings"]]
    result: dict[str, Any] = _rounded(kept)
    return result


def _device(device: dict[str, Any]) -> str:
    keys = ("ranks", "stage", "peak_bytes", "allocated_bytes", "peak_op", "in_flight_micro_batches", "weight_versions")
    parts = [f"{key} {device[key]}" for key in keys]
    return ", ".join([*parts, *(f"{key} {value}" for key, value in device["at_peak"].items() if value)])


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def nodes(document: Any, wanted: list[str]) -> Iterator[dict[str, Any]]:
    """The mappings at a dotted path; ``*`` stands for every item of a list."""
    if not wanted:
        yield document
    elif wanted[0] == "*":
        for item in document:
            yield from nodes(item, wanted[1:])
    else:
        yield from nodes(document[wanted[0]], wanted[1:])


def test_there_is_a_golden_file_for_every_case_and_no_other() -> None:
    assert set(TWICE) <= set(CASES)
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == sorted(CASES)


@pytest.mark.parametrize("case", parameters())
def test_a_shipped_scenario(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One document on stdout; complete; its parts sum up; it can be loaded again; and its numbers are those of last time."""
    stem, _, name = case.partition("+")
    code = execute(["run", str(files.home("scenarios") / f"{stem}.yaml"), "--json", "--quiet", *(["--override", name] if name else [])])
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    assert document["memory"]["fits"] is (case not in DOES_NOT_FIT)
    assert code == (3 if case in DOES_NOT_FIT else 0)
    complete(document)
    sums_up(document)
    if case in TWICE:
        gives_itself(document)
    path = GOLDEN / f"{case}.json"
    text = json.dumps(reduced(document), indent=1, ensure_ascii=False) + "\n"
    if WRITE:
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "if this change of numbers is meant, write the golden files anew (see above)"


def complete(document: dict[str, Any]) -> None:
    """Every key of the contract is there."""
    assert document["parsim"] == 1
    for path, keys in KEYS.items():
        for node in nodes(document, path.split(".") if path else []):
            assert keys <= set(node), f"missing in {path or 'the report'}: {keys - set(node)}"


def sums_up(document: dict[str, Any]) -> None:
    """Times sum up to the step, memory to the peak, ranks to the job; ratios are ratios."""
    step = document["step_time_s"]
    assert step > 0
    for name in ("breakdown_s", "critical_path_s"):
        assert math.fsum(document[name].values()) == pytest.approx(step, rel=1e-9)
        assert min(document[name].values()) >= 0
    assert document["breakdown_s"]["other"] == 0 or document["warnings"]
    assert document["critical_path_s"]["bubble"] == 0
    memory, ranks = document["memory"], document["ranks"]
    for device in memory["devices"]:
        assert sum(device["at_peak"].values()) == device["peak_bytes"] == device["device_used_bytes"]
        assert device["allocated_bytes"] <= device["reserved_bytes"] <= device["device_used_bytes"]
    assert memory["peak_bytes"] == memory["peak_device_used_bytes"] == max(device["peak_bytes"] for device in memory["devices"])
    assert memory["headroom_bytes"] == memory["capacity_bytes"] - memory["reserve_bytes"] - memory["peak_bytes"]
    assert sum(device["count"] for device in memory["devices"]) == ranks["total"]
    assert math.prod(ranks[axis] for axis in ("tensor", "context", "data", "pipeline")) == ranks["total"]
    for row in document["collectives"]:
        assert 0 <= row["exposed_s"] <= row["busy_s"] * (1 + 1e-12)
        assert row["wait_s"] >= 0
    for row in document["links"]:
        assert 0 <= row["utilisation"] <= 1 + 1e-9
    for ratio in ("mfu", "hfu", "bubble_fraction"):
        assert document[ratio] is None or 0 <= document[ratio] < 1
    assert document["mfu"] is None or document["mfu"] <= document["hfu"]


def gives_itself(document: dict[str, Any]) -> None:
    """Loading the report's scenario and simulating it gives the same report."""
    again = json.loads(json.dumps(simulate(document["scenario"]).document()))
    for part, key in (("simulation", "wall_s"), ("provenance", "command")):
        again[part][key] = document[part][key]
    assert again == document


@pytest.mark.parametrize("case", CASES)
def test_the_scenario_in_a_report_is_the_scenario(case: str) -> None:
    stem, _, name = case.partition("+")
    scenario = load(files.home("scenarios") / f"{stem}.yaml", named=[name] if name else [])
    assert load(scenario.document()).hash() == scenario.hash()


@pytest.mark.parametrize("stem", STEMS)
def test_a_shipped_scenario_is_short_and_says_what_to_look_at(stem: str) -> None:
    lines = (files.home("scenarios") / f"{stem}.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# yaml-language-server: $schema=../parsim.schema.json"
    assert lines[1].startswith("# ")
    assert len(lines) <= 40
    assert any(line.startswith("name: ") for line in lines)

"""What holds for every job, whatever it is: identities of one report, and equality of two ways to get it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from parsim.errors import PlanError
from parsim.report import Report
from parsim.run import execute, simulate, step_of
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.study.search.bounds import Bounder

Document = Mapping[str, Any]
SAME = 1e-9
"""relative difference of two floats that are the same figure"""
SIGNED = ("headroom_bytes", "step_error", "memory_error")
STATES = ("parameters", "gradients", "optimizer")


def near(one: float, other: float, scale: float = 0.0) -> bool:
    """Whether two figures are one; `scale`: what they are small beside."""
    return math.isclose(one, other, rel_tol=SAME, abs_tol=max(SAME * abs(scale), 1e-18))


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two documents differ: floats by more than 1e-9, anything else at all."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        for key in one:
            yield from differences(one[key], other[key], f"{path}.{key}" if path else key)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif isinstance(one, float) and isinstance(other, (int, float)):
        if not math.isclose(one, other, rel_tol=SAME, abs_tol=1e-12):
            yield f"{path}: {one!r} and {other!r}"
    elif one != other:
        yield f"{path}: {str(one)[:200]} and {str(other)[:200]}"


def numbers(tree: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a document with its path."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from numbers(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from numbers(value, f"{path}[{index}]")
    elif isinstance(tree, (int, float)) and not isinstance(tree, bool):
        yield path, tree


def members(ranges: str) -> list[int]:
    """``members("0-2,8") == [0, 1, 2, 8]``."""
    ends = [part.split("-") for part in ranges.split(",")]
    return [rank for end in ends for rank in range(int(end[0]), int(end[-1]) + 1)]


def finite(found: Document) -> Iterator[str]:
    """Every number is finite, and none is negative but the headroom."""
    for path, number in numbers({key: block for key, block in found.items() if key != "scenario"}):
        if not math.isfinite(number) or (number < 0 and path.rpartition(".")[2] not in SIGNED):
            yield f"{path} is {number!r}"


def time(found: Document) -> Iterator[str]:
    """Breakdown and critical path cover the step; rates are amounts over the step."""
    step = found["step_time_s"]
    if step <= 0:
        yield f"step_time_s is {step!r}"
        return
    for key in ("breakdown_s", "critical_path_s"):
        if not near(math.fsum(found[key].values()), step):
            yield f"{key} sums to {math.fsum(found[key].values())!r}, step_time_s is {step!r}"
    if found["critical_path_s"]["bubble"]:
        yield "critical_path_s.bubble is not 0"
    if found["breakdown_s"]["other"] and not any("other" in warning["message"] for warning in found["warnings"]):
        yield "breakdown_s.other without a warning"
    if found["period_s"] is None and not near(found["makespan_s"], step):
        yield f"makespan_s {found['makespan_s']!r} is not the step {step!r}"
    if found["bubble_fraction"] is not None and found["bubble_fraction"] > 1:
        yield f"bubble_fraction is {found['bubble_fraction']!r}"
    ranks, model = found["ranks"], found["model"]
    if (tokens := found["tokens_per_s"]) is not None and not near(found["tokens_per_s_per_gpu"] * ranks["total"], tokens):
        yield "tokens_per_s_per_gpu x ranks is not tokens_per_s"
    if not near(found["model_tflops_per_gpu"] * 1e12 * ranks["total"] * step, model["flop_per_step"]):
        yield "model_tflops_per_gpu x ranks x step is not flop_per_step"
    for model_key, hardware_key in (("mfu", "hfu"), ("model_tflops_per_gpu", "hardware_tflops_per_gpu")):
        if found[model_key] > found[hardware_key] * (1 + SAME):
            yield f"{model_key} {found[model_key]!r} is above {hardware_key} {found[hardware_key]!r}"
    if found["hfu"] > 1:
        yield f"hfu is {found['hfu']!r}"
    if ranks["tensor"] * ranks["context"] * ranks["data"] * ranks["pipeline"] != ranks["total"]:
        yield f"ranks do not multiply: {ranks}"
    if ranks["expert"] * ranks["expert_tensor"] * ranks["expert_data"] not in (1, ranks["total"] // ranks["pipeline"]):
        yield f"the grid of experts does not fill a stage: {ranks}"
    for stage in found["schedule"]["stage_time_s"]:
        if stage["forward"] > step * (1 + SAME):
            yield f"a forward of {stage['forward']!r} s in a step of {step!r} s"


def estimate(found: Document) -> Iterator[str]:
    """The estimate lies inside its own band."""
    block = found["estimate"]
    for key, band in (("step_time_s", block["step_time_band_s"]), ("peak_bytes", block["peak_band_bytes"])):
        if band is not None and not band[0] <= block[key] <= band[1]:
            yield f"estimate.{key}: {block[key]!r} is outside {band}"
    if block["of"] == "simulation" and block["step_time_s"] != found["step_time_s"]:
        yield f"estimate.step_time_s: {block['step_time_s']!r} is of the simulation, which took {found['step_time_s']!r}"


def memory(found: Document) -> Iterator[str]:
    """A peak is made of its parts, holds the model states, and belongs to one class of ranks each."""
    block = found["memory"]
    devices = block["devices"]
    for device in devices:
        where = f"memory of rank {device['rank']}"
        if sum(device["at_peak"].values()) != device["peak_bytes"]:
            yield f"{where}: at_peak sums to {sum(device['at_peak'].values())}, the peak is {device['peak_bytes']}"
        states = sum(device["resident_bytes"].get(key, 0) for key in STATES)
        if device["peak_bytes"] < states or device["allocated_bytes"] < states:
            yield f"{where}: {states} B of model states, peak {device['peak_bytes']} ({device['allocated_bytes']} allocated)"
        if not device["allocated_bytes"] <= device["reserved_bytes"] <= device["device_used_bytes"] == device["peak_bytes"]:
            yield f"{where}: allocated, reserved and used do not rise"
        outside = device["at_peak"]["context"] + device["at_peak"]["communicators"]
        if device["device_used_bytes"] != device["reserved_bytes"] + outside:
            yield f"{where}: {device['device_used_bytes']} used, {device['reserved_bytes']} reserved, {outside} outside the allocator"
        if device["rank"] not in members(device["ranks"]) or device["count"] != len(members(device["ranks"])):
            yield f"{where}: {device['ranks']} are not {device['count']} ranks"
        late = device["peak_time_s"] is not None and device["peak_time_s"] > found["step_time_s"] * (1 + SAME)
        if late and found["period_s"] is None:  # without a flush more than a step is simulated
            yield f"{where}: peaks at {device['peak_time_s']!r} s, after the end"
    everyone = Counter(rank for device in devices for rank in members(device["ranks"]))
    if everyone != Counter(range(found["ranks"]["total"])):
        yield f"ranks of devices: {[device['ranks'] for device in devices]}"
    for key in ("allocated", "reserved", "device_used"):
        if block[f"peak_{key}_bytes"] != max(device[f"{key}_bytes"] for device in devices):
            yield f"memory.peak_{key}_bytes is not the largest of the devices"
    if block["headroom_bytes"] != block["capacity_bytes"] - block["reserve_bytes"] - block["peak_bytes"]:
        yield f"headroom {block['headroom_bytes']} is not capacity - reserve - peak"
    lacks = (
        bool(block["host"]) and block["host"].get("capacity_bytes") is not None and block["host_bytes"] > block["host"]["capacity_bytes"]
    )
    if block["fits"] != (block["headroom_bytes"] >= 0 and not lacks):
        yield f"fits is {block['fits']}, headroom {block['headroom_bytes']}"


def communication(found: Document) -> Iterator[str]:
    """Rows of collectives and links agree with themselves."""
    step = found["step_time_s"]
    for row in found["collectives"]:
        where = f"{row['kind']} of {row['bytes']} B on {row['axis']}"
        if row["exposed_s"] > row["busy_s"] * (1 + SAME) + 1e-15:
            yield f"{where}: exposed {row['exposed_s']!r}, busy {row['busy_s']!r}"
        if row["count"] <= 0 or row["group_size"] < 1:
            yield f"{where}: {row['count']} times among {row['group_size']}"
        if row["busy_s"] > 0 and row["algbw_Bps"] is not None and not near(row["algbw_Bps"] * row["busy_s"], row["bytes"] * row["count"]):
            yield f"{where}: algbw x busy is not bytes x count"
    for row in found["links"]:
        if row["utilisation"] > 1 + SAME or row["saturated_s"] > step * (1 + SAME):
            yield f"{row['link']}: utilisation {row['utilisation']!r}, saturated {row['saturated_s']!r} of {step!r} s"
        if row["count"] < 1 or not math.isclose(row["utilisation"] * row["capacity_Bps"] * step, row["bytes"], rel_tol=SAME, abs_tol=1):
            yield f"{row['link']}: utilisation x capacity x step is not bytes"
    classes = [(row["axis"], row["exposed_s"]) for row in found["collectives"]]
    for axis in ("tensor", "context", "expert", "data"):
        shown = found["breakdown_s"][f"{axis}_comm"]
        exposed = math.fsum(seconds for name, seconds in classes if name == axis)
        if shown > exposed + SAME * step and axis != "data":
            yield f"breakdown_s.{axis}_comm {shown!r} is more than its collectives expose, {exposed!r}"


LAWS = (finite, time, estimate, memory, communication)


def reproducible(found: Document) -> str:
    """The document as text, without the wall time of its simulation."""
    return json.dumps({**found, "simulation": {**found["simulation"], "wall_s": None}}, allow_nan=False)


def texts(report: Report) -> dict[str, str]:
    """The sentences of a report."""
    return {"verdict": report.verdict, "limiter": report.limiter}


def broken(report: Report) -> list[str]:
    """The laws of one report that do not hold."""
    found = report.document()
    return [f"{law.__name__}: {text}" for law in LAWS for text in law(found)]


def periods(scenario: Any) -> Iterator[str]:
    """A step of many more micro-batches takes the same, answered from a short one or simulated to its end."""
    built = build(load(scenario))
    stages = built.parallelism.pipeline.size
    count = (8 + -(-8 // stages)) * stages + built.training.micro_batches % stages  # some schedules take whole groups of stages
    longer = replace(built, training=replace(built.training, micro_batches=count))
    step, whole = step_of(longer), execute(longer, unfolded=not built.report.fold)
    if step.method == "periods" and not near(step.makespan, whole.makespan):
        yield f"{step.makespan!r} s from {step.micro_batches_simulated} micro-batches, {whole.makespan!r} s from all"


def bounds(scenario: Any) -> Iterator[str]:
    """What a search knows of a job before it is simulated is never more than what the simulation finds."""
    built = build(load(scenario))
    bounder = Bounder()
    try:
        cheap = bounder.bounds(built)
    except PlanError:  # searches refuse it
        return
    step = step_of(built)
    for name, time in (("cheap", cheap.step_time), ("tight", bounder.tight(built)), ("chained", bounder.chained(built))):
        if time > step.step_time * (1 + SAME):
            yield f"the {name} bound of the step is {time!r} s, the step {step.step_time!r} s"
    if cheap.peak_memory > (peak := max(step.peaks.values())):
        yield f"the bound of memory is {cheap.peak_memory} B, the peak {peak} B"


def unequal(report: Report, scenario: Any, *, reload: bool = True) -> list[str]:
    """Where the unfolded run, and the run of the resolved scenario, differ from `report`."""
    found = {key: block for key, block in report.document().items() if key != "simulation"} | texts(report)
    problems = []
    others = [("unfolded", simulate(scenario, unfolded=True))]
    if reload:
        others.append(("reloaded", simulate(report.document()["scenario"])))
    for name, other in others:
        whole = {key: block for key, block in other.document().items() if key != "simulation"} | texts(other)
        if name == "reloaded":  # what is written there is no assumption, and has another place
            assumed = ("assumptions", "warnings")
            found, whole = ({key: block for key, block in tree.items() if key not in assumed} for tree in (found, whole))
        problems += [f"{name}: {text}" for text in list(differences(found, whole))[:5]]
    return problems + [f"periods: {text}" for text in periods(scenario)]

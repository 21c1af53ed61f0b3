"""The answer in one line: does it fit, how fast is it, what limits it, and what would help most."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from parsim.report.critical_path import LAUNCH, CriticalPath
from parsim.report.estimate import Estimate
from parsim.report.measured import DeviceMemory, Measured, RankClass, compress_ranges
from parsim.report.quantities import gib, percent, seconds
from parsim.report.timeline import COMMUNICATION, KEYS, Timeline
from parsim.report.variability import RunStatistics
from parsim.report.variability_text import step_words
from parsim.units import snapped

WORDS = {
    "memory": "memory capacity",
    "compute": "compute",
    "memory_bandwidth": "memory bandwidth",
    "recompute": "recomputation",
    "tensor_comm": "tensor-parallel communication",
    "data_comm": "data-parallel communication",
    "pipeline_comm": "pipeline communication",
    "context_comm": "context-parallel communication",
    "expert_comm": "expert-parallel communication",
    "optimizer": "the optimizer step",
    "offload": "offload copies",
    "launch": LAUNCH,
    "bubble": "bubble",
    "other": "other work",
}

_ADVICE = {
    "recompute": "recompute less (selective) where memory allows",
    "tensor_comm": "a smaller tensor size, faster links inside the group, or overlap",
    "data_comm": "more micro-batches per step, overlap, or faster links between the replicas",
    "pipeline_comm": "overlapped sends, fewer stages, or faster links between the stages",
    "context_comm": "a smaller context size or another context method",
    "expert_comm": "groups of experts inside a node, a smaller expert tensor size, or faster links inside the groups",
    "optimizer": "a fused optimizer, or sharded optimizer states",
    "offload": "offload less, or a faster host link",
    "launch": "larger micro-batches, fusion, or CUDA graphs",
    "other": "see the warnings",
}

_MEMORY_ADVICE = {
    "activations": "recompute, a smaller micro-batch, or tensor/sequence parallelism",
    "optimizer": "shard the optimizer states over data-parallel ranks (zero1 and up)",
    "gradients": "shard the gradients (zero2 and up), or more tensor or pipeline ranks",
    "parameters": "shard the parameters (zero3, fsdp), or more tensor or pipeline ranks",
    "temporaries": "a smaller micro-batch, fused kernels, or a chunked loss",
    "buffers": "smaller communication buckets",
    "workspace": "a smaller matmul workspace",
    "fragmentation": "the expandable-segments allocator",
}

_SHARDED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}
"""ZeRO stage from which a category is sharded"""

_MEMORY_WORDS = {"optimizer": "optimizer states", "workspace": "workspaces", "context": "driver contexts", "fragmentation": "fragments"}

_NOTABLE = 0.01
"""Shares of the step below this are not worth a lever."""


@dataclass(frozen=True)
class Answers:
    """What the verdict is made of; all seconds per step."""

    step_time: float
    bubble_fraction: float | None
    exposed_communication: float
    """part of the step that the breakdown rank spends in nothing but communication"""
    critical: Mapping[str, float]
    worst: DeviceMemory | None
    """the device class with the least headroom"""
    headroom: int
    """of that class [B]; negative: does not fit"""
    capacity: int
    """of that class, reserve subtracted [B]"""
    heaviest: tuple[int, float] = (0, 1.0)
    """the rank that computes most, and how many times the mean it computes"""
    host_lacks: int = 0
    """bytes by which what is offloaded exceeds a node's host memory [B]"""
    estimate: Estimate | None = None
    """None: the step is as simulated"""
    variability: RunStatistics | None = None
    """None: the step is simulated once"""


def limiter_kind(measured: Measured, answers: Answers) -> str:
    """Memory if the step does not fit, else the largest part of the critical path, bubble included.

    The critical path has no bubble: filling and draining a pipeline is somebody's compute. So the time in which the
    average rank waits is taken from compute and called bubble before the largest is chosen.
    """
    if answers.headroom < 0 or answers.host_lacks:
        return "memory"
    parts = limiting_parts(answers)
    kind = max(parts, key=lambda key: snapped(parts[key]))
    if kind == "compute" and (measured.model.memory_bound_fraction or 0.0) > 0.5:
        return "memory_bandwidth"
    return kind


def limiting_parts(answers: Answers) -> dict[str, float]:
    """Seconds of the step by what they are spent on, for `limiter_kind`."""
    parts = {key: answers.critical[key] for key in KEYS if key not in ("compute", "recompute", "other", "bubble")}
    work = answers.critical["compute"] + answers.critical["recompute"]
    idle = min(work, (answers.bubble_fraction or 0.0) * answers.step_time)
    return {"compute": work - idle, **parts, "bubble": idle}


def limiter(measured: Measured, timeline: Timeline, path: CriticalPath, kind: str, answers: Answers) -> str:
    """One sentence: what limits the step, how much of it, and where."""
    if kind == "memory" and answers.headroom >= 0:
        return f"memory: {_host_words(measured)}"
    if kind == "memory" and answers.worst is not None:
        category, volume = largest_category(answers.worst)
        verb = "needs" if rank_class(measured, answers.worst.rank).count == 1 else "need"
        return (
            f"memory: {_where(measured, answers.worst.rank)} {verb} {gib(answers.worst.device_used_bytes)} GiB"
            f" of {gib(answers.capacity)} GiB; {category}, {gib(volume)} GiB, are the largest part"
        )
    if kind == "bubble":
        share = percent(answers.bubble_fraction)
        uneven = f"; {_unevenness(measured, answers)}" if _is_uneven(answers) else ""
        return f"bubble: the average rank waits {share} of the step ({seconds(limiting_parts(answers)['bubble'])}){uneven}"
    keys = ("compute", "recompute") if kind in ("compute", "memory_bandwidth") else (kind,)
    spent = math.fsum(answers.critical[key] for key in keys)
    share = percent(spent / answers.step_time) if answers.step_time > 0 else "–"
    place, name = _heaviest(measured, timeline, path, keys)
    reason = "; more than half of it waits for HBM" if kind == "memory_bandwidth" else ""
    return f"{WORDS[kind]}: {share} of the critical path ({seconds(spent)} of {seconds(answers.step_time)}){place}{name}{reason}"


def _host_words(measured: Measured) -> str:
    """What a node's host memory would have to hold."""
    host = measured.memory.host
    if host is None or host.capacity_bytes is None:
        return ""
    return f"node {host.node} needs {gib(host.bytes)} GiB of host memory for what is offloaded, and has {gib(host.capacity_bytes)} GiB"


def _stage(measured: Measured) -> int:
    """ZeRO stage of the run's strategy; 0 for plain replicas."""
    parallel = measured.scenario.get("parallel", {})
    strategy = str(parallel.get("data", {}).get("strategy", "")) if isinstance(parallel, dict) else ""
    return {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}.get(strategy, 0)


def lever(measured: Measured, answers: Answers) -> str:
    """What would help most, with the most it can bring: the largest part of the step that is not compute."""
    if answers.headroom < 0 and answers.worst is not None:
        category, volume = _largest(answers.worst)
        advice = _MEMORY_ADVICE.get(category, "smaller reserves, or larger devices")
        if category in _SHARDED_FROM and _stage(measured) >= _SHARDED_FROM[category]:
            advice = "sharded already: more GPUs, a smaller optimizer (8-bit, Adafactor), or GPUs with more memory"
        return f"{_MEMORY_WORDS.get(category, category)}, {gib(volume)} GiB of the peak: {advice}"
    if answers.host_lacks:
        return f"host memory, {gib(answers.host_lacks)} GiB too little: offload less or to drives, more nodes, or more memory in each"
    if (loss := largest_loss(answers)) is None:
        return "none but compute itself: faster GPUs, more of them, or fewer FLOP"
    kind, spent = loss
    advice = _bubble_advice(measured, answers) if kind == "bubble" else _ADVICE[kind]
    if kind == "optimizer" and measured.memory.host is not None:
        advice = "the CPU steps: more sockets and ranks to share it, faster host memory, or the optimizer on the device"
    share = percent(spent / answers.step_time)
    return f"{WORDS[kind]}, at most {seconds(spent)} ({share}): {advice}"


def largest_loss(answers: Answers) -> tuple[str, float] | None:
    """The largest part of the step that is not compute: (class of time, seconds); None if none reaches 1 % of the step."""
    parts = {key: answers.critical[key] for key in KEYS if key not in ("compute", "bubble")}
    parts["bubble"] = (answers.bubble_fraction or 0.0) * answers.step_time
    kind = max(parts, key=lambda key: snapped(parts[key]))
    if answers.step_time <= 0 or parts[kind] < _NOTABLE * answers.step_time:
        return None
    return kind, parts[kind]


def verdict(measured: Measured, answers: Answers) -> str:
    """``fits: 61.3 of 79.3 GiB (65.8 GB); step 1.42 s; 18 % bubble, 9 % exposed communication; biggest lever: …``."""
    parts: list[str] = []
    if answers.worst is not None:
        used = answers.worst.device_used_bytes
        room = f"{gib(used)} of {gib(answers.capacity)} GiB ({used / 1e9:,.1f} GB)"
        if answers.host_lacks:
            parts.append(f"does not fit: {_host_words(measured)}")
            parts.append(f"devices: {room}")
        elif answers.headroom >= 0:
            parts.append(f"fits: {room}{_tight(measured, answers)}")
        else:
            where = _where(measured, answers.worst.rank)
            parts.append(f"does not fit: {room}, {gib(-answers.headroom)} GiB too much on {where}")
    parts.append(f"step {step_text(answers.step_time, answers.estimate, answers.variability)}")
    parts.append(losses(measured, answers))
    return "; ".join(parts)


def losses(measured: Measured, answers: Answers) -> str:
    """``18 % bubble, 9 % exposed communication; biggest lever: …``."""
    share = answers.exposed_communication / answers.step_time if answers.step_time > 0 else 0.0
    lost = f"{percent(answers.bubble_fraction)} bubble, {percent(share)} exposed communication"
    return f"{lost}; biggest lever: {lever(measured, answers)}"


def step_text(simulated: float, estimate: Estimate | None, varied: RunStatistics | None = None) -> str:
    """``112 ms (80 % range: 85.7 ms to 165 ms; simulated 84.5 ms)``; without a band the simulated time alone, or what its runs say."""
    if varied is not None:
        return step_words(varied, simulated)
    if estimate is None or estimate.step_time_band_s is None:
        return seconds(simulated)
    low, high = estimate.step_time_band_s
    return f"{seconds(estimate.step_time_s)} (80 % range: {seconds(low)} to {seconds(high)}; simulated {seconds(simulated)})"


def _tight(measured: Measured, answers: Answers) -> str:
    """Whether the head-room is inside the error of the model."""
    band = None if answers.worst is None else measured.confidence.memory_band(answers.worst.device_used_bytes)
    if band is None or answers.worst is None or band[1] <= answers.capacity:
        return ""
    return f", {gib(answers.headroom)} GiB to spare, up to {gib(band[1])} GiB within the model's error: tight"


def recipe(measured: Measured) -> str:
    """One line: how many devices, how they are split, in how many micro-batches."""
    ranks, schedule = measured.ranks, measured.schedule
    axes = (
        ("tensor", ranks.tensor),
        ("context", ranks.context),
        ("data", ranks.data),
        ("pipeline", ranks.pipeline),
        ("expert", ranks.expert),
        ("expert tensor", ranks.expert_tensor),
    )
    parts = [f"{ranks.total} GPU{'s' * (ranks.total != 1)} on {ranks.nodes} node{'s' * (ranks.nodes != 1)}"]
    if ranks.idle_gpus:
        parts.append(f"{ranks.idle_gpus} idle")
    parts += [f"{name} {size}" for name, size in axes if size > 1]
    parts.append(f"{ranks.micro_batches} micro-batch{'es' * (ranks.micro_batches != 1)}")
    if schedule.stages > 1:
        parts.append(f"schedule {schedule.name}")
    return " · ".join(parts)


def exposed_communication(row: Mapping[str, float]) -> float:
    """The communication keys of a breakdown, summed [s]."""
    return math.fsum(row[key] for key in COMMUNICATION)


def rank_class(measured: Measured, rank: int) -> RankClass:
    """The class that `rank` stands for."""
    for candidate in measured.classes:
        if candidate.rank == rank:
            return candidate
    return RankClass(rank, (rank,))


def _where(measured: Measured, rank: int) -> str:
    group = rank_class(measured, rank)
    name = f"{'rank' if group.count == 1 else 'ranks'} {shortened(group.ranks)}"
    return f"{name} (stage {group.stage})" if measured.schedule.stages > 1 and group.stage is not None else name


def shortened(ranges: str, most: int = 24) -> str:
    """Compressed ranges cut after `most` characters, with the cut shown."""
    return ranges if len(ranges) <= most else ranges[: most - 1].rsplit(",", 1)[0] + ",…"


def largest_category(device: DeviceMemory) -> tuple[str, int]:
    """What fills most of a device at its peak: (in words, bytes)."""
    category, volume = _largest(device)
    return _MEMORY_WORDS.get(category, category), volume


def _largest(device: DeviceMemory) -> tuple[str, int]:
    category = max(device.at_peak, key=lambda key: device.at_peak[key])
    return category, device.at_peak[category]


def _heaviest(measured: Measured, timeline: Timeline, path: CriticalPath, keys: tuple[str, ...]) -> tuple[str, str]:
    """Where on the critical path the time of `keys` is spent, and on which op most of it."""
    stage_of = {rank: group.stage for group in measured.classes for rank in group.members}
    by_stage: dict[int, float] = defaultdict(float)
    by_name: dict[str, float] = defaultdict(float)
    for kind, spent, _ in path.by_kind(timeline):
        if timeline.class_of(kind) in keys:
            op = timeline.columns.examples[kind]
            by_name[op.name] += spent
            stage = stage_of.get(op.lanes[0].rank) if op.lanes else None
            if stage is not None:
                by_stage[stage] += spent
    place = ""
    if measured.schedule.stages > 1 and by_stage:
        total, reached, chosen = math.fsum(by_stage.values()), 0.0, []
        for stage, spent in sorted(by_stage.items(), key=lambda item: (-snapped(item[1]), item[0])):
            chosen.append(stage)
            reached += spent
            if snapped(reached / total) >= 0.8:
                break
        place = f", {percent(reached / total)} of it on stage{'s' * (len(chosen) > 1)} {compress_ranges(chosen)}"
    if not by_name:
        return place, ""
    most = max(by_name.values())
    name = next(key for key, spent in by_name.items() if spent >= (1.0 - 1e-9) * most)  # equal ones differ by rounding
    return place, f"; longest: {_op_words(name)} ({seconds(by_name[name])})"


_PASSES = {"F": "forward", "B": "backward", "W": "weight gradients"}
_OP = re.compile(r"([FBW])(\d+) (.+)")


def _op_words(name: str) -> str:
    """An op of a pass in words: ``B19 head`` is ``backward of the output layer, micro-batch 19``."""
    found = _OP.fullmatch(name)
    if found is None:
        return name
    kind, micro_batch, module = found.groups()
    return f"{_PASSES[kind]} of {'the output layer' if module == 'head' else module}, micro-batch {micro_batch}"


def _is_uneven(answers: Answers) -> bool:
    """Whether at least half of the bubble is there because ranks compute unequal amounts: then no schedule removes it."""
    return snapped(1.0 - 1.0 / answers.heaviest[1]) > max(0.02, snapped(0.5 * (answers.bubble_fraction or 0.0)))


def _unevenness(measured: Measured, answers: Answers) -> str:
    rank, times = answers.heaviest
    stage = rank_class(measured, rank).stage
    name = f"stage {stage}" if measured.schedule.stages > 1 and stage is not None else f"rank {rank}"
    return f"{name} computes {snapped(times):.2g} times the mean"


def _bubble_advice(measured: Measured, answers: Answers) -> str:
    stages, count = measured.ranks.pipeline, measured.ranks.micro_batches
    if _is_uneven(answers):
        return f"{_unevenness(measured, answers)}; split the work more evenly"
    if stages == 1:
        return "the ranks wait for one another"
    if measured.schedule.name in ("gpipe", "1f1b"):
        before, after = ((stages - 1) / (m + stages - 1) for m in (count, 2 * count))
        return f"micro-batches {count} → {2 * count} take the ideal bubble from {percent(before)} to {percent(after)}"
    return "more micro-batches per step, or a schedule with a smaller bubble"

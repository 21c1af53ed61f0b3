"""The answer in three short lines: does it fit, how fast is it, what limits it; and a badge that says how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parsim.report import verdict
from parsim.report.quantities import gib, number, percent, seconds

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics


@dataclass(frozen=True)
class Headline:
    """Three lines, the badge and what stands beside the badge."""

    memory: str
    """``Fits: 62.8 of 79.1 GiB usable on H100 SXM 80GB``"""
    speed: str
    """``Step 16.5 s (simulated 16.8 s), 63,552 tokens/s, MFU 46 %``"""
    limit: str
    """``Limited by compute; largest loss: bubble, 1.34 s (8.0 %)``"""
    badge: str
    """validated | interpolated | unvalidated"""
    band: str
    """``likely range (80 %): 14.5 s to 18.9 s``; without a band, why there is none"""

    @property
    def lines(self) -> tuple[str, str, str]:
        """The three lines in their order."""
        return self.memory, self.speed, self.limit


def headline(report: Metrics) -> Headline:
    """The headline of a run."""
    return Headline(_memory(report), _speed(report), _limit(report), report.measured.confidence.status, _band(report))


def _memory(report: Metrics) -> str:
    """Peak and usable memory of the rank with the least left, and which GPU that is."""
    worst, host = report.worst_device, report.measured.memory.host
    if report.host_lacks and host is not None:
        return f"Does not fit: node {host.node} lacks {gib(report.host_lacks)} GiB of host memory for what is offloaded"
    if worst is None:
        return "Memory is not modelled: the scenario gives the times of stages, not a model"
    capacity, used = report.capacity(worst), worst.device_used_bytes
    room = f"{gib(used)} of {gib(capacity)} GiB usable on {_gpu(report, worst.rank)}"
    if used > capacity:
        return f"Does not fit: {room}, {gib(used - capacity)} GiB too much"
    band = report.measured.confidence.memory_band(used)
    if band is not None and band[1] > capacity:
        return f"Fits, but tight: {room}; {gib(band[1])} GiB is within the model's error"
    return f"Fits: {room}"


def _gpu(report: Metrics, rank: int) -> str:
    """The GPU of a rank by its name; its rank, too, where the job has several kinds."""
    gpus = report.measured.profiled.gpus
    if rank not in gpus:
        return f"rank {rank}"
    several = len({gpu.name for gpu in gpus.values()}) > 1
    return f"{gpus[rank].name} (rank {rank})" if several else gpus[rank].name


def _speed(report: Metrics) -> str:
    """Step time, rate and MFU: estimates, with the simulated step beside them where it differs."""
    estimate, varied = report.estimate, report.measured.variability
    step = f"{'Step' if report.fits else 'If it fitted: step'} {seconds(estimate.step_time_s)}"
    if varied is not None:
        step += f" in the mean of {varied.runs:,} {varied.over} (undisturbed {seconds(report.step_time)})"
    elif estimate.of == "bands":
        step += f" (simulated {seconds(report.step_time)})"
    parts = [step]
    if estimate.tokens_per_s is not None:
        parts.append(f"{number(estimate.tokens_per_s)} tokens/s")
    elif estimate.step_time_s > 0:
        parts.append(f"{number(report.measured.model.samples_per_step / estimate.step_time_s)} samples/s")
    return ", ".join([*parts, *([f"MFU {percent(estimate.mfu)}"] if estimate.mfu else [])])


def _limit(report: Metrics) -> str:
    """The largest part of the critical path, and the largest part of the step that is not compute."""
    if report.host_lacks:
        return "Limited by host memory"
    if report.limiter_kind == "memory" and report.worst_device is not None:
        category, volume = verdict.largest_category(report.worst_device)
        return f"Limited by memory; largest part: {category}, {gib(volume)} GiB"
    limiter, lost = verdict.WORDS[report.limiter_kind], report.largest_loss
    if lost is None:
        return f"Limited by {limiter}; nothing else takes more than 1 % of the step"
    kind, spent = lost
    loss = f"{seconds(spent)} ({percent(spent / report.step_time)})"
    if kind == report.limiter_kind:
        return f"Limited by {limiter}: {loss}"
    return f"Limited by {limiter}; largest loss: {verdict.WORDS[kind]}, {loss}"


def _band(report: Metrics) -> str:
    """What the badge rests on, in short."""
    band = report.estimate.step_time_band_s
    if band is not None:
        like = (
            "likely range (80 %)" if report.measured.confidence.status != "unvalidated" else "rough range (80 %), no similar published run"
        )
        return f"{like}: {seconds(band[0])} to {seconds(band[1])}"
    if report.measured.variability is not None:
        return "no published run was predicted with this variability"
    return "no range: too few similar published runs"

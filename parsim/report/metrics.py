"""The numbers of one simulated step, each measured once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from parsim.errors import Finding
from parsim.report import verdict as words
from parsim.report.communication import CollectiveRow, LinkRow, collective_rows, link_rows
from parsim.report.critical_path import CriticalCause, CriticalPath, causes, critical_path
from parsim.report.economics import Bill, Busy, bill
from parsim.report.estimate import Estimate
from parsim.report.headline import Headline, headline
from parsim.report.measured import DeviceMemory, Measured
from parsim.report.repeats import Repeat, groups_of, repeats
from parsim.report.selection import FEW_LANES, choose
from parsim.report.timeline import (
    COMMUNICATION,
    Timeline,
    bottleneck_rank,
    breakdown,
    breakdown_rank,
    bubble_fraction,
    bubble_over_ideal,
)

if TYPE_CHECKING:
    from parsim.report.training_run import TrainingWeeks
    from parsim.report.workers import WorkerSlowdowns


class Metrics:
    """Metrics of one optimizer step. Numbers are SI (s, B, FLOP/s); `definitions` says what each one means."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.timeline = Timeline(measured.trace)
        window = measured.window
        self.begin, self.end = (0.0, self.timeline.makespan) if window is None else (window.begin, window.end)
        """the stretch of the trace that is measured [s]: the step, or the steady window of a flush-free schedule"""
        self.scale = 1.0 if window is None else window.scale(measured.ranks.micro_batches)
        """steps per measured stretch: counts and times of the stretch are multiplied by it"""

    @cached_property
    def shown(self) -> Metrics:
        """What pictures and traces show: the step with its faults, where there are some and it ends."""
        faults = self.measured.faults
        return self if faults is None or faults.measured is None else Metrics(faults.measured())

    @cached_property
    def workers(self) -> WorkerSlowdowns | None:
        """What each worker costs, where ranks are slow or differ from run to run."""
        return None if self.measured.workers is None else self.measured.workers()

    # time ------------------------------------------------------------------------------------------------------

    @property
    def step_time(self) -> float:
        """One optimizer step in steady state [s]."""
        window = self.measured.window
        return self.end if window is None else window.step_time(self.measured.ranks.micro_batches)

    @cached_property
    def breakdowns(self) -> dict[int, dict[str, float]]:
        """Rank -> class -> seconds per step, for one rank of each class."""
        stretch = self.end - self.begin
        factor = self.step_time / stretch if stretch > 0 else 1.0
        return {
            group.rank: {key: value * factor for key, value in breakdown(self.timeline, group.rank, self.begin, self.end).items()}
            for group in self.measured.classes
        }

    @cached_property
    def breakdown_rank(self) -> int:
        """The rank whose time the breakdown shows: its optimizer step ends last."""
        return breakdown_rank(self.timeline, self.breakdowns, self.begin, self.end)

    @cached_property
    def bottleneck_rank(self) -> int:
        """The rank that computes most."""
        return bottleneck_rank(self.breakdowns)

    @property
    def breakdown(self) -> dict[str, float]:
        """Where the step of `breakdown_rank` goes, class -> seconds; sums to `step_time`."""
        return self.breakdowns[self.breakdown_rank]

    @cached_property
    def bubble(self) -> float | None:
        """Mean over ranks of bubble / step time."""
        return bubble_fraction(self.breakdowns, {group.rank: group.count for group in self.measured.classes})

    @cached_property
    def bubble_over_ideal(self) -> float | None:
        """Bubble time over busy time."""
        return bubble_over_ideal(self.breakdowns, {group.rank: group.count for group in self.measured.classes})

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path of the measured stretch."""
        return critical_path(self.timeline, self.begin, self.end)

    @cached_property
    def critical(self) -> dict[str, float]:
        """Critical path, class -> seconds per step; sums to `step_time`."""
        stretch = self.end - self.begin
        factor = self.step_time / stretch if stretch > 0 else 1.0
        return {key: value * factor for key, value in self.path.seconds.items()}

    @property
    def causes(self) -> list[CriticalCause]:
        """The critical path by cause, the longest first; the seconds sum to `step_time`."""
        return causes(self.timeline, self.path, self.end - self.begin, self.step_time)

    @cached_property
    def collectives(self) -> list[CollectiveRow]:
        """The collectives of `breakdown_rank` per step."""
        end = None if self.measured.window is None else self.end
        return collective_rows(self.timeline, self.breakdown_rank, self.measured.costs, self.begin, end, self.scale)

    @cached_property
    def links(self) -> list[LinkRow]:
        """What the links carried per step, by class."""
        return link_rows(self.measured.trace.links, self.measured.links, self.step_time, 1.0 / self.measured.steps_simulated)

    # speed -----------------------------------------------------------------------------------------------------

    def per_second(self, amount: float | None) -> float | None:
        """An amount per step as one per second."""
        return amount / self.step_time if amount is not None and self.step_time > 0 else None

    def per_gpu(self, amount: float | None) -> float | None:
        """An amount per step as one per second and used GPU."""
        rate = self.per_second(amount)
        return None if rate is None else rate / self.measured.ranks.total

    def _utilisation(self, flop: float) -> float | None:
        rate, peak = self.per_gpu(flop), self.measured.model.peak_flop_per_gpu
        return rate / peak if rate is not None and peak > 0 else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of the whole job per second; None for models without sequences."""
        return self.per_second(self.measured.model.tokens_per_step)

    @property
    def samples_per_s(self) -> float | None:
        """Samples of the whole job per second."""
        return self.per_second(self.measured.model.samples_per_step)

    @property
    def mfu(self) -> float | None:
        """Model FLOP utilisation: model FLOP per second and GPU over the dense peak."""
        return self._utilisation(self.measured.model.flop_per_step)

    @property
    def hfu(self) -> float | None:
        """Hardware FLOP utilisation: the same with recomputed forward work."""
        return self._utilisation(self.measured.model.hardware_flop_per_step)

    @property
    def time_to_train(self) -> float | None:
        """Time of the whole training [s], by its steps or its tokens, failures included where known; None where nobody asked."""
        if self.bill is not None:
            return self.bill.time_to_train
        tokens, rate, steps = self.measured.training_tokens, self.tokens_per_s, self.measured.steps_to_train
        if steps is not None:
            return steps * self.step_time
        return None if tokens is None or not rate else tokens / rate

    @property
    def gpu_hours(self) -> float | None:
        """The same times the GPUs in use [h]; idle ones are in `bill.gpu_hours_billed`."""
        seconds = self.time_to_train
        return None if seconds is None else seconds * self.measured.ranks.total / 3600.0

    @cached_property
    def busy(self) -> Busy:
        """What a GPU does during a step on average [s]."""
        counts = {group.rank: group.count for group in self.measured.classes}

        def mean(keys: Iterable[str]) -> float:
            return math.fsum(counts[rank] * row[key] for rank, row in self.breakdowns.items() for key in keys) / sum(counts.values())

        return Busy(mean(("compute", "recompute", "optimizer", "other")), mean((*COMMUNICATION, "offload")))

    @cached_property
    def bill(self) -> Bill | None:
        """Steps, hours, energy and money of the training; None where nobody asked."""
        economics = self.measured.economics
        return None if economics is None else bill(economics, self.step_time, self.busy)

    @cached_property
    def training_run(self) -> TrainingWeeks | None:
        """The training with its failures, played through; None where no horizon asks for it."""
        weeks, bill = self.measured.weeks, self.bill
        if weeks is None or bill is None or bill.economics.failures is None:
            return None
        from parsim.report.training_run import played

        work = None if bill.economics.steps is None else bill.economics.steps * self.step_time
        measured = self.measured
        return played(
            weeks, bill.economics.failures, measured.ranks.total, work, count=measured.weeks_runs, play=measured.play,
            faults=measured.weeks_faults,
        )  # fmt: skip

    @cached_property
    def estimate(self) -> Estimate:
        """What published runs like this one make of the simulated step; the headline of every report."""
        sure, step, varied = self.measured.confidence, self.step_time, self.measured.variability
        r = sure.step_ratio * (1.0 if varied is None or step <= 0 else varied.expected / step)
        peak = self.peak_memory if self.measured.memory.devices else None
        economics, whole, cost = self.measured.economics, self.time_to_train, None
        if economics is not None:  # what follows from the step time follows from the estimated one
            bought = bill(economics, step * r, self.busy.times(r))
            whole, cost = bought.time_to_train, bought.cost_to_train
        elif whole is not None:
            whole *= r
        return Estimate(
            step_time_s=step * r,
            step_time_band_s=sure.step_band(step),
            tokens_per_s=None if self.tokens_per_s is None else self.tokens_per_s / r,
            mfu=None if self.mfu is None else self.mfu / r,
            time_to_train_s=whole,
            cost_to_train=cost,
            peak_bytes=None if peak is None else round(peak * sure.memory_ratio),
            peak_band_bytes=None if peak is None else sure.memory_band(peak),
            of="simulation" if sure.step is None else "bands",
        )

    # memory ----------------------------------------------------------------------------------------------------

    def capacity(self, device: DeviceMemory) -> int:
        """What a device class may use [B]."""
        return self.measured.memory.usable(device)

    @property
    def worst_device(self) -> DeviceMemory | None:
        """The device class with the least headroom."""
        return self.measured.memory.worst_device

    @property
    def headroom(self) -> int:
        """Bytes left on the fullest device; negative: it does not fit."""
        return self.measured.memory.headroom

    @property
    def fits(self) -> bool:
        """Whether every rank's peak is within its capacity less the reserve, and what is offloaded within the host's memory."""
        return self.headroom >= 0 and self.host_lacks == 0

    @property
    def host_lacks(self) -> int:
        """Bytes by which what is offloaded exceeds the memory of a node; 0 if it fits or nobody knows the node's memory."""
        host = self.measured.memory.host
        return 0 if host is None else host.lacks

    @property
    def peak_memory(self) -> int:
        """The highest device memory in use on any rank, as nvidia-smi would show it [B]."""
        return self.measured.memory.peak_bytes

    # words -----------------------------------------------------------------------------------------------------

    @cached_property
    def _answers(self) -> words.Answers:
        worst = self.worst_device
        memory = self.measured.memory
        return words.Answers(
            step_time=self.step_time,
            bubble_fraction=self.bubble,
            exposed_communication=words.exposed_communication(self.breakdown),
            critical=self.critical,
            worst=worst,
            headroom=self.headroom,
            capacity=memory.capacity_bytes - memory.reserve_bytes if worst is None else self.capacity(worst),
            heaviest=self._heaviest(),
            host_lacks=self.host_lacks,
            estimate=self.estimate,
            variability=self.measured.variability,
        )

    def _heaviest(self) -> tuple[int, float]:
        work = {rank: row["compute"] + row["recompute"] for rank, row in self.breakdowns.items()}
        counts = {group.rank: group.count for group in self.measured.classes}
        mean = math.fsum(counts[rank] * value for rank, value in work.items()) / sum(counts.values())
        return self.bottleneck_rank, max(1.0, work[self.bottleneck_rank] / mean) if mean > 0 else 1.0

    @property
    def limiter_kind(self) -> str:
        """One word: memory | compute | memory_bandwidth | …_comm | optimizer | offload | bubble | launch."""
        return words.limiter_kind(self.measured, self._answers)

    @property
    def limiter(self) -> str:
        """What limits the step, in one sentence."""
        return words.limiter(self.measured, self.timeline, self.path, self.limiter_kind, self._answers)

    @property
    def verdict(self) -> str:
        """The answer in one line."""
        return words.verdict(self.measured, self._answers)

    @cached_property
    def repeats(self) -> tuple[Repeat, ...]:
        """Stretches of the step in which the ranks that stand for the others do the same again and again."""
        facts = self.measured.schedule
        ranks = [rank for rank in choose(self, FEW_LANES) if rank in self.timeline.lanes]
        return repeats(self.timeline, ranks, self.begin, self.end, groups_of(facts.stages, facts.virtual_stages))

    @property
    def largest_loss(self) -> tuple[str, float] | None:
        """The largest part of the step that is not compute: (class of time, seconds); None if none reaches 1 % of the step."""
        return words.largest_loss(self._answers)

    @property
    def loss(self) -> str:
        """Shares of the step that are lost, and what would help most."""
        return words.losses(self.measured, self._answers)

    @cached_property
    def headline(self) -> Headline:
        """The answer in three short lines, with a badge that says how sure it is."""
        return headline(self)

    @cached_property
    def warnings(self) -> tuple[Finding, ...]:
        """What the user should know: the run's findings, and what the report itself noticed."""
        findings = list(self.measured.warnings)
        if self.timeline.unknown_kinds:
            kinds = ", ".join(self.timeline.unknown_kinds)
            findings.append(Finding(f"time of the op classes {kinds} is reported under 'other'", "report"))
        if self.measured.window is not None and not self.measured.window.exact:
            findings.append(Finding("the run did not repeat itself; the period is a mean over its middle", "report"))
        for device in self.measured.memory.devices:
            if (total := sum(device.at_peak.values())) != device.device_used_bytes:
                message = f"the composition at the peak of rank {device.rank} sums to {total} B, the peak is {device.device_used_bytes} B"
                findings.append(Finding(message, "memory"))
        return tuple(findings)

"""Recorded passes in, simulated steps out: the schedule and the engine against real steps, and what stragglers cost them.

The passes of each replica are given; the order of plain 1F1B and who waits for whom are parsim's, messages take no time. A step ends
with its last replica. Without stragglers every pass takes the mean over all workers, steps and micro-batches of its kind: the
definition of Lin et al. (arXiv 2505.05713, section 3.2; `analyzer/analysis_util.py` of github.com/ByteDance-Seed/StragglerAnalysis),
which takes communication into account, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import fsum
from statistics import fmean, pstdev
from typing import Any, Literal

from parsim.parallel.schedules import schedule
from parsim.parallel.schedules.slot import Slot, SlotKind
from parsim.program.unit_times import unit_program
from parsim.report.table import Column, Content, Table
from parsim.report.workers import WorkerSlowdowns
from parsim.simulation.engine import Engine, collector_paused
from parsim.simulation.no_interconnect import NoInterconnect
from parsim.validation.recorded_steps import RecordedJob, RecordedStep, Times
from parsim.validation.score import percentile, relative_error

QUANTILES = (0.05, 0.5, 0.95)


class GivenPasses:
    """A 1F1B pipeline whose passes are given, run again and again."""

    def __init__(self, stages: int, micro_batches: int) -> None:
        self._program = unit_program(schedule("1f1b", stages, micro_batches), 0.0, 0.0)
        self._passes = [
            (number, Slot.parse(spec.name)) for number, spec in enumerate(self._program.specs) if not spec.name.startswith("send")
        ]

    def seconds(self, forward: Times, backward: Times) -> float:
        """From the first pass to the end of the last one [s]; times by stage and micro-batch."""
        specs = self._program.specs
        for number, slot in self._passes:
            times = forward if slot.kind == SlotKind.FORWARD else backward
            specs[number] = specs[number]._replace(duration=times[slot.stage][slot.micro_batch])
        return Engine(self._program, NoInterconnect()).run().makespan


@dataclass(frozen=True, slots=True)
class PredictedJob:
    """The simulated steps of a recorded job."""

    job: RecordedJob
    spans: tuple[float, ...]
    """compute span of every step [s]"""
    without_stragglers: float
    """[s], of any step"""
    by_stage: tuple[float, ...]
    """mean step where only this stage is as recorded [s]"""
    by_replica: tuple[float, ...]
    by_worker: tuple[tuple[float, ...], ...]
    """by stage and replica, mean step where only this worker is as recorded [s]"""

    @property
    def errors(self) -> tuple[float, ...]:
        """Predicted over measured compute span of every step, less one."""
        return tuple(relative_error(span, step.compute_span) for span, step in zip(self.spans, self.job.steps, strict=True))

    @property
    def slowdown(self) -> float:
        """Mean step over that without stragglers."""
        return fmean(self.spans) / self.without_stragglers

    @property
    def workers(self) -> WorkerSlowdowns:
        """What each worker costs."""
        return WorkerSlowdowns(tuple(tuple(time / self.without_stragglers - 1.0 for time in row) for row in self.by_worker))

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        job, ideal = self.job, self.without_stragglers
        measured = [step.compute_span for step in job.steps]
        return {
            "job": job.name, "steps": len(job.steps), "stages": job.stages, "micro_batches": job.micro_batches, "replicas": job.replicas,
            "mean_error": fmean(self.errors), "sd_of_errors": pstdev(self.errors),
            "measured_s": {"mean": fmean(measured), **_quantiles(measured)},
            "predicted_s": {"mean": fmean(self.spans), **_quantiles(self.spans)},
            "slowdown": {"published": job.slowdown, "predicted": self.slowdown},
            "slowdown_by_stage": _pairs(job.slowdown_by_stage, self.by_stage, ideal),
            "slowdown_by_replica": _pairs(job.slowdown_by_replica, self.by_replica, ideal),
            "slowdown_by_worker": [[time / ideal for time in row] for row in self.by_worker],
            "rows": [
                {"step": step.number, "measured_s": step.compute_span, "predicted_s": span, "whole_step_s": step.whole}
                for step, span in zip(job.steps, self.spans, strict=True)
            ],
        }  # fmt: skip


def predicted(job: RecordedJob) -> PredictedJob:
    """All steps of a job, as recorded and without stragglers."""
    with collector_paused():
        pipeline = GivenPasses(job.stages, job.micro_batches)
        mean = tuple(_mean(kind) for kind in ([step.forward for step in job.steps], [step.backward for step in job.steps]))
        ideal = pipeline.seconds(*(((one,) * job.micro_batches,) * job.stages for one in mean))

        def spans(changed: Callable[[Times, float], Times]) -> list[list[float]]:
            """Span of every step and replica."""
            return [
                [pipeline.seconds(*(changed(times, one) for times, one in zip(both, mean, strict=True))) for both in _replicas(step)]
                for step in job.steps
            ]

        recorded = spans(lambda times, _: times)
        stages = [
            spans(lambda times, mean, s=s: _only(times, s, mean))  # type: ignore[misc] # s is bound here
            for s in range(job.stages)
        ]
    by_stage = [fmean(map(max, steps)) for steps in stages]
    by_worker = [tuple(fmean(max(one[r], ideal) for one in steps) for r in range(job.replicas)) for steps in stages]
    by_replica = [fmean(max(one[r], ideal) for one in recorded) for r in range(job.replicas)]
    return PredictedJob(job, tuple(map(max, recorded)), ideal, tuple(by_stage), tuple(by_replica), tuple(by_worker))


def _replicas(step: RecordedStep) -> Iterator[tuple[Times, Times]]:
    return zip(step.forward, step.backward, strict=True)


def _mean(steps: list[tuple[Times, ...]]) -> float:
    """Mean time of all passes of a kind [s]."""
    times = [time for step in steps for replica in step for stage in replica for time in stage]
    return fsum(times) / len(times)


def _only(times: Times, stage: int, mean: float) -> Times:
    """The times of one stage as recorded, all others at their mean."""
    return tuple(row if s == stage else (mean,) * len(row) for s, row in enumerate(times))


def _quantiles(values: tuple[float, ...] | list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{round(100 * share)}": percentile(ordered, share) for share in QUANTILES}


def _pairs(published: tuple[float, ...], seconds: tuple[float, ...], ideal: float) -> list[dict[str, float]]:
    return [{"published": one, "predicted": time / ideal} for one, time in zip(published, seconds, strict=True)]


def document(jobs: list[PredictedJob], source: str) -> dict[str, Any]:
    """The whole comparison as one JSON document."""
    return {"parsim": 1, "source": source, "jobs": [one.document() for one in jobs]}


def text(jobs: list[PredictedJob], source: str) -> str:
    """The whole comparison as text."""
    steps = sum(len(one.job.steps) for one in jobs)
    lines = [
        f"{steps} recorded steps of {len(jobs)} jobs: the times of all passes are given, steps are simulated.",
        "Error: predicted over measured time from the first pass to the last, less one, in percent: mean, standard deviation over steps.",
        "",
        _steps_table(jobs).text(),
        "",
        "Slowdown: step over that with every pass at the mean of its kind; one stage: only its passes as recorded, the rest at the mean.",
        "",
        _slowdown_table(jobs).text(),
        "",
        *(
            f"{one.job.name}: the worst worker alone is {one.workers.name(*worst)}, +{100 * one.workers.most:.3g} %"
            for one in jobs
            if (worst := one.workers.worst) is not None
        ),
        "",
        f"Source: {source}",
    ]
    return "\n".join(lines)


def picture(jobs: list[PredictedJob], kind: Literal["svg", "png"]) -> bytes:
    """A heat map of each job: how much longer a mean step is with one worker alone as recorded."""
    from parsim.report.plots.figure import save
    from parsim.report.plots.workers import workers_figures

    maps = [(f"{one.job.name}: {one.job.title}", one.workers) for one in jobs]
    return save(workers_figures(maps, "Stragglers in recorded steps: what each worker costs alone"), kind)


def _steps_table(jobs: list[PredictedJob]) -> Table:
    names = [f"p{round(100 * share)}" for share in QUANTILES]
    columns = [
        *(Column(name, align="left") for name in ("job", "what is special")),
        *(Column(name) for name in ("steps", "workers")),
        *(Column(name, write=_percent) for name in ("error", "sd")),
        Column("", align="left"),
        *(Column(f"{name} s", write=_time) for name in ("mean", *names)),
    ]
    rows: list[tuple[Content, ...]] = []
    for one in jobs:
        job, measured = one.job, [step.compute_span for step in one.job.steps]
        first = (job.name, job.title, len(job.steps), job.stages * job.replicas, fmean(one.errors), pstdev(one.errors))
        rows.append((*first, "measured", fmean(measured), *_quantiles(measured).values()))
        rows.append(("",) * 6 + ("simulated", fmean(one.spans), *_quantiles(one.spans).values()))
    return Table(columns, rows)


def _slowdown_table(jobs: list[PredictedJob]) -> Table:
    stages = max(one.job.stages for one in jobs)
    columns = [Column("job", align="left"), Column("", align="left"), Column("slowdown", write=_ratio)]
    columns += [Column(f"stage {s}", write=_ratio) for s in range(stages)] + [Column("worst replica", write=_ratio)]
    rows: list[tuple[Content, ...]] = []
    for one in jobs:
        job, ideal = one.job, one.without_stragglers
        empty: list[Content] = [""] * (stages - job.stages)
        rows.append((job.name, "published", job.slowdown, *job.slowdown_by_stage, *empty, max(job.slowdown_by_replica)))
        rows.append(("", "simulated", one.slowdown, *(time / ideal for time in one.by_stage), *empty, max(one.by_replica) / ideal))
    return Table(columns, rows)


def _percent(share: float) -> str:
    return f"{100 * share:+.3f}"


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"


def _ratio(value: float) -> str:
    return f"{value:.3f}"

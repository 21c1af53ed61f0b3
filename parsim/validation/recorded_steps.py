"""Recorded pipelines: how long every pass of every worker took in real steps, and how long the steps took: `validation/traces`."""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario.files import SIZE_LIMIT, read, read_text
from parsim.units import real, whole
from parsim.validation.published import CsvRows, folder, one_of, only_known, read_entries

Times = tuple[tuple[float, ...], ...]
"""seconds by stage and micro-batch"""
_KEYS = (
    "title", "stages", "micro_batches", "replicas", "gpus_per_worker", "slowdown", "slowdown_by_stage", "slowdown_by_replica",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step: what its passes took, and it."""

    number: int
    forward: tuple[Times, ...]
    """by replica"""
    backward: tuple[Times, ...]
    compute_span: float
    """from the first pass that begins to the last that ends, over all workers [s]"""
    whole: float
    """with what comes before and after: parameters gathered, gradients reduced, the optimizer [s]"""


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """Steps of one job, plain 1F1B, and how much shorter its publisher says they were without stragglers."""

    name: str
    title: str
    stages: int
    micro_batches: int
    replicas: int
    gpus_per_worker: int
    slowdown: float
    """step time over that with every pass at the mean of its kind"""
    slowdown_by_stage: tuple[float, ...]
    """as recorded on this stage only, at the mean elsewhere"""
    slowdown_by_replica: tuple[float, ...]
    steps: tuple[RecordedStep, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedJobs:
    """All jobs, and where they were published."""

    source: str
    jobs: tuple[RecordedJob, ...]


def recorded_jobs(directory: str | Path | None = None) -> RecordedJobs:
    """The jobs of `validation/traces`, or of a `directory` laid out alike.

    Raises:
        ScenarioError: with a finding for every row that cannot be used and every pass that is missing.
    """
    home = folder("traces", directory)
    about = read(home / "jobs.yaml")
    findings: list[Finding] = []
    jobs = read_entries(about, "jobs", _job, findings)
    measured = _measured(home / "steps.csv", findings)
    found = [
        replace(job, steps=_steps(home / f"{name.lower()}.csv.gz", job, measured.get(name, {}), findings)) for name, job in jobs.items()
    ]
    if findings:
        raise ScenarioError(findings)
    return RecordedJobs(str(about.tree.get("source", "")), tuple(found))


def _job(name: str, tree: Mapping[str, Any]) -> RecordedJob:
    only_known(tree, _KEYS)
    by_stage, by_replica = (tuple(map(float, tree[f"slowdown_by_{what}"])) for what in ("stage", "replica"))
    stages, micro_batches, replicas, gpus = (whole(str(tree[key])) for key in ("stages", "micro_batches", "replicas", "gpus_per_worker"))
    if min(stages, micro_batches, replicas, gpus) < 1:
        raise ValueError("stages, micro_batches, replicas and gpus_per_worker are at least 1")
    if (len(by_stage), len(by_replica)) != (stages, replicas):
        raise ValueError("one slowdown by stage and by replica each")
    return RecordedJob(name, str(tree["title"]), stages, micro_batches, replicas, gpus, float(tree["slowdown"]), by_stage, by_replica)


def _measured(path: Path, findings: list[Finding]) -> dict[str, dict[int, tuple[float, float]]]:
    """Job -> step -> its compute span and its whole time [s]."""
    steps: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    for _, (job, step, *times) in CsvRows(read_text(path), str(path), findings).made(_measured_step):
        steps[job][step] = (times[0], times[1])
    return steps


def _measured_step(cells: Mapping[str, str]) -> tuple[str, int, float, float]:
    return cells["job"], whole(cells["step"]), _seconds(cells["compute_span_s"]), _seconds(cells["whole_step_s"])


def _steps(path: Path, job: RecordedJob, measured: Mapping[int, tuple[float, float]], findings: list[Finding]) -> tuple[RecordedStep, ...]:
    """Every measured step with the times of its passes."""
    rows = CsvRows(_unpacked(path), str(path), findings).made(lambda cells: _passes(cells, job))
    times = dict(row for _, row in rows)
    keys = [(r, s) for r in range(job.replicas) for s in range(job.stages)]
    missing = [(n, r, s, kind) for n in measured for r, s in keys for kind in ("forward", "backward") if (n, r, s, kind) not in times]
    if missing or not measured:
        what = "step {}, replica {}, stage {}, {}".format(*missing[0]) if missing else "no step"
        findings.append(Finding(f"times are missing: {what}", f"jobs.{job.name}", file=str(path)))
        return ()

    def by_replica(number: int, kind: str) -> tuple[Times, ...]:
        return tuple(tuple(times[number, r, s, kind] for s in range(job.stages)) for r in range(job.replicas))

    return tuple(RecordedStep(n, by_replica(n, "forward"), by_replica(n, "backward"), *spans) for n, spans in measured.items())


def _passes(cells: Mapping[str, str], job: RecordedJob) -> tuple[tuple[int, int, int, str], tuple[float, ...]]:
    seconds = tuple(map(_seconds, cells["seconds of every micro-batch"].split()))
    if len(seconds) != job.micro_batches:
        raise ValueError(f"{len(seconds)} times, but job {job.name} has {job.micro_batches} micro-batches")
    return (whole(cells["step"]), whole(cells["replica"]), whole(cells["stage"]), one_of(cells, "pass", ("forward", "backward"))), seconds


def _seconds(text: str) -> float:
    if not isfinite(value := real(text)) or value < 0:
        raise ValueError(f"a time is finite and not negative, not {text!r}")
    return value


def _unpacked(path: Path) -> str:
    """The text of a gzip file. Raises `ScenarioError` where it is none."""
    try:
        with gzip.open(path) as packed:
            raw = packed.read(SIZE_LIMIT + 1)
        if len(raw) > SIZE_LIMIT:
            raise ScenarioError(Finding(f"is larger than {SIZE_LIMIT // 10**6} MB unpacked", file=str(path)))
        return raw.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ScenarioError(Finding(f"cannot be read: {error}", file=str(path))) from None

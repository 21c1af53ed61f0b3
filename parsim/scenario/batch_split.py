"""``parallel.data.batch_split``: how many samples each replica has."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding, PlanError
from parsim.kernel import on_kind
from parsim.parallel.groups import DATA, PIPELINE
from parsim.parallel.shares import BATCH_SPLIT, balanced_shares, share_findings
from parsim.scenario.batch import BatchSizes, samples_of
from parsim.scenario.software import Assumption
from parsim.scenario.training import TrainingSection

if TYPE_CHECKING:
    from parsim.scenario.built import Built


def uneven_batch(training: TrainingSection, data_size: int, wanted: Any, *, sequence: bool) -> BatchSizes:
    """The batch of replicas with `wanted` samples each, or with as many as ``balanced`` will give them.

    The number of micro-batches is that of the replica with most; balanced: of an even split, rounded up, until speeds are known.
    Raises `PlanError` with the arithmetic.
    """
    micro = training.micro_batch
    if micro is None:
        raise PlanError(
            Finding(
                "replicas have different numbers of micro-batches, so the micro-batch size must be given",
                "training.micro_batch",
                None,
                "add micro_batch: 1",
            )
        )
    if training.gradient_accumulation != "auto":
        text = "gradient_accumulation gives all replicas the same number of micro-batches, and batch_split gives each its own"
        count = training.gradient_accumulation
        raise PlanError(Finding(text, "training.gradient_accumulation", count, "leave it out, and write global_batch"))
    total, note, warnings = samples_of(training, micro, sequence=sequence)
    if wanted == "balanced":
        return _balanced(total, micro, data_size, note, warnings)
    samples = [int(value) for value in wanted]
    if len(samples) != data_size:
        text = f"{len(samples)} numbers of samples for {data_size} replicas"
        raise PlanError(Finding(text, BATCH_SPLIT, samples, f"write {data_size} numbers, one per replica"))
    if wrong := [value for value in samples if value < 1 or value % micro]:
        text = f"{wrong[0]} samples are {wrong[0]} / {micro} = {wrong[0] / micro:.4g} micro-batches; whole ones are needed, at least 1"
        raise PlanError(Finding(text, BATCH_SPLIT, samples, f"write multiples of micro_batch {micro}"))
    whole = sum(samples)
    if total is not None and total != whole:
        text = f"{' + '.join(map(str, samples[:8]))}{' + ...' if len(samples) > 8 else ''} = {whole} samples, but global_batch is {total}"
        raise PlanError(Finding(text, BATCH_SPLIT, samples, f"write global_batch {whole}, or leave it out"))
    shares = tuple(value // micro for value in samples)
    text = f"micro-batches of {micro} per replica: {min(shares)} to {max(shares)}, {whole} samples together"
    return BatchSizes(whole, micro, max(shares), note + text, warnings, shares=shares if len(set(shares)) > 1 else ())


def _balanced(total: int | None, micro: int, data_size: int, note: str, warnings: tuple[Finding, ...]) -> BatchSizes:
    if total is None:
        raise PlanError(Finding("a balanced batch divides global_batch", "training.global_batch", None, "add global_batch"))
    count, rest = divmod(total, micro)
    if rest or count < data_size:
        text = f"global_batch {total} / micro_batch {micro} = {total / micro:.4g} micro-batches for {data_size} replicas; a whole number of"
        legal = max(data_size, round(total / micro)) * micro
        raise PlanError(Finding(f"{text} at least {data_size} is needed", "training.global_batch", total, f"use {legal}"))
    text = f"{total} / {micro} = {count} micro-batches for {data_size} replicas, by their speed"
    return BatchSizes(total, micro, math.ceil(count / data_size), note + text, warnings)


def balanced(built: Built) -> Built:
    """`built` with a batch divided by the speeds of its replicas: micro-batches per second of compute, communication left out.

    Raises `PlanError` where an uneven batch is not possible.
    """
    speeds = replica_speeds(built)
    training = built.training
    count = training.global_batch // training.micro_batch
    shares = balanced_shares(speeds, count)
    split = replace(training, micro_batches=max(shares), shares=shares if len(set(shares)) > 1 else ())
    if findings := share_findings(built.model, split, built.parallelism):
        raise PlanError(findings)
    each = [samples * training.micro_batch for samples in shares]
    value = f"{min(each)} to {max(each)} samples per replica" if min(each) < max(each) else f"{each[0]} samples per replica"
    source = f"smallest max of samples / speed; the slowest replica has {min(speeds) / max(speeds):.4g} of the speed of the fastest"
    record = Assumption("batch_split", value, source, BATCH_SPLIT)
    return replace(built, training=split, assumptions=(*built.assumptions, record))


def replica_speeds(built: Built) -> list[float]:
    """Micro-batches per second of every replica: of its slowest rank, kernels only."""
    from parsim.program.stage_passes import StagePasses
    from parsim.scenario.built import clock_of, plan_of

    clock = clock_of(built)
    training = replace(built.training, micro_batches=built.parallelism.pipeline.size, shares=())  # as many as every schedule takes
    job = plan_of(replace(built, training=training), clock)
    known: dict[tuple[int, int], float] = {}
    slowest = [0.0] * job.mesh.size(DATA)
    for rank, replica in enumerate(job.mesh.coordinates(DATA)):
        key = (job.mesh.coordinate(rank, PIPELINE), job.role(rank).kind)
        if key not in known:
            passes = StagePasses(job, key[0], job.role(rank).central, on_kind(clock, key[1]))
            known[key] = math.fsum(value for stage in passes.chunks for value in passes.seconds(stage).values())
        slowest[replica] = max(slowest[replica], known[key] / job.slow.get(rank, 1.0))
    return [1.0 / seconds for seconds in slowest]

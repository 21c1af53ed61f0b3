"""What fails how often, what a checkpoint costs, and what happens then: from the scenario to numbers, and what was assumed for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import fsum, log
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from parsim import units
from parsim.errors import Finding
from parsim.parallel.kronecker import KRONECKER
from parsim.scenario.economics import EconomicsSection
from parsim.scenario.precision import stored_bytes
from parsim.scenario.reliability import FailureSection
from parsim.scenario.software import Assumption

if TYPE_CHECKING:
    from parsim.hardware.fabric.cluster import Cluster
    from parsim.model.model import Model
    from parsim.parallel.settings import DataParallel
    from parsim.parallel.training import Training
    from parsim.simulation.interrupted import FailureCause, InterruptedTraining, Policy

RESTARTS = {"restart": 300.0, "elastic": 300.0, "hot_spare": 120.0, "replica": 180.0}
"""policy -> from when a failure is noticed until training goes on [s]"""
_RESTART_SOURCES = {
    "hot_spare": "assumption: processes on standby machines are already running; connect, load, warm up",
    "replica": "3 min instead of 10 on about 100,000 GPUs (Meta, arXiv 2602.00277)",
}
_RESTART_SOURCE = "assumption: detect, replace, load, warm up"
COPY = 20e9
"""rate at which a GPU's share is copied to pinned host memory [B/s]"""
_COPY_SOURCE = "assumption: what one PCIe 4.0 x16 link carries to pinned host memory, of 31.5 GB/s"
RARE = 100
_HOPELESS = log(RARE)
"""mean times between failures that pass without one once in so many times"""
_SCALE = 1e12
"""bytes of the checkpoint for which the way to storage is simulated: times are in proportion [B]"""
MOST_PIECES = 1_000_000
"""of a timeline"""
_WHOLE_COPIES = ("none", "ddp", "torch-data-parallel", "parameter-server", "hsdp")
"""strategies in which every replica has all states"""


class JobFacts(NamedTuple):
    """What failures need to know of a job."""

    section: EconomicsSection
    cluster: Cluster
    placed: tuple[int, ...]
    """GPU of each rank"""
    model: Model
    training: Training
    data: DataParallel
    context: int
    """context-parallel size"""
    seed: int

    @property
    def gpus(self) -> int:
        """Ranks."""
        return len(self.placed)

    @property
    def replicas(self) -> int:
        """Copies of all states that can train without each other; of a fully sharded model the data-parallel ranks."""
        if self.data.strategy != "hsdp" or not self.data.shard_size:
            return self.data.size
        copies = self.data.size * self.context // self.data.shard_size
        return max(1, min(copies, self.data.size))  # context ranks, which have one sample, stop together


@dataclass
class Reliability:
    """Facts for `parsim.report.goodput.Failures` and for `parsim.simulation.training.Training`; None where nobody asked."""

    failures: dict[str, Any] | None = None
    training: InterruptedTraining | None = None
    reason: str = ""
    """why there is no goodput"""
    assumptions: list[Assumption] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def reliability(job: JobFacts) -> Reliability:
    """What fails, and what that leaves of the time."""
    section, found = job.section, Reliability()
    found.findings += _contradictions(job)
    lacking = _lacking(job)
    if lacking:
        found.reason = f"it needs economics.{' and economics.'.join(lacking)}"
        written = _written(section)
        failing = section.mtbf_per_gpu is not None or section.failures
        if section.horizon is not None:
            found.findings.append(Finding(f"no training can be simulated: {found.reason}", "economics.horizon", section.horizon))
        elif failing or written:
            path = ("mtbf_per_gpu" if section.mtbf_per_gpu is not None else "failures") if failing else written[0]
            text = "goodput is not computed, and failures cost nothing"
            found.warnings.append(Finding(text, f"economics.{path}", None, f"add economics.{lacking[0]}"))
    if not lacking and not found.findings:
        _resolve(job, found)
    return found


def _lacking(job: JobFacts) -> list[str]:
    section, point = job.section, job.section.checkpoint
    lacking = ["mtbf_per_gpu"] if section.mtbf_per_gpu is None and not section.failures else []
    known = point.bandwidth is not None or job.cluster.storage is not None
    known = known or (point.stall is not None if point.mode == "sync" else point.lag != "auto")
    return lacking + ([] if known else ["checkpoint_time (or checkpoint_bandwidth)"])


def _written(section: EconomicsSection) -> list[str]:
    """Keys about checkpoints and recovery that are not at their defaults."""
    return [
        f"{name}.{key}"
        for name, part in (("checkpoint", section.checkpoint), ("recovery", section.recovery))
        for key, value in part
        if value != type(part).model_fields[key].get_default() and value != getattr(type(part)(), key)
    ]


def _contradictions(job: JobFacts) -> list[Finding]:
    """All that cannot be meant together, and zeros that make no sense."""
    section, point, recovery = job.section, job.section.checkpoint, job.section.recovery
    findings = []

    def refuse(text: str, key: str, value: Any, suggestion: str) -> None:
        findings.append(Finding(text, f"economics.{key}", value, suggestion))

    if section.mtbf_per_gpu is not None and section.failures:
        total = 1.0 / fsum(1.0 / one.per_gpu for one in section.failures if one.per_gpu > 0)
        text = f"failures are given twice: the causes under failures make one every {units.format_time(total)} of a GPU"
        refuse(text, "mtbf_per_gpu", section.mtbf_per_gpu, "leave mtbf_per_gpu or failures out")
    if point.mode == "sync" and point.stall is not None and point.bandwidth is not None:
        refuse(
            "the time to write a checkpoint is given twice",
            "checkpoint.bandwidth",
            None,
            "leave checkpoint_time or checkpoint_bandwidth out",
        )
    if point.mode == "sync" and point.lag != "auto":
        refuse(
            "a synchronous checkpoint is durable when training resumes", "checkpoint.lag", point.lag, "write mode: async, or leave it out"
        )
    if point.bytes != "auto" and point.stall is not None and (point.mode == "sync" or point.lag != "auto"):
        refuse(
            "the time of a checkpoint is already given, so its bytes have no effect",
            "checkpoint.bytes",
            point.bytes,
            "leave bytes or the times out",
        )
    zeros = {"mtbf_per_gpu": section.mtbf_per_gpu, "checkpoint.bandwidth": point.bandwidth, "checkpoint.interval": point.interval}
    zeros |= {"horizon": section.horizon, "checkpoint.bytes": point.bytes}
    zeros |= {f"failures.{place}.per_gpu": one.per_gpu for place, one in enumerate(section.failures)}
    findings += [Finding("must be greater than 0", f"economics.{key}", 0) for key, value in zeros.items() if value == 0]
    if recovery.policy == "hot_spare" and recovery.spares == 0:
        refuse("hot_spare needs standby machines", "recovery.spares", 0, "write for example spares: 8")
    if recovery.policy in ("elastic", "replica") and job.replicas < 2:
        text = f"{recovery.policy} continues with the other replicas, but there is only one (data parallel size {job.data.size})"
        refuse(text, "recovery.policy", recovery.policy, "write restart or hot_spare")
    elif recovery.policy == "replica" and job.data.strategy not in _WHOLE_COPIES:
        text = f"{job.data.strategy} shards states over all replicas, so a lost replica loses its shard"
        refuse(text, "recovery.policy", "replica", "use hsdp or ddp, or the policy elastic")
    names = [one.cause for one in section.failures]
    for place, one in enumerate(section.failures):
        if one.cause in names[:place]:
            refuse(f"{one.cause} is there twice", f"failures.{place}.cause", one.cause, "add their rates, or name them apart")
        if one.recovery == "memory" and point.mode != "memory":
            text = f"no copy in memory survives with checkpoint.mode {point.mode}"
            refuse(text, f"failures.{place}.recovery", "memory", "write checkpoint: {mode: memory}")
    return findings


_TO_STORAGE: WeakKeyDictionary[Cluster, dict[tuple[Any, tuple[int, ...]], float]] = WeakKeyDictionary()
"""by storage and GPUs"""


def _to_storage(job: JobFacts) -> float:
    """What every byte of a checkpoint takes, written by all machines at once, each with the share of its ranks [s/B]; 0: nobody says."""
    from parsim.hardware.fabric.storage import storage_link, writing
    from parsim.simulation.checkpoint_write import time_of

    cluster, storage = job.cluster, job.cluster.storage
    if storage is None:
        return 0.0
    known = _TO_STORAGE.setdefault(cluster, {})
    if (storage, job.placed) not in known:
        ranks = Counter(map(cluster.node_of, job.placed))
        flows = writing(cluster, storage, {node: count / job.gpus * _SCALE for node, count in ranks.items()}).flows
        into = storage_link(cluster)
        time = time_of(flows, lambda link: storage.bandwidth if link == into else cluster.capacity(link))
        known[storage, job.placed] = time / _SCALE
    return known[storage, job.placed]


def checkpoint_bytes(model: Model, training: Training) -> int:
    """What training goes on from: the trained weights, their fp32 master and optimizer states; 14 B per parameter with bf16 and Adam.

    BLOOM's were 2.3 TB for 176.2e9 parameters (bigscience/bloom model card): 2,298 GiB.
    """
    from parsim.model.parameter_counts import trainable_parameter_count

    return trainable_parameter_count(model) * stored_bytes(training.precision, training.optimizer)


def _resolve(job: JobFacts, found: Reliability) -> None:
    """Every auto resolved; `found` gets the facts, or what is wrong with them."""
    section, point = job.section, job.section.checkpoint
    size = checkpoint_bytes(job.model, job.training) if point.bytes == "auto" else point.bytes
    needs_size = point.stall is None or (point.mode != "sync" and point.lag == "auto")
    if needs_size and point.bytes == "auto" and job.training.optimizer.name in KRONECKER:
        text = f"not supported yet: how large a checkpoint with the factors of {job.training.optimizer.name} is"
        found.findings.append(Finding(text, "economics.checkpoint.bytes", "auto", 'write its size, such as bytes: "2 TiB"'))
        return
    if needs_size and not size:
        text, hint = f"{job.model.name} has no parameters from which the size of a checkpoint could follow", "write checkpoint_time"
        path = "checkpoint.bandwidth" if point.bandwidth is not None else "checkpoint.stall"
        found.findings.append(Finding(text, f"economics.{path}", None, hint))
        return
    stall, lag = _times(job, size, found)
    restart = _restart(job, found)
    causes = _causes(job, restart)
    facts = _facts(job, causes, stall, lag)
    interval = facts["interval"]
    if (interval + stall + facts["restart"]) / facts["mtbf"] > _HOPELESS:
        text = (
            f"{job.gpus:,} GPUs fail every {units.format_time(facts['mtbf'])}, a checkpoint takes {units.format_time(stall)} and a restart"
            f" {units.format_time(facts['restart'])}: that much time without a failure occurs less than once in {RARE} times"
        )
        path, value = ("mtbf_per_gpu", section.mtbf_per_gpu) if section.mtbf_per_gpu is not None else ("failures", None)
        found.findings.append(Finding(text, f"economics.{path}", value, "check these three values, or write checkpoints more often"))
        return
    if point.mode == "async" and interval and lag > interval + stall:
        between = f"{units.format_time(interval)} + {units.format_time(stall)}"
        text = f"a checkpoint is durable after {units.format_time(lag)}, and the next one begins after {between}: they would overlap"
        found.findings.append(Finding(text, "economics.checkpoint.interval", point.interval, "save less often, or faster"))
        return
    found.failures = facts
    if section.horizon is not None:
        _simulated(job, causes, facts, lag, found)
        if found.training is not None and size:
            found.training = replace(found.training, bytes=float(size))


def _times(job: JobFacts, size: float, found: Reliability) -> tuple[float, float]:
    """Stall and lag of a checkpoint [s]."""
    point = job.section.checkpoint
    if point.mode == "sync":
        return (_writing(job, size) if point.stall is None else float(point.stall)), 0.0
    stall = point.stall
    if stall is None:
        writers = job.gpus // (job.replicas if job.data.strategy in _WHOLE_COPIES else 1)
        stall = size / writers / COPY
        value = f"{units.format_time(stall)}: {size / writers / 1e9:.3g} GB of each of {writers:,} GPUs at {COPY / 1e9:g} GB/s"
        found.assumptions.append(Assumption("checkpoint_stall", value, _COPY_SOURCE, "default"))
    return float(stall), _writing(job, size) if point.lag == "auto" else float(point.lag)


def _writing(job: JobFacts, size: float) -> float:
    """Time to write a checkpoint to storage [s]."""
    bandwidth, storage = job.section.checkpoint.bandwidth, job.cluster.storage
    if bandwidth is not None:
        return size / bandwidth
    return (0.0 if storage is None else storage.latency) + size * _to_storage(job)


def _restart(job: JobFacts, found: Reliability) -> float:
    """From when a failure is noticed until training goes on [s]."""
    recovery = job.section.recovery
    if recovery.restart_time != "auto":
        return float(recovery.restart_time)
    value = RESTARTS[recovery.policy]
    if any(one.restart_time == "auto" for one in job.section.failures) or not job.section.failures:
        source = _RESTART_SOURCES.get(recovery.policy, _RESTART_SOURCE)
        found.assumptions.append(Assumption("restart_time", units.format_time(value), source, "default"))
    return value


def _causes(job: JobFacts, restart: float) -> tuple[FailureCause, ...]:
    """The causes with the rates of the whole job; one, called failure, where only mtbf_per_gpu is given."""
    from parsim.simulation.interrupted import FailureCause

    section, recovery = job.section, job.section.recovery
    memory = section.checkpoint.mode == "memory"
    if not section.failures:
        return (FailureCause("failure", float(section.mtbf_per_gpu or 0.0) / job.gpus, 0.0, restart, recovery.repair, memory),)

    def cause(one: FailureSection) -> FailureCause:
        return FailureCause(
            name=one.cause,
            mtbf=one.per_gpu / job.gpus,
            detect=float(recovery.hang_timeout if one.detect == "hang" else one.detect),
            restart=restart if one.restart_time == "auto" else float(one.restart_time),
            repair=recovery.repair if one.repair == "auto" else float(one.repair),
            in_memory=memory and one.recovery != "storage",
            silent=one.silent,
        )

    return tuple(map(cause, section.failures))


def _facts(job: JobFacts, causes: tuple[FailureCause, ...], stall: float, lag: float) -> dict[str, Any]:
    """The facts of `parsim.report.goodput.Failures`; interval 0 means the best."""
    point, recovery = job.section.checkpoint, job.section.recovery
    mtbf = causes[0].mtbf if len(causes) == 1 else 1.0 / fsum(1.0 / one.mtbf for one in causes)
    shares = [mtbf / one.mtbf for one in causes]
    stopped = [one.detect + one.restart for one in causes]
    mean = stopped[0] if len(set(stopped)) == 1 else fsum(share * time for share, time in zip(shares, stopped, strict=True))
    facts: dict[str, Any] = {
        "mtbf": mtbf, "checkpoint": stall, "restart": mean, "interval": 0.0 if point.interval == "auto" else float(point.interval),
    }  # fmt: skip
    if len(set(stopped)) > 1:
        facts["restarts"] = tuple(zip(shares, stopped, strict=True))
    if lag:
        facts |= {"lag": lag, "in_memory": fsum(share for share, one in zip(shares, causes, strict=True) if one.in_memory)}
    exchanged = fsum(share for share, one in zip(shares, causes, strict=True) if one.repair > 0.0)
    away = fsum(share * one.repair for share, one in zip(shares, causes, strict=True))
    return facts | {
        "policy": recovery.policy, "replicas": job.replicas, "spares": recovery.spares, "exchanged": exchanged,
        "repair": away / exchanged if exchanged else 0.0,
    }  # fmt: skip


def _simulated(job: JobFacts, causes: tuple[FailureCause, ...], facts: dict[str, Any], lag: float, found: Reliability) -> None:
    """What the simulation of the weeks needs."""
    from parsim.simulation.interrupted import InterruptedTraining

    recovery, horizon = job.section.recovery, float(job.section.horizon or 0.0)
    pieces = (
        horizon / max(facts["interval"], 1.0) if facts["interval"] else horizon / (2.0 * facts["checkpoint"] * facts["mtbf"] + 1.0) ** 0.5
    )
    pieces = 2.0 * pieces + 4.0 * horizon / facts["mtbf"]
    if pieces > MOST_PIECES:
        text = f"about {pieces:,.0f} stretches of training, saving and restarting; at most {MOST_PIECES:,} are simulated"
        found.findings.append(Finding(text, "economics.horizon", job.section.horizon, "simulate less time"))
        return
    found.training = InterruptedTraining(
        causes, facts["interval"], facts["checkpoint"], horizon, lag, cast("Policy", recovery.policy), job.replicas, recovery.spares,
        RESTARTS[recovery.policy] if recovery.restart_time == "auto" else float(recovery.restart_time), seed=job.seed,
    )  # fmt: skip

"""Which strategies are looked at, with which numbers of GPUs they go, and what a training with one of them takes.

The axes are those of dense pre-training stacks: tensor parallelism within a machine, pipelines whose stages have equally many
layers, 1F1B or interleaved, ZeRO-1 or fully sharded states, micro-batches of given sizes, no recomputation, that of the MLPs, or of
all layers. Experts of a mixture are spread over the replicas, or over a part of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import ceil
from typing import Any

from parsim.errors import Finding
from parsim.model.model import Model
from parsim.report.economics import Bill, Busy, Economics, bill
from parsim.study.search.lattice import MLPS, divisors, every_layer_has_an_mlp

MOST_STAGES = 16
"""pipeline stages (ranks) that are looked at"""
CHUNKS = (2, 4)
"""virtual stages of a rank that are looked at, where they divide its layers"""
CODES = {
    "tp": "GPUs that share every layer (tensor parallelism)",
    "pp": "pipeline stages",
    "dp": "replicas (data parallelism)",
    "mbs": "samples of a micro-batch",
    "ep": "GPUs over which the experts of a layer are spread",
    "vp": "parts of the model on each stage",
    "zero1": "the optimizer's states shared among replicas",
    "fsdp": "all states of the model shared among replicas",
    "recompute": "all activations computed again in the backward pass",
    "recompute-mlp": "those of the MLPs alone computed again",
}
"""what the words of a strategy are, without their numbers"""


@dataclass(frozen=True, slots=True, order=True)
class Strategy:
    """How a training is split, and over how many GPUs."""

    tensor: int
    pipeline: int
    data: int
    micro_batch: int
    chunks: int = 1
    """virtual stages of a rank; more than one is the interleaved schedule"""
    sharding: str = "zero1"
    """zero1 | fsdp"""
    recompute: str = "none"
    """none | mlp (the MLPs alone) | full"""
    expert: int = 1
    """ranks over which the experts of a layer are spread"""

    @property
    def gpus(self) -> int:
        """Ranks."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        """``tp8 pp8 dp32 mbs1 vp2 zero1``."""
        words = [f"tp{self.tensor}", f"pp{self.pipeline}", f"dp{self.data}", f"mbs{self.micro_batch}"]
        words += [f"ep{self.expert}"] if self.expert > 1 else []
        words += [f"vp{self.chunks}"] if self.chunks > 1 else []
        words += [self.sharding] if self.data > 1 else []
        return " ".join(words + {"none": [], "mlp": ["recompute-mlp"], "full": ["recompute"]}[self.recompute])

    def keys(self) -> dict[str, Any]:
        """Scenario keys and their values."""
        keys: dict[str, Any] = {
            "training.micro_batch": self.micro_batch, "parallel.data.strategy": self.sharding if self.data > 1 else "none",
        }  # fmt: skip
        if self.recompute != "none":
            keys["training.recompute"] = MLPS if self.recompute == "mlp" else self.recompute
        if self.tensor > 1:
            keys |= {"parallel.tensor.size": self.tensor, "parallel.tensor.sequence_parallel": True}
        if self.expert > 1:
            keys["parallel.expert.size"] = self.expert
        if self.pipeline > 1:
            keys["parallel.pipeline.size"] = self.pipeline
        if self.chunks > 1:
            keys |= {"parallel.pipeline.schedule": "interleaved", "parallel.pipeline.virtual_stages": self.chunks}
        return keys

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "tensor": self.tensor, "pipeline": self.pipeline, "data": self.data, "micro_batch": self.micro_batch,
            "virtual_stages": self.chunks, "sharding": self.sharding, "recompute": self.recompute, "expert": self.expert,
        }  # fmt: skip


def recomputations(asked: tuple[str, ...], model: Model) -> tuple[str, ...]:
    """What may be recomputed; ``auto``: nothing, all layers, and where every layer has one the MLPs alone."""
    usual = ("none", "mlp", "full") if every_layer_has_an_mlp(model) else ("none", "full")
    return tuple(dict.fromkeys(one for word in asked for one in (usual if word == "auto" else (word,))))


@dataclass(frozen=True, slots=True)
class Strategies:
    """All strategies of a model on one kind of machine."""

    layers: int
    heads: int
    """0: no attention; tensor parallelism divides them"""
    global_batch: int
    gpus_per_node: int
    micro_batches: tuple[int, ...] = (1, 2)
    recompute: tuple[str, ...] = ("none",)
    schedules: tuple[str, ...] = ("1f1b",)
    sharding: tuple[str, ...] = ("auto",)
    """zero1, fsdp (no pipeline), auto: both, FSDP without tensor parallelism only"""
    experts: int = 0
    """of a layer; 0: none. They are spread over every number of replicas that divides them"""

    @property
    def tensors(self) -> tuple[int, ...]:
        """Powers of two within a machine that divide the heads."""
        sizes = (2**power for power in range(self.gpus_per_node.bit_length()))
        return tuple(size for size in sizes if self.gpus_per_node % size == 0 and (size == 1 or (self.heads and self.heads % size == 0)))

    @property
    def unit(self) -> int:
        """GPUs by which the numbers grow: a whole machine, or of 72 GPUs the largest power of two that divides them, 8."""
        return self.gpus_per_node & -self.gpus_per_node

    @property
    def pipelines(self) -> tuple[int, ...]:
        """Numbers of stages with equally many layers."""
        return tuple(size for size in range(1, min(self.layers, MOST_STAGES) + 1) if self.layers % size == 0)

    def at(self, gpus: int) -> Iterator[Strategy]:
        """Every strategy that uses exactly so many GPUs."""
        for tensor in self.tensors:
            for pipeline in self.pipelines:
                data, rest = divmod(gpus, tensor * pipeline)
                if rest or self.global_batch % data:
                    continue
                for micro in self.micro_batches:
                    count, rest = divmod(self.global_batch, data * micro)
                    if not rest:
                        yield from self._with(tensor, pipeline, data, micro, count)

    def _with(self, tensor: int, pipeline: int, data: int, micro: int, count: int) -> Iterator[Strategy]:
        chunks = [1] if pipeline == 1 or "1f1b" in self.schedules else []
        if pipeline > 1 and "interleaved" in self.schedules and count % pipeline == 0:
            chunks += [many for many in CHUNKS if self.layers // pipeline % many == 0]
        shardings = self._shardings(tensor, pipeline, data)
        spread = [size for size in divisors(self.experts) if data % size == 0] if self.experts else [1]
        for recompute, many, sharding, expert in product(self.recompute, chunks, shardings, spread):
            yield Strategy(tensor, pipeline, data, micro, many, sharding, recompute, expert)

    def _shardings(self, tensor: int, pipeline: int, data: int) -> list[str]:
        replicated = ["zero1"] if {"auto", "zero1"} & set(self.sharding) else []
        if data == 1:
            return ["zero1"]
        whole = pipeline == 1 and ("fsdp" in self.sharding or ("auto" in self.sharding and tensor == 1))
        return replicated + (["fsdp"] if whole else [])

    def fits_grid(self, gpus: int) -> bool:
        """Whether there is any strategy that uses so many GPUs: a part of a machine that divides it, or a multiple of `unit`."""
        whole = gpus % self.unit == 0 or (gpus < self.gpus_per_node and self.gpus_per_node % gpus == 0)
        return whole and next(self.at(gpus), None) is not None

    def counts(self, most: int) -> tuple[int, ...]:
        """The grid: every number of GPUs up to `most` that some strategy uses."""
        within = [count for count in range(1, min(self.gpus_per_node - 1, most) + 1) if self.fits_grid(count)]
        first = -(-self.gpus_per_node // self.unit) * self.unit
        return (*within, *(count for count in range(first, most + 1, self.unit) if self.fits_grid(count)))

    def near(self, gpus: int) -> tuple[int | None, int | None]:
        """The nearest numbers of the grid: not above `gpus`, and above it."""
        most = ceil(2 * gpus / self.gpus_per_node) * self.gpus_per_node
        grid = self.counts(most)
        return max((count for count in grid if count <= gpus), default=None), min((count for count in grid if count > gpus), default=None)


DAY = 86400.0
_OF_80_PERCENT = 1.2816
"""standard deviations on each side of the mean that hold 80 % of a normal distribution"""


@dataclass(frozen=True, slots=True)
class Runs:
    """Disturbed steps, whose median is the step of a configuration."""

    count: int
    least: float
    """the shortest over the median"""
    most: float
    """the longest over the median"""
    method: str = ""
    """how they were found; empty: nothing is drawn, only known ranks are slow"""


@dataclass(frozen=True, eq=False)
class Configuration:
    """What `parsim run` finds for a candidate; a question's fixed goodput stretches time, energy and cost."""

    machine: str
    """label of the question's machine"""
    strategy: Strategy
    nodes: int
    gpus: int
    """installed in the machines, which are rented or bought whole; the strategy may leave some idle"""
    step_time: float
    """estimated: the simulated step times `ratio`, or the median of disturbed steps [s]"""
    simulated_step_time: float
    """undisturbed [s]"""
    fits: bool
    peak: int
    """of the fullest device [B]"""
    headroom: int
    """left on it [B]"""
    mfu: float | None
    """of the estimate"""
    limiter_kind: str
    limiter: str
    economics: Economics
    busy: Busy
    features: Mapping[str, Any]
    """what makes the run like published ones, as `parsim.report.estimate.Confidence` has it"""
    ratio: float = 1.0
    """of the estimated to the simulated step: the median of measured / predicted over the published runs that make the band"""
    status: str = "unvalidated"
    """validated | interpolated | unvalidated"""
    band: tuple[float, float] | None = None
    """factors between which 80 % of published runs like it lie around the estimate; None: there are none"""
    basis: str | None = None
    runs: Runs | None = None
    """None: nothing varies"""
    tight: bool = False
    """it fits, but 80 % of published peaks reach beyond the capacity"""
    stretch: float = 1.0
    """time over time without failures, where the question fixes the goodput"""
    tree: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """the scenario"""
    warnings: tuple[Finding, ...] = ()
    """of the run"""

    @cached_property
    def bill(self) -> Bill:
        """Hours, energy and money without the question's fixed goodput."""
        return bill(self.economics, self.step_time, self.busy)

    @property
    def idle(self) -> int:
        """GPUs that are paid for and not used."""
        return self.gpus - self.strategy.gpus

    @property
    def seconds(self) -> float:
        """Of the whole training."""
        return (self.bill.time_to_train or 0.0) * self.stretch

    @property
    def days(self) -> float:
        """Of the whole training."""
        return self.seconds / DAY

    @property
    def spread(self) -> tuple[float, float] | None:
        """Factors around the step: the band of published runs, or the shortest and the longest disturbed step; None where neither is."""
        return self.band if self.runs is None else (self.runs.least, self.runs.most)

    @property
    def goodput(self) -> float:
        """Useful time over all time."""
        return (1.0 if self.bill.goodput is None else self.bill.goodput) / self.stretch

    @property
    def goodput_band(self) -> tuple[float, float] | None:
        """Between which it lies in 80 % of trainings, by the chance of failures alone; None where nothing fails."""
        failures, useful = self.economics.failures, self.seconds * self.goodput
        if failures is None or not useful:
            return None
        chance = _OF_80_PERCENT * failures.wall_sd(useful)
        return useful / (self.seconds + chance), useful / max(useful, self.seconds - chance)

    @property
    def gpu_hours(self) -> float:
        """Of all installed GPUs [h]."""
        return self.seconds * self.gpus / 3600.0

    @property
    def cost(self) -> float | None:
        """Of the whole training; None without a price."""
        amount = self.bill.cost_to_train
        return None if amount is None else amount * self.stretch

    @property
    def energy(self) -> float | None:
        """Of the whole training at the building's meter [J]."""
        amount = self.bill.energy_to_train
        return None if amount is None else amount * self.stretch

    def objective(self, name: str) -> float | None:
        """What is minimised: cost | gpus | energy | time."""
        return {"cost": self.cost, "gpus": float(self.gpus), "energy": self.energy, "time": self.seconds}[name]

    def meets(self, deadline: float | None, budget: float | None) -> bool:
        """Whether it fits in memory, in `deadline` [s] and in `budget`; a budget is not met without a price."""
        in_time = deadline is None or self.seconds <= deadline * (1 + 1e-12)
        return self.fits and in_time and (budget is None or (self.cost is not None and self.cost <= budget * (1 + 1e-12)))

    def changed(self, *, price: float = 1.0, slower: float = 1.0, mtbf: float = 1.0) -> Configuration:
        """The same with prices, times of a step, and time between failures multiplied; a new checkpoint interval is chosen."""
        old = self.economics
        failures = old.failures
        if failures is not None and mtbf != 1.0:
            failures = failures.rarer(mtbf)
        new = replace(
            old,
            failures=failures,
            rent=None if old.rent is None else old.rent * price,
            hardware=None if old.hardware is None else old.hardware * price,
        )
        return replace(
            self,
            economics=new,
            step_time=self.step_time * slower,
            simulated_step_time=self.simulated_step_time * slower,
            busy=self.busy.times(slower),
        )

    def document(self) -> dict[str, Any]:
        """As JSON has it; s, B, J."""
        failures = self.economics.failures
        varied = {} if self.runs is None else {"variability": self._runs_document(self.runs)}
        return varied | {
            "machine": self.machine, "nodes": self.nodes, "gpus": self.gpus, "idle_gpus": self.idle, "strategy": self.strategy.document(),
            "strategy_text": str(self.strategy), "step_time_s": self.simulated_step_time,
            "estimate": {"step_time_s": self.step_time, "of": "simulation" if self.band is None else "bands"},
            "time_to_train_s": self.seconds, "days": self.days,
            "goodput": self.goodput, "goodput_band": self.goodput_band and list(self.goodput_band),
            "checkpoint_interval_s": None if failures is None else failures.interval,
            "job_mtbf_s": None if failures is None else failures.mtbf, "gpu_hours": self.gpu_hours, "cost": self.cost,
            "currency": self.economics.currency, "energy_J": self.energy, "peak_bytes": self.peak, "headroom_bytes": self.headroom,
            "fits": self.fits, "tight": self.tight, "mfu": self.mfu, "limiter_kind": self.limiter_kind, "limiter": self.limiter,
            "confidence": {
                "status": self.status, "factors": None if self.band is None else [factor * self.ratio for factor in self.band],
                "basis": self.basis,
            },
            "days_band": None if self.band is None else [self.days * factor for factor in self.band],
            "cost_band": None if self.band is None or self.cost is None else [self.cost_at(factor) for factor in self.band],
        }  # fmt: skip

    def _runs_document(self, runs: Runs) -> dict[str, Any]:
        times = {"nominal": self.simulated_step_time, "p50": self.step_time}
        times |= {"least": self.step_time * runs.least, "most": self.step_time * runs.most}
        return {"runs": runs.count, "step_time_s": times, "method": runs.method or None}

    def cost_at(self, factor: float) -> float:
        """Cost if a step takes `factor` times as long."""
        return self.changed(slower=factor).cost or 0.0

"""One way to do the training: a strategy on so many GPUs of one kind, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from parsim.errors import Finding
from parsim.report.economics import Bill, Busy, Economics, best_interval, bill
from parsim.study.size.strategies import Strategy

DAY = 86400.0


@dataclass(frozen=True)
class Configuration:
    """What `parsim run` finds for a candidate; a question's fixed goodput stretches time, energy and cost."""

    machine: str
    """label of the question's machine"""
    strategy: Strategy
    nodes: int
    gpus: int
    """installed in the machines, which are rented or bought whole; the strategy may leave some idle"""
    step_time: float
    """estimated: the simulated step times `ratio` [s]"""
    simulated_step_time: float
    """[s]"""
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
    ratio: float = 1.0
    """of the estimated to the simulated step: the median of measured / predicted over the published runs that make the band"""
    status: str = "unvalidated"
    """validated | interpolated | unvalidated"""
    band: tuple[float, float] | None = None
    """factors between which 80 % of published runs like it lie around the estimate; None: there are none"""
    basis: str | None = None
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
    def goodput(self) -> float:
        """Useful time over all time."""
        return (1.0 if self.bill.goodput is None else self.bill.goodput) / self.stretch

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
            between = failures.mtbf * mtbf
            failures = replace(failures, mtbf=between, interval=best_interval(failures.checkpoint, between))
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
        return {
            "machine": self.machine, "nodes": self.nodes, "gpus": self.gpus, "idle_gpus": self.idle, "strategy": self.strategy.document(),
            "strategy_text": str(self.strategy), "step_time_s": self.simulated_step_time,
            "estimate": {"step_time_s": self.step_time, "of": "simulation" if self.band is None else "bands"},
            "time_to_train_s": self.seconds, "days": self.days,
            "goodput": self.goodput, "checkpoint_interval_s": None if failures is None else failures.interval,
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

    def cost_at(self, factor: float) -> float:
        """Cost if a step takes `factor` times as long."""
        return self.changed(slower=factor).cost or 0.0

"""Steps, hours, joules and money: a pure function of the step time and of what the GPUs do in it.

The report uses it, and so may whoever has a step time without a report (a search, a bound): same inputs, same numbers.
Time, energy and cost never fall when the step takes longer, or when a GPU computes or communicates longer within it; so a
lower bound of the step time with lower bounds of the busy times is a lower bound of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, fsum
from typing import Any

from parsim.report.goodput import Failures

HOUR = 3600.0
KWH = 3.6e6
"""joules"""
MILLION = 1e6


@dataclass(frozen=True)
class Busy:
    """What a GPU of the job does during one step, on average over all of them [s]; the rest of the step it waits."""

    computing: float = 0.0
    """recomputation and optimizer included"""
    communicating: float = 0.0
    """nothing but communication or copies"""

    def times(self, factor: float) -> Busy:
        """The same in a step that takes `factor` times as long."""
        return Busy(self.computing * factor, self.communicating * factor)


@dataclass(frozen=True)
class Power:
    """Electric power that the job's GPUs and machines draw [W]."""

    idle: float
    """of one GPU"""
    tdp: float
    """of one GPU"""
    computing: float
    """share of the way from idle to TDP, in [0, 1]; so the other two; waiting <= communicating <= computing"""
    communicating: float
    waiting: float
    beside: float
    """of all machines, beside their GPUs"""
    pue: float = 1.0

    def gpu_energy(self, step_time: float, busy: Busy) -> float:
        """What one busy GPU takes in a step [J]: idle, and the share of what is above idle by what it does."""
        waiting = max(0.0, step_time - busy.computing - busy.communicating)
        shares = self.computing * busy.computing + self.communicating * busy.communicating + self.waiting * waiting
        return self.idle * step_time + (self.tdp - self.idle) * shares


@dataclass(frozen=True)
class Economics:
    """All that a bill needs but the step: sizes, prices, power, failures. Prices are in `currency`."""

    used_gpus: int
    billed_gpus: int
    """all GPUs of the allocated machines: machines are paid whole"""
    nodes: int
    steps: float | None = None
    """optimizer steps of the whole training; None: its length is unknown"""
    samples_per_step: float | None = None
    tokens_per_step: float | None = None
    currency: str = "USD"
    rent: float | None = None
    """of one GPU for one hour; None: not rented"""
    hardware: float | None = None
    """write-off and upkeep of all machines in one hour of training; None: not bought"""
    power_price: float | None = None
    """of one kWh; None: in the rent, or not asked for"""
    power: Power | None = None
    """None: the device file does not say what its GPU draws"""
    failures: Failures | None = None
    carbon: float | None = None
    """kg of CO2 equivalent per kWh"""
    price: Mapping[str, Any] = field(default_factory=dict)
    """where the price is from"""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """metric -> why there is none"""

    @property
    def slowdown(self) -> float:
        """Time of the training with failures over the time without."""
        return 1.0 if self.failures is None else self.failures.wall_per_useful


@dataclass(frozen=True)
class Bill:
    """What a training costs; None where something needed is unknown. Per step, token and sample: of useful ones, failures paid for."""

    economics: Economics
    time_per_step: float
    """with its share of checkpoints, lost work and restarts [s]"""
    energy_per_step: float | None
    """at the building's meter [J]"""
    gpu_power: float | None
    """mean of a GPU in use [W]"""
    parts_per_step: Mapping[str, float]
    """rent | hardware | energy -> money"""

    @property
    def steps(self) -> int | None:
        """Whole optimizer steps of the training."""
        return None if self.economics.steps is None else ceil(self.economics.steps * (1 - 1e-12))

    @property
    def goodput(self) -> float | None:
        """Useful time over all time."""
        return None if self.economics.failures is None else self.economics.failures.goodput

    def _whole(self, per_step: float | None) -> float | None:
        return None if per_step is None or self.economics.steps is None else per_step * self.economics.steps

    @staticmethod
    def _per(amount: float | None, of: float | None) -> float | None:
        return None if amount is None or not of else amount / of

    @property
    def time_to_train(self) -> float | None:
        """Wall time of the whole training, time lost to failures included [s]; None where its length is unknown."""
        return self._whole(self.time_per_step)

    @property
    def gpu_hours(self) -> float | None:
        """Hours of the GPUs in use over the whole training [h]."""
        return self._hours(self.economics.used_gpus)

    @property
    def gpu_hours_billed(self) -> float | None:
        """Hours of all GPUs of the allocated machines, idle ones included [h]."""
        return self._hours(self.economics.billed_gpus)

    def _hours(self, gpus: int) -> float | None:
        return None if self.time_to_train is None else self.time_to_train * gpus / HOUR

    @property
    def cost_per_step(self) -> float | None:
        """Cost of one useful step, all parts together, in the currency of the prices."""
        return fsum(self.parts_per_step.values()) if self.parts_per_step else None

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Cost of a million trained tokens; None for models without sequences."""
        return self._per(self.cost_per_step, (self.economics.tokens_per_step or 0.0) / MILLION)

    @property
    def cost_per_million_samples(self) -> float | None:
        """Cost of a million trained samples."""
        return self._per(self.cost_per_step, (self.economics.samples_per_step or 0.0) / MILLION)

    @property
    def cost_to_train(self) -> float | None:
        """Cost of the whole training; None where its length is unknown."""
        return self._whole(self.cost_per_step)

    @property
    def energy_per_token(self) -> float | None:
        """Energy of one useful token at the building's meter [J]; None for models without sequences."""
        return self._per(self.energy_per_step, self.economics.tokens_per_step)

    @property
    def energy_to_train(self) -> float | None:
        """Energy of the whole training at the building's meter [J]; None where its length is unknown."""
        return self._whole(self.energy_per_step)

    @property
    def power(self) -> float | None:
        """Mean of the whole job at the building's meter [W]."""
        return self._per(self.energy_per_step, self.time_per_step)

    @property
    def carbon_to_train(self) -> float | None:
        """Emissions of the whole training [kg of CO2 equivalent]."""
        energy, intensity = self.energy_to_train, self.economics.carbon
        return None if energy is None or intensity is None else energy / KWH * intensity

    def metrics(self) -> dict[str, float | int | None]:
        """Every metric by its name in the report's document, currency aside: also what a sweep or a search may minimise."""
        return {
            "energy_J": self.energy_to_train,
            "time_to_train_s": self.time_to_train,
            "gpu_hours": self.gpu_hours,
            "goodput": self.goodput,
            "steps_to_train": self.steps,
            "gpu_hours_billed": self.gpu_hours_billed,
            "cost_per_step": self.cost_per_step,
            "cost_per_million_tokens": self.cost_per_million_tokens,
            "cost_per_million_samples": self.cost_per_million_samples,
            "cost_to_train": self.cost_to_train,
            "energy_per_step_J": self.energy_per_step,
            "energy_per_token_J": self.energy_per_token,
            "co2_kg": self.carbon_to_train,
        }

    def cost(self) -> dict[str, Any] | None:
        """The report's ``cost``; None where there is no price."""
        if self.cost_per_step is None:
            return None
        economics = self.economics
        hours = self.time_per_step * economics.billed_gpus / HOUR
        return {
            "currency": economics.currency,
            "per_step": self.cost_per_step,
            "per_million_tokens": self.cost_per_million_tokens,
            "per_million_samples": self.cost_per_million_samples,
            "to_train": self.cost_to_train,
            "per_gpu_hour": self._per(self.cost_per_step, hours),
            "parts_per_step": dict(self.parts_per_step),
            "parts_to_train": {key: self._whole(value) for key, value in self.parts_per_step.items()},
            "price": dict(economics.price),
        }

    def document(self) -> dict[str, Any]:
        """The report's ``economics``: what the metrics rest on, and why some are missing."""
        economics, power = self.economics, self.economics.power
        return {
            "billed_gpus": economics.billed_gpus,
            "nodes": economics.nodes,
            "gpu_power_W": self.gpu_power,
            "power_W": self.power,
            "pue": None if power is None else power.pue,
            "failures": None if economics.failures is None else economics.failures.document(self.time_to_train),
            "reasons": dict(economics.reasons),
        }


def economics(facts: Mapping[str, Any]) -> Economics:
    """From the facts that a built scenario carries (`Built.economics`)."""
    power, failures = facts["power"], facts["failures"]
    plain = {key: value for key, value in facts.items() if key not in ("power", "failures")}
    return Economics(
        **plain, power=None if power is None else Power(**power), failures=None if failures is None else Failures.at_best(**failures)
    )


METRICS = (
    "energy_J", "time_to_train_s", "gpu_hours", "goodput", "steps_to_train", "gpu_hours_billed", "cost_per_step", "cost_per_million_tokens",
    "cost_per_million_samples", "cost_to_train", "energy_per_step_J", "energy_per_token_J", "co2_kg",
)  # fmt: skip
"""names of `Bill.metrics`"""


def bill(economics: Economics, step_time: float, busy: Busy) -> Bill:
    """The bill of a training whose steps take `step_time` [s], in which a GPU is `busy` on average.

    Checkpoints, lost work and restarts are paid like steps: their time draws the mean power of a step.
    Monotone: no metric but goodput, which does not depend on them, falls when `step_time` or a time of `busy` grows.
    """
    wall = step_time * economics.slowdown
    energy = gpu_power = None
    power = economics.power
    if power is not None:
        used = power.gpu_energy(step_time, busy)
        gpu_power = used / step_time if step_time > 0 else None
        idle = (economics.billed_gpus - economics.used_gpus) * power.idle * step_time
        energy = (economics.used_gpus * used + idle + power.beside * step_time) * power.pue * economics.slowdown
    parts: dict[str, float] = {}
    if economics.rent is not None:
        parts["rent"] = economics.rent * economics.billed_gpus * wall / HOUR
    if economics.hardware is not None:
        parts["hardware"] = economics.hardware * wall / HOUR
    if economics.power_price is not None and energy is not None:
        parts["energy"] = economics.power_price * energy / KWH
    return Bill(economics, wall, energy, gpu_power, parts)

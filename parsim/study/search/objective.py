"""What a search is for: objectives to minimise and constraints to keep, each with what bounds already say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from parsim.study.search.bounds import Bounds

GIB, GB = 2**30, 1e9


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a simulated candidate is judged by; the values are those of its report."""

    step_time_s: float
    samples_per_s: float
    tokens_per_s: float | None
    mfu: float | None
    peak_bytes: int
    """device memory in use on the fullest rank"""
    capacity_bytes: int
    """of a device, what must stay free taken off"""
    fits: bool
    gpus: int
    more: Mapping[str, float | None] = field(default_factory=dict)
    """what else the report says under its own names: cost, energy_J, time_to_train_s, gpu_hours, goodput"""

    @property
    def headroom_bytes(self) -> int:
        """Memory left on the fullest rank [B]; negative: it does not fit."""
        return self.capacity_bytes - self.peak_bytes

    def get(self, name: str) -> float | None:
        """A metric by the name it has in reports."""
        return self.more[name] if name in self.more else getattr(self, name)


class Objective(Protocol):
    """A number to minimise. `least` must never exceed `value` of the same candidate: the search relies on it and checks it."""

    @property
    def name(self) -> str:
        """What tables call it."""

    def value(self, metrics: Metrics) -> float:
        """Of a simulated candidate; lower is better."""

    def least(self, bounds: Bounds) -> float:
        """What no simulation of a candidate with these bounds falls below; -inf if nothing is known."""


class Constraint(Protocol):
    """What a candidate must keep to be considered."""

    @property
    def name(self) -> str:
        """What tables call it."""

    def broken(self, metrics: Metrics) -> str:
        """Why a simulated candidate breaks it, with the figures; empty if it does not."""

    def hopeless(self, bounds: Bounds) -> str:
        """Why no simulation of a candidate with these bounds keeps it; empty if one might."""


@dataclass(frozen=True, slots=True)
class Minimise:
    """An objective made of two functions."""

    name: str
    value: Callable[[Metrics], float]
    least: Callable[[Bounds], float]


def _unknown(_: Bounds) -> float:
    return -float("inf")


STEP_TIME = Minimise("step_time_s", lambda m: m.step_time_s, lambda b: b.step_time)
TIME_PER_SAMPLE = Minimise("seconds per sample", lambda m: 1.0 / m.samples_per_s, lambda b: b.step_time / b.samples * (1 - 1e-12))
GPU_TIME_PER_SAMPLE = Minimise(
    "GPU-seconds per sample", lambda m: m.gpus / m.samples_per_s, lambda b: b.step_time * b.gpus / b.samples * (1 - 1e-12)
)
PEAK_MEMORY = Minimise("peak_bytes", lambda m: float(m.peak_bytes), lambda b: float(b.peak_memory))
GPUS = Minimise("gpus", lambda m: float(m.gpus), lambda b: float(b.gpus))


def metric(name: str, *, maximise: bool = False, least: Callable[[Bounds], float] | None = None) -> Minimise:
    """Any metric of a report as an objective; what a candidate does not have loses against all that have it.

    Without `least` every candidate that may keep the constraints is simulated.
    """

    def value(metrics: Metrics) -> float:
        found = metrics.get(name)
        return float("inf") if found is None else -found if maximise else found

    return Minimise(name, value, least or _unknown)


@dataclass(frozen=True, slots=True)
class Fits:
    """The fullest rank's device holds it."""

    name: str = "fits"

    def broken(self, metrics: Metrics) -> str:
        """See `Constraint.broken`."""
        return "" if metrics.fits else f"does not fit: {_memory(metrics.peak_bytes)} of {_memory(metrics.capacity_bytes)}"

    def hopeless(self, bounds: Bounds) -> str:
        """See `Constraint.hopeless`."""
        return f"does not fit: at least {_memory(bounds.peak_memory)} of {_memory(bounds.capacity)}" if bounds.surely_full else ""


@dataclass(frozen=True, slots=True)
class AtMost:
    """A metric may not exceed a limit. `least` gives a lower bound of the metric where there is one."""

    metric: str
    limit: float
    least: Callable[[Bounds], float] | None = None

    @property
    def name(self) -> str:
        """See `Constraint.name`."""
        return f"{self.metric} <= {self.limit:g}"

    def broken(self, metrics: Metrics) -> str:
        """See `Constraint.broken`."""
        value = metrics.get(self.metric)
        if value is None:
            return f"{self.metric} is not known"
        return f"{self.metric} {value:.6g} > {self.limit:g}" if value > self.limit else ""

    def hopeless(self, bounds: Bounds) -> str:
        """See `Constraint.hopeless`."""
        if self.least is None or (value := self.least(bounds)) <= self.limit:
            return ""
        return f"{self.metric} at least {value:.6g} > {self.limit:g}"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A metric may not fall below a limit."""

    metric: str
    limit: float

    @property
    def name(self) -> str:
        """See `Constraint.name`."""
        return f"{self.metric} >= {self.limit:g}"

    def broken(self, metrics: Metrics) -> str:
        """See `Constraint.broken`."""
        value = metrics.get(self.metric)
        if value is None:
            return f"{self.metric} is not known"
        return f"{self.metric} {value:.6g} < {self.limit:g}" if value < self.limit else ""

    def hopeless(self, bounds: Bounds) -> str:
        """See `Constraint.hopeless`: bounds say nothing about how little a metric could be."""
        return ""


def _memory(size: int) -> str:
    return f"{size / GIB:.2f} GiB ({size / GB:.2f} GB)"

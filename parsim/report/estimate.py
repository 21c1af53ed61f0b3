"""What a step is expected to take, and how sure that is: the simulated numbers in the light of published runs like this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Factors = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Confidence:
    """Bands as factors of the prediction: measured / predicted of runs like this one lies between them in 80 % of cases."""

    status: str = "unvalidated"
    """validated: at least five published runs of one family with the same GPU, type of products and kind of strategy, off by at most 10 %
    in the mean where nothing was fitted to that family; interpolated: published runs on the same GPU; unvalidated: none"""
    step: Factors | None = None
    memory: Factors | None = None
    step_ratio: float = 1.0
    """median of measured / predicted over the runs that make the band; 1 without a band"""
    memory_ratio: float = 1.0
    basis: str | None = None
    """what the bands rest on, in words"""
    rows: int = 0
    """published runs with the same GPU, type of products and kind of strategy"""
    sources: tuple[str, ...] = ()
    """where they were published"""
    left_out_error: float | None = None
    """mean error of their families, each predicted with nothing fitted to it; None without such runs"""
    features: Mapping[str, Any] = field(default_factory=dict)
    """what makes the run like others: GPU, architecture, stack, precision, kind of strategy, GPUs, parameters"""
    nearest: tuple[Mapping[str, Any], ...] = ()
    """measured rows, the nearest first: id, source, error, what differs"""

    def disturbed(self) -> Confidence:
        """Of a step with draws. Published runs were predicted without any, so that their ratio holds what real clusters did to them."""
        basis = "no published run was predicted with this variability: the estimate is the simulated mean, without a factor or a band"
        return replace(self, status="unvalidated", step=None, step_ratio=1.0, basis=basis)

    def step_band(self, seconds: float) -> tuple[float, float] | None:
        """Step times between which the truth probably lies [s]."""
        return None if self.step is None else (seconds * self.step[0], seconds * self.step[1])

    def memory_band(self, used: int) -> tuple[int, int] | None:
        """Peaks between which the truth probably lies [B]."""
        return None if self.memory is None else (round(used * self.memory[0]), round(used * self.memory[1]))

    def document(self, seconds: float, used: int | None) -> dict[str, Any]:
        """The mapping that stands in the report's JSON document."""
        step, peak = self.step_band(seconds), None if used is None else self.memory_band(used)
        return {
            "status": self.status,
            "step_time_s": None if step is None else list(step),
            "peak_bytes": None if peak is None else list(peak),
            "basis": self.basis,
            "rows": self.rows,
            "sources": list(self.sources),
            "left_out_error": self.left_out_error,
            "features": dict(self.features),
            "nearest": [dict(row) for row in self.nearest],
        }


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one step and the training; None where undefined."""

    step_time_s: float
    """r x the simulated step time, or the mean of its runs; r is the median of measured / predicted over the runs that make the band [s]"""
    step_time_band_s: tuple[float, float] | None
    """quantiles 10 and 90 of the same; holds the estimate [s]"""
    tokens_per_s: float | None
    mfu: float | None
    time_to_train_s: float | None
    cost_to_train: float | None
    peak_bytes: int | None
    peak_band_bytes: tuple[int, int] | None
    of: Literal["bands", "simulation"]
    """simulation: too few published runs are like this one, so r = 1"""

    def document(self) -> dict[str, Any]:
        """The mapping that stands in the report's JSON document."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

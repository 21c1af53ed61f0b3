"""What a step is expected to take: the simulated one, corrected by what published runs like it took."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from parsim.report.economics import bill

if TYPE_CHECKING:
    from parsim.report.report import Report


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one step and the training; None where undefined."""

    step_time_s: float
    """r x the simulated step time; r is the median of measured / predicted over the runs that make the band [s]"""
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
        """As the report has it."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def estimate(report: Report) -> Estimate:
    """The estimate of a report; what follows from the step time follows from the estimated one."""
    sure, step = report.measured.confidence, report.step_time
    r = sure.step_ratio
    peak = report.peak_memory if report.measured.memory.devices else None
    economics, whole, cost = report.measured.economics, report.time_to_train, None
    if economics is not None:
        bought = bill(economics, step * r, report.busy.times(r))
        whole, cost = bought.time_to_train, bought.cost_to_train
    elif whole is not None:
        whole *= r
    return Estimate(
        step_time_s=step * r,
        step_time_band_s=sure.step_band(step),
        tokens_per_s=None if report.tokens_per_s is None else report.tokens_per_s / r,
        mfu=None if report.mfu is None else report.mfu / r,
        time_to_train_s=whole,
        cost_to_train=cost,
        peak_bytes=None if peak is None else round(peak * sure.memory_ratio),
        peak_band_bytes=None if peak is None else sure.memory_band(peak),
        of="simulation" if sure.step is None else "bands",
    )

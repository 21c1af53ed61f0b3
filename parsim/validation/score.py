"""How far predictions are from what was published: one error per row, and their summary over any set of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from parsim.report.table import Column, Content


def percent(share: float) -> str:
    """``4.2`` of 0.042, as columns of errors are written."""
    return f"{100 * share:.1f}"


def signed_percent(share: float) -> str:
    """``+4.2`` of 0.042."""
    return f"{100 * share:+.1f}"


@dataclass(frozen=True, slots=True)
class Errors:
    """A summary of relative errors, predicted over measured less one."""

    rows: int
    mean: float
    """of the absolute errors"""
    median: float
    """of the absolute errors"""
    p90: float
    """90th percentile of the absolute errors"""
    worst: float
    """largest absolute error, signed"""
    bias: float
    """mean of the signed errors"""

    def document(self, keys: Mapping[str, str]) -> dict[str, float]:
        """As JSON has it: `keys` maps each key of the document to a field; the worst error is given without its sign."""
        return {key: abs(self.worst) if field == "worst" else getattr(self, field) for key, field in keys.items()}


FIGURES = {
    "rows": Column("rows", key="rows"),
    "mean": Column("mean", write=percent, key="mean_absolute_error"),
    "median": Column("median", write=percent, key="median_absolute_error"),
    "p90": Column("p90", write=percent, key="p90_absolute_error"),
    "worst": Column("worst", write=signed_percent, key="worst_error"),
    "bias": Column("bias", write=signed_percent, key="mean_error"),
}
"""field of `Errors` -> its column in a table, in percent"""


def cells(errors: Errors | None, fields: Iterable[str] = FIGURES) -> tuple[Content, ...]:
    """The figures of a summary under the columns `FIGURES`; of none only the number of rows."""
    return tuple((0 if field == "rows" else "") if errors is None else getattr(errors, field) for field in fields)


def relative_error(predicted: float, measured: float) -> float:
    """The relative error of one row: predicted over measured, less one."""
    return predicted / measured - 1.0


def errors(values: Iterable[float | None]) -> Errors | None:
    """The summary of signed errors, of those that are not None; None if there are none."""
    signed = [value for value in values if value is not None]
    if not signed:
        return None
    sizes = sorted(map(abs, signed))
    return Errors(len(signed), fmean(sizes), median(sizes), percentile(sizes, 0.9), max(signed, key=abs), fmean(signed))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Value below which `share` of an ordered sequence lies, linear between neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)

"""The figures of merit of a run as the page shows them: one list for the tiles, the comparison and the definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parsim.report.quantities import NONE, gib, number, percent, seconds
from parsim.report.statement import energy

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics


@dataclass(frozen=True)
class PageMetric:
    """A number of the JSON document."""

    key: str
    """dotted path in the document"""
    title: str
    text: Callable[[Any], str]
    share: bool = False
    """a fraction: differences are percentage points"""
    definition: str = ""
    """its name among the definitions where that is not the last part of the key"""

    @property
    def defined(self) -> str:
        """The name of its definition."""
        return self.definition or self.key.rpartition(".")[2]


def _gib(value: float | None) -> str:
    return NONE if value is None else f"{gib(value)} GiB"


def _tera(value: float | None) -> str:
    return NONE if value is None else f"{number(value)} TFLOP/s"


def _energy(value: float | None) -> str:
    return NONE if value is None else energy(value)


EXPOSED = PageMetric("exposed_communication", "Exposed communication", percent, share=True)
ESTIMATES = (
    PageMetric("estimate.step_time_s", "Step time, estimated", seconds, definition="estimate"),
    PageMetric("estimate.mfu", "MFU, estimated", percent, share=True, definition="estimate"),
    PageMetric("estimate.tokens_per_s", "Tokens/s, estimated", number, definition="estimate"),
)
"""shown where a run has a band of published runs"""
METRICS = (
    PageMetric("step_time_s", "Step time", seconds),
    PageMetric("slow_gpu.step_time_s", "Step with one slow GPU", seconds, definition="slow_gpu"),
    PageMetric("slow_gpu.slowdown", "Longer by that slow GPU", percent, share=True, definition="slow_gpu"),
    PageMetric("mfu", "MFU", percent, share=True),
    PageMetric("hfu", "HFU", percent, share=True),
    PageMetric("memory.peak_bytes", "Peak memory", _gib),
    PageMetric("memory.headroom_bytes", "Headroom", _gib),
    PageMetric("bubble_fraction", "Bubble", percent, share=True),
    EXPOSED,
    PageMetric("tokens_per_s_per_gpu", "Tokens/s per GPU", number),
    PageMetric("tokens_per_s", "Tokens/s", number),
    PageMetric("samples_per_s", "Samples/s", number),
    PageMetric("model_tflops_per_gpu", "Model FLOP/s per GPU", _tera),
    PageMetric("hardware_tflops_per_gpu", "Hardware FLOP/s per GPU", _tera),
    PageMetric("time_to_train_s", "Time to train", seconds),
    PageMetric("gpu_hours", "GPU hours", number),
    PageMetric("goodput", "Goodput", percent, share=True),
    PageMetric("energy_J", "Energy to train", _energy),
)


def costs(documents: Iterable[Mapping[str, Any]]) -> tuple[PageMetric, ...]:
    """The costs of runs that have any, in their one currency; none where currencies differ."""
    currencies = {document["cost"]["currency"] for document in documents if document["cost"] is not None}
    if len(currencies) != 1:
        return ()
    (currency,) = currencies
    keys = {"cost_to_train": "Cost to train", "cost_per_million_tokens": "Cost per million tokens"}
    return tuple(PageMetric(key, f"{title} [{currency}]", number) for key, title in keys.items())


def value_of(report: Metrics, document: Mapping[str, Any], metric: PageMetric) -> Any:
    """The number behind a metric, as the document has it."""
    if metric is EXPOSED:
        return exposed_share(report)
    value: Any = document
    for part in metric.key.split("."):
        value = None if value is None else value[part]
    return value


def exposed_share(report: Metrics) -> float | None:
    """Part of the step that the breakdown rank spends in nothing but communication."""
    from parsim.report.verdict import exposed_communication

    return exposed_communication(report.breakdown) / report.step_time if report.step_time > 0 else None


def difference(metric: PageMetric, before: float | None, after: float | None) -> str:
    """``-12.3 %``, or percentage points for shares; a dash where there is nothing to compare."""
    if before is None or after is None or before < 0 or after < 0:  # head-room that is missing has no percentage
        return NONE
    if metric.share and before != after:
        points = 100 * (after - before)
        return f"{points:+.1f} points" if abs(points) >= 0.05 else "≈"
    return relative(before, after)


def relative(before: float, after: float) -> str:
    """``+12.3 %``; ``=`` where nothing changed, ``≈`` where hardly anything did."""
    if before == after:
        return "="
    if before == 0:
        return NONE
    change = 100 * (after - before) / abs(before)
    return f"{change:+,.1f} %" if abs(change) >= 0.05 else "≈"

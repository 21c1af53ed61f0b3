"""Predicted against published times of matrix products and fused attention, by device and type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parsim.hardware.device import Device
from parsim.hardware.kernels import kernel_time
from parsim.kernel import Attention, Gemm
from parsim.report.table import Column, Content, Table
from parsim.validation.published_kernels import KernelMeasurements, PublishedAttention, PublishedProduct
from parsim.validation.score import FIGURES, Errors, cells, errors, relative_error

WHAT = {"gemm": "product", "grouped": "grouped product", "best": "best of a sweep"}


@dataclass(frozen=True, slots=True)
class PredictedKernel:
    """One measured kernel, predicted."""

    row: PublishedProduct | PublishedAttention
    time: float
    """[s]"""

    @property
    def kernel(self) -> Gemm | Attention:
        """The product or attention core that was computed."""
        return self.row.kernel

    @property
    def error(self) -> float:
        """Predicted over measured time, less one."""
        return relative_error(self.time, self.row.time)

    @property
    def group(self) -> tuple[str, str, str]:
        """Device, type or implementation, and what was measured: the errors of a group are summed up together."""
        if isinstance(self.row, PublishedProduct):
            return self.row.device, self.row.gemm.dtype, WHAT[self.row.kind]
        one = self.row.attention
        return self.row.device, self.row.table, f"{'backward' if one.backward else 'forward'}, head size {one.head_dim}"


SHAPES: dict[str, Callable[[PredictedKernel], bool]] = {
    "> 1 GFLOP": lambda one: one.kernel.flop > 1e9,
    "> 1 GFLOP, sides >= 512": lambda one: isinstance(one.row, PublishedProduct) and one.row.large and one.kernel.flop > 1e9,
    ">= 1 ms": lambda one: one.row.time >= 1e-3,
    "all": lambda _: True,
}
"""classes of kernels, as printed"""


_KEYS = {
    "rows": "rows", "mean_absolute_error": "mean", "median_absolute_error": "median", "p90_absolute_error": "p90",
    "worst_absolute_error": "worst", "mean_error": "bias",
}  # fmt: skip
"""key of the JSON document -> field of `Errors`"""
_SHOWN = ("rows", "mean", "median", "p90", "worst", "bias")
"""figures that the text shows"""


@dataclass(frozen=True, slots=True)
class KernelValidation:
    """The predictions of all published kernels of devices that parsim knows."""

    measured: KernelMeasurements
    products: tuple[PredictedKernel, ...]
    attention: tuple[PredictedKernel, ...]

    @property
    def skipped(self) -> int:
        """Rows of devices that parsim has no file for."""
        rows = (*self.measured.products, *self.measured.attention)
        return len(rows) - len(self.products) - len(self.attention)

    def of(self, device: str, dtype: str, shapes: str = "all", what: str = "product") -> list[PredictedKernel]:
        """The predictions of a group and a class of shapes."""
        holds = SHAPES[shapes]
        return [one for one in (*self.products, *self.attention) if one.group == (device, dtype, what) and holds(one)]


def validate(measured: KernelMeasurements) -> KernelValidation:
    """Predict every kernel of a device that parsim knows, launch included, at the clock of the machine."""
    return KernelValidation(measured, _predict(measured, measured.products), _predict(measured, measured.attention))


def _predict(measured: KernelMeasurements, rows: Iterable[PublishedProduct | PublishedAttention]) -> tuple[PredictedKernel, ...]:
    """By device, in the order of their description."""
    order = list(measured.entries)
    known = sorted((row for row in rows if row.device), key=lambda row: order.index(row.device))
    machines = {(row.device, type(row)): measured.machine(row) for row in known}
    return tuple(PredictedKernel(row, _time(row, machines[row.device, type(row)])) for row in known)


def _time(row: PublishedProduct | PublishedAttention, machine: Device) -> float:
    """As the benchmark timed it: with the host's calls where they take longer than the device [s]."""
    time = kernel_time(machine, row.kernel)
    return max(time, row.calls) if isinstance(row, PublishedProduct) else time


def _tables(predictions: Sequence[PredictedKernel], shapes: Sequence[str]) -> list[tuple[tuple[str, str, str], str, Errors]]:
    """(group, class of shapes, its errors), where a class holds some kernels, and not those of a class before it."""
    summaries = []
    for group in dict.fromkeys(one.group for one in predictions):
        before: list[list[PredictedKernel]] = []
        for name in shapes:
            chosen = [one for one in predictions if one.group == group and SHAPES[name](one)]
            summary = errors(one.error for one in chosen)
            if summary is not None and chosen not in before:
                summaries.append((group, name, summary))
                before.append(chosen)
    return summaries


def _fitted(measured: KernelMeasurements, group: tuple[str, str, str], *, attention: bool) -> str:
    """What of the device was fitted to the rows of a group."""
    device, dtype, what = group
    fitted = measured.entries[device].fitted
    if not attention:
        grouped = what == WHAT["grouped"]
        own = (fit for fit in measured.entries[device].fits if fit.of == dtype and fit.rows == "grouped")
        return ", ".join(key for fit in own for key in fit.parameters) if grouped else fitted.get(dtype, "")
    numbers = [fit.parameters for fit in measured.entries[device].fits if fit.of == dtype and fit.rows == "attention"]
    names = [key.partition(".")[2] for parameters in numbers for key in parameters]
    direction = what.partition(",")[0]
    narrow = what.endswith("head size 64") and not {"d64", "d64_backward"}.isdisjoint(names)
    return ", ".join(names) if direction in names or narrow else ""


def document(validation: KernelValidation) -> dict[str, Any]:
    """The whole comparison as one JSON document."""
    measured = validation.measured

    def rows(predictions: Sequence[PredictedKernel], *, attention: bool) -> list[dict[str, Any]]:
        return [
            {"device": group[0], "implementation" if attention else "dtype": group[1], "what": group[2], "shapes": shapes,
             "fitted_on_these": _fitted(measured, group, attention=attention) or None, **one.document(_KEYS)}
            for group, shapes, one in _tables(predictions, ("all",) if attention else tuple(SHAPES))
        ]  # fmt: skip

    return {
        "parsim": 1,
        "rows_without_device": validation.skipped,
        "products": rows(validation.products, attention=False),
        "attention": rows(validation.attention, attention=True),
        "rows": [_row(one) for one in (*validation.products, *validation.attention)],
    }


def _row(one: PredictedKernel) -> dict[str, Any]:
    row = one.row
    if isinstance(row, PublishedProduct):
        gemm = row.gemm
        shape: dict[str, Any] = {
            "kind": row.kind, "dtype": gemm.dtype, "m": gemm.m, "n": gemm.n, "k": gemm.k, "groups": gemm.batch, "layout": gemm.layout,
            "accumulates": gemm.weight_gradient,
        }  # fmt: skip
    else:
        core = row.attention
        shape = {
            "kind": "attention", "implementation": core.implementation, "backward": core.backward, "causal": core.causal,
            "batch": core.batch, "sequence": core.keys, "heads": core.heads, "kv_heads": core.kv_heads, "head_dim": core.head_dim,
            "value_dim": core.value_dim,
        }  # fmt: skip
    return {"device": row.device, **shape, "measured_s": row.time, "predicted_s": one.time, "error": one.error, "source": row.source}


def text(validation: KernelValidation) -> str:
    """The whole comparison as text."""
    predicted = (*validation.products, *validation.attention)
    lines = [
        f"{len(predicted)} published kernel times of {len({one.row.device for one in predicted})} devices, launch included.",
        *(
            f"{entry.title}: products at {entry.clock:g} of the clock of its device file, which is what the measured machine sustained."
            for entry in validation.measured.entries.values()
            if entry.clock != 1.0
        ),
        "Error: predicted over measured time, less one, in percent: median and 90th percentile of its size, the largest; bias is its mean.",
        "",
        _table(validation, attention=False).text(),
        "",
        _table(validation, attention=True).text(),
        "",
        *(
            f"{entry.title}: a grouped product makes one library call of {1e6 * entry.call:g} us per group and ends no earlier."
            for entry in validation.measured.entries.values()
            if entry.call
        ),
        "On the B200 one product in seven ran near 1400 TFLOP/s, the rest near 1090: nearly half of the kernels",
        "under 0.1 ms, one in a hundred over 1 ms. Short benchmarks end before the power limit takes hold; a training step does not.",
        f"{validation.skipped} rows are of devices that parsim has no file for.",
    ]
    return "\n".join(lines)


def _table(validation: KernelValidation, *, attention: bool) -> Table:
    """A row per group of kernels and class of shapes; a device and a group are named where they begin."""
    measured = validation.measured
    predictions, shapes = (validation.attention, ("all",)) if attention else (validation.products, tuple(SHAPES))
    words = [Column(name, align="left") for name in ("device", "attention" if attention else "type", "what", "shapes")]
    columns = [*words, *(FIGURES[name] for name in _SHOWN), Column("fitted on these rows", align="left", margin=1)]
    rows: list[tuple[Content, ...]] = []
    before = ("", "", "")
    for group, name, one in _tables(predictions, shapes):
        title = "" if group[0] == before[0] else measured.entries[group[0]].title[:18]
        dtype, what = ("", "") if group == before else group[1:]
        fitted = (_fitted(measured, group, attention=attention) or "no") if dtype else ""
        rows.append((title, dtype, what, name, *cells(one, _SHOWN), fitted))
        before = group
    return Table(columns, rows)


def picture(validation: KernelValidation, kind: Literal["svg", "png"] = "svg") -> bytes:
    """Predicted over measured rate of every kernel, a panel for each device with more than a handful."""
    from parsim.report.plots.explanation import PredictedValue, scatter_figure
    from parsim.report.plots.figure import save

    panels: dict[str, list[PredictedValue]] = {}
    for one in (*validation.products, *validation.attention):
        device, dtype, what = one.group
        series = "attention" if isinstance(one.row, PublishedAttention) else dtype if what == WHAT["gemm"] else f"{dtype}, {what}"
        flop = one.kernel.flop
        panels.setdefault(validation.measured.entries[device].title, []).append(
            PredictedValue(series, flop / one.row.time / 1e12, flop / one.time / 1e12)
        )
    return save(scatter_figure({title: points for title, points in panels.items() if len(points) > 4}, "TFLOP/s", 0.2), kind)

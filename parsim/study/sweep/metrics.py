"""The figures of a row: what each is called, what it measures in which unit, which way is better, and where the report has it.

Quantities are written as people do: ``2 s``, ``70 GiB``, ``5 %``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from parsim import units
from parsim.report.definitions import DEFINITIONS
from parsim.report.short_names import named
from parsim.report.timeline import COMMUNICATION, KEYS


class Dimension(NamedTuple):
    """Exponents of the base units; all zero: a plain number."""

    time: int = 0
    bytes: int = 0
    flop: int = 0
    money: int = 0
    energy: int = 0

    def __mul__(self, other: Dimension) -> Dimension:  # type: ignore[override]
        return Dimension(*(one + two for one, two in zip(self, other, strict=True)))

    def __truediv__(self, other: Dimension) -> Dimension:
        return Dimension(*(one - two for one, two in zip(self, other, strict=True)))

    def __str__(self) -> str:
        return _NAMES.get(self) or f"something in {_product(self)}"


NUMBER = Dimension()
TIME = Dimension(time=1)
BYTES = Dimension(bytes=1)
FLOP = Dimension(flop=1)
MONEY = Dimension(money=1)
ENERGY = Dimension(energy=1)
RATE = BYTES / TIME
FLOPS = FLOP / TIME
POWER = ENERGY / TIME
FREQUENCY = NUMBER / TIME

OF_UNITS = {
    "bytes": BYTES, "rate": RATE, "flops": FLOPS, "flop": FLOP, "time": TIME, "power": POWER, "frequency": FREQUENCY, "energy": ENERGY,
    "count": NUMBER, "elements": NUMBER,
}  # fmt: skip
"""dimension of `parsim.units` -> dimension"""
_NAMES = {
    NUMBER: "a plain number", TIME: "a time", BYTES: "an amount of memory", FLOP: "an amount of work", MONEY: "an amount of money",
    ENERGY: "an energy", RATE: "a bandwidth", FLOPS: "a compute rate", POWER: "a power", FREQUENCY: "something per second",
}  # fmt: skip
_SYMBOLS = ("s", "B", "FLOP", "money", "J")
CURRENCIES = ("USD", "EUR", "GBP", "CNY", "JPY", "INR", "KRW", "TWD", "CHF", "CAD", "AUD", "SGD")
"""codes by which an amount of money is written; it is the scenario's own, nothing is converted"""
_RATES = ("tokens/s", "token/s", "samples/s", "sample/s")
EXAMPLES = {
    TIME: "2 s",
    BYTES: "70 GiB",
    RATE: "400 Gb/s",
    FLOPS: "300 TFLOP/s",
    MONEY: "1e6 USD",
    ENERGY: "10 MWh",
    POWER: "1 MW",
    FREQUENCY: "1e5 tokens/s",
}
"""how a quantity of a dimension is written"""


def quantity(number: str, unit: str) -> tuple[float, Dimension] | None:
    """The value in base units (s, B, FLOP, J; money as written) and what it measures; None where `unit` is no unit."""
    if unit == "%":
        return float(number) / 100.0, NUMBER
    if unit in _RATES:
        return float(number), FREQUENCY
    if unit in CURRENCIES:
        return float(number), MONEY
    for name, dimension in OF_UNITS.items():
        try:
            return float(units.parse(f"{number} {unit}", name)), dimension
        except ValueError:
            continue
    return None


def _product(dimension: Dimension) -> str:
    above = [_power(symbol, count) for symbol, count in zip(_SYMBOLS, dimension, strict=True) if count > 0]
    below = [_power(symbol, -count) for symbol, count in zip(_SYMBOLS, dimension, strict=True) if count < 0]
    return " ".join(above or ["1"]) + (f" / {' '.join(below)}" if below else "")


def _power(symbol: str, count: int) -> str:
    return symbol if count == 1 else f"{symbol}^{count}"


Document = Mapping[str, Any]
"""a report as JSON has it"""
Better = Literal["lower", "higher", ""]
_UNITS: dict[str, tuple[Dimension, float]] = {
    "s": (TIME, 1.0), "h": (TIME, 3600.0), "B": (BYTES, 1.0), "1": (NUMBER, 1.0), "fraction": (NUMBER, 1.0), "tokens/s": (FREQUENCY, 1.0),
    "samples/s": (FREQUENCY, 1.0), "TFLOP/s": (FLOPS, 1e12), "money": (MONEY, 1.0), "J": (ENERGY, 1.0), "kg": (NUMBER, 1.0),
}  # fmt: skip
"""unit -> what it measures, and how many base units it is"""
KWH = 3.6e6
"""joules"""
_TOKENS = "training.tokens (or training.examples and training.epochs)"
_PRICE = "a price (economics.gpu_hour)"
_POWER = "power of the devices (device files)"


@dataclass(frozen=True)
class Metric:
    """A column of the results; its value is None where the report has none."""

    name: str
    title: str
    unit: str
    better: Better
    value: Callable[[Document], float | bool | None]
    aliases: tuple[str, ...] = ()
    definition: str = ""
    """name among the report's definitions, where that is not the metric's; or the definition itself"""
    needs: str = ""
    """the keys without which it is null"""

    @property
    def dimension(self) -> Dimension:
        """What it measures; a share is a plain number."""
        return _UNITS[self.unit][0] if self.unit else NUMBER

    @property
    def factor(self) -> float:
        """Base units in one unit of the column."""
        return _UNITS[self.unit][1] if self.unit else 1.0

    def shown(self, value: float | None) -> str:
        """A value with its unit."""
        if value is None:
            return "null"
        if self.unit in ("s", "h"):
            return units.format_time(value * self.factor)
        if self.unit == "B":
            return units.format_bytes(value)
        if self.unit == "J":
            return f"{value / KWH:,.6g} kWh"
        if self.unit == "fraction":
            return f"{100 * value:.4g} %"
        return f"{value:,.6g}" + (f" {self.unit}" if self.unit not in ("", "1", "money", self.title) else "")

    @property
    def text(self) -> str:
        """What it is."""
        name = self.definition or self.name
        return DEFINITIONS[name].text if name in DEFINITIONS else self.definition


def of(*path: str) -> Callable[[Document], Any]:
    """The number at a place of the document; None where there is none."""

    def value(document: Document) -> Any:
        at: Any = document
        for key in path:
            at = at.get(key) if isinstance(at, Mapping) else None
        return at

    return value


def _samples(document: Document) -> float | None:
    rate = document["samples_per_s"]
    return None if not rate else round(float(rate) * float(document["step_time_s"]), 6)


def _exposed(document: Document) -> float | None:
    step = document["step_time_s"]
    return math.fsum(document["breakdown_s"][key] for key in COMMUNICATION) / step if step else None


def _gpu_hours(document: Document) -> float | None:
    rate = document["tokens_per_s"]
    return document["ranks"]["total"] / rate * 1e6 / 3600.0 if rate else None


def _part(key: str) -> Metric:
    own = f"Part of the step of breakdown_rank that is {key}; see breakdown_s."
    return Metric(f"breakdown_s.{key}", key.replace("_", " "), "s", "lower", of("breakdown_s", key), (f"{key}_s",), own)


METRICS: tuple[Metric, ...] = (
    Metric("step_time_s", "step time", "s", "lower", of("step_time_s"), ("step_time",)),
    Metric(
        "estimated_step_time_s", "estimated step", "s", "lower", of("estimate", "step_time_s"), (),
        "The simulated step, corrected by what published runs like it took (estimate.step_time_s).",
    ),
    Metric(
        "p95_step_time_s", "p95 of the step", "s", "lower", of("variability", "step_time_s", "p95"), ("p95_step_time", "p95"),
        "What 95 % of the runs do not exceed, over clusters where GPUs are drawn, else over steps; see variability.",
        "variability.runs, at least 60, and something that varies",
    ),
    Metric("tokens_per_s", "tokens/s", "tokens/s", "higher", of("tokens_per_s")),
    Metric("samples_per_s", "samples/s", "samples/s", "higher", of("samples_per_s")),
    Metric("tokens_per_s_per_gpu", "tokens/s per GPU", "tokens/s", "higher", of("tokens_per_s_per_gpu")),
    Metric("model_tflops_per_gpu", "model TFLOP/s per GPU", "TFLOP/s", "higher", of("model_tflops_per_gpu")),
    Metric("hardware_tflops_per_gpu", "hardware TFLOP/s per GPU", "TFLOP/s", "higher", of("hardware_tflops_per_gpu")),
    Metric("mfu", "MFU", "fraction", "higher", of("mfu")),
    Metric("hfu", "HFU", "fraction", "higher", of("hfu")),
    Metric("bubble_fraction", "bubble", "fraction", "lower", of("bubble_fraction"), ("bubble",)),
    Metric("exposed_communication", "exposed communication", "fraction", "lower", _exposed),
    Metric("peak_bytes", "peak memory", "B", "lower", of("memory", "peak_bytes"), ("peak_memory", "memory.peak_bytes")),
    Metric("headroom_bytes", "headroom", "B", "higher", of("memory", "headroom_bytes"), ("headroom",)),
    Metric("host_bytes", "host memory", "B", "lower", of("memory", "host_bytes"), ("host_memory",)),
    Metric("fits", "fits", "", "higher", of("memory", "fits")),
    Metric("gpus", "GPUs", "1", "lower", of("ranks", "total"), (), "GPUs that the job uses: tensor x context x data x pipeline sizes."),
    Metric("nodes", "nodes", "1", "lower", of("ranks", "nodes"), (), "Nodes that hold at least one GPU of the job."),
    Metric("micro_batches", "micro-batches", "1", "", of("ranks", "micro_batches"), (), "Micro-batches of one replica per step."),
    Metric("samples_per_step", "samples per step", "1", "", _samples, (), "Samples of the whole job per optimizer step."),
    Metric("data_size", "data size", "1", "", of("ranks", "data"), (), "Replicas of the model: ranks of a data-parallel group."),
    Metric("parameters", "parameters", "1", "", of("model", "parameters"), (), "Parameters of the model, tied ones once."),
    Metric("time_to_train_s", "time to train", "s", "lower", of("time_to_train_s"), ("time_to_train",), needs=_TOKENS),
    Metric("gpu_hours", "GPU hours", "h", "lower", of("gpu_hours"), needs=_TOKENS),
    Metric(
        "gpu_hours_per_million_tokens", "GPU hours per 1e6 tokens", "h", "lower", _gpu_hours, (),
        "GPU time that one million tokens take: GPUs / tokens_per_s x 1e6 / 3600; null for models without sequences.",
    ),
    Metric("gpu_hours_billed", "billed GPU hours", "h", "lower", of("gpu_hours_billed"), (), "Hours of all GPUs of the machines.", _TOKENS),
    Metric(
        "cost_to_train", "cost to train", "money", "lower", of("cost_to_train"), ("cost_to_train_usd", "cost"),
        "Price of the whole training, in economics.currency.", f"a price (economics.gpu_hour) and {_TOKENS}",
    ),
    Metric(
        "cost_per_million_tokens", "cost per 1e6 tokens", "money", "lower", of("cost_per_million_tokens"),
        ("cost_per_million_tokens_usd", "cost_per_token"), "Price of one million tokens, in economics.currency.", _PRICE,
    ),
    Metric("cost_per_step", "cost per step", "money", "lower", of("cost_per_step"), (), "Price of one step, in that currency.", _PRICE),
    Metric(
        "cost_per_million_samples", "cost per 1e6 samples", "money", "lower", of("cost_per_million_samples"), (),
        "Price of one million samples, in economics.currency.", _PRICE,
    ),
    Metric("steps_to_train", "steps to train", "1", "", of("steps_to_train"), (), "Optimizer steps of the whole training.", _TOKENS),
    Metric("energy_J", "energy", "J", "lower", of("energy_J"), ("energy",), "Energy of the whole training at the meter.", _TOKENS),
    Metric("energy_per_step_J", "energy per step", "J", "lower", of("energy_per_step_J"), (), "Energy of one step at the meter.", _POWER),
    Metric("energy_per_token_J", "energy per token", "J", "lower", of("energy_per_token_J"), (), "Energy of one token.", _POWER),
    Metric("co2_kg", "CO2", "kg", "lower", of("co2_kg"), (), "CO2 equivalent of the energy.", f"a carbon intensity and {_TOKENS}"),
    Metric(
        "goodput", "goodput", "fraction", "higher", of("goodput"), (), "Share of the time that goes into steps that count.",
        "economics.mtbf_per_gpu",
    ),
    Metric(
        "run_goodput", "goodput of the weeks", "fraction", "higher", of("training_run", "goodput"), (),
        "Share of the time that goes into steps that count, in the training that was played through.", "economics.horizon",
    ),
    Metric("failures", "failures", "1", "lower", of("training_run", "failures"), (), "That struck in that training.", "economics.horizon"),
    *(_part(key) for key in KEYS),
)  # fmt: skip
NAMED = {metric.name: metric for metric in METRICS}
ALIASES = {alias: metric.name for metric in METRICS for alias in metric.aliases}


def metric(name: str) -> Metric | None:
    """The metric of a name, or of a short one (`parsim.report.short_names`)."""
    found = named(name, NAMED, ALIASES)
    return None if found is None else NAMED[found]


def figures(document: Document) -> dict[str, float | bool | None]:
    """All columns of a report."""
    return {item.name: item.value(document) for item in METRICS}


NOTHING: Mapping[str, None] = dict.fromkeys(NAMED)
"""the columns of a run that has no report"""

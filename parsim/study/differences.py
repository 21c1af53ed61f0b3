"""What differs between scenarios, key by key, and between their results, number by number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parsim.report.measured import AT_PEAK
from parsim.report.timeline import COMMUNICATION, KEYS
from parsim.report.variability import runs_of
from parsim.scenario.scenario import Scenario, flow, place_text

Document = Mapping[str, Any]
"""a report as JSON has it"""

EQUAL = 1e-9
"""numbers closer than this, relative to the larger, are the same number"""
_DERIVED = {
    "total": "GPUs", "nodes": "nodes", "idle_gpus": "idle GPUs", "tensor": "tensor size", "context": "context size",
    "data": "data size", "pipeline": "pipeline size", "expert": "expert size", "expert_tensor": "expert tensor size",
    "expert_data": "expert data size", "micro_batches": "micro-batches",
}  # fmt: skip
_ABSENT = object()


@dataclass(frozen=True)
class Input:
    """A key of the resolved scenario whose values differ; None for variants that could not be loaded."""

    key: str
    values: tuple[str | None, ...]
    """as YAML"""
    origins: tuple[str | None, ...]
    """``file:line``, the command-line argument, ``default``, or ``derived``"""


@dataclass(frozen=True)
class ComparedMetric:
    """A number of the report."""

    key: str
    heading: str
    kind: str
    """s | B | share | 1/s | d (of s) | kWh (of J) | 1"""
    value: Callable[[Document], float | None]


@dataclass(frozen=True)
class Compared:
    """A number of the reports, None where there is none."""

    metric: ComparedMetric
    values: tuple[float | None, ...]
    baseline: float | None

    @property
    def differs(self) -> bool:
        """Whether any two of the values that are there are apart."""
        known = [value for value in self.values if value is not None]
        return any(not same(value, known[0]) for value in known)

    @property
    def differences(self) -> tuple[float | None, ...]:
        """Value less the baseline's, in the metric's unit."""
        return tuple(None if value is None or self.baseline is None else value - self.baseline for value in self.values)

    @property
    def relative(self) -> tuple[float | None, ...]:
        """Value over the baseline's, less one; None where the baseline has none or is zero."""
        return tuple(None if value is None or not self.baseline else value / self.baseline - 1.0 for value in self.values)


def same(one: float, other: float) -> bool:
    """Whether two numbers are equal but for rounding."""
    return abs(one - other) <= EQUAL * max(abs(one), abs(other))


# input -----------------------------------------------------------------------------------------------------------


def inputs(scenarios: Sequence[Scenario | None], documents: Sequence[Document | None]) -> list[Input]:
    """The keys whose values differ in the resolved scenarios, then what follows from them: ranks and defaults of the stack."""
    trees = [None if scenario is None else scenario.document() for scenario in scenarios]
    rows = [
        Input(path, tuple(_text(value) for value in values), tuple(_origin(scenario, path) for scenario in scenarios))
        for path, values in _leaves([tree for tree in trees if tree is not None], "", trees)
        if path != "name"
    ]
    known = {row.values for row in rows}
    for key, values in (*_ranks(documents), *_assumptions(documents)):
        present = {value for value in values if value is not None}
        if len(present) > 1 and values not in known:
            rows.append(Input(key, values, tuple(None if value is None else "derived" for value in values)))
    return rows


def _leaves(loaded: Sequence[Any], prefix: str, nodes: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Paths below `prefix` at which the values of `nodes` differ; None stands for a scenario that is not there."""
    keys = dict.fromkeys(key for node in loaded for key in node)
    for key in keys:
        path = f"{prefix}{key}"
        values = [None if node is None else node.get(key, _ABSENT) for node in nodes]
        there = [value for value, node in zip(values, nodes, strict=True) if node is not None]
        if all(value == there[0] and type(value) is type(there[0]) for value in there):
            continue
        if all(isinstance(value, Mapping) for value in there):
            yield from _leaves(there, f"{path}.", values)
        else:
            yield path, [_Nothing if node is None else value for value, node in zip(values, nodes, strict=True)]


class _Nothing:
    """The scenario could not be loaded."""


def _text(value: Any) -> str | None:
    if value is _Nothing:
        return None
    return "–" if value is _ABSENT else flow(value)


def _origin(scenario: Scenario | None, path: str) -> str | None:
    if scenario is None:
        return None
    written: Any = scenario.written
    for key in path.split("."):
        if not isinstance(written, Mapping) or key not in written:
            return "default"
        written = written[key]
    return place_text(scenario.locate(path))


def _ranks(documents: Sequence[Document | None]) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    for key, name in _DERIVED.items():
        yield name, tuple(None if document is None else str(document["ranks"][key]) for document in documents)


def _assumptions(documents: Sequence[Document | None]) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    stated = [None if document is None else {one["name"]: str(one["value"]) for one in document["assumptions"]} for document in documents]
    for name in dict.fromkeys(name for one in stated if one is not None for name in one):
        yield f"assumptions.{name}", tuple(None if one is None else one.get(name) for one in stated)


# result ----------------------------------------------------------------------------------------------------------


def exposed(document: Document) -> float:
    """Time of the step in which the breakdown rank does nothing but communicate [s]."""
    return math.fsum(float(document["breakdown_s"][key]) for key in COMMUNICATION)


def fullest(document: Document) -> Mapping[str, Any] | None:
    """The device class with the highest peak."""
    devices = document["memory"]["devices"]
    return max(devices, key=lambda device: int(device["peak_bytes"]), default=None)


def work(document: Document) -> tuple[float, str]:
    """What one step does: its tokens, or its samples where the model has no sequences."""
    rate, unit = (document["tokens_per_s"], "token") if document["tokens_per_s"] else (document["samples_per_s"], "sample")
    return float(rate or 0.0) * float(document["step_time_s"]), unit


def _part(key: str) -> Callable[[Document], float]:
    return lambda document: float(document["breakdown_s"][key])


def _category(key: str) -> Callable[[Document], float | None]:
    def value(document: Document) -> float | None:
        device = fullest(document)
        return None if device is None else float(device["at_peak"][key])

    return value


def _of(*path: str) -> Callable[[Document], float | None]:
    def value(document: Document) -> float | None:
        at: Any = document
        for key in path:
            at = at[key]
        return None if at is None else float(at)

    return value


def _given(key: str) -> Callable[[Document], float | None]:
    """A number that only some reports have."""
    return lambda document: None if document.get(key) is None else float(document[key])


def _weeks(key: str) -> Callable[[Document], float | None]:
    """A number of the training that was played through."""
    return lambda document: None if document.get("training_run") is None else float(document["training_run"][key])


def _most(key: str) -> Callable[[Document], float | None]:
    """The largest of all devices."""

    def value(document: Document) -> float | None:
        at = [float(device[key]) for device in document["memory"]["devices"] if device[key] is not None]
        return max(at, default=None)

    return value


def _of_runs(name: str) -> Callable[[Document], float | None]:
    """A figure of the step times of many runs; None where there is one."""
    return lambda document: None if (runs := runs_of(document)) is None else runs["step_time_s"][name]


def _slow_gpu(name: str) -> Callable[[Document], float | None]:
    """A figure of the step with one slow GPU; None where nobody asked."""
    return lambda document: None if document.get("slow_gpu") is None else float(document["slow_gpu"][name])


def has_band(document: Document | None) -> bool:
    """Whether the estimate is not the simulated step: published runs say how far off it may be, or the step varies."""
    return document is not None and (document["estimate"]["of"] == "bands" or runs_of(document) is not None)


def tight(document: Document) -> bool:
    """Whether it fits as simulated, and published runs like it may not."""
    memory, band = document["memory"], document["estimate"]["peak_band_bytes"]
    return bool(memory["fits"]) and band is not None and band[1] > memory["peak_bytes"] + memory["headroom_bytes"]


ESTIMATES: tuple[ComparedMetric, ...] = (
    ComparedMetric("estimate.step_time_s", "step time, estimated", "s", _of("estimate", "step_time_s")),
    ComparedMetric("estimate.tokens_per_s", "tokens per second, estimated", "1/s", _of("estimate", "tokens_per_s")),
    ComparedMetric("estimate.mfu", "MFU, estimated", "share", _of("estimate", "mfu")),
    ComparedMetric("estimate.time_to_train_s", "time to train, estimated [d]", "d", _of("estimate", "time_to_train_s")),
)
"""what is ranked, shown where any of the runs has a band of published runs; all other figures are simulated"""
METRICS: tuple[ComparedMetric, ...] = (
    ComparedMetric("step_time_s", "step time", "s", _of("step_time_s")),
    *(ComparedMetric(f"variability.step_time_s.{name}", f"{name} of the runs", "s", _of_runs(name)) for name in ("p50", "p95")),
    ComparedMetric("slow_gpu.step_time_s", "step with one slow GPU", "s", _slow_gpu("step_time_s")),
    ComparedMetric("slow_gpu.slowdown", "  longer by", "share", _slow_gpu("slowdown")),
    ComparedMetric("slow_gpu.idle_gpus", "  as wasteful as idle GPUs", "1", _slow_gpu("idle_gpus")),
    ComparedMetric("tokens_per_s", "tokens per second", "1/s", _of("tokens_per_s")),
    ComparedMetric("samples_per_s", "samples per second", "1/s", _of("samples_per_s")),
    ComparedMetric("tokens_per_s_per_gpu", "tokens per second and GPU", "1/s", _of("tokens_per_s_per_gpu")),
    ComparedMetric("mfu", "MFU", "share", _of("mfu")),
    ComparedMetric("hfu", "HFU", "share", _of("hfu")),
    ComparedMetric("bubble_fraction", "bubble", "share", _of("bubble_fraction")),
    ComparedMetric("exposed_comm_s", "exposed communication", "s", exposed),
    ComparedMetric("memory.peak_bytes", "peak memory", "B", _of("memory", "peak_bytes")),
    ComparedMetric("memory.capacity_bytes", "capacity", "B", _of("memory", "capacity_bytes")),
    ComparedMetric("memory.headroom_bytes", "headroom", "B", _of("memory", "headroom_bytes")),
    ComparedMetric("memory.host_bytes", "host memory", "B", _of("memory", "host_bytes")),
    ComparedMetric("in_flight_micro_batches", "micro-batches in flight, at most", "1", _most("in_flight_micro_batches")),
    ComparedMetric("weight_versions", "versions of the weights, at most", "1", _most("weight_versions")),
)
"""the figures of a comparison; throughput, MFU and the like follow from the step where the work is the same"""
TIME_AND_ENERGY: tuple[ComparedMetric, ...] = (
    ComparedMetric("time_to_train_s", "time to train [d]", "d", _given("time_to_train_s")),
    ComparedMetric("gpu_hours", "GPU-hours", "1", _given("gpu_hours")),
    ComparedMetric("goodput", "goodput", "share", _given("goodput")),
    ComparedMetric("training_run.goodput", "goodput of the weeks", "share", _weeks("goodput")),
    ComparedMetric("training_run.failures", "failures", "1", _weeks("failures")),
    ComparedMetric("energy_J", "energy to train [kWh]", "kWh", _given("energy_J")),
)
"""where the scenarios ask for them"""


def costs(documents: Sequence[Document | None]) -> tuple[ComparedMetric, ...]:
    """The costs of runs that have any, in their one currency; none where currencies differ."""
    bills = [document.get("cost") for document in documents if document is not None]
    currencies = {cost["currency"] for cost in bills if cost is not None}
    if len(currencies) != 1:
        return ()
    (currency,) = currencies
    keys = {"cost_to_train": "cost to train", "cost_per_million_tokens": "cost per million tokens"}
    return tuple(ComparedMetric(key, f"{title} [{currency}]", "1", _given(key)) for key, title in keys.items())


PARTS = tuple(ComparedMetric(f"breakdown_s.{key}", key, "s", _part(key)) for key in KEYS)
"""the step of the breakdown rank"""
CATEGORIES = tuple(ComparedMetric(f"at_peak.{key}", key, "B", _category(key)) for key in AT_PEAK)
"""the peak of the fullest device"""


def results(documents: Sequence[Document | None], baseline: int, metrics: Sequence[ComparedMetric]) -> list[Compared]:
    """The metrics of all documents; differences are against the one at `baseline`."""
    rows = []
    for metric in metrics:
        values = tuple(None if document is None else metric.value(document) for document in documents)
        rows.append(Compared(metric, values, values[baseline]))
    return rows

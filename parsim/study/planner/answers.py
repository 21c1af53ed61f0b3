"""What is said of a state, in stages: a proven bound, a short run, the whole run. Every stage gives one document of the same keys.

Only a simulation may say that something fits. A bound says that it does not, or what it needs at least; a short run says both
provisionally, unless the peak is too near to the capacity.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from parsim.errors import InputError, ParsimError
from parsim.report.measured import AT_PEAK
from parsim.report.report import Report
from parsim.run import StepResult, reported
from parsim.scenario.build import build
from parsim.scenario.built import Built, plan_of
from parsim.scenario.load import load
from parsim.scenario.neighbours import SECTIONS, Neighbours
from parsim.study.planner.short_run import short_run, surely_fits
from parsim.study.planner.state import State, scenario_of, tree_of, whole
from parsim.study.search.bounds import Bounder, capacity_of

KEPT = 8
"""models and machines of which what their states have in common is kept"""
NOTHING: dict[str, Any] = dict.fromkeys((
    "stage", "says", "peak_bytes", "capacity_bytes", "at_peak", "step_time_s", "mfu", "tokens_per_s", "gpus", "estimate",
    "currency", "verdict", "limiter", "confidence", "basis",
)) | {"findings": [], "warnings": []}  # fmt: skip
"""the keys of an answer; bytes, seconds, tokens per second. Times and rates are bounds or simulated; `estimate` is that of the report"""


class Around:
    """States of one model on one cluster: what they have in common is found once."""

    def __init__(self, rest: Mapping[str, Any]) -> None:
        self.neighbours = Neighbours(load(tree_of(rest) | {"training": {}}, trusted=False))
        self.bounder = Bounder()

    def built(self, flat: State) -> Built:
        """The domain objects. Raises `InputError`."""
        return self.neighbours.built({key: value for key, value in flat.items() if _varies(key)})


class Planner:
    """Answers about states that mostly differ from the one before in a single key."""

    def __init__(self) -> None:
        self._around: OrderedDict[str, Around] = OrderedDict()

    def around(self, flat: State) -> Around:
        """Where the state stands. Raises `ScenarioError`."""
        rest = {key: value for key, value in flat.items() if not _varies(key)}
        name = repr(sorted(rest.items(), key=lambda item: item[0]))
        if name not in self._around:
            self._around[name] = Around(rest)
            if len(self._around) > KEPT:
                self._around.popitem(last=False)
        self._around.move_to_end(name)
        return self._around[name]

    def built(self, state: State) -> Built:
        """The domain objects of a state. Raises `InputError`."""
        flat = whole(state)
        return self.around(flat).built(flat)

    def bound(self, state: State) -> dict[str, Any]:
        """What is proved without a simulation: it cannot exist, it does not fit, or what it takes at least."""
        try:
            built = self.built(state)
            bounder = self.around(whole(state)).bounder
        except ParsimError as error:
            return impossible(error)
        try:
            bounds = bounder.bounds(built)
            step = 0.0 if bounds.surely_full else max(bounds.step_time, bounder.tight(built))
        except ParsimError:
            return _unproved(built)
        return NOTHING | {
            "stage": "bound",
            "says": "does not fit" if bounds.surely_full else "at least",
            "peak_bytes": bounds.peak_memory,
            "capacity_bytes": bounds.capacity,
            "step_time_s": step or None,
            "tokens_per_s": bounds.tokens / step if bounds.tokens and step else None,
            "gpus": bounds.gpus,
        }


def _unproved(built: Built) -> dict[str, Any]:
    """The answer where bounds refuse: a job may be legal though nothing is proved of it, with Muon for instance."""
    try:
        plan_of(built, lambda _: 1e-3)
    except ParsimError as error:
        return impossible(error)
    return NOTHING | {"stage": "bound", "says": "at least", "peak_bytes": 0, "capacity_bytes": capacity_of(built), "gpus": built.used_gpus}


def _varies(key: str) -> bool:
    """Whether `Neighbours` may change it."""
    return key.partition(".")[0] in SECTIONS


def impossible(error: ParsimError) -> dict[str, Any]:
    """The answer about what cannot be built."""
    findings = [one.as_dict() for one in error.listed] if isinstance(error, InputError) else [{"message": str(error), "path": ""}]
    kept = ("message", "path", "value", "suggestion")
    return NOTHING | {
        "stage": "bound",
        "says": "impossible",
        "findings": [{key: one.get(key) for key in kept} for one in findings],
    }


def exact(state: State) -> Iterator[dict[str, Any]]:
    """The answers of simulations, better and better; the last one is that of `parsim run`."""
    try:
        scenario = scenario_of(state)
        try:
            if (short := short_run(build(scenario))) is not None:
                yield provisional(short)
        except InputError:
            pass  # what is wrong is said of the step that was asked for
        yield simulated(reported(scenario))
    except ParsimError as error:
        yield impossible(error)


def provisional(short: StepResult) -> dict[str, Any]:
    """The answer of a short run."""
    built, memory, step_time = short.built, short.simulated_memory, short.step_time
    surely, facts = surely_fits(short), short.flop
    fullest = max(memory.devices, key=lambda device: device.device_used_bytes)
    rate = facts.flop_per_step / step_time / built.used_gpus
    return NOTHING | {
        "stage": "provisional",
        "says": "close" if surely is None else "fits" if surely else "does not fit",
        "peak_bytes": fullest.device_used_bytes,
        "capacity_bytes": memory.capacity_bytes - memory.reserve_bytes,
        "at_peak": {name: fullest.at_peak.get(name, 0) for name in AT_PEAK},
        "gpus": built.used_gpus,
        "step_time_s": step_time,
        "mfu": rate / facts.peak_flop_per_gpu if facts.peak_flop_per_gpu else None,
        "tokens_per_s": None if facts.tokens_per_step is None else facts.tokens_per_step / step_time,
    }


def simulated(report: Report) -> dict[str, Any]:
    """The answer of the whole run: the figures of its report."""
    memory, estimate = report.measured.memory, report.estimate
    fullest = max(memory.devices, key=lambda device: device.device_used_bytes)
    band = estimate.peak_band_bytes
    capacity = report.capacity(fullest)
    return NOTHING | {
        "stage": "simulated",
        "says": "fits" if report.fits else "does not fit",
        "tight": bool(report.fits and band is not None and band[1] > capacity),
        "peak_bytes": report.peak_memory,
        "capacity_bytes": capacity,
        "at_peak": {name: fullest.at_peak.get(name, 0) for name in AT_PEAK},
        "step_time_s": report.step_time,
        "mfu": report.mfu,
        "tokens_per_s": report.tokens_per_s,
        "gpus": report.measured.ranks.total,
        "estimate": estimate.document(),
        "currency": None if report.measured.economics is None else report.measured.economics.currency,
        "verdict": report.verdict,
        "limiter": report.limiter,
        "confidence": report.measured.confidence.status,
        "basis": report.measured.confidence.basis,
        "warnings": [" ".join(filter(None, (finding.path, finding.message))) for finding in report.warnings],
    }


def report_page(state: State) -> str:
    """The page of the report, as `parsim run` writes it. Raises `ParsimError`."""
    from parsim.report.page.page import page

    report = reported(scenario_of(state))
    return page([(report.measured.name, report)])

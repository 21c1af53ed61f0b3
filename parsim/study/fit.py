"""Does it fit? A question without a file: build the scenario, run the ledger, look for changes that help.

The answer is that of `simulate` on the scenario that `--save` writes: same ledger, same peaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.report.measured import MemoryFacts
from parsim.report.report import Report
from parsim.run import StepResult, simulate, step_of
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.built import Built
from parsim.scenario.files import parse_value
from parsim.scenario.neighbours import Neighbours
from parsim.study.fit_changes import (
    Candidate,
    double_changes,
    finetune_candidates,
    more_gpus,
    other_devices,
    recomputed,
    single_changes,
)
from parsim.study.fit_question import FitQuestion, Tree, scenario_of
from parsim.study.search.bounds import Bounder
from parsim.study.variants import LACKING, Outcome, Variant, attempted, outcome, whole

MAXIMA = ("micro_batch", "sequence_length", "parameters")
_LONGEST = 4_194_304


@dataclass(frozen=True)
class Alternative:
    """A change that does fit, and what it costs."""

    change: str
    overrides: tuple[str, ...]
    gpus: int
    step_time: float
    """[s]"""
    memory: MemoryFacts
    slowdown: float | None
    """tokens per second (samples, where there are no tokens) of the original over those of the change (> 1: slower); None: no answer"""
    per_token: bool = True
    """whether `slowdown` is of tokens"""

    @property
    def price(self) -> float:
        """`slowdown` as a number to sort by."""
        return self.slowdown or 1.0

    def changes(self, *beginnings: str) -> bool:
        """Whether it sets a key that begins so."""
        return any(override.startswith(beginnings) for override in self.overrides)


@dataclass(frozen=True)
class LargestFit:
    """The largest value that fits, found by simulating it and the next one."""

    what: str
    value: int
    step: int
    fits: Report
    exceeds: Report | None
    """one step more; None where the model itself allows no more"""
    limit: str = ""
    """why there is no next step"""


@dataclass(frozen=True)
class FitAnswer:
    """The verdict on one question."""

    question: FitQuestion
    tree: Tree
    report: Report
    alternatives: tuple[Alternative, ...] = ()
    maximum: LargestFit | None = None
    refused: tuple[str, ...] = field(default=())
    """candidates that cannot be simulated, with the reason"""
    complete: bool = True
    """whether the search for alternatives ran to its end"""

    @property
    def fits(self) -> bool:
        """Whether the question's own configuration fits."""
        return self.report.fits


def fit(question: FitQuestion, *, maximum: str | None = None, alternatives: bool = True) -> FitAnswer:
    """Simulate the question's configuration; if it does not fit, look for changes that do.

    `maximum` (micro_batch, sequence_length or parameters) also solves the inverse. Raises `InputError`.
    """
    answer = verdict(question)
    refused: list[str] = []
    fitting = tuple(find_alternatives(answer, refused)) if alternatives else ()
    largest = None if maximum is None else find_maximum(answer.tree, maximum)
    return replace(answer, alternatives=fitting, maximum=largest, refused=tuple(refused))


def verdict(question: FitQuestion) -> FitAnswer:
    """Simulate the question's configuration, and nothing else. Raises `InputError`."""
    tree = scenario_of(question)
    return FitAnswer(question, tree, simulate(load(tree)))


# -- changes that help --------------------------------------------------------------------------------------------

ENOUGH = 3
"""single changes that fit: then none of two things is tried"""
_NEAR = 1.03
"""prices that differ by less are the same to a reader"""
Found = tuple[str, Alternative]
"""a change that fits, with its family"""


def find_alternatives(answer: FitAnswer, refused: list[str], most: int = 5) -> Iterator[Alternative]:
    """Changes that fit, as they are found: of this hardware (one thing, else two), what is trained, more GPUs, other GPUs; then by price.

    Of changes that cost nearly the same only the smaller is given (`distinct`). Nothing where the question's own configuration fits.
    What cannot be simulated is added to `refused`, with the reason.
    """
    if answer.fits:
        return
    question, tree, report = answer.question, answer.tree, answer.report
    around = _Around(tree)

    def fitting(candidates: Iterable[Candidate], enough: int = 1) -> list[Found]:
        return list(_fitting(around, report, candidates, refused, enough))

    found = distinct(fitting(single_changes(question, tree, report)))
    if len(found) < ENOUGH:
        found = distinct([*found, *fitting(double_changes(question, tree, report), 2)])
    yield from _by_price(found)[:most]
    again = recomputed(question)
    yield from _by_price(fitting(finetune_candidates(question.train, again)))
    ranks = report.measured.ranks
    more = fitting(more_gpus(question, ranks.total, (ranks.total + ranks.idle_gpus) // ranks.nodes))
    yield from _by_price(distinct([("more GPUs", one) for _, one in more]))[:ENOUGH]
    yield from _by_price(distinct(fitting(other_devices(report), 2)))


def _fitting(around: _Around, report: Report, candidates: Iterable[Candidate], refused: list[str], enough: int) -> Iterator[Found]:
    """Those that fit, of a family no more than `enough`, and of recomputation both kinds."""
    satisfied: Counter[str] = Counter()
    for family, change, overrides in candidates:
        if satisfied[family] >= (2 if family == "recomputation" else enough):
            continue
        came = around.outcome(overrides)
        if came.refusal:
            refused.append(f"{change}: {came.refusal}")
        elif came.status == "fits" and (step := came.answer) is not None:
            satisfied[family] += 1
            slower, per_token = _slowdown(report, step), bool(step.built.model.sequence)
            yield family, Alternative(change, overrides, step.built.used_gpus, step.step_time, step.memory, slower, per_token)


def distinct(found: Sequence[Found]) -> list[Found]:
    """The changes without those that a smaller one makes needless.

    That is one of the same family, or a part of the change, which costs as much or less, up to 3 %.
    """
    kept: list[Found] = []
    for family, one in sorted(found, key=lambda pair: (len(pair[1].overrides), pair[1].price)):
        smaller = [other for kind, other in kept if kind == family or set(other.overrides) < set(one.overrides)]
        if not any(other.price <= one.price * _NEAR and other.gpus <= one.gpus for other in smaller):
            kept.append((family, one))
    return kept


def _by_price(found: Sequence[Found]) -> list[Alternative]:
    return sorted((one for _, one in found), key=lambda one: (one.gpus, one.price))


class _Around:
    """The scenarios around a question's; what they have in common is found once."""

    def __init__(self, tree: Tree) -> None:
        self._base = load(tree)
        self._neighbours = Neighbours(self._base)
        self._bounder = Bounder()

    def outcome(self, overrides: tuple[str, ...]) -> Outcome[StepResult | None]:
        """The step of a change; None where it was not simulated because it surely does not fit."""
        return attempted(lambda: self._built(overrides), self._look)

    def _look(self, built: Built) -> tuple[StepResult | None, str]:
        # a bound looks at every block of a partly frozen model, which takes longer than to simulate it
        if built.training.finetune is None and self._bounder.surely_full(built):
            return None, LACKING
        step = step_of(built)
        return step, "" if step.fits else LACKING

    def _built(self, overrides: tuple[str, ...]) -> Built:
        if any(override.startswith("cluster.") for override in overrides):
            return build(self._base.with_overrides(*overrides))
        changes = (override.partition("=") for override in overrides)
        return self._neighbours.built({key: parse_value(value) for key, _, value in changes})


def _slowdown(before: Report, after: StepResult) -> float | None:
    old = before.samples_per_s
    new = after.built.training.global_batch / after.step_time if after.step_time > 0 else None
    was, now = (before.measured.scenario["training"]["sequence_length"], after.built.training.sequence_length)
    return old / new * (was / now if was and now else 1.0) if old and new else None


# -- the inverse --------------------------------------------------------------------------------------------------


def check_maximum(what: str) -> None:
    """Raise a `ScenarioError` unless `what` is one of `MAXIMA`."""
    if what not in MAXIMA:
        raise ScenarioError(Finding(f"cannot maximise {what!r}", "--max", what, f"one of {', '.join(MAXIMA)}"))


def find_maximum(tree: Tree, what: str) -> LargestFit:
    """The largest micro_batch, sequence_length or parameters (by layers, at the model's width) that still fits."""
    check_maximum(what)
    change: Callable[[int], Mapping[str, Any]]
    if what == "parameters":
        change = lambda value: {"model": {"base": tree["model"], "layers": value}}  # noqa: E731
    else:
        change = lambda value: {"training": {**tree["training"], what: value}}  # noqa: E731
    known: dict[int, Outcome[Report]] = {}

    def attempt(value: int) -> Outcome[Report]:
        if value not in known:
            known[value] = outcome(Variant({**tree, **change(value)}), whole)
        return known[value]

    def fitting(value: int) -> bool:
        return attempt(value).status == "fits"

    low = _first_fitting(fitting, attempt)
    high = low
    while high < _LONGEST and fitting(high * 2):
        high *= 2
    low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle)
    largest, beyond = attempt(low), attempt(low + 1)
    if largest.answer is None:  # not reached: low fits
        raise ScenarioError(Finding(largest.reason, what, low))
    return LargestFit(what, low, 1, largest.answer, beyond.answer, beyond.refusal)


def _first_fitting(fitting: Callable[[int], bool], attempt: Callable[[int], Outcome[Report]]) -> int:
    if fitting(1):
        return 1
    one = attempt(1)
    text = one.refusal if one.answer is None else f"not even 1 fits: {one.answer.verdict}"
    raise ScenarioError(Finding(text, "--max", 1, "shard more, recompute, or use more GPUs"))


# -- formulas -----------------------------------------------------------------------------------------------------


def formulas(report: Report) -> Sequence[tuple[str, str]]:
    """(category, formula with this question's numbers) for every part of the peak of the fullest device."""
    measured = report.measured
    device = max(measured.memory.devices, key=lambda d: d.device_used_bytes)
    peak, resident = device.at_peak, device.resident_bytes
    ranks = measured.ranks
    return [
        (
            "parameters",
            f"{measured.model.parameters:,} parameters; {measured.memory.bytes_per_parameter} (weight + gradient + master + moments)",
        ),
        ("split", f"over tensor {ranks.tensor} x pipeline {ranks.pipeline} x data {ranks.data} ranks, as the strategy shards them"),
        ("resident", " + ".join(f"{name} {_gib(size)}" for name, size in resident.items() if size) + f" = {_gib(sum(resident.values()))}"),
        (
            "peak",
            f"at {device.peak_op or 'the start'}, {device.peak_time_s or 0.0:.4g} s into the step: live tensors, each rounded up to 512 B",
        ),
        ("allocated", f"{_gib(device.allocated_bytes)} = the sum of live tensors as the caching allocator counts them"),
        ("reserved", f"{_gib(device.reserved_bytes)} = segments of the caching allocator (2 MiB, 20 MiB, or the size rounded to 2 MiB)"),
        (
            "device used",
            f"reserved + context {_gib(peak['context'])} + communicators {_gib(peak['communicators'])} = {_gib(device.device_used_bytes)}",
        ),
        ("fits", f"device used <= capacity {_gib(measured.memory.capacity_bytes)} - reserve {_gib(measured.memory.reserve_bytes)}"),
    ]


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"

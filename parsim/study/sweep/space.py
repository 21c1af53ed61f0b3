"""From a definition to candidates, and from a candidate to its row: what may be simulated, what is refused before, and under which key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from parsim.errors import Finding, InputError, ScenarioError
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.scenario.scenario import Scenario, flow
from parsim.scenario.schema import canonical, value_at
from parsim.study.search.lattice import Lattice
from parsim.study.sweep.constraint import Constraint, Known
from parsim.study.sweep.definition import SEED, StudyDefinition
from parsim.study.sweep.ranges import Axis, Point, points
from parsim.study.sweep.rows import Row, row
from parsim.study.sweep.vocabulary import Machines, Stage, UnknownWord, Word
from parsim.study.sweep.vocabulary import key_of as full_key
from parsim.study.variants import Outcome, Variant, document, failed, outcome
from parsim.study.workers import stamp

_LATER = {
    "parallel.data.size": "data_size",
    "training.gradient_accumulation": "micro_batches",
    "training.global_batch": "samples_per_step",
}
"""leaf that may be auto -> the fact or figure that says what it came to"""
_DIGITS = 16


class Candidate(NamedTuple):
    """A scenario that may be simulated."""

    key: str
    """hash of the resolved scenario, of parsim's version and of the catalogue"""
    overrides: tuple[str, ...]
    """``key=value`` on top of the study's scenario"""
    scenario: Mapping[str, Any]
    """resolved and self-contained, as JSON has it"""
    trust_code: bool = False
    """whether the Python files that it names may run, in whatever process"""


@dataclass(frozen=True)
class Place:
    """One point of the range, in order: a candidate, or why it is none."""

    number: int
    settings: Mapping[str, Any]
    """long key -> value"""
    candidate: Candidate | None = None
    refused: Row | None = None
    """it cannot be simulated"""
    excluded: str = ""
    """the constraint that it does not keep"""
    same_as: str = ""
    """key of the candidate that it equals"""
    facts: Mapping[str, float] = field(default_factory=dict)


class Space:
    """Everything a definition ranges over.

    Raises:
        ScenarioError: the scenario itself cannot be read, or a range refers to nothing.
    """

    def __init__(self, definition: StudyDefinition) -> None:
        self.definition = definition
        self.base = _base(definition)
        self.machines = Machines()
        self.axes: tuple[Axis, ...] = definition.axes
        self._sizes: dict[tuple[str, ...], int] = {}
        self._first: dict[str, int] = {}

    def points(self) -> Iterator[dict[str, Any]]:
        """All points, each a value per key."""
        for point in points(self.axes, self.resolve):
            if not self.definition.strategies:
                yield dict(point)
                continue
            for strategy in self._strategies(point):
                yield {**strategy, **point}

    def places(self, where: Sequence[Constraint]) -> Iterator[Place]:
        """All points in order, each looked at as far as it can be without simulating it."""
        for place in self.written(where):
            yield place if place.excluded else self.loaded(place, where)

    def written(self, where: Sequence[Constraint]) -> Iterator[Place]:
        """All points in order, judged by nothing but what is written there."""
        judges = [one for one in where if one.stage == Stage.WRITTEN]
        for number, settings in enumerate(self.points()):
            known = self.known(settings)
            broken = next((one for one in judges if one.holds(known) is False), None)
            yield Place(number, settings, excluded="" if broken is None else broken.why(known))

    def loaded(self, place: Place, where: Sequence[Constraint]) -> Place:
        """The place with its candidate, or why it has none. Of places with the same scenario, the first that is asked for has it."""
        number, settings = place.number, place.settings
        overrides = arguments(settings)
        try:
            scenario = self.base.with_overrides(*overrides)
        except InputError as error:
            refused: Outcome[Any] = Outcome("refused", findings=tuple(error.findings))
            return Place(number, settings, refused=row(self._unloaded_key(overrides), settings, refused))
        facts = self.machines.facts(scenario)
        known = self.known(settings, facts)
        if broken := next((one for one in where if one.holds(known) is False), None):
            return Place(number, settings, excluded=broken.why(known), facts=facts)
        document = scenario.document()
        candidate = Candidate(key_of(document), overrides, document, scenario.trust_code)
        if self._first.setdefault(candidate.key, number) != number:
            return Place(number, settings, same_as=candidate.key)
        return Place(number, settings, candidate, facts=facts)

    def _unloaded_key(self, overrides: Sequence[str]) -> str:
        return _digest("unloaded", self.base.hash(), *overrides)

    def known(self, settings: Mapping[str, Any], facts: Mapping[str, Any] | None = None, row: Mapping[str, Any] | None = None) -> Known:
        """The value of a word where the scenario is changed so, as far as `facts` and a `row` of results go."""
        facts, figures = facts or {}, row or {}

        def value(word: Word) -> Any:
            if word.stage == Stage.WRITTEN:
                known = _read(word, self._written(settings, word.name))
                if known is None and word.name in _LATER:
                    later = _LATER[word.name]
                    known = facts.get(later, figures.get(later))
                return known
            if word.name in facts:
                return facts[word.name]
            known = figures.get(word.name)
            return known if known is None or isinstance(known, (bool, str)) else float(known) * word.factor

        return value

    def _written(self, settings: Mapping[str, Any], key: str) -> Any:
        for varied, value in settings.items():
            if varied == key:
                return value
            if key.startswith(f"{varied}.") and isinstance(value, Mapping):
                return value_at(value, key[len(varied) + 1 :])
        return value_at(self.base.tree, key)

    def resolve(self, word: str, before: Point) -> int:
        """The whole number that ``gpus`` or a key means where the scenario is changed so.

        Raises:
            ScenarioError: it is none.
        """
        if word == "gpus":
            machine = arguments({key: value for key, value in before.items() if key.startswith("cluster")})
            if machine not in self._sizes:
                self._sizes[machine] = self.machines.gpus(self.base.with_overrides(*machine))
            return self._sizes[machine]
        try:
            key = full_key(word)
        except UnknownWord as error:
            raise ScenarioError(Finding(str(error.args[0]), word, None, error.args[1])) from None
        value = self._written(before, key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ScenarioError(Finding(f"{key} is {flow(value)}: only a whole number has divisors", key, value, "write gpus or a number"))
        return value

    def _strategies(self, point: Point) -> list[dict[str, Any]]:
        """The standard strategies of the scenario at a point."""
        return list(Lattice(build(self.base.with_overrides(*arguments(point))), self.definition.ranges))


def evaluate(candidate: Candidate, settings: Mapping[str, Any]) -> Row:
    """Simulate one candidate; whatever goes wrong becomes its row."""
    variant = Variant(candidate.scenario, trust_code=candidate.trust_code)
    return row(candidate.key, settings, outcome(variant, document))


def evaluate_all(work: Sequence[tuple[Candidate, Mapping[str, Any]]]) -> list[Row]:
    """The rows of a chunk, in order: what a worker does."""
    return [evaluate(candidate, settings) for candidate, settings in work]


def lost(place: Place, reason: str) -> Row:
    """The row of a place with which parsim or its process broke."""
    return row(place.candidate.key if place.candidate is not None else "", place.settings, failed(reason))


def without_seed(place: Place) -> str:
    """What the seeds of one candidate have in common."""
    return flow({key: value for key, value in place.settings.items() if key != SEED})


def arguments(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The ``key=value`` words of settings."""
    return tuple(f"{key}={flow(value)}" for key, value in settings.items())


def key_of(document: Mapping[str, Any]) -> str:
    """What tells this work from any other: the resolved scenario without its name, the files it runs, the version, the catalogue."""
    work = json.dumps({key: value for key, value in document.items() if key != "name"}, sort_keys=True, separators=(",", ":"))
    return _digest(work, *_contents(document))


def _digest(*words: str) -> str:
    return sha256("\n".join((*stamp(), *words)).encode()).hexdigest()[:_DIGITS]


def _contents(document: Mapping[str, Any]) -> Iterator[str]:
    """Schedules and strategies that are files of the user's: their text decides the result too."""
    for key in ("parallel.pipeline.schedule", "parallel.data.strategy"):
        name = str(value_at(document, key)).partition(".py:")
        path = Path(f"{name[0]}.py" if name[1] else name[0])
        if "\n" not in name[0] and path.suffix and path.is_file():
            yield sha256(path.read_bytes()).hexdigest()


def _base(definition: StudyDefinition) -> Scenario:
    source = definition.source
    if isinstance(source, Scenario):
        if definition.trust_code:
            source = replace(source, trust_code=True)
        return source.with_overrides(*definition.arguments) if definition.arguments else source
    fixed = [key for axis in definition.axes for key in axis.keys]
    words = [word for word in definition.arguments if word.partition("=")[0] not in fixed]
    return load(source, *words, named=definition.named, trust_code=definition.trust_code)


def _read(word: Word, value: Any) -> Any:
    """A value of the scenario in base units; None for auto and for what cannot be read."""
    if word.leaf is None:
        return value if isinstance(value, (int, float, str, bool)) else None
    try:
        checked = word.leaf.check(canonical(word.name, value)[1])
    except ValueError:
        return None
    if word.sort in ("text", "any"):
        return checked if isinstance(checked, (int, float, str, bool)) else None
    return None if isinstance(checked, str) else checked

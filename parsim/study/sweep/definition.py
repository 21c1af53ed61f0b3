"""What a study asks: a scenario, the range of its keys, constraints, objectives, seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario.files import parse_value
from parsim.scenario.load import COMMAND_LINE
from parsim.scenario.scenario import Scenario
from parsim.scenario.schema import canonical, is_key, leaves
from parsim.scenario.shortforms import long_key
from parsim.scenario.yaml_tree import Origin
from parsim.study.axes import split_values
from parsim.study.search.lattice import STANDARD, Ranges
from parsim.study.sweep.constraint import Constraint, constraint
from parsim.study.sweep.ranges import Axis, Divisors, Listed, lattice_of, values_of
from parsim.study.sweep.rows import SearchObjective, objective
from parsim.study.sweep.vocabulary import UnknownWord, key_of

Source = str | Path | Mapping[str, Any] | Scenario
SEED = "variability.seed"
TOP = 10
"""rows of the table"""
MOST_SEEDS = 1000


@dataclass(frozen=True)
class StudyDefinition:
    """A study before anything is simulated."""

    source: Source
    name: str
    stem: str
    """what its directory is called after"""
    named: tuple[str, ...] = ()
    """overrides of the scenario file"""
    arguments: tuple[str, ...] = ()
    """``key=value`` of all candidates"""
    axes: tuple[Axis, ...] = ()
    strategies: bool = False
    """also over the standard strategies of the machine"""
    ranges: Ranges = STANDARD
    """which of them"""
    where: tuple[Constraint, ...] = ()
    objectives: tuple[SearchObjective, ...] = ()
    top: int = TOP
    trust_code: bool = False
    """whether the Python files that its scenarios name may run"""

    def changed(
        self,
        *,
        arguments: Sequence[str] = (),
        named: Sequence[str] = (),
        where: Sequence[str] = (),
        minimise: Sequence[str] = (),
        maximise: Sequence[str] = (),
        seeds: int | Sequence[int] | None = None,
        top: int | None = None,
    ) -> StudyDefinition:
        """With what the command line says: its values win over axes of the same key, its objectives over those of the file, its
        constraints come on top.

        Raises:
            ScenarioError: all problems.
        """
        reader = Reader()
        plain, axes, strategies = reader.arguments(arguments)
        constraints = [reader.constraint(text, _option("--where", text)) for text in where]
        wanted = [reader.objective(text, _option("--minimise", text)) for text in minimise]
        wanted += [reader.objective(text, _option("--maximise", text), most=True) for text in maximise]
        if seeds is not None:
            axes = [*axes, *reader.seeds(seeds, _option("--seeds", seeds))]
        if reader.findings:
            raise ScenarioError(reader.findings)
        given = {key for axis in axes for key in axis.keys} | {long_key(argument.partition("=")[0].strip()) for argument in plain}
        kept = [axis for axis in self.axes if not given & set(axis.keys)]
        return replace(
            self,
            named=(*self.named, *named),
            arguments=(*self.arguments, *plain),
            axes=(*kept, *axes),
            strategies=self.strategies or strategies,
            where=(*self.where, *(one for one in constraints if one is not None)),
            objectives=tuple(one for one in wanted if one is not None) or self.objectives,
            top=top or self.top,
        )


class Reader:
    """Reads parts of a definition, and keeps what is wrong with them."""

    def __init__(self, beside: str = "") -> None:
        self.findings: list[Finding] = []
        self._beside = beside
        """the file to which paths are relative; empty: the working directory"""

    def constraint(self, text: Any, origin: Origin) -> Constraint | None:
        try:
            return constraint(text, origin)
        except ScenarioError as error:
            self.findings += error.findings
        return None

    def objective(self, name: Any, origin: Origin, *, most: bool = False) -> SearchObjective | None:
        try:
            return objective(name, origin, most=most)
        except ScenarioError as error:
            self.findings += error.findings
        return None

    def key(self, word: Any, origin: Origin) -> str:
        """The long form of a key that may be varied; what has none is a finding."""
        text = str(word)
        full = long_key(text)
        if is_key(full) and text not in ("parallel", "training", "cluster", "name", "study", "extends", "overrides"):
            return full
        try:
            return key_of(text)
        except UnknownWord as error:
            message, hint = error.args
            self.findings.append(Finding(str(message).replace("word", "key"), text, None, hint, *origin))
        return full

    def axis(self, word: Any, form: Any, origin: Origin) -> Axis | None:
        """The axis of one key."""
        key = self.key(word, origin)
        try:
            values = values_of(form, str(word), origin)
        except ScenarioError as error:
            self.findings += error.findings
            return None
        if isinstance(values, Divisors):
            return Divisors(key, values.of)
        return self.listed(str(word), key, values, origin)

    def listed(self, word: str, key: str, values: Sequence[Any], origin: Origin) -> Listed:
        """The values of one key, each once."""
        distinct: dict[tuple[type, str], Any] = {}
        for value in self.meant(word, key, values, origin):
            distinct.setdefault((type(value), repr(value)), value)
        return Listed((key,), tuple((value,) for value in distinct.values()))

    def meant(self, word: str, key: str, values: Sequence[Any], origin: Origin) -> list[Any]:
        """The values of one key in their long form, each checked as the scenario would."""
        kind = leaves().get(key)
        written = "parallel.zero" if word in ("parallel.zero", "zero") else key
        checked = [self.found(canonical(written, value)[1]) for value in values]
        for value in checked if kind is not None else ():
            try:
                kind.check(value)  # type: ignore[union-attr]
            except ValueError as error:
                message, _, hint = str(error).partition("; ")
                self.findings.append(Finding(message, word, value, hint, *origin))
        return checked

    def found(self, value: Any) -> Any:
        """A text that names a file beside the study, with its whole path."""
        if not isinstance(value, str) or not self._beside or "\n" in value:
            return value
        name, function = (f"{value.partition('.py:')[0]}.py", value.partition(".py")[2]) if ".py:" in value else (value, "")
        path = Path(self._beside).parent / name
        return f"{path.resolve()}{function}" if Path(name).suffix and path.is_file() else value

    def zipped(self, columns: Any, origin: Origin) -> Listed | None:
        """Keys whose values go together, one by one."""
        example = "write {parallel.tensor.size: [1, 2], parallel.pipeline.size: [4, 2]}"
        if not isinstance(columns, Mapping) or len(columns) < 2:
            self.findings.append(Finding("keys that go together are a mapping of at least two lists", "zip", columns, example, *origin))
            return None
        lists: dict[str, list[Any]] = {}
        for word, form in columns.items():
            key = self.key(word, origin)
            try:
                values = values_of(form, str(word), origin)
            except ScenarioError as error:
                self.findings += error.findings
                continue
            if isinstance(values, Divisors):
                self.findings.append(Finding("divisors cannot go together with other keys", str(word), form, "write a list", *origin))
            else:
                lists[key] = self.meant(str(word), key, values, origin)
        sizes = {key: len(values) for key, values in lists.items()}
        if len(set(sizes.values())) > 1:
            said = ", ".join(f"{key} has {size}" for key, size in sizes.items())
            self.findings.append(Finding(f"keys that go together need equally many values: {said}", "zip", None, example, *origin))
            return None
        return Listed(tuple(lists), tuple(zip(*lists.values(), strict=True))) if lists else None

    def lattice(self, form: Any, origin: Origin) -> Axis | None:
        try:
            return lattice_of(form, origin, lambda word: self.key(word, origin))
        except ScenarioError as error:
            self.findings += error.findings
        return None

    def seeds(self, value: Any, origin: Origin) -> list[Axis]:
        """So many seeds from 0, or those in a list."""
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_SEEDS:
            value = list(range(value))
        whole = isinstance(value, (list, tuple)) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
        if not whole or not value:
            hint = "write seeds: 5, or seeds: [1, 2, 3]"
            self.findings.append(Finding("seeds are a count or a list of whole numbers", "seeds", value, hint, *origin))
            return []
        return [self.listed(SEED, SEED, value, origin)]

    def arguments(self, words: Sequence[str]) -> tuple[list[str], list[Axis], bool]:
        """``key=value`` words: those of all candidates, those that make axes, and whether ``strategy=auto`` is among them."""
        plain: list[str] = []
        axes: list[Axis] = []
        strategies = False
        for argument in words:
            word, equals, text = argument.partition("=")
            word, place = word.strip(), (COMMAND_LINE + argument, None, None)
            if word == "strategy" and text.strip() == "auto":
                strategies = True
                continue
            values = [] if not equals else self.values(word, text, place)
            form = values[0] if len(values) == 1 else None
            axis: Axis | None = None
            if word == "lattice" and isinstance(form, Mapping):
                axis = self.lattice(form, place)
            elif len(values) > 1:
                axis = self.axis(word, values, place)
            elif isinstance(form, Mapping) and set(form) & {"from", "powers_of_two", "divisors_of"}:
                axis = self.axis(word, form, place)
            else:
                plain.append(_long(word, equals, text))
            if axis is not None and any(set(axis.keys) & set(other.keys) for other in axes):
                self.findings.append(Finding("takes several values twice", word, text, "write all of them once, with commas", *place))
            axes += [] if axis is None else [axis]
        return plain, axes, strategies

    def values(self, word: str, text: str, place: Origin) -> list[Any]:
        """The values of one argument."""
        values = []
        for part in split_values(text):
            if not part and len(split_values(text)) > 1:
                self.findings.append(Finding("a value between commas is empty", word, text, "write a,b,c", *place))
                continue
            try:
                values.append(parse_value(part))
            except ScenarioError as error:
                self.findings.append(Finding(error.findings[0].message, word, part, "put the value in quotes", *place))
        return values


def _long(word: str, equals: str, text: str) -> str:
    """An argument whose key may be as short as in constraints; what is no key is for loading to refuse."""
    if not is_key(long_key(word)):
        try:
            word = key_of(word)
        except UnknownWord:
            return f"{word}{equals}{text}"  # loading says so
    return f"{word}{equals}{text}"


def _option(name: str, value: Any) -> Origin:
    return (f"{COMMAND_LINE}{name} {value}", None, None)

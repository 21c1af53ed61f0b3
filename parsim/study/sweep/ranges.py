"""The range of a study: lists, ranges, powers of two, divisors, lattices and keys that go together, as points.

A point is one choice: a value for every key. Axes whose values depend on the machine (divisors of ``gpus``, lattices) are expanded for
each of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import prod
from typing import Any, Protocol

from parsim.errors import Finding, ScenarioError
from parsim.scenario.values import shown
from parsim.scenario.yaml_tree import Origin
from parsim.study.search.lattice import divisors

Point = Mapping[str, Any]
"""long key -> value"""
Of = str | int
"""a number, ``gpus``, or a key of the scenario"""
Resolve = Callable[[str, Point], int]
"""the whole number that a word means where the scenario is changed so"""
MOST = 1_000_000
"""values of one axis"""
FORMS = "write a list, {from: 1, to: 9, step: 2}, {from: 1, to: 64, factor: 2}, {powers_of_two: [1, 64]} or {divisors_of: gpus}"


class Axis(Protocol):
    """Something that takes several values."""

    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def depends(self) -> bool:
        """Whether its values follow from those of other axes."""

    def points(self, before: Point, resolve: Resolve) -> Sequence[Point]:
        """Its values where the others are as in `before`."""

    def document(self) -> Any: ...


@dataclass(frozen=True)
class Listed:
    """Rows of values; several keys go together (zipped)."""

    keys: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    depends: bool = False

    def points(self, before: Point, resolve: Resolve) -> Sequence[Point]:
        return [dict(zip(self.keys, row, strict=True)) for row in self.rows]

    def document(self) -> Any:
        return {"keys": list(self.keys), "values": [list(row) for row in self.rows]}


@dataclass(frozen=True)
class Divisors:
    """Every divisor of a number, in order."""

    key: str
    of: Of
    depends: bool = True

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def points(self, before: Point, resolve: Resolve) -> Sequence[Point]:
        return [{self.key: value} for value in divisors(_whole(self.of, before, resolve))]

    def document(self) -> Any:
        return {"keys": [self.key], "divisors_of": self.of}


@dataclass(frozen=True)
class ProductAxis:
    """Every way to write a number as a product of one factor per key, in order of the factors."""

    keys: tuple[str, ...]
    equals: Of
    depends: bool = True

    def points(self, before: Point, resolve: Resolve) -> Sequence[Point]:
        return [dict(zip(self.keys, row, strict=True)) for row in factorisations(_whole(self.equals, before, resolve), len(self.keys))]

    def document(self) -> Any:
        return {"product": list(self.keys), "equals": self.equals}


def factorisations(number: int, factors: int) -> list[tuple[int, ...]]:
    """Ordered ways to write `number` as a product of so many factors.

    >>> factorisations(4, 2)
    [(1, 4), (2, 2), (4, 1)]
    """
    if factors == 1:
        return [(number,)]
    return [(first, *rest) for first in divisors(number) for rest in factorisations(number // first, factors - 1)]


def powers_of_two(low: float, high: float) -> list[int]:
    """The powers of two from `low` to `high`, both included.

    >>> powers_of_two(1, 20)
    [1, 2, 4, 8, 16]
    """
    return [1 << exponent for exponent in range(64) if low <= 1 << exponent <= high]


def stepped(low: float, high: float, step: float) -> list[Any]:
    """From `low` to at most `high`; decimals stay what they look like.

    >>> stepped(0.1, 0.5, 0.2), stepped(8, 32, 8)
    ([0.1, 0.3, 0.5], [8, 16, 24, 32])
    """
    begin, end, by = (Decimal(str(value)) for value in (low, high, step))
    return [_plain(begin + by * count) for count in range(int((end - begin) / by) + 1)]


def multiplied(low: float, high: float, factor: float) -> list[Any]:
    """From `low` to at most `high`, each so many times the one before.

    >>> multiplied(1, 30, 3)
    [1, 3, 9, 27]
    """
    value, end, by = (Decimal(str(number)) for number in (low, high, factor))
    values = []
    while value <= end:
        values.append(_plain(value))
        value *= by
    return values


def points(axes: Sequence[Axis], resolve: Resolve) -> Iterator[Point]:
    """Every combination, the last axis fastest; axes that depend on others come after them."""
    ordered = [*(axis for axis in axes if not axis.depends), *(axis for axis in axes if axis.depends)]
    keys = [key for axis in axes for key in axis.keys]
    counts = [len(axis.points({}, resolve)) for axis in axes if not axis.depends]
    if (total := prod(counts)) > MOST:
        text = f"{' x '.join(f'{count:,}' for count in counts)} = {total:,} points of the range: at most {MOST:,}"
        raise ScenarioError(Finding(text, ", ".join(keys), suggestion="give fewer values, or look at one key at a time"))

    def below(number: int, before: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if number == len(ordered):
            yield before
            return
        for point in ordered[number].points(before, resolve):
            yield from below(number + 1, {**before, **point})

    for combination in below(0, {}):
        yield {key: combination[key] for key in keys}


def values_of(form: Any, key: str, place: Origin) -> list[Any] | Divisors:
    """The values that a study file or an argument writes for `key`. Raises ScenarioError, with the forms there are."""
    if isinstance(form, list):
        if not form:
            raise ScenarioError(Finding("takes no value at all", key, form, FORMS, *place))
        return list(form)
    if not isinstance(form, Mapping):
        return [form]
    known = frozenset(form)
    if known == {"divisors_of"}:
        return Divisors(key, _of(form["divisors_of"], key, place))
    if known == {"powers_of_two"}:
        bounds = form["powers_of_two"]
        if not (isinstance(bounds, list) and len(bounds) == 2 and all(map(_is_number, bounds)) and 1 <= bounds[0] <= bounds[1]):
            raise ScenarioError(Finding(f"{shown(bounds)} is not [from, to]", key, form, "write {powers_of_two: [1, 64]}", *place))
        return _some(list(powers_of_two(*bounds)), form, key, place)
    if known in ({"from", "to", "step"}, {"from", "to", "factor"}, {"from", "to"}):
        return _some(_range(form, key, place), form, key, place)
    raise ScenarioError(Finding(f"{shown(dict(form))} is not a range", key, dict(form), FORMS, *place))


def lattice_of(form: Any, place: Origin, name: Callable[[Any], str]) -> ProductAxis:
    """``{product: [keys], equals: gpus}``; `name` gives the long form of a key. Raises ScenarioError."""
    example = "write {product: [parallel.tensor.size, parallel.pipeline.size, parallel.data.size], equals: gpus}"
    keys = form.get("product") if isinstance(form, Mapping) else None
    if not isinstance(form, Mapping) or set(form) != {"product", "equals"} or not isinstance(keys, list) or len(keys) < 2:
        raise ScenarioError(Finding(f"{shown(form)} is not a lattice", "lattice", form, example, *place))
    return ProductAxis(tuple(name(key) for key in keys), _of(form["equals"], "lattice", place))


def _range(form: Mapping[str, Any], key: str, place: Origin) -> list[Any]:
    low, high = form["from"], form["to"]
    word = "factor" if "factor" in form else "step"
    by = form.get(word, 1)
    if not all(map(_is_number, (low, high, by))):
        hint = "write numbers; values with units are written as a list"
        raise ScenarioError(Finding(f"{shown(dict(form))} is not a range of numbers", key, dict(form), hint, *place))
    if low > high:
        raise ScenarioError(Finding(f"a range from {low} to {high} is empty", key, dict(form), f"write from: {high}, to: {low}", *place))
    if by <= (1 if word == "factor" else 0) or (word == "factor" and low <= 0):
        rule = "a factor is more than 1, and from is more than 0" if word == "factor" else "a step is more than 0"
        raise ScenarioError(Finding(f"{rule}: {word} is {by}, from {low}", key, dict(form), FORMS, *place))
    if word == "step" and (high - low) / by > MOST:
        raise ScenarioError(Finding(f"{(high - low) / by:,.0f} values; at most {MOST:,}", key, dict(form), "take a larger step", *place))
    return multiplied(low, high, by) if word == "factor" else stepped(low, high, by)


def _some(values: list[Any], form: Mapping[str, Any], key: str, place: Origin) -> list[Any]:
    if not values:
        raise ScenarioError(Finding("there is no such value", key, dict(form), FORMS, *place))
    return values


def _of(value: Any, key: str, place: Origin) -> Of:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or (isinstance(value, int) and not 1 <= value <= 10**9):
        raise ScenarioError(Finding(f"{shown(value)} is not a whole number", key, value, "write gpus, a number, or a key", *place))
    return value


def _whole(of: Of, before: Point, resolve: Resolve) -> int:
    return of if isinstance(of, int) else resolve(of, before)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(value: Decimal) -> float | int:
    return int(value) if value == value.to_integral_value() else float(value)

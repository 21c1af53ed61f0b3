"""The values that a question may have, from what a flag or a file says; each raises ValueError with the rule for anything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parsim import units
from parsim.scenario import files
from parsim.scenario.values import shown
from parsim.study.axes import split_values
from parsim.study.size.question import Purchase, parse_money

TYPICAL = "typical"
"""variability where only runs are asked for"""


def items(value: Any) -> list[Any]:
    """The members of a list, or of a text with commas; anything else alone."""
    if isinstance(value, str):
        return split_values(value)
    return list(value) if isinstance(value, (list, tuple)) else [value]


def text(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)} is not a name")
    return value.strip()


def one_of(words: Sequence[str]) -> Callable[[Any], str]:
    """One of some words."""

    def convert(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{shown(value)} is not one of {', '.join(words)}")
        return str(value)

    return convert


def some_of(words: Sequence[str]) -> Callable[[Any], tuple[str, ...]]:
    """Some of some words, each once."""
    one = one_of(words)
    return lambda value: tuple(dict.fromkeys(one(item) for item in items(value)))


def whole(least: int, most: int) -> Callable[[Any], int]:
    """A whole number between two."""

    def convert(value: Any) -> int:
        number = units.parse(value, "count")
        if not isinstance(number, int) or not least <= number <= most:
            raise ValueError(f"{shown(value)} is not a whole number from {least:,} to {most:,}")
        return number

    return convert


def wholes(most: int) -> Callable[[Any], tuple[int, ...]]:
    """Whole numbers from 1, sorted."""
    one = whole(1, most)
    return lambda value: tuple(sorted({one(item) for item in items(value)}))


def number(least: float, most: float) -> Callable[[Any], float]:
    """A number between two."""

    def convert(value: Any) -> float:
        number = float(units.parse(value, "count"))
        if not least <= number <= most:
            raise ValueError(f"{shown(value)} is not a number from {least:g} to {most:g}")
        return number

    return convert


def positive(value: Any) -> float:
    """A number above 0."""
    try:
        number = float(units.parse(value, "count"))
    except ValueError:
        number = 0.0
    if not 0 < number <= 1e6:
        raise ValueError(f"{shown(value)} is not a number above 0, to 1e6; write for example 60")
    return number


def share(value: Any) -> float:
    """A share above 0, to 1."""
    number = float(units.parse(value, "count"))
    if not 0 < number <= 1:
        raise ValueError(f"{shown(value)} is not a share above 0, to 1")
    return number


def time(value: Any) -> float:
    """A time [s]."""
    return float(units.parse(value, "time"))


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false")
    return value


def batch(value: Any) -> int | str:
    """Samples, or a text such as ``4000000 tokens``."""
    count, noun = units.parse_counted(value)
    if noun not in ("", "token", "sequence", "sample") or not isinstance(count, int) or count < 1:
        raise ValueError(f"{shown(value)} is no batch; write samples, or for example '4M tokens'")
    return f"{count} tokens" if noun == "token" else count


def variability(value: Any) -> Mapping[str, Any]:
    """The section of a scenario, from the name of a profile or a mapping; how many runs is a question of its own."""
    given = files.parse_value(value) if isinstance(value, str) and value.lstrip().startswith("{") else value
    if isinstance(given, str) and given.strip():
        return {"profile": given.strip()}
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"{shown(value)} is no variability; write a profile such as {TYPICAL}, or {{gpus: {{spread: 0.02}}}}")
    if "runs" in given:
        raise ValueError("how many runs there are is a key of the question: write runs (--runs)")
    return {str(key): item for key, item in given.items()}


def purchase(value: Any) -> Purchase:
    """A price per GPU or per machine."""
    text, slash, unit = str(value).partition("/")
    unit = unit.strip().lower() if slash else "gpu"
    if unit not in ("gpu", "node"):
        raise ValueError(f"{shown(value)}: a price is per gpu or per node; write '30000 USD/gpu' or '300000 USD/node'")
    return Purchase(parse_money(text, "30000 USD/gpu"), unit)

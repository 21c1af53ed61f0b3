"""Quantities with units, read and written.

The grammar is ``number [prefix]unit``: prefixes ``k M G T P E`` (powers of 1000), ``Ki Mi Gi Ti Pi Ei`` (powers of 1024)
and ``m u µ n``; units ``B b bit``, ``B/s b/s bit/s bps``, ``FLOP/s FLOPS``, ``s min h d``, ``W``, ``Hz``, ``J Wh``.
``b`` is a bit and ``B`` is a byte, always. Values come back in SI base units (B, B/s, FLOP/s, s, W, Hz, J); bytes are ints.
Arithmetic is exact (fractions), so ``400 Gb/s`` is 50e9 B/s to the last digit. Everything here raises `ValueError` only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

__all__ = [
    "DIMENSIONS",
    "format_bytes",
    "format_count",
    "format_flop",
    "format_flops",
    "format_rate",
    "format_time",
    "is_digits",
    "multiplier",
    "parse",
    "parse_counted",
    "physical",
    "real",
    "whole",
]

_Scale = dict[str, Fraction | int]
_DECIMAL: _Scale = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY: _Scale = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_SMALL: _Scale = {
    "m": Fraction(1, 10**3),
    "u": Fraction(1, 10**6),
    "µ": Fraction(1, 10**6),
    "μ": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}
_SHORT_SCALE: _Scale = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12, "P": 10**15, **_BINARY}

_BIT = Fraction(1, 8)
_LARGE: _Scale = {**_DECIMAL, **_BINARY}
_METRIC: _Scale = {**_DECIMAL, **_SMALL}
_PLAIN: _Scale = {"": 1}

# dimension -> unit -> (factor to the base unit, prefixes it may carry)
_UNITS: dict[str, dict[str, tuple[Fraction | int, _Scale]]] = {
    "bytes": {"B": (1, _LARGE), "b": (_BIT, _LARGE), "bit": (_BIT, _LARGE), "bits": (_BIT, _LARGE)},
    "rate": {
        "B/s": (1, _LARGE), "Bps": (1, _LARGE), "b/s": (_BIT, _LARGE), "bit/s": (_BIT, _LARGE), "bps": (_BIT, _LARGE),
    },
    "flops": {"FLOP/s": (1, _DECIMAL), "FLOPS": (1, _DECIMAL)},
    "flop": {"FLOP": (1, _DECIMAL)},
    "time": {
        "s": (1, _METRIC), "min": (60, _PLAIN), "h": (3600, _PLAIN), "hour": (3600, _PLAIN), "hours": (3600, _PLAIN),
        "d": (86400, _PLAIN), "day": (86400, _PLAIN), "days": (86400, _PLAIN),
    },
    "power": {"W": (1, _METRIC)},
    "frequency": {"Hz": (1, _DECIMAL)},
    "energy": {"J": (1, _METRIC), "Wh": (3600, _DECIMAL)},
}  # fmt: skip
_NOUNS = {
    "count": ("tokens", "token", "sequences", "sequence", "samples", "sample", "parameters", "parameter", "elements", "element",
              "GPUs", "GPU", "steps", "step", "ranks", "rank", "layers", "layer"),
    "elements": ("elements", "element"),
}  # fmt: skip
_NAMES = {
    "bytes": ("a size in B", "80 GiB"),
    "rate": ("a bandwidth in B/s", "400 Gb/s"),
    "flops": ("a compute rate in FLOP/s", "312 TFLOP/s"),
    "flop": ("an amount of work in FLOP", "1.4 PFLOP"),
    "time": ("a time in s", "1.5 ms"),
    "power": ("a power in W", "400 W"),
    "frequency": ("a frequency in Hz", "1.41 GHz"),
    "energy": ("an energy in J", "3.6 MJ"),
    "count": ("a count", "4M"),
    "elements": ("a number of elements", "5e8"),
}

_RANGES: dict[str, tuple[str, float, float, str]] = {
    "rate": ("rate", 1e3, 1e18, "1 kB/s to 1 EB/s"),
    "flops": ("flops", 1e6, 1e18, "1 MFLOP/s to 1 EFLOP/s"),
    "memory": ("bytes", 2**20, 2**50, "1 MiB to 1 PiB"),
    "latency": ("time", 0.0, 10.0, "0 s to 10 s"),
}
"""what is described -> its dimension, and the least and most that any machine has, in base units and in words"""

DIMENSIONS = tuple(_NAMES)
"""the dimensions that `parse` knows"""

_NUMBER = r"[+-]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*(?P<number>{_NUMBER})\s*(?P<unit>\S.*?)?\s*")
_NOT_A_NUMBER = {"nan", "inf", "infinity", "-inf", "+inf", ".nan", ".inf", "-.inf", "+.inf"}
_LARGEST = Fraction(10) ** 30
_MOST_DIGITS = 30


def parse(text: str | float, dimension: str) -> float | int:
    """The value of `text` in the base unit of `dimension` (one of `DIMENSIONS`).

    Bytes and elements are ints; a count is an int where it is whole, else a float; everything else is a float.
    Bare numbers are counts or elements; elsewhere only a bare 0 is accepted, anything else is refused with "write the unit".

    Raises `ValueError`: unknown or wrong unit (the message names both dimensions), no unit, NaN, infinity, a negative value.
    """
    if dimension not in _NAMES:
        raise ValueError(f"unknown dimension {dimension!r}; known: {', '.join(DIMENSIONS)}")
    if dimension in ("count", "elements"):
        value, _ = parse_counted(text, dimension)
        return value
    return _known(text, dimension) if isinstance(text, str) else _measure(text, dimension)


def _measure(text: str | float, dimension: str) -> float | int:
    """`text` in the base unit of a dimension that has units."""
    number, unit = _split(text, dimension)
    if not unit:
        if number == 0:
            return 0 if dimension == "bytes" else 0.0
        name, example = _NAMES[dimension]
        raise ValueError(f"{_quote(text)} has no unit, expected {name}; write the unit, for example {example!r}")
    factor = _factor(unit, dimension)
    if factor is None:
        raise ValueError(_wrong_unit(str(text).strip(), number, unit, dimension))
    exact = number * factor
    if exact > _LARGEST:
        raise ValueError(f"{_quote(text)} is beyond anything real (more than 1e30 in base units)")
    if dimension != "bytes":
        return float(exact)
    if exact.denominator != 1 and (unit in _UNITS["bytes"] or 0 < exact < 1):
        raise ValueError(f"{_quote(text)} is not a whole number of bytes")
    return round(exact)


_known = lru_cache(maxsize=4096)(_measure)
"""The same texts are read with every scenario: those of its machine, its devices and its software."""


def physical(text: str | float, quantity: str) -> float | int:
    """`text` as `parse` reads it, within what machines have.

    `quantity` is a dimension, or what of that dimension is described: ``memory`` [B] or ``latency`` [s]. Zero is left to the caller.

    >>> physical("600 GB/s", "rate"), physical("80 GiB", "memory")
    (600000000000.0, 85899345920)

    Raises `ValueError`: see `parse`; a bandwidth, peak, memory or latency that no machine has.
    """
    if quantity not in _RANGES:
        return parse(text, quantity)
    dimension, least, most, words = _RANGES[quantity]
    value = parse(text, dimension)
    if value and not least <= value <= most:
        name = {"memory": "memory", "latency": "a latency", "rate": "a bandwidth", "flops": "a peak"}[quantity]
        raise ValueError(f"{_quote(text)} is beyond any machine: {name} is {words}; is the unit right?")
    return value


def is_digits(text: str) -> bool:
    """Whether `text` is a whole number in the digits 0 to 9; `str.isdigit` takes those of every script, and superscripts."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def whole(text: object) -> int:
    """The whole number in `text`, which `int` would also read from digits of other scripts. Raises `ValueError`."""
    digits = text.strip() if isinstance(text, str) else ""
    if not is_digits(digits.removeprefix("-").removeprefix("+")):
        raise ValueError(f"{_quote(text)} is not a whole number in the digits 0 to 9")
    return int(digits)


def real(text: object) -> float:
    """The finite number in `text`, which `float` would also read from digits of other scripts. Raises `ValueError`."""
    number = float(text) if isinstance(text, str) and text.isascii() and "_" not in text else math.nan
    if not math.isfinite(number):
        raise ValueError(f"{_quote(text)} is not a finite number in the digits 0 to 9")
    return number


def parse_counted(text: str | float, dimension: str = "count") -> tuple[float | int, str]:
    """A count and the noun behind it, without its plural s: ``4M tokens`` gives (4000000, "token"), ``1536`` gives (1536, "").

    Suffixes k M G (or B) T P and Ki Mi Gi Ti; see `parse` for errors.
    """
    number, unit = _split(text, dimension)
    words = unit.split()
    noun = ""
    if words and words[-1] in _NOUNS[dimension]:
        noun = words.pop().removesuffix("s")
    suffix = "".join(words)
    scale = _SHORT_SCALE.get(suffix)
    if scale is None:
        raise ValueError(_wrong_unit(str(text).strip(), number, unit, dimension))
    exact = number * scale
    if exact > _LARGEST:
        raise ValueError(f"{_quote(text)} is beyond anything real (more than 1e30)")
    if exact.denominator == 1:
        return int(exact), noun
    if dimension == "elements":
        raise ValueError(f"{_quote(text)} is not a whole number of elements")
    return float(exact), noun


def multiplier(text: object) -> float:
    """The factor of ``x2`` or ``x0.5``: a positive number behind an x. Raises `ValueError` for anything else."""
    match = re.fullmatch(rf"\s*[x×]\s*({_NUMBER})\s*", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{_quote(text)} is not a multiplier; write for example 'x2' or 'x0.5'")
    factor = float(match[1])
    if not 0 < factor < math.inf:
        raise ValueError(f"{_quote(text)}: a multiplier must be a positive number")
    return factor


def format_bytes(count: float, *, decimal: bool = False, digits: int = 4) -> str:
    """Memory in binary units, ``79.25 GiB``; with `decimal` also ``(85.09 GB)``."""
    text = _scaled(count, _BINARY_STEPS, digits)
    if decimal and abs(count) >= 1024:
        text += f" ({_scaled(count, _decimal_steps('B'), digits)})"
    return text


def format_rate(rate: float, *, bits: bool = False, digits: int = 4) -> str:
    """Bandwidth in decimal units, ``25 GB/s``; with `bits` also ``(200 Gb/s)``."""
    text = _scaled(rate, _decimal_steps("B/s"), digits)
    return f"{text} ({_scaled(rate * 8, _decimal_steps('b/s'), digits)})" if bits else text


def format_flops(rate: float, *, digits: int = 4) -> str:
    """Compute rate, ``155.3 TFLOP/s``."""
    return _scaled(rate, _decimal_steps("FLOP/s"), digits)


def format_flop(amount: float, *, digits: int = 4) -> str:
    """Amount of work, ``3.387 EFLOP``."""
    return _scaled(amount, _decimal_steps("FLOP"), digits)


def format_time(seconds: float, *, digits: int = 4) -> str:
    """A duration in ns, us, ms, s, min (from 10 min), h (from 2 h) or d (from 2 days)."""
    return _scaled(seconds, _TIME_STEPS, digits)


def format_count(count: float, noun: str = "", *, digits: int = 4) -> str:
    """A count with its noun: ``174.6B parameters``, ``1536 sequences``. Whole numbers below 100,000 are written out."""
    whole = abs(count) < 100_000 and float(count).is_integer()
    text = str(int(count)) if whole else _scaled(count, _COUNT_STEPS, digits).replace(" ", "")
    return f"{text} {noun}".strip()


def snapped(value: float) -> float:
    """`value` with eight significant digits, to be rounded further for people; whole numbers as they are.

    Two ways to simulate the same step agree to 1e-9, no better. A time that lies between two texts by its nature, such as 12.5 % of
    a step, would fall to either side of it by chance; with eight digits it is the same number in both.
    """
    return value if isinstance(value, int) or not math.isfinite(value) else float(f"{value:.7e}")


def _decimal_steps(unit: str) -> tuple[tuple[Fraction, Fraction, str], ...]:
    return tuple((Fraction(value), Fraction(value), prefix + unit) for prefix, value in reversed(_DECIMAL.items()))


_BINARY_STEPS = (
    *((Fraction(value), Fraction(value), f"{prefix}B") for prefix, value in reversed(_BINARY.items())),
    (Fraction(1), Fraction(1), "B"),
)
_COUNT_STEPS = tuple(
    (Fraction(size), Fraction(size), unit) for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"), (1, ""))
)
_TIME_STEPS = (  # shown from, divided by, unit
    (Fraction(2 * 86400), Fraction(86400), "d"),
    (Fraction(2 * 3600), Fraction(3600), "h"),
    (Fraction(600), Fraction(60), "min"),
    (Fraction(1), Fraction(1), "s"),
    (Fraction(1, 10**3), Fraction(1, 10**3), "ms"),
    (Fraction(1, 10**6), Fraction(1, 10**6), "us"),
    (Fraction(1, 10**9), Fraction(1, 10**9), "ns"),
)


def _scaled(value: float, steps: Sequence[tuple[Fraction, Fraction, str]], digits: int) -> str:
    """`value` in the largest step that is not above it, `digits` significant digits, trailing zeros dropped."""
    if not math.isfinite(value):
        return f"{value} {steps[-1][2]}"
    size = abs(value)
    if size == 0:
        return f"0 {next(unit for _, scale, unit in steps if scale == 1)}".rstrip()
    _, scale, unit = next((step for step in steps if snapped(size / float(step[1])) >= step[0] / step[1]), steps[-1])
    shown = snapped(value / float(scale)) if digits < 8 else value / float(scale)
    if abs(shown) < 1e-3:
        return f"{shown:.{digits}g} {unit}".rstrip()
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(shown))))
    text = f"{shown:.{decimals}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text} {unit}".rstrip()


def _split(text: object, dimension: str) -> tuple[Fraction, str]:
    """Number and unit text; refuses what is not a number, not finite or negative."""
    name, example = _NAMES[dimension]
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise ValueError(f"{_quote(text)} is not {name}; write for example {example!r}")
    if isinstance(text, (int, float)):
        if isinstance(text, int) and abs(text) > _LARGEST:
            raise ValueError(f"{_quote(text)} is beyond anything real (more than 1e30)")
        if not math.isfinite(text):
            raise ValueError(f"{text} is not a finite number; expected {name}, for example {example!r}")
        number, unit = Fraction(str(text)), ""
    else:
        first = text.strip().split(" ")[0].lower()
        if first in _NOT_A_NUMBER:
            raise ValueError(f"{_quote(text)} is not a finite number; expected {name}, for example {example!r}")
        match = _QUANTITY.fullmatch(text)
        if match is None:
            raise ValueError(f"{_quote(text)} is not {name}; write a number and a unit, for example {example!r}")
        exponent = re.search(r"[eE]([+-]?[0-9]+)$", match["number"])
        if exponent is not None and abs(int(exponent[1])) > 300:
            raise ValueError(f"{_quote(text)} is beyond anything real")
        number, unit = Fraction(match["number"].replace("_", "")), match["unit"] or ""
        if unit.startswith(","):
            raise ValueError(f"{_quote(text)}: write thousands without commas, for example '1_000' or '1000'")
    if number < 0:
        raise ValueError(f"{_quote(text)} is negative; {name} must not be")
    return number, unit


def _factor(unit: str, dimension: str) -> Fraction | int | None:
    """What one `unit` is in the base unit of `dimension`, or None where it is not a unit of it."""
    for base, (factor, prefixes) in _UNITS.get(dimension, {}).items():
        if unit.endswith(base):
            scale = prefixes.get(unit[: len(unit) - len(base)])
            if scale is not None:
                return Fraction(factor) * scale
    return None


def _quote(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _wrong_unit(text: str, number: Fraction, unit: str, dimension: str) -> str:
    """The message for a unit that `dimension` does not have: both dimensions and what to write instead."""
    shown = text.removesuffix(unit).strip() or str(number)
    name, example = _NAMES[dimension]
    found = next((other for other in _UNITS if _factor(unit, other) is not None), None)
    if found is not None:
        hint = f'"{example}"'
        if found == "bytes" and dimension == "rate":
            hint = f'"{shown} {unit}/s"'
        elif found == "rate" and dimension == "bytes" and unit.endswith("/s"):
            hint = f'"{shown} {unit[:-2]}"'
        elif {found, dimension} == {"flop", "flops"}:
            hint = f'"{shown} {unit}/s"' if dimension == "flops" else f'"{shown} {unit[:-2] if unit.endswith("/s") else unit[:-1]}"'
        return f'"{text}" is {_NAMES[found][0]}, expected {name}; write for example {hint}'
    if unit.endswith("T/s"):
        return f'"{text}" counts transfers, expected {name}; write the payload rate of the link, for example "24 GB/s" for PCIe 4.0 x16'
    return f'"{text}": unknown unit {unit!r}, expected {name}; {_spelling(shown, unit, dimension) or f"write for example {example!r}"}'


def _spelling(shown: str, unit: str, dimension: str) -> str:
    """A repair for a unit that is right except for its letters, or an empty text."""
    if unit[:1] == "K" and not unit.startswith("Ki"):
        return f'write "{shown} k{unit[1:]}" (1000) or "{shown} Ki{unit[1:]}" (1024)'
    if unit == "m" and dimension == "time":
        return f'write "{shown} min" or "{shown} ms"'
    candidates: dict[str, None] = {}
    if dimension in _NOUNS:
        candidates.update({suffix: None for suffix in _SHORT_SCALE if suffix.lower() == unit.lower()})
    for base, (_, prefixes) in _UNITS.get(dimension, {}).items():
        for prefix in prefixes:
            if (prefix + base).lower() == unit.lower():
                candidates[prefix + base] = None
    if not candidates:
        return ""
    written = " or ".join(f'"{shown} {candidate}"' for candidate in candidates)
    bits = " (B is bytes, b is bits)" if dimension in ("bytes", "rate") and len(candidates) > 1 else ""
    return f"write {written}{bits}"

"""What a number of a constraint measures, and quantities as people write them: ``2 s``, ``70 GiB``, ``5 %``."""

from __future__ import annotations

from typing import NamedTuple

from parsim import units


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

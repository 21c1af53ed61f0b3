"""Amounts of money as people write them: ``5M USD``, ``2.50``, ``USD 30000``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SCALE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}
_AMOUNT = r"(?P<number>[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+]?[0-9]+)?) ?(?P<scale>[kKMB]?)"
_MONEY = re.compile(rf"(?:(?P<before>[A-Za-z]{{3}}) +)?{_AMOUNT}(?: ?(?P<after>[A-Za-z]{{3}}))?")
_LARGEST = 1e12


@dataclass(frozen=True, slots=True)
class Money:
    """An amount; without a currency it is in that of the question."""

    amount: float
    currency: str = ""

    def __str__(self) -> str:
        """As a scenario's ``economics`` reads it."""
        return f"{self.amount:.15g} {self.currency}".strip()


def parse_money(text: object, example: str = "2.50 USD") -> Money:
    """The amount in a text or number.

    Raises `ValueError` with the rule and an example for anything else, negative amounts and amounts beyond 1e12.

    >>> parse_money("5M USD"), parse_money(2.5)
    (Money(amount=5000000.0, currency='USD'), Money(amount=2.5, currency=''))
    """
    rule = f"{text!r} is no amount of money; write for example {example!r}"
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise ValueError(rule)
    match = _MONEY.fullmatch(str(text).strip())
    if match is None or (match["before"] and match["after"]):
        signs = {"$": "USD", "€": "EUR", "£": "GBP"}
        hint = next((f"; write {code} instead of {sign}" for sign, code in signs.items() if sign in str(text)), "")
        raise ValueError(rule + (hint or ("; write thousands without commas" if "," in str(text) else "")))
    amount = float(match["number"].replace("_", "")) * _SCALE[match["scale"]]
    if not amount <= _LARGEST:
        raise ValueError(f"{text!r} is more than 1e12")
    return Money(amount, (match["before"] or match["after"] or "").upper())

"""Widths of figures as journals give them."""

from __future__ import annotations

import re

from parsim.errors import Finding, InputError

_INCHES = {"in": 1.0, "inch": 1.0, '"': 1.0, "mm": 1.0 / 25.4, "cm": 1.0 / 2.54, "pt": 1.0 / 72.0}
NARROWEST, WIDEST = 2.0, 60.0
"""[in]"""


def inches(width: str | float) -> float:
    """``3.5in``, ``89 mm``, ``8.9cm``, ``252pt`` (1/72 in) or a number of inches.

    Raises:
        InputError: not a length, or not between 2 and 60 inches.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z\"]*)\s*", str(width))
    if match is None or (match[2] or "in") not in _INCHES:
        raise InputError(Finding(f"{str(width)!r} is no width", "width", width, "write it as 3.5in, 89mm, 8.9cm or 252pt"))
    value = float(match[1]) * _INCHES[match[2] or "in"]
    if not NARROWEST <= value <= WIDEST:
        raise InputError(Finding(f"a figure {value:g} in wide cannot be read", "width", width, f"choose {NARROWEST:g}in to {WIDEST:g}in"))
    return value

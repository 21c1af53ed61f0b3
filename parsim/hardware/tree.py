"""Reading device and topology trees: typed access to YAML mappings, with every problem collected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from parsim.errors import Finding, TopologyError
from parsim.units import physical

_MISSING = object()
_REMARKS = ("source", "note", "assumption")
"""keys that any mapping may carry for its readers"""


def closest(word: object, known: Iterable[str]) -> str:
    """A suggestion sentence: the nearest of `known` to `word`, or the whole list where nothing is near."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(str(word), names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(names)}" if names else ""


class Tree:
    """One mapping of a device or topology file, read key by key.

    Problems are appended to the `findings` shared by the whole file. A key nobody asked for is a problem too, so
    call :meth:`close` when all keys were read; :meth:`stop` raises what was collected.
    """

    def __init__(self, data: object, path: str, findings: list[Finding]) -> None:
        self.path = path
        self.findings = findings
        self.data: Mapping[str, Any] = {}
        self._read: dict[str, None] = dict.fromkeys(_REMARKS)
        if isinstance(data, Mapping):
            self.data = data
        elif data is not None:
            self.findings.append(Finding("expected a mapping", path, data))

    def where(self, key: str) -> str:
        """Dotted key of `key` in the file."""
        return f"{self.path}.{key}" if self.path else key

    def fail(self, key: str, message: str, suggestion: str = "") -> None:
        """Collect a problem at `key`."""
        self.findings.append(Finding(message, self.where(key) if key else self.path, self.data.get(key), suggestion))

    def has(self, key: str) -> bool:
        """Whether the file gives `key`."""
        return self.data.get(key) is not None

    def raw(self, key: str, default: Any = None) -> Any:
        """The value as written."""
        self._read[key] = None
        value = self.data.get(key)
        return default if value is None else value

    def quantity(self, key: str, dimension: str, default: float | object = _MISSING, positive: bool = True) -> float:
        """A unit string such as ``2039 GB/s`` in SI units, within what machines have (`parsim.units.physical`).

        Without a default the key is required.
        """
        value = self.raw(key)
        if value is None:
            if default is _MISSING:
                self.fail(key, f"missing: a {dimension} quantity is required")
                return 1.0
            return default  # type: ignore[return-value]
        try:
            number = physical(value, dimension)
        except ValueError as error:
            message, _, suggestion = str(error).partition("; ")
            self.fail(key, message, suggestion)
            return 1.0
        if positive and number == 0:
            self.fail(key, "must be greater than 0")
            return 1.0
        return number

    def number(self, key: str, default: float | object = _MISSING, low: float = 0.0, high: float = float("inf")) -> float:
        """A plain number with ``low <= number <= high``."""
        value = self.raw(key)
        if value is None:
            if default is _MISSING:
                self.fail(key, "missing: a number is required")
                return low
            return default  # type: ignore[return-value]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(key, "expected a number")
            return low
        if not low <= value <= high:
            self.fail(key, f"{value} is outside {low:g} ... {high:g}")
            return low
        return float(value)

    def whole(self, key: str, default: int | object = _MISSING, low: int = 1, high: int = 1_000_000) -> int:
        """An integer with ``low <= integer <= high``."""
        value = self.raw(key)
        if value is None:
            if default is _MISSING:
                self.fail(key, "missing: a whole number is required")
                return low
            return default  # type: ignore[return-value]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high or value != int(value):
            self.fail(key, f"expected a whole number from {low} to {high}")
            return low
        return int(value)

    def text(self, key: str, default: str | object = _MISSING) -> str:
        """A string."""
        value = self.raw(key)
        if value is None:
            if default is _MISSING:
                self.fail(key, "missing: a name is required")
                return ""
            return default  # type: ignore[return-value]
        if not isinstance(value, str):
            self.fail(key, "expected a text")
            return ""
        return value

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            self.fail(key, "expected true or false")
            return default
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """A list of strings, or one string."""
        value = self.raw(key, [])
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            self.fail(key, "expected a list of names")
            return ()
        return tuple(value)

    def items(self, key: str) -> list[Any]:
        """A list of any items."""
        value = self.raw(key, [])
        if not isinstance(value, list):
            self.fail(key, "expected a list", "write for example [a, b]")
            return []
        return value

    def child(self, key: str) -> Tree:
        """The mapping under `key` (empty where absent)."""
        return Tree(self.raw(key), self.where(key), self.findings)

    def children(self, key: str) -> dict[str, Tree]:
        """The mappings under `key`, by name."""
        inner = self.child(key)
        return {str(name): Tree(value, inner.where(str(name)), self.findings) for name, value in inner.data.items() if name not in _REMARKS}

    def close(self) -> None:
        """Collect a finding for every key that nobody read."""
        for key in self.data:
            if key not in self._read:
                self.fail(str(key), "unknown key", closest(key, (name for name in self._read if name not in _REMARKS)))

    def stop(self) -> None:
        """Raise everything collected so far.

        Raises:
            TopologyError: with all findings, if there are any.
        """
        if self.findings:
            raise TopologyError(self.findings)

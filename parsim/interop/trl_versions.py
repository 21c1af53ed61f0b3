"""Which versions of TRL a file can be for, by the keys of its trainer that it has, and what these take where a key is not given.

The table is `tables/trl-versions.yaml`. Several values in these versions leave a question open: which version it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from parsim.scenario import files

VERSION = "the version of TRL"
"""what says what is taken where nothing is said"""
OLDEST = (0, 14)
"""that has a GRPOTrainer"""
_TABLE = Path(__file__).parent / "tables" / "trl-versions.yaml"


@dataclass(frozen=True, slots=True)
class TrlVersions:
    """The versions from `first` to `last`, both included; None: to the newest."""

    first: tuple[int, int] = OLDEST
    last: tuple[int, int] | None = None

    def values(self, name: str) -> dict[str, Any]:
        """What these versions take where the key `name` is not given, by the version that brought it."""
        rows: Mapping[str, Any] = _table()["defaults"][name]
        begins = [_version(version) for version in rows]
        ends = [*begins[1:], None]
        return {
            version: rows[version]
            for version, begin, end in zip(rows, begins, ends, strict=True)
            if (end is None or end > self.first) and (self.last is None or begin <= self.last)
        }

    def default(self, name: str) -> tuple[Any, str] | None:
        """The one value that they take where the key `name` is not given, with a note; None where it depends on the version."""
        values = self.values(name)
        return None if len(set(values.values())) > 1 else (next(iter(values.values())), self.said(name))

    def parts(self, *names: str) -> list[TrlVersions]:
        """These versions in parts, in each of which all of the keys `names` have one default."""
        begins = sorted({max(self.first, _version(version)) for name in names for version in self.values(name)})
        return [TrlVersions(begin, begin) for begin in begins]

    def said(self, name: str) -> str:
        """The same in words: ``beta is 0.04 if not given, 0.0 since TRL 0.19``."""
        first, *others = self.values(name).items()
        text = f"{name} is {_word(first[1])} if not given"
        return text + "".join(f", {_word(value)} since TRL {version}" for version, value in others)


def versions_of(names: Iterable[str], *, own: bool = True, of: str = "") -> TrlVersions:
    """The versions that have all of `names`; those of a tool that is built on TRL and goes on reading old keys (not `own`) have no end.

    `of`: another trainer than GRPO's, by its part of the table.
    """
    given, table = set(names), _table()["trainers"][of] if of else _table()
    first = max((_version(version) for version, known in table["since"].items() if given & set(known.split())), default=OLDEST)
    ends = [_version(version) for version, known in table["until"].items() if given & set(known.split())] if own else []
    return TrlVersions(first, min((end for end in ends if end >= first), default=None))


@cache
def _table() -> Mapping[str, Any]:
    return files.read(_TABLE).tree


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

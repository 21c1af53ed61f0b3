"""A candidate: what it changes of the scenario that the search is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Candidate:
    """Dotted keys and their values; small enough to be sent to other processes by the thousand."""

    changes: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, changes: Mapping[str, Any]) -> Candidate:
        """From a mapping."""
        return cls(tuple(changes.items()))

    def mapping(self) -> dict[str, Any]:
        """As a mapping."""
        return dict(self.changes)

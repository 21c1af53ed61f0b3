"""One entry of the glossary."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """One metric: what it is, how it is computed, and who says so."""

    name: str
    """the key in the JSON document"""
    unit: str
    text: str
    formula: str = ""
    source: str = ""

    def __str__(self) -> str:
        parts = [f"{self.name} [{self.unit}]", self.text]
        if self.formula:
            parts.append(f"Formula: {self.formula}")
        if self.source:
            parts.append(f"Source: {self.source}")
        return "\n".join(parts)

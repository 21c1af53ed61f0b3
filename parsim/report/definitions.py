"""What every number of the report means: the text behind ``--explain METRIC`` and the documentation, from definitions.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files

from parsim.errors import Finding, InputError


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


def _read() -> dict[str, Definition]:
    """Every definition by its name, in the order of the file."""
    told = tomllib.loads(files("parsim.report").joinpath("definitions.toml").read_text("utf-8"))
    return {
        name: Definition(name, **{**entry, "source": entry.get("source", "").format(**told["sources"])})
        for name, entry in told["metrics"].items()
    }


DEFINITIONS = _read()


def explain(metric: str) -> Definition:
    """The definition of a metric. Raises InputError with the nearest name if there is none."""
    if metric in DEFINITIONS:
        return DEFINITIONS[metric]
    near = get_close_matches(metric, DEFINITIONS, n=1, cutoff=0.4)
    suggestion = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(DEFINITIONS)}"
    raise InputError(Finding("unknown metric", value=metric, path=metric, suggestion=suggestion))

"""What every number of the report means: the text behind ``--explain METRIC`` and the documentation, from definitions.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from parsim.errors import Finding, InputError
from parsim.report.short_names import named, nearest


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
    """The definition of a metric, by its key or a short name. Raises InputError with the nearest name if there is none."""
    if (name := named(metric, DEFINITIONS)) is not None:
        return DEFINITIONS[name]
    suggestion = nearest(metric, DEFINITIONS) or f"known: {', '.join(DEFINITIONS)}"
    raise InputError(Finding("unknown metric", value=metric, path=metric, suggestion=suggestion))

"""What the schema knows and the simulator does not do yet. A value here is refused, never ignored.

To make something supported, delete its row (or widen its values).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parsim.errors import Finding
from parsim.parallel.schedules import LATER, NAMES


@dataclass(frozen=True, slots=True)
class Limit:
    """One key, what it may be so far, and what else would need."""

    path: str
    supported: Callable[[Any], bool]
    feature: str
    suggestion: str = ""


def _only(*values: Any) -> Callable[[Any], bool]:
    return lambda value: (
        any(type(value) is type(known) and value == known for known in values)
        or (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and value in [v for v in values if not isinstance(v, (bool, str))]
        )
    )


def _empty(value: Any) -> bool:
    return value in ([], (), {}, None)


def _known_schedule(value: Any) -> bool:
    name = str(value).strip().lower().replace("_", "-")
    return name not in LATER


_LATER_PROFILES = ("pytorch-compile",)

LIMITS: tuple[Limit, ...] = (
    Limit("parallel.tensor.overlap", lambda value: value != "full", "overlap of the tensor-parallel forward", "use backward"),
    Limit("parallel.expert.size", _only(1), "expert parallelism", "use expert.size 1: every rank holds all experts"),
    Limit("parallel.expert.imbalance", _only(1.0), "expert imbalance"),
    Limit("parallel.expert.capacity_factor", _empty, "expert capacity"),
    Limit("parallel.pipeline.schedule", _known_schedule, "this schedule", f"use {', '.join(NAMES)}, or give the order in a schedule file"),
    Limit(
        "cluster.nodes", lambda value: not isinstance(value, list), "mixed nodes", "describe them as an explicit graph in a topology file"
    ),
    Limit("report.ranks", _only("auto"), "the choice of ranks", "use auto"),
    Limit("cluster.collectives.algorithm", lambda value: not str(value).startswith("collnet"), "switches that reduce (SHARP)", "use auto"),
    Limit("software.profile", lambda value: value not in _LATER_PROFILES, "this profile", "use pytorch-2 with software.fusion: compiled"),
    Limit("variability.runs", _only(1), "repeated runs"),
    Limit("variability.jitter", _only(0.0), "jitter"),
    Limit("variability.faults", _empty, "faults"),
)


def unsupported(tree: Mapping[str, Any]) -> list[Finding]:
    """A finding for every written value whose feature is not built yet."""
    found = []
    for limit in LIMITS:
        holder: Any = tree
        *sections, key = limit.path.split(".")
        for section in sections:
            holder = holder.get(section) if isinstance(holder, Mapping) else None
        if not isinstance(holder, Mapping) or key not in holder or limit.supported(holder[key]):
            continue
        found.append(Finding(f"not supported yet: {limit.feature}", limit.path, holder[key], limit.suggestion))
    return found

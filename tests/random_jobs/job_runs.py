"""Runs of random jobs: the first legal scenario of a number, its report, and which laws it breaks."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from job_generator import Tree, draw
from job_laws import bounds, broken, reproducible, unequal

from parsim.errors import InputError, ParsimError
from parsim.report import Report
from parsim.run import simulate

ATTEMPTS = 60
"""drawings of a job, of which one is legal"""


@dataclass
class Run:
    """What became of one job; `scenario` is None if no drawing was legal."""

    number: int
    attempt: int = 0
    scenario: Tree | None = None
    digest: str = ""
    """of the report's bytes"""
    problems: list[str] = field(default_factory=list)
    refused: list[tuple[Tree, list[str]]] = field(default_factory=list)
    """drawings before it, and the rules they broke"""


def rule(text: str) -> str:
    """A finding without its numbers and names: ``"8 heads / tensor size 3"`` is a case of ``"# heads / tensor size #"``."""
    return re.sub(r"'[^']*'", "'...'", re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", text))[:120]


def run(seed: int, number: int, *, compare: bool) -> Run:
    """Draw job `number` until it is legal, simulate it, and check it; `compare`: also with its unfolded and its reloaded run."""
    result = Run(number)
    for attempt in range(ATTEMPTS):
        scenario = draw(seed, number, attempt)
        try:
            report = simulate(scenario)
        except InputError as error:
            result.refused.append((scenario, [rule(f"{finding.path}: {finding.message}") for finding in error.findings]))
            continue
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure of parsim
            result.problems.append(f"internal: {type(error).__name__}: {error}"[:600])
            report = None
        result.attempt, result.scenario = attempt, scenario
        if report is not None:
            _check(result, report, scenario, compare=compare)
        break
    return result


def _check(result: Run, report: Report, scenario: Any, *, compare: bool) -> None:
    try:
        result.digest = hashlib.sha256(reproducible(report.document()).encode()).hexdigest()
        result.problems += broken(report) + [f"bounds: {text}" for text in bounds(scenario)]
        if compare:
            result.problems += unequal(report, scenario)
    except ParsimError as error:
        result.problems.append(f"internal: {type(error).__name__}: {error}"[:600])
    except Exception as error:  # noqa: BLE001
        result.problems.append(f"internal: {type(error).__name__}: {error}"[:600])


def as_yaml(scenario: Tree) -> str:
    """The scenario as a file; JSON is YAML, one section per line."""
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in scenario.items())

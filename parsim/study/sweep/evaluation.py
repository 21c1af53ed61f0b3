"""From a candidate to its row, in whatever process: the function that workers run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from parsim.errors import DeadlockError, Finding, InputError, ParsimError
from parsim.study.sweep.candidates import Candidate, stamp
from parsim.study.sweep.row import Row, refused, simulated, without_report

ONE_AT_A_TIME = Lock()
"""a worker with several threads (Dask) simulates in one of them: the interpreter runs one at a time anyway"""


class ForeignWorkerError(ParsimError):
    """A worker runs another version of parsim, or another catalogue."""


def evaluate(candidate: Candidate, settings: Mapping[str, Any]) -> Row:
    """Simulate one candidate; whatever goes wrong becomes its row."""
    from parsim.run import simulate

    try:
        return simulated(candidate.key, settings, simulate(candidate.scenario, trust_code=candidate.trust_code).document())
    except InputError as error:
        return refused(candidate.key, settings, error.findings)
    except DeadlockError as error:
        first = next(iter(str(error).splitlines()), "the program waits for itself")
        return without_report(candidate.key, "deadlock", settings, first, [Finding(str(error))])
    except Exception as error:  # noqa: BLE001 - a candidate that fails is a row, and the study goes on
        return failed(candidate, settings, f"internal error: {type(error).__name__}: {error}")


def failed(candidate: Candidate, settings: Mapping[str, Any], reason: str) -> Row:
    """The row of a candidate with which parsim or its process broke."""
    return without_report(candidate.key, "failed", settings, reason, [Finding(reason)])


def evaluate_all(work: Sequence[tuple[Candidate, Mapping[str, Any]]], expected: tuple[str, str]) -> list[Row]:
    """The rows of a chunk, in order.

    Raises:
        ForeignWorkerError: this process has not the parsim that asks (`expected` is its `stamp`).
    """
    refuse_foreign(expected)
    with ONE_AT_A_TIME:
        return [evaluate(candidate, settings) for candidate, settings in work]


def refuse_foreign(expected: tuple[str, str]) -> None:
    """Raises ForeignWorkerError if this process has not the parsim that asks; `expected` is its `stamp`."""
    if (mine := stamp()) != expected:
        what = f"version {mine[0]}, not {expected[0]}" if mine[0] != expected[0] else "another catalogue of devices and models"
        raise ForeignWorkerError(f"a worker has parsim {what}: its rows would not be comparable; install the same on all machines")

"""What a strategy of the user's own answers, checked: errors in it and illegal programs are findings, not tracebacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from parsim.errors import InputError, PlanError
from parsim.parallel.own import PATH
from parsim.parallel.plan import Plan
from parsim.program.check import check
from parsim.program.program import Program

_MOST = 8
"""findings about one program that are shown"""


@contextmanager
def answers(plan: Plan) -> Iterator[None]:
    """Lowering `plan` inside this raises `PlanError` for what goes wrong in the user's file."""
    own = plan.parallelism.data.own
    try:
        yield
    except InputError as error:
        if own is None:
            raise
        raise PlanError(
            [replace(finding, path=PATH) if finding.path in ("", "collective") else finding for finding in error.findings]
        ) from error
    except Exception as error:
        if own is None:
            raise
        raise own.blame(error) from error


def refuse_illegal(plan: Plan, program: Program) -> None:
    """Raise `PlanError` if a strategy of the user's own made a program that cannot be (`parsim.program.check`)."""
    own = plan.parallelism.data.own
    if own is None:
        return
    findings = [replace(finding, path=PATH, value=own.kind.__name__) for finding in check(program)[:_MOST]]
    if findings and not all("wait for each other" in finding.message for finding in findings):  # a deadlock is shown when it happens
        raise PlanError(findings)

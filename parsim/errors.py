"""What can go wrong, said so that the user can repair it.

A :class:`Finding` is one problem: where it is, what was written, which rule it breaks (with the
arithmetic) and what to write instead. Findings are collected and raised together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from parsim.columns import visible


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem in something a user wrote; `path` is the dotted key, e.g. ``parallel.tensor.size``."""

    message: str
    path: str = ""
    value: Any = None
    suggestion: str = ""
    file: str = ""
    line: int | None = None
    column: int | None = None

    def at(self, file: str, line: int | None, column: int | None) -> Finding:
        """The same finding with its place in a file."""
        return replace(self, file=file, line=line, column=column)

    def as_dict(self) -> dict[str, Any]:
        """The finding as the JSON contract spells it."""
        return asdict(self)

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part not in ("", None))
        text = "  ".join(part for part in (place.replace("\n", "\\n"), self.path.replace("\n", "\\n"), self.message) if part)
        return visible(f"{text}; {self.suggestion}" if self.suggestion else text)


class ParsimError(Exception):
    """Anything parsim raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: what is wrong, and not the way through parsim to where it was found."""
        return [f"{type(self).__name__}: {self}"]


class InputError(ParsimError):
    """The user's input cannot be simulated; carries every finding at once."""

    exit_code = 2

    def __init__(self, findings: Iterable[Finding] | Finding | str) -> None:
        if isinstance(findings, str):
            findings = Finding(findings)
        self.findings = (findings,) if isinstance(findings, Finding) else tuple(findings)
        super().__init__("\n".join(map(str, self.findings)))


class ScenarioError(InputError):
    """A scenario file, an override or a value in it is wrong."""


class OutputError(InputError):
    """An answer is there, and cannot be written: a full disk, a closed stream, a name that is taken."""


class TopologyError(InputError):
    """A device or topology file is wrong, or a route does not exist."""


class ModelError(InputError):
    """A model description or a foreign model config cannot be used."""


class PlanError(InputError):
    """Model, cluster and strategy do not go together (indivisible sizes, too many ranks, ...)."""


class DeadlockError(ParsimError):
    """The program waits for itself; the message is the rank x step grid with the blocked ops."""

    exit_code = 4

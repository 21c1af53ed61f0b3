"""What can go wrong, said so that the user can repair it.

A :class:`Finding` is one problem: where it is, what was written, which rule it breaks (with the
arithmetic) and what to write instead. Findings are collected and raised together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from parsim.columns import json_value, visible

Result = TypeVar("Result")
MOST_PROBLEMS = 30
"""problems of one input that are listed, in text and JSON alike; the rest is counted"""
_MOST_CHARACTERS = 15_000
"""of all that are listed"""
_LONGEST = (200, 200, 800, 700)
"""characters shown of a place, a key, a message and a suggestion, which may all quote what somebody wrote"""
_WORD = 40
"""characters within which a word ends"""


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
        return {**asdict(self), "value": json_value(self.value)}

    def __str__(self) -> str:
        file = shortened(self.file.replace("\n", "\\n"), _LONGEST[0])
        place = ":".join(str(part) for part in (file, self.line, self.column) if part not in ("", None))
        path, message = shortened(self.path.replace("\n", "\\n"), _LONGEST[1]), shortened(self.message, _LONGEST[2])
        text = "  ".join(part for part in (place, path, message) if part)
        return visible(f"{text}; {shortened(self.suggestion, _LONGEST[3])}" if self.suggestion else text)


def shortened(text: str, most: int) -> str:
    """`text`, of which at most about `most` characters are shown: beginning and end, and how many are left out between them.

    It is cut between words, where there are any.
    """
    if len(text) <= most + _WORD:
        return text
    begin, end = text[: most - most // 4], text[-(most // 4) :]
    begin = begin[: begin.rfind(" ", len(begin) - _WORD) + 1] or begin
    end = end[end.find(" ", 0, _WORD) :] if " " in end[:_WORD] else end
    return f"{begin}... ({len(text) - len(begin) - len(end):,} characters) ...{end}"


class ParsimError(Exception):
    """Anything parsim raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: what is wrong, and not the way through parsim to where it was found."""
        return [f"{type(self).__name__}: {self}"]


class InputError(ParsimError):
    """The user's input cannot be simulated; carries every finding at once, and how many `more` nobody looked at closely.

    `listed` are those that are shown, the first of them; of the others only the number is told. Whoever raises one passes all it has.
    """

    exit_code = 2

    def __init__(self, findings: Iterable[Finding] | Finding | str, more: int = 0) -> None:
        if isinstance(findings, str):
            findings = Finding(findings)
        self.findings = (findings,) if isinstance(findings, Finding) else tuple(findings)
        self.more = more
        texts: list[str] = []
        for finding in self.findings[:MOST_PROBLEMS]:
            if sum(map(len, texts)) < _MOST_CHARACTERS:
                texts.append(str(finding))
        self.listed = self.findings[: len(texts)]
        super().__init__("\n".join([*texts, f"and {self.unlisted:,} more"] if self.unlisted else texts))

    @property
    def unlisted(self) -> int:
        """How many problems are told as a number only."""
        return len(self.findings) + self.more - len(self.listed)


class InputWarning(UserWarning):
    """Something that a user wrote is taken, and probably not what was meant."""


class ScenarioError(InputError):
    """A scenario file, an override or a value in it is wrong."""


def attempt(step: Callable[[], Result], findings: list[Finding]) -> Result | None:
    """The result of `step`; None where it raises `InputError`, whose findings go to `findings`."""
    try:
        return step()
    except InputError as error:
        findings += error.findings
        return None


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

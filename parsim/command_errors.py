"""How a command that ends otherwise than it should says so: warnings, errors of usage and input, and their exit codes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from itertools import pairwise
from typing import Any

from parsim.errors import Finding, InputError, InputWarning, OutputError, ParsimError, ScenarioError, shortened
from parsim.terminal import ReaderGone, remark, say_json

_USAGE = 2000
"""characters of a usage error, which quotes the words that it does not know"""


@contextmanager
def warnings_said() -> Iterator[None]:
    """A warning about what the user wrote is said once, as a remark and not as a line of Python's."""
    said: dict[str, None] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("always", InputWarning)
        python_shows = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, InputWarning):
                python_shows(message, category, *place, **more)
            elif str(message) not in said:
                said[str(message)] = None
                remark(f"warning: {message}")

        warnings.showwarning = show
        yield


def refuse_misread(arguments: Sequence[str]) -> None:
    """Refuse what the options would read as something else.

    Numbers in digits of other scripts, which Python's own `int` and `float` take, and an empty path, which is the folder one is in.
    """
    findings = [
        Finding(f"{word!r} is a number in digits of another script", "", word, "write it in the digits 0 to 9", file="command line")
        for word in arguments
        if any(letter.isdigit() and not letter.isascii() for letter in word) and re.fullmatch(r"[+-]?[\d_.,:eE+-]+", word)
    ]
    findings += [
        Finding("the path is empty", option, "", "name a path, or . for the current folder", file="command line")
        for option in ("--out", "--save", "--figure")
        if f"{option}=" in arguments or (option, "") in pairwise(arguments)
    ]
    if findings:
        raise ScenarioError(findings)


def failed(error: Exception, *, as_json: bool, simulates: bool) -> int:
    """Say `error` on stderr, and on stdout as JSON if asked to; the exit code."""
    findings, code = _findings(error)
    if isinstance(error, InputError):
        count = len(error.findings) + error.more
        remark(str(error))
        nothing = " Nothing was simulated." if simulates and not isinstance(error, OutputError) else ""
        remark(f"{count:,} problem{'s' if count > 1 else ''}.{nothing}")
    elif isinstance(error, ParsimError):
        remark(str(error))
    elif code == 2 and hasattr(error, "show"):
        usage = StringIO()
        error.show(usage)
        remark(shortened(usage.getvalue(), _USAGE))
    else:
        remark(f"{findings[0]}; run with --debug for the traceback" if code == 1 else str(findings[0]))
    if as_json:
        document: dict[str, Any] = {"parsim": 1, "errors": [finding.as_dict() for finding in findings]}
        if isinstance(error, InputError) and error.unlisted:
            document["more_errors"] = error.unlisted
        try:
            say_json(document)
        except ReaderGone:
            return 141
        except OutputError:
            return code
    return code


def _findings(error: Exception) -> tuple[tuple[Finding, ...], int]:
    """What an error tells the user, and its exit code."""
    if isinstance(error, InputError):
        return error.listed, error.exit_code
    if isinstance(error, ParsimError):
        return (Finding(str(error)),), error.exit_code
    # the base class of usage errors is not public in every version of typer, its method is
    if hasattr(error, "format_message") and getattr(error, "exit_code", None) == 2:
        return (Finding(error.format_message(), file="command line"),), 2
    if isinstance(error, OSError):  # of a file: what can be read and written is the user's world
        return (Finding(f"cannot be read or written: {error.strerror or error}", file=str(error.filename or "")),), 2
    return (Finding(f"internal error: {type(error).__name__}: {error}"),), 1

"""Which Python code may run because a scenario or a command names it: none, unless the user said so.

A scenario is data, and is passed around like data. ``strategy: FILE.py:CLASS`` and ``schedule: FILE.py:function`` are the two keys
that name code; whoever wants it to run says so once, on the command line, in the environment or as a Python argument.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding

ENVIRONMENT = "PARSIM_TRUST_CODE"
STRATEGY = "parallel.data.strategy"
SCHEDULE = "parallel.pipeline.schedule"
_ALLOW = f"if you trust the file, add --trust-code or set {ENVIRONMENT}=1; in Python load(..., trust_code=True)"


def is_trusted(trust_code: bool) -> bool:
    """Whether code may run: the argument says so, or the environment does."""
    return trust_code or os.environ.get(ENVIRONMENT) == "1"


def code_file(reference: str) -> str | None:
    """The Python file of ``FILE.py:NAME`` (or of ``FILE.py``); None for anything else."""
    file, colon, _ = reference.rpartition(":")
    file = file if colon and file.endswith(".py") else reference
    return file if file.endswith(".py") and "\n" not in file else None


def refusal(reference: str, path: str, *, sealed: bool = False) -> Finding:
    """The finding for code that nobody trusts; `sealed`: and that nobody can, in a text from a stranger."""
    text = f"refers to Python code in {code_file(reference)}; parsim does not run it"
    return Finding(text if sealed else f"{text} without --trust-code", path, reference, "" if sealed else _ALLOW)


def code_named(tree: Mapping[str, Any]) -> dict[str, str]:
    """Key -> ``FILE.py:NAME`` of all code that a scenario tree in long form names."""
    named = {path: text_at(tree, path) for path in (STRATEGY, SCHEDULE)}
    return {path: name for path, name in named.items() if code_file(name) is not None}


def text_at(tree: Mapping[str, Any], path: str) -> str:
    """The text under a dotted key; empty where there is none."""
    at: Any = tree
    for key in path.split("."):
        at = at.get(key) if isinstance(at, Mapping) else None
    return at if isinstance(at, str) else ""

"""A data-parallel strategy that the user wrote: a class in a Python file that answers the hooks of `parsim.parallel.hooks`."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from traceback import extract_tb

from parsim.errors import Finding, InputError, PlanError
from parsim.parallel.replicated import Replicated
from parsim.parallel.settings import CustomStrategy
from parsim.parallel.single_process import DataParallelModule, ParameterServer

PATH = "parallel.data.strategy"
_HINT = "derive it from Replicated of parsim.parallel.replicated"


def load_strategy(file: Path, name: str) -> CustomStrategy:
    """The class `name` of a Python file. Runs the file. Raises `PlanError` where that fails or it is no strategy."""
    value = f"{file}:{name}"
    try:
        names = runpy.run_path(str(file))
    except (Exception, SystemExit) as error:
        message = f"{file} failed with {type(error).__name__}: {error}"
        raise PlanError(Finding(message, PATH, value)) from error
    kind = names.get(name)
    if kind is None:
        known = ", ".join(key for key, other in names.items() if _is_strategy(other) and other.__module__ == names["__name__"])
        raise PlanError(Finding(f"{file} has no class {name!r}", PATH, value, f"it has {known}" if known else ""))
    if not _is_strategy(kind):
        raise PlanError(Finding(f"{name} of {file} is not a strategy", PATH, value, _HINT))
    return CustomStrategy(kind, str(file))


def _is_strategy(candidate: object) -> bool:
    return (
        isinstance(candidate, type)
        and issubclass(candidate, Replicated)
        and not issubclass(candidate, (DataParallelModule, ParameterServer))
    )


@contextmanager
def blamed(strategy: CustomStrategy | None) -> Iterator[None]:
    """What goes wrong in here while a custom strategy is asked is raised as a `PlanError` about its file, with the line if it is known."""
    try:
        yield
    except InputError as error:
        if strategy is None:
            raise
        raise PlanError(
            [replace(finding, path=PATH) if finding.path in ("", "collective") else finding for finding in error.findings]
        ) from error
    except Exception as error:
        if strategy is None:
            raise
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == strategy.file]
        message = f"{strategy.kind.__name__} failed with {type(error).__name__}: {error}"
        raise PlanError(Finding(message, PATH).at(strategy.file, lines[-1] if lines else None, None)) from error

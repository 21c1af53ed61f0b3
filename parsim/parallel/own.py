"""A data-parallel strategy that the user wrote: a class in a Python file that answers the hooks of `parsim.parallel.hooks`."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb

from parsim.errors import Finding, PlanError
from parsim.parallel.replicated import Replicated
from parsim.parallel.single_process import DataParallelModule, ParameterServer

PATH = "parallel.data.strategy"
_HINT = "derive it from Replicated of parsim.parallel.replicated"


@dataclass(frozen=True, slots=True)
class OwnStrategy:
    """The class, and the file it came from."""

    kind: type[Replicated]
    file: str

    def blame(self, error: Exception) -> PlanError:
        """The finding for an exception while the class was asked, with the line of the file that it passed through, if any."""
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == self.file]
        message = f"{self.kind.__name__} failed with {type(error).__name__}: {error}"
        return PlanError(Finding(message, PATH).at(self.file, lines[-1] if lines else None, None))


def load_strategy(file: Path, name: str) -> OwnStrategy:
    """The class `name` of a Python file. Runs the file. Raises `PlanError` where that fails or it is no strategy."""
    value = f"{file}:{name}"
    try:
        names = runpy.run_path(str(file))
    except (Exception, SystemExit) as error:
        message = f"{file} failed with {type(error).__name__}: {error}"
        raise PlanError(Finding(message, PATH, value)) from error
    kind = names.get(name)
    if kind is None:
        known = ", ".join(key for key, found in names.items() if _is_strategy(found) and found.__module__ == names["__name__"])
        raise PlanError(Finding(f"{file} has no class {name!r}", PATH, value, f"it has {known}" if known else ""))
    if not _is_strategy(kind):
        raise PlanError(Finding(f"{name} of {file} is not a strategy", PATH, value, _HINT))
    return OwnStrategy(kind, str(file))


def _is_strategy(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, Replicated) and not issubclass(found, (DataParallelModule, ParameterServer))

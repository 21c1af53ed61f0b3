"""What a shell offers behind TAB: names from the catalogue, and files beside them.

Nothing of this is imported unless a shell asks (``_PARSIM_COMPLETE`` is set). Which shell, and its script, is typer's business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

_SUFFIXES = (".yaml", ".yml", ".json")
OFFERED: Mapping[str, Sequence[str]] = {
    "run.file": ("scenarios", "files"), "check.file": ("scenarios", "files"), "show.file": ("scenarios", "files"),
    "timeline.file": ("scenarios", "files"), "trace.file": ("scenarios", "files"), "diagnose.file": ("scenarios", "files"),
    "export.file": ("scenarios", "files"), "sweep.file": ("studies", "scenarios", "files"),
    "compare.items": ("comparisons", "scenarios", "files"), "explain.name": ("metrics", "scenarios", "files"),
    "new.example": ("scenarios",), "list.kind": ("kinds",), "export.to": ("targets",), "schedule.names": ("schedules",),
    "collective.kind": ("collectives",),
    "model": ("models", "files"), "on": ("topologies", "files"), "topology": ("topologies", "files"), "gpu": ("devices",),
}  # fmt: skip
"""``command.parameter``, or a parameter of any command, as Python calls it -> what may stand there"""


def complete(app: typer.Typer) -> None:
    """Let every parameter of the application that `OFFERED` names offer what it says."""
    for command in commands(app):
        hints = get_type_hints(command, include_extras=True)
        for parameter, hint in hints.items():
            kinds = OFFERED.get(f"{_name(command)}.{parameter}") or OFFERED.get(parameter)
            if kinds is not None:
                (described,) = hint.__metadata__
                described = copy(described)  # commands share some
                described.autocompletion = _completer(kinds)
                hints[parameter] = Annotated[hint.__origin__, described]
        command.__annotations__ = hints


def commands(app: typer.Typer) -> Iterator[Callable[..., Any]]:
    """The functions behind the commands, those of groups among them."""
    for command in app.registered_commands:
        if command.callback is not None:
            yield command.callback
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from commands(group.typer_instance)


def parameters(command: Callable[..., Any]) -> set[str]:
    """How `OFFERED` may name the parameters of a command."""
    return {word for parameter in command.__annotations__ for word in (parameter, f"{_name(command)}.{parameter}")}


def _name(command: Callable[..., Any]) -> str:
    return command.__name__.rstrip("_")


def _completer(kinds: Sequence[str]) -> Callable[[str], list[str]]:
    def offered(incomplete: str) -> list[str]:
        head, comma, last = incomplete.rpartition(",")  # several names: what is being typed is behind the last comma
        found = [name for kind in kinds for name in _names(kind, last) if name.startswith(last)]
        return [f"{head}{comma}{name}" for name in dict.fromkeys(found)]

    return offered


def _names(kind: str, incomplete: str) -> Iterable[str]:
    match kind:
        case "files":
            return _files(incomplete)
        case "kinds":
            from parsim.commands.catalogue import LISTED

            return LISTED
        case "metrics":
            from parsim.report.definitions import DEFINITIONS

            return DEFINITIONS
        case "targets":
            from parsim.interop.formats import TARGETS

            return TARGETS
        case "schedules":
            from parsim.parallel.schedules import NAMES

            return NAMES
        case "collectives":
            from parsim.hardware.nccl.inputs import KINDS

            return [kind.replace("_", "-") for kind in KINDS]
        case _:
            from parsim.scenario.files import names

            return names(kind)


def _files(incomplete: str) -> list[str]:
    """The files and folders that begin so; folders with the separator behind them."""
    folder, name = os.path.split(incomplete)
    try:
        found = sorted(Path(folder or ".").iterdir())
    except OSError:
        return []
    typed = incomplete[: len(incomplete) - len(name)]  # as it stands there, "./" in front too
    seen = [path for path in found if path.name.startswith(name) and (name or not path.name.startswith("."))]
    return [f"{typed}{path.name}{os.sep if path.is_dir() else ''}" for path in seen if path.is_dir() or path.suffix in _SUFFIXES]

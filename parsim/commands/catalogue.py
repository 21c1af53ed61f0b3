"""Commands about what comes with parsim: listing it, the schema of scenario files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from parsim.errors import Finding, ScenarioError
from parsim.terminal import Debug, Json, say, say_json

LISTED = ("models", "devices", "topologies", "software", "schedules", "scenarios", "comparisons", "studies", "variability", "failures")


def register(app: typer.Typer) -> None:
    """Put the commands of this file on the command line."""
    app.command("list")(list_)
    app.command()(schema)


def list_(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help=f"One of {', '.join(LISTED)}; all of them without KIND.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List what comes with parsim.

    Models, devices, topologies, software profiles, schedules, scenarios, comparisons, studies, profiles of variability, lists of failures.
    """
    if kind is not None and kind not in LISTED:
        raise ScenarioError(Finding(f"there is no list of {kind!r}", value=kind, suggestion=f"choose from {', '.join(LISTED)}"))
    known = {name: _names(name) for name in LISTED if kind in (None, name)}
    if as_json:
        say_json({"parsim": 1, **known})
    elif kind is not None:
        say("\n".join(known[kind]))
    else:
        say("\n".join(f"{name} ({len(items)})\n{_wrapped(items)}\n" for name, items in known.items()).rstrip("\n"))


def schema(
    study: Annotated[bool, typer.Option("--study", help="Print the schema of study files.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of scenario files, for completion in an editor."""
    from parsim.scenario.json_schema import schema as scenario_schema
    from parsim.study.sweep.study_file import schema as study_schema

    say_json(study_schema() if study else scenario_schema(), indent=1)  # what the repository's own file holds, byte for byte


def _names(kind: str) -> list[str]:
    if kind == "schedules":
        from parsim.parallel.schedules import NAMES

        return list(NAMES)
    from parsim.scenario.files import names

    return names(kind)


def _wrapped(items: Sequence[str]) -> str:
    from shutil import get_terminal_size
    from textwrap import fill

    margin = "  "
    width = get_terminal_size((100, 24)).columns
    return fill("  ".join(items), width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)

"""The command line: arguments in, one exit code out; no arithmetic.

Everything heavier than typer is imported inside the command that needs it, so that ``parsim --help`` stays quick.
Exit codes: 0 ok, 1 internal error, 2 bad usage or invalid scenario, 3 simulated but does not fit, 4 deadlock;
130 interrupted, 141 the reader of our output went away.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parsim.errors import DeadlockError, Finding, InputError, ParsimError, ScenarioError

if TYPE_CHECKING:
    from parsim.report import Report
    from parsim.scenario import Scenario

OUT = Path("parsim-out")
"""where `run` writes, one directory per scenario"""
EXAMPLE = "gpt2-ddp-4x-a100"
"""the shipped scenario that `new` copies"""
LISTED = ("models", "devices", "topologies", "software", "schedules", "scenarios")

app = typer.Typer(name="parsim", rich_markup_mode=None, pretty_exceptions_enable=False)

File = Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or the name of a shipped scenario (`parsim list scenarios`).")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values that win over the file, for example training.micro_batch=4.")
]
Named = Annotated[
    list[str] | None, typer.Option("--override", metavar="NAME", help="Apply a named block of the file's overrides; NAME,NAME for several.")
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")]
Unfolded = Annotated[bool, typer.Option("--unfolded", help="Simulate every rank, also where symmetric ranks could be simulated once.")]


class _ReaderGone(Exception):  # noqa: N818 - no error of ours
    """Nobody reads our stdout any more."""


@app.callback(invoke_without_command=True)
def parsim(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Does it fit, how fast is it, and why? Simulates one training step of a neural network on a cluster."""
    if version:
        from parsim import __version__

        _say(f"parsim {__version__}")
        raise typer.Exit


@app.command()
def run(
    file: File,
    overrides: Overrides = None,
    override: Named = None,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the files here instead of parsim-out/<scenario>.")] = None,
    no_pictures: Annotated[bool, typer.Option("--no-pictures", help="Write no pictures.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    unfolded: Unfolded = False,
    allow_oom: Annotated[bool, typer.Option("--allow-oom", help="Exit with 0 also if it does not fit in memory.")] = False,
    debug: Debug = False,
) -> None:
    """Simulate one training step and report what it takes."""
    from parsim.run import simulate

    scenario = _load(file, overrides, override)
    report = simulate(scenario, unfolded=unfolded)
    directory = out if out is not None else None if as_json else OUT / Path(file).stem
    if directory is not None:
        _write(report, directory, pictures=not no_pictures)
    if as_json:
        _say_json(report.document())
    elif not quiet:
        _say_report(report, directory)
    if not report.fits and not allow_oom:
        raise typer.Exit(3)


@app.command()
def check(file: File, overrides: Overrides = None, override: Named = None, as_json: Json = False, debug: Debug = False) -> None:
    """Say whether a scenario is valid, without simulating it."""
    from parsim.run import prepare

    scenario = _load(file, overrides, override)
    prepare(scenario)
    if as_json:
        _say_json({"parsim": 1, "valid": True, "file": file})
    else:
        _say(f"{file}: valid")


@app.command()
def show(
    file: File,
    overrides: Overrides = None,
    override: Named = None,
    written: Annotated[bool, typer.Option("--written", help="Leave out what is at its default.")] = False,
    program: Annotated[bool, typer.Option("--program", help="Print what each rank executes instead.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the complete scenario, every value with its origin."""
    scenario = _load(file, overrides, override)
    if program:
        from parsim.run import prepare

        text = prepare(scenario).program_text()
        _say_json({"parsim": 1, "program": text.splitlines()}) if as_json else _say(text)
    elif as_json:
        _say_json({"parsim": 1, "scenario": dict(scenario.written) if written else scenario.document()})
    else:
        _say(scenario.show(defaults=not written))


@app.command(name="list")
def list_(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help=f"One of {', '.join(LISTED)}; all of them without KIND.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List what comes with parsim: models, devices, topologies, software profiles, schedules, scenarios."""
    if kind is not None and kind not in LISTED:
        raise ScenarioError(Finding(f"there is no list of {kind!r}", value=kind, suggestion=f"choose from {', '.join(LISTED)}"))
    known = {name: _names(name) for name in LISTED if kind in (None, name)}
    if as_json:
        _say_json({"parsim": 1, **known})
    elif kind is not None:
        _say("\n".join(known[kind]))
    else:
        _say("\n".join(f"{name} ({len(items)})\n{_wrapped(items)}\n" for name, items in known.items()).rstrip("\n"))


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The file to write, with or without .yaml.")],
    example: Annotated[str, typer.Option("--from", metavar="SCENARIO", help="The shipped scenario to copy.")] = EXAMPLE,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a commented scenario that runs, to start from."""
    from parsim.scenario.files import find, names

    if example not in names("scenarios"):
        suggestion = f"choose from {', '.join(names('scenarios'))}"
        raise ScenarioError(Finding(f"there is no shipped scenario {example!r}", value=example, suggestion=suggestion))
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else Path(f"{name}.yaml")
    lines = find("scenarios", example).read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if "yaml-language-server" not in line)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ScenarioError(
            Finding("exists and is not overwritten", value=name, suggestion="choose another name", file=str(path))
        ) from None
    except OSError as error:
        raise ScenarioError(Finding(f"cannot be written: {error.strerror}", value=name, file=str(path))) from None
    if as_json:
        _say_json({"parsim": 1, "file": str(path)})
    else:
        _say(f"Wrote {path}. Next: parsim run {path}")


@app.command()
def schema(as_json: Json = False, debug: Debug = False) -> None:
    """Print the JSON Schema of scenario files, for completion in an editor."""
    from parsim.scenario.json_schema import schema as scenario_schema

    _say_json(scenario_schema())


@app.command()
def explain(
    metric: Annotated[str | None, typer.Argument(metavar="METRIC", help="A key of the report; all of them without METRIC.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Define a number of the report."""
    from dataclasses import asdict

    from parsim.report.definitions import DEFINITIONS
    from parsim.report.definitions import explain as define

    if metric is None:
        _say_json({"parsim": 1, "metrics": list(DEFINITIONS)}) if as_json else _say("\n".join(DEFINITIONS))
        return
    definition = define(metric)
    _say_json({"parsim": 1, **asdict(definition)}) if as_json else _say(str(definition))


def _load(file: str, overrides: Sequence[str] | None, named: Iterable[str] | None) -> Scenario:
    from parsim.scenario import load

    return load(file, *(overrides or ()), named=list(named or ()))


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


def _write(report: Report, directory: Path, *, pictures: bool) -> None:
    from parsim.report.write import write_outputs

    try:
        write_outputs(report, directory, ("json", "svg", "trace") if pictures else ("json", "trace"))
    except OSError as error:
        raise ScenarioError(Finding(f"cannot write the report: {error.strerror}", file=str(error.filename or directory))) from None


def _say_report(report: Report, directory: Path | None) -> None:
    """The tables, and where the files are; captured first, so that a reader who goes away is noticed in one place."""
    from rich.console import Console

    from parsim.report.tables import print_report

    console = Console()
    with console.capture() as captured:
        print_report(report, console)
    text = captured.get()
    _say(f"{text}\nWrote {directory}/" if directory is not None else text)


def _say(text: str) -> None:
    """Print on stdout; raises `_ReaderGone` if nobody listens (``parsim list | head -1``)."""
    try:
        sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # the interpreter flushes stdout once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise _ReaderGone from None


def _say_json(document: dict[str, Any]) -> None:
    _say(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments))


def execute(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code.

    Whether errors are JSON or come with a traceback is read from the bare arguments: a usage error is an error too.
    """
    arguments = list(arguments) or ["--help"]
    options = set(arguments)
    try:
        return typer.main.get_command(app).main(args=arguments, prog_name="parsim", standalone_mode=False) or 0
    except _ReaderGone:
        return 141
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("Interrupted.\n")
        return 130
    except Exception as error:  # noqa: BLE001 - the one place that turns every error into words and a code
        if "--debug" in options:
            traceback.print_exc()
        simulates = arguments[0] in ("run", "check", "show")
        return _failed(error, as_json="--json" in options, simulates=simulates)


def _failed(error: Exception, *, as_json: bool, simulates: bool) -> int:
    """Say `error` on stderr, and on stdout as JSON if asked to; the exit code."""
    findings, code = _findings(error)
    if isinstance(error, InputError):
        count = len(findings)
        sys.stderr.write("".join(f"{finding}\n" for finding in findings))
        sys.stderr.write(f"{count} problem{'s' if count > 1 else ''}.{' Nothing was simulated.' if simulates else ''}\n")
    elif isinstance(error, ParsimError):
        sys.stderr.write(f"{error}\n")
    elif code == 2:
        error.show()  # type: ignore[attr-defined]
    else:
        sys.stderr.write(f"{findings[0].message}; run with --debug for the traceback\n")
    if as_json:
        document: dict[str, Any] = {"parsim": 1, "errors": [finding.as_dict() for finding in findings]}
        if isinstance(error, DeadlockError):
            document = {"parsim": 1, "deadlock": str(error)}
        try:
            _say(json.dumps(document, indent=2, ensure_ascii=False, default=str))
        except _ReaderGone:
            return 141
    return code


def _findings(error: Exception) -> tuple[tuple[Finding, ...], int]:
    """What an error tells the user, and its exit code."""
    if isinstance(error, InputError):
        return error.findings, error.exit_code
    if isinstance(error, ParsimError):
        return (Finding(str(error)),), error.exit_code
    # the base class of usage errors is not public in every version of typer, its method is
    if hasattr(error, "format_message") and getattr(error, "exit_code", None) == 2:
        return (Finding(error.format_message(), file="command line"),), 2
    return (Finding(f"internal error: {type(error).__name__}: {error}"),), 1

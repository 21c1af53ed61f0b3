"""The command line: arguments in, one exit code out; no arithmetic.

Everything heavier than typer is imported inside the command that needs it, so that ``parsim --help`` stays quick.
Exit codes: 0 ok, 1 internal error, 2 bad usage or invalid scenario, 3 simulated but does not fit, 4 deadlock;
130 interrupted, 141 the reader of our output went away.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.models import CommandInfo

from parsim.columns import printable
from parsim.errors import DeadlockError, Finding, InputError, InputWarning, OutputError, ParsimError, ScenarioError, shortened
from parsim.terminal import Debug, Json, ReaderGone, TrustCode, busy, open_streams, progress, remark, say, say_json, written_or_said

if TYPE_CHECKING:
    from parsim.report import Report
    from parsim.scenario import Scenario

_USAGE = 2000
"""characters of a usage error, which quotes the words that it does not know"""
_COMPLETION = "_PARSIM_COMPLETE"
"""set by the shell that asks for completions"""
OUT = Path("parsim-out")
"""where `run` writes, one directory per scenario"""

File = Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or the name of a shipped scenario (`parsim list scenarios`).")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values that win over the file, for example training.micro_batch=4.")
]
Named = Annotated[
    list[str] | None, typer.Option("--override", metavar="NAME", help="Apply a named block of the file's overrides; NAME,NAME for several.")
]
Unfolded = Annotated[bool, typer.Option("--unfolded", help="Simulate every rank, also where symmetric ranks could be simulated once.")]


def parsim(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    metric: Annotated[str | None, typer.Option("--explain", metavar="METRIC", help="Define a number of the report and exit.")] = None,
) -> None:
    """Does it fit, how fast is it, and why? Simulates one training step of a neural network on a cluster."""
    if metric is not None:
        from parsim.commands import explain

        explain.define(metric, as_json=False)
        raise typer.Exit
    if version:
        from parsim.version import __version__

        say(f"parsim {__version__}")
        raise typer.Exit


def run(
    file: File,
    overrides: Overrides = None,
    override: Named = None,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the files here instead of parsim-out/<scenario>.")] = None,
    no_pictures: Annotated[bool, typer.Option("--no-pictures", help="Write no pictures.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    unfolded: Unfolded = False,
    sensitivity: Annotated[bool, typer.Option("--sensitivity", help="Sort the assumptions by what they can do to this answer.")] = False,
    runs: Annotated[int | None, typer.Option(metavar="N", help="Draw so many steps, or clusters, and say how they spread.")] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Stop when the 95 % interval is so narrow: 1% (of the mean), p95:1%."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes for the runs; default: one per CPU where it takes long.")] = None,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Make the runs on a Dask cluster: tcp://scheduler:8786.")] = None,
    allow_oom: Annotated[bool, typer.Option("--allow-oom", help="Exit with 0 also if it does not fit in memory.")] = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Simulate one training step and report what it takes."""
    from parsim.run import simulate

    overrides = [*(overrides or ()), *([] if runs is None else [f"variability.runs={runs}"])]
    scenario = _load(file, overrides, override, trust_code=trust_code)
    command = _command(file, overrides, override, until, trust_code=bool(scenario.trusted_code))
    several = scenario.settings.variability.runs > 1
    for option, value in {"--until": until, "--dask": dask}.items():
        if value is not None and not several:
            raise ScenarioError(Finding("there is one run only", option, value, "say how many there may be: --runs 1000"))
    directory = out if out is not None else None if as_json else OUT / Path(file).stem
    with scenario.placing(), _deadlocks(scenario, command, as_json=as_json), busy("Simulating one step", quiet=quiet or several):
        if several:
            from parsim.commands.runs import repeated

            report = repeated(scenario, directory, unfolded=unfolded, until=until, workers=workers, dask=dask, quiet=quiet)
        else:
            report = simulate(scenario, unfolded=unfolded)
    report = _signed(report, command)
    if sensitivity:
        from parsim.study.what_if import with_effects

        report = with_effects(scenario, report, watch=partial(progress, "Trying other assumptions", quiet=quiet))
    with busy("Writing the report", quiet=quiet):
        written = _write(report, directory, pictures=not no_pictures) if directory is not None else []
    if as_json:
        say_json(report.document())
    elif not quiet:
        _say_report(report)
        if sensitivity:
            from parsim.study.explain import assumptions

            say("\n".join([*assumptions(report), ""]))
        say(f"Wrote {directory}{os.sep}: {', '.join(path.name for path in written)}")
    if not report.fits and not allow_oom:
        raise typer.Exit(3)


def check(
    file: File,
    overrides: Overrides = None,
    override: Named = None,
    as_json: Json = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Say whether a scenario is valid, without simulating it."""
    from parsim.scenario.build import build
    from parsim.scenario.built import clock_of, plan_of

    scenario = _load(file, overrides, override, trust_code=trust_code)
    with scenario.placing():
        built = build(scenario)
        plan_of(built, clock_of(built))
    if as_json:
        say_json({"parsim": 1, "valid": True, "file": file, "warnings": [finding.as_dict() for finding in built.warnings]})
    else:
        say("\n".join([f"{file}: valid", built.batch_arithmetic, *(f"warning: {finding}" for finding in built.warnings)]))


def show(
    file: File,
    overrides: Overrides = None,
    override: Named = None,
    written: Annotated[bool, typer.Option("--written", help="Leave out what is at its default.")] = False,
    program: Annotated[bool, typer.Option("--program", help="Print what each rank executes instead.")] = False,
    as_json: Json = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Print the complete scenario, every value with its origin."""
    scenario = _load(file, overrides, override, trust_code=trust_code)
    if program:
        with scenario.placing():
            _show_program(scenario, as_json=as_json)
    elif as_json:
        say_json({"parsim": 1, "scenario": dict(scenario.written) if written else scenario.document()})
    else:
        say(scenario.show(defaults=not written), escapes=True)


def _load(file: str, overrides: Sequence[str] | None, named: Iterable[str] | None, *, trust_code: bool) -> Scenario:
    from parsim.scenario import load

    return load(file, *(overrides or ()), named=list(named or ()), trust_code=trust_code)


@contextmanager
def _deadlocks(scenario: Scenario, command: str, *, as_json: bool) -> Iterator[None]:
    """A program that stops is an answer too: the document says so, the grid goes to stderr."""
    try:
        yield
    except DeadlockError as error:
        from parsim.report.report import deadlock_document
        from parsim.scenario.provenance import provenance

        if not as_json:
            raise
        remark(str(error))
        origin = {**provenance(scenario.trusted_code), "command": command}
        say_json(deadlock_document(scenario.document(), str(error), origin))
        raise typer.Exit(error.exit_code) from None


def _command(file: str, overrides: Sequence[str] | None, named: Sequence[str] | None, until: str | None, *, trust_code: bool) -> str:
    """The command that gives the same report: what was asked, not how to show it; folded or not is in ``simulation``."""
    from shlex import join

    blocks = [word for name in named or () for word in ("--override", name)]
    trust = [*([] if until is None else ["--until", until]), *(["--trust-code"] if trust_code else [])]
    return printable(join(["parsim", "run", file, *(overrides or ()), *blocks, *trust]))


def _signed(report: Report, command: str) -> Report:
    from dataclasses import replace

    return type(report)(replace(report.measured, provenance={**report.measured.provenance, "command": command}))


def _show_program(scenario: Scenario, *, as_json: bool) -> None:
    from parsim.parallel.groups import PIPELINE
    from parsim.parallel.schedules.slot import row_text
    from parsim.program.folding import fold
    from parsim.program.text import grid, to_text
    from parsim.scenario.build import build
    from parsim.scenario.built import clock_of, plan_of, wires_of

    built = build(scenario)
    clock = clock_of(built)
    plan = plan_of(built, clock)
    _, lowering = fold(plan, wires_of(built, plan), clock, built.background)
    program = lowering.program
    if as_json:
        say_json({"parsim": 1, "program": to_text(program)})
        return
    rows = {rank: plan.slots[plan.mesh.coordinate(rank, PIPELINE)] for rank in program.slots}
    schedule = [f"rank {rank} | {row_text(row, plan.overlapped)}" for rank, row in rows.items()]
    others = "; the others do the same" if len(schedule) < built.used_gpus else ""
    head = f"Schedule of {len(schedule)} of {built.used_gpus} ranks{others}"
    say("\n".join([head, *schedule, "", "What runs in each lane, in order", grid(program)]))


def _write(report: Report, directory: Path, *, pictures: bool) -> list[Path]:
    from parsim.report.write import FORMATS, write_outputs

    formats = [name for name in FORMATS if name != "png"] if pictures else ["json", "trace"]
    return write_outputs(report, directory, formats)


def _say_report(report: Report) -> None:
    """The tables, captured first: a reader who goes away is noticed in one place, and lines need not be padded."""
    from rich.console import Console

    from parsim.report.tables import print_report

    console = Console()
    with console.capture() as captured:
        print_report(report, console)
    say("\n".join(line.rstrip() for line in captured.get().split("\n")), styled=True)


COMMANDS: Mapping[str, str | Callable[..., None]] = {
    "run": run, "fit": "fit", "check": check, "show": show, "list": "catalogue", "new": "catalogue", "schema": "catalogue",
    "explain": "explain", "timeline": "timeline", "compare": "compare", "sweep": "sweep", "collective": "network", "topology": "network",
    "validate": "validate", "import": "importing", "export": "export", "flops": "flops", "mfu": "flops", "calibrate": "calibrate",
    "schedule": "schedule", "size": "size", "plan": "plan", "ui": "ui", "trace": "trace", "diagnose": "diagnose",
}  # fmt: skip
"""name -> the function in this file, or the file in commands/ that registers it; in the order of ``parsim --help``"""


def application(arguments: Iterable[str] = ()) -> typer.Typer:
    """The command line, with the commands that `arguments` name; where they name none, with the names and texts of all.

    A command costs tens of milliseconds to import and describe, so nobody pays for those that were not asked for.
    """
    app = typer.Typer(name="parsim", rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(parsim)
    named = COMMANDS if _COMPLETION in os.environ else [name for name in COMMANDS if name in arguments]
    for home, name in {COMMANDS[name]: name for name in named or COMMANDS}.items():
        if isinstance(home, str):
            import_module(f"parsim.commands.{home}").register(app)
        else:
            app.command(name)(home)
    if not named:
        app.registered_commands = [_listed(info) for info in app.registered_commands]
    return app


def _listed(command: CommandInfo) -> CommandInfo:
    """A command for the list of commands: its name and its text, without its options."""

    def nothing() -> None:
        """Never called: who calls a command names it."""

    called = command.callback or nothing
    nothing.__doc__ = called.__doc__
    return CommandInfo(command.name or called.__name__, callback=nothing)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    open_streams()
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments))


def execute(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code.

    Whether errors are JSON or come with a traceback is read from the bare arguments: a usage error is an error too.
    """
    arguments = list(arguments) or ["--help"]
    options = set(arguments)
    try:
        _refuse_digits(arguments)
        return _run(arguments)
    except ReaderGone:
        return 141
    except (KeyboardInterrupt, typer.Abort):
        remark("Interrupted.")
        return 130
    except Exception as error:  # noqa: BLE001 - the one place that turns every error into words and a code
        if "--debug" in options:
            remark(traceback.format_exc())
        simulates = arguments[0] in ("run", "check", "show")
        return _failed(error, as_json="--json" in options, simulates=simulates)


def _run(arguments: list[str]) -> int:
    """Run the command; what typer prints itself, its help, is said as everything else is."""
    try:
        with _warnings_said():
            return typer.main.get_command(application(arguments)).main(args=arguments, prog_name="parsim", standalone_mode=False) or 0
    except SystemExit as stop:  # typer's answer to a reader that goes away
        raise ReaderGone from stop
    except OSError:
        if "--help" not in arguments:
            raise
        with written_or_said():
            raise


@contextmanager
def _warnings_said() -> Iterator[None]:
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


def _refuse_digits(arguments: Sequence[str]) -> None:
    """Refuse numbers in digits of other scripts, which Python's own `int` and `float`, and so the options, would take."""
    findings = [
        Finding(f"{word!r} is a number in digits of another script", "", word, "write it in the digits 0 to 9", file="command line")
        for word in arguments
        if any(letter.isdigit() and not letter.isascii() for letter in word) and re.fullmatch(r"[+-]?[\d_.,:eE+-]+", word)
    ]
    if findings:
        raise ScenarioError(findings)


def _failed(error: Exception, *, as_json: bool, simulates: bool) -> int:
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

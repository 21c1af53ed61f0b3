"""The command line: arguments in, one exit code out; no arithmetic.

Everything heavier than typer is imported inside the command that needs it, so that ``parsim --help`` stays quick.
Exit codes: 0 ok, 1 internal error, 2 bad usage or invalid scenario, 3 simulated but does not fit, 4 deadlock;
130 interrupted, 141 the reader of our output went away.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.models import CommandInfo

from parsim.columns import printable
from parsim.command_errors import failed, refuse_misread, warnings_said
from parsim.command_help import Group, dressed
from parsim.errors import DeadlockError, Finding, ScenarioError
from parsim.terminal import (
    Debug,
    Interrupted,
    Json,
    Named,
    Overrides,
    Quiet,
    ReaderGone,
    SlowGpu,
    TrustCode,
    busy,
    open_streams,
    progress,
    remark,
    say,
    say_json,
    written_or_said,
)
from parsim.vocabulary import modern

if TYPE_CHECKING:
    from parsim.report import Report
    from parsim.scenario import Scenario

_COMPLETION = "_PARSIM_COMPLETE"
"""set by the shell that asks for completions"""
_INTERRUPTED = 130
_YOUNG_OBJECTS = 100_000
"""created before the garbage collector looks at them. Nearly all that a command imports and reads stays: looking for garbage among it
every 700 objects, Python's default, takes up to a tenth of a short command."""
OUT = Path("parsim-out")
"""where `run` writes, one directory per scenario"""

File = Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or the name of a shipped scenario (`parsim list scenarios`).")]
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
    trace: Annotated[bool, typer.Option("--trace", help="Write trace.json.gz for ui.perfetto.dev, too.")] = False,
    quiet: Quiet = False,
    unfolded: Unfolded = False,
    sensitivity: Annotated[bool, typer.Option("--sensitivity", help="Rank the assumptions by their effect on this answer.")] = False,
    slow_gpu: SlowGpu = None,
    runs: Annotated[int | None, typer.Option(metavar="N", help="Number of random runs (steps or clusters); reports the spread.")] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Stop once the 95 % interval is this narrow: 1% (of the mean), p95:1%."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes for the runs; default: one per CPU where it takes long.")
    ] = None,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Simulate the runs on a Dask cluster: tcp://scheduler:8786.")] = None,
    allow_oom: Annotated[bool, typer.Option("--allow-oom", help="Exit with 0 also if it does not fit in memory.")] = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Simulate one training step and report what it takes."""
    overrides = [*(overrides or ()), *([] if runs is None else [f"variability.runs={runs}"])]
    scenario = _load(file, overrides, override, trust_code=trust_code)

    from parsim.run import simulate  # after the file: what is wrong with it need not wait for the simulator

    options = {"--until": until, "--slow-gpu": None if slow_gpu is None else f"{slow_gpu:g}"}
    command = _command(file, overrides, override, options, trust_code=bool(scenario.trusted_code))
    if (searched := scenario.settings.parallel.search) != "none":
        from parsim.commands.plan import found_first

        scenario = found_first(scenario, workers=workers, quiet=quiet or as_json)
    several = scenario.settings.variability.runs > 1
    for option, value in {"--until": until, "--dask": dask}.items():
        if value is not None and not several:
            raise ScenarioError(Finding("there is one run only", option, value, "say how many there may be: --runs 1000"))
    directory = out if out is not None else None if as_json else OUT / Path(file).stem
    if directory is not None:
        from parsim.report.write import check_folder

        check_folder(directory)
    with scenario.placing(), _deadlocks(scenario, command, as_json=as_json), busy("Simulating one step", quiet=quiet or several):
        if several:
            from parsim.commands.runs import repeated

            report = repeated(
                scenario, directory, unfolded=unfolded, until=until, workers=workers, dask=dask, slow_gpu=slow_gpu, quiet=quiet
            )
        else:
            report = simulate(scenario, unfolded=unfolded, slow_gpu=slow_gpu)
    report = _signed(report, command)
    if sensitivity:
        from parsim.study.assumptions import with_effects

        report = with_effects(scenario, report, watch=partial(progress, "Trying other assumptions", quiet=quiet))
    with busy("Writing the report", quiet=quiet):
        written = _write(report, directory, pictures=not no_pictures, trace=trace) if directory is not None else []
    if as_json:
        say_json(report.document())
    elif not quiet:
        if searched != "none":
            from parsim.study.best_strategy_text import summary

            say(summary(report.document()["plan"]))
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
    if scenario.settings.parallel.search != "none":
        from parsim.commands.plan import found_first

        scenario = found_first(scenario, workers=None, quiet=as_json)
    with scenario.placing():
        built = build(scenario)
        plan_of(built, clock_of(built))
    if as_json:
        say_json(
            {
                "parsim": 1,
                "valid": True,
                "file": file,
                "plan": scenario.found,
                "warnings": [finding.as_dict() for finding in built.warnings],
            }
        )
    else:
        found = [] if scenario.found is None else [f"strategy found: {scenario.found['strategy']}"]
        say("\n".join([f"{file}: valid", *found, built.batch_arithmetic, *(f"warning: {finding}" for finding in built.warnings)]))


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


def _command(
    file: str, overrides: Sequence[str] | None, named: Sequence[str] | None, options: Mapping[str, str | None], *, trust_code: bool
) -> str:
    """The command that gives the same report: what was asked, not how to show it; folded or not is in ``simulation``."""
    from shlex import join

    blocks = [word for name in named or () for word in ("--override", name)]
    said = [word for option, value in options.items() if value is not None for word in (option, value)]
    trust = ["--trust-code"] if trust_code else []
    return printable(join(["parsim", "run", file, *(overrides or ()), *blocks, *said, *trust]))


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


def _write(report: Report, directory: Path, *, pictures: bool, trace: bool) -> list[Path]:
    from parsim.report.write import write_outputs

    formats = ["json", *(["html", "svg"] if pictures else []), *(["trace"] if trace else [])]
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
    "run": run, "fit": "fit", "check": check, "show": show, "list": "catalogue", "new": "new", "schema": "catalogue",
    "explain": "explain", "timeline": "timeline", "compare": "compare", "sweep": "sweep", "collective": "network", "topology": "network",
    "validate": "validate", "import": "importing", "export": "export", "flops": "flops", "mfu": "flops", "calibrate": "calibrate",
    "schedule": "schedule", "size": "size", "plan": "plan", "ui": "ui", "trace": "trace", "diagnose": "diagnose",
}  # fmt: skip
"""name -> the function in this file, or the file in commands/ that registers it; in the order of ``parsim --help``"""


def application(arguments: Iterable[str] = ()) -> typer.Typer:
    """The command line, with the commands that `arguments` name; where they name none, with the names and texts of all.

    A command costs tens of milliseconds to import and describe, so nobody pays for those that were not asked for.
    """
    app = typer.Typer(name="parsim", cls=Group, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(parsim)
    completing = _COMPLETION in os.environ
    arguments = _words_to_complete() if completing else arguments
    named = [name for name in COMMANDS if name in arguments]
    for home, name in {COMMANDS[name]: name for name in named or COMMANDS}.items():
        if isinstance(home, str):
            import_module(f"parsim.commands.{home}").register(app)
        else:
            app.command(name)(home)
    if completing:
        import_module("parsim.commands.completion").complete(app)
    if not named:
        app.registered_commands = [_listed(info) for info in app.registered_commands]
    return dressed(app)


def _words_to_complete() -> list[str]:
    """The command line as far as it is typed, as typer's scripts for the shells pass it on."""
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()


def _listed(command: CommandInfo) -> CommandInfo:
    """A command for the list of commands: its name and its text, without its options."""

    def nothing() -> None:
        """Never called: who calls a command names it."""

    called = command.callback or nothing
    nothing.__doc__ = called.__doc__
    return CommandInfo(command.name or called.__name__, callback=nothing)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    gc.set_threshold(_YOUNG_OBJECTS)
    open_streams()
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments))


def execute(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code.

    Whether errors are JSON or come with a traceback is read from the bare arguments: a usage error is an error too.
    """
    arguments = list(arguments) or ["--help"]
    options = set(arguments)
    try:
        refuse_misread(arguments)
        arguments, notes = modern(arguments)
        for note in notes:
            remark(note)
        return _run(arguments)
    except ReaderGone:
        return 141
    except Interrupted as stop:
        remark(f"Interrupted: {stop}.")
        return _INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        remark("Interrupted.")
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the one place that turns every error into words and a code
        if "--debug" in options:
            remark(traceback.format_exc())
        simulates = arguments[0] in ("run", "check", "show")
        return failed(error, as_json="--json" in options, simulates=simulates)


def _run(arguments: list[str]) -> int:
    """Run the command; what typer prints itself, its help, is said as everything else is."""
    try:
        with warnings_said():
            code = typer.main.get_command(application(arguments)).main(args=arguments, prog_name="parsim", standalone_mode=False) or 0
            if code == _INTERRUPTED:  # typer's answer to a KeyboardInterrupt
                raise KeyboardInterrupt
            return code
    except SystemExit as stop:  # typer's answer to a reader that goes away, and to a shell that was told what may follow
        if stop.code:
            raise ReaderGone from stop
        return 0
    except OSError:
        if "--help" not in arguments:
            raise
        with written_or_said():
            raise

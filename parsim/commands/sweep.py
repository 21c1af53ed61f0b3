"""The command `parsim sweep`: many scenarios of one, ranked.

Exit codes: 0 if any row keeps all constraints, 2 if the study or its scenario is wrong, 3 if no row keeps them, 130 if it was
interrupted (what was found is printed, the rows are kept, and the same command goes on).
"""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from parsim.errors import Finding, ScenarioError
from parsim.terminal import Debug, Json, Named, Quiet, TrustCode, Workers, progress, remark, say, say_json

if TYPE_CHECKING:
    from parsim.study.sweep.rows import Row
    from parsim.study.sweep.space import Place
    from parsim.study.sweep.sweep import Study

OUT = Path("parsim-out")
"""where files go, one directory per study"""
AT_ONCE = 2.0
"""of a sweep that is over so soon nothing but the table is said [s]"""


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(sweep)


def sweep(
    file: Annotated[
        str, typer.Argument(metavar="FILE|STUDY", help="A scenario or study file, or the name of a shipped one (`parsim list studies`).")
    ],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE,VALUE...", help="Values for all candidates; several values make an axis: tp=1,2,4,8."),
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="CONSTRAINT", help="Constraint, for example 'step_time < 2 s'; may be repeated.")
    ] = None,
    minimise: Annotated[
        list[str] | None, typer.Option("--minimise", "--minimize", metavar="NUMBER", help="Metric to minimise; default: step_time.")
    ] = None,
    maximise: Annotated[
        list[str] | None, typer.Option("--maximise", "--maximize", metavar="NUMBER", help="Metric to maximise, for example tokens_per_s.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds per candidate.")] = None,
    override: Named = None,
    top: Annotated[int | None, typer.Option(min=1, help="Rows of the table; default: 10.")] = None,
    why_not: Annotated[
        str | None,
        typer.Option("--why-not", metavar="KEY|all", help="Say why a row is not the best; a key, settings such as tp=4,pp=2, or all."),
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Simulate every point, also those proved not to be among the best.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the rows here instead of parsim-out/sweep-<name>.")] = None,
    reports: Annotated[bool, typer.Option("--reports", help="Write the whole report of every row of the table, too.")] = False,
    resume: Annotated[bool, typer.Option("--resume/--restart", help="Resume from existing rows, or start over.")] = True,
    workers: Workers = None,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Simulate on a Dask cluster: tcp://scheduler:8786.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Simulate a scenario over a range of keys, and rank what keeps the constraints."""
    from parsim.study.sweep.sweep import SweepInterrupted
    from parsim.study.sweep.sweep import sweep as simulated
    from parsim.study.sweep.text import better

    began = monotonic()
    directory = out if out is not None else None if as_json else OUT / f"sweep-{_stem(file)}"
    if reports and directory is None:
        raise ScenarioError(Finding("with --json nothing is written", "--reports", None, "say where: --out DIR"))

    def told(place: Place, _: Row, score: str) -> None:
        if (after := monotonic() - began) > AT_ONCE:
            remark(better(place, score, after))

    try:
        found = simulated(
            file,
            *(values or ()),
            where=where or (),
            minimise=minimise or (),
            maximise=maximise or (),
            seeds=seeds,
            named=override or (),
            top=top,
            out=directory,
            restart=not resume,
            exhaustive=exhaustive,
            workers=workers,
            dask=dask,
            trust_code=trust_code,
            watch=lambda doing, found, total, remark: progress(doing, found, total, quiet=quiet, remark=remark),
            improved=None if quiet else told,
        )
    except SweepInterrupted as ended:
        found = ended.study
        if directory is not None:
            remark(f"The rows so far are in {directory / 'results.jsonl'}; run the same command again to continue.")
    for damaged in found.damaged:
        remark(f"warning: {damaged}")
    found.command = _command(file, values, where, minimise, maximise, trust_code=trust_code)
    written = [] if directory is None else _write(found, directory, reports=reports and not found.interrupted, quiet=quiet)
    if as_json:
        reasons = [] if why_not is None else found.why_not(why_not)
        said = {} if why_not is None else {"why_not": [dict(zip(("key", "label", "reason"), one, strict=True)) for one in reasons]}
        say_json({**found.document(), **said})
    elif not quiet:
        _say(found, why_not)
        say(f"\nWrote {directory}{os.sep}: {', '.join(['results.jsonl', 'study.json', *written])}")
    if found.interrupted:
        raise typer.Exit(130)
    if found.best is None:
        raise typer.Exit(3)


def _say(found: Study, why_not: str | None) -> None:
    from parsim.study.sweep.text import reasons

    say(str(found))
    if why_not is not None:
        say(f"\n{reasons(found, why_not)}")


def _stem(file: str) -> str:
    """What the directory is called after."""
    from parsim.scenario.files import exists

    return Path(file.partition("+")[0] if not exists(file) else file).stem


def _write(found: Study, directory: Path, *, reports: bool, quiet: bool) -> list[str]:
    """Write the files beside the rows; their names."""
    from parsim.study.sweep.text import REPORTS
    from parsim.study.sweep.text import reports as written

    names = [path.name for path in found.write(directory)]
    if reports:
        paths = progress("Writing reports", written(found, directory / REPORTS), len(found.shown), quiet=quiet)
        names += [f"{REPORTS}{os.sep}{path.name}{os.sep}" for path in paths]
    return names


def _command(
    file: str,
    values: list[str] | None,
    where: list[str] | None,
    minimise: list[str] | None,
    maximise: list[str] | None,
    *,
    trust_code: bool,
) -> str:
    """The command that gives the same rows and the same ranking."""
    from shlex import join

    options = {"--where": where, "--minimise": minimise, "--maximise": maximise}
    return join(
        [
            "parsim",
            "sweep",
            file,
            *(values or ()),
            *(word for name, given in options.items() for one in given or () for word in (name, one)),
            *(["--trust-code"] if trust_code else ()),
        ]
    )

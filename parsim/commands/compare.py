"""The command `parsim compare`: several scenarios side by side.

Exit codes: 0 if anything was simulated (a variant that does not fit, or that cannot be simulated, is an answer and stands in
the table), 2 if nothing could be, 4 if all stopped in a deadlock; with --strict 2 if any variant could not be simulated and 3 if
any does not fit.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parsim.errors import Finding, ScenarioError
from parsim.terminal import Debug, Json, Quiet, SlowGpu, TrustCode, Workers, progress, say, say_json

if TYPE_CHECKING:
    from parsim.study.compare import Comparison

OUT = Path("parsim-out")
"""where files go, one directory per comparison"""


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(compare)


def compare(
    items: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO|COMPARISON|KEY=VALUE,VALUE...",
            help="Scenario files or names (NAME+OVERRIDE for a named override), a comparison (`parsim list comparisons`), and "
            "values for all of them; several values make variants: parallel.data.strategy=ddp,zero1.",
        ),
    ],
    override: Annotated[
        list[str] | None, typer.Option("--override", metavar="NAME", help="Apply a named block of every file's overrides.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="LABEL", help="The variant that differences refer to; default: the first.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="LABEL", help="What to call the variants, once for each, in order.")] = None,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the files here instead of parsim-out/compare-<name>.")] = None,
    formats: Annotated[
        str, typer.Option("--format", metavar="LIST", help="Figures svg, png, pdf and the page html; or none.")
    ] = "svg,html",
    width: Annotated[float, typer.Option(min=2.5, max=20.0, help="Width of the figures [inch]; 3.5 is a column of a paper.")] = 7.0,
    slow_gpu: SlowGpu = None,
    workers: Workers = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 2 if any cannot be simulated, 3 if any does not fit.")] = False,
    quiet: Quiet = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Simulate several scenarios and say what differs, which wins, and why."""
    from parsim.study.compare import compare as simulated
    from parsim.study.compare import nothing_simulated

    kinds = [] if formats == "none" else [kind.strip() for kind in formats.split(",")]
    _check_formats(kinds)
    if out is not None or not as_json:
        from parsim.report.write import check_folder

        check_folder(out or OUT)
    watch = partial(progress, "Simulating variants", quiet=quiet)
    found = simulated(
        *items, labels=label or (), named=override or (), baseline=baseline, workers=workers, watch=watch, trust_code=trust_code,
        slow_gpu=slow_gpu,
    )  # fmt: skip
    found.command = _command(items, override, baseline, label, slow_gpu, trust_code=trust_code)
    if (error := nothing_simulated(found)) is not None:
        raise error
    directory = out if out is not None else None if as_json else OUT / f"compare-{found.stem}"
    written = [] if directory is None else found.write(directory, kinds, width=width)
    if as_json:
        say_json(found.document())
    elif not quiet:
        say(str(found))
        say(f"\nWrote {directory}{os.sep}: {', '.join(path.name for path in written)}")
    if strict:
        _be_strict(found)


def _check_formats(kinds: list[str]) -> None:
    """Before anything is simulated."""
    from parsim.study.compare_files import FORMATS

    if unknown := [kind for kind in kinds if kind not in FORMATS]:
        raise ScenarioError(Finding(f"unknown format {unknown[0]!r}", "--format", unknown[0], f"known: {', '.join(FORMATS)}, none"))


def _be_strict(found: Comparison) -> None:
    statuses = {run.status for run in found.runs}
    if statuses & {"refused", "deadlock", "failed"}:
        raise typer.Exit(2)
    if "does not fit" in statuses:
        raise typer.Exit(3)


def _command(
    items: list[str], override: list[str] | None, baseline: str | None, label: list[str] | None, slow_gpu: float | None, *, trust_code: bool
) -> str:
    """The command that gives the same comparison."""
    from shlex import join

    options = [word for name in override or () for word in ("--override", name)]
    options += ["--baseline", baseline] if baseline is not None else []
    options += [word for name in label or () for word in ("--label", name)]
    options += ["--slow-gpu", f"{slow_gpu:g}"] if slow_gpu is not None else []
    options += ["--trust-code"] if trust_code else []
    return join(["parsim", "compare", *items, *options])

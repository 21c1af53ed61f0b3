"""``parsim validate``: how good the predictions are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parsim.command_help import Group
from parsim.errors import Finding, ScenarioError
from parsim.terminal import Debug, Figure, Json, Quiet, Workers, busy, picture_kind, progress, say, say_json

validations = typer.Typer(name="validate", cls=Group, help="Compare predictions with published measurements.")


def register(app: typer.Typer) -> None:
    """Put the commands of this file on the command line."""
    app.add_typer(validations)


@validations.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    source: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this source; may be repeated.")] = None,
    grade: Annotated[list[str] | None, typer.Option(help="a-priori | left-out | calibrated; default: all three")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Leave out the rows.")] = False,
    figure: Figure = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Your own sources.yaml, fits.yaml and rows.")] = None,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare predicted with published steps of training runs: seconds and memory, by source."""
    if context.invoked_subcommand is not None:
        return
    from parsim.validation.predicted_runs import GRADES, PredictedRun, fitted, predictions
    from parsim.validation.published_runs import not_expressed, published
    from parsim.validation.run_scores import RunScores, document, heading, picture, row_line
    from parsim.validation.run_scores import summary as summarised

    for name in grade or ():
        if name not in GRADES:
            raise ScenarioError(Finding(f"unknown grade {name!r}", "--grade", name, f"known: {', '.join(GRADES)}"))
    suffix = None if figure is None else picture_kind(figure)
    grades = tuple(one for one in GRADES if not grade or one in grade)
    sources = published(data, source or ())
    titles = {one.name: heading(one) for one in sources}
    found: list[PredictedRun] = []
    total = sum(len(one.rows) for one in sources)
    for one in progress("Predicting published runs", predictions(sources, fitted(data), grades, jobs=workers), total, quiet=quiet):
        found.append(one)
        if not (summary or as_json):  # rows are printed as they come: all of them take minutes
            if one.row.source in titles:
                say("\n" + titles.pop(one.row.source))
            say(row_line(one, grades))
    scores = RunScores(sources, tuple(found), grades)
    if figure is not None and suffix is not None:
        from parsim.report.write import write_file

        write_file(figure, picture(scores, suffix))
    if as_json:
        say_json(document(scores))
    else:
        say(("" if summary else "\n") + summarised(scores, not_expressed(data)) + (f"\nWrote {figure}" if figure is not None else ""))


@validations.command()
def memory(
    source: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this source; may be repeated.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Leave out the rows.")] = False,
    every: Annotated[int, typer.Option(min=1, metavar="K", help="Only every K-th row of a source.")] = 1,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare predicted with published peak memory, by stack: what the allocator handed out or reserved, or what nvidia-smi showed."""
    from parsim.validation.predicted_memory import PredictedMemory, document, line, memory_rows, predictions, sampled, table

    rows = sampled(memory_rows(source or ()), every)
    found: list[PredictedMemory] = []
    for one in progress("Predicting published peaks", predictions(rows, jobs=workers), len(rows), quiet=quiet):
        if not (summary or as_json):
            if not found or found[-1].row.source != one.row.source:
                say(f"\n{one.row.source}: {one.row.stack}, {one.row.kind.replace('_', ' ')}")
            say(line(one))
        found.append(one)
    say_json(document(found)) if as_json else say(("" if summary else "\n") + table(found))


@validations.command()
def nccl(
    basis: Annotated[str | None, typer.Option(help="measured | nccl; default: both")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Your own measurements.csv and systems.yaml.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare predicted with published times of collectives, by system and size."""
    from parsim.hardware.nccl.profiles import PROFILES
    from parsim.hardware.nccl.profiles import profile as known
    from parsim.validation.predicted_collectives import document, text, validate
    from parsim.validation.published_collectives import measurements

    with busy("Predicting published collectives", quiet=quiet):
        compared = validate(measurements(data), PROFILES if basis is None else [known(basis).name])
    say_json(document(compared)) if as_json else say(text(compared))


@validations.command()
def gemm(
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Your own measurements.csv, attention.csv and devices.yaml.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    figure: Figure = None,
    debug: Debug = False,
) -> None:
    """Compare predicted with published times of matrix products and fused attention, by device and type."""
    from parsim.validation.predicted_kernels import document, picture, text, validate
    from parsim.validation.published_kernels import kernel_measurements

    suffix = None if figure is None else picture_kind(figure)
    with busy("Predicting published kernels", quiet=quiet):
        compared = validate(kernel_measurements(data))
    if figure is not None and suffix is not None:
        from parsim.report.write import write_file

        write_file(figure, picture(compared, suffix))
    say_json(document(compared)) if as_json else say(text(compared) + (f"\nWrote {figure}" if figure is not None else ""))


@validations.command()
def traces(
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Your own jobs.yaml, steps.csv and passes.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    figure: Figure = None,
    debug: Debug = False,
) -> None:
    """Compare simulated with recorded steps whose passes are given: who waits for whom, and what stragglers cost."""
    from parsim.validation.predicted_traces import document, picture, predicted, text
    from parsim.validation.recorded_steps import recorded_jobs

    suffix = None if figure is None else picture_kind(figure)
    recorded = recorded_jobs(data)
    found = list(progress("Simulating recorded steps", map(predicted, recorded.jobs), len(recorded.jobs), quiet=quiet))
    if figure is not None and suffix is not None:
        from parsim.report.write import write_file

        write_file(figure, picture(found, suffix))
    written = "" if figure is None else f"\nWrote {figure}"
    say_json(document(found, recorded.source)) if as_json else say(text(found, recorded.source) + written)


@validations.command()
def steps(
    source: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this published run; may be repeated.")] = None,
    variability: Annotated[str, typer.Option(metavar="PROFILE", help="A profile of variability.")] = "typical",
    runs: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Simulated steps of each run; p99 needs 299: 4 to 18 min each.")
    ] = 60,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Your own sources.yaml, step_times.csv and rows.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare how much steps of one run differ: percentiles of published logs beside those of simulated steps."""
    from parsim.validation.step_spread import StepSpread, document, simulated_steps, step_logs, text

    logs = step_logs(data, source or ())
    drawn = ((number, step) for number, log in enumerate(logs) for step in simulated_steps(log, variability, runs))
    taken: dict[int, list[float]] = {number: [] for number in range(len(logs))}
    for number, step in progress("Simulating steps", drawn, len(logs) * runs, quiet=quiet):
        taken[number].append(step)
    found = [StepSpread(log, tuple(taken[number])) for number, log in enumerate(logs)]
    say_json(document(found, variability)) if as_json else say(text(found, variability))

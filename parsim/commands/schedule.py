"""The schedule laboratory: pipeline schedules without a model or a cluster."""

from __future__ import annotations

import re
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from parsim.errors import Finding, ScenarioError, attempt
from parsim.terminal import Debug, Json, TrustCode, remark, say, say_json
from parsim.units import whole

if TYPE_CHECKING:
    from parsim.report.schedule_scene import Scene
    from parsim.study.schedule import ScheduleDeadlockError

_FORMATS = ("pdf", "svg", "pgf", "png")
_INCHES = {"in": 1.0, "inch": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27, "bp": 1 / 72.0}
"""TeX's units of length; pt is what \\the\\columnwidth prints"""
_LABELS = ("number", "pass", "none")


def register(app: typer.Typer) -> None:
    """Put the command on the command line."""
    app.command()(schedule)


def schedule(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="SCHEDULE...",
            help="naive, gpipe, looped-bfs, 1f1b, interleaved, pipedream, zb-h1, zb-h2, zb-v, v-half, v-min, interleaved-zb, "
            "combined-1f1b, dualpipev, dualpipe, chimera, pipedream-2bw, your own table (mine.csv) or function (mine.py:NAME).",
        ),
    ],
    ranks: Annotated[int | None, typer.Option("-p", "--ranks", metavar="P", help="Pipeline ranks; tables say it themselves.")] = None,
    micro_batches: Annotated[int | None, typer.Option("-m", "--micro-batches", metavar="M", help="Micro-batches.")] = None,
    virtual: Annotated[
        str,
        typer.Option(
            "-v",
            "--virtual",
            metavar="V",
            help="Chunks per rank of interleaved, interleaved-zb, looped-bfs and combined-1f1b; 2,4 shows both.",
        ),
    ] = "1",
    times: Annotated[
        str | None,
        typer.Option(
            metavar="F=1,I=1,W=1",
            help="Times per micro-batch and rank: numbers or F=1.2ms,B=2.4ms; F=1:1:2:1 one per rank. FB: a forward beside a backward.",
        ),
    ] = None,
    stage_times: Annotated[str | None, typer.Option(metavar="1,1,2,1", help="Factors on these times, one per rank.")] = None,
    comm: Annotated[str | None, typer.Option(metavar="0.5", help="Time of a message between stages.")] = None,
    sends: Annotated[str, typer.Option(help="overlapped | blocking: whether messages hold up compute on both ranks.")] = "overlapped",
    activation: Annotated[
        str | None, typer.Option(metavar="BYTES", help="What a micro-batch keeps on a rank, all chunks together: peak memory.")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Draw the schedules in letters.")] = False,
    figures: Annotated[
        list[Path] | None, typer.Option("--figure", metavar="FILE", help="Draw a figure: .pdf, .svg, .pgf or .png; repeatable.")
    ] = None,
    width: Annotated[str, typer.Option(metavar="LENGTH", help="Width of the figure: 3.5in, 8.6cm, 252pt.")] = "7in",
    title: Annotated[str, typer.Option(metavar="TEXT", help="A line above the figure.")] = "",
    labels: Annotated[str, typer.Option(help="number | pass | none: the label of each box.")] = "number",
    no_captions: Annotated[bool, typer.Option("--no-captions", help="Leave out the caption above each schedule.")] = False,
    count_from: Annotated[
        int, typer.Option(min=0, max=1, help="First rank and micro-batch of the drawings: 1 as papers have it (Device 1).")
    ] = 0,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the schedule as a table to start from.")] = None,
    csv_format: Annotated[str, typer.Option(help="parsim | torch: torch.distributed.pipelining's _load_csv reads the latter.")] = "parsim",
    as_json: Json = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Compare pipeline schedules: makespan, period, bubble and its closed form, in flight; draw them as papers do."""
    from parsim.parallel.schedules.torch_csv import torch_text
    from parsim.study import schedule as study
    from parsim.study.schedule_inputs import activation_bytes, entries
    from parsim.study.schedule_inputs import times as read_times
    from parsim.study.schedule_text import document, drawing, figure, table_text, text

    findings: list[Finding] = []
    figures = figures or []
    inches = attempt(lambda: _inches(width), findings)
    findings += [*_options(sends, labels, csv_format), *_files(figures, csv)]
    size = attempt(lambda: activation_bytes(activation), findings)
    chunks = attempt(lambda: _chunks(virtual), findings)
    seconds = attempt(lambda: read_times(times, communication=comm, stage_times=stage_times, overlap=sends != "blocking"), findings)
    schedules = attempt(lambda: entries(names, ranks, micro_batches, chunks or (1,), trust_code=trust_code), findings)
    if csv is not None and schedules is not None and len(schedules) != 1:
        findings.append(Finding(f"a table holds one schedule, not {len(schedules)}", "--csv", str(csv), "name one schedule"))
    if findings or schedules is None or seconds is None or inches is None:
        raise ScenarioError(findings)
    for entry in schedules:
        if entry.left_out:
            remark(f"{entry.label}: {entry.left_out} messages and collectives of a lowered table are left out: parsim places them itself")
    try:
        results = study.simulate(schedules, seconds, size)
    except study.ScheduleDeadlockError as error:
        _stuck(error, as_json=as_json)
        raise typer.Exit(error.exit_code) from None
    letters = [f"\n{result.entry.label}\n{drawing(result, count_from)}" for result in results] if draw else []
    if figures:
        words = cast(Literal["number", "pass", "none"], labels)
        _write(figures, figure(results, seconds, width=inches, title=title, labels=words, captions=not no_captions, first=count_from))
    if csv is not None:
        from parsim.report.write import write_new

        only = schedules[0]
        write_new(csv, torch_text(only.rows, only.overlapped) if csv_format == "torch" else table_text(only))
    written = [str(file) for file in (*figures, *([csv] if csv is not None else ()))]
    if as_json:
        say_json(document(results, seconds) | ({"files": written} if written else {}))
    else:
        say("\n".join([text(results, seconds), *letters, *([f"\nWrote {', '.join(written)}"] if written else [])]))


def _options(sends: str, labels: str, csv_format: str) -> list[Finding]:
    """Findings for words that the options do not know."""
    return [
        Finding(f"{value!r} is not known", option, value, f"write {' or '.join(known)}")
        for option, value, known in (
            ("--sends", sends, ("overlapped", "blocking")),
            ("--labels", labels, _LABELS),
            ("--csv-format", csv_format, ("parsim", "torch")),
        )
        if value not in known
    ]


def _files(figures: list[Path], csv: Path | None) -> list[Finding]:
    """Files that cannot be written, so that none is where one of them cannot."""
    findings = []
    for file in figures:
        if file.suffix.lower().lstrip(".") not in _FORMATS:
            kind = file.suffix or "file without suffix"
            findings.append(Finding(f"cannot draw a {kind}", "--figure", str(file), f"name it .{', .'.join(_FORMATS)}"))
    findings += [
        Finding(f"cannot be written: there is no folder {file.parent}", value=file.name, file=str(file))
        for file in (*figures, *([csv] if csv is not None else ()))
        if not file.parent.is_dir()
    ]
    if csv is not None and csv.exists():
        findings.append(Finding("exists and is not overwritten", "--csv", csv.name, "choose another name", file=str(csv)))
    return findings


def _inches(text: str) -> float:
    length = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]+)\s*", text.lower())
    try:
        value = float(length[1]) * _INCHES[length[2]] if length else nan
    except (ValueError, KeyError):
        value = nan
    if isnan(value):
        raise ScenarioError(Finding(f"{text!r} is no length", "--width", text, "write 3.5in, 8.6cm, 86mm or 252pt"))
    if not 1.0 <= value <= 50.0:
        raise ScenarioError(Finding(f"{text} is {value:.3g} in: a figure is 1 in to 50 in wide", "--width", text))
    return value


def _chunks(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(whole(part) for part in text.split(","))
    except ValueError:
        raise ScenarioError(Finding(f"{text!r} is no count of chunks", "-v", text, "write 2, or 2,4")) from None
    return tuple(dict.fromkeys(counts))


def _write(files: list[Path], scene: Scene) -> None:
    """Draw all figures, then write them: none is written where one cannot be drawn."""
    from parsim.report.write import write_file

    for file, data in [(file, _figure(file, scene)) for file in files]:
        write_file(file, data)


def _figure(file: Path, scene: Scene) -> bytes:
    kind = file.suffix.lower().lstrip(".")
    if kind == "pgf":
        from parsim.report.plots.schedule import pgf

        return pgf(scene).encode()
    from parsim.report.plots.schedule import save_schedule

    return save_schedule(scene, cast(Literal["pdf", "svg", "png"], kind))


def _stuck(error: ScheduleDeadlockError, *, as_json: bool) -> None:
    """A deadlock is an answer too: in words on stderr, and as a document if asked for."""
    remark(str(error))
    if as_json:
        say_json({"parsim": 1, "deadlock": error.circles, "errors": [finding.as_dict() for finding in error.findings]})

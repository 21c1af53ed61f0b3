"""The command `parsim timeline`: one simulated step as a figure for a paper or a talk."""

from __future__ import annotations

import math
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from parsim.errors import Finding, InputError, ScenarioError
from parsim.terminal import Debug, Json, Named, Overrides, Quiet, TrustCode, busy, say, say_json

if TYPE_CHECKING:
    from parsim.report import Report
    from parsim.report.lanes import RankLanes, TimelineData
    from parsim.report.plots.figure import Kind

LATEX = "xelatex"
"""what matplotlib asks how wide a text is in a .pgf figure"""


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(timeline)


def timeline(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or the name of a shipped scenario.")],
    overrides: Overrides = None,
    override: Named = None,
    window: Annotated[str | None, typer.Option(metavar="BEGIN:END", help="The part to draw: 0.2s:0.5s, 200ms: or 40%:60%.")] = None,
    ranks: Annotated[str | None, typer.Option(metavar="LIST", help="Ranks to draw, 0,8,16-19; default: some that stand for all.")] = None,
    stages: Annotated[bool, typer.Option("--stages", help="One rank of every pipeline stage.")] = False,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="The memory of the fullest of these ranks beneath.")] = True,
    width: Annotated[str, typer.Option(metavar="LENGTH", help="Width of the figure: 3.5in, 89mm, 8.9cm, 252pt.")] = "7in",
    title: Annotated[str | None, typer.Option(metavar="TEXT", help='Title; default: the scenario\'s name, "" for none.')] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A .pdf, .svg, .png or .pgf file; default: parsim-out/<scenario>/timeline.pdf.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write timeline.pdf here instead of parsim-out/<scenario>.")] = None,
    unfolded: Annotated[bool, typer.Option("--unfolded", help="Simulate every rank.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Draw the step: who computes, communicates and waits when, and the memory beneath."""
    kind, path = _checked(figure, out, file, width, ranks, stages=stages)
    from parsim.scenario import load

    scenario = load(file, *(overrides or ()), named=list(override or ()), trust_code=trust_code)

    from parsim.run import simulate  # after the file: what is wrong with it need not wait for the simulator

    with busy("Simulating one step", quiet=quiet):
        report = simulate(scenario, unfolded=unfolded)
    from dataclasses import replace

    from parsim.report.plots.figure import save
    from parsim.report.plots.sheet import timeline_figure
    from parsim.report.selection import inches

    data = report.plot.timeline_data(width=width, window=window, ranks=ranks, stages=stages, memory=memory)
    if title is not None:
        data = replace(data, title=title)
    _write(path, save(timeline_figure(data, inches(width)), kind, dpi=300.0))
    say_json(_document(report, data, path)) if as_json else say(_text(report, data, path))


def _checked(figure: Path | None, out: Path | None, file: str, width: str, ranks: str | None, *, stages: bool) -> tuple[Kind, Path]:
    """Everything that can be wrong with the options, before anything is simulated."""
    from parsim.report.selection import inches, read_ranks

    folder = out if out is not None else Path("parsim-out") / Path(file).stem
    path = folder / "timeline.pdf" if figure is None else figure
    kind = path.suffix.lower().removeprefix(".")
    findings: list[Finding] = []
    if kind not in ("pdf", "svg", "png", "pgf"):
        findings.append(
            Finding(f"cannot draw a {path.suffix or 'file without suffix'}", "--figure", str(path), "name it .pdf, .svg, .png or .pgf")
        )
    if kind == "pgf" and which(LATEX) is None:
        findings.append(Finding(f"a .pgf figure needs {LATEX} to measure its text", "--figure", str(path), "install TeX, or write a .pdf"))
    if ranks is not None and stages:
        findings.append(Finding("--ranks and --stages both choose ranks", "--ranks", ranks, "leave one of them out"))
    for read, value in ((inches, width), (read_ranks, ranks)):
        try:
            if value is not None:
                read(value)
        except InputError as error:
            findings += error.findings
    if findings:
        raise ScenarioError(findings)
    return cast("Kind", kind), path


def _write(path: Path, picture: bytes) -> None:
    from parsim.report.write import write_together

    write_together(path.parent, {path.name: picture})


def _text(report: Report, data: TimelineData, path: Path) -> str:
    from parsim.report.quantities import seconds

    lines = [f"{report.measured.name}: {seconds(data.begin)} to {seconds(data.end)} of {seconds(report.shown.end)}"]
    lines += [
        f"  {lane.who.label}: bubble {seconds(_bubble(lane))}, exposed communication {seconds(_exposed(lane))}" for lane in data.lanes
    ]
    if data.note:
        lines.append(data.note)
    if data.memory_rank is not None:
        lines.append(f"memory of rank {data.memory_rank}")
    return "\n".join([*lines, f"Wrote {path}"])


def _document(report: Report, data: TimelineData, path: Path) -> dict[str, Any]:
    return {
        "parsim": 1,
        "name": report.measured.name,
        "figure": str(path),
        "begin_s": data.begin,
        "end_s": data.end,
        "step_time_s": report.shown.step_time,
        "memory_rank": data.memory_rank,
        "ranks": [
            {
                "rank": lane.rank,
                "simulated_rank": lane.who.simulated,
                "stage": lane.who.stage,
                "equal_ranks": lane.who.equal,
                "stands_for": list(lane.who.notes),
                "bubble_s": _bubble(lane),
                "idle_s": {key: bars.seconds for key, bars in lane.idle.items()},
                "exposed_s": {key: bars.seconds for key, bars in lane.exposed.items()},
            }
            for lane in data.lanes
        ],
    }


def _bubble(lane: RankLanes) -> float:
    return lane.idle["bubble"].seconds if "bubble" in lane.idle else 0.0


def _exposed(lane: RankLanes) -> float:
    """As the breakdown counts it: no instant twice [s]."""
    return math.fsum(bars.seconds for key, bars in lane.idle.items() if key.endswith("_comm"))

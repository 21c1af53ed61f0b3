"""The command that writes traces and memory snapshots for other tools' viewers."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parsim.errors import Finding, ScenarioError
from parsim.terminal import Debug, Json, Named, Overrides, Quiet, TrustCode, busy, say, say_json
from parsim.units import whole

if TYPE_CHECKING:
    from parsim.report import Report

NAME = "trace.json.gz"


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(trace)


def trace(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or the name of a shipped scenario.")],
    overrides: Overrides = None,
    override: Named = None,
    ranks: Annotated[
        str | None, typer.Option(metavar="0,8-11", help="Ranks to write; default: one of each class of equal ranks, at most 16.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write trace.json.gz here instead of parsim-out/<scenario>; with --per-rank its files."),
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the trace to this file; without .gz it is not packed.")] = None,
    per_rank: Annotated[bool, typer.Option("--per-rank", help="One file per rank, as PyTorch writes them.")] = False,
    recorded: Annotated[
        list[Path] | None,
        typer.Option("--merge", metavar="[LABEL=]FILE", help="A trace of PyTorch's profiler to put beside the simulated one; repeatable."),
    ] = None,
    memory_snapshot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.pickle", help="Write the memory of one rank for pytorch.org/memory_viz; no trace without --out or --save."
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="The rank of --memory-snapshot; default: the fullest.")] = None,
    most_slices: Annotated[int | None, typer.Option(min=1, help="Leave out what starts after this many slices; default: nothing.")] = None,
    unfolded: Annotated[bool, typer.Option("--unfolded", help="Simulate every rank, so that each can be written.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
    trust_code: TrustCode = False,
    debug: Debug = False,
) -> None:
    """Write the simulated step for Perfetto and other readers of PyTorch's traces, alone or beside recorded ones."""
    from parsim.report.write import inside
    from parsim.scenario import load

    wanted = _options(ranks, rank, save, per_rank=per_rank, recorded=recorded, memory_snapshot=memory_snapshot)
    others = [_recorded(str(path)) for path in recorded or ()]
    scenario = load(file, *(overrides or ()), named=list(override or ()), trust_code=trust_code)

    from parsim.run import simulate  # after the file: what is wrong with it need not wait for the simulator

    with scenario.placing(), busy("Simulating one step", quiet=quiet):
        report = simulate(scenario, unfolded=unfolded)
    documents: dict[str, Any] = {"parsim": 1}
    said: list[str] = []
    try:
        if memory_snapshot is not None:
            documents["memory_snapshot"] = _snapshot(report, memory_snapshot, rank, said)
        if memory_snapshot is None or out is not None or save is not None:
            folder = out if out is not None else Path("parsim-out") / Path(file).stem
            path = folder if per_rank else save if save is not None else folder / NAME
            with inside(folder) if save is None else nullcontext():
                documents["trace"] = _trace(report, path, wanted, others, most_slices, said, per_rank=per_rank)
    except ValueError as error:
        raise ScenarioError(Finding(str(error), suggestion="--unfolded simulates every rank", file="command line")) from None
    say_json(documents) if as_json else say("\n".join(said))


def _options(
    ranks: str | None, rank: int | None, save: Path | None, *, per_rank: bool, recorded: list[Path] | None, memory_snapshot: Path | None
) -> list[int] | None:
    """The ranks that were asked for; everything that is wrong with the options at once."""
    findings: list[Finding] = []
    found: list[int] | None = None
    if ranks is not None:
        try:
            found = numbers(ranks)
        except ValueError:
            rule = "must be ranks and ranges of ranks"
            findings.append(Finding(f"--ranks (={ranks}) {rule}", value=ranks, suggestion="write for example 0,8-11", file="command line"))
    if per_rank and recorded:
        findings.append(Finding("--per-rank and --merge exclude each other", suggestion="merge into one file", file="command line"))
    if per_rank and save is not None:
        findings.append(Finding("--per-rank writes several files, --save one", "--save", str(save), "name a folder with --out"))
    if rank is not None and memory_snapshot is None:
        findings.append(
            Finding("--rank belongs to --memory-snapshot", suggestion="--ranks chooses those of the trace", file="command line")
        )
    if findings:
        raise ScenarioError(findings)
    return found


def numbers(text: str) -> list[int]:
    """``0,8-11`` as numbers, each once. Raises ValueError for anything else."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        begin, end = whole(first), whole(last) if dash else whole(first)
        if not 0 <= begin <= end < 2**24:
            raise ValueError(part)
        found += range(begin, end + 1)
    return list(dict.fromkeys(found))


def _recorded(text: str) -> tuple[str, dict[str, Any]]:
    """Label and document of a recorded trace; the label is what stands before =, or the file's name."""
    from parsim.calibration.kineto import read_document

    label, equals, name = text.partition("=")
    path = Path(name if equals else text)
    return label if equals else path.name.removesuffix(".gz").removesuffix(".json"), read_document(path)


def _snapshot(report: Report, path: Path, rank: int | None, said: list[str]) -> dict[str, Any]:
    from parsim.report.memory_snapshot import fullest, write_memory_snapshot
    from parsim.report.write import replacing

    chosen = fullest(report) if rank is None else rank
    with replacing(path) as binary:
        write_memory_snapshot(report, binary, chosen)
    said.append(f"Wrote {path}: memory of rank {chosen}, {path.stat().st_size / 1e6:.3g} MB. Open it at pytorch.org/memory_viz")
    return {"file": str(path), "rank": chosen}


def _trace(
    report: Report,
    path: Path,
    ranks: list[int] | None,
    others: list[tuple[str, dict[str, Any]]],
    most: int | None,
    said: list[str],
    *,
    per_rank: bool,
) -> dict[str, Any]:
    from parsim.report.trace_files import write_merged, write_per_rank, write_trace

    if per_rank:
        paths = write_per_rank(report, path, ranks, most)
        size = sum(path.stat().st_size for path in paths) / 1e6
        said.append(f"Wrote {path}: {', '.join(path.name for path in paths)}, {size:.3g} MB together")
        return {"files": [str(path) for path in paths]}
    written = write_merged(report, path, others, ranks, most) if others else write_trace(report, path, ranks, most)
    left = f", {written.spans_left_out} left out" if written.spans_left_out else ""
    beside = f", beside {', '.join(label for label, _ in others)}" if others else ""
    named = ", ".join(map(str, written.ranks))
    size = path.stat().st_size / 1e6
    said.append(f"Wrote {path}: {written.spans} slices{left}, ranks {named}{beside}, {size:.3g} MB. Open it at ui.perfetto.dev")
    return {
        "file": str(path),
        "ranks": list(written.ranks),
        "slices": written.spans,
        "slices_left_out": written.spans_left_out,
        "merged": [label for label, _ in others],
    }

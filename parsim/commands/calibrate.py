"""The command that measures the machine it runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parsim.errors import Finding, ScenarioError
from parsim.terminal import Debug, Json, Quiet, remark, say, say_json, write_collectives


def register(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(calibrate)


def calibrate(
    device: Annotated[str | None, typer.Option(help="cuda | cpu; default: cuda if PyTorch sees a GPU.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few shapes and repetitions: seconds instead of minutes.")] = False,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="The device file to write; default: parsim-out/<device>.yaml.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call the device; default: the machine's name for it.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads to compute with; default: PyTorch's.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure this machine with PyTorch and write a device file: fitted efficiencies and measured tables."""
    if save is not None:
        _free(save)
    from parsim.calibration.calibrate import calibrate as measure
    from parsim.calibration.measurements import slug

    result = measure(device, name=name, quick=quick, threads=threads, say=_silent if quiet else remark)
    path = save if save is not None else Path("parsim-out") / f"{slug(result.name)}.yaml"
    from parsim.report.write import make_folder, write_new

    if save is None:
        make_folder(path.parent)

    write_new(path, result.yaml)
    written = write_collectives(path, result.collective_files(path))
    if as_json:
        say_json({"parsim": 1, "file": str(path), "device": result.tree, "notes": result.tables.notes, "collectives": written})
        return
    say("\n".join([*result.summary, *result.tables.notes]))
    say(f"Wrote {path}. Use it: cluster: {{topology: {{gpu: {_relative(path)}, count: {result.facts.count}}}}}")
    if written is not None:
        say(f"Wrote {written}; the network model takes no tables, compare: parsim validate nccl --data {written}")


def _free(path: Path) -> None:
    """Refuse a file that cannot be written, before minutes are spent on it."""
    if path.exists():
        raise ScenarioError(Finding("exists and is not overwritten", value=path.name, suggestion="choose another name", file=str(path)))
    folder = path.with_name(f"{path.stem}-collectives")
    if folder.exists():
        text = "exists; measured collectives would be written there"
        raise ScenarioError(Finding(text, value=folder.name, suggestion="choose another name", file=str(folder)))
    if not path.parent.is_dir():
        raise ScenarioError(Finding("no such directory", value=str(path.parent), file=str(path)))


def _relative(path: Path) -> str:
    return str(path) if path.is_absolute() else f"./{path}"


def _silent(text: str) -> None:
    """Where nothing is to be said on the way."""

"""The report's files, each written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from parsim.errors import Finding, InputError
from parsim.report.chrome_trace import write_chrome_trace
from parsim.simulation.engine import collector_paused

if TYPE_CHECKING:
    from parsim.report.report import Report

FORMATS = ("json", "svg", "png", "trace", "html")


def write_outputs(report: Report, directory: str | Path, formats: Iterable[str] = ("json", "svg", "trace", "html")) -> list[Path]:
    """Write the files of `formats` into `directory` (made if needed) and return their paths.

    json: report.json; svg and png: timeline and memory; trace: trace.json (for ui.perfetto.dev); html: report.html.
    A file is replaced only once its successor is complete. Raises InputError for an unknown format, OSError if the disk says no.
    """
    chosen = list(dict.fromkeys(formats))
    if unknown := [name for name in chosen if name not in FORMATS]:
        raise InputError(Finding("unknown output format", value=unknown[0], suggestion=f"known: {', '.join(FORMATS)}"))
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    with collector_paused():
        for name in chosen:
            for file, write in _files(report, name).items():
                path = directory / file
                with replacing(path) as out:
                    write(out)
                paths.append(path)
    return paths


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """An open binary file that takes the place of `path` when the block ends without an exception."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as out:
            yield out
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _files(report: Report, name: str) -> dict[str, Callable[[BinaryIO], object]]:
    """File name -> what fills it."""
    if name == "json":
        return {"report.json": lambda out: out.write(f"{report.to_json()}\n".encode())}
    if name == "trace":
        return {"trace.json": lambda out: _trace(report, out)}
    if name == "html":
        from parsim.report.page.page import page

        return {"report.html": lambda out: out.write(page([(report.measured.name, report)]).encode())}
    from parsim.report.plots import pictures

    kind: Literal["svg", "png"] = "svg" if name == "svg" else "png"
    files: dict[str, Callable[[BinaryIO], object]] = {f"timeline.{kind}": lambda out: out.write(pictures.timeline(report, kind))}
    if report.measured.memory.devices:
        files[f"memory.{kind}"] = lambda out: out.write(pictures.memory(report, kind))
    return files


def _trace(report: Report, out: BinaryIO) -> None:
    text = TextIOWrapper(out, encoding="utf-8", newline="\n")
    write_chrome_trace(report, text)
    text.detach()

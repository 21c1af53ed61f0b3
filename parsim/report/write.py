"""The report's files, each written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING

from parsim.errors import Finding, InputError

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
    for name in chosen:
        for file, write in _files(report, name).items():
            path = directory / file
            with replacing(path) as out:
                write(out)
            paths.append(path)
    return paths


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """An open binary file that takes the place of `path` when the block ends without an exception."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as out:
        try:
            yield out
            out.flush()
            os.fchmod(out.fileno(), _permissions(path)) if hasattr(os, "fchmod") else None
        except BaseException:
            out.close()
            os.unlink(out.name)
            raise
    os.replace(out.name, path)

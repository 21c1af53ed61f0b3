"""Files that parsim writes, each whole or not at all; those of one answer all or none."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO, TextIOWrapper
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from parsim.errors import Finding, InputError, OutputError

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics
    from parsim.report.report import Report

FORMATS = ("json", "svg", "png", "trace", "html")
MOST_BYTES = 450_000
"""of a timeline: what a browser opens at once"""
_FEWEST_LANES = 4
Content = bytes | Callable[[BinaryIO], object]
"""what is in a file, or what writes it"""
LEVEL = 6
"""of gzip: a trace gets 15 to 20 times smaller; higher levels cost more time than they save space"""
_numbers = count()
"""of the files that are not whole yet"""


def write_outputs(report: Report, directory: str | Path, formats: Iterable[str] = ("json", "svg", "trace", "html")) -> list[Path]:
    """Write the files of `formats` into `directory` (made if needed) and return their paths.

    json: report.json; svg and png: timeline and memory, variability where there are several runs, workers where they differ, training,
    goodput-interval and goodput-size where there is a horizon; trace: trace.json.gz (for ui.perfetto.dev); html: report.html.
    Either all are written, or none and those of before stay. Raises InputError for an unknown format, or for what the disk refuses.
    """
    chosen = list(dict.fromkeys(formats))
    if unknown := [name for name in chosen if name not in FORMATS]:
        raise InputError(Finding("unknown output format", value=unknown[0], suggestion=f"known: {', '.join(FORMATS)}"))
    from parsim.simulation.engine import collector_paused

    contents: dict[str, Content] = {}
    for name in chosen:
        contents |= _files(report, name)
    with collector_paused():
        return write_together(Path(directory), contents)


def write_together(directory: Path, contents: Mapping[str, Content]) -> list[Path]:
    """Write files into `directory` (made if needed): all of them, or none and the folder is as it was; their paths.

    Raises:
        OutputError: the disk refuses one of them.
    """
    paths = [directory / name for name in contents]
    made = [folder for folder in (directory, *directory.parents) if not _is_there(folder)]
    parts: list[Path] = []
    try:
        with _refused(directory):
            directory.mkdir(parents=True, exist_ok=True)
        for path, content in zip(paths, contents.values(), strict=True):
            with _refused(path):
                if path.is_dir():
                    raise IsADirectoryError(None, "Is a directory")  # noqa: TRY301 - as the system would say it
                parts.append(_part(path))
                with parts[-1].open("wb") as out:
                    _fill(out, content)
        for part, path in zip(parts, paths, strict=True):
            with _refused(path):
                part.replace(path)
    except BaseException:
        for part in parts:
            part.unlink(missing_ok=True)
        with suppress(OSError):  # somebody else writes there
            for folder in made:
                folder.rmdir()
        raise
    return paths


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """An open binary file that takes the place of `path` when the block ends without an exception.

    What is no regular file (``/dev/null``, a pipe) is written to as it is.

    Raises:
        OutputError: the disk refuses it.
    """
    with _refused(path):
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            whole = BytesIO()
            yield whole
            descriptor = os.open(target, os.O_WRONLY | os.O_NONBLOCK)  # a pipe that nobody reads is refused, not waited for
            with open(descriptor, "wb") as out:  # noqa: PTH123
                os.set_blocking(descriptor, True)
                out.write(whole.getvalue())
            return
        part = _part(target)
        try:
            with part.open("wb") as out:
                yield out
            part.replace(target)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise


def write_file(path: Path, content: bytes) -> None:
    """Write one file, in the place of what was there. Raises as `replacing` does."""
    with replacing(path) as out:
        out.write(content)


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        OutputError: it is there, or the disk refuses it.
    """
    with _refused(path):
        if path.is_symlink() or path.exists():
            suggestion = "choose another name"
            raise OutputError(Finding("exists and is not overwritten", value=path.name, suggestion=suggestion, file=str(path)))
    write_file(path, text.encode())


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, if it is not there. Raises `OutputError` where that cannot be done."""
    with _refused(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Make a folder, and those above it, if it is not there; those that were made go again where the block fails."""
    made = [one for one in (folder, *folder.parents) if not _is_there(one)]
    make_folder(folder)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # somebody else writes there
            for one in made:
                one.rmdir()
        raise


def check_folder(folder: Path) -> None:
    """Raise `OutputError` where no file can be written in `folder`: before minutes are spent on one. Nothing of it stays."""
    made = [one for one in (folder, *folder.parents) if not _is_there(one)]
    try:
        make_folder(folder)
        with _refused(folder):
            probe = _part(folder / "x")
            probe.touch()
            probe.unlink()
    finally:
        with suppress(OSError):  # not made, or somebody else writes there meanwhile
            for one in made:
                one.rmdir()


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """What the system says about `path` as a finding."""
    try:
        yield
    except OSError as error:
        raise OutputError(Finding(f"cannot be written: {error.strerror or error}", value=path.name, file=str(path))) from None
    except ValueError as error:
        if "\0" not in str(path):
            raise
        raise OutputError(Finding(f"cannot be written: {error}", value=path.name, file=str(path))) from None


def _part(path: Path) -> Path:
    """Where `path` is written until it is whole, in the same folder: a file can only be renamed within one file system."""
    return path.with_name(f".parsim-{os.getpid()}-{next(_numbers)}.part")


def _fill(out: BinaryIO, content: Content) -> None:
    if isinstance(content, bytes):
        out.write(content)
    else:
        content(out)


def _is_there(folder: Path) -> bool:
    try:
        return folder.exists()
    except (OSError, ValueError):
        return True  # it cannot be made either, which is said where it is tried


def _files(report: Report, name: str) -> dict[str, Content]:
    """File name -> what fills it."""
    if name == "json":
        return {"report.json": lambda out: out.write(f"{report.to_json()}\n".encode())}
    if name == "trace":
        return {"trace.json.gz": lambda out: _trace(report, out)}
    if name == "html":
        from parsim.report.page.page import page

        return {"report.html": lambda out: out.write(page([(report.measured.name, report)]).encode())}
    kind: Literal["svg", "png"] = "svg" if name == "svg" else "png"
    files: dict[str, Content] = {f"timeline.{kind}": lambda out: out.write(timeline_picture(report, kind))}
    if report.measured.memory.devices:
        files[f"memory.{kind}"] = lambda out: out.write(memory_picture(report, kind))
    if report.measured.variability is not None:
        files[f"variability.{kind}"] = partial(_picture, report, "variability", kind)
    if report.workers is not None:
        files[f"workers.{kind}"] = partial(_picture, report, "workers", kind)
    if report.training_run is not None:
        for drawn in ("training", "goodput_interval", "goodput_size"):
            files[f"{drawn.replace('_', '-')}.{kind}"] = partial(_picture, report, drawn, kind)
    return files


def _picture(report: Metrics, drawn: str, kind: Literal["svg", "png"], out: BinaryIO) -> None:
    """A figure by the name of its method."""
    from parsim.report.plots.figure import save
    from parsim.report.plots.plot import Plot

    out.write(save(getattr(Plot(report), drawn)(), kind))


def timeline_picture(report: Metrics, kind: Literal["svg", "png"] = "svg") -> bytes:
    """The step by rank, and the memory of the fullest rank; fewer ranks where the file would be large."""
    from parsim.report.lanes import most_lanes, timeline_data
    from parsim.report.plots.figure import save
    from parsim.report.plots.sheet import timeline_figure

    most = most_lanes(report)
    while True:
        picture = save(timeline_figure(timeline_data(report, most=most)), kind)
        if len(picture) <= MOST_BYTES or most <= _FEWEST_LANES:
            return picture
        most = max(_FEWEST_LANES, min(most, len(report.measured.classes)) // 2)


def memory_picture(report: Metrics, kind: Literal["svg", "png"] = "svg") -> bytes:
    """Memory at the peak on every class of ranks, and over time on the fullest."""
    from parsim.report.plots.figure import save
    from parsim.report.plots.memory import peaks_figure

    worst = report.worst_device
    return save(peaks_figure(report, None if worst is None else worst.rank, title=report.measured.name), kind)


def _trace(report: Report, out: BinaryIO) -> None:
    from parsim.report.chrome_trace import write_chrome_trace

    with gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=out, mtime=0) as packed:
        text = TextIOWrapper(packed, encoding="utf-8", newline="\n")
        write_chrome_trace(report, text)
        text.detach()

"""What all commands share: how they print, the options they have in common."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from parsim.columns import is_unicode, plainly
from parsim.errors import Finding, ScenarioError

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]
Figure = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: a .svg or .png file.")]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Run the Python files that a strategy or schedule is in; or PARSIM_TRUST_CODE=1.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")]


T = TypeVar("T")


class ReaderGone(Exception):  # noqa: N818 - no error of ours
    """Nobody reads our stdout any more."""


def say(text: str, *, escapes: bool = False) -> None:
    """Print on stdout; raises `ReaderGone` if nobody listens (``parsim list | head -1``).

    What the stream's encoding lacks is replaced (`parsim.columns.plainly`), with `escapes` so that YAML reads it back.
    """
    try:
        sys.stdout.write(plainly(text.rstrip("\n"), sys.stdout.encoding, escapes=escapes) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # the interpreter flushes stdout once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise ReaderGone from None


def say_json(document: dict[str, Any]) -> None:
    """Print a document on stdout: valid JSON whatever the stream's encoding, so anything but UTF is written in escapes."""
    ascii_only = not is_unicode(sys.stdout.encoding)
    say(json.dumps(document, indent=2, ensure_ascii=ascii_only, allow_nan=False))


def progress(
    doing: str, items: Iterable[T], total: int | None, *, quiet: bool = False, remark: Callable[[], str] | None = None
) -> Iterator[T]:
    """`items`, with a bar on stderr as they are taken: what is done, how many of `total` (None: nobody knows), time left, `remark`'s words.

    Nothing is shown where `quiet`, or where stderr is not a terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total, remark="")
        for item in items:
            bar.update(task, advance=1, remark=remark() if remark is not None else "")
            yield item


@contextmanager
def busy(doing: str, *, quiet: bool = False) -> Iterator[None]:
    """Show on stderr that one long piece of work goes on; nothing where `quiet`, or where stderr is not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(doing):
        yield


def create(path: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        ScenarioError: it is there, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        suggestion = "choose another name"
        raise ScenarioError(Finding("exists and is not overwritten", value=path.name, suggestion=suggestion, file=str(path))) from None
    except OSError as error:
        raise ScenarioError(Finding(f"cannot be written: {error.strerror}", value=path.name, file=str(path))) from None


def write_collectives(device: Path, texts: dict[str, str]) -> str | None:
    """Write the folder of measured collectives beside the device file; its name, or None where nothing was measured."""
    if not texts:
        return None
    folder = device.with_name(f"{device.stem}-collectives")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ScenarioError(Finding(f"cannot be made: {error.strerror}", value=folder.name, file=str(folder))) from None
    for file, text in texts.items():
        create(folder / file, text)
    return str(folder)


def picture_kind(path: Path) -> Literal["svg", "png"]:
    """The kind of picture that a file's name asks for."""
    match path.suffix.lower():
        case ".svg":
            return "svg"
        case ".png":
            return "png"
    raise ScenarioError(Finding(f"cannot draw a {path.suffix or 'file without suffix'}", "FILE", str(path), "name it .svg or .png"))


def write_picture(path: Path, picture: bytes) -> None:
    """Write a picture."""
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise ScenarioError(Finding(f"cannot be written: {error.strerror}", value=path.name, file=str(path))) from None

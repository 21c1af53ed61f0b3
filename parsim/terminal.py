"""What all commands share: how they print, the options they have in common."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from time import monotonic
from typing import Annotated, Any, Literal, TextIO, TypeVar

import typer

from parsim.columns import is_unicode, plainly, visible, visible_json
from parsim.errors import Finding, OutputError, ScenarioError

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]
Figure = Annotated[Path | None, typer.Option("--figure", metavar="FILE", help="Draw it: a .svg or .png file.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress; if results go to files, print only errors.")]
Workers = Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help="Processes; default: one per CPU.")]
Named = Annotated[
    list[str] | None, typer.Option("--override", metavar="NAME", help="Apply a named block of the file's overrides; NAME,NAME for several.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values that replace those of the file, for example training.micro_batch=4.")
]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Run the Python files of a strategy or schedule; or set PARSIM_TRUST_CODE=1.")
]
SlowGpu = Annotated[
    float | None,
    typer.Option(
        "--slow-gpu", metavar="SPEED", min=0.01, max=0.99, help="What one GPU at this share of its speed costs, wherever it is: 0.8."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")]

_EVERY = 5.0
"""from one line about long work to the next, where there is no terminal [s]"""
T = TypeVar("T")


class ReaderGone(Exception):  # noqa: N818 - no error of ours
    """Nobody reads our stdout any more."""


class Interrupted(Exception):  # noqa: N818 - no error of ours
    """The user stopped a command that says what is kept."""


@contextmanager
def finishing() -> Iterator[Callable[[], bool]]:
    """Hold back the first Ctrl-C until the block is done; gives what tells whether there was one. A second one is not held back."""
    pressed = False

    def hold(_number: int, _frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    if current_thread() is not main_thread():
        yield lambda: pressed
        return
    before = signal.signal(signal.SIGINT, hold)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def open_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr (``>&-``) something in their place.

    Otherwise the next file that is opened gets their number, and what is printed goes into it. stdin and stdout are opened the wrong
    way round, so that using them is the error that it would have been; what goes to stderr is nobody's loss.
    """
    for number, name, usable in ((0, "stdin", False), (1, "stdout", False), (2, "stderr", True)):
        if getattr(sys, name) is None:
            reading = (number == 0) == usable
            descriptor = os.open(os.devnull, os.O_RDONLY if reading else os.O_WRONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def say(text: str, *, escapes: bool = False, styled: bool = False) -> None:
    """Print on stdout; control characters are shown, not sent (`parsim.columns.visible`), unless they are our own colours: `styled`.

    What the stream's encoding lacks is replaced (`parsim.columns.plainly`), with `escapes` so that YAML reads it back.

    Raises:
        ReaderGone: nobody listens any more (``parsim list | head -1``).
        OutputError: it cannot be written (a full disk, a closed stream).
    """
    with written_or_said():
        shown = text if styled else visible(text)
        sys.stdout.write(plainly(shown.rstrip("\n"), sys.stdout.encoding, escapes=escapes) + "\n")
        sys.stdout.flush()


@contextmanager
def written_or_said() -> Iterator[None]:
    """Turn an error of stdout into `ReaderGone` or a finding."""
    try:
        yield
    except OSError as error:
        _discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from None
        raise OutputError(Finding(f"cannot be written: {error.strerror}", file="standard output")) from None


def standard_input() -> str:
    """What is piped into the command, as text.

    Raises:
        ScenarioError: it cannot be read, or there is more of it than of any file that is read.
    """
    from parsim.scenario.files import SIZE_LIMIT

    try:
        raw = sys.stdin.buffer.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise ScenarioError(Finding(f"cannot be read: {error.strerror}", file="standard input")) from None
    if len(raw) > SIZE_LIMIT:
        raise ScenarioError(Finding(f"has more than {SIZE_LIMIT:,} bytes", suggestion="is it the right file?", file="standard input"))
    return raw.decode("utf-8-sig", "replace")


def remark(text: str) -> None:
    """Print a line on stderr. Nothing depends on it: where stderr is closed or full, it is lost and the command goes on."""
    try:
        sys.stderr.write(plainly(visible(text).rstrip("\n"), sys.stderr.encoding) + "\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere: the interpreter flushes it once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def say_json(document: dict[str, Any], indent: int = 2) -> None:
    """Print a document on stdout: valid JSON whatever the stream's encoding, so anything but UTF is written in escapes."""
    ascii_only = not is_unicode(sys.stdout.encoding)
    say(visible_json(json.dumps(document, indent=indent, ensure_ascii=ascii_only, allow_nan=False)))


def progress(
    doing: str, items: Iterable[T], total: int | None, *, quiet: bool = False, remark: Callable[[], str] | None = None
) -> Iterator[T]:
    """`items`, with a bar on stderr as they are taken: what is done, how many of `total` (None: nobody knows), time left, `remark`'s words.

    Where stderr is not a terminal, a line every few seconds says it; nothing is shown where `quiet`.
    """
    if quiet:
        yield from items
        return
    if not sys.stderr.isatty():
        yield from _told_in_lines(doing, items, total, remark)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total, remark="")
        for item in items:
            bar.update(task, advance=1, remark=remark() if remark is not None else "")
            yield item


def _told_in_lines(doing: str, items: Iterable[T], total: int | None, words: Callable[[], str] | None) -> Iterator[T]:
    done = 0
    of = "" if total is None else f" of {total:,}"

    def line() -> str:
        return f"{doing}: {done:,}{of}"

    with _speaking(line) as spoken:
        for item in items:
            done += 1
            if spoken.due():
                best = f"; {text}" if words is not None and (text := words()) else ""
                remark(f"{line()}{best}")
            yield item


class _Spoken:
    """When a line about long work was last said."""

    def __init__(self) -> None:
        self._last = monotonic()

    def due(self) -> bool:
        """Whether it is time for the next line, which is then taken as said."""
        now = monotonic()
        if now - self._last <= _EVERY:
            return False
        self._last = now
        return True


@contextmanager
def _speaking(line: Callable[[], str]) -> Iterator[_Spoken]:
    """Say `line` on stderr, with the seconds that have passed, whenever nothing was said for a while."""
    spoken, over, began = _Spoken(), Event(), monotonic()

    def speak() -> None:
        while not over.wait(_EVERY):
            if spoken.due():
                remark(f"{line()} ({monotonic() - began:.0f} s)")

    Thread(target=speak, daemon=True).start()
    try:
        yield spoken
    finally:
        over.set()


@contextmanager
def busy(doing: str, *, quiet: bool = False) -> Iterator[None]:
    """Show on stderr that one long piece of work goes on, where that is no terminal by a line every few seconds; nothing where `quiet`."""
    if quiet:
        yield
        return
    if not sys.stderr.isatty():
        with _speaking(lambda: doing):
            yield
        return
    from rich.console import Console

    with Console(stderr=True).status(doing):
        yield


def write_collectives(device: Path, texts: dict[str, str]) -> str | None:
    """Write the folder of measured collectives beside the device file; its name, or None where nothing was measured."""
    from parsim.report.write import make_folder, write_new

    if not texts:
        return None
    folder = device.with_name(f"{device.stem}-collectives")
    make_folder(folder)
    for file, text in texts.items():
        write_new(folder / file, text)
    return str(folder)


def picture_kind(path: Path) -> Literal["svg", "png"]:
    """The kind of picture that a file's name asks for."""
    match path.suffix.lower():
        case ".svg":
            return "svg"
        case ".png":
            return "png"
    raise ScenarioError(Finding(f"cannot draw a {path.suffix or 'file without suffix'}", "FILE", str(path), "name it .svg or .png"))

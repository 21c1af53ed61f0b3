"""Traces as files: all ranks in one, or one file per rank as PyTorch writes them; gzipped where the name says so."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from parsim.report.chrome_trace import Written, write_chrome_trace
from parsim.report.trace_merge import merge
from parsim.report.write import Content, replacing, write_together

if TYPE_CHECKING:
    from parsim.report.metrics import Metrics

LEVEL = 6
"""of gzip: 15 to 20 times smaller; higher levels cost more time than they save space"""


@contextmanager
def trace_text(path: Path) -> Iterator[TextIO]:
    """An open text file that takes the place of `path` when all is written; gzipped, the same bytes every time, for a name in .gz."""
    with replacing(path) as out, _text(out, gz=path.suffix == ".gz") as text:
        yield text


@contextmanager
def _text(out: BinaryIO, *, gz: bool) -> Iterator[TextIO]:
    """`out` as a text file, packed where `gz`."""
    with _packed(out, gz=gz) as binary:
        text = TextIOWrapper(binary, encoding="utf-8", newline="\n")
        yield text
        text.detach()


@contextmanager
def _packed(out: BinaryIO, *, gz: bool) -> Iterator[BinaryIO]:
    if not gz:
        yield out
        return
    with gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=out, mtime=0) as packed:
        yield packed  # type: ignore[misc]


def write_trace(report: Metrics, path: Path, ranks: Sequence[int] | None = None, most_spans: int | None = None) -> Written:
    """All of `ranks` (default: one per class, at most 16) in one file. Raises ValueError for a rank that was not simulated."""
    with trace_text(path) as out:
        return write_chrome_trace(report, out, ranks, most_spans=most_spans)


def write_per_rank(report: Metrics, directory: Path, ranks: Sequence[int] | None = None, most_spans: int | None = None) -> list[Path]:
    """One file per rank (default: all that were simulated), ``rank-3.json.gz``, as Holistic Trace Analysis wants them.

    No arrows between them. Raises ValueError for a rank that was not simulated.
    """
    chosen = list(ranks if ranks is not None else report.timeline.ranks)

    def content(rank: int) -> Content:
        def write(out: BinaryIO) -> None:
            with _text(out, gz=True) as text:
                write_chrome_trace(report, text, [rank], most_spans=most_spans)

        return write

    return write_together(directory, {f"rank-{rank}.json.gz": content(rank) for rank in chosen})


def write_merged(
    report: Metrics,
    path: Path,
    recorded: Sequence[tuple[str, dict[str, Any]]],
    ranks: Sequence[int] | None = None,
    most_spans: int | None = None,
) -> Written:
    """The simulated trace with recorded ones beside it; `recorded` are labels and whole documents of the profiler."""
    text = StringIO()
    written = write_chrome_trace(report, text, ranks, most_spans=most_spans)
    document = json.loads(text.getvalue())
    for label, other in recorded:
        document["traceEvents"] = merge(document["traceEvents"], other["traceEvents"], label=label, rank=rank_of(other))
    document["otherData"]["merged"] = [label for label, _ in recorded]
    with trace_text(path) as out:
        out.write('{"traceEvents":[\n')
        out.write(",\n".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in document.pop("traceEvents")))
        out.write(f"\n],{json.dumps(document, ensure_ascii=False)[1:]}\n")
    return written


def rank_of(document: dict[str, Any]) -> int | None:
    """The rank whose trace a profiler's document is, where it says so."""
    told = document.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, dict) else None
    return rank if isinstance(rank, int) else None

"""Which files are judged: the samples beside this file, and the corpus of `list.csv` where a folder holds its texts."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SAMPLES = HERE / "samples"
LIST = HERE / "list.csv"
EXPECTED = HERE / "expected.csv"
HALVES = ("develop", "held")


@dataclass(frozen=True)
class Judged:
    """One file to judge."""

    path: Path
    kind: str
    name: str
    """as the tables call it"""
    half: str
    """sample | develop | held"""


def samples() -> Iterator[Judged]:
    """The files that were written for this folder, a few of every kind."""
    for path in sorted(SAMPLES.glob("*/*")):
        yield Judged(path, path.parent.name, path.relative_to(HERE).as_posix(), "sample")


def listed() -> list[dict[str, str]]:
    """The rows of `list.csv`."""
    with LIST.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def corpus(folder: Path, half: str) -> Iterator[Judged]:
    """The files of one half, whose texts lie below `folder` under the names of the column ``file``."""
    for row in listed():
        if row["half"] == half:
            yield Judged(folder / row["file"], row["kind"], row["file"], half)

"""Count what parsim makes of the corpus.

python tests/corpus                                # the samples
python tests/corpus FOLDER                         # the half `develop` too, whose texts lie in FOLDER, and which settings are ignored
python tests/corpus FOLDER --half held             # totals of the half that judges; none of its files is named
python tests/corpus [FOLDER] --write               # bring expected.csv up to date; rows of files whose texts are not there stay
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from corpus_files import EXPECTED, HALVES, Judged, corpus, listed, samples
from flag_changes import changes, outcome, quiet
from verdicts import COLUMNS, HF_CONFIG, Verdict, judge

from parsim.errors import InputError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given

VERDICTS = ("accepted", "other tool", "unbuildable", "refused", "traceback")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/corpus", description="Count what parsim makes of the corpus.")
    parser.add_argument("folder", nargs="?", type=Path, help="where the texts of list.csv lie")
    parser.add_argument("--half", choices=HALVES, default="develop")
    parser.add_argument("--write", action="store_true", help="bring expected.csv up to date")
    given = parser.parse_args()
    if given.half == "held" and given.write:
        parser.error("expected.csv names no file of the half that judges: leave --write out")
    if given.half == "held" and given.folder is None:
        parser.error("say where the texts lie")
    return given


def summary(verdicts: Iterable[Verdict]) -> str:
    """A line per kind: how many were accepted with 0, 1 and more questions beside that for the machine, and how the others ended."""
    rows: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        row = rows.setdefault(verdict.kind, Counter())
        row["files"] += 1
        row[verdict.verdict] += 1
        if verdict.verdict == "accepted":
            machine = verdict.kind != HF_CONFIG  # no file says it: --on
            row[f"{min(int(verdict.questions) - machine, 2)} questions"] += 1
    heads = ("files", "accepted", *(f"{count} questions" for count in range(3)), *VERDICTS[1:])
    shown = ("files", "accepted", "0 asked", "1 asked", "2+ asked", *VERDICTS[1:])
    lines = ["asked: beside the machine, which no file says", f"{'kind':20}" + "".join(f"{head:>12}" for head in shown)]
    for kind, row in [*sorted(rows.items()), ("all", sum(rows.values(), Counter()))]:
        lines.append(f"{kind:20}" + "".join(f"{row[head]:12}" for head in heads))
    return "\n".join(lines)


def reasons(verdicts: Iterable[Verdict]) -> str:
    """Why files were refused, most frequent first."""
    found = Counter((verdict.kind, verdict.reason) for verdict in verdicts if verdict.reason)
    return "\n".join(f"{count:4} {kind}: {why}" for (kind, why), count in found.most_common())


def ignored(files: Iterable[Judged]) -> tuple[Counter[str], list[str]]:
    """How changes of single settings ended, and those after which the scenario still said the same."""
    counts: Counter[str] = Counter()
    lines = []
    for judged in files:
        if judged.kind == HF_CONFIG:
            continue
        name, text = judged.path.name, judged.path.read_text(encoding="utf-8")
        try:
            imported = import_config(text, name, Given("corpus"))
        except InputError:
            continue
        counts["said to have no effect"] += len(quiet(imported))
        lines += [f"{judged.name}: {said}" for said in quiet(imported)]
        for change in changes(text, imported, name):
            end = outcome(change, name, imported.tree)
            counts[end.split(":")[0]] += 1
            if end.startswith("ignored"):
                lines.append(f"{judged.name}: {change.setting} {change.was} -> {change.becomes}: {end}")
    return counts, lines


def expected() -> dict[str, list[str]]:
    """The rows of expected.csv by file."""
    with EXPECTED.open(encoding="utf-8", newline="") as lines:
        return {row[0]: row for row in list(csv.reader(lines))[1:]}


def write(verdicts: Iterable[Verdict]) -> None:
    """Bring expected.csv up to date; rows of listed files that were not judged stay."""
    known = {row["file"] for row in listed()}
    rows = {name: row for name, row in (expected() if EXPECTED.exists() else {}).items() if name in known}
    rows |= {verdict.file: verdict.row() for verdict in verdicts}
    with EXPECTED.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(row for _, row in sorted(rows.items()))


def main() -> int:
    given = arguments()
    own = [judge(judged.path, judged.kind, judged.name)[0] for judged in samples()] if given.half != "held" else []
    all_files = list(corpus(given.folder, given.half)) if given.folder is not None else []
    files = [judged for judged in all_files if judged.path.exists()]
    if len(files) < len(all_files):
        print(f"{len(all_files) - len(files)} of the {len(all_files)} files of this half are not in {given.folder}: they are not judged\n")
    verdicts = [judge(judged.path, judged.kind, judged.name)[0] for judged in files]
    if own:
        print(f"samples\n{summary(own)}")
    if verdicts:
        print(f"\n{given.half}\n{summary(verdicts)}")
        counts, lines = ignored(files)
        print("\none setting changed:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
        if given.half != "held":
            print("\n".join(lines), "\n\nwhy not\n" + reasons(verdicts), sep="\n")
    if given.write:
        write([*own, *verdicts])
        print(f"\nwrote {EXPECTED}")
    return int(any(verdict.verdict == "traceback" for verdict in (*own, *verdicts)))


if __name__ == "__main__":
    sys.exit(main())

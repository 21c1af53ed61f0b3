"""Change documents of every kind that parsim reads, and look at what becomes of them.

    python tests/fuzz                          # 1,000 mutants
    python tests/fuzz --mutants 20000 --seed 7 --jobs 2 --save /tmp/failures
    python tests/fuzz --only 4711              # one again, with everything it said
    python tests/fuzz --kind topology          # of kinds whose name contains a word

A mutant is right if its command ends with 0, 2, 3 or 4 within 20 s of CPU time and 3 GiB, without traceback, Python warning or
control character, shows no other file, runs no code, if an impossible value or a box that nobody sells planted in it is refused, a change
after which it is legal still is taken, and the step of a headline lies inside the band beside it. Exit code 1 if any is not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from fuzz_kinds import KINDS, Kind  # noqa: E402
from fuzz_processes import verdicts  # noqa: E402
from fuzz_run import SECONDS, Case, Verdict, case, prepare, run_case, unchanged, write  # noqa: E402


def main(words: Sequence[str] | None = None) -> int:
    """Run mutants as asked; 1 if any of them failed."""
    asked = _options(words)
    kinds = [kind for kind in KINDS if asked.kind.lower() in kind.name.lower() and not (asked.quick and kind.slow)]
    if not kinds:
        sys.stderr.write(f"no kind contains {asked.kind!r}; kinds: {', '.join(kind.name for kind in KINDS)}\n")
        return 2
    if asked.only is not None:
        return _one(asked.only, asked.seed, kinds, asked.seconds)
    if asked.seeds:
        return _seeds(kinds)
    begin = time.monotonic()
    found: list[Verdict] = []
    numbers = range(asked.first, asked.first + asked.mutants)
    for verdict in verdicts(numbers, asked.seed, kinds, asked.jobs, asked.seconds):
        found.append(verdict)
        if verdict.failures and asked.save is not None:
            _save(verdict, case(verdict.number, asked.seed, kinds), asked.save)
        if sys.stderr.isatty() and len(found) % 20 == 0:
            sys.stderr.write(f"\r{len(found)} of {asked.mutants}, {sum(bool(one.failures) for one in found)} failures ")
    print(table(found, kinds))
    print(failures(found))
    passed = sum(verdict.passed for verdict in found)
    failed = sum(bool(verdict.failures) for verdict in found)
    took = time.monotonic() - begin
    print(
        f"{len(found)} mutants of seed {asked.seed}: {passed} passed the reader ({passed / len(found):.0%}), {failed} failed; {took:.0f} s"
    )
    return 1 if failed else 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python tests/fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=1000, metavar="N", help="how many; default: 1000")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first; default: 0")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices; default: 1")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes; default: 2")
    parser.add_argument(
        "--kind", default="", metavar="WORD", help="only kinds whose name contains it; which mutant a number means depends on the kinds"
    )
    parser.add_argument("--only", type=int, metavar="N", help="one mutant, in this process, with everything it said")
    parser.add_argument("--quick", action="store_true", help="without the kinds whose commands simulate for seconds")
    parser.add_argument("--seeds", action="store_true", help="the documents themselves, unchanged")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=f"CPU time of a mutant; default: {SECONDS:g}")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write the files, the command and the output of those that fail there")
    return parser.parse_args(words)


def _one(number: int, seed: int, kinds: Sequence[Kind], seconds: float) -> int:
    prepare(kinds)
    chosen = case(number, seed, kinds)
    with tempfile.TemporaryDirectory(prefix="parsim-fuzz-") as folder:
        verdict = run_case(number, chosen, Path(folder) / "here", seconds)
    print(_story(verdict, chosen))
    return 1 if verdict.failures else 0


def _seeds(kinds: Sequence[Kind]) -> int:
    """Whether every document is right before it is changed."""
    prepare(kinds)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="parsim-fuzz-") as folder:
        for number, chosen in enumerate(unchanged(kinds)):
            verdict = run_case(number, chosen, Path(folder) / "here")
            if verdict.failures or verdict.code not in (0, 3):
                wrong += 1
                print(_story(verdict, chosen))
    print(f"{number + 1} documents, {wrong} of them wrong")
    return 1 if wrong else 0


def _story(verdict: Verdict, chosen: Case) -> str:
    """Everything about a mutant."""
    said = verdict.output.encode("unicode_escape").decode().replace("\\n", "\n")
    lines = [
        f"mutant {verdict.number} of {verdict.kind}",
        *(f"  {change}" for change in verdict.changes),
        f"parsim {verdict.command}" + (f"  ({chosen.stream})" if chosen.stream else ""),
        f"exit code {verdict.code}, {'passed' if verdict.passed else 'did not pass'} the reader, {verdict.seconds:.2f} s",
        *(f"FAILED: {failure}" for failure in verdict.failures),
        "--- the mutant",
        chosen.mutant.text[:4000].encode("unicode_escape").decode().replace("\\n", "\n"),
        "--- it said",
        said,
    ]
    return "\n".join(lines)


def _save(verdict: Verdict, chosen: Case, directory: Path) -> None:
    folder = directory / str(verdict.number)
    folder.mkdir(parents=True, exist_ok=True)
    write(chosen, folder)
    (folder / "story.txt").write_text(_story(verdict, chosen), encoding="utf-8", errors="replace")


def table(found: Sequence[Verdict], kinds: Iterable[Kind]) -> str:
    """What became of the mutants, by kind."""
    lines = [f"{'kind':32} {'mutants':>7} {'passed':>7} {'0':>6} {'2':>6} {'3':>5} {'4':>5} {'other':>5} {'slowest':>8} {'failed':>6}"]
    for kind in kinds:
        own = [verdict for verdict in found if verdict.kind == kind.name]
        if not own:
            continue
        codes = Counter(verdict.code for verdict in own)
        other = sum(count for code, count in codes.items() if code not in (0, 2, 3, 4))
        share = sum(verdict.passed for verdict in own) / len(own)
        slowest = max(verdict.seconds for verdict in own)
        failed = sum(bool(verdict.failures) for verdict in own)
        counts = f"{codes[0]:6} {codes[2]:6} {codes[3]:5} {codes[4]:5} {other:5}"
        lines.append(f"{kind.name:32} {len(own):7} {share:7.0%} {counts} {slowest:6.1f} s {failed:6}")
    return "\n".join(lines)


def failures(found: Iterable[Verdict]) -> str:
    """The failures of one cause together, with the numbers of the first."""
    groups: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in found:
        for failure in verdict.failures:
            groups[failure].append(verdict)
    lines = []
    for failure, own in sorted(groups.items(), key=lambda item: -len(item[1])):
        names = ", ".join(dict.fromkeys(verdict.kind for verdict in own))
        lines += [f"\n{len(own):5} x {failure}", f"        {names}: mutants {', '.join(str(verdict.number) for verdict in own[:40])}"]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())

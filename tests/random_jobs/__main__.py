"""Simulate random jobs and check what holds for every one of them.

    python tests/random_jobs --count 1500 --seed 1     # until so many were legal; exit code 1 if a law was broken
    python tests/random_jobs --seed 1 --show 17        # scenario 17 of that seed, as YAML
    python tests/random_jobs --seed 1 --only 17        # check that one

Two processes with hash seeds of their own simulate every job, and their reports must be the same bytes; each compares half of the
jobs with their unfolded and their reloaded runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from job_generator import words, written
from job_runs import as_yaml, run

CREWS = 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/random_jobs", description="Simulate random jobs and check their laws.")
    parser.add_argument("--count", type=int, default=1500, help="legal jobs to simulate (default 1500)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print the scenario of a job and stop")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="check one job")
    parser.add_argument("--crew", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def work(options: argparse.Namespace) -> None:
    """One of the two processes: a line of JSON per job, comparing the jobs whose turn it is."""
    for number in range(options.first, options.first + options.count):
        found = run(options.seed, number, compare=number % CREWS == options.crew)
        print(json.dumps(asdict(found)), flush=True)


def crews(options: argparse.Namespace) -> Iterable[list[dict[str, Any]]]:
    """The results of each job, one of every process."""
    processes = []
    for crew in range(CREWS):
        command = [sys.executable, str(Path(__file__).parent), *sys.argv[1:], "--crew", str(crew)]
        environment = {**os.environ, "PYTHONHASHSEED": str(1 + crew)}
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    for _ in range(options.count):
        lines = [process.stdout.readline() for process in processes if process.stdout]
        if not all(lines):
            codes = [process.wait() for process, line in zip(processes, lines, strict=True) if not line]
            sys.exit(f"a process ended with code {codes[0]} before all jobs were done")
        yield [json.loads(line) for line in lines]
    for process in processes:
        process.wait()


def summary(options: argparse.Namespace) -> int:
    """Run all, and say what happened; the number of jobs with a broken law."""
    began = perf_counter()
    refused: Counter[str] = Counter()
    unmet = {(path, json.dumps(word)) for path, listed in words().items() for word in listed}
    known: dict[tuple[str, str], str] = {}
    legal = failed = drawn = 0
    for pair in crews(options):
        one, other = pair
        problems = list(dict.fromkeys([*one["problems"], *other["problems"]]))
        if (one["scenario"], one["digest"]) != (other["scenario"], other["digest"]):
            problems.append("bytes: the two processes do not agree")
        drawn += 1 + len(one["refused"])
        for scenario, rules in one["refused"]:
            refused.update(rules)
            for path, word in written(scenario):
                known.setdefault((path, json.dumps(word)), rules[0])
        if one["scenario"] is None:
            print(f"job {one['number']}: no legal scenario in {len(one['refused'])} drawings", flush=True)
            continue
        legal += 1
        unmet.difference_update((path, json.dumps(word)) for path, word in written(one["scenario"]))
        if problems:
            failed += 1
            print(f"job {one['number']}:", *problems, sep="\n  ", flush=True)
    print(f"{legal} legal jobs of {drawn} drawings in {perf_counter() - began:.0f} s; {failed} with a broken law")
    print("refused, by rule:", *(f"{count:6}  {text}" for text, count in refused.most_common()), sep="\n")
    print("words of the schema that were in no legal job:")
    for path, word in sorted(unmet):
        print(f"  {path}: {word}  ({known.get((path, word), 'never drawn')})")
    return failed


def main() -> int:
    options = arguments()
    if options.show is not None:
        found = run(options.seed, options.show, compare=False)
        print("no legal scenario" if found.scenario is None else as_yaml(found.scenario))
        return 0
    if options.only is not None:
        found = run(options.seed, options.only, compare=True)
        print(*(found.problems or ["every law holds"]), sep="\n")
        return int(bool(found.problems))
    if options.crew is not None:
        work(options)
        return 0
    return int(summary(options) > 0)


if __name__ == "__main__":
    sys.exit(main())

"""How long `parsim sweep` takes to find the exact best strategy; figures are printed, only counts are asserted (run with -m benchmark).

Aims on two cores: 175B on 64 A100 over at least 10,000 valid candidates in 60 s, 405B on 16,384 H100 in 120 s.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter

import pytest

from parsim.cli import execute

pytestmark = pytest.mark.benchmark

STUDY = "{scenario: %s, strategy: auto, where: [fits, %s], minimise: step_time, top: 1}\n"
CASES = [
    ("gpt3-175b-64x-a100", "tp >= 1", 13_888, 13_888, 8, 60),
    ("llama-3-405b-16384x-h100", "micro_batch <= 2", 6_096, 3_544, 24, 120),
]
"""scenario, constraint, points of the lattice, candidates, at most so many steps simulated, aim [s]"""


def cpu() -> float:
    """CPU seconds of this process and of those that it waited for."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


@pytest.mark.parametrize(("name", "where", "points", "candidates", "most", "aim"), CASES)
def test_best_strategy_of_a_large_space(
    name: str, where: str, points: int, candidates: int, most: int, aim: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY % (name, where), encoding="utf-8")
    began, used = perf_counter(), cpu()
    assert execute(["sweep", str(path), "--json", "--workers", "2", "--out", str(tmp_path / "out")]) == 0
    wall, used = perf_counter() - began, cpu() - used
    found = json.loads(capsys.readouterr().out)
    counts = found["counts"]
    assert (counts["points"], counts["points"] - counts["excluded"]) == (points, candidates)
    assert counts["judged"] + counts["simulated"] <= most
    assert counts["refused"] == 0
    with capsys.disabled():
        sys.stdout.write(
            f"\n{name}: {candidates:,} candidates, {counts['judged']} judged by their step, {counts['simulated']} reports, "
            f"{wall:.1f} s wall, {used:.1f} s CPU (aim {aim} s on two cores), {used / candidates * 1e3:.2f} ms CPU each\n"
            f"  best {found['ranking'][0]['step_time_s']:.4f} s: {found['ranking'][0]['label']}\n"
        )

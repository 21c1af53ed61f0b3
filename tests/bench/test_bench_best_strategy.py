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

import parsim
from parsim.cli import execute
from parsim.run import step_of
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.scenario.neighbours import Neighbours
from parsim.study.search.bounds import Bounder
from parsim.study.search.lattice import Lattice

pytestmark = pytest.mark.benchmark

STUDY = "{scenario: %s, strategy: auto, where: [fits, %s], minimise: step_time, top: 1}\n"
CASES = [
    ("gpt3-175b-64x-a100", "tp >= 1", 13_888, 13_888, 5, 60),
    ("llama-3-405b-16384x-h100", "micro_batch <= 2", 6_096, 3_544, 8, 120),
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


def test_a_thinned_space_equals_exhaustive(capsys: pytest.CaptureFixture[str]) -> None:
    """Every 500th candidate of the large space, simulated one and all; how near the bounds are."""
    base = load("gpt3-175b-64x-a100", "training.global_batch=16")
    some = list(Lattice(build(base)))[3::500]
    zipped = {key: [settings[key] for settings in some] for key in some[0]}
    found = parsim.sweep({**base.document(), "study": {"zip": zipped}}, top=3)
    neighbours, bounder, everything, ratios = Neighbours(base), Bounder(), [], []
    for place, settings in enumerate(some):
        built = neighbours.built(settings)
        step = step_of(built)
        ratios.append(bounder.chained(built) / step.step_time)
        if max(step.peaks.values()) <= step.memory.capacity_bytes - step.memory.reserve_bytes:
            everything.append((step.step_time, place))
    assert [(entry.rows[0]["step_time_s"], entry.place.number) for entry in found.entries[:3]] == sorted(everything)[:3]
    assert max(ratios) <= 1.0
    counts, ratios = found.counts(), sorted(ratios)
    with capsys.disabled():
        spread = f"bound / step {ratios[0]:.3f} to {ratios[-1]:.4f}, median {ratios[len(ratios) // 2]:.4f}"
        sys.stdout.write(f"\n{len(some)} candidates: {counts['judged'] + counts['simulated']} simulated; {spread}\n")

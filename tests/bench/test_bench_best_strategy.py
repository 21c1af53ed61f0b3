"""How long the exact best strategy takes to find; figures are printed, only counts are asserted (run with -m benchmark).

Aims on two cores: 175B on 64 A100 over at least 10,000 valid candidates in 60 s, 405B on 16,384 H100 in 120 s.
"""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter

import pytest

from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.study.search.evaluate import Setup
from parsim.study.search.lattice import Lattice, Ranges, thinned
from parsim.study.search.search import search

pytestmark = pytest.mark.benchmark

LLAMA = Ranges(
    context=(1,),
    pipeline=(4, 8, 16, 32),
    micro_batch=(1, 2),
    schedule=("1f1b", "interleaved"),
    strategy=("zero1", "fsdp"),
    recompute=("none", "selective", "full"),
)


def cpu():
    """CPU seconds of this process and the ones it waited for."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


@pytest.mark.parametrize(
    ("name", "ranges", "least", "aim"), [("gpt3-175b-64x-a100", Ranges(), 10_000, 60), ("llama-3-405b-16384x-h100", LLAMA, 50, 120)]
)
def test_best_strategy_of_a_large_space(name, ranges, least, aim, capsys):
    scenario = load(name)
    candidates = list(Lattice(build(scenario), ranges))
    began, used = perf_counter(), cpu()
    with ProcessPoolExecutor(2) as executor:
        found = search(Setup(scenario), candidates, executor=executor)
    wall, used = perf_counter() - began, cpu() - used
    assert found.valid >= least
    assert found.best is not None
    with capsys.disabled():
        best, metrics = found.best, found.best.metrics
        sys.stdout.write(
            f"\n{name}: {len(candidates):,} candidates, {found.valid:,} valid, {found.simulated} simulated, {wall:.1f} s wall, "
            f"{used:.1f} s CPU (aim {aim} s on two cores), {used / len(candidates) * 1e3:.2f} ms CPU each\n"
            f"  {Counter(found.counts)}\n  best {metrics.step_time_s:.4f} s, {metrics.peak_bytes / 2**30:.2f} GiB: {best.candidate}\n"
        )


def test_a_thinned_space_equals_exhaustive(capsys):
    """Every 500th candidate of the large space, simulated one and all."""
    scenario = load("gpt3-175b-64x-a100", "training.global_batch=16")
    candidates = thinned(list(Lattice(build(scenario))), 500, 3)
    setup = Setup(scenario)
    found, whole = search(setup, candidates, top=3), search(setup, candidates, top=3, exhaustive=True)
    assert [record.index for record in found.kept] == [record.index for record in whole.kept]
    ratios = sorted(record.bounds.step_time / record.metrics.step_time_s for record in whole.records if record.metrics and record.bounds)
    with capsys.disabled():
        spread = f"bound / step {ratios[0]:.3f} to {ratios[-1]:.4f}, median {ratios[len(ratios) // 2]:.4f}"
        sys.stdout.write(f"\n{len(candidates)} candidates: {found.simulated} of {whole.simulated} simulated; {spread}\n")

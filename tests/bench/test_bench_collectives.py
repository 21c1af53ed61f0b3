"""What a collective of 1,024 ranks costs to simulate; figures are printed, only counts and sums are asserted (run with -m benchmark)."""

from __future__ import annotations

from time import process_time

import pytest

from parsim.hardware.fabric.builder import build_cluster
from parsim.hardware.interconnect import Interconnect
from parsim.hardware.nccl.inputs import AUTOMATIC
from parsim.program.program import Collective, Lane, Program
from parsim.scenario.files import find, read
from parsim.simulation.engine import Engine

pytestmark = pytest.mark.benchmark

RANKS = 1024
GIB = 2**30
PER_COLLECTIVE = 5e-3
"""seconds of a known, uncontended collective"""
MEETING = 0.2
"""seconds of 64 groups that start at once"""


def _tree(kind, name):
    return dict(read(find(kind, name)).tree)


@pytest.fixture(scope="module")
def cluster():
    """128 machines of 8 GPUs on leaves of 64 ports, 4:1 oversubscribed."""
    fabric = {"kind": "fat-tree", "leaf_ports": 64, "oversubscription": 4}
    return build_cluster(_tree("topologies", "hgx-h100"), device_lookup=lambda name: _tree("devices", name), nodes=128, fabric=fabric)


def run(cluster, groups, repeats=1, interconnect=None):
    """Seconds of the engine alone, and the trace; repeats of a group follow each other in its lane."""
    program = Program()
    for number, group in enumerate(groups):
        collective = Collective("all_reduce", "data", group, GIB)
        for _ in range(repeats):
            program.add("all_reduce", "data_comm", (Lane(number, "data"),), collective=collective)
    engine = Engine(program, interconnect or Interconnect(cluster, range(RANKS), AUTOMATIC))
    begin = process_time()
    trace = engine.run()
    return process_time() - begin, trace


@pytest.mark.parametrize("repeats", [200])
def test_one_group_of_1024_ranks(cluster, capsys, repeats):
    everyone = tuple(range(RANKS))
    interconnect = Interconnect(cluster, range(RANKS), AUTOMATIC)
    cold, first = run(cluster, [everyone], 1, interconnect)
    warm, trace = run(cluster, [everyone], repeats, interconnect)
    assert trace.makespan == pytest.approx(repeats * first.makespan, rel=1e-9)
    with capsys.disabled():
        limit = f"aim {PER_COLLECTIVE * 1e3:.0f} ms"
        print(f"\nall-reduce of {RANKS} ranks: {cold * 1e3:.1f} ms at first, then {warm / repeats * 1e3:.3f} ms each ({limit})")


MEETINGS = {
    "two machines each, half the cluster apart": [
        tuple(8 * (node + half) + gpu for half in (0, 64) for gpu in range(8)) for node in range(64)
    ],
    "every 64th rank": [tuple(range(first, RANKS, 64)) for first in range(64)],
    "16 neighbours": [tuple(range(first, first + 16)) for first in range(0, RANKS, 16)],
}


@pytest.mark.parametrize("case", MEETINGS)
def test_64_groups_at_once(cluster, capsys, case):
    groups = MEETINGS[case]
    assert sorted(rank for group in groups for rank in group) == list(range(RANKS))
    interconnect = Interconnect(cluster, range(RANKS), AUTOMATIC)
    alone = max(run(cluster, [group], 1, interconnect)[1].makespan for group in groups)
    cold, trace = run(cluster, groups)
    warm, again = run(cluster, groups, 1, interconnect)
    assert trace.makespan == again.makespan >= alone * (1 - 1e-9)
    with capsys.disabled():
        print(
            f"\n64 groups of 16, {case}: {warm:.3f} s, {cold:.3f} s with the search (aim {MEETING} s), "
            f"{trace.events} events, {trace.makespan / alone:.2f} x as long as alone"
        )

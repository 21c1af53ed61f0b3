"""Time of the channel search per new group; figures are printed, only counts are asserted (run with -m benchmark)."""

from __future__ import annotations

from itertools import combinations
from statistics import median
from time import perf_counter

import pytest

from parsim.hardware.fabric.builder import build_cluster
from parsim.hardware.nccl.search import search
from parsim.scenario.files import find, read

PAIRS = {"gpu": "a100-pcie-40gb", "count": 8, "interconnect": "nvlink-pairs", "sockets": 2, "cpu": "amd"}
CASES = {
    "V100 cube mesh": ("dgx-1-v100", {}),
    "V100 cube mesh and four NICs": ("dgx-1-v100", {"network": True, "ports": 12e9}),
    "xGMI full mesh": ("mi300x-8", {}),
    "xGMI full mesh and eight NICs": ("mi300x-8", {"network": True, "ports": 48e9}),
    "bridged pairs": (PAIRS, {}),
    "NVSwitch": ("hgx-h100", {}),
    "NVSwitch and eight NICs": ("hgx-h100", {"network": True, "ports": 48e9}),
    "PCIe switches": ("8x-l40s-pcie", {}),
    "PCIe switches and four NICs": ("8x-l40s-pcie", {"network": True, "ports": 24e9}),
}


def _tree(kind, name):
    return dict(read(find(kind, name)).tree)


@pytest.mark.benchmark
@pytest.mark.parametrize("case", CASES)
def test_every_group_of_a_machine(case, capsys):
    topology, options = CASES[case]
    tree = _tree("topologies", topology) if isinstance(topology, str) else topology
    node = build_cluster(tree, device_lookup=lambda name: _tree("devices", name)).machine(0)
    search(node, (0, 1), **options)
    spent, looked = [], []
    for size in range(2, 9):
        for group in combinations(range(8), size):
            began = perf_counter()
            looked.append(search(node, group, **options).evaluations)
            spent.append(1e3 * (perf_counter() - began))
    with capsys.disabled():
        print(f"\n{case}: median {median(spent):.2f} ms, worst {max(spent):.1f} ms, {sum(looked)} look-ups, at most {max(looked)}")
    assert len(spent) == 247
    assert max(looked) <= 200

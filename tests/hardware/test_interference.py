"""What collectives hold of the devices that they run on."""

from __future__ import annotations

import pytest
from hardware_graphs import shipped

from parsim.hardware.interconnect import Interconnect
from parsim.hardware.interference import DeviceInterference, Simple
from parsim.hardware.nccl.inputs import AUTOMATIC
from parsim.program.program import Collective


@pytest.mark.parametrize(
    ("machine", "nodes", "kind", "blocks"),
    [
        ("hgx-h100", 1, "all_gather", 24),
        ("hgx-h100", 1, "all_reduce", 16),
        ("hgx-h100", 2, "all_gather", 16),
        ("dgx-a100-80gb", 1, "all_gather", 24),
        ("dgx-a100-80gb", 2, "reduce_scatter", 16),
        ("8x-l40s-pcie", 1, "all_gather", 2),
    ],
)
def test_a_collective_holds_the_blocks_that_nccl_launches(machine, nodes, kind, blocks):
    """24 on an H100 board: forums.developer.nvidia.com/t/337991; 16 with NVLink SHARP; few without NVLink."""
    cluster = shipped(machine, nodes)
    wires = Interconnect(cluster, tuple(range(cluster.gpus)), AUTOMATIC)
    found = DeviceInterference(Simple(), wires.cost, cluster, tuple(range(cluster.gpus)))
    load = found.load(Collective(kind, "data", tuple(range(cluster.gpus)), 2**28))
    assert load.multiprocessors == blocks / cluster.device(0).sms
    assert load.network is (nodes > 1)
    assert found.compute_rate([load], 0.0) == 1 - load.multiprocessors

"""Copies between a GPU and its host: which links they cross, and whom they meet there."""

from __future__ import annotations

import pytest

from parsim.errors import TopologyError
from parsim.hardware.collectives import collective_cost
from parsim.hardware.fabric.builder import build_cluster
from parsim.hardware.interconnect import Interconnect
from parsim.hardware.transfers import COPIES, LAUNCH, host_cost
from parsim.scenario.files import find, read
from parsim.simulation.sharing import fair_rates


def device(name):
    return read(find("devices", name)).tree


def cluster(name, host="memory", **options):
    return build_cluster(dict(read(find("topologies", name)).tree), device_lookup=device, host=host, **options)


def names(machine, flow):
    return [machine.link(link).name for link, _ in flow.path]


def test_a_copy_crosses_switch_cpu_and_memory():
    dgx = cluster("dgx-a100-80gb")
    out, back = host_cost(dgx, 5, "d2h", 10**9), host_cost(dgx, 5, "h2d", 10**9)
    assert names(dgx, out.flows[0]) == ["node0.gpu5->pcie2", "node0.pcie2->cpu1", "node0.cpu1<->memory-cpu1"]
    assert names(dgx, back.flows[0]) == ["node0.cpu1<->memory-cpu1", "node0.cpu1->pcie2", "node0.pcie2->gpu5"]
    assert out.time == pytest.approx(LAUNCH + 0.4e-6 + 0.4e-6 + 0.1e-6 + 1e9 / 24e9, rel=1e-9)


def test_the_cpu_step_crosses_host_memory_only():
    dgx = cluster("dgx-a100-80gb")
    step = host_cost(dgx, 0, "cpu_step", 28 * 10**9)
    assert names(dgx, step.flows[0]) == ["node0.cpu0<->memory-cpu0"]
    assert step.time == pytest.approx(LAUNCH + 0.1e-6 + 28 / 85, rel=1e-9)  # 1e9 parameters: 0.33 s per socket


def test_copies_of_two_gpus_share_their_switch_and_memory_both_ways():
    dgx = cluster("dgx-a100-80gb")
    flows = [host_cost(dgx, gpu, "d2h", 10**9).flows[0] for gpu in (0, 1, 2)]
    assert fair_rates(flows, dgx.capacity) == pytest.approx([12e9, 12e9, 24e9])
    step = host_cost(dgx, 0, "cpu_step", 10**9).flows[0]
    # 85 GB/s of memory: copies get what PCIe lets them have, the CPU the rest
    assert fair_rates([*flows, step], dgx.capacity) == pytest.approx([12e9, 12e9, 24e9, 37e9])


def test_copies_meet_the_nic_where_it_hangs_off_the_same_switch():
    dgx = cluster("dgx-a100-80gb", nodes=2)
    out = host_cost(dgx, 0, "d2h", 10**9).flows[0]
    beyond = collective_cost(dgx, (0, 8), "send", 10**9).flows[0]
    shared = {link for link, _ in out.path} & {link for link, _ in beyond.path}
    assert [dgx.link(link).name for link in shared] == ["node0.gpu0->pcie0"]
    assert fair_rates([out, beyond], dgx.capacity) == pytest.approx([12e9, 12e9])


def test_drives_read_faster_than_they_write():
    dgx = cluster("dgx-a100-80gb", "nvme")
    read_, write = host_cost(dgx, 0, "nvme_read", 10**9), host_cost(dgx, 0, "nvme_write", 10**9)
    assert names(dgx, read_.flows[0]) == ["node0.nvme-cpu0->cpu0", "node0.cpu0<->memory-cpu0"]
    assert names(dgx, write.flows[0]) == ["node0.cpu0<->memory-cpu0", "node0.cpu0->nvme-cpu0"]
    assert (read_.flows[0].cap, write.flows[0].cap) == (6.8e9, 4.0e9)


def test_drives_and_memory_of_the_file_are_taken():
    tree = dict(read(find("topologies", "single-a100")).tree)
    tree["links"] = tree["links"] | {"raid": {"medium": "storage", "per_direction": "25 GB/s"}}
    node = tree["node"]
    node = node | {"vertices": [*node["vertices"], "memory0", "nvme0"], "host_memory": "1 TiB"}
    node["edges"] = [
        *node["edges"],
        {"from": "memory0", "to": "cpu0", "kind": "host-memory"},
        {"from": "nvme0", "to": "cpu0", "kind": "raid"},
    ]
    one = build_cluster(tree | {"node": node}, device_lookup=device, host="nvme")
    assert host_cost(one, 0, "nvme_write", 10**9).flows[0].cap == 25e9
    assert one.machine(0).host_memory == 2**40
    assert one.link_count == build_cluster(tree | {"node": node}, device_lookup=device).link_count


@pytest.mark.parametrize("name", ["dgx-a100-80gb", "dgx-1-v100", "8x-rtx-4090-pcie", "gb200-nvl72", "4x-v100-pcie"])
def test_host_memory_changes_no_collective(name):
    with_host, without = cluster(name, "nvme"), cluster(name, "")
    group = tuple(range(min(8, without.gpus)))
    for kind in ("all_reduce", "all_gather", "all_to_all"):
        assert collective_cost(with_host, group, kind, 10**8).time == collective_cost(without, group, kind, 10**8).time


def test_every_gpu_of_every_shipped_machine_reaches_its_host():
    for path in sorted(find("topologies", "dgx-a100-80gb").parent.glob("*.yaml")):
        machine = cluster(path.stem, "nvme")
        for gpu in range(machine.gpus):
            for kind in COPIES:
                assert host_cost(machine, gpu, kind, 10**6).time > 0


def test_a_gpu_without_a_cpu_says_what_is_missing():
    tree = {"name": "bare", "node": {"gpus": 2, "device": "a100-sxm-80gb", "edges": [{"from": "gpu0", "to": "gpu1", "kind": "nvlink3"}]}}
    bare = build_cluster(tree, device_lookup=device, host="memory")
    with pytest.raises(TopologyError, match="no path from gpu0 to host memory"):
        Interconnect(bare, (0, 1)).cost(type("Copy", (), {"kind": "d2h", "group": (0,), "bytes": 1})())

"""Collectives that meet on a link, with the costs of NCCL's model as they are, latencies and the library's own choices included.

Sizes are so large that latencies (below 1 ms) vanish: the hand-solved shares hold to one in a thousand.
"""

from __future__ import annotations

import pytest
from hardware_graphs import Job, ends, nodes_on_rails, shipped, two_sockets

from parsim.hardware.interconnect import Interconnect
from parsim.hardware.nccl.inputs import Settings

GB = 10**9
NCCL = Settings(profile="nccl")
"""the library's own choice of algorithm and protocol"""


def together(cluster, jobs, chosen=NCCL):
    return ends(Interconnect(cluster, range(cluster.gpus), chosen), jobs)


def about(values):
    return pytest.approx(values, rel=1e-3)


def test_two_groups_share_the_link_between_sockets():
    """Groups {0, 1, 4, 5} and {2, 3, 6, 7} on two sockets joined by 10 GB/s: 10 alone, 5 each; a group per socket shares nothing."""
    cluster = two_sockets()
    crossing = [Job("all_reduce", (0, 1, 4, 5), 100 * GB), Job("all_reduce", (2, 3, 6, 7), 100 * GB)]
    assert [together(cluster, [job])[0] for job in crossing] == about([150 / 10] * 2)
    assert together(cluster, crossing) == about([150 / 5] * 2)
    local = [Job("all_reduce", (0, 1, 2, 3), 100 * GB), Job("all_reduce", (4, 5, 6, 7), 100 * GB)]
    assert together(cluster, local) == pytest.approx([together(cluster, [job])[0] for job in local], rel=1e-12)


def test_one_group_late_has_the_link_to_itself_at_the_end():
    """The second starts when the first has moved a third: 10, then 5 each, then 10."""
    jobs = [Job("all_reduce", (0, 1, 4, 5), 100 * GB), Job("all_reduce", (2, 3, 6, 7), 100 * GB, 5.0)]
    assert together(two_sockets(), jobs) == about([5 + 100 / 5, 5 + 100 / 5 + 50 / 10])


def test_gradients_and_activations_on_one_nic():
    """A ring of 150 GB per edge and a message of 50 GB through a NIC of 25 GB/s: 8 and 4 s (alone 6 and 2)."""
    cluster = nodes_on_rails(2, 2, 1, 25.0)
    jobs = [Job("all_reduce", (0, 2), 150 * GB), Job("send", (1, 3), 50 * GB)]
    assert [together(cluster, [job])[0] for job in jobs] == about([6, 2])
    assert together(cluster, jobs) == about([8, 4])
    backwards = [jobs[0], Job("all_gather", (1, 3), 100 * GB), Job("send", (3, 1), 50 * GB)]
    assert together(cluster, backwards) == about([10, 6, 6])  # the ring runs both ways, the gather too


@pytest.mark.parametrize("profile", ["nccl", "measured"])
def test_messages_of_neighbours_share_a_nic_of_a_cloud_machine(profile):
    """GPUs 0 and 1 of a p4d have one NIC, GPUs 0 and 2 have not."""
    cluster, chosen = shipped("aws-p4d", nodes=2), Settings(profile=profile)
    alone = together(cluster, [Job("send", (0, 8), 60 * GB)], chosen)[0]
    assert together(cluster, [Job("send", (0, 8), 60 * GB), Job("send", (1, 9), 60 * GB)], chosen) == about([2 * alone] * 2)
    assert together(cluster, [Job("send", (0, 8), 60 * GB), Job("send", (2, 10), 60 * GB)], chosen) == pytest.approx([alone] * 2, rel=1e-12)


def test_a_trunk_of_half_the_capacity():
    """Eight groups of two machines, NICs of 25: 4 s for 100 GB; with a trunk of 100 for all eight 12.5 each: 8 s."""
    jobs = [Job("all_reduce", (rail, 8 + rail), 100 * GB) for rail in range(8)]
    for oversubscription, time in ((1, 4), (2, 8), (4, 16)):
        cluster = nodes_on_rails(2, 8, 8, 25.0, kind="fat-tree", leaf_ports=8, oversubscription=oversubscription)
        assert together(cluster, jobs[:1]) == about([4])
        assert together(cluster, jobs) == about([time] * 8)


def test_exchange_forwards_each_rail_on_the_gpu_that_owns_it():
    """AllToAll of 1 GiB per rank on two DGX A100 fills the NICs of 23.6 GB/s: 64 messages of 64 MiB over 8 of them in each direction.

    Two GPUs and two NICs sit below every PCIe switch; if one GPU forwarded for both rails its PCIe port would carry 14 messages.
    """
    cluster = shipped("dgx-a100-80gb", nodes=2)
    (time,) = together(cluster, [Job("all_to_all", tuple(range(16)), 2**30)])
    assert time == pytest.approx(8 * 2**26 / 23.625e9, rel=2e-3)
    machine = cluster.machine(0)
    for rail in range(8):
        port, route = machine.way_out((rail + 2) % 8, rail)
        names = [machine.links[link].name for link in route.links]
        assert port == rail
        assert any(name.startswith(f"gpu{rail}->pcie") for name in names)

"""Hashed routing (ECMP): a pair of NICs keeps to one uplink, so flows collide; and folding stays exact."""

from __future__ import annotations

from collections import Counter
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import pytest
from hardware_graphs import build, wire

from parsim.errors import TopologyError
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.links import LinkKind
from parsim.hardware.fabric.switches import FatTree, Port
from parsim.hardware.interconnect import Interconnect
from parsim.program.program import Collective, Lane, Program
from parsim.run import simulate
from parsim.simulation.engine import Engine
from parsim.theory.hashing import hashing_slowdown, largest_load_below, mean_largest_load


def two_leaves(seed: int = 0, each: int = 4, **fabric: Any) -> Cluster:
    """`each` machines with one GPU and one NIC of 50 per leaf; two uplinks of 50 unless `fabric` says otherwise."""
    node = {"gpus": 1, "device": "chip", "vertices": ["nic0"], "edges": [{"from": "gpu0", "to": "nic0", "kind": "bus"}]}
    shape = {"kind": "fat-tree", "link": "net", "leaf_ports": each, "oversubscription": each / 2, "routing": "ecmp"} | fabric
    tree = {"name": "leaves", "node": node, "fabric": shape, "links": {"bus": wire(1000.0, "pcie"), "net": wire(50.0)}}
    return build(tree, nodes=2 * each, seed=seed)


def hashed(cluster: Cluster) -> FatTree:
    assert isinstance(cluster.fabric, FatTree)
    return cluster.fabric


def spread(cluster: Cluster) -> list[int]:
    """Flows i -> 4 + i on each uplink."""
    fabric = hashed(cluster)
    taken = [fabric.uplink(Port(i, 0), Port(4 + i, 0)) for i in range(4)]
    return [taken.count(number) for number in range(fabric.uplinks)]


def seed_of(wanted: list[int]) -> int:
    return next(seed for seed in range(200) if sorted(spread(two_leaves(seed))) == wanted)


@pytest.mark.parametrize(("wanted", "ends"), [([1, 3], [20e-3, 60e-3, 60e-3, 60e-3]), ([2, 2], [40e-3] * 4)])
def test_flows_that_collide_share_an_uplink(wanted: list[int], ends: list[float]) -> None:
    # four flows of 1 GB, NICs of 50 GB/s, two uplinks of 50: 3 + 1 gives 16.667 each and 50; 2 + 2 gives 25 each
    cluster = two_leaves(seed_of(wanted))
    wires = Interconnect(cluster, range(8))
    program = Program()
    for i in range(4):
        program.add("send", "pipeline_comm", (Lane(i, "send"),), collective=Collective("send", "pipeline", (i, 4 + i), 10**9))
    trace = Engine(program, wires).run()
    latency = wires.cost(Collective("send", "pipeline", (0, 4), 10**9)).latency
    assert sorted(end - latency for end in trace.end) == pytest.approx(ends, rel=1e-9)


def test_spraying_shares_the_whole_trunk() -> None:
    cluster = two_leaves(seed_of([1, 3]), routing="spray")
    assert cluster.route(0, 4).links[2:4] == cluster.route(1, 5).links[2:4]
    assert hashed(cluster).uplinks == 1
    assert cluster.capacity(cluster.route(0, 4).links[2]) == 100e9


def test_a_pair_keeps_its_uplink_and_both_halves_of_the_way_agree() -> None:
    cluster = two_leaves(7)
    fabric, first = hashed(cluster), cluster.first_fabric_link
    for source in range(4):
        for target in range(4, 8):
            up, down = cluster.route(source, target).links[2:4]
            number = fabric.uplink(Port(source, 0), Port(target, 0))
            assert cluster.link(up).name == f"leaf0->spine{number}"
            assert cluster.link(down).name == f"spine{number}->leaf1"
            assert cluster.capacity(up) == cluster.capacity(down) == 50e9
            assert fabric.ends(up - first) == ("leaf0", f"spine{number}")
    assert cluster.route(0, 1).links == two_leaves(8).route(0, 1).links, "inside a leaf nothing is hashed"
    again = two_leaves(7)
    assert [again.route(0, target).links for target in range(8)] == [cluster.route(0, target).links for target in range(8)]
    names = [cluster.link(number).name for number in range(cluster.link_count)]
    assert len(set(names)) == len(names)
    assert cluster.graph().number_of_edges() == cluster.link_count


def test_the_hash_does_not_change_between_versions() -> None:
    fabric = FatTree(LinkKind("net", "network", 50e9, 0.0), [(64, 1)], 32, 4.0, hashed=True, seed=0)
    assert fabric.uplinks == 8
    assert [fabric.uplink(Port(i, 0), Port(32 + i, 0)) for i in range(6)] == [2, 3, 6, 0, 0, 7]


@pytest.mark.parametrize(
    ("flows", "uplinks", "expected"), [(8, 8, 2.60), (16, 8, 2.10), (32, 8, 1.76), (64, 8, 1.53), (128, 8, 1.37), (32, 32, 3.53)]
)
def test_the_worst_uplink_is_as_loaded_as_balls_in_bins(flows: int, uplinks: int, expected: float) -> None:
    """Expected worst over mean load of equal flows thrown at random (Monte Carlo)."""
    worst = []
    for seed in range(200):
        fabric = FatTree(LinkKind("net", "network", 50e9, 0.0), [(2 * flows, 1)], flows, flows / uplinks, hashed=True, seed=seed)
        taken = [fabric.uplink(Port(i, 0), Port(flows + i, 0)) for i in range(flows)]
        worst.append(max(taken.count(number) for number in range(uplinks)) * uplinks / flows)
    assert fmean(worst) == pytest.approx(expected, rel=0.1)


def test_uplinks_must_come_out_whole() -> None:
    with pytest.raises(TopologyError, match=r"4 leaf ports / oversubscription 3 = 1\.33333 uplinks") as caught:
        two_leaves(oversubscription=3)
    assert "oversubscription 2" in caught.value.findings[0].suggestion
    with pytest.raises(TopologyError, match="no equal paths to hash over"):
        two_leaves(kind="single-switch", oversubscription=1)


def test_hashing_is_slower_than_spraying_and_the_seed_moves_it() -> None:
    def step(seed: int, **fabric: Any) -> float:
        tree = {
            "model": "gpt2",
            "training": {"sequence_length": 512, "micro_batch": 1, "gradient_accumulation": 4},
            "parallel": {"data": {"strategy": "fsdp"}},
            "cluster": {"topology": "hgx-h100", "nodes": 4, "fabric": {"kind": "fat-tree", "leaf_ports": 8, **fabric}},
            "variability": {"seed": seed},
        }
        document = simulate(tree).document()
        assert any("(one cable)" in link["link"] for link in document["links"]) == ("routing" in fabric)
        return float(document["step_time_s"])

    spray = step(0)
    assert step(1) == spray
    assert spray < step(0, routing="ecmp") != step(1, routing="ecmp") > spray


def worst_loads(flows: int, uplinks: int, seeds: int, leaves: int = 1) -> list[int]:
    """Load of the busiest uplink for each seed: leaf l sends `flows` flows to leaf l + 1."""
    worst = []
    for seed in range(seeds):
        fabric = FatTree(LinkKind("net", "network", 50e9, 0.0), [(2 * leaves * flows, 1)], flows, flows / uplinks, hashed=True, seed=seed)
        taken = Counter(
            (leaf, fabric.uplink(Port(leaf * flows + i, 0), Port((leaf + 1) * flows + i, 0)))
            for leaf in range(leaves)
            for i in range(flows)
        )
        worst.append(max(taken.values()))
    return worst


@pytest.mark.parametrize(("flows", "uplinks", "leaves"), [(4, 4, 1), (8, 8, 1), (32, 8, 1), (8, 8, 8)])
def test_distribution_over_seeds_is_the_closed_form(flows: int, uplinks: int, leaves: int) -> None:
    """Mean and every probability within four standard errors of the exact ones."""
    seeds = 1000 // leaves
    worst = worst_loads(flows, uplinks, seeds, leaves)
    assert abs(fmean(worst) - float(mean_largest_load(flows, uplinks, leaves))) < 4 * stdev(worst) / sqrt(seeds)
    for load in range(1, 8):
        chance = float(largest_load_below(flows, uplinks, load)) ** leaves
        share = sum(one <= load for one in worst) / seeds
        assert abs(share - chance) <= 4 * sqrt(chance * (1 - chance) / seeds) + 2 / seeds  # two strays of what nearly never happens


def test_a_transfer_in_lockstep_is_slower_by_the_worst_load() -> None:
    """Eight pairs over eight uplinks, through the engine: each seed's slowdown is its worst load, their mean the closed form's 2.597."""
    slowdowns = []
    for seed in range(60):
        cluster = two_leaves(seed, each=8, oversubscription=1)
        fabric, wires = hashed(cluster), Interconnect(cluster, range(16))
        program = Program()
        for i in range(8):
            program.add("send", "pipeline_comm", (Lane(i, "send"),), collective=Collective("send", "pipeline", (i, 8 + i), 10**9))
        latency = wires.cost(Collective("send", "pipeline", (0, 8), 10**9)).latency
        slowdowns.append((Engine(program, wires).run().makespan - latency) / 20e-3)
        taken = Counter(fabric.uplink(Port(i, 0), Port(8 + i, 0)) for i in range(8))
        assert slowdowns[-1] == pytest.approx(max(taken.values()), rel=1e-9)
    assert abs(fmean(slowdowns) - float(hashing_slowdown(8, 8))) < 4 * stdev(slowdowns) / sqrt(len(slowdowns))


def pairs_over_uplinks(seed: int, queue_pairs: int) -> tuple[float, float]:
    """(time of eight pairs over eight uplinks through the engine, over that of one alone; largest over mean load, counted)."""
    cluster = two_leaves(seed, each=8, oversubscription=1, queue_pairs=queue_pairs)
    fabric, wires = hashed(cluster), Interconnect(cluster, range(16))
    program = Program()
    for i in range(8):
        program.add("send", "pipeline_comm", (Lane(i, "send"),), collective=Collective("send", "pipeline", (i, 8 + i), 10**9))
    latency = wires.cost(Collective("send", "pipeline", (0, 8), 10**9)).latency
    taken = Counter(fabric.uplink(Port(i, 0), Port(8 + i, 0), pair) for i in range(8) for pair in range(queue_pairs))
    return (Engine(program, wires).run().makespan - latency) / 20e-3, max(taken.values()) / queue_pairs


@pytest.mark.parametrize(("queue_pairs", "mean"), [(2, 2.10), (4, 1.761946), (8, 1.53)])
def test_queue_pairs_of_a_flow_are_hashed_apart(queue_pairs: int, mean: float) -> None:
    """q of them make q times as many balls: each seed's slowdown is its worst load, and their mean the closed form's."""
    found = [pairs_over_uplinks(seed, queue_pairs) for seed in range(60)]
    for slowdown, worst in found:
        assert slowdown == pytest.approx(worst, rel=1e-9)
    expected = float(hashing_slowdown(8, 8, queue_pairs))
    assert expected == pytest.approx(mean, abs=0.005)
    slowdowns = [slowdown for slowdown, _ in found]
    assert abs(fmean(slowdowns) - expected) < 4 * stdev(slowdowns) / sqrt(len(slowdowns))


def test_queue_pairs_leave_the_first_hash_as_it_is() -> None:
    assert hashed(two_leaves(3, queue_pairs=4)).route(Port(0, 0), Port(5, 0)) == hashed(two_leaves(3)).route(Port(0, 0), Port(5, 0))
    loads = dict(hashed(two_leaves(3, queue_pairs=4)).loads(Port(0, 0), Port(5, 0)))
    assert sum(loads.values()) == pytest.approx(4.0)  # a cable up, one uplink each way, a cable down
    assert dict(hashed(two_leaves(3, queue_pairs=4)).loads(Port(0, 0), Port(1, 0))) == {0: 1.0, 3: 1.0}, "no uplink inside a leaf"
    with pytest.raises(TopologyError, match="makes no difference where traffic is sprayed"):
        two_leaves(queue_pairs=2, routing="spray")

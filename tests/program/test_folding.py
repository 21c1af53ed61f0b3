"""Folding: one rank per class of equals gives the report of all ranks; and laws that hold for any job on any cluster.

Equitable partitions of linear programs (Grohe, Kersting, Mladenov, Selman 2014) say why; these tests say that it is so.
"""

from __future__ import annotations

import networkx
import pytest
from jobs import job, layers, measured

from parsim.hardware.fabric.builder import build_cluster
from parsim.hardware.interconnect import Interconnect
from parsim.program.program import Collective
from parsim.run import simulate
from parsim.scenario import files

TOLERANCE = 1e-9


SMALL = {"base": "gpt2", "layers": 4}
UNTIED = {"base": "gpt2", "layers": 8, "tied_embeddings": False}
WIDE = {"base": "opt-1.3b", "layers": 4}


def scenario(topology, nodes=1, parallel=None, *, cluster=None, model=SMALL, **training):
    """A small job of `nodes` machines; `parallel` in short form: tp, pp, and data settings."""
    chosen = dict(parallel or {})
    tree = {
        "tensor": {"size": chosen.pop("tp", 1), **chosen.pop("tensor", {})},
        "pipeline": {"size": chosen.pop("pp", 1), **chosen.pop("pipeline", {})},
        "data": chosen.pop("data", {}) | ({"strategy": chosen.pop("strategy")} if "strategy" in chosen else {}),
    } | chosen
    recipe = {"sequence_length": 512, "micro_batch": 1, "gradient_accumulation": 4} | training
    return {"model": model, "training": recipe, "parallel": tree, "cluster": {"topology": topology, "nodes": nodes, **(cluster or {})}}


def differences(one, other, path=""):
    """Where two documents differ: floats by more than 1e-9 relative, everything else at all."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys([*one, *other])
        return [d for key in keys for d in differences(one.get(key, "missing"), other.get(key, "missing"), f"{path}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [d for i, (a, b) in enumerate(zip(one, other, strict=True)) for d in differences(a, b, f"{path}[{i}]")]
    if isinstance(one, float) and isinstance(other, float):
        return [] if abs(one - other) <= TOLERANCE * max(abs(one), abs(other), 1e-12) else [(path, one, other)]
    return [] if one == other else [(path, one, other)]


BOX, PAIR = "8x rtx-4090", "4x v100-32gb"
H100, P4D = "hgx-h100", "aws-p4d"
TWO_PER_LEAF = {"fabric": {"leaf_ports": 2}}
THREE_PER_LEAF = {"fabric": {"leaf_ports": 3}}
NARROW_RAILS = {"fabric": {"leaf_ports": 2, "oversubscription": 2}}
OVERSUBSCRIBED = {"fabric": {"kind": "fat-tree", "leaf_ports": 16, "oversubscription": 3}}
HASHED = {"fabric": {"kind": "fat-tree", "leaf_ports": 8, "oversubscription": 2, "routing": "ecmp"}}
STREAM = [{"from": "gpu0", "to": "gpu9", "rate": "20 GB/s"}]
TRANSFERS = [{"from": "gpu3", "to": "gpu20", "bytes": "30 MB", "at": "1 ms", "every": "2 ms"}]
TRANSFERS += [{"from": "gpu4", "to": "gpu5", "bytes": "1 GB"}]
BESIDE = [{"from": "gpu17", "to": "gpu2", "rate": "1 TB/s"}, {"from": "gpu17", "to": "gpu9", "bytes": "50 MB", "every": "3 ms"}]
CASES = {
    # one machine: PCIe trees, where groups share links
    **{
        f"{strategy} on a PCIe box": (classes, scenario(BOX, parallel={"strategy": strategy}))
        for classes, strategies in ((1, ("ddp", "zero1", "zero2", "fsdp")), (2, ("parameter-server", "torch-data-parallel")))
        for strategy in strategies
    },
    "zero3 on four V100": (1, scenario(PAIR, parallel={"strategy": "zero3"})),
    "tp2 pp2 on a PCIe box": (2, scenario(BOX, parallel={"tp": 2, "pp": 2})),
    "tp4 fsdp on a PCIe box": (1, scenario(BOX, parallel={"tp": 4, "strategy": "fsdp"})),
    "gpipe on a PCIe box": (4, scenario(BOX, parallel={"pp": 4, "pipeline": {"schedule": "gpipe"}})),
    "pipedream on a PCIe box": (4, scenario(BOX, parallel={"pp": 4, "pipeline": {"schedule": "pipedream"}})),
    "interleaved fsdp": (
        2,
        scenario(BOX, parallel={"pp": 2, "pipeline": {"schedule": "interleaved", "virtual_stages": 2}, "strategy": "fsdp"}),
    ),
    "zb-h2 on a PCIe box": (4, scenario(BOX, parallel={"pp": 4, "pipeline": {"schedule": "zb-h2"}})),
    "zb-v zero1": (
        2,
        scenario(
            H100, 2,
            {"tp": 2, "pp": 2, "pipeline": {"schedule": "zb-v"}, "strategy": "zero1"},
            model=UNTIED,
        ),
    ),
    "passes side by side": (
        4,
        scenario(
            H100, 2,
            {"tp": 2, "pp": 4, "pipeline": {"schedule": "dualpipev"}, "strategy": "zero1", "tensor": {"sequence_parallel": True}},
            model=UNTIED, gradient_accumulation=8,
        ),
    ),
    "stages on two ranks": (
        4,
        scenario(
            H100, 2,
            {"tp": 2, "pp": 4, "pipeline": {"schedule": "dualpipe"}, "strategy": "zero1"},
            model=UNTIED, gradient_accumulation=8,
        ),
    ),
    "pipedream-2bw on a PCIe box": (
        4, scenario(BOX, parallel={"pp": 4, "pipeline": {"schedule": "pipedream-2bw"}}, model=UNTIED),
    ),
    "zb-h2 that steps rank by rank": (
        4,
        scenario(
            BOX, parallel={"pp": 4, "pipeline": {"schedule": "zb-h2", "post_validation": True}, "strategy": "zero1"},
            model=UNTIED,
        ),
    ),
    "the V100 cube mesh": (1, scenario("dgx-1-v100")),
    # one NIC per GPU
    "tp8 over two nodes": (1, scenario(H100, 2, {"tp": 8}, model=WIDE)),
    "tp4 pp2 over two nodes": (2, scenario(H100, 2, {"tp": 4, "pp": 2})),
    "sequence parallel over two nodes": (4, scenario(H100, 2, {"tp": 4, "pp": 4, "tensor": {"sequence_parallel": True}})),
    "tp8 pp2 zero1 over four nodes": (2, scenario(H100, 4, {"tp": 8, "pp": 2, "strategy": "zero1"}, model=WIDE)),
    "three nodes": (1, scenario(H100, 3, {"strategy": "zero2"})),
    "hsdp on two nodes": (1, scenario(H100, 2, {"strategy": "hsdp"})),
    "hsdp with context ranks": (
        1, scenario(H100, 4, {"tp": 2, "context": {"size": 2}, "data": {"strategy": "hsdp", "shard_size": 8}}),
    ),
    "hsdp in halves of a PCIe box": (1, scenario(BOX, parallel={"data": {"strategy": "hsdp", "shard_size": 4}})),
    "fsdp on 64 ranks": (1, scenario(H100, 8, {"strategy": "fsdp"})),
    "gathers under forward": (
        4,
        scenario(
            H100, 2,
            {
                "tp": 2, "pp": 4, "pipeline": {"schedule": "interleaved", "virtual_stages": 3},
                "data": {"strategy": "zero1", "overlap_gather": True},
            },
            model="gpt2",
        ),
    ),
    "blocking sends": (4, scenario(H100, 2, {"tp": 2, "pp": 4, "pipeline": {"overlap_sends": False}})),
    "pipeline neighbours on a node": (
        2, scenario(H100, 2, {"tp": 2, "pp": 2, "order": ["pipeline", "tensor", "context", "data"]}),
    ),
    "scattered ranks": (1, scenario(H100, 2, {"tp": 4}, cluster={"placement": "scattered"})),
    "twelve of sixteen GPUs": (1, scenario(H100, 2, {"tp": 2}, cluster={"gpus": 12})),
    # context parallelism: rings that stay on a node, that cross nodes, that share NICs, or that share PCIe switches
    "a ring of eight": (1, scenario(H100, 2, {"context": {"size": 8}})),
    "a ring over two nodes": (1, scenario(H100, 2, {"context": {"size": 16}})),
    "rings across nodes": (2, scenario(H100, 2, {"context": {"size": 2}, "pp": 2, "order": ["data", "tensor", "pipeline", "context"]})),
    "tp2 cp2 pp2 zero1": (
        2,
        scenario(H100, 2, {"tp": 2, "context": {"size": 2}, "pp": 2, "strategy": "zero1", "tensor": {"sequence_parallel": True}}),
    ),
    "all-gather and fsdp": (1, scenario(H100, 2, {"context": {"size": 4, "method": "all-gather"}, "strategy": "fsdp"})),
    "ulysses on a PCIe box": (1, scenario(BOX, parallel={"context": {"size": 4, "method": "ulysses"}, "strategy": "zero3"})),
    "interleaved rings that recompute": (
        2,
        scenario(
            BOX,
            parallel={"context": {"size": 2}, "pp": 2, "pipeline": {"schedule": "interleaved", "virtual_stages": 2}, "strategy": "zero2"},
            recompute="full",
        ),
    ),
    # rails across leaves, trunks with less bandwidth than what they join
    "two nodes per leaf": (1, scenario(H100, 4, cluster=TWO_PER_LEAF)),
    "unequal leaves": (3, scenario(H100, 3, {"pp": 3}, cluster=TWO_PER_LEAF)),
    "leaves that divide no stage": (
        2, scenario(H100, 8, {"tp": 8, "pp": 2, "strategy": "zero1"}, cluster=THREE_PER_LEAF, model=WIDE),
    ),
    "oversubscribed rails": (1, scenario(H100, 4, {"tp": 4, "strategy": "fsdp"}, cluster=NARROW_RAILS)),
    "oversubscribed fat tree on 64 ranks": (
        2, scenario(H100, 8, {"tp": 8, "pp": 2, "strategy": "zero1"}, cluster=OVERSUBSCRIBED, model=WIDE),
    ),
    # pairs of ports hashed on uplinks: paths of many kinds
    "hashed uplinks": (1, scenario(H100, 4, {"strategy": "fsdp"}, cluster=HASHED)),
    "tp4 pp2 on hashed uplinks": (
        32, scenario(H100, 4, {"tp": 4, "pp": 2, "strategy": "zero1"}, cluster={**HASHED, "collectives": "ring"}),
    ),
    # sends of a measured duration cross no links, but join a rank to its neighbour: only one of three shares its PCIe switch with stage 0
    "measured stages that store checkpoints": (
        4,
        scenario(
            "dgx-a100-80gb",
            parallel={"pp": 2, "strategy": "zero3"},
            cluster={"gpus": 6},
            model={"stages": [{"forward": "0.1 ms", "backward": "5.4 ms", "activation": "10 MiB", "parameters": 10**6, "send": "0.1 ms"}]},
            sequence_length=None,
            recompute="full",
            offload={"activations": "cpu"},
        ),
    ),
    # small sums go by tree where a group lies on several machines, by ring like the large ones where the first group lies
    "tensor groups of many shapes": (
        32,
        scenario(
            H100, 5, {"tp": 4},
            cluster={
                "gpus": 32,
                "placement": [
                    30, 6, 24, 8, 2, 9, 18, 35, 29, 17, 16, 0, 1, 3, 31, 20, 5, 38, 10, 11, 34, 7, 21, 25, 22, 12, 37, 33, 4, 26, 15, 39,
                ],
                "fabric": {"routing": "ecmp"},
            },
            model={"base": "gpt2", "layers": 2, "hidden": 256, "heads": 8, "vocabulary": 1000},
            sequence_length=64, gradient_accumulation=2, finetune={"method": "lora"},
        ),
    ),
    # traffic of other jobs: whoever meets it is a class of its own
    "a stream between two machines": (
        4, scenario(H100, 4, {"tp": 8, "strategy": "fsdp"}, model=WIDE, cluster={"background": STREAM}),
    ),
    "a stream beside tensor groups": (
        4, scenario(H100, 2, {"tp": 4}, cluster={"background": [{"from": "gpu0", "to": "gpu1", "rate": "300 GB/s"}]}),
    ),
    "streams and transfers through an oversubscribed fat tree": (
        28, scenario(H100, 4, {"tp": 2, "pp": 2}, cluster={**OVERSUBSCRIBED, "background": [*STREAM, *TRANSFERS]}),
    ),
    "other jobs on machines that are idle": (
        2, scenario(H100, 4, {"tp": 2}, cluster={**HASHED, "gpus": 16, "background": [*STREAM, *BESIDE]}),
    ),
    # NICs that GPUs share
    "two GPUs per NIC": (1, scenario(P4D, 2)),
    "tp2 pp2 with shared NICs": (2, scenario(P4D, 2, {"tp": 2, "pp": 2})),
    "stages that differ in how they share NICs": (4, scenario(P4D, 4, {"pp": 4, "strategy": "zero1"})),
    # slow ranks are classes of their own, and so are those that meet them
    "a slow rank": (2, {**scenario(H100, 2), "variability": {"slow": [{"rank": 5, "speed": 0.8}]}}),
    "a slow rank in a tensor group": (
        4, {**scenario(H100, 2, {"tp": 2, "strategy": "fsdp"}), "variability": {"slow": [{"rank": 5, "speed": 0.8}]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_folded_run_is_the_unfolded_one(name):
    classes, tree = CASES[name]
    folded, whole = simulate(tree).document(), simulate(tree, unfolded=True).document()
    simulation, unfolded = folded.pop("simulation"), whole.pop("simulation")
    assert differences(folded, whole) == []
    assert (simulation["ranks_simulated"], unfolded["ranks_simulated"]) == (classes, folded["ranks"]["total"])
    assert sum(device["count"] for device in folded["memory"]["devices"]) == folded["ranks"]["total"]
    for key in ("breakdown_s", "critical_path_s"):
        assert sum(folded[key].values()) == pytest.approx(folded["step_time_s"], rel=TOLERANCE)


def test_a_slow_rank_stands_alone():
    document = simulate(CASES["a slow rank"][1]).document()
    assert [(device["ranks"], device["count"]) for device in document["memory"]["devices"]] == [("0-4,6-15", 15), ("5", 1)]
    even = simulate(scenario(H100, 2)).document()
    assert document["step_time_s"] > even["step_time_s"]
    assert document["bottleneck_rank"] == 5


# -- laws -------------------------------------------------------------------------------------------------------------------------


def essence(document):
    """What does not depend on how ranks are called."""
    return {
        "time": document["step_time_s"],
        "peak": document["memory"]["peak_bytes"],
        "breakdown": document["breakdown_s"],
        "links": sorted((link["link"], link["count"], link["bytes"]) for link in document["links"]),
    }


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp", "torch-data-parallel", "parameter-server"])
def test_one_replica_is_one_gpu(strategy):
    """t = N = p = 1: every strategy is the plain single-GPU step."""
    tree = scenario(H100, parallel={"strategy": strategy}, cluster={"gpus": 1}) | {"software": {"profile": "pytorch-2"}}
    plain = tree | {"parallel": {"data": {"strategy": "none"}}}
    assert differences(essence(simulate(tree).document()), essence(simulate(plain).document())) == []


@pytest.mark.parametrize("parallel", [{}, {"strategy": "fsdp"}, {"tp": 2}, {"pp": 2, "strategy": "zero1"}], ids=str)
def test_replicas_can_change_places(parallel):
    """Behind a switch all GPUs are alike."""
    home = simulate(scenario(H100, parallel=parallel)).document()
    moved = simulate(scenario(H100, parallel=parallel, cluster={"placement": [5, 2, 7, 0, 3, 6, 1, 4]})).document()
    assert differences(essence(home), essence(moved)) == []


def test_half_the_bandwidth_makes_a_lone_collective_slower():
    def busy(factor):
        links = {"links": {"nvlink4": {"per_direction": f"x{factor}"}}}
        tree = scenario(
            H100,
            parallel={"data": {"overlap_reduce": False, "bucket": "1 GiB", "first_bucket": "1 GiB"}},
            cluster={"set": links, "collectives": "ring"},
        )
        rows = [row for row in simulate(tree).document()["collectives"] if row["kind"] == "all_reduce" and row["bytes"] > 1000]
        assert [row["count"] for row in rows] == [1]
        return rows[0]["busy_s"]

    full, half, quarter = busy(1), busy(0.5), busy(0.25)
    assert full < half < 2 * full
    assert quarter - half == pytest.approx(2 * (half - full), rel=1e-9)  # latency stays, bytes take twice as long


def test_a_slower_link_never_helps():
    """On the PCIe box every transfer crosses the host bridges."""
    times = []
    for factor in (1, 0.5, 0.25):
        tree = scenario(
            BOX,
            parallel={"tp": 2, "pp": 2, "strategy": "zero1"},
            cluster={"set": {"links": {"pcie4-x16": {"per_direction": f"x{factor}"}}}},
        )
        times.append(simulate(tree).document()["step_time_s"])
    assert times == sorted(times)
    assert times[0] < times[-1]


PROGRAMS = [
    {"model": "gpt2", "data": 4},
    {"model": "gpt2", "data": 2, "micro_batches": 2, "data_settings": {"strategy": "fsdp"}},
    {"model": "gpt2", "tensor": 2, "pipeline": 2, "data": 2, "micro_batches": 4},
    {"model": "gpt2", "context": 4, "tensor": 2, "data": 2, "micro_batches": 2},
    {"model": "gpt2", "context": 2, "pipeline": 2, "micro_batches": 4, "context_settings": {"method": "ulysses"}},
    {"model": "gpt2", "pipeline": 4, "micro_batches": 4, "pipeline_settings": {"schedule": "interleaved", "virtual_stages": 3}},
    {"model": "gpt2", "pipeline": 3, "micro_batches": 6, "pipeline_settings": {"overlap_sends": False}, "slow": {1: 0.7}},
    {"model": layers(8), "pipeline": 4, "data": 2, "micro_batches": 8, "clock": measured},
]


@pytest.mark.parametrize("wires", [{}, {"data": 3e-4, "tensor": 1e-4, "pipeline": 2e-4}], ids=["free", "latency"])
@pytest.mark.parametrize("settings", PROGRAMS, ids=lambda settings: ", ".join(f"{k} {v}" for k, v in settings.items() if k != "model")[:60])
def test_without_contention_a_step_is_the_longest_path(settings, wires):
    """Ops joined by lanes and needs; a path weighs the durations and latencies on it."""
    run = job(**settings, wires=wires)
    time = {op.index: op.duration + (run.wires.cost(op.collective).latency if op.collective else 0.0) for op in run.program.ops}
    graph = networkx.DiGraph()
    graph.add_nodes_from(time)
    graph.add_weighted_edges_from((op.index, other.index, time[other.index]) for op in run.program.ops for other in op.after)
    finish = {}
    for index in networkx.topological_sort(graph):
        finish[index] = time[index] + max((finish[before] for before in graph.predecessors(index)), default=0.0)
    assert run.makespan == pytest.approx(max(finish.values()), rel=1e-12)


@pytest.fixture(scope="module")
def clusters():
    def device(name):
        return files.read(files.find("devices", name)).tree

    def cluster(name, nodes):
        return build_cluster(files.read(files.find("topologies", name)).tree, device_lookup=device, nodes=nodes)

    return {name: cluster(name, nodes) for name, nodes in ((H100, 4), (P4D, 2), ("dgx-1-v100", 1), ("8x-rtx-4090-pcie", 1))}


GROUPS = {
    H100: [tuple(range(8)), (0, 8, 16, 24), (0, 1, 8, 9), tuple(range(32))],
    P4D: [tuple(range(8)), (0, 8), (0, 1, 8, 9), tuple(range(16))],
    "dgx-1-v100": [tuple(range(8)), (0, 3)],
    "8x-rtx-4090-pcie": [tuple(range(8)), (0, 4), (1, 2, 5)],
}


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize(
    "kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all", "sendrecv", "send"]
)
def test_what_is_sent_is_received(clusters, name, kind):
    """Summed over GPUs; nothing is lost or made on the way; in collectives among equals also GPU by GPU."""
    cluster = clusters[name]
    wires = Interconnect(cluster, range(cluster.gpus))
    for group in GROUPS[name]:
        members = group[:2] if kind == "send" else group
        cost = wires.cost(Collective(kind, "data", members, 10**8))
        sent, received = {}, {}
        for flow in cost.flows:
            for link, coefficient in flow.path:
                if link >= cluster.first_fabric_link:
                    continue
                node, _, name = cluster.link(link).name.partition(".")
                ends = [f"{node}.{end}" for end in name.split("->")]
                for end, total in zip(ends, (sent, received), strict=True):
                    if ".gpu" in end:
                        total[end] = total.get(end, 0.0) + coefficient * flow.volume
        assert sum(sent.values()) == pytest.approx(sum(received.values()), rel=TOLERANCE)
        assert sum(sent.values()) > 0
        if kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv"):
            assert sent == pytest.approx(received, rel=TOLERANCE)

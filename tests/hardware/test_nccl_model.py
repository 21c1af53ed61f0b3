"""NCCL's tuning model against tables worked out from its published source (NVIDIA/nccl 2.30, src/graph/tuning.cc)."""

from __future__ import annotations

import math

import pytest

from parsim.errors import TopologyError
from parsim.hardware.nccl.estimate import choose, ctas, estimate, predict
from parsim.hardware.nccl.inputs import Graph, Heads, Inputs, Settings
from parsim.hardware.nccl.profiles import NCCL
from parsim.hardware.nccl.tables import ALGORITHMS, PROTOCOLS, TABLES, constants
from parsim.hardware.nccl.tuning import latency

GB = 1e9
MIB = 2**20
GIB = 2**30
TABLE = constants()
LARGE = 2.0**62
NO_CORRECTION = 1.0  # sizes below 64 B and above 512 MiB have none


def node(channels: int, speed: float, ranks: int = 8, **rest) -> Inputs:
    return Inputs(ranks, Graph(channels, speed * GB), **rest)


def hopper(ranks: int = 8, heads: float = 40, **rest) -> Inputs:
    return node(12, 30, ranks, capability=9.0, nvls=Heads(ranks, heads * GB), local="nvlink4", **rest)


A100 = node(12, 20)
H100 = hopper()
V100 = node(6, 20, capability=7.0, local="nvlink2")
PCIE = node(1, 12, capability=7.0, path="pcie", ll128=False, local="pcie")


def a100_cluster(nodes: int, channels: int = 8) -> Inputs:
    return node(channels, 24, 8 * nodes, nodes=nodes, cpu="amd")


def h100_cluster(nodes: int) -> Inputs:
    heads = Heads(8, 40 * GB)
    return node(8, 45, 8 * nodes, nodes=nodes, cpu="intel", capability=9.0, nvls=heads, local="nvlink4")


def entry(inputs: Inputs, kind: str, algorithm: str, protocol: str) -> tuple[float, float]:
    """Latency without plateau in us and bandwidth in GB/s."""
    choice = predict(inputs, kind, algorithm, protocol, LARGE, TABLE)
    assert choice is not None
    return latency(inputs, kind, algorithm, protocol, TABLE) * 1e6, choice.bandwidth / GB


ENTRIES = {
    ("A100", "all_reduce"): (A100, "ring 15.0/50.11 40.6/126.17 56.0/137.14; tree 15.2/29.05 31.5/85.87 64.4/110.4"),
    ("H100", "all_reduce"): (
        H100,
        "ring 15.0/80.57 40.6/189.26 56.0/205.71; tree 15.2/43.58 31.5/128.8 64.4/165.6; nvls - - 25/272.0",
    ),
    ("V100", "all_reduce"): (V100, "ring 15.0/22.29 40.6/63.09 56.0/68.57; tree 15.2/14.53 31.5/42.93 64.4/55.2"),
    ("PCIe", "all_reduce"): (PCIE, "ring 20.6/3.43 - 88.2/6.86; tree 20.8/1.45 - 64.4/5.52"),
    ("PCIe", "all_gather"): (PCIE, "ring 13.6/6.86 - 48.3/13.71"),
    ("PCIe", "reduce_scatter"): (PCIE, "ring 13.6/6.86 - 48.3/13.71"),
    ("4 x A100", "all_reduce"): (
        a100_cluster(4),
        "ring 134.8/9.81 150.0/82.58 428.4/99.10; tree 35.2/9.50 65.5/66.75 120.4/71.2",
    ),
    ("4 x A100", "all_gather"): (a100_cluster(4), "ring 70.7/19.61 82.0/165.16 218.4/198.19"),
    ("4 x A100", "reduce_scatter"): (a100_cluster(4), "ring 70.7/19.61 82.0/165.16 218.4/198.19"),
    ("4 x H100", "all_reduce"): (
        h100_cluster(4),
        "ring 78.8/10.53 144.4/151.54 282.8/185.81; tree 35.2/10.20 65.5/116.0 120.4/144.0; nvls_tree - - 108.6/165.16",
    ),
    ("4 x H100", "all_gather"): (h100_cluster(4), "ring * * 145.6/371.61"),
    ("4 x H100", "reduce_scatter"): (h100_cluster(4), "ring * * 145.6/371.61"),
}


@pytest.mark.parametrize("case", ENTRIES, ids=" ".join)
def test_latency_and_bandwidth_tables(case):
    inputs, lines = ENTRIES[case]
    kind = case[1]
    for line in lines.split("; "):
        algorithm, *cells = line.split()
        for protocol, cell in zip(PROTOCOLS, cells, strict=True):
            if cell == "-":
                assert predict(inputs, kind, algorithm, protocol, MIB, TABLE) is None
            elif cell != "*":
                wait, speed = entry(inputs, kind, algorithm, protocol)
                expected = cell.split("/")
                assert wait == pytest.approx(float(expected[0]), abs=1e-9)
                assert round(speed, len(expected[1].partition(".")[2])) == pytest.approx(float(expected[1]))


@pytest.mark.parametrize(
    ("inputs", "size", "algorithm", "protocol", "time", "busbw"),
    [
        (A100, MIB, "ring", "ll", 35.92, 51.08),
        (A100, 4 * MIB, "ring", "ll128", 73.84, 99.4),
        (A100, 32 * MIB, "ring", "simple", 300.67, 195.3),
        (A100, GIB, "ring", "simple", 7885.37, 238.3),
        (H100, MIB, "ring", "ll", 28.01, 65.5),
        (H100, 2 * MIB, "nvls", "simple", 32.71, 112.2),
        (H100, 64 * MIB, "nvls", "simple", 271.72, 432.2),
        (H100, GIB, "nvls", "simple", 3972.58, 473.0),
    ],
)
def test_choice_time_and_bus_bandwidth(inputs, size, algorithm, protocol, time, busbw):
    one = estimate(inputs, "all_reduce", size, used=NCCL)
    assert (one.choice.algorithm, one.choice.protocol) == (algorithm, protocol)
    assert one.time * 1e6 == pytest.approx(time, abs=0.006)
    assert 1.75 * size / one.time / GB == pytest.approx(busbw, abs=0.06)


def test_switch_between_protocols_on_hopper():
    """The library's log on an H200 node shows the switch between 1 and 2 MiB (stas00/ml-engineering)."""
    times = {name: predict(H100, "all_reduce", *name, 2 * MIB, TABLE).time * 1e6 for name in (("ring", "ll"), ("nvls", "simple"))}
    assert times == {("ring", "ll"): pytest.approx(41.03, abs=0.005), ("nvls", "simple"): pytest.approx(32.71, abs=0.005)}
    assert predict(H100, "all_reduce", "nvls", "simple", MIB, TABLE).time * 1e6 == pytest.approx(28.85, abs=0.006)


def test_nvls_against_ring_on_large_messages():
    assert predict(H100, "all_reduce", "nvls", "simple", GIB, TABLE).time * 1e6 == pytest.approx(3972.58, abs=0.005)
    assert predict(H100, "all_reduce", "ring", "simple", GIB, TABLE).time * 1e6 == pytest.approx(5275.6, abs=0.05)


@pytest.mark.parametrize(("ranks", "busbw", "speed"), [(4, 306, 60), (5, 408, 60), (6, 425, 50), (7, 408, 40), (8, 476, 40)])
def test_nvls_by_number_of_gpus(ranks, busbw, speed):
    inputs = hopper(ranks, speed)
    choice = predict(inputs, "all_reduce", "nvls", "simple", LARGE, TABLE)
    assert choice.bandwidth * 2 * (ranks - 1) / ranks / GB == pytest.approx(busbw, abs=0.5)
    assert choose(inputs, "all_reduce", GIB).algorithm == ("ring" if ranks == 4 else "nvls")


def test_nvls_on_blackwell():
    inputs = node(16, 45, capability=10.0, nvls=Heads(8, 80 * GB))
    choice = predict(inputs, "all_reduce", "nvls", "simple", LARGE, TABLE)
    assert choice.bandwidth * 1.75 / GB == pytest.approx(828.8)


CROSSOVERS = {
    "A100 2": (a100_cluster(2), "tree ll, tree ll128, ring ll128, ring simple, ring simple, ring simple 191"),
    "A100 16": (a100_cluster(16), "tree ll, tree ll128, tree ll128, tree ll128 126, ring simple 157, ring simple 187"),
    "A100 128": (a100_cluster(128), "tree ll, tree ll128, tree ll128, tree ll128 124, tree simple 140, ring simple 157"),
    "H100 2": (
        h100_cluster(2),
        "tree ll, tree ll128, nvls_tree simple 233, nvls_tree simple 411, nvls_tree simple 455, nvls_tree simple 461",
    ),
    "H100 4": (h100_cluster(4), "tree ll, tree ll128, nvls_tree simple 155, nvls_tree simple 282, ring simple 337, ring simple 357"),
    "H100 16": (h100_cluster(16), "tree ll, tree ll128, tree ll128 128, nvls_tree simple 260, nvls_tree simple 311, ring simple 348"),
    "H100 128": (
        h100_cluster(128),
        "tree ll, tree ll128, tree ll128 108, nvls_tree simple 232, nvls_tree simple 306, nvls_tree simple 318",
    ),
}


@pytest.mark.parametrize("case", CROSSOVERS)
def test_crossovers(case):
    inputs, line = CROSSOVERS[case]
    sizes = (64 * 1024, MIB, 16 * MIB, 128 * MIB, GIB, 8 * GIB)
    for size, cell in zip(sizes, line.split(", "), strict=True):
        algorithm, protocol, *busbw = cell.split()
        choice = choose(inputs, "all_reduce", size)
        assert (choice.algorithm, choice.protocol) == (algorithm, protocol), size
        if busbw:
            n = inputs.ranks
            assert 2 * (n - 1) / n * size / choice.time / GB == pytest.approx(float(busbw[0]), abs=0.51)
    for size in (8, 1024, 16 * 1024):
        assert choose(inputs, "all_reduce", size).algorithm == "tree"


def test_latency_of_256_ranks():
    """62 to 65 us measured with 8 B to 512 B on 32 nodes of 8 A100 (NVIDIA/nccl issues 652, 1244)."""
    inputs = a100_cluster(32, channels=4)
    choice = choose(inputs, "all_reduce", 0)
    assert (choice.algorithm, choice.protocol, choice.time) == ("tree", "ll", pytest.approx(65.2e-6))


def test_latency_of_two_nodes_on_a_slow_network_stack():
    inputs = node(8, 45, 16, nodes=2, capability=9.0, cpu="intel", network_latency=20e-6)
    assert estimate(inputs, "all_reduce", 0).time == pytest.approx(68.2e-6)  # 65 to 75 measured


@pytest.mark.parametrize(("ranks", "inputs", "time"), [(2, node(1, 20, 2), 7.8), (8, A100, 15.0), (16, a100_cluster(2), 25.2)])
def test_small_message_floor(ranks, inputs, time):
    assert choose(inputs, "all_reduce", 0).time == pytest.approx(time * 1e-6)


def test_plateau_of_rings_between_nodes():
    inputs = a100_cluster(4)
    choice = predict(inputs, "all_reduce", "ring", "simple", GIB, TABLE)
    assert choice.latency == pytest.approx(1.4 * 428.4e-6)
    assert choice.time == pytest.approx(11435e-6, rel=1e-4)
    assert 2 * 31 / 32 * GIB / choice.time / GB == pytest.approx(181.9, abs=0.05)
    edge = 64 * 16 * 32
    assert predict(inputs, "all_reduce", "ring", "simple", edge - 1, TABLE).latency == pytest.approx(428.4e-6)
    assert predict(inputs, "all_reduce", "ring", "simple", edge, TABLE).latency == pytest.approx(1.4 * 428.4e-6)
    old = node(4, 12, 32, nodes=4, capability=7.0)
    assert predict(old, "all_reduce", "ring", "simple", GIB, TABLE).latency / latency(
        old, "all_reduce", "ring", "simple", TABLE
    ) == pytest.approx(1.9)
    assert predict(inputs, "all_gather", "ring", "simple", GIB, TABLE).latency == pytest.approx(218.4e-6)


def test_two_node_tree_exceeds_the_nics():
    """NICs move S per direction, so 192 GB/s give at most 360 of bus bandwidth; the caps per channel hold it below."""
    choice = predict(a100_cluster(2), "all_reduce", "tree", "simple", LARGE, TABLE)
    assert choice.bandwidth == pytest.approx(min(0.92 * 192, 8 * 23.6) / 2 * GB)
    twelve = predict(a100_cluster(2, channels=12), "all_reduce", "tree", "simple", LARGE, TABLE)
    assert twelve.bandwidth == pytest.approx(0.92 * 288 / 2 * GB)
    assert choice.bandwidth * 2 * 15 / 16 < 360 * GB


def test_tree_correction_covers_64_bytes_to_512_mib():
    def factor(size):
        return predict(A100, "all_reduce", "tree", "simple", size, TABLE).bandwidth / (110.4 * GB)

    assert factor(63) == pytest.approx(NO_CORRECTION)
    assert factor(64) == pytest.approx(0.9)
    assert factor(128 * 1024) == pytest.approx(0.5)
    assert factor(512 * MIB - 1) == pytest.approx(0.9)
    assert factor(512 * MIB) == pytest.approx(NO_CORRECTION)
    blackwell = node(8, 48, 32, nodes=4, capability=10.0, nvls=Heads(8, 80 * GB))
    full = predict(blackwell, "all_reduce", "nvls_tree", "simple", LARGE, TABLE).bandwidth
    assert predict(blackwell, "all_reduce", "nvls_tree", "simple", 512 * MIB, TABLE).bandwidth == pytest.approx(0.9 * full)
    assert predict(h100_cluster(4), "all_reduce", "nvls_tree", "simple", 16 * MIB, TABLE).bandwidth == pytest.approx(165.16 * GB, rel=1e-4)


def test_broadcast_and_reduce():
    assert entry(A100, "broadcast", "ring", "simple") == (pytest.approx(11.8), pytest.approx(240))
    mixed = node(6, 20, same_order=False)
    assert entry(mixed, "reduce", "ring", "simple")[0] == pytest.approx(8.4 + 8 * 4.0)
    assert entry(mixed, "reduce", "ring", "ll")[0] == pytest.approx(6.6 + 8 * 0.6)
    assert entry(a100_cluster(4), "broadcast", "ring", "simple")[0] == pytest.approx(8.4 + 14)


def test_one_gpu_per_node():
    lone = node(1, 24, 16, nodes=16)
    assert entry(lone, "all_gather", "pat", "simple") == (pytest.approx(8 + 4 * 14 / 3.5 + 16 * 2.8), pytest.approx(18))
    assert entry(lone, "all_gather", "ring", "ll")[0] == pytest.approx(6.6 + 15 * 5.0)
    assert predict(a100_cluster(4), "all_gather", "pat", "simple", MIB, TABLE) is None


def test_reductions_in_the_network():
    sharp = node(8, 45, 32, nodes=4, capability=9.0, collnet=Graph(8, 45 * GB), nvls=Heads(8, 40 * GB))
    assert entry(sharp, "all_reduce", "collnet_direct", "simple") == (
        pytest.approx(2 * (3.7 + 7 * 0.4) + 31),
        pytest.approx(360 * 0.85 / 2),
    )
    assert entry(sharp, "all_reduce", "collnet_chain", "simple") == (pytest.approx(2 * 7 * 2.8 + 30), pytest.approx(180))
    assert entry(sharp, "all_gather", "collnet_direct", "simple")[1] == pytest.approx(8 * 0.9 * 45)
    assert entry(sharp, "all_reduce", "nvls", "simple") == (pytest.approx(25 + 18), pytest.approx(8 * 40 * 32 / 62))
    few = node(4, 48, 32, nodes=4, capability=8.0, collnet=Graph(4, 48 * GB))
    assert entry(few, "all_reduce", "collnet_direct", "simple")[1] == pytest.approx(192 / 1.5 / 2)


def test_ll128_wants_nvlink():
    assert predict(PCIE, "all_reduce", "ring", "ll128", MIB, TABLE) is None
    assert predict(node(1, 18, capability=6.0), "all_reduce", "ring", "ll128", MIB, TABLE) is None


def test_overrides():
    assert choose(A100, "all_reduce", 1024, Settings(protocol="simple")).protocol == "simple"
    assert choose(A100, "all_reduce", GIB, Settings(algorithm="tree")).algorithm == "tree"
    mapped = Settings(algorithm={"all_reduce": "tree"}, protocol={"all_gather": "ll"})
    assert choose(A100, "all_reduce", GIB, mapped).algorithm == "tree"
    gathered = choose(A100, "all_gather", GIB, mapped)
    assert (gathered.algorithm, gathered.protocol) == ("ring", "ll")


@pytest.mark.parametrize(
    ("inputs", "kind", "settings", "match"),
    [
        (A100, "all_reduce", Settings(algorithm="nvls"), "NVSwitch with in-switch reduction.*possible: tree with ll, .*ring with simple"),
        (A100, "all_gather", Settings(algorithm="tree"), "the tree is for all_reduce.*possible: ring with ll"),
        (PCIE, "all_reduce", Settings(protocol="ll128"), "LL128 needs NVLink.*possible: tree with ll, tree with simple"),
        (H100, "all_reduce", Settings(algorithm="nvls", protocol="ll"), "nvls has the simple protocol only"),
        (H100, "all_reduce", Settings(algorithm="nvls_tree"), "several nodes"),
        (h100_cluster(2), "all_reduce", Settings(algorithm="nvls"), "SHARP"),
        (A100, "broadcast", Settings(algorithm="tree"), "broadcast runs on the ring only"),
        (A100, "all_gather", Settings(algorithm="pat"), "one GPU per node"),
        (A100, "all_reduce", Settings(algorithm="collnet_chain"), "SHARP"),
    ],
)
def test_impossible_overrides_name_what_is_possible(inputs, kind, settings, match):
    with pytest.raises(TopologyError, match=match):
        choose(inputs, kind, MIB, settings)


def test_wrong_settings():
    with pytest.raises(TopologyError, match=r"unknown algorithm.*known: auto, tree"):
        Settings(algorithm="rings")
    with pytest.raises(TopologyError, match="unknown collective"):
        Settings(protocol={"allreduce": "ll"})
    with pytest.raises(TopologyError, match="have no collective"):
        Inputs(1, Graph(1, GB))


def test_ctas():
    def blocks(inputs, kind, size, **settings):
        chosen = Settings(**settings)
        return ctas(inputs, choose(inputs, kind, size, chosen), chosen)

    assert blocks(A100, "all_reduce", GIB) == 24
    assert blocks(H100, "all_reduce", GIB, algorithm="ring") == 24
    assert blocks(h100_cluster(4), "all_reduce", 8 * GIB) == 16
    assert blocks(H100, "all_reduce", GIB) == 16
    assert blocks(node(16, 45, capability=10.0, nvls=Heads(8, 80 * GB)), "all_reduce", GIB) == 24
    assert blocks(node(8, 48, 32, nodes=4, capability=10.0, nvls=Heads(8, 80 * GB)), "all_reduce", GIB, algorithm="nvls_tree") == 32
    assert blocks(A100, "all_reduce", GIB, max_ctas=4) == 4
    assert blocks(A100, "all_reduce", 64 * 512 * 5, algorithm="ring", protocol="simple") == 5
    assert blocks(A100, "all_reduce", 8 * 8 * 512 * 3, algorithm="ring", protocol="ll") == 3
    assert blocks(A100, "all_reduce", 100) == 1


# versions


def test_versions():
    assert constants("2.30") is TABLES["2.30"]
    assert constants("2.19.3") is TABLES["2.18"]
    assert constants("2.8") is TABLES["2.12"]
    assert constants("2.41") is TABLES["2.30"]
    for wrong in ("2.4", "new", "2"):
        with pytest.raises(TopologyError, match=r"tables: 2\.12, 2\.18"):
            constants(wrong)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.12", {"ring ll": 3.6 + 14 * 0.47, "ring simple": 56.0, "tree ll": 4.4 + 14 * 0.52, "tree simple": 14 * 28}),
        ("2.18", {"ring ll": 15.0, "tree simple": 56.0, "nvls simple": 23.0}),
        ("2.20", {"ring ll": 15.0, "tree simple": 392.0, "nvls simple": 23.0}),
        ("2.23", {"ring ll": 15.0, "tree simple": 64.4, "nvls simple": 25.0}),
    ],
)
def test_latencies_of_older_versions(version, expected):
    table = constants(version)
    for name, value in expected.items():
        algorithm, protocol = name.split()
        assert latency(H100, "all_reduce", algorithm, protocol, table) * 1e6 == pytest.approx(value), name


def test_bandwidths_of_older_versions():
    def speed(version, algorithm, protocol, inputs=A100, kind="all_reduce"):
        choice = predict(inputs, kind, algorithm, protocol, LARGE, constants(version))
        return choice and choice.bandwidth / GB

    assert speed("2.12", "ring", "simple") == pytest.approx(235 * 8 / 14)
    assert speed("2.12", "ring", "ll") == pytest.approx(235 / 4 * 8 / 14)
    assert speed("2.18", "ring", "ll", kind="all_gather") == pytest.approx(80 * 8 / 7)
    assert speed("2.12", "nvls", "simple", H100) is None
    assert speed("2.18", "nvls", "simple", H100) == pytest.approx(320 * 5 / 6)
    assert speed("2.20", "nvls", "simple", H100) == pytest.approx(320 * 5 / 6)
    assert speed("2.20", "nvls", "simple", H100, "all_gather") == pytest.approx(320 * 5 / 6)
    assert speed("2.23", "nvls", "simple", H100, "all_gather") == pytest.approx(320)
    assert speed("2.20", "nvls_tree", "simple", h100_cluster(4)) == pytest.approx(160 * 5 / 6)
    assert speed("2.18", "nvls_tree", "simple", h100_cluster(4)) == pytest.approx(320 * 0.7 * 4 / 6)
    assert speed("2.23", "ring", "ll128", node(8, 48, capability=10.0)) is None
    assert speed("2.18", "pat", "simple", node(1, 24, 4, nodes=4), "all_gather") is None


def test_old_rings_between_nodes():
    inputs = a100_cluster(4)
    assert latency(inputs, "all_reduce", "ring", "simple", constants("2.12")) * 1e6 == pytest.approx(8.4 + 54 * 3.4 + 8 * 28)
    assert latency(inputs, "all_reduce", "ring", "ll", constants("2.12")) * 1e6 == pytest.approx(3.6 + 54 * 0.47 * 1.8 + 8 * 2.7)
    assert latency(inputs, "all_reduce", "ring", "simple", constants("2.20")) * 1e6 == pytest.approx(8.4 + 54 * 6 + 8 * 14)
    small = predict(inputs, "all_reduce", "ring", "simple", 4096 * 32 - 1, constants("2.12"))
    large = predict(inputs, "all_reduce", "ring", "simple", 4096 * 32, constants("2.12"))
    assert large.latency / small.latency == pytest.approx(1.9)


@pytest.mark.parametrize("version", TABLES)
def test_every_table_answers_everything(version):
    settings = Settings(version=version, profile="nccl")
    for inputs in (A100, H100, V100, PCIE, a100_cluster(3), h100_cluster(5), node(2, 24, 6, nodes=6)):
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "barrier"):
            for size in (0, 1, 64, 4096, MIB, GIB):
                one = estimate(inputs, kind, size, settings)
                assert 0 < one.time < math.inf
                assert one.choice.algorithm in ALGORITHMS

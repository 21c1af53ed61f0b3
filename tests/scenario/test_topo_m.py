"""Import of ``nvidia-smi topo -m``: twelve publicly posted outputs, and malformed ones.

The expected structure of each machine was worked out by hand from its matrix (closest relations first, as in NVIDIA's legend)
and agrees with what its maker documents where it is a known one (DGX-1, DGX/HGX, Dell C4140).
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import MOST_PROBLEMS, ScenarioError, TopologyError
from parsim.hardware.fabric.builder import build_cluster
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.links import standard_kind
from parsim.interop.description import Imported, MachineFacts, device_lookup
from parsim.interop.topo_graph import complete, pcie_tree
from parsim.interop.topo_m import import_topo
from parsim.interop.topo_matrix import Distance, read_matrix
from parsim.scenario import files

DATA = Path(__file__).parent.parent / "data" / "topo-m"
SAMPLES = {path.name[:2]: path for path in sorted(DATA.glob("*.txt"))}
DEVICES = {
    "01": "v100-sxm2-16gb", "02": "v100-sxm2-16gb", "03": "a100-sxm-80gb", "04": "a100-sxm-80gb", "05": "a100-pcie-80gb",
    "06": "h100-sxm-80gb", "07": "h200-sxm-141gb", "08": "b200-sxm-180gb", "09": "h100-sxm-80gb", "10": "rtx-3090-24gb",
    "11": "rtx-4090-24gb", "12": "l40s-48gb",
}  # fmt: skip
CUBE_MESH = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
    (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)  # fmt: skip


def text(number: str) -> str:
    return SAMPLES[number].read_text(encoding="utf-8")


def taken(source: str, device: str | None = None, **options: Any) -> Imported:
    return import_topo(source, **{"device": device, "nic": None, "pcie": None, "cpu": None, "name": "mine", **options})


def facts(number: str) -> MachineFacts:
    return taken(text(number), DEVICES[number]).facts


def built(imported: Imported, **options: Any) -> Cluster:
    return build_cluster(imported.tree, device_lookup=device_lookup(), **options)


def said(imported: Imported) -> str:
    return "\n".join(map(str, imported.warnings))


def refused(source: str, device: str | None = "a100-sxm-80gb") -> str:
    with pytest.raises(TopologyError) as caught:
        taken(source, device)
    return str(caught.value)


def gpus(*numbers: int) -> tuple[str, ...]:
    return tuple(f"gpu{number}" for number in numbers)


class Expected(NamedTuple):
    """One machine."""

    nvlink: str
    edges: int
    links: int
    """of all edges together"""
    per_gpu: int
    cpus: tuple[tuple[int, ...], ...]
    complexes: tuple[tuple[str, ...], ...]
    root_ports: tuple[str, ...]
    cards: int
    excluded: tuple[int, ...]
    nics_of: tuple[tuple[int, ...], ...]


TWO_SOCKETS = ((0, 1, 2, 3), (4, 5, 6, 7))
ONE_SOCKET = ((0, 1, 2, 3),)
OWN_NIC = tuple((number,) for number in range(8))
EXPECTED = {
    "01": Expected("mesh", 16, 24, 6, TWO_SOCKETS, (("gpu2", "gpu3", "nic0"),), gpus(0, 1, 4, 5, 6, 7), 1, (), ((0,),) * 8),
    "02": Expected("mesh", 6, 12, 6, ONE_SOCKET, (), gpus(0, 1, 2, 3), 1, (), ((0,),) * 4),
    "03": Expected(
        "nvswitch", 0, 0, 12, TWO_SOCKETS,
        tuple((f"gpu{k}", f"gpu{k + 1}", f"nic{k}", f"nic{k + 1}") for k in (0, 2, 4, 6)), (), 4, (), OWN_NIC,
    ),
    "04": Expected(
        "nvswitch", 0, 0, 12, ((0, 1), (2, 3), (4, 5), (6, 7), ()),
        tuple((f"gpu{2 * j}", f"gpu{2 * j + 1}", *(f"nic{4 * j + k}" for k in range(4))) for j in range(4)), (), 9, (16,),
        ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15)),
    ),
    "05": Expected("bridges", 4, 48, 12, TWO_SOCKETS, (), gpus(*range(8)), 0, (), ((),) * 8),
    "06": Expected("nvswitch", 0, 0, 18, TWO_SOCKETS, tuple((f"gpu{k}", f"nic{k}") for k in range(8)), (), 8, (), OWN_NIC),
    "07": Expected(
        "nvswitch", 0, 0, 18, TWO_SOCKETS,
        tuple((f"gpu{gpu}", f"nic{nic}") for gpu, nic in enumerate((0, 3, 4, 5, 6, 9, 10, 11))), (), 10, (1, 2, 7, 8),
        ((0,), (3,), (4,), (5,), (6,), (9,), (10,), (11,)),
    ),
    "08": Expected("nvswitch", 0, 0, 18, TWO_SOCKETS, tuple((f"gpu{k}", f"nic{k}") for k in range(8)), (), 9, (8,), OWN_NIC),
    "09": Expected("nvswitch", 0, 0, 18, ONE_SOCKET, (), gpus(0, 1, 2, 3), 8, (), OWN_NIC[:4]),
    "10": Expected("none", 0, 0, 0, TWO_SOCKETS, (), gpus(*range(8)), 0, (), ((),) * 8),
    "11": Expected("none", 0, 0, 0, ((0, 1), (2,), (3, 4), (5,)), (), gpus(*range(6)), 0, (), ((),) * 6),
    "12": Expected("none", 0, 0, 0, ONE_SOCKET, (), gpus(0, 1, 2, 3), 0, (), ((),) * 4),
}  # fmt: skip


@pytest.mark.parametrize("number", SAMPLES)
def test_what_is_read_out_of_each_sample(number):
    found, wanted = facts(number), EXPECTED[number]
    assert found.nvlink == wanted.nvlink
    assert len(found.nvlink_edges) == wanted.edges
    assert sum(count for *_, count in found.nvlink_edges) == wanted.links
    assert set(found.nvlinks) == {wanted.per_gpu}
    assert found.cpus == wanted.cpus
    assert found.complexes == wanted.complexes
    assert found.root_ports == wanted.root_ports
    assert len(found.cards) == wanted.cards
    assert found.excluded == wanted.excluded
    assert found.nics_of == wanted.nics_of


@pytest.mark.parametrize("number", SAMPLES)
def test_the_yaml_loads_and_its_graph_says_the_same(number):
    imported = taken(text(number), DEVICES[number], nic="ib-hdr", cpu="intel")
    assert files.parse_text(imported.yaml, "mine").tree == imported.tree
    found, wanted = imported.facts, EXPECTED[number]
    machine = built(imported).machine(0)
    assert machine.gpus == len(found.gpus)
    owned = tuple(tuple(int(machine.ports[port][3:]) for port in ports) for ports in machine.owned_ports)
    assert owned == wanted.nics_of
    per_link = machine.devices[0].nvlink
    for gpu in range(machine.gpus):
        ends = [data["link"] for _, _, data in machine.graph.out_edges(f"gpu{gpu}", data=True) if data["link_kind"].medium == "nvlink"]
        kind = standard_kind(per_link)
        assert sum(link.capacity for link in ends) == pytest.approx(wanted.per_gpu * (kind.capacity if kind else 0.0))
    for a, b in combinations(range(machine.gpus), 2):
        assert machine.between(a, b) is not None
    if found.nics:
        assert built(imported, nodes=2).gpus == 2 * machine.gpus


def test_cube_mesh_edges():
    assert facts("01").nvlink_edges == CUBE_MESH
    assert facts("02").nvlink_edges == tuple((a, b, 2) for a, b in combinations(range(4), 2))
    assert facts("05").nvlink_edges == ((0, 1, 12), (2, 3, 12), (4, 5, 12), (6, 7, 12))


def test_cards_host_bridges_and_unassigned():
    assert facts("03").cards == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert facts("04").cards == (*((k, k + 1) for k in range(0, 16, 2)), (16,))
    assert facts("07").cards == ((0,), (1, 2), (3,), (4,), (5,), (6,), (7, 8), (9,), (10,), (11,))
    assert facts("11").host_bridges == (("gpu0", "gpu1"), ("gpu3", "gpu4"))
    assert facts("09").unassigned == (4, 5, 6, 7)
    assert all(not facts(number).unassigned for number in SAMPLES if number != "09")


@pytest.mark.parametrize("number", SAMPLES)
def test_every_sample_is_symmetric_and_fits_a_tree(number):
    warnings = said(taken(text(number), DEVICES[number]))
    assert "fit no tree" not in warnings
    assert "in the row of" not in warnings
    assert "on this graph it uses" not in warnings


def test_relations_that_nvlink_hides():
    """Exact where a third device is unequally far, the bound of the third devices up to PHB, the affinity columns beyond."""
    far = complete(read_matrix(text("01")), [])
    assert far[2, 3] is Distance.PIX
    assert far[0, 2] is Distance.NODE
    assert far[0, 1] is Distance.NODE
    assert far[0, 4] is Distance.SYS
    assert far[4, 5] is Distance.NODE
    assert complete(read_matrix(text("05")), [])[0, 1] is Distance.NODE
    assert complete(read_matrix(text("04")), [])[0, 1] is Distance.PXB
    assert complete(read_matrix(text("09")), [])[0, 1] is Distance.PHB


def test_parser_facts():
    tabs = read_matrix(text("07"))
    assert tabs.affinities[0] == ("0-55,112-167", "0", "")
    assert tabs.affinities[7] == ("56-111,168-223", "1", "")
    assert read_matrix(text("02")).affinities[3] == ("0,2,4,6,8,10", "0", "")
    assert read_matrix(text("02")).nics == ("mlx5_0",)
    assert read_matrix(text("01")).affinities[4] == ("12-23,36-47", "", "")
    assert read_matrix(text("04")).affinities[6] == ("0-103", "0", "")
    assert read_matrix(text("11")).affinities[5] == ("0-63", "", "")
    assert read_matrix(text("12")).affinities[2] == ("0-47", "0", "")
    assert read_matrix(text("10")).affinities[4] == ("64-127,192-255", "1", "")
    b300 = read_matrix(text("08"))
    assert b300.gpus == tuple(f"GPU{k}" for k in range(8))
    assert b300.interfaces == (*(f"mlx5_{k}" for k in range(10, 18)), "mlx5_bond_0")
    assert read_matrix(text("03")).interfaces[1] == "mlx5_1"
    assert read_matrix(text("06")).distances[0, 8] is Distance.PIX


def test_terminal_codes_with_and_without_the_escape_character():
    for source in (text("08"), text("08").replace("\x1b", ""), text("08").replace("\n", "\r\n")):
        assert taken(source, "b200").facts == facts("08")


def test_boxes_quotes_and_prompts():
    table = text("12").replace("\n", "\n> ").replace("NODE", "SYS", 0)
    assert taken(f"user@host:~$ nvidia-smi topo -m\n> {table}\nuser@host:~$ GPU0 is fine\n", "l40s").facts == facts("12")
    lines = [line for line in text("11").splitlines() if "GPU" in line]
    boxed = "\n".join(["+---+---+", *(f"│ {line.replace('|', '│')} │" for line in lines), "└───┴───┘"])
    assert taken(boxed, "rtx-4090").facts == facts("11")


def test_old_drivers_say_soc():
    assert taken(text("10").replace("SYS", "SOC"), "rtx-3090").facts == facts("10")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("0-23,48-71 0 N/A", ("0-23,48-71", "0", "")),
        ("0 N/A", ("", "0", "")),
        ("3", ("", "3", "")),
        ("0-11", ("0-11", "", "")),
        ("0,2,4 0-1 1", ("0,2,4", "0-1", "1")),
        ("N/A N/A N/A", ("", "", "")),
        ("", ("", "", "")),
    ],
)
def test_affinity_between_blanks(row, expected):
    matrix = read_matrix(f"     GPU0 GPU1 CPU Affinity NUMA Affinity GPU NUMA ID\nGPU0 X NODE {row}\nGPU1 NODE X {row}\n")
    assert matrix.affinities == (expected, expected)


def test_affinity_between_tabs_may_be_empty():
    header = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    matrix = read_matrix(f"{header}GPU0\t X \tNODE\t\t1\t\tN/A\nGPU1\tNODE\t X \t0-3\t\t\t2\n")
    assert matrix.affinities == (("", "1", ""), ("0-3", "", "2"))


# which GPU it is


def bare(number: str) -> str:
    """The matrix without the line that names its source."""
    return "\n".join(line for line in text(number).splitlines() if not line.startswith("#"))


def test_the_usual_gpu_is_assumed_and_said():
    for number, device, other in (
        ("01", "v100-sxm2-32gb", "v100-sxm2-16gb"), ("02", "v100-sxm2-32gb", "v100-sxm2-16gb"), ("03", "a100-sxm-80gb", "a100-sxm-40gb"),
        ("05", "a100-pcie-80gb", "h100-pcie-80gb"), ("06", "h100-sxm-80gb", "h200-sxm-141gb"), ("09", "h100-sxm-80gb", "b200-sxm-180gb"),
    ):  # fmt: skip
        imported = taken(bare(number))
        assert imported.tree["node"]["device"] == device
        assert any(finding.path == "device" and device in finding.message and other in finding.message for finding in imported.warnings)
        assert imported.facts == facts(number)
    assert "device" not in [finding.path for finding in taken(text("06"), "h100").warnings]


def test_without_nvlink_the_gpu_must_be_named():
    message = refused(text("10"), None)
    assert "--gpu" in message
    assert "rtx-3090-24gb" in message
    with pytest.raises(ScenarioError, match="rtx-3090"):
        taken(text("10"), "rtx-3091")


def test_the_users_own_device_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = files.find("devices", "l40s").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(shipped.replace("pcie4-x16", "pcie3-x8"), encoding="utf-8")
    imported = taken(text("12"), "mine.yaml")
    assert imported.tree["node"]["device"] == str(tmp_path / "mine.yaml")
    assert {edge["kind"] for edge in imported.tree["node"]["edges"]} == {"pcie3-x8"}


def test_a_gpu_that_cannot_have_these_links():
    message = refused(text("06"), "a100")
    assert "NVLinks 18 (GPU1) + 18 (GPU2)" in message
    assert "more than the 12 of A100 SXM 80GB" in message
    assert "more than the 0 of L40S" in refused(text("02"), "l40s")
    fewer = text("06").replace("NV18", "NV8 ")
    assert "has 18 NVLinks, the matrix shows 8" in said(taken(fewer, "h100"))
    assert taken(fewer).tree["node"]["device"] == "h100-sxm-80gb"  # the words beside the matrix say so
    bare_matrix = bare("06").replace("NV18", "NV8 ")
    assert "say which: --gpu a800-sxm-80gb or h800-sxm-80gb" in refused(bare_matrix, None)
    unequal = text("03").replace("X      NV12", "X      NV11", 1).replace("GPU1    NV12", "GPU1    NV11")
    assert "= 84, more than the 12 of A100 SXM 80GB; behind switches all pairs would show the same, not 11 and 12" in refused(unequal)


def test_mesh_or_switch_depends_on_what_the_gpu_has():
    """Four GPUs with two links per pair: a mesh for GPUs with six links, switches for those with two."""
    titan = taken(text("02"), "titan-rtx")
    assert titan.facts.nvlink == "nvswitch"
    assert taken(text("02"), "v100").facts.nvlink == "mesh"


def test_two_visible_gpus_behind_switches_read_as_a_bridge():
    source = "     GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X NV18 0-47 0\nGPU1 NV18 X 0-47 0\n"
    imported = taken(source)
    assert imported.facts.nvlink == "bridges"
    assert imported.facts.nvlink_edges == ((0, 1, 18),)
    assert imported.facts.cpus == ((0, 1),)


def test_two_boards_with_switches_of_their_own():
    rows = [[("X" if a == b else "NV12" if a // 4 == b // 4 else "SYS") for b in range(8)] for a in range(8)]
    imported = taken(table(rows, [0] * 4 + [1] * 4), "a100")
    assert imported.facts.nvlink == "nvswitch"
    assert built(imported).machine(0).finder.nvlink("gpu0", "gpu4") is None
    assert built(imported).machine(0).finder.nvlink("gpu4", "gpu7") is not None


# options and what the file says


def test_options():
    imported = taken(text("06"), "h100", nic="ib-ndr", pcie="pcie4-x16", cpu="intel", name="our box")
    kinds = {edge["kind"] for edge in imported.tree["node"]["edges"]}
    assert kinds == {"nvlink4", "pcie4-x16", "socket-sapphire-rapids"}
    assert imported.tree["fabric"] == {"kind": "single-switch", "nics": ["nic0..7"], "link": "ib-ndr"}
    assert imported.tree["name"] == "our box"
    assert imported.warnings == ()
    assert built(imported).machine(0).cpu == "intel"
    assert taken(text("06"), "h100", cpu="socket-emerald-rapids").tree["node"]["edges"][-1]["kind"] == "socket-emerald-rapids"
    single = taken(text("12"), "l40s", cpu="amd")
    assert single.tree["node"]["cpu"] == "amd"
    assert built(single).machine(0).cpu == "amd"


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [("nic", "ib-hdrr", "ib-hdr"), ("pcie", "pcie9-x16", "pcie"), ("cpu", "intell", "intel"), ("nic", "nvlink4", "")],
)
def test_wrong_options(option, value, hint):
    with pytest.raises(TopologyError) as caught:
        taken(text("06"), "h100", **{option: value})
    (finding,) = caught.value.findings
    assert (finding.path, finding.value) == (option, value)
    assert hint in finding.suggestion


def test_link_kinds_are_those_that_parsim_knows():
    for number in SAMPLES:
        imported = taken(text(number), DEVICES[number], nic="roce-400g")
        for name, entry in imported.tree["links"].items():
            kind = standard_kind(name)
            assert kind is not None
            assert entry["source"]
        for link in built(imported).machine(0).links:
            kind = standard_kind(link.kind)
            assert kind is not None
            assert link.latency == pytest.approx(kind.latency)
            assert round(link.capacity / kind.capacity, 9) in (1, 2, 12, 18)


def test_unknown_things_are_said_in_the_warnings_and_in_the_file():
    imported = taken(text("07"), "h200")
    paths = [finding.path for finding in imported.warnings]
    assert paths == ["cpu", "fabric.nics", "nic"]
    assert "NIC1 (mlx5_1), NIC2 (mlx5_2), NIC7 (mlx5_7), NIC8 (mlx5_8)" in said(imported)
    for finding in imported.warnings:
        assert f"# check: {finding.message}" in imported.yaml
    assert "link" not in imported.tree["fabric"]
    with pytest.raises(TopologyError, match="link"):
        built(imported, nodes=2)
    assert "nic3 = mlx5_3" in imported.yaml


def test_machines_that_hide_their_tree_are_named():
    assert "relations unknown: every one is PHB" in said(taken(text("09"), "h100"))
    assert "NIC4 (mlx5_4), NIC5 (mlx5_5), NIC6 (mlx5_6), NIC7 (mlx5_7) stay unused" in said(taken(text("09"), "h100"))
    every = text("09").replace("PHB", "SYS")
    assert "relations unknown: every one is SYS" in said(taken(every, "h100"))
    assert "NUMA column names 1 node, the relations show 4" in said(taken(text("04"), "a100"))
    assert "1 CPU list for GPUs on 4 sides" in said(taken(text("11"), "rtx-4090"))
    for number in set(SAMPLES) - {"09"}:
        assert "relations unknown" not in said(taken(text(number), DEVICES[number]))


def test_dual_port_cards_share_one_slot():
    machine = built(taken(text("03"), "a100")).machine(0)
    first, second = machine.route("gpu0", "nic0"), machine.route("gpu1", "nic1")
    assert first is not None
    assert second is not None
    assert [machine.links[link].name for link in first.links] == ["gpu0->pcie0", "pcie0->pcie-card0", "pcie-card0->nic0"]
    assert set(first.links) & set(second.links)


# malformed matrices


def table(rows: list[list[str]], numa: list[int] | None = None, nics: int = 0) -> str:
    names = [f"GPU{k}" for k in range(len(rows) - nics)] + [f"NIC{k}" for k in range(nics)]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    for number, (name, row) in enumerate(zip(names, rows, strict=True)):
        node = "" if number >= len(rows) - nics or numa is None else str(numa[number])
        lines.append("\t".join([name, *row, f"{node}-{node}" if node else "", node]))
    return "\n".join(lines)


def test_of_two_different_relations_the_closer_one_is_taken():
    source = text("06").replace("NIC0    PIX", "NIC0    SYS")
    imported = taken(source, "h100")
    assert imported.facts == facts("06")
    warning = next(finding for finding in imported.warnings if finding.path == "GPU0 x NIC0")
    assert "PIX in the row of GPU0, SYS in the row of NIC0; PIX is taken" in warning.message
    assert warning.line == 11


def test_unknown_relations_are_named_with_their_place():
    message = refused(text("06").replace("NODE    PIX", "NODE    PIC", 1))
    assert "unknown relation 'PIC'" in message
    assert "GPU1 x NIC1" in message
    with pytest.raises(TopologyError) as caught:
        taken(text("06").replace("NODE    PIX", "NODE    PIC", 1), "h100")
    assert (caught.value.findings[0].line, caught.value.findings[0].value) == (4, "PIC")
    assert "Moore Threads" in refused("     GPU0 GPU1\nGPU0 X MPB\nGPU1 MPB X\n")
    assert "AMD" in refused("     GPU0 GPU1\nGPU0 X XGMI\nGPU1 XGMI X\n")
    many = refused(text("06").replace("NODE", "NOD"))
    assert many.count("unknown relation") == MOST_PROBLEMS
    assert re.search(r"and [0-9]+ more$", many)


def test_rows_of_nics_may_be_missing():
    lines = text("03").splitlines()
    cut = "\n".join(line for line in lines if not line.startswith("NIC"))
    imported = taken(cut, "a100")
    assert "no row for NIC0, NIC1" in said(imported)
    assert imported.facts.complexes == facts("03").complexes
    assert imported.facts.nics_of == facts("03").nics_of
    assert imported.facts.cpus == facts("03").cpus
    whole = text("03")
    half = whole[: whole.index("NIC4    SYS") + 40]
    assert "the row of NIC4 ends after" in said(taken(half, "a100"))
    assert taken(half, "a100").facts.complexes == facts("03").complexes


def test_rows_of_gpus_may_not():
    lines = text("06").splitlines()
    assert "GPU7 has a column but no row" in refused("\n".join(line for line in lines if not line.startswith("GPU7")))
    cut = "\n".join(line[:60] if line.startswith("GPU2") else line for line in lines)
    assert "the row of GPU2 ends after" in refused(cut)
    assert "the columns are shifted" in refused(
        "\n".join(line.replace("GPU2 ", "GPU2 SYS ") if line.startswith("GPU2") else line for line in lines)
    )


def test_what_is_no_matrix():
    assert "no topology matrix" in refused("")
    assert "no topology matrix" in refused("nvidia-smi: command not found")
    assert "without a header line" in refused("GPU0 X NV12\nGPU1 NV12 X\n")
    assert "several matrices" in refused(text("12") + text("12"))
    assert "second row" in refused("     GPU0 GPU1\nGPU0 X SYS\nGPU0 X SYS\nGPU1 SYS X\n")
    assert "no column of that name" in refused("     GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\nGPU2 SYS SYS\n")
    assert "unknown column 'FPGA0'" in refused("     GPU0 GPU1 FPGA0\nGPU0 X SYS SYS\nGPU1 SYS X SYS\n")
    assert "stands twice" in refused("     GPU0 GPU0\nGPU0 X SYS\n")
    assert "no GPU" in refused("     GPU0 NIC0\nGPU0 X NV4\nNIC0 NV4 X\n")
    wide = ["X" if column == row else "SYS" for row in range(1) for column in range(130)]
    assert "at most 128" in refused("\n".join([" ".join(f"GPU{k}" for k in range(130)), "GPU0 " + " ".join(wide)]) + huge())


def huge() -> str:
    return "".join(f"\nGPU{row} " + " ".join("X" if column == row else "SYS" for column in range(130)) for row in range(1, 130))


def test_parts_of_gpus_are_left_out():
    source = (
        "     GPU0 MIG 0.0 MIG 0.1 GPU1 CPU Affinity NUMA Affinity\n"
        "GPU0 X PIX PIX NODE 0-15 0\nMIG 0.0 PIX X PIX NODE 0-15 0\nMIG 0.1 PIX PIX X NODE 0-15 0\nGPU1 NODE NODE NODE X 0-15 0\n"
    )
    imported = taken(source, "a100-pcie")
    assert imported.facts.gpus == ("GPU0", "GPU1")
    assert "left out: MIG 0.0, MIG 0.1" in said(imported)


def test_relations_that_fit_no_tree():
    """GPU0-GPU1 and GPU1-GPU2 share switches, GPU0-GPU2 do not: impossible on a tree."""
    rows = [["X", "PIX", "SYS"], ["PIX", "X", "PIX"], ["SYS", "PIX", "X"]]
    imported = taken(table(rows, [0, 0, 0]), "l40s")
    assert "the relations fit no tree: GPU0-GPU2 is SYS, but both are PIX or closer to GPU1" in said(imported)
    assert imported.facts.complexes == (("gpu0", "gpu1", "gpu2"),)


def test_nothing_tells_what_nvlink_hides():
    imported = taken("     GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n", "rtx-3090")
    assert "NVLink hides how far GPU0-GPU1 are apart" in said(imported)
    assert imported.facts.cpus == ((0, 1),)


def test_switches_below_a_switch():
    """Two switches with two GPUs and a NIC each below a third one; the NIC on one's own switch is the nearer one."""
    near = {0: 0, 1: 0, 4: 0, 2: 1, 3: 1, 5: 1}
    rows = [["X" if a == b else "PIX" if near[a] == near[b] else "PXB" for b in range(6)] for a in range(6)]
    imported = taken(table(rows, [0] * 4, nics=2), "l40s", nic="ib-hdr")
    assert imported.facts.complexes == (("gpu0", "gpu1", "gpu2", "gpu3", "nic0", "nic1"),)
    assert imported.facts.nics_of == ((0,), (0,), (1,), (1,))
    assert "PXB joins several switches" in said(imported)
    machine = built(imported).machine(0)
    assert machine.owned_ports == ((0,), (0,), (1,), (1,))
    across, inside = machine.between(0, 2), machine.between(0, 1)
    assert across is not None
    assert inside is not None
    assert [machine.links[link].name for link in across.links] == [
        "gpu0->pcie-leaf0", "pcie-leaf0->pcie0", "pcie0->pcie-leaf1", "pcie-leaf1->gpu2",
    ]  # fmt: skip
    assert len(inside.links) == 2


def test_a_nic_on_the_other_socket_is_kept_if_it_is_the_only_one():
    rows = [["X", "NODE", "SYS"], ["NODE", "X", "SYS"], ["SYS", "SYS", "X"]]
    imported = taken(table(rows, [0, 0], nics=1), "l40s")
    assert imported.facts.excluded == ()
    assert imported.facts.cpus == ((0, 1), ())
    assert imported.facts.nics_of == ((0,), (0,))


def test_a_graph_that_cannot_tell_two_nics_apart_is_reported():
    """PHB and NODE both lead through the CPU vertex, so a NIC on the GPU's own host bridge is no nearer than its neighbour."""
    rows = [["X", "NODE", "PHB", "NODE"], ["NODE", "X", "PHB", "NODE"], ["PHB", "PHB", "X", "NODE"], ["NODE", "NODE", "NODE", "X"]]
    imported = taken(table(rows, [0, 0], nics=2), "l40s")
    assert imported.facts.nics_of == ((0,), (0,))
    assert "the nearest NICs of gpu1 are nic0; on this graph it uses nic1" in said(imported)


def test_names_cannot_break_the_file():
    imported = taken(text("12"), "l40s", name='a: "b" #c\n- x')
    assert imported.tree["name"] == 'a: "b" #c - x'
    assert taken(text("12"), "l40s", name="null").tree["name"] == "null"


# laws


@st.composite
def trees(draw):
    """A random machine: sockets, host bridges, switches, and a device per slot; its relations are ultrametric by construction."""
    slots = draw(st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=2, max_size=9))
    count = draw(st.integers(1, len(slots)))
    return sorted(slots[:count]), slots[count:]


def relation(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    shared = next((level for level in range(4) if a[level] != b[level]), 4)
    return ("SYS", "NODE", "PHB", "PXB", "PIX")[shared]


@settings(max_examples=40, deadline=None)
@given(trees())
def test_the_tree_gives_back_its_own_relations(machine):
    first, second = machine
    slots = first + second
    rows = [["X" if a == b else relation(slots[a], slots[b]) for b in range(len(slots))] for a in range(len(slots))]
    matrix = read_matrix(table(rows, [slot[0] for slot in first], nics=len(second)))
    tree = pcie_tree(matrix)
    assert not [finding for finding in tree.findings if "fit no tree" in finding.message]
    for a, b in combinations(range(len(slots)), 2):
        same_cpu = any(a in cpu and b in cpu for cpu in tree.cpus)
        same_switch = any(a in switch and b in switch for switch in (*tree.switches, *(c for c in tree.cards if len(c) > 1)))
        shared = any({a - len(first), b - len(first)} <= {port - len(first) for port in card} for card in tree.cards)
        assert same_cpu == (rows[a][b] != "SYS")
        assert (same_switch or shared) == (rows[a][b] in ("PIX", "PXB"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_text_crashes_the_importer(data):
    """Whatever is cut out of or put into a sample, it is imported or refused with findings."""
    source = text(data.draw(st.sampled_from(["02", "08", "11", "12"])))
    start = data.draw(st.integers(0, len(source)))
    end = data.draw(st.integers(start, min(len(source), start + 200)))
    source = source[:start] + data.draw(st.text(max_size=10)) + source[end:]
    try:
        imported = taken(source, "v100-sxm2-16gb")
    except TopologyError:
        return
    assert built(imported).gpus == len(imported.facts.gpus)

"""Import of NCCL's topology XML.

The machines are written here in small; they have the shape of public ones: the dump of a DGX A100 with four NUMA nodes per
socket, dumps of HGX H100 and H200 machines (5 + 5 + 4 + 4 links to four NVSwitches), and the files that Azure (ND v2, v4, v5,
NC v4: Azure/azhpc-images) and AWS (p4d, p5: aws/aws-ofi-nccl) give to NCCL, which list bare PCI elements.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import TopologyError
from parsim.hardware.fabric.builder import build_cluster
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.fabric.node import Node
from parsim.interop.description import PCI_DEVICES, Imported, device_lookup
from parsim.interop.nccl_xml import import_nccl_xml
from parsim.scenario import files

GEN4, GEN5 = "16.0 GT/s PCIe", "32.0 GT/s PCIe"
AMD = {"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": 143, "modelid": 49}
INTEL = {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": 6, "modelid": 143}


def element(tag: str, *children: str, **attributes: object) -> str:
    written = "".join(f' {key.rstrip("_")}="{value}"' for key, value in attributes.items())
    return f"<{tag}{written}>{''.join(children)}</{tag}>"


def pci(bus: str, kind: str, *children: str, speed: str | None = GEN4, width: int | None = 16, **more: object) -> str:
    links = {key: value for key, value in (("link_speed", speed), ("link_width", width)) if value is not None}
    return element("pci", *children, busid=bus, class_=kind, **links, **more)


def switch(bus: str, *children: str, **more: Any) -> str:
    return pci(bus, "0x060400", *children, **more)


def gpu(bus: str, dev: int, *nvlinks: str, sm: int = 80, device: str = "0x20b2", **more: Any) -> str:
    inside = element("gpu", *nvlinks, dev=dev, sm=sm, rank=dev, gdr=1)
    return pci(bus, "0x030200", inside, vendor="0x10de", device=device, **more)


def nic(bus: str, dev: int, name: str = "", speed: int = 200_000, kind: str = "0x020700", guid: str = "", **more: Any) -> str:
    net = element(
        "net", name=name or f"mlx5_{dev}", dev=dev, speed=speed, port=1, latency="0.000000", guid=guid or f"0x{dev + 16:x}", gdr=1
    )
    return pci(bus, kind, element("nic", net), vendor="0x15b3", **more)


def nvlink(target: str, count: int, tclass: str = "0x068000") -> str:
    return element("nvlink", target=target, count=count, tclass=tclass)


def cpu(numa: int, *children: str, **attributes: object) -> str:
    return element("cpu", *children, numaid=numa, **(attributes or AMD))


def system(*cpus: str, version: int = 1) -> str:
    return element("system", *cpus, version=version)


def dgx_a100() -> str:
    """Two EPYCs as eight NUMA nodes; the GPUs hang on nodes 3, 1, 7, 5, two with two NICs on each switch; storage NICs elsewhere."""
    sixfold = [nvlink(f"0000:c{k}:00.0", 2) for k in range(4, 10)]
    cpus = []
    for pair, (numa, bus) in enumerate(((3, 0x01), (1, 0x40), (7, 0x80), (5, 0xB0))):
        below = [gpu(f"0000:{bus + 6 + k:02x}:00.0", 2 * pair + k, *sixfold, device="0x20b0") for k in range(2)]
        below += [nic(f"0000:{bus + 10 + k:02x}:00.0", 2 * pair + k) for k in range(2)]
        cpus.append(cpu(numa, switch(f"0000:{bus:02x}:00.0", *below)))
    storage = nic("0000:61:00.0", 8, guid="0xaa") + nic("0000:61:00.1", 9, guid="0xaa")
    return system(*cpus, cpu(4, switch("0000:60:00.0", storage)))


def hgx_h200() -> str:
    """One GPU and one NIC on each of eight switches; four NVSwitches."""
    four = [nvlink(f"0000:0{k}:00.0", count) for k, count in ((7, 5), (6, 5), (5, 4), (8, 4))]
    halves = []
    for numa in range(2):
        below = []
        for k in range(4 * numa, 4 * numa + 4):
            leaves = gpu(f"0000:{16 * k + 24:02x}:00.0", k, *four, sm=90, device="0x2335", speed=GEN5)
            leaves += nic(f"0000:{16 * k + 25:02x}:00.0", k, speed=400_000, kind="0x020000")
            below.append(switch(f"0000:{16 * k + 22:02x}:00.0", leaves, speed=GEN5))
        halves.append(cpu(numa, *below, **{**INTEL, "modelid": 207}, host_hash="0x16fe"))
    return system(*halves)


def nd_v4() -> str:
    """Bare elements: four NUMA nodes with a fake switch, two GPUs and two NICs each; bus order is not NUMA order."""
    nodes = []
    for numa, (gpus, nics) in enumerate((((3, 4), (3, 4)), ((1, 2), (1, 2)), ((0xD, 0xE), (7, 8)), ((0xB, 0xC), (5, 6)))):
        leaves = ""
        for a, b in zip(gpus, nics, strict=True):
            leaves += pci(f"{a:04x}:00:00.0", "0x030200", speed="16 GT/s") + pci(f"01{b:02x}:00:00.0", "0x020700", speed="16 GT/s")
        nodes.append(cpu(numa, switch(f"ffff:ff:0{numa + 1}.0", leaves, speed="16 GT/s")))
    return system(*nodes)


def nd_v5() -> str:
    halves = []
    for numa, buses in enumerate(((1, 2, 3, 8), (9, 10, 11, 12))):
        below = ""
        for k, bus in enumerate(buses, 4 * numa + 1):
            leaves = pci(f"{bus:04x}:00:00.0", "0x030200", speed=GEN5) + pci(f"01{k:02x}:00:00.0", "0x020700", speed=GEN5)
            below += switch(f"ffff:ff:{k:02x}.0", leaves, speed=GEN5, vendor="0x0000", device="0x0000")
        halves.append(cpu(numa, below, **INTEL))
    return system(*halves)


def nc_v4() -> str:
    """Four GPUs without stated speed on a node each; every GPU lists NVLinks to itself; one Ethernet NIC without PCI."""
    ethernet = element("nic", element("net", name="eth0", dev=0, speed=100_000, port=0, latency="0.0", guid="0x0", gdr=0))
    return system(
        *(
            cpu(k, gpu(f"000{k + 1}:00:00.0", k, nvlink(f"000{k + 1}:00:00.0", 12, "0x030200"), device="0x20b5", speed="", width=0),
                "" if k else ethernet)
            for k in range(4)
        )
    )  # fmt: skip


def taken(source: str, device: str | None = None, **options: Any) -> Imported:
    return import_nccl_xml(source, **{"device": device, "nic": None, "pcie": None, "cpu": None, "name": "mine", **options})


def built(imported: Imported, **options: Any) -> Cluster:
    return build_cluster(imported.tree, device_lookup=device_lookup(), **options)


def machine(imported: Imported) -> Node:
    return built(imported).machine(0)


def said(imported: Imported) -> str:
    return "\n".join(map(str, imported.warnings))


def refused(source: str, device: str | None = "a100", **options: Any) -> str:
    with pytest.raises(TopologyError) as caught:
        taken(source, device, **options)
    return str(caught.value)


def hops(node: Node, source: str, target: str) -> list[str]:
    route = node.route(source, target)
    assert route is not None
    return [node.links[link].name for link in route.links]


def test_dgx_a100_dump():
    imported = taken(dgx_a100())
    facts = imported.facts
    assert imported.tree["node"]["device"] == "a100-sxm-40gb"
    assert facts.nvlink == "nvswitch"
    assert facts.nvlinks == (12,) * 8
    assert facts.cpus == ((0, 1), (2, 3), (4, 5), (6, 7), ())
    assert facts.complexes == tuple((f"gpu{k}", f"gpu{k + 1}", f"nic{k}", f"nic{k + 1}") for k in (0, 2, 4, 6))
    assert facts.nics_of == tuple((k,) for k in range(8))
    assert facts.excluded == (8, 9)
    assert (8, 9) in facts.cards
    assert len(facts.cards) == 9
    assert imported.tree["fabric"] == {"kind": "single-switch", "nics": ["nic0..7"], "link": "ib-hdr"}
    assert "left out of the fabric, being on no GPU's switch: nic8 (mlx5_8), nic9 (mlx5_9)" in said(imported)
    assert len(imported.warnings) == 1
    node = machine(imported)
    assert node.graph.edges["gpu0", "nvswitch"]["link"].capacity == 240e9
    assert node.graph.edges["pcie0", "cpu0"]["link"].capacity == 24e9
    assert node.graph.edges["cpu0", "cpu4"]["link"].capacity == 16e9
    assert hops(node, "gpu2", "nic3") == ["gpu2->pcie1", "pcie1->nic3"]
    assert built(imported, nodes=4).gpus == 32


def test_hgx_h200_dump():
    imported = taken(hgx_h200())
    assert imported.tree["node"]["device"] == "h200-sxm-141gb"
    assert imported.facts.nvlinks == (18,) * 8
    assert imported.facts.complexes == tuple((f"gpu{k}", f"nic{k}") for k in range(8))
    assert imported.tree["fabric"]["link"] == "roce-400g"
    assert imported.warnings == ()
    assert imported.tree["node"]["edges"][-1] == {"from": "cpu0", "to": "cpu1", "kind": "socket-emerald-rapids"}
    assert machine(imported).cpu == "intel"
    assert machine(imported).graph.edges["gpu7", "nvswitch"]["link"].capacity == pytest.approx(370.8e9)


def test_bare_elements_are_what_their_class_says():
    """Azure ND v4: GPUs are numbered by bus id, so GPU 0 is on NUMA node 1."""
    imported = taken(nd_v4(), "a100-80gb", nic="ib-hdr")
    facts = imported.facts
    assert facts.gpus == tuple(f"{bus}:00:00.0" for bus in ("0001", "0002", "0003", "0004", "000b", "000c", "000d", "000e"))
    assert facts.cpus == ((2, 3), (0, 1), (6, 7), (4, 5))
    assert facts.nics_of == tuple((k,) for k in range(8))
    assert facts.nvlinks == (12,) * 8
    assert "12 per GPU to NVSwitches are assumed" in said(imported)
    assert machine(imported).graph.edges["gpu0", "nvswitch"]["link"].capacity == 240e9
    assert "pcie4-x16" in imported.tree["links"]
    assert built(imported, nodes=2).gpus == 16


def test_nd_v5():
    imported = taken(nd_v5(), "h100", nic="ib-ndr")
    assert imported.facts.complexes == tuple((f"gpu{k}", f"nic{k}") for k in range(8))
    assert imported.facts.cpus == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert imported.tree["node"]["edges"][-1]["kind"] == "socket-sapphire-rapids"
    assert [finding.path for finding in imported.warnings] == ["nvlink"]
    assert "--nic" in said(taken(nd_v5(), "h100"))


def test_files_that_do_not_say_which_gpu_it_is():
    assert "which they are; name it: --gpu" in refused(nd_v4(), None)


def test_links_to_oneself_are_ignored():
    """Azure NC v4: no speed and no width either, which NCCL takes for PCIe 3 x16."""
    imported = taken(nc_v4())
    assert imported.tree["node"]["device"] == "a100-pcie-80gb"
    assert imported.facts.nvlink == "none"
    assert imported.facts.nvlinks == (0, 0, 0, 0)
    assert "NVLinks of gpu0, gpu1, gpu2, gpu3 lead to the GPU itself" in said(imported)
    assert "4 PCIe links state no speed: PCIe 3 is taken" in said(imported)
    assert "gdr=0" in said(imported)
    assert imported.facts.nics == ("eth0",)
    assert imported.facts.nics_of == ((0,),) * 4
    node = machine(imported)
    assert node.graph.edges["gpu0", "cpu0"]["link"].capacity == 12e9
    assert node.graph.edges["nic0", "cpu0"]["link"].capacity == 5000e9
    assert imported.tree["fabric"]["link"] == "ethernet-100g"
    assert machine(taken(nc_v4(), pcie="pcie4-x16")).graph.edges["gpu0", "cpu0"]["link"].capacity == 24e9


def test_mesh_of_v100s_cannot_be_known_from_bare_elements():
    leaves = [pci(f"000{k}:00:00.0", "0x030200", speed="16 GT/s") for k in range(1, 9)]
    bare = system(cpu(0, *leaves[:4], **{**INTEL, "modelid": 85}), cpu(1, *leaves[4:], **{**INTEL, "modelid": 85}))
    imported = taken(bare, "v100-32gb")
    assert imported.facts.nvlink == "none"
    assert "how these GPUs are meshed is unknown" in said(imported)
    assert imported.tree["node"]["edges"][-1]["kind"] == "socket-skylake"
    assert imported.facts.root_ports == tuple(f"gpu{k}" for k in range(8))


def test_direct_links():
    def pair(a: int, b: int, count: int = 12, back: int = 12) -> str:
        ends = f"0000:0{a}:00.0", f"0000:0{b}:00.0"
        left = gpu(ends[0], a, nvlink(ends[1], count, "0x030200"), device="0x20b5")
        return left + gpu(ends[1], b, *([nvlink(ends[0], back, "0x030200")] if back else []), device="0x20b5")

    bridges = taken(system(cpu(0, pair(0, 1), pair(2, 3))))
    assert bridges.facts.nvlink == "bridges"
    assert bridges.facts.nvlink_edges == ((0, 1, 12), (2, 3, 12))
    uneven = taken(system(cpu(0, pair(0, 1, 12, 8))))
    assert uneven.facts.nvlink_edges == ((0, 1, 12),)
    assert "gpu0 lists 12 NVLinks to gpu1, gpu1 lists 8 to gpu0; 12 are taken" in said(uneven)
    one_sided = taken(system(cpu(0, pair(0, 1, 12, 0))))
    assert one_sided.facts.nvlink_edges == ((0, 1, 12),)
    stranger = gpu("0000:01:00.0", 0, nvlink("0000:77:00.0", 12, "0x030200")) + gpu("0000:02:00.0", 1)
    assert "which is no GPU of the file" in said(taken(system(cpu(0, stranger))))
    ring = "".join(
        gpu(f"0000:0{k}:00.0", k, *(nvlink(f"0000:0{other % 4}:00.0", 2, "0x030200") for other in (k + 1, k + 3)), sm=70, device="0x1db1")
        for k in range(4)
    )
    mesh = taken(system(cpu(0, ring)))
    assert mesh.facts.nvlink == "mesh"
    assert mesh.facts.nvlink_edges == ((0, 1, 2), (0, 3, 2), (1, 2, 2), (2, 3, 2))
    assert mesh.facts.nvlinks == (4, 4, 4, 4)


def test_more_links_than_the_gpu_has():
    message = refused(hgx_h200(), "a100")
    assert "gpu0 has 18 NVLinks to GPUs and switches, more than the 12 of A100 SXM 80GB" in message


def test_one_gpu_without_links_is_named():
    cured = gpu("0000:01:00.0", 0, nvlink("fffffff:ff:ff.0", 12)) + gpu("0000:02:00.0", 1)
    imported = taken(system(cpu(0, cured)))
    assert "no NVLink at gpu1, though other GPUs have some" in said(imported)
    assert imported.facts.nvlinks == (12, 0)


@pytest.mark.parametrize(
    ("pci_device", "name", "rate"),
    [("0x74a1", "mi300x-192gb", 45.5e9), ("0x74a5", "mi325x-256gb", 45.5e9), ("0x75a3", "mi355x-288gb", 57.6e9)],
)
def test_amd_gpus(pci_device, name, rate):
    """ROCm's dump: xgmi elements, classes of AMD."""

    def entry(k: int) -> str:
        links = [element("xgmi", target=f"0000:0{o}:00.0", count=1, tclass="0x120000") for o in range(8) if o != k]
        inside = element("gpu", *links, dev=k, sm=94, gcn="gfx942", arch=1, rank=k, gdr=1)
        return pci(f"0000:0{k}:00.0", "0x120000", inside, vendor="0x1002", device=pci_device, speed=GEN5)

    imported = taken(system(cpu(0, *(entry(k) for k in range(8)))))
    assert imported.tree["node"]["device"] == name
    assert imported.facts.nvlink == "mesh"
    assert imported.facts.nvlinks == (7,) * 8
    assert machine(imported).graph.edges["gpu0", "gpu5"]["link"].capacity == rate


def test_pci_devices_are_in_the_catalogue():
    assert set(PCI_DEVICES.values()) <= set(files.names("devices"))


def test_broadcom_switches_of_two_levels_are_one():
    def box(*subsystems: str) -> str:
        vendor = {"vendor": "0x1000", "device": "0xc030", "subsystem_vendor": "0x1000"}
        lower = [
            switch(f"0000:1{k}:00.0", gpu(f"0000:2{k}:00.0", k, sm=90, device="0x2331"), speed=GEN5, **vendor, subsystem_device=subsystem)
            for k, subsystem in enumerate(subsystems[1:])
        ]
        return system(cpu(0, switch("0000:01:00.0", *lower, speed=GEN5, **vendor, subsystem_device=subsystems[0])))

    flat = taken(box("0x0025", "0x1025", "0x1025"))
    assert hops(machine(flat), "gpu0", "gpu1") == ["gpu0->pcie0", "pcie0->gpu1"]
    deep = taken(box("0x0025", "0x0025", "0x1025"))
    assert len(hops(machine(deep), "gpu0", "gpu1")) == 3


def test_empty_switches_and_other_devices_disappear():
    disk = switch("0000:30:00.0", pci("0000:31:00.0", "0x010802"))
    chip = pci("0000:32:00.0", "0x068000")
    imported = taken(system(cpu(0, gpu("0000:01:00.0", 0), disk, chip), cpu(1, switch("0000:40:00.0"))))
    assert imported.tree["node"]["vertices"] == ["cpu0"]
    assert imported.facts.cpus == ((0,),)


def test_cards():
    """Two entries of one card, two functions of one device, and NICs with one guid share a slot; NICs with guids of their own do not."""
    nets = [element("net", name=f"mlx5_{k}", dev=k, speed=200_000, port=k + 1, guid="0x5", gdr=1) for k in range(2)]
    one = pci("0000:50:00.0", "0x020700", element("nic", *nets))
    functions = pci("0000:51:00.0", "0x020700") + pci("0000:51:00.1", "0x020700")
    alone = nic("0000:52:00.0", 7, guid="0x7") + nic("0000:53:00.0", 8, guid="0x8")
    box = system(cpu(0, switch("0000:01:00.0", gpu("0000:02:00.0", 0), one, functions, alone)))
    imported = taken(box)
    assert sorted(len(card) for card in imported.facts.cards) == [1, 1, 2, 2]
    assert imported.facts.nics.count("mlx5_0") == 1


def test_a_nic_listed_under_every_cpu_is_one():
    ethernet = element("nic", element("net", name="eth0", dev=0, speed=10_000, port=0, guid="0x0", gdr=0))
    imported = taken(system(cpu(0, gpu("0000:01:00.0", 0), ethernet), cpu(1, gpu("0000:02:00.0", 1), ethernet)))
    assert imported.facts.nics == ("eth0",)
    assert imported.facts.nics_of == ((0,), (0,))
    assert imported.tree["fabric"]["link"] == "ethernet-10g"
    node = machine(imported)
    assert hops(node, "gpu1", "nic0") == ["gpu1->cpu1", "cpu1->nic0"]


def test_sideways_links_between_switches():
    left = switch("0000:01:00.0", gpu("0000:02:00.0", 0), element("pcilink", target="0000:11:00.0"))
    right = switch("0000:11:00.0", gpu("0000:12:00.0", 1), element("pcilink", target="0000:01:00.0"))
    imported = taken(system(cpu(0, left, right)), "a100-pcie")
    assert hops(machine(imported), "gpu0", "gpu1") == ["gpu0->pcie0", "pcie0->pcie1", "pcie1->gpu1"]
    lost = switch("0000:01:00.0", gpu("0000:02:00.0", 0), element("pcilink", target="0000:99:00.0"))
    assert "is left out: one of them is not there" in said(taken(system(cpu(0, lost)), "a100-pcie"))


def test_links_to_the_cpu():
    grace = element("gpu", nvlink("fffffff:ff:ff.0", 18), element("c2c", bw=44712, count=5), dev=0, sm=100, rank=0, gdr=1)
    blackwell = pci("0008:06:00.0", "0x030200", grace, vendor="0x10de", device="0x2941", speed=GEN5)
    arm = {"arch": "arm64", "vendor": "ARM"}
    imported = taken(system(cpu(0, switch("0008:01:00.0", blackwell, speed=GEN5), **arm)))
    assert imported.tree["node"]["device"] == "gb200-186gb"
    assert imported.tree["node"]["cpu"] == "arm"
    assert machine(imported).graph.edges["gpu0", "cpu0"]["link"].capacity == pytest.approx(223.56e9)
    assert machine(taken(system(cpu(0, blackwell, **arm)))).graph.edges["gpu0", "cpu0"]["link"].kind == "c2c"
    power = gpu("0004:04:00.0", 0, nvlink("0004:00:00.0", 3, "0x068001"), sm=70, device="0x1db1")
    nine = taken(system(cpu(0, switch("0004:03:00.0", power), arch="ppc64")))
    assert machine(nine).graph.edges["gpu0", "cpu0"]["link"].capacity == pytest.approx(3 * 22.5e9)
    assert machine(nine).cpu == "ibm"


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        (AMD, "socket-amd"),
        ({**INTEL, "modelid": 79}, "socket-broadwell"),
        ({**INTEL, "modelid": 85}, "socket-skylake"),
        ({**INTEL, "modelid": 106}, "socket-skylake"),
        (INTEL, "socket-sapphire-rapids"),
        ({**INTEL, "modelid": 207}, "socket-emerald-rapids"),
        ({**INTEL, "modelid": 173}, "socket-emerald-rapids"),
        ({"arch": "ppc64"}, "socket-power9"),
        ({"arch": "arm64"}, "socket-arm"),
        ({"arch": "x86_64", "vendor": "  Shanghai  ", "familyid": 7, "modelid": 91}, "socket-zhaoxin-yongfeng"),
        ({"arch": "x86_64", "vendor": "CentaurHauls", "familyid": 7, "modelid": 1}, "socket-zhaoxin"),
    ],
)
def test_sockets_by_cpu_model(attributes, kind):
    box = system(*(cpu(k, gpu(f"0000:0{k}:00.0", k), **attributes) for k in range(2)))
    imported = taken(box, "a100-pcie")
    assert imported.tree["node"]["edges"][-1]["kind"] == kind
    assert machine(imported).gpus == 2


def test_unknown_and_different_cpus():
    unknown = {"arch": "x86_64", "vendor": "Mystery"}
    imported = taken(system(*(cpu(k, gpu(f"0000:0{k}:00.0", k), **unknown) for k in range(2))), "a100-pcie")
    assert "the CPUs are unknown" in said(imported)
    mixed = system(cpu(0, gpu("0000:01:00.0", 0)), cpu(1, gpu("0000:02:00.0", 1), **INTEL))
    assert "the CPUs differ" in said(taken(mixed, "a100-pcie"))
    assert taken(mixed, "a100-pcie", cpu="intel").tree["node"]["edges"][-1]["kind"] == "socket-sapphire-rapids"


@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [("2.5 GT/s PCIe", 16, 3.0e9), ("8 GT/s", 16, 12e9), ("8.0 GT/s PCIe", 8, 6e9), ("16 GT/s", 0, 24e9),
     (GEN5, 16, 48e9), ("64.0 GT/s PCIe", 16, 96e9), ("16.0 GT/s PCIe", 12, 18e9), ("Unknown speed", 16, 12e9), (None, None, 12e9)],
)  # fmt: skip
def test_pcie_speed_is_width_times_speed_over_80(speed, width, rate):
    imported = taken(system(cpu(0, gpu("0000:01:00.0", 0, speed=speed, width=width))))
    assert machine(imported).graph.edges["gpu0", "cpu0"]["link"].capacity == pytest.approx(rate)


def test_uplinks_that_state_nonsense_are_named():
    slow = switch("0000:01:00.0", gpu("0000:02:00.0", 0), speed="2.5 GT/s PCIe", width=1)
    assert "the uplink of pcie0 (0000:01:00.0) is pcie1-x1, 0.1875 GB/s" in said(taken(system(cpu(0, slow))))


@pytest.mark.parametrize(
    ("name", "kind", "speed", "link", "rate"),
    [
        ("mlx5_0", "0x020700", 100_000, "ib-edr", 0.945 * 12.5e9),
        ("mlx5_0", "0x020000", 200_000, "roce-200g", 0.94 * 25e9),
        ("rdmap79s0", "0x020000", 100_000, "efa-100g", 0.95 * 12.5e9),
        ("rdmap79s0", "0x020000", 200_000, "efa-200g", 0.95 * 25e9),
        ("eth0", "0x020000", 25_000, "ethernet-25g", 2.8125e9),
        ("ens5", "0x020000", 50_000, "ethernet-50g", 0.6 * 6.25e9),
        ("ens5", "0x020000", -1, "ethernet-10g", 0.9 * 1.25e9),
        ("ens5", "0x020000", 2_500, "ethernet-2-5g", 0.9 * 0.3125e9),
    ],
)
def test_network_kind_by_family_and_speed(name, kind, speed, link, rate):
    imported = taken(system(cpu(0, gpu("0000:01:00.0", 0), nic("0000:03:00.0", 0, name, speed, kind))))
    assert imported.tree["fabric"]["link"] == link
    fabric = built(imported, nodes=2).fabric
    assert fabric is not None
    assert fabric.link_kind.capacity == pytest.approx(rate)
    waiting = {"efa": (20e-6, 15e-6), "roce": (5e-6, 0.0), "ib": (0.0, 0.0), "ethernet": (25e-6, 0.0)}
    assert (fabric.message_latency, fabric.handshake) == pytest.approx(waiting[link.partition("-")[0]])


def test_four_nics_per_gpu():
    """The shape of AWS p5: one GPU and four EFA NICs with eight lanes each per switch, no NVLinks in the file."""
    halves = []
    for k in range(4):
        nics = "".join(nic(f"0000:{k}{n}:00.0", 4 * k + n, f"rdmap{k}{n}s0", 100_000, "0x020000", width=8) for n in range(1, 5))
        inside = element("gpu", dev=k, sm=90, rank=k, gdr=1)
        halves.append(switch(f"0000:0{k}:00.0", pci(f"0000:{k}f:00.0", "0x030200", inside, speed=GEN5), nics.replace("0x15b3", "0x1d0f")))
    imported = taken(system(cpu(0, *halves)))
    assert imported.tree["node"]["device"] == "h100-sxm-80gb"
    assert "h100-sxm-80gb is assumed from no NVLink and sm 90" in said(imported)
    assert imported.facts.nics_of == tuple(tuple(range(4 * k, 4 * k + 4)) for k in range(4))
    assert imported.tree["fabric"]["link"] == "efa-100g"
    assert machine(imported).graph.edges["nic5", "pcie1"]["link"].capacity == 12e9


def test_nics_of_several_kinds():
    box = system(cpu(0, gpu("0000:01:00.0", 0), nic("0000:03:00.0", 0), nic("0000:04:00.0", 1), nic("0000:05:00.0", 2, speed=400_000)))
    imported = taken(box)
    assert "the NICs differ (ib-hdr, ib-ndr); the fabric has one kind, ib-hdr" in said(imported)


def test_the_yaml_is_the_tree_and_names_cannot_break_it():
    imported = taken(dgx_a100().replace("mlx5_0", "a&#10;b: [&#x85;&lt;"), name="x: y\n")
    assert files.parse_text(imported.yaml, "mine").tree == imported.tree
    assert imported.facts.nvlinks == (12,) * 8


def test_files_that_are_refused():
    assert "document type" in refused('<?xml version="1.0"?><!DOCTYPE system [<!ENTITY a "b">]><system version="1">&a;</system>')
    assert "lstopo" in refused('<!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0"/>')
    assert "expected <system>" in refused("<graphs version='1'/>")
    assert "NCCL_GRAPH_DUMP_FILE" in refused("<graphs version='1'/>")
    assert "not XML" in refused("GPU0 GPU1")
    assert "not XML" in refused("<system>\n<cpu></system>")
    assert "not XML" in refused("")
    assert "nested more than" in refused("<system>" + "<pci>" * 100)
    assert "there is no GPU" in refused(system(cpu(0)))
    assert "unexpected element <gpu>" in refused(system(element("gpu")))
    assert "unexpected element <disk>" in refused(system(cpu(0, element("disk"))))
    bare = system(cpu(0, element("pci", busid="0000:00:16.0")))
    assert "NCCL completes such files at run time" in refused(bare)
    assert "two GPUs have this bus id" in refused(system(cpu(0, gpu("0000:01:00.0", 0), gpu("0000:01:00.0", 1))))
    several = system(cpu(0, gpu("0000:01:00.0", 0), host_hash="0x1"), cpu(0, gpu("0000:01:00.0", 0), host_hash="0x2"))
    assert "describes 2 machines" in refused(several)
    parts = pci("0000:01:00.0", "0x030200", element("gpu", dev=0, sm=107, mlopart=0) + element("gpu", dev=0, sm=107, mlopart=1))
    assert "partitioned GPUs are not supported yet" in refused(system(cpu(0, parts)))
    assert "count is no whole number" in refused(dgx_a100().replace('count="2"', 'count="two"', 1))
    assert "at least 1" in refused(dgx_a100().replace('count="2"', 'count="-2"', 1))
    assert "link_width is no whole number" in refused(dgx_a100().replace('link_width="16"', 'link_width="wide"', 1))
    assert "1 to 32 lanes" in refused(dgx_a100().replace('link_width="16"', 'link_width="160"', 1))
    assert "speed is no whole number" in refused(dgx_a100().replace('speed="200000"', 'speed="fast"', 1))
    assert "is no network link" in refused(dgx_a100(), nic="pcie4-x16")
    many = system(cpu(0, *(gpu(f"0000:{k:02x}:00.0", k) for k in range(130))))
    assert "at most 128" in refused(many)
    assert "version 9 of the format is unknown" in said(taken(system(cpu(0, gpu("0000:01:00.0", 0)), version=9)))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_text_crashes_the_importer(data):
    """Whatever is changed in a file, it is imported or refused with findings."""
    source = data.draw(st.sampled_from([nc_v4(), nd_v4(), hgx_h200()]))
    words = [
        "0x068000",
        "0x030200",
        "0x020700",
        "16",
        "0",
        "-1",
        "",
        "0000:05:00.0",
        "pci",
        "gpu",
        "nic",
        "net",
        "cpu",
        "GT/s",
        '"',
        "\x85",
    ]
    for _ in range(data.draw(st.integers(1, 4))):
        old, new = data.draw(st.sampled_from(words[:8] + words[8:13])), data.draw(st.sampled_from(words))
        source = source.replace(old or "1", new, data.draw(st.integers(1, 3)))
    try:
        imported = taken(source, "h200")
    except TopologyError:
        return
    assert built(imported).gpus == len(imported.facts.gpus)

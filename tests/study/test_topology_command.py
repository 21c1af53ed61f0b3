"""`parsim topology`: what is printed follows from the file."""

import json

import pytest

from parsim.cli import execute
from parsim.scenario.files import names
from parsim.study.topology import document, ranges, survey, text

GB = 1e9


def test_links_of_every_machine_and_of_the_fabric():
    found = survey("dgx-a100-80gb", 4)
    counts = {(one.name, one.kind): one.count for one in found.links}
    assert counts[("gpu->nvswitch", "nvlink3")] == 32
    assert counts[("cpu->cpu", "socket-amd")] == 8
    assert counts[("nic->leaf", "ib-hdr")] == 32
    assert sum(counts.values()) == found.cluster.link_count


def test_two_gpus_share_a_nic():
    found = survey("aws-p4d")
    assert [(way.gpu, way.nic, way.relation) for way in found.ways[:3]] == [
        ("gpu0", "nic0", "PIX"),
        ("gpu1", "nic0", "PIX"),
        ("gpu2", "nic1", "PIX"),
    ]
    assert all((way.alone, way.together) == (pytest.approx(0.95 * 12.5 * GB), pytest.approx(0.475 * 12.5 * GB)) for way in found.ways)
    assert next((one.link, one.users) for one in found.shared if one.towards == "NICs") == ("pcie0->nic0", ("gpu0", "gpu1"))
    assert {one.link for one in found.shared if one.towards == "host"} == {"pcie0->cpu0", "pcie1->cpu0", "pcie2->cpu1", "pcie3->cpu1"}


def test_eight_gpus_on_one_cable():
    found = survey("8x-rtx-4090-pcie")
    assert [way.relation for way in found.ways] == ["PHB"] * 4 + ["SYS"] * 4
    assert all(way.together == pytest.approx(0.6 * 12.5 / 8 * GB) for way in found.ways)  # sockets: 0.6 x 100 Gb/s
    assert found.half_duplex == ("memory0<->cpu0", "memory1<->cpu1")
    assert "pass through host memory" in text(found)


def test_a_path_through_the_cpu_to_many_nics():
    assert {way.relation for way in survey("dgx-a100-80gb").ways} == {"PIX"}
    assert not [one for one in survey("dgx-a100-80gb").shared if one.towards == "NICs"]


@pytest.mark.parametrize("name", names("topologies"))
def test_every_shipped_topology(name):
    found = survey(name)
    assert text(found).startswith(f"{name}: ")
    answered = document(found)
    assert json.loads(json.dumps(answered, allow_nan=False)) == answered
    assert answered["gpus"] == found.cluster.gpus
    assert len(answered["gpu_nic"]) >= answered["gpus"] or not found.cluster.machine(0).ports


def test_ranges():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert ranges([]) == ""


def test_show_and_plot(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert execute(["topology", "show", "dgx-h100", "--nodes", "2", "--json"]) == 0
    answered = json.loads(capsys.readouterr().out)
    assert answered["bisections"][-1] == {
        "over": "fabric",
        "bandwidth_Bps": pytest.approx(8 * 48 * GB),
        "halves": [[0], [1]],
        "exact": True,
    }
    assert execute(["topology", "plot", "dgx-h100"]) == 0
    assert capsys.readouterr().out == "Wrote parsim-out/dgx-h100/topology.svg\n"
    assert (tmp_path / "parsim-out" / "dgx-h100" / "topology.svg").read_bytes().startswith(b"<?xml")
    assert execute(["topology", "plot", "4x v100-32gb", "--out", "box.png", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == "note: --out names a folder; the file is now called --figure\n"
    assert json.loads(said.out) == {"parsim": 1, "file": "box.png"}
    assert (tmp_path / "box.png").read_bytes().startswith(b"\x89PNG")
    assert execute(["topology", "show", "nothing"]) == 2
    assert execute(["topology", "plot", "dgx-h100", "--out", "x.gif"]) == 2
    assert execute(["topology"]) == 2


def test_what_machines_set_for_nccl_is_shown():
    shown = text(survey("gcp-a3-mega"))
    assert "what the machines set for NCCL" in shown
    for line in ("algorithms: ring, tree", "protocols: simple", "nvls: false", "cross_nic: false", "min_channels: 4", "buffer: 8388608"):
        assert f"  {line}\n" in shown + "\n"
    assert document(survey("aws-p4d"))["collectives"] == {"protocols": ["simple"]}
    assert document(survey("hgx-h100"))["collectives"] == {}

"""`parsim collective`: sizes, the table of nccl-tests, comparisons; times are those of the tuning model's worked examples."""

import json
from xml.etree import ElementTree as ET

import pytest

from parsim.cli import execute
from parsim.errors import ScenarioError, TopologyError
from parsim.hardware.nccl.inputs import KINDS, Settings
from parsim.interop.nccl_logs import parse_log
from parsim.scenario.machines import group
from parsim.study import collective
from parsim.study.collective_bands import MORE, ONE, TWO, worth

MIB, GIB = 2**20, 2**30
LIBRARY = Settings(profile="nccl")


def one(topology, size, gpus=None, kind="all_reduce", settings=LIBRARY):
    cluster, members = group(topology, gpus)
    return collective.sweep(cluster, members, kind, [size], settings)[0]


# NVIDIA/nccl v2.30.7 src/graph/tuning.cc evaluated by hand: time [us], bus bandwidth [GB/s]
@pytest.mark.parametrize(
    ("topology", "size", "choice", "time", "busbw"),
    [
        ("dgx-a100", MIB, "ring ll", 35.92, 51.08),
        ("dgx-a100", 4 * MIB, "ring ll128", 73.84, 99.4),
        ("dgx-a100", 32 * MIB, "ring simple", 300.67, 195.3),
        ("dgx-a100", GIB, "ring simple", 7885.37, 238.3),
        ("dgx-h100", MIB, "ring ll", 28.01, 65.5),
        ("dgx-h100", 2 * MIB, "nvls simple", 32.71, 112.2),
        ("dgx-h100", 64 * MIB, "nvls simple", 271.72, 432.2),
        ("dgx-h100", GIB, "nvls simple", 3972.58, 473.0),
    ],
)
def test_worked_examples(topology, size, choice, time, busbw):
    row = one(topology, size)
    assert f"{row.algorithm} {row.protocol}" == choice
    assert row.time * 1e6 == pytest.approx(time, abs=0.006)
    assert row.busbw / 1e9 == pytest.approx(busbw, rel=1e-3)


def test_an_algorithm_can_be_forced():
    row = one("dgx-h100", GIB, settings=Settings("nccl", algorithm="ring", protocol="simple"))
    assert row.time * 1e6 == pytest.approx(5275.6, abs=0.06)
    with pytest.raises(TopologyError, match="cannot use nvls"):
        one("dgx-a100", GIB, settings=Settings("nccl", algorithm="nvls"))


def test_measured_peaks_of_an_h200():
    # stas00/ml-engineering network/README.md: 8 GiB, 4 to 8 GPUs
    for gpus, busbw in ((4, 363.3), (5, 414.2), (6, 435.6), (7, 460.0), (8, 473.1)):
        assert one("hgx-h200", 8 * GIB, gpus, settings=Settings()).busbw / 1e9 == pytest.approx(busbw, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_bandwidths_follow_from_the_time(kind):
    row = one("dgx-h100", 8 * MIB, 2 if kind == "send" else None, kind)
    factor = {"all_reduce": 14 / 8, "all_gather": 7 / 8, "reduce_scatter": 7 / 8, "all_to_all": 7 / 8, "gather": 7 / 8, "scatter": 7 / 8}
    assert row.algbw == pytest.approx(8 * MIB / row.time)
    assert row.busbw == pytest.approx(row.algbw * factor.get(kind, 1.0))


def test_sizes():
    assert collective.sizes("1KiB:16KiB") == (1024, 2048, 4096, 8192, 16384)
    assert collective.sizes("1 KiB : 9 KiB", 3) == (1024, 3072, 9216)
    assert collective.sizes("8B,1MB") == (8, 10**6)
    assert collective.sizes("0 B") == (0,)
    assert collective.sizes("1KiB:16GiB")[-1] == 16 * GIB
    assert len(collective.sizes("1KiB:2KiB", 1.1)) == 8
    for text, factor in (("2KiB:1KiB", 2.0), ("0B:1KiB", 2.0), ("1KiB:2KiB", 1.0), ("1:2:3", 2.0), ("1024", 2.0), ("1KiB:1TiB", 1.0001)):
        with pytest.raises(ScenarioError):
            collective.sizes(text, factor)


def test_spellings():
    spelled = ("all-reduce", "AllReduce", "all_reduce_perf", "alltoall", "sendrecv", "reduce-scatter")
    assert [collective.kind_of(name) for name in spelled] == [
        "all_reduce", "all_reduce", "all_reduce", "all_to_all", "sendrecv", "reduce_scatter",
    ]  # fmt: skip
    with pytest.raises(ScenarioError, match="all-gather"):
        collective.kind_of("all-together")


def test_groups_are_even():
    cluster, members = group("dgx-h100", 16)
    assert (cluster.nodes, members) == (2, tuple(range(16)))
    cluster, members = group("dgx-h100", 4, 2)
    assert members == (0, 1, 8, 9)
    assert len(group("4x v100-32gb")[1]) == 4
    with pytest.raises(TopologyError, match="--nodes 3 or 9"):
        group("dgx-h100", 9)
    with pytest.raises(TopologyError, match="9 GPUs on 1 machines"):
        group("dgx-h100", 9, 1)


LOG = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    50.00   20.97   36.70      0    40.00   26.21   45.87      0
  1073741824     268435456     float     sum      -1   8200.0  130.94  229.15      0   8210.0  130.78  228.87      0
"""


def test_comparison_is_of_the_same_thing():
    cluster, members = group("dgx-a100")
    found = collective.compare(cluster, members, "all_reduce", parse_log(LOG), LIBRARY)
    assert [one.in_place for one in found] == [False, True, False, True]
    assert found[0].error == pytest.approx(35.92 / 50 - 1, abs=1e-3)
    assert found[2].error == pytest.approx(7885.37 / 8200 - 1, abs=1e-5)
    with pytest.raises(ScenarioError, match="give --gpus"):
        collective.compare(cluster, members[:4], "all_reduce", parse_log(LOG))
    with pytest.raises(ScenarioError, match="ask for all_gather"):
        collective.compare(cluster, members, "all_reduce", parse_log("all_gather_perf\n" + LOG))
    ranks = "".join(f"#  Rank  {rank} Group  0 Pid  1 on   here device  {rank} [0x07] NVIDIA A100\n" for rank in range(4))
    with pytest.raises(ScenarioError, match="add --gpus 4"):
        collective.compare(cluster, members, "all_reduce", parse_log(ranks + LOG))


def test_the_table_on_the_command_line(capsys):
    assert execute(["collective", "all-reduce", "--on", "dgx-h100", "--gpus", "16", "--size", "1KiB:4KiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# all-reduce, 16 GPUs of 2 x hgx-h100, NCCL 2.30, profile measured"
    assert lines[1].split() == ["#", "size", "algorithm", "protocol", "time", "algbw", "busbw"]
    assert [line.split()[0] for line in lines[3:6]] == ["1024", "2048", "4096"]
    assert lines[6:] == [
        "# healthy machines that run alone: ±40 % below 1 MiB, ±25 % to 512 MiB, ±10 % beyond",
        "# slow machines: down to 30 % less bandwidth (one cluster, ten jobs: 236 to 329 GB/s)",
        "# network: ib-ndr, 49 GB/s each way (98 % of the line rate), 0 us per message, 0 us handshake for a large one",
    ]


@pytest.mark.parametrize(
    ("topology", "nodes", "bands", "tail", "said"),
    [
        ("hgx-h100", 1, ONE, 0.0, ""),
        ("aws-p5", 2, TWO, 0.3, "20 us per message, 15 us handshake for a large one"),
        ("aws-p5", 4, MORE, 0.3, "95 % of the line rate"),
        ("8x-rtx-4090-pcie", 2, TWO, 0.3, "no published measurement of such a network: assumptions"),
    ],
)
def test_what_a_prediction_is_worth(topology, nodes, bands, tail, said):
    found = worth(*group(topology, None, nodes))
    assert (found.bands, found.tail) == (bands, tail)
    assert said in found.network
    assert found.document()["slow_tail"] == tail


def test_one_json_document(capsys):
    arguments = ["collective", "all-reduce", "--on", "dgx-h100", "--size", "1MiB", "--algorithm", "ring", "--protocol", "simple"]
    assert execute([*arguments, "--basis", "nccl", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["gpus"] == 8
    assert [set(row) for row in document["rows"]] == [{"bytes", "algorithm", "protocol", "time_s", "algbw_Bps", "busbw_Bps"}]
    assert document["rows"][0]["algorithm"] == "ring"
    assert document["rows"][0]["protocol"] == "simple"


def test_a_log_beside_the_prediction(tmp_path, capsys):
    log = tmp_path / "log.txt"
    log.write_text(LOG, encoding="utf-8")
    picture = tmp_path / "picture.svg"
    arguments = ["collective", "all-reduce", "--on", "dgx-a100", "--nccl-log", str(log), "--figure", str(picture)]
    assert execute([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["bytes"] for row in document["rows"]] == [MIB, GIB]  # the sizes of the log
    assert [one["measured_time_s"] for one in document["comparison"]] == pytest.approx([50e-6, 40e-6, 8200e-6, 8210e-6])
    assert ET.parse(picture).getroot().tag.endswith("svg")
    first = picture.read_bytes()
    assert execute(arguments) == 0
    assert picture.read_bytes() == first
    out = capsys.readouterr().out
    assert "# compared with 4 measurements" in out
    assert "in place" in out
    assert f"Wrote {picture}" in out


def test_usage_errors(tmp_path, capsys):
    base = ["collective", "all-reduce", "--on", "dgx-h100"]
    for extra in (["--basis", "guess"], ["--size", "12"], ["--figure", str(tmp_path / "x.pdf")], ["--nccl-log", str(tmp_path / "no.txt")],
                  ["--nccl", "1.0"], ["--protocol", "tcp"], ["--figure", str(tmp_path / "none" / "x.svg")]):  # fmt: skip
        assert execute([*base, *extra]) == 2
        assert capsys.readouterr().err.endswith("1 problem.\n")


def test_kernels_of_experts_stand_beside_the_library(capsys):
    arguments = ["collective", "all-to-all", "--on", "hgx-h800", "--nodes", "8", "--size", "1KiB,64MiB"]
    own, library = (one_document([*arguments, "--kernels", name], capsys) for name in ("deepep", "nccl"))
    assert own["nccl_rows"] == library["rows"]
    assert "nccl_rows" not in library
    assert execute([*arguments, "--kernels", "deepep"]) == 0
    out = capsys.readouterr().out
    first = next(line for line in out.splitlines() if line.split()[0] == "1024")
    assert float(first.split()[-3]) == pytest.approx(library["rows"][0]["time_s"] * 1e6, abs=0.01)
    assert "96 us over machines before the bytes move" in out
    assert "NCCL/this" in out
    assert execute([*arguments, "--kernels", "hybridep"]) == 0
    assert "89 us over machines beside its kernels" in capsys.readouterr().out


def one_document(arguments, capsys):
    assert execute([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)

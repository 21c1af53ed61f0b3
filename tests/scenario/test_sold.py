"""No box is larger than a machine that is sold; what is said instead works as it is printed."""

from __future__ import annotations

import re
import shlex

import pytest
from ruamel.yaml import YAML

from parsim import load
from parsim.cli import execute
from parsim.errors import ScenarioError
from parsim.hardware.device import device_from_tree
from parsim.scenario.build import build
from parsim.scenario.files import find, names, read
from parsim.scenario.machines import machines
from parsim.scenario.references import lookup
from parsim.scenario.sold import oversold
from parsim.study.fit_question import FitQuestion, scenario_of

DEVICES = names("devices")


def scenario(cluster):
    return {
        "model": "gpt2",
        "cluster": cluster,
        "training": {"micro_batch": 1, "gradient_accumulation": 1, "sequence_length": 128},
        "parallel": {"data": {"strategy": "ddp"}},
    }


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_says_how_it_is_sold(name):
    tree = read(find("devices", name)).tree
    device = device_from_tree(tree)
    assert device.most_gpus >= 1
    assert tree["sold"]["source"]
    for topology in device.sold_in:
        node = read(find("topologies", topology)).tree["node"]
        assert find("devices", node["device"]).stem == name
        assert node["gpus"] <= device.most_gpus


def test_no_shipped_machine_is_larger_than_what_is_sold():
    for topology in names("topologies"):
        node = read(find("topologies", topology)).tree.get("node", {})
        if isinstance(node.get("device"), str):
            assert node["gpus"] <= device_from_tree(lookup("devices", None)(node["device"])).most_gpus, topology


@pytest.mark.parametrize("name", DEVICES)
def test_what_is_suggested_works(name):
    most = device_from_tree(read(find("devices", name)).tree).most_gpus
    assert oversold({"gpu": name, "count": most}, None) is None
    with pytest.raises(ScenarioError) as caught:
        load(scenario(f"{4 * most}x {name}"))
    (finding,) = caught.value.findings
    assert finding.message == f"no machine with {4 * most:,} {name} is sold: the largest has {most}"
    keys = YAML(typ="safe").load(re.search(r"cluster: \{.*\}", finding.suggestion)[0])
    assert build(load(scenario(keys["cluster"]))).cluster.gpus == 4 * most
    words = shlex.split(re.search(r"--on [^,;]*", finding.suggestion)[0])
    nodes = int(words[words.index("--nodes") + 1]) if "--nodes" in words else 1
    built = build(load(scenario_of(FitQuestion("gpt2", words[1], nodes=nodes, sequence_length=128))))
    assert built.cluster.gpus == (4 * most if nodes > 1 else 4 if name == "v100-sxm2-16gb" else most)  # four on NVLink without a switch


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('fit gpt2 --on "64x h100"', "8 nodes of hgx-h100: --on hgx-h100 --nodes 8, in a scenario cluster: {topology: hgx-h100, nodes: 8}"),
        ('fit gpt2 --on "12xh100"', "2 nodes of hgx-h100 (16 GPUs): --on hgx-h100 --nodes 2"),
        ('fit gpt2 --on "73x gb200"', "2 nodes of gb200-nvl72 (144 GPUs): --on gb200-nvl72 --nodes 2"),
        ('fit gpt2 --inference --on "64x h100"', "one machine: --on hgx-h100"),
        ('fit gpt2 --inference --on "64x t4"', 'one machine: --on "20x t4"'),
        ('collective all_reduce --on "64x h100"', "8 nodes of hgx-h100: hgx-h100 --nodes 8"),
        ('topology show "64x h100"', "8 nodes of hgx-h100: hgx-h100 --nodes 8"),
        ('size gpt2 --tokens 1B --days 3 --on "64x h100"', "size chooses how many machines: --on hgx-h100"),
    ],
)
def test_commands_refuse_it(line, words, capsys):
    assert execute(shlex.split(line)) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_a_scenario_names_its_place(tmp_path, capsys):
    file = tmp_path / "large.yaml"
    file.write_text(
        "model: gpt2\ntraining: {sequence_length: 128, micro_batch: 1, gradient_accumulation: 1}\nparallel: {zero: 0}\ncluster: 64x h100\n"
    )
    assert execute(["check", str(file)]) == 2
    assert f"{file}:4:1  cluster.topology  no machine with 64 h100 is sold" in capsys.readouterr().err
    assert execute(["check", str(file), "cluster=hgx-h100", "cluster.nodes=8"]) == 0


def test_an_explicit_box_is_taken_as_it_is_written_with_a_warning():
    built = build(load(scenario({"topology": {"gpu": "h100", "count": 64}})))
    assert built.cluster.gpus == 64
    (warning,) = [str(one) for one in built.warnings if "is sold" in str(one)]
    assert "no machine with 64 h100 is sold: the largest has 8; the machine is taken as written; 8 nodes of hgx-h100" in warning
    assert not [one for one in build(load(scenario({"topology": {"gpu": "h100", "count": 8}}))).warnings if "is sold" in str(one)]


def test_a_device_of_the_users_own_says_it_or_not(tmp_path):
    tree = read(find("devices", "t4")).tree
    for sold, allowed in (({"most_gpus": 2}, 2), (None, 64)):
        file = tmp_path / "own.yaml"
        with file.open("w") as stream:
            YAML(typ="safe").dump({**tree, "aliases": [], "sold": sold}, stream)
        assert machines(f"{allowed}x {file}").gpus == allowed
    file.write_text(file.read_text().replace("sold: null", "sold: {most_gpus: 2}"))
    with pytest.raises(ScenarioError, match="the largest has 2; one machine"):
        machines(f"3x {file}")

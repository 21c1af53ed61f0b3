"""`parsim flops --tree`: the work of a model by module."""

from __future__ import annotations

import json

import pytest
from structures import STRUCTURES

from parsim.cli import execute
from parsim.errors import InputError
from parsim.study.flops import FlopsAnswer, FlopsQuestion, document, flops, text
from parsim.study.flops_tree import Module


def module(answer: FlopsAnswer, path: str) -> Module:
    assert answer.modules is not None
    return next(line for _, line in answer.modules.lines(None) if line.path == path)


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_tree_holds_all_of_the_flat_table_and_nothing_else(name: str) -> None:
    for training in (True, False):
        answer = flops(FlopsQuestion(name, training=training, tree=True))
        root = answer.modules
        assert root is not None
        assert root.flop(answer.passes) == answer.total
        assert root.parameters == answer.of.parameters
        for _, line in root.lines(None):
            if line.children:
                assert line.parameters == sum(child.parameters for child in line.children)
                assert line.flop(answer.passes) == pytest.approx(sum(child.flop(answer.passes) for child in line.children), rel=1e-12)


def test_the_example_of_deepspeeds_tutorial() -> None:
    # deepspeed.ai/tutorials/flops-profiler: BERT-Large, batch 80 of 128 tokens, on an A100
    answer = flops(FlopsQuestion("bert-large", 128, 80, training=False, gpu="a100", tree=True))
    encoder = module(answer, "layers.0-23")
    assert f"{encoder.parameters / 1e6:.2f} M" == "302.31 M"
    assert f"{module(answer, 'layers.0-23.mlp.mlp_up').flop(('forward',)) / 2e9:.2f} GMACs" == "1030.79 GMACs"
    assert f"{module(answer, 'layers.0-23.attention.query_key_value').flop(('forward',)) / 24 / 3 / 2e9:.2f} GMACs" == "10.74 GMACs"
    assert encoder.seconds == pytest.approx(33.45e-3, rel=0.05)


def test_a_convolutional_network_by_block() -> None:
    answer = flops(FlopsQuestion("resnet50", training=False, tree=True))
    assert answer.modules is not None
    assert round(answer.modules.flop(("forward",)) / 2) == 4_089_184_256  # torchvision's table of weights: 4.09 GFLOPS (multiply-adds)
    assert module(answer, "layer.1.shortcut.conv2d").parameters == 64 * 256


def test_levels_and_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["flops", "mixtral-8x7b", "--tree", "--depth", "2", "--gpu", "a100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    lines = found["modules"]
    assert max(line["depth"] for line in lines) == 2
    assert lines[0]["flop"] == found["total"]["flop"]
    assert lines[0]["forward_macs"] * 2 == found["total"]["forward_flop"]
    below = [line for line in lines if line["depth"] == 1]
    assert sum(line["share"] for line in below) == pytest.approx(1, rel=1e-12)
    assert sum(line["time_s"] for line in below) == pytest.approx(lines[0]["time_s"], rel=1e-12)
    assert sum(line["time_share"] for line in below) == pytest.approx(1, rel=1e-12)
    assert "modules" not in document(flops(FlopsQuestion("gpt2")))
    plain = text(flops(FlopsQuestion("gpt2", tree=True, depth=0)))
    assert "TFLOP/s]" not in plain
    assert "embedding" not in plain.partition("The same by convention")[0]


def test_forward_takes_less_than_all_passes() -> None:
    def seconds(training: bool) -> float:
        root = flops(FlopsQuestion("gpt2", 1024, 8, training=training, gpu="v100", tree=True)).modules
        assert root is not None
        return root.seconds

    assert 2 < seconds(training=True) / seconds(training=False) < 4


def test_levels_need_a_tree() -> None:
    with pytest.raises(InputError, match="--depth"):
        flops(FlopsQuestion("gpt2", depth=1))

"""Megatron-LM's layers that are not all alike, and the layouts of its stages: followed, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from exports import GPT, exported
from training_samples import from_text, values

from parsim.errors import ScenarioError
from parsim.interop.megatron.expert_layers import listed
from parsim.interop.megatron.pipeline_layout import layout, text_of
from parsim.model.catalogue import build_model
from parsim.model.linear_attention import LinearAttention
from parsim.scenario.references import lookup
from parsim.scenario.stage_layout import stage_layout

SIZES = "--num-layers 12 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50304"
BASE = f"{SIZES} --micro-batch-size 4 --global-batch-size 64 --bf16"
DELTA = "--experimental-attention-variant gated_delta_net --position-embedding-type rope"


def read(options: str) -> dict[str, Any]:
    return values(from_text(f"{BASE} {options}"))


def refused(options: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        read(options)
    return "; ".join(f"{finding.path} {finding.message} ({finding.suggestion})" for finding in caught.value.findings)


# -- linear attention


def test_three_of_four_layers_carry_a_state() -> None:
    tree = from_text(f"{BASE} {DELTA} --linear-attention-freq 4 --attention-output-gate").tree["model"]
    assert tree["layer_pattern"] == "MMM*"
    assert tree["attention_gate"] is True
    assert tree["mixer"] == {"kind": "gated-delta", "heads": 32, "key_heads": 16, "key_dim": 128, "value_dim": 128, "convolution": 4}
    model = build_model(tree, name="delta", base_lookup=lookup("models", None))
    cores = [operator for block in model.blocks for operator in block.operators if isinstance(operator, LinearAttention)]
    assert len(cores) == 9


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ("--linear-attention-freq 3", "MM*"),
        ("--linear-attention-freq ([1]*3+[0])*3", "MMM*"),
        ("--linear-attention-freq ([0]+[1]*11)", "*MMMMMMMMMMM"),
        ("--linear-attention-freq 1", None),
    ],
)
def test_which_layers(options: str, pattern: str | None) -> None:
    options = options.replace("(", "'(", 1) + "'" if "(" in options else options
    assert read(f"{DELTA} {options}").get("model.layer_pattern") == pattern


def test_sizes_of_the_state() -> None:
    sizes = (
        "--linear-num-value-heads 8 --linear-num-key-heads 4 --linear-key-head-dim 64 --linear-value-head-dim 32 --linear-conv-kernel-dim 3"
    )
    found = read(f"{DELTA.replace('gated_delta_net', 'gdn')} --linear-attention-freq 2 {sizes}")
    assert [found[f"model.mixer.{name}"] for name in ("heads", "key_heads", "key_dim", "value_dim", "convolution")] == [8, 4, 64, 32, 3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--experimental-attention-variant dsa",
            "--experimental-attention-variant not supported yet: sparse attention without --multi-latent-attention",
        ),
        ("--experimental-attention-variant gdn2 --linear-attention-freq 4", "attention of the kind gdn2"),
        (DELTA, "it needs --linear-attention-freq"),
        (f"{DELTA} --linear-attention-freq '[1]*5'", "5 layers are listed, and --num-layers is 12"),
        (f"{DELTA} --linear-attention-freq some", "neither a number nor a list"),
        (f"{DELTA} --linear-attention-freq 4 --window-size 512,0", "linear attention beside windows"),
        ("--heterogeneous-layers-config-path layers.json", "--heterogeneous-layers-config-path not supported yet: layers whose sizes"),
        ("--yaml-cfg model.yaml", "--yaml-cfg not supported yet: all sizes stand in another file"),
    ],
)
def test_what_is_refused_by_name(options: str, said: str) -> None:
    assert said in refused(options)


def test_options_of_linear_attention_without_it_change_nothing() -> None:
    assert "model.mixer.kind" not in read("--linear-attention-freq 4 --linear-key-head-dim 64")


def test_a_list_that_is_repeated() -> None:
    assert listed("([1]*3+[0])*2") == list("11101110")
    assert listed("([0]*3+[1]*2)") == list("00011")
    assert listed("(([1])*2)*2") == []


def test_gated_delta_layers_are_written() -> None:
    model = {"base": "qwen3-next-80b-a3b", "layers": 8, "experts": None, "mlp": 4096}
    text = exported({**GPT, "model": model, "parallel": {"data": {"strategy": "zero1"}}}, "megatron").text.replace("\n", " ")
    assert "--experimental-attention-variant gated_delta_net" in text
    assert "--linear-attention-freq '([1]*3+[0]*1+[1]*3+[0]*1)'" in text
    assert "--attention-output-gate" in text


# -- layouts of stages


def test_a_layout_may_be_a_list_of_lists() -> None:
    assert text_of([["embedding", "decoder"], ["decoder", "loss"]]) == "Et|tL"
    assert text_of("'Et*3|t*4L'") == "Et*3|t*4L"


@pytest.mark.parametrize(
    ("options", "split", "chunks"),
    [
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*5|t*7L", [5, 7], None),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*2|(t*4|)*2t*2L'", [2, 4, 4, 2], 2),
        ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'E|(t*6|)*2L'", [0, 6, 6, 0], None),
        ("--pipeline-model-parallel-size 2 --mtp-num-layers 1 --pipeline-model-parallel-layout 'Et*7|t*5mL'", [7, 5], None),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --decoder-first-pipeline-num-layers 4",
            [2, 4, 2, 4],
            2,
        ),
    ],
)
def test_layers_of_every_stage(options: str, split: list[int], chunks: int | None) -> None:
    found = read(options.replace("Et*5|t*7L", "'Et*5|t*7L'"))
    assert found["parallel.pipeline.split"] == split
    assert found.get("parallel.pipeline.virtual_stages") == chunks
    assert found.get("parallel.pipeline.schedule") == ("interleaved" if chunks else None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--pipeline-model-parallel-layout 'Et*5|t*6L'", "5 + 6 = 11 layers, and --num-layers is 12"),
        ("--pipeline-model-parallel-layout 'Et*4|t*4|t*4L'", "3 stages / 2 ranks = 1.5 is not whole"),
        ("--pipeline-model-parallel-layout 'Et*4|t*4|t*4|L' --mtp-num-layers 1", ""),
        ("--pipeline-model-parallel-layout 'Et*6|t*6|m|L' --mtp-num-layers 1", "on another stage than the head"),
        ("--pipeline-model-parallel-layout 'Et*6||t*6|L'", "stage 1 holds nothing"),
        ("--pipeline-model-parallel-layout '|Et*6|t*6|L'", "before the embedding"),
        ("--pipeline-model-parallel-layout wide", "where a layout has E, t, m, L"),
        ("--pipeline-model-parallel-layout 'Et*5|t*7L' --num-virtual-stages-per-pipeline-rank 2", "Megatron-LM takes one of them"),
    ],
)
def test_layouts_that_are_refused(options: str, said: str) -> None:
    options = f"--pipeline-model-parallel-size 2 {options}"
    if said:
        assert said in refused(options)
    else:
        assert read(options)["parallel.pipeline.split"] == [4, 4, 4, 0]


def test_what_is_written_for_predicted_tokens() -> None:
    assert layout((3, 2, 2, 1), 1) == "Ettt|(tt|)*2tmL"
    assert stage_layout(layout((3, 2, 2, 1), 1)) == ((3, 2, 2, 1), 1)

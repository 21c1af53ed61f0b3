"""Parameters stand in PyTorch's registration order: seen through DistributedDataParallel's buckets and layer listings."""

from __future__ import annotations

from typing import Any

import pytest
from structures import STRUCTURES, look_up, shipped

from parsim.model.catalogue import build_model
from parsim.model.model import Model

MIB = 2**20


def built(name: str, **changes: Any) -> Model:
    return build_model({"base": name, **changes}, name=name, base_lookup=look_up)


def buckets(model: Model) -> list[float]:
    """PyTorch's rule in MiB of fp32: reverse registration order, a bucket closes at 25 MiB, the first at 1 MiB."""
    sizes = [4 * p.count for block in model.blocks for p in block.parameters() if not p.buffer and not p.tied]
    found, held = [], 0
    for size in reversed(sizes):
        held += size
        if held >= (25 if found else 1) * MIB:
            found.append(held / MIB)
            held = 0
    return [round(size, 4) for size in (*found, held / MIB) if size]


def test_gpt2_closes_with_the_tied_embedding() -> None:
    assert buckets(built("gpt2")) == [9.0088, *[27.0381] * 11, 168.2725]


def test_bert_with_pooler() -> None:
    assert buckets(built("bert-base", task="encoder")) == [2.2529, *[27.0381] * 12, 90.9316]


def test_resnet_50() -> None:
    assert buckets(built("resnet50")) == [7.8163, 30.043, 27.043, 25.0703, 7.5198]


def test_tinyllama_begins_with_the_whole_head() -> None:
    found = buckets(built("tinyllama-1.1b"))
    assert (len(found), found[0]) == (90, 250.0)


def names(model: Model, block: int) -> list[str]:
    return [parameter.name for parameter in model.blocks[block].parameters()]


def test_llama_registers_attention_mlp_norms() -> None:
    assert names(built("llama-2-7b"), 1) == [
        "query.weight",
        "key.weight",
        "value.weight",
        "attention_output.weight",
        "gate.weight",
        "up.weight",
        "mlp_down.weight",
        "attention_norm.weight",
        "mlp_norm.weight",
    ]


def test_gpt_neox_registers_both_norms_first() -> None:
    assert [name.split(".")[0] for name in names(built("pythia-1b"), 1)][::2] == [
        "attention_norm",
        "mlp_norm",
        "query_key_value",
        "attention_output",
        "mlp_up",
        "mlp_down",
    ]


@pytest.mark.parametrize("name", STRUCTURES)
def test_no_parameter_is_lost_or_doubled_by_reordering(name: str) -> None:
    for block in dict.fromkeys(shipped(name).blocks):
        executed = [p for operator in block.operators for p in operator.parameters()]
        registered = block.parameters()
        assert sorted(p.name for p in registered) == sorted(p.name for p in executed)
        assert len({p.name for p in registered}) == len(registered)


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "llama-3.2-1b", "gemma-7b", "opt-350m"])
def test_a_tied_head_names_an_existing_parameter(name: str) -> None:
    model = built(name)
    full = {f"{block_name}.{p.name}" for block_name, block in zip(model.block_names, model.blocks, strict=True) for p in block.parameters()}
    tied = [p.tied for p in model.blocks[-1].parameters() if p.tied]
    assert tied == ["embedding.word_embeddings.weight"]
    assert set(tied) <= full

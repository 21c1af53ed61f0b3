"""Mixtures that run again in backward: their messages, too; what asks for what is not there is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.scenario.build import build

SMALL: dict[str, Any] = {
    "model": {
        "base": "deepseek-v3", "layers": 2, "hidden": 256, "heads": 8, "mlp": 512, "vocabulary": 1024,
        "experts": {"count": 8, "groups": 0, "groups_kept": 0, "mlp": 128, "shared": 128, "dense_layers": 0},
    },
    "cluster": {"topology": "hgx-h100"},
    "training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 2, "precision": "bf16-fp32grad"},
    "software": {"profile": "megatron-core"},
    "parallel": {"data": {"strategy": "zero1"}, "tensor": {"size": 2, "sequence_parallel": True}, "expert": {"size": 8, "tensor": 1}},
}  # fmt: skip


def scenario(*words: str, **training: Any) -> dict[str, Any]:
    tree = copy.deepcopy(SMALL)
    tree["training"] |= training | ({"recompute": {"selective": list(words)}} if words else {})
    return tree


def messages(*words: str) -> dict[tuple[str, str], int]:
    """Rows of collectives of one step: axis and kind -> how many."""
    found: dict[tuple[str, str], int] = {}
    for row in simulate(scenario(*words)).collectives:
        found[row.axis, row.kind] = found.get((row.axis, row.kind), 0) + row.count
    return found


def test_a_mixture_exchanges_six_times_and_a_shared_expert_gathers_again() -> None:
    once, mixture, shared = messages(), messages("moe"), messages("shared_experts")
    micro_batches, layers = 2, 2
    # dispatch, combine and their backward, and dispatch's weights both ways; recomputed, dispatch and combine once more
    assert once["expert", "all_to_all"] == micro_batches * layers * (4 + 2)
    assert mixture["expert", "all_to_all"] == micro_batches * layers * (6 + 3)
    assert shared["expert", "all_to_all"] == once["expert", "all_to_all"]
    for words in (mixture, shared):  # its first product gathers, its second scatters
        assert words["tensor", "all_gather"] - once["tensor", "all_gather"] == micro_batches * layers
        assert words["tensor", "reduce_scatter"] - once["tensor", "reduce_scatter"] == micro_batches * layers
    assert messages("moe_act", "layernorm") == once


def test_less_memory_for_more_time() -> None:
    plain, whole = simulate(scenario()), simulate(scenario("moe"))
    assert whole.step_time > plain.step_time
    assert whole.breakdown["recompute"] > plain.breakdown["recompute"] == 0
    unfolded = simulate(scenario("moe", "layernorm", "mla_up_proj"), unfolded=True)
    assert simulate(scenario("moe", "layernorm", "mla_up_proj")).step_time == pytest.approx(unfolded.step_time, rel=1e-9)


@pytest.mark.parametrize(
    ("words", "changes", "message"),
    [
        (["mlp"], {}, "deepseek-v3 has no part mlp to recompute; use moe, moe_act or shared_experts"),
        (
            ["moe_act"],
            {"precision": {"preset": "fp8", "recipe": "delayed"}},
            "with delayed scaling, products keep fp8 copies of what moe_act",
        ),
    ],
)
def test_refused(words: list[str], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParsimError, match=message):
        simulate(scenario(*words, **changes))


@pytest.mark.parametrize("word", ["mla_up_proj", "moe", "moe_act", "shared_experts"])
def test_a_dense_model_has_no_such_part(word: str) -> None:
    tree = scenario(word) | {"model": "llama-3.2-1b"}
    tree["parallel"].pop("expert")
    with pytest.raises(ParsimError, match=f"has no part {word} to recompute"):
        simulate(tree)


def test_megatrons_name_of_the_attention_core() -> None:
    assert build(load(scenario("core_attn"))).training.recompute.selective == ("attention",)

"""The table of a model's parts: its sums are the counts of the model, its passes those of the zero-bubble table."""

from __future__ import annotations

from collections import defaultdict

import pytest
from structures import STRUCTURES
from structures import shipped as model

from parsim.kernel import Attention
from parsim.model.flops import forward_flop
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.parts import PASSES, Part, parts
from parsim.model.workload import Workload


def length(of: Model) -> int:
    return int(str(of.facts.get("sequence_length") or 512)) if of.sequence else 1


def by_name(found: tuple[Part, ...], key: str = "forward") -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for part in found:
        sums[part.name] += part.flop[key]
    return dict(sums)


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_shipped_model_is_the_sum_of_its_parts(name: str) -> None:
    of = model(name)
    batch = 1 if of.facts.get("disentangled") else 3  # whose layers project a table once, whatever the batch
    found = parts(of, Workload(batch=batch, sequence=length(of)))
    forward = sum(part.flop["forward"] for part in found)
    assert sum(part.parameters for part in found) == parameter_count(of)
    assert forward == pytest.approx(batch * (length(of) if of.sequence else 1) * forward_flop(of, length(of)), rel=1e-12)
    once = sum(part.flop["forward"] for part in found if part.name == "indexer")  # which nothing flows back through
    once += sum(part.flop["forward"] for part in found if part.name == "pooling") / 2  # by a matrix that has no gradient
    assert sum(part.flop[key] for part in found for key in PASSES[1:]) == pytest.approx(2 * (forward - once), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "sequence", "linears", "core", "head"),
    [
        ("gpt2", 1024, 169_869_312, 18_874_368, 77_194_752),
        ("llama-2-7b", 2048, 12_952_010_752, 536_870_912, 262_144_000),
        ("llama-3-8b", 8192, 13_958_643_712, 2_147_483_648, 1_050_673_152),
    ],
)
def test_linears_core_and_head_per_token(name: str, sequence: int, linears: int, core: int, head: int) -> None:
    found = by_name(parts(model(name), Workload(batch=2, sequence=sequence)))
    tokens = 2 * sequence
    assert found["attention linears"] + found["MLP"] == linears * tokens
    assert (found["attention core"], found["head"]) == (core * tokens, head * tokens)
    assert found["norm"] == found["elementwise"] == found["loss"] == 0


def test_attention_linears_and_mlp_of_llama() -> None:
    # q, k, v, o: 4 h^2; three matrices of h f; 2 FLOP per weight (compute-bound parts of a Llama layer)
    found = by_name(parts(model("llama-2-7b"), Workload(batch=1, sequence=2048)))
    assert found["attention linears"] == 32 * 2 * 4 * 4096**2 * 2048
    assert found["MLP"] == 32 * 2 * 3 * 4096 * 11008 * 2048


def test_the_core_works_wholly_with_the_input_gradient() -> None:
    (core,) = (part for part in parts(model("gpt2"), Workload(batch=1, sequence=1024)) if part.name == "attention core")
    forward = 12 * 2 * 1024 * 768 * 1024
    assert core.flop == {"forward": forward, "backward_input": 2 * forward, "backward_weight": 0.0}
    # q, k, v and the output, 2 B each; backward also their gradients
    assert core.bytes == {"forward": 12 * 4 * 1024 * 768 * 2, "backward_input": 12 * 8 * 1024 * 768 * 2, "backward_weight": 0.0}


def test_bytes_of_a_linear_are_its_three_matrices() -> None:
    (head,) = (part for part in parts(model("gpt2"), Workload(batch=1, sequence=1024)) if part.name == "head")
    assert head.bytes["forward"] == 2 * (1024 * 768 + 768 * 50257 + 1024 * 50257)


def test_bytes_of_grouped_query_attention() -> None:
    kernel = Attention(2, 32, 8, 4096, 4096, 128, causal=True)
    assert kernel.bytes == 2 * 2 * 4096 * 128 * (2 * 32 + 2 * 8)


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("gpt2", {("embedding", 1), ("layers 0-11", 12), ("head", 1)}),
        ("gemma-2-9b", {("embedding", 1), ("layers 0,2,..40", 21), ("layers 1,3,..41", 21), ("head", 1)}),
        ("deepseek-v3", {("embedding", 1), ("layers 0-2", 3), ("layers 3-60", 58), ("head", 1)}),
    ],
)
def test_equal_blocks_are_one_group(name: str, groups: set[tuple[str, int]]) -> None:
    assert {(part.group, part.count) for part in parts(model(name), Workload(batch=1, sequence=128))} == groups


def test_experts_count_tokens_not_the_rows_that_fill_them_up() -> None:
    # 512 tokens x 6 of 160 experts = 19.2 rows each: executed are 20
    layers, h, width = 59, 5120, 1536
    found = by_name(parts(model("deepseek-v2"), Workload(batch=1, sequence=512)))
    assert found["experts"] == pytest.approx(layers * 512 * 6 * 3 * 2 * h * width, rel=1e-12)

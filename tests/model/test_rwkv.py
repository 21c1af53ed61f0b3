"""RWKV-4 against the closed forms and the table of its paper (2305.13048)."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.errors import ModelError
from parsim.model.activations import caches
from parsim.model.catalogue import build_model
from parsim.model.flops import block_flop, operator_flop
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.rwkv import TimeMixing, TokenMix
from parsim.model.workload import Workload


def built(**changes: Any) -> Model:
    tree = {"model_type": "rwkv", "hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 50277, **changes}
    return build_model(tree, name="rwkv", base_lookup=lambda _: {})


@pytest.mark.parametrize(
    ("hidden", "layers", "parameters", "flop"),
    # table 2 of the paper: 1.693e8 and 2.613e8, ... 1.415e10 and 2.778e10
    [(768, 12, 1.693e8, 2.613e8), (1024, 24, 4.304e8, 7.573e8), (2560, 32, 2.985e9, 5.710e9), (5120, 40, 1.415e10, 2.778e10)],
)
def test_published_models(hidden: int, layers: int, parameters: float, flop: float) -> None:
    model, words = built(hidden_size=hidden, num_hidden_layers=layers), 50277
    assert parameter_count(model) == 2 * words * hidden + 13 * hidden**2 * layers + hidden * (11 * layers + 4)
    assert parameter_count(model) == pytest.approx(parameters, rel=1e-3)
    forward = sum(block_flop(block, 1).forward for block in model.blocks)
    assert forward == 2 * (words * hidden + 13 * hidden**2 * layers)
    assert forward == pytest.approx(flop, rel=1e-3)


def test_backward_is_twice_the_forward() -> None:
    passes = block_flop(built().blocks[1], 512)
    assert passes.backward_input == passes.backward_weight == passes.forward


def test_what_is_kept() -> None:
    at, size = Workload(2, 64), 2 * 64 * 768 * 2
    operators = {operator.name: operator for operator in built().blocks[1].operators}
    core, mix = operators["mixer_core"], operators["mixer_key_mix"]
    assert isinstance(core, TimeMixing)
    assert isinstance(mix, TokenMix)
    assert {save.tensor: save.bytes for save in core.work(at).saves} == dict.fromkeys(("mixer_key", "mixer_value", "mixer_core"), size)
    assert {save.tensor: save.bytes for save in mix.work(at).saves} == dict.fromkeys(("mixer_norm", "mixer_shift"), size)
    assert operator_flop(core, at).forward == 0  # no matrix product


def test_decoding_keeps_the_state_and_the_token_before() -> None:
    assert {(cache.elements, cache.state) for cache in caches(built())} == {(0, 3 * 768 + 2 * 768)}


def test_later_versions_are_refused() -> None:
    with pytest.raises(ModelError, match="from version 5 on"):
        built(model_type="rwkv5")
    with pytest.raises(ModelError, match="three numbers of state"):
        build_model(
            {"family": "rwkv", "hidden": 64, "layers": 2, "vocabulary": 9, "mixer": {"key_dim": 4}}, name="x", base_lookup=lambda _: {}
        )

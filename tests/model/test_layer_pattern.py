"""Which layers of a transformer do what: windows that take turns with attention to all keys."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import ModelError
from parsim.kernel import Attention
from parsim.model.catalogue import build_model, read_architecture
from parsim.model.families.family import shortest
from parsim.model.flops import forward_flop
from parsim.model.transformer import TransformerConfig
from tests.structures import look_up


def architecture(base: str = "llama-2-7b", **changes: Any) -> TransformerConfig:
    return read_architecture({"base": base, **changes}, base_lookup=look_up)


def qwen2(**keys: Any) -> TransformerConfig:
    tree = {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "vocab_size": 151936, "sliding_window": 4096, "use_sliding_window": True, **keys,
    }  # fmt: skip
    return read_architecture(json.loads(json.dumps(tree)), base_lookup=look_up)


@pytest.mark.parametrize(("window", "tokens", "mean"), [(128, 8192, 127.0078125), (4096, 32768, 3840.0625), (0, 32768, 16384.5)])
def test_a_token_sees_so_many_keys_on_average(window: int, tokens: int, mean: float) -> None:
    # w keys each, but the first w tokens 1, 2, ... w: (w (w + 1) / 2 + (s - w) w) / s
    kernel = Attention(1, 32, 8, tokens, tokens, 128, causal=True, window=window)
    assert kernel.flop == 2 * tokens * mean * 32 * 256


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300))
def test_windows_are_counted_pair_by_pair(window: int, tokens: int) -> None:
    pairs = sum(min(token + 1, window) for token in range(tokens))
    assert Attention(1, 1, 1, tokens, tokens, 64, causal=True, window=window).flop == 4 * 64 * pairs


def test_first_layers_full_and_the_rest_windowed() -> None:
    config = qwen2(max_window_layers=21)  # layer i slides from i = max_window_layers on
    assert [config.kind(layer).window for layer in range(24)] == [0] * 21 + [4096] * 3
    assert [qwen2(max_window_layers=24).kind(layer).window for layer in range(24)] == [0] * 24
    assert [qwen2(max_window_layers=0).kind(layer).window for layer in range(24)] == [4096] * 24
    assert qwen2(max_window_layers=21, use_sliding_window=False).attention_window == 0


def test_five_windows_then_a_full_layer() -> None:
    types = (["sliding_attention"] * 5 + ["full_attention"]) * 4
    assert qwen2(layer_types=types) == replace(qwen2(), full_attention_every=6)
    pattern = architecture(attention_window=512, layer_pattern="WWWWW*")
    assert [pattern.kind(layer).window for layer in range(32)] == [0 if layer % 6 == 5 else 512 for layer in range(32)]
    irregular = qwen2(layer_types=(["full_attention"] + ["sliding_attention"] * 2) * 8)
    assert irregular.layer_pattern == "*WW"


def test_a_pattern_costs_what_its_layers_cost() -> None:
    def flop(**changes: Any) -> float:
        return forward_flop(build_model({"base": "llama-2-7b", **changes}, name="m", base_lookup=look_up), 4096)

    full, windowed = flop(), flop(attention_window=512)
    mixed = flop(attention_window=512, layer_pattern="*W*W*WWW")
    assert mixed == pytest.approx(full * 3 / 8 + windowed * 5 / 8, rel=1e-12)
    assert flop(attention_window=512, full_attention_every=4) == flop(attention_window=512, layer_pattern="WWW*")


@settings(max_examples=30, deadline=None)
@given(st.text("*W", min_size=1, max_size=12), st.integers(1, 4))
def test_the_shortest_pattern_says_the_same(letters: str, times: int) -> None:
    again = shortest(letters * times)
    assert len(again) <= len(letters)
    assert (again * (len(letters) * times))[: len(letters) * times] == letters * times


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_pattern": "WX"}, "X: no kind of layer"),
        ({"layer_pattern": "W*"}, "W layers (attention to a sliding window) need attention_window"),
        ({"layer_pattern": "W*" * 20, "attention_window": 512}, "40 letters for 32 layers"),
        ({"layer_pattern": "W*", "attention_window": 512, "full_attention_every": 2}, "full_attention_every 2"),
    ],
)
def test_patterns_that_say_nothing_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        architecture(**changes)
    assert words in str(caught.value)

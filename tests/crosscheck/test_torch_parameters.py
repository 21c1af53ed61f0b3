"""Parameters of real modules, built on the ``meta`` device, against parsim's count of the same configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import COUNTED, SMALL, SPECIAL, small
from torch_side import class_of, counterpart, module, parameters, transformers

from parsim.model.catalogue import build_model
from parsim.model.parameter_counts import parameter_count

ELSEWHERE = {"kimi_k2", "retnet", "nemotron_h", "qwen3_next"}
"""model types of code outside transformers, or whose configurations its classes write with other keys"""
CONFIGS = Path(__file__).parent.parent / "data" / "hf"


@pytest.mark.parametrize("name", [*SMALL, *COUNTED])
def test_small_models(name: str) -> None:
    built = module(small(name))
    assert parameter_count(counterpart(built.config)) == parameters(built)


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
def test_published_models(name: str) -> None:
    tree = json.loads((CONFIGS / f"{name}.json").read_text())
    if tree["model_type"] in ELSEWHERE - {"qwen3_next"}:
        pytest.skip("transformers has no class for this file")
    tree = tree.get("text_config", tree)
    config = transformers.AutoConfig.for_model(**{key: value for key, value in tree.items() if key != "architectures"})
    built = module(config)
    assert parameter_count(counterpart(config)) == parameters(built)
    published = build_model({**tree, "architectures": [class_of(config).__name__]}, name=name, base_lookup=lambda _: {})
    assert parameter_count(published) == parameters(built)


@pytest.mark.parametrize(
    ("kind", "labels"), [("BertModel", 2), ("BertForMaskedLM", 2), ("BertForPreTraining", 2), ("BertForSequenceClassification", 5)]
)
def test_heads_of_bert(kind: str, labels: int) -> None:
    config = small("bert", num_labels=labels)
    built = module(config, kind=getattr(transformers, kind))
    assert parameter_count(counterpart(config, getattr(transformers, kind))) == parameters(built)


@pytest.mark.parametrize("name", [name for name in SMALL if name not in ("opt", "roberta")])
def test_registration_order(name: str) -> None:
    """DistributedDataParallel's buckets follow it. OPT registers its final norm, RoBERTa its position table elsewhere."""
    built = module(small(name))
    model = counterpart(built.config)
    found = [p.count for block in model.blocks for p in block.parameters() if not p.buffer and not p.tied]
    assert found == [parameter.numel() for parameter in built.parameters()]


_WIDTH = st.sampled_from((4, 8, 12, 16))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(("LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config", "GemmaConfig", "Gemma2Config", "MixtralConfig")),
    st.integers(1, 4), st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 4)), _WIDTH, st.integers(1, 40), st.integers(2, 90),
    st.booleans(),
)  # fmt: skip
def test_random_decoders(kind: str, layers: int, groups: int, kv_heads: int, head_dim: int, mlp: int, vocabulary: int, tied: bool) -> None:
    config = getattr(transformers, kind)(
        hidden_size=groups * kv_heads * head_dim, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=groups * kv_heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, vocab_size=vocabulary, tie_word_embeddings=tied, **SPECIAL,
    )  # fmt: skip
    assert parameter_count(counterpart(config)) == parameters(module(config))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(("gpt2", "opt", "gpt-neox", "bert", "roberta")), st.integers(1, 4), _WIDTH, st.integers(1, 40), st.integers(8, 90))
def test_random_models_with_biases(name: str, layers: int, width: int, mlp: int, vocabulary: int) -> None:
    hidden = 4 * width
    changes: dict[str, Any] = {"vocab_size": vocabulary}
    if name == "gpt2":
        changes |= {"n_embd": hidden, "n_layer": layers, "n_inner": mlp}
    else:
        changes |= {"hidden_size": hidden, "num_hidden_layers": layers, "ffn_dim" if name == "opt" else "intermediate_size": mlp}
    if name == "opt":
        changes["word_embed_proj_dim"] = hidden
    config = small(name, **changes)
    assert parameter_count(counterpart(config)) == parameters(module(config))

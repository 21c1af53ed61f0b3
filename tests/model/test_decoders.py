"""Decoders from short Hugging Face configs: counts of parameters that transformers' own classes have, and what stands in a layer."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from decoders import DECODERS, GEMMA4, GPT, GROUPED, HEADS, PARAMETERS, SIZES

from parsim.errors import ModelError
from parsim.model.attention import AttentionCore, QKNorm
from parsim.model.catalogue import build_model
from parsim.model.families import MODEL_TYPES, REFUSED, encoder_decoders, encoders, vision
from parsim.model.flops import attention_width, repeated_work
from parsim.model.huggingface import read_config
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count


def built(kind: str, values: dict[str, Any], **changes: Any) -> Model:
    return build_model({"model_type": kind, **values, **changes}, name=kind, base_lookup=lambda _: {})


def of(name: str, **changes: Any) -> Model:
    return built(*DECODERS[name], **changes)


def names(model: Model, block: int) -> list[str]:
    return [operator.name for operator in model.blocks[block].operators]


@pytest.mark.parametrize("name", DECODERS)
def test_parameters_of_the_class_for_causal_language_models(name: str) -> None:
    assert parameter_count(of(name)) == PARAMETERS[name]


def test_every_decoder_stands_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "adding.md").read_text()
    kinds = {kind for kind, _ in DECODERS.values()} | {kind for family in MODEL_TYPES.values() for kind in family.also}
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in page] == []


@pytest.mark.parametrize(
    ("kind", "values", "count"),
    [
        # every weight by hand: h = 64, f = 176, 2 layers of 4 heads of 16, V = 320
        ("internlm", {"bias": True}, 2 * (4 * (64 * 64 + 64) + 3 * 64 * 176 + 2 * 64) + 2 * 320 * 64 + 64),
        ("internlm2", {"bias": False, "num_key_value_heads": 2}, 2 * (3 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 2 * 320 * 64 + 64),
        ("baichuan", {}, 2 * (4 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 2 * 320 * 64 + 64),
        ("qwen", {"kv_channels": 16, "no_bias": True}, 2 * (4 * 64 * 64 + 3 * 64 + 3 * 64 * 88 + 2 * 64) + 2 * 320 * 64 + 64),
        (
            "chatglm",
            {
                "num_hidden_layers": None, "intermediate_size": None, "vocab_size": 300, "max_position_embeddings": None,
                "num_layers": 2, "ffn_hidden_size": 176, "padded_vocab_size": 320, "seq_length": 64, "multi_query_attention": True,
                "multi_query_group_num": 2, "kv_channels": 16, "add_qkv_bias": True, "add_bias_linear": False,
                "architectures": ["ChatGLMModel"],
            },
            2 * (64 * (64 + 64) + 128 + 64 * 64 + 3 * 64 * 176 + 2 * 64) + 2 * 320 * 64 + 64,
        ),
        ("exaone", {"num_layers": 2, "activation_function": "silu"}, 2 * (4 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 2 * 320 * 64 + 64),
        ("minicpm", {"scale_emb": 12, "tie_word_embeddings": True}, 2 * (4 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 320 * 64 + 64),
        ("orion", {}, 2 * (4 * 64 * 64 + 3 * 64 * 176 + 4 * 64) + 2 * 320 * 64 + 128),
        (
            "deepseek",
            {
                "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
                "first_k_dense_replace": 1,
            },
            2 * (4 * 64 * 64 + 2 * 64) + 3 * 64 * 176 + (4 + 2) * 3 * 64 * 48 + 4 * 64 + 2 * 320 * 64 + 64,
        ),
        (
            "bailing_moe",
            {"num_experts": 4, "num_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_head": True},
            2 * (4 * 64 * 64 + (4 + 2) * 3 * 64 * 48 + 4 * 64 + 2 * 64) + 2 * 320 * 64 + 64,
        ),
        ("transformer", {"num_heads": 4, "num_attention_heads": None}, 2 * (4 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 2 * 320 * 64 + 64),
        ("Yi", {"num_key_value_heads": 2}, 2 * (3 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 2 * 320 * 64 + 64),
    ],
)  # fmt: skip
def test_parameters_of_models_whose_code_lies_beside_their_weights(kind: str, values: dict[str, Any], count: int) -> None:
    assert parameter_count(built(kind, {**SIZES, "num_hidden_layers": 2, **values})) == count


def test_every_model_type_is_counted() -> None:
    """Here, or among the recorded configs of published models."""
    from test_huggingface import CONFIGS, config

    recorded = {tree.get("text_config", tree)["model_type"] for tree in map(config, (path.stem for path in CONFIGS.glob("*.json")))}
    by_hand = {
        "internlm",
        "internlm2",
        "baichuan",
        "qwen",
        "chatglm",
        "exaone",
        "minicpm",
        "orion",
        "deepseek",
        "bailing_moe",
        "transformer",
        "gla",  # test_linear_attention.py
        "gated_deltanet",
        "step3p5",  # test_mixed_layers.py
    }
    same = {kind for kind, family in MODEL_TYPES.items() if kind in family.also}
    others = {family.model_type for module in (encoders, vision, encoder_decoders) for family in module.FAMILIES}  # crosscheck/towers.py
    assert set(MODEL_TYPES) - {kind for kind, _ in DECODERS.values()} - recorded - by_hand - same - others == {"qwen2_moe"}
    assert not set(MODEL_TYPES) & set(REFUSED)


def test_norms_stand_where_the_architecture_has_them() -> None:
    behind = names(of("olmo2"), 1)
    assert "attention_norm" not in behind
    assert behind.index("attention_output") < behind.index("attention_output_norm") < behind.index("attention_residual")
    assert behind.index("mlp_down") < behind.index("mlp_output_norm") < behind.index("mlp_residual")
    beside = names(of("gptj"), 1)
    assert not {"mlp_norm", "attention_residual"} & set(beside)
    assert "mlp_norm" in names(of("falcon of 40B"), 1)
    assert "mlp_norm" not in names(of("falcon"), 1)


def test_norms_of_queries_and_keys_by_head_or_by_projection() -> None:
    def shapes(name: str) -> list[tuple[int, ...]]:
        norm = next(one for one in of(name).blocks[1].operators if isinstance(one, QKNorm))
        return [parameter.shape for parameter in norm.parameters()]

    assert shapes("gemma3_text") == [(24,), (24,)]
    assert shapes("olmo2") == [(64,), (32,)]
    assert shapes("cohere with norms") == [(4, 16), (2, 16)]
    assert shapes("persimmon") == [(16,)] * 4


def test_windows_and_rotary_positions_layer_by_layer() -> None:
    def layers(model: Model) -> list[tuple[int, bool, bool]]:
        found = []
        for block in model.blocks[1:-1]:
            core = next(one for one in block.operators if isinstance(one, AttentionCore))
            words = [one.name for one in block.operators]
            found.append((core.window, "rotary" in words, "query_key_norm" in words))
        return found

    assert layers(of("gemma3_text", num_hidden_layers=7)) == [(8, True, True)] * 5 + [(0, True, True), (8, True, True)]
    assert layers(of("cohere2")) == [(8, True, False)] * 3 + [(0, False, False)]
    assert layers(of("exaone4")) == [(8, True, True)] * 3 + [(0, False, True)]
    assert layers(of("exaone4 without windows")) == [(0, True, True)] * 4
    assert layers(of("smollm3")) == [(0, True, False)] * 3 + [(0, False, False)]
    assert layers(of("smollm3", no_rope_layers=[1, 1, 1, 1])) == [(0, True, False)] * 4
    assert [window for window, _, _ in layers(of("gpt_neo"))] == [0, 8]


@pytest.mark.parametrize(
    ("suffix", "head"),
    [
        ("ForSequenceClassification", 64 * 5),
        ("ForTokenClassification", 64 * 5 + 5),
        ("ForQuestionAnswering", 64 * 2 + 2),
        ("Model", 0),
    ],
)
@pytest.mark.parametrize("name", ["olmo2", "gptj", "falcon", "gemma3_text"])
def test_heads_of_decoders(name: str, suffix: str, head: int) -> None:
    whole, tied = of(name), name in ("falcon", "gemma3_text")
    logits = 320 if name == "gptj" else 0
    prefix = name.replace("_", "") if suffix == "Model" else "Some"
    other = of(name, architectures=[prefix + suffix], num_labels=5)
    assert parameter_count(other) == parameter_count(whole) - (0 if tied else 320 * 64) - logits + head


@pytest.mark.parametrize("name", ["LlamaForRewardModel", "GPT2DoubleHeadsModel", "SomeForConditionalGeneration", "LlamaDraftModel"])
def test_other_heads_are_refused_by_name(name: str) -> None:
    with pytest.raises(ModelError, match=f"the head of {name} is not supported yet"):
        read_config({"model_type": "llama", **SIZES, "architectures": [name]})


@pytest.mark.parametrize(
    "harmless",
    [
        {"some_flag": False}, {"some_size": 0}, {"some_list": []}, {"some_mapping": {}}, {"some_word": ""}, {"some_thing": None},
        {"qkv_bias": False}, {"shared_expert_intermediate_size": 0}, {"transformers.js_config": {"dtype": "q4"}}, {"rope_anything": 3},
        {"_attn_implementation_internal": "sdpa"}, {"num_beams": 4}, {"temperature": 0.6}, {"use_mrope": True}, {"image_token_id": 7},
        {"quantization_config": {"bits": 4}}, {"auto_map": {"AutoModel": "a.b"}},
    ],
)  # fmt: skip
def test_keys_that_cannot_change_the_arithmetic_do_not_stop_a_config(harmless: dict[str, Any]) -> None:
    tree = {"model_type": "llama", **SIZES}
    assert read_config({**tree, **harmless}) == read_config(tree)


@pytest.mark.parametrize("telling", [{"is_causal": False}, {"some_size": 3}, {"some_flag": True}, {"some_list": [0]}, {"use_rope": False}])
def test_keys_that_may_change_it_stop_and_are_named(telling: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=repr(next(iter(telling)))):
        read_config({"model_type": "llama", **SIZES, **telling})


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("bitnet", SIZES, "weights of one or two bits"),
        ("rwkv6", SIZES, "time mixing of RWKV from version 5 on"),
        ("gemma3n_text", SIZES, "alternating updates"),
        ("gemma4_text", {**GEMMA4, "num_kv_shared_layers": 4}, "must be a whole number below num_hidden_layers 4, is 4"),
        ("gemma4_text", {**GEMMA4, "num_kv_shared_layers": True}, "must be a whole number below num_hidden_layers 4, is True"),
        ("gemma4_text", {**GEMMA4, "num_kv_shared_layers": 2}, "no layer before them is one of full_attention"),
        ("gemma4_text", {**GEMMA4, "hidden_size_per_layer_input": -1}, "must be a whole number of at least 1, is -1"),
        ("gemma4_text", {**GEMMA4, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": "x"}, "vocab_size_per_layer_input"),
        ("gemma4_text", {**GEMMA4, "use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ("gemma4_text", {**GEMMA4, "sliding_window": None}, "layers of sliding_attention need a window"),
        ("gemma4_text", {**GEMMA4, "hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        ("gemma4_text", {**GEMMA4, "enable_moe_block": True}, "top_k_experts is required"),
        ("gemma4_text", {**GEMMA4, "num_global_key_value_heads": 3}, "heads / kv_heads = 4 / 3"),
        ("gemma4_text", {**GEMMA4, "attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is a key that parsim does not read"),
        ("gemma4_text", {**GEMMA4, "per_layer_config": {"3": {"sliding_window": 4}}}, "sliding_window of layer 3"),
        ("gemma4_text", {**GEMMA4, "per_layer_config": {"0": {"head_dim": 8}}}, "layer 0 (sliding_attention) has heads of other sizes"),
        ("gemma4", {"text_config": {"model_type": "gemma4_text", **GEMMA4}, "audio_config": {"hidden_size": 8}}, "a tower of speech, as"),
        (
            "gemma4",
            {"text_config": {"model_type": "gemma4_text", **GEMMA4}, "vision_config": {"some_size": 3}},
            "'some_size' is a key that parsim does not read of a Gemma 4 tower",
        ),
        ("minimax_m2", {**HEADS, "attn_type_list": [0, 1, 1, 1]}, "linear attention of MiniMax"),
        ("smollm3", {**GROUPED, "no_rope_layers": [0, 1, 1, 1]}, "all but every 4th"),
        (
            "gpt_neo",
            {**GPT, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 10**9]]},
            "at most 100,000",
        ),
        ("gpt_neo", {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 9, "attention_types": [["local"]]}, "must be pairs"),
        ("qwen3_moe", {**HEADS, "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [2]}, "dense layers behind"),
        ("hunyuan_v1_moe", {**HEADS, "num_experts": [4, 8, 8, 8], "moe_topk": 2}, "must be a whole number, is [4, 8, 8, 8]"),
        ("ernie4_5_moe", {**GROUPED, "moe_num_experts": 4, "moe_k": 2, "moe_layer_end_index": 2}, "dense layers behind"),
        ("granitemoehybrid", {**GROUPED, "mamba_n_heads": 8, "mamba_d_head": 24}, "8 x 24 is not mamba_expand x hidden_size = 128"),
        ("dbrx", {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 9}, "ffn_config is required"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(kind: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_config({"model_type": kind, **values})
    assert words in str(caught.value)


def test_layers_that_see_all_keys_have_heads_of_their_own() -> None:
    """Sizes as published files write them and as transformers 5.23 does; the last layer sees all keys whatever the file says."""
    for name, values in {"published": {}, "written again": {"per_layer_config": {"3": {"head_dim": 32, "num_key_value_heads": 1}}}}.items():
        model = of("gemma4_text", **values)
        cores = [one for block in model.blocks for one in block.operators if isinstance(one, AttentionCore)]
        found = [(core.kv_heads, core.head_dim, core.window, core.values_apart) for core in cores]
        assert found == [(2, 24, 8, False)] * 3 + [(1, 32, 0, True)], name
        assert (model.largest_head_dim, list(model.key_value_heads.values())) == (32, [2, 1])
        assert parameter_count(model) == PARAMETERS["gemma4_text"]


def test_attention_flop_are_those_of_each_kind_of_layer() -> None:
    """Scores and values of 4 heads: a window of 8 of 64 tokens three times with 24 elements a head, half a square with 32."""
    model, s, w = of("gemma4_text"), 64, 8
    window, full = s * w - w * w / 2, s * s / 2
    assert repeated_work(model, s, "selective").core == (3 * 4 * 4 * 24 * window + 4 * 4 * 32 * full) / s
    assert attention_width(model) == 4 * (3 * 24 + 32) / 4


def test_experts_beside_the_dense_mlp_read_the_residual_stream() -> None:
    model = of("gemma4_text, experts beside the MLP")
    reads = {operator.name: operator.inputs for operator in model.blocks[1].operators}
    assert reads["mlp_up"] == ("mlp_norm",)
    assert reads["mixture.router_norm"] == reads["mixture_norm"] == reads["mlp_norm"] == ("attention_residual",)
    assert reads["mixture.dispatch"][0] == "mixture_norm"
    assert reads["mlp_sum"] == ("dense_output_norm", "mixture_output_norm")


def test_first_layers_without_experts() -> None:
    values = {**HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    config = read_config({"model_type": "qwen3_moe", **values, "mlp_only_layers": [0, 1]})
    assert [config.is_mixture(layer) for layer in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(
    "name",
    [
        "gemma3_text",
        "gemma4_text, experts beside the MLP",
        "gptj",
        "gpt_neo",
        "falcon",
        "dots1",
        "granitemoehybrid",
        "nemotron_h with experts",
        "bamba",
    ],
)
def test_strange_values_are_findings(name: str) -> None:
    """No value under any key ends in anything but a model or a finding."""
    kind, values = DECODERS[name]
    family = MODEL_TYPES[kind]
    further = {
        "per_layer_config",
        "global_head_dim",
        "enable_moe_block",
        "layer_types",
        "sliding_window_pattern",
        "mlp_only_layers",
        "id2label",
        "rope_parameters",
        "moe_layer_end_index",
    }
    for key in {*values, *family.keys, *family.stated, *further}:
        for value in ("x", [], [1], {}, {"a": 1}, -1, 1.5, True, 0, 10**12):
            with contextlib.suppress(ModelError):
                read_config({"model_type": kind, **values, key: value})

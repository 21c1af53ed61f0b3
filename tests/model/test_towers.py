"""Models whose blocks work on different tokens: encoder-decoders, and text models with a vision tower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structures import look_up

from parsim.errors import ModelError
from parsim.model.activations import saved_bytes
from parsim.model.catalogue import build_model
from parsim.model.flops import CONVENTIONS, flop_per_token, forward_flop
from parsim.model.lengths import Lengths
from parsim.model.liveness import tape
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count, trainable_parameter_count
from parsim.model.parts import parts
from parsim.model.workload import Workload
from parsim.scenario import load
from parsim.scenario.build import build

VISION = {
    "model_type": "qwen2_5_vl", "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
    "in_chans": 3, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2, "temporal_patch_size": 2,
}  # fmt: skip
QWEN: dict[str, Any] = {  # Qwen/Qwen2.5-VL-7B-Instruct, config.json
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "vision_start_token_id": 151652, "vision_end_token_id": 151653, "vision_token_id": 151654, "image_token_id": 151655,
    "video_token_id": 151656, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
    "max_position_embeddings": 128000, "max_window_layers": 28, "model_type": "qwen2_5_vl", "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": False, "use_cache": True, "use_sliding_window": False, "vision_config": VISION,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vocab_size": 152064,
}  # fmt: skip


def shipped(name: str, source: int = 0, target: int = 0) -> Model:
    return build_model(look_up(name), name=name, base_lookup=look_up, lengths=Lengths(source, target))


def qwen(lengths: Lengths = Lengths(), **changes: Any) -> Model:  # noqa: B008 - immutable
    return build_model({**QWEN, **changes}, name="qwen", base_lookup=look_up, lengths=lengths)


def test_forward_work_of_an_encoder_decoder() -> None:
    # T5-base: h 768, f 3072, V 32128; of every product 2 x rows x weights, of attention 4 x queries x keys x h, causal ones by half
    h, f, vocabulary, source, target = 768, 3072, 32128, 512, 128
    encoder = 12 * (2 * source * (4 * h * h + 2 * h * f) + 4 * source**2 * h)
    own = 2 * target * (4 * h * h + 2 * h * f) + 4 * target**2 * h / 2
    cross = 2 * target * 2 * h * h + 2 * source * 2 * h * h + 4 * target * source * h
    expected = encoder + 12 * (own + cross) + 2 * target * h * vocabulary
    model = shipped("t5-base", source, target)
    assert forward_flop(model, source) * source == expected
    assert flop_per_token(model, source) * source == 3 * expected
    at = Workload(1, source)
    assert sum(part.flop["forward"] for part in parts(model, at)) == expected


def test_equal_lengths_need_not_be_said() -> None:
    said, unsaid = shipped("t5-base", 512, 512), shipped("t5-base")
    assert forward_flop(said, 512) == forward_flop(unsaid, 512)
    assert saved_bytes(said, Workload(2, 512)) == saved_bytes(unsaid, Workload(2, 512))


def test_the_encoders_output_is_kept_once() -> None:
    """Another decoder layer keeps its own tensors: queries, keys and values of the memory, but not the memory again."""
    at, memory = Workload(2, 512), 2 * 512 * 768 * 2
    model = shipped("t5-base", 512, 1)
    layer = next(block for name, block in zip(model.block_names, model.blocks, strict=True) if name == "decoder layer 3")
    entry = tape(layer, at)
    kept = {name: entry.tensors[name].bytes for name in entry.saved}
    assert kept["cross_key_value"] == 2 * memory
    assert "memory" not in entry.tensors
    begin = tape(model.blocks[model.block_names.index("decoder embedding")], at)
    assert begin.input_saved
    assert begin.tensors["input"].bytes == memory


def test_closed_forms_do_not_describe_two_stacks() -> None:
    model = shipped("t5-base")
    assert [name for name, one in CONVENTIONS.items() if one.applies(model)] == ["exact", "hfu", "megatron-lm"][:2]
    with pytest.raises(ModelError, match="does not describe"):
        flop_per_token(model, 512, "palm")


def test_a_spectrogram_has_fixed_tokens_and_frozen_positions() -> None:
    model = shipped("whisper-large-v3")
    assert model.facts["sequence_length"] == 1500
    assert model.facts["target_length"] == 448
    assert parameter_count(model) - trainable_parameter_count(model) == 1500 * 1280
    assert [name for _, _, name in model.ties] == ["embedding.word_embeddings.weight"]


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        ({"layers": 0}, "at least 1"),
        ({"layers": 10**7}, "at most 100,000"),
        ({"heads": 7}, "hidden / heads = 1280 / 7 is not whole"),
        ({"tokens": 0}, "a fixed number of tokens"),
    ],
)
def test_an_encoder_that_cannot_be(encoder: dict[str, int], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        build_model({"base": "whisper-large-v3", "encoder": encoder}, name="wrong", base_lookup=look_up)
    assert words in str(caught.value)


def test_tensor_ranks_share_an_encoder_decoder() -> None:
    whole, at = shipped("t5-base", 512, 128), Workload(4, 512, tensor=4)
    for block in dict.fromkeys(whole.blocks):
        for operator in block.operators:
            if operator.split in ("column", "row") and hasattr(operator, "in_features"):
                one, four = (operator.work(w.tokens_in(block)).forward[-1].flop for w in (replace(at, tensor=1), at))
                assert one == 4 * four


def test_published_count_of_a_vision_language_model() -> None:
    assert parameter_count(qwen()) == 8_292_166_656  # the safetensors of Qwen/Qwen2.5-VL-7B-Instruct


QWEN35_TEXT = {
    "model_type": "qwen3_5_text", "attn_output_gate": True, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 17408, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 48, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False, "num_attention_heads": 24, "num_hidden_layers": 64, "num_key_value_heads": 4,
    "output_gate_type": "swish", "rope_parameters": {"partial_rotary_factor": 0.25}, "vocab_size": 248320,
}  # fmt: skip
QWEN35_VISION = {
    "deepstack_visual_indexes": [], "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152, "in_channels": 3,
    "intermediate_size": 4304, "model_type": "qwen3_5", "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 5120,
    "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip


def qwen35(text: dict[str, Any], vision: dict[str, Any]) -> Model:
    tree = {"model_type": "qwen3_5", "text_config": {**QWEN35_TEXT, **text}, "vision_config": {**QWEN35_VISION, **vision}}
    return build_model(tree, name="qwen3.5", base_lookup=look_up)


@pytest.mark.parametrize("tied", [False, True])
def test_count_of_a_hybrid_with_a_tower(tied: bool) -> None:
    """Of Qwen3.5 27B, by transformers' class on the meta device, which heeds ties of the whole config alone."""
    assert parameter_count(qwen35({"tie_word_embeddings": tied}, {})) == 27_356_728_560


@pytest.mark.parametrize(
    ("text", "vision", "words"),
    [
        ({}, {"deepstack_visual_indexes": [8]}, "which Qwen3.5 does not read"),
        ({"attn_output_gate": False}, {}, "attn_output_gate: False is not supported yet"),
        ({"output_gate_type": "sigmoid"}, {}, "output_gate_type: 'sigmoid' is not supported yet"),
    ],
)
def test_another_hybrid_is_refused(text: dict[str, Any], vision: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        qwen35(text, vision)
    assert words in str(caught.value)


@pytest.mark.parametrize("key", ["fusion_layer", "encoder_width", "add_type_embeddings"])
def test_a_bert_of_images_says_what_it_is(key: str) -> None:
    bert = {"model_type": "bert", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4}
    with pytest.raises(ModelError) as caught:
        build_model({**bert, "vocab_size": 320, key: 1}, name="albef", base_lookup=look_up)
    assert "a BERT whose layers attend to images, too (ALBEF, BLIP)" in str(caught.value)


def test_images_are_work_of_the_tower_alone() -> None:
    """So many more FLOP as the tower has on one image; the text's stay."""
    one, two, none = (forward_flop(model, 4096) * 4096 for model in (qwen(), qwen(Lengths(images=2)), qwen(vision_config=VISION)))
    tower = two - one
    assert one == none
    text = {**{key: value for key, value in QWEN.items() if key not in ("vision_config", "architectures")}, "model_type": "qwen2"}
    text = {key: value for key, value in text.items() if not key.startswith(("vision", "image", "video"))}
    alone = build_model(text, name="text", base_lookup=look_up)
    assert one - tower == forward_flop(alone, 4096) * 4096
    patches, h, f = 1024, 1280, 3420
    layers = 32 * 2 * patches * (4 * h * h + 3 * h * f) + 28 * 4 * patches * 64 * h + 4 * 4 * patches**2 * h
    assert tower == layers + 2 * patches * 1176 * h + 2 * 256 * (5120 * 5120 + 5120 * 3584)


def test_the_text_alone_is_asked_for() -> None:
    trees = {"mine": QWEN}
    alone = build_model({"base": "mine", "vision": None, "projector": None}, name="text", base_lookup=trees.__getitem__)
    assert parameter_count(alone) == 7_615_616_512  # Qwen2.5-7B


INTERN_VIT = {
    "model_type": "intern_vit_6b", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 448, "patch_size": 14, "qkv_bias": True, "qk_normalization": False, "norm_type": "layer_norm",
}  # fmt: skip
INTERN_LM = {
    "model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 92553, "bias": False,
    "max_position_embeddings": 32768,
}  # fmt: skip


def internvl_chat(**changes: Any) -> Model:
    """OpenGVLab/InternVL2-2B: 2,205,754,368 parameters in its safetensors file."""
    tree = {
        "model_type": "internvl_chat", "architectures": ["InternVLChatModel"], "llm_config": INTERN_LM, "vision_config": INTERN_VIT,
        "downsample_ratio": 0.5, "select_layer": -1, "ps_version": "v2", "force_image_size": 448, "use_llm_lora": 0, **changes,
    }  # fmt: skip
    return build_model(tree, name="internvl", base_lookup=look_up)


def test_files_beside_the_first_weights_of_internvl() -> None:
    assert parameter_count(internvl_chat()) == 2_205_754_368
    tower = 24 * (4 * 1024**2 + 4 * 1024 + 2 * 1024 * 4096 + 5 * 1024 + 4 * 1024 + 2 * 1024) + 1024 * (588 + 1) + 1024 * (1025 + 1)
    projector = 2 * 4096 + 4096 * 2048 + 2048 + 2048**2 + 2048
    text = build_model(INTERN_LM, name="internlm2", base_lookup=look_up)
    assert parameter_count(internvl_chat()) == parameter_count(text) + tower + projector
    normed = internvl_chat(vision_config={**INTERN_VIT, "qk_normalization": True})
    assert parameter_count(normed) == parameter_count(internvl_chat()) + 24 * 2 * 1024
    for changes, words in (
        ({"use_llm_lora": 16}, "adapters within the model"),
        ({"llm_config": None}, "has a llm_config"),
        ({"architectures": ["InternVLReward"]}, "InternVLReward is not supported yet"),
    ):
        with pytest.raises(ModelError) as caught:
            internvl_chat(**changes)
        assert words in str(caught.value)


def test_the_tower_of_kimi_vl() -> None:
    """moonshotai/Kimi-VL-A3B: a MoonViT and a projector beside Moonlight's text."""
    h, f = 1152, 4304
    tower = {
        "model_type": "moonvit", "patch_size": 14, "num_attention_heads": 16, "num_hidden_layers": 27, "hidden_size": h,
        "intermediate_size": f, "merge_kernel_size": [2, 2], "init_pos_emb_height": 64, "init_pos_emb_width": 64,
    }  # fmt: skip
    text = {
        "model_type": "deepseek_v3", "hidden_size": 2048, "intermediate_size": 11264, "moe_intermediate_size": 1408, "vocab_size": 163840,
        "num_hidden_layers": 3, "num_attention_heads": 16, "num_key_value_heads": 16, "n_shared_experts": 2, "n_routed_experts": 64,
        "num_experts_per_tok": 6, "kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
        "v_head_dim": 128, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    }  # fmt: skip
    whole = {"model_type": "kimi_vl", "architectures": ["KimiVLForConditionalGeneration"], "text_config": text, "vision_config": tower}
    layers = 27 * (4 * h**2 + 4 * h + 2 * h * f + f + h + 4 * h)
    around = h * (3 * 14**2 + 1) + 64 * 64 * h + 2 * h + 2 * h + 4 * h * (4 * h + 1) + 2048 * (4 * h + 1)
    count = [parameter_count(build_model(tree, name="kimi", base_lookup=look_up)) for tree in (whole, text)]
    assert count[0] - count[1] == layers + around == 447_545_840


LLAMA4_TEXT = {
    "model_type": "llama4_text", "hidden_size": 64, "intermediate_size": 176, "intermediate_size_mlp": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 1,
    "vocab_size": 320,
}  # fmt: skip


def test_a_llama_4_without_a_tower_is_its_text() -> None:
    """The tower that the class makes by itself is 768 wide and does not fit the projector behind it: nobody can have trained it."""
    classes = ["Llama4ForConditionalGeneration"]
    whole = {"model_type": "llama4", "architectures": classes, "text_config": LLAMA4_TEXT}
    text = {**LLAMA4_TEXT, "architectures": ["Llama4ForCausalLM"]}
    counts = {parameter_count(build_model(tree, name="llama4", base_lookup=look_up)) for tree in (whole, text)}
    assert len(counts) == 1
    settings = {"training": {"sequence_length": 64, "micro_batch": 1, "global_batch": 8}, "cluster": {"topology": "hgx-h100"}}
    said = {one.name: one.value for one in build(load({"model": whole, **settings})).assumptions}
    assert said["model_tower"] == "none: the text alone is trained"


def test_a_class_of_the_text_alone_over_a_config_with_a_tower() -> None:
    whole = {"model_type": "llama4", "text_config": LLAMA4_TEXT, "vision_config": {"hidden_size": 32}, "image_token_index": 9}
    text = build_model({**LLAMA4_TEXT, "architectures": ["Llama4ForCausalLM"]}, name="llama4", base_lookup=look_up)
    read = build_model({**whole, "architectures": ["Llama4ForCausalLM"]}, name="llama4", base_lookup=look_up)
    assert (read.blocks, read.facts["vision"]) == (text.blocks, None)
    with pytest.raises(ModelError, match="some_size"):
        build_model({**whole, "architectures": ["Llama4ForCausalLM"], "some_size": 3}, name="llama4", base_lookup=look_up)
    with pytest.raises(ModelError, match="Llama4ForTokenClassification is not supported yet"):
        build_model({**whole, "architectures": ["Llama4ForTokenClassification"]}, name="llama4", base_lookup=look_up)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vision_config": None}, "has a vision_config; the text alone is another model"),
        ({"vision_config": {**VISION, "depth": None}}, "depth is required"),
        ({"vision_config": {**VISION, "num_heads": 7}}, "hidden / heads = 1280 / 7 is not whole"),
        ({"vision_config": {**VISION, "hidden_size": [1]}}, "cannot be read"),
        ({"vision_config": {**VISION, "patch_size": 15}}, "size / patch = 448 / 15 is not whole"),
        ({"vision_config": {**VISION, "spatial_merge_size": 0}}, "no whole number of tokens"),
        ({"vision_config": {**VISION, "depth": 10**9}}, "at most 100,000"),
        ({"memory_tokens": 4}, "memory_tokens"),
        ({"model_type": "mllama"}, "cross attention to images"),
        ({"model_type": "clip"}, "a contrastive loss"),
        ({"model_type": "llava"}, "has a text_config"),
    ],
)
def test_what_cannot_be_read_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        qwen(**changes)
    assert words in str(caught.value)

"""Small configurations of encoders, encoder-decoders and models with a vision tower, as transformers' own classes."""

from __future__ import annotations

from typing import Any

from torch_side import transformers

_SPECIAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
_BERT = {
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 320,
    "max_position_embeddings": 66, **_SPECIAL,
}  # fmt: skip
_DEBERTA = {
    **_BERT, "type_vocab_size": 0, "relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 8,
    "max_relative_positions": -1, "position_biased_input": False,
}  # fmt: skip
_DISTIL = {"dim": 64, "hidden_dim": 176, "n_layers": 2, "n_heads": 4, "vocab_size": 320, "max_position_embeddings": 64}
_IMAGE = {
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
}  # fmt: skip
ENCODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "xlm-roberta": ("XLMRoberta", _BERT, "MaskedLM SequenceClassification TokenClassification QuestionAnswering Model"),
    "camembert": ("Camembert", _BERT, "MaskedLM"),
    "roberta-prelayernorm": ("RobertaPreLayerNorm", _BERT, "MaskedLM SequenceClassification TokenClassification QuestionAnswering Model"),
    "megatron-bert": (
        "MegatronBert",
        _BERT,
        "MaskedLM PreTraining SequenceClassification TokenClassification QuestionAnswering Model",
    ),
    "distilbert": ("DistilBert", _DISTIL, "MaskedLM SequenceClassification TokenClassification QuestionAnswering Model"),
    "electra": ("Electra", {**_BERT, "embedding_size": 32}, "PreTraining MaskedLM SequenceClassification TokenClassification Model"),
    "mpnet": ("MPNet", _BERT, "MaskedLM SequenceClassification Model"),
    "nomic-bert": ("NomicBert", _BERT, "MaskedLM SequenceClassification Model"),
    "modernbert": (
        "ModernBert",
        {**_BERT, "cls_token_id": 0, "sep_token_id": 0},
        "MaskedLM SequenceClassification TokenClassification QuestionAnswering Model",
    ),
    "deberta-v3": (
        "DebertaV2",
        {**_DEBERTA, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
        "MaskedLM SequenceClassification TokenClassification QuestionAnswering Model",
    ),
    "deberta-v2 with projections of positions": ("DebertaV2", {**_DEBERTA, "position_biased_input": True}, "MaskedLM Model"),
    "deit": ("DeiT", _IMAGE, "ImageClassification"),
    "dinov2": ("Dinov2", _IMAGE, "ImageClassification"),
    "dinov2 gated": ("Dinov2", {**_IMAGE, "use_swiglu_ffn": True}, "ImageClassification"),
}
"""name -> class, configuration, heads"""

_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 176, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "vocab_size": 320}
_BART = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 176, "decoder_ffn_dim": 96, "vocab_size": 320, "max_position_embeddings": 64, "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}  # fmt: skip
ENCODER_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", _T5),
    "t5 gated": ("T5", {**_T5, "feed_forward_proj": "gated-gelu"}),
    "mt5": ("MT5", _T5),
    "umt5": ("UMT5", _T5),
    "bart": ("Bart", _BART),
    "mbart": ("MBart", _BART),
    "pegasus": ("Pegasus", _BART),
    "marian": ("Marian", {**_BART, "decoder_vocab_size": 320}),
    "m2m-100": ("M2M100", _BART),
    "whisper": (
        "Whisper",
        {
            **{key: value for key, value in _BART.items() if key != "max_position_embeddings"}, "max_source_positions": 24,
            "max_target_positions": 64, "num_mel_bins": 8,
        },
    ),
}  # fmt: skip

_TEXT = {
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 320, "max_position_embeddings": 256, "head_dim": 16, **_SPECIAL,
}  # fmt: skip
_QWEN_TEXT = {
    **{key: value for key, value in _TEXT.items() if key != "head_dim"},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}
_QWEN35_TEXT = {
    **_TEXT, "num_hidden_layers": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}  # fmt: skip
_QWEN35_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 32}
_QWEN35_122B = {
    "hidden_size": 3072, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 2, "vocab_size": 248320,
    "linear_num_value_heads": 64, "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024,
}  # fmt: skip
"""where Qwen/Qwen3.5-122B-A10B differs from the class's defaults"""
_VISION = {**_IMAGE, "hidden_size": 32, "intermediate_size": 96, "num_attention_heads": 2}
_QWEN_VISION = {"depth": 2, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
_MERGED = {**_QWEN_VISION, "hidden_size": 32, "intermediate_size": 96, "out_hidden_size": 64}


def _both(text: str, vision: str, **further: Any) -> dict[str, Any]:
    pooled = {"vision_use_head": False} if vision == "siglip_vision_model" else {}
    return {"text_config": {**_TEXT, "model_type": text}, "vision_config": {**_VISION, **pooled, "model_type": vision}, **further}


VISION_LANGUAGE: dict[str, tuple[str, dict[str, Any], int]] = {
    "llava": ("Llava", _both("llama", "clip_vision_model", vision_feature_layer=-1), 16),
    "llava pixtral": (
        "Llava",
        _both("mistral", "pixtral", vision_feature_layer=-1, vision_feature_select_strategy="full"),
        16,
    ),
    "llava_next": ("LlavaNext", _both("mistral", "clip_vision_model"), 0),
    "paligemma": ("PaliGemma", _both("gemma", "siglip_vision_model", projection_dim=64), 16),
    "gemma3": ("Gemma3", _both("gemma3_text", "siglip_vision_model", mm_tokens_per_image=4), 4),
    "gemma4": (
        "Gemma4",
        {
            "text_config": {**_TEXT, "model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "global_head_dim": 32},
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
                "head_dim": 24, "patch_size": 8, "pooling_kernel_size": 2, "position_embedding_size": 64, "standardize": True,
            },
        },
        4,
    ),
    "gemma4 of E2B": (
        "Gemma4",
        {
            "text_config": {
                **_TEXT, "model_type": "gemma4_text", "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 320,
                "num_kv_shared_layers": 1, "use_double_wide_mlp": True, "layer_types": ["full_attention"] * 2, "global_head_dim": 32,
            },
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
                "head_dim": 24, "patch_size": 8, "pooling_kernel_size": 2, "position_embedding_size": 64, "use_clipped_linears": True,
            },
        },
        4,
    ),
    "idefics3": ("Idefics3", _both("llama", "idefics3_vision", scale_factor=2), 4),
    "smolvlm": ("SmolVLM", {**_both("llama", ""), "vision_config": _VISION, "scale_factor": 2}, 0),
    "mistral3": ("Mistral3", _both("mistral", "pixtral", spatial_merge_size=2), 4),
    "internvl": (
        "InternVL",
        {
            "text_config": {**_QWEN_TEXT, "model_type": "qwen2", "rope_parameters": None},
            "vision_config": {**_VISION, "image_size": [32, 32], "patch_size": [8, 8]},
        },
        4,
    ),
    "internvl of 6B": (
        "InternVL",
        {
            "text_config": {**_QWEN_TEXT, "model_type": "qwen2", "rope_parameters": None},
            "vision_config": {
                **_VISION, "image_size": [32, 32], "patch_size": [8, 8], "use_qk_norm": True, "norm_type": "rms_norm",
                "attention_bias": False,
            },
        },
        4,
    ),
    "llama4": (
        "Llama4",
        {
            "text_config": {**_TEXT, "model_type": "llama4_text", "num_local_experts": 4, "intermediate_size_mlp": 96},
            "vision_config": {
                **_VISION, "intermediate_size": 128, "projector_input_dim": 24, "projector_output_dim": 24, "vision_output_dim": 24,
            },
        },
        0,
    ),
    "qwen2_vl": (
        "Qwen2VL",
        {"text_config": _QWEN_TEXT, "vision_config": {**_QWEN_VISION, "embed_dim": 32, "hidden_size": 64}},
        4,
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        {"text_config": _QWEN_TEXT, "vision_config": {**_MERGED, "fullatt_block_indexes": [0, 1], "window_size": 16}},
        4,
    ),
    "qwen3_vl": (
        "Qwen3VL",
        {"text_config": _TEXT, "vision_config": {**_MERGED, "num_position_embeddings": 36, "deepstack_visual_indexes": [0]}},
        4,
    ),
    "qwen3_5": ("Qwen3_5", {"text_config": _QWEN35_TEXT, "vision_config": {**_MERGED, "num_position_embeddings": 36}}, 0),
    "qwen3_5_moe": (
        "Qwen3_5Moe",
        {"text_config": {**_QWEN35_TEXT, **_QWEN35_EXPERTS}, "vision_config": {**_MERGED, "num_position_embeddings": 36}},
        0,
    ),
    "qwen3_5_moe of 122B": ("Qwen3_5Moe", {"text_config": _QWEN35_122B, "vision_config": {"out_hidden_size": 3072}}, 0),
}  # fmt: skip
"""name -> class, configuration, tokens of an image of 32 x 32 pixels (0: only parameters are compared)"""


KINDS = {kind for table in (ENCODERS, ENCODER_DECODERS, VISION_LANGUAGE) for kind, *_ in table.values()}
MODEL_TYPES = {getattr(transformers, f"{kind}Config").model_type for kind in KINDS}
"""model types that have a small configuration here"""


def configuration(kind: str, values: dict[str, Any]) -> Any:
    """A new object every time."""
    return getattr(transformers, f"{kind}Config")(**values)

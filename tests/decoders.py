"""Small configurations of decoders, one or more for each structure: name -> model type and what differs from its class's defaults."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 320,
    "max_position_embeddings": 64,
}  # fmt: skip
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2}
HEADS: dict[str, Any] = {**GROUPED, "head_dim": 24}
GPT: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 320, "n_positions": 64}
EXPERTS: dict[str, Any] = {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA4: dict[str, Any] = {
    **HEADS, "sliding_window": 8, "hidden_size_per_layer_input": 0, "global_head_dim": 32, "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **SIZES, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "kv_lora_rank": 32,
    "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_key_value_heads": 4,
}  # fmt: skip
MLA: dict[str, Any] = {key: value for key, value in LATENT.items() if "expert" not in key and not key.startswith("moe")}
DEEPSEEK: dict[str, Any] = {
    **{key: value for key, value in GROUPED.items() if key != "intermediate_size"}, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 48,
}  # fmt: skip
DELTA: dict[str, Any] = {
    **HEADS, "linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
MIXER: dict[str, Any] = {
    **GROUPED, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 8,
}  # fmt: skip
HYBRID: dict[str, Any] = {**MIXER, "num_local_experts": 4, "shared_intermediate_size": 96, "layer_types": ["mamba", "attention"] * 2}
FALCON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 64,
}

COHERE_EXPERTS: dict[str, Any] = {
    **HEADS, "num_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "sliding_window_pattern": 2,
}  # fmt: skip
STEP: dict[str, Any] = {
    **HEADS, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "share_expert_dim": 32, "sliding_window": 8,
    "layer_types": ["full_attention", *["sliding_attention"] * 3], "num_sliding_attention_heads": 6,
    "mlp_layer_types": ["dense", *["sparse"] * 3], "swiglu_limits": [0.0, 0.0, 0.0, 7.0], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0],
}  # fmt: skip
"""of a type whose class in transformers has no head"""
MIMO: dict[str, Any] = {
    **HEADS, "v_head_dim": 16, "num_key_value_heads": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "sliding_window": 8,
}  # fmt: skip

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3_text": ("gemma3_text", {**HEADS, "sliding_window": 8}),
    "gemma3_text, a window in every layer but one": (
        "gemma3_text", {**HEADS, "sliding_window": 8, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    ),
    "gemma4_text": ("gemma4_text", GEMMA4),
    "gemma4_text, values of their own": (
        "gemma4_text", {
            **GEMMA4, "attention_k_eq_v": False,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gemma4_text, experts beside the MLP": (
        "gemma4_text",
        {**GEMMA4, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 48, "attention_bias": True},
    ),
    "gemma4_text, per-layer inputs and shared keys": (
        "gemma4_text", {
            **HEADS, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 3, "num_hidden_layers": 6,
            "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 288, "global_head_dim": 32, "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4_text, shared keys that are values": (
        "gemma4_text", {
            **GEMMA4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 320,
        },
    ),
    "glm": ("glm", HEADS),
    "glm4": ("glm4", HEADS),
    "glm4 without biases": ("glm4", {**HEADS, "attention_bias": False}),
    "olmo": ("olmo", GROUPED),
    "olmo with clamps": ("olmo", {**GROUPED, "clip_qkv": 8.0}),
    "olmo2": ("olmo2", GROUPED),
    "olmo2 with biases": ("olmo2", {**GROUPED, "attention_bias": True}),
    "olmo3": ("olmo3", {**GROUPED, "sliding_window": 8}),
    "olmoe": ("olmoe", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    "exaone4": ("exaone4", {**GROUPED, "sliding_window": 8}),
    "exaone4 without windows": ("exaone4", {**GROUPED, "sliding_window": None, "layer_types": ["full_attention"] * 4}),
    "smollm3": ("smollm3", GROUPED),
    "smollm3 with biases": ("smollm3", {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "granite": ("granite", GROUPED),
    "granite with biases": ("granite", {**GROUPED, "attention_bias": True, "mlp_bias": True}),
    "granitemoe": ("granitemoe", EXPERTS),
    "granitemoeshared": ("granitemoeshared", {**EXPERTS, "shared_intermediate_size": 96}),
    "helium": ("helium", {**GROUPED, "head_dim": 16}),
    "arcee": ("arcee", HEADS),
    "apertus": ("apertus", GROUPED),
    "nemotron": ("nemotron", HEADS),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", HEADS),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {**HEADS, "num_experts": 4, "moe_topk": 2}),
    "ernie4_5": ("ernie4_5", HEADS),
    "ernie4_5 with biases": ("ernie4_5", {**HEADS, "use_bias": True}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {**GROUPED, "moe_intermediate_size": 48, "moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 3},
    ),
    "seed_oss": ("seed_oss", HEADS),
    "ministral": ("ministral", {**HEADS, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "ministral3": ("ministral3", HEADS),
    "minimax_m2": ("minimax_m2", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "dots1": (
        "dots1",
        {
            **HEADS, "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
            "first_k_dense_replace": 1, "sliding_window": None,
        },
    ),
    "hyperclovax": ("hyperclovax", {**GROUPED, "head_dim": 16}),
    "vaultgemma": ("vaultgemma", {**HEADS, "sliding_window": 8}),
    "cwm": ("cwm", {**HEADS, "sliding_window": 8}),
    "jais2": ("jais2", HEADS),
    "flex_olmo": ("flex_olmo", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    "solar_open": ("solar_open", {**DEEPSEEK, "head_dim": 24}),
    "exaone_moe": (
        "exaone_moe", {**GROUPED, "sliding_window": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    ),
    "youtu": ("youtu", MLA),
    "minicpm3": ("minicpm3", MLA),
    "glm4_moe_lite": ("glm4_moe_lite", {**LATENT, "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 2}),
    "glm_moe_dsa": (
        "glm_moe_dsa",
        {**LATENT, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8},
    ),
    "glm_moe_dsa with shared indexers": (
        "glm_moe_dsa",
        {**LATENT, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8, "indexer_types": ["full", "shared", "full", "shared"]},
    ),
    "axk1": ("axk1", {**LATENT, "n_group": 2, "topk_group": 1}),
    "hy_v3": (
        "hy_v3",
        {**HEADS, "num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 2, "moe_intermediate_size": 48},
    ),
    "hy_v3 with biases": (
        "hy_v3",
        {
            **HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "attention_bias": True,
            "enable_moe_fp32_combine": False, "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 2,
        },
    ),
    "mimo_v2_flash": ("mimo_v2_flash", MIMO),
    "mimo_v2_flash with biases": (
        "mimo_v2_flash", {**MIMO, "attention_bias": True, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    ),
    "laguna": (
        "laguna",
        {
            **HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 32,
            "sliding_window": 8, "layer_types": ["full_attention", *["sliding_attention"] * 3],
            "num_attention_heads_per_layer": [4, 6, 6, 6],
        },
    ),
    "granite_swa": ("granite_swa", {**GROUPED, "sliding_window": 8}),
    "granite_swa with biases": (
        "granite_swa",
        {
            **GROUPED, "sliding_window": 8, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False,
            "layer_rope_theta": [0, 1e4, 1e4, 1e4],
        },
    ),
    "granitemoe_swa": ("granitemoe_swa", {**EXPERTS, "sliding_window": 8, "shared_intermediate_size": 96}),
    "mellum": (
        "mellum",
        {
            **HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "mlp_layer_types": ["dense", *["sparse"] * 3],
        },
    ),
    "afmoe": (
        "afmoe", {**HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "sliding_window": 8},
    ),
    "cohere2_moe": ("cohere2_moe", COHERE_EXPERTS),
    "cohere2_moe with dense layers": (
        "cohere2_moe",
        {
            **COHERE_EXPERTS, "first_k_dense_replace": 1, "prefix_dense_intermediate_size": 176, "num_shared_experts": 2,
            "expert_selection_fn": "sigmoid", "rms_norm_eps": 1e-6,
        },
    ),
    "nanochat": ("nanochat", {**GROUPED, "final_logit_softcapping": 15.0}),
    "biogpt": ("biogpt", SIZES),
    "xglm": (
        "xglm", {"d_model": 64, "ffn_dim": 176, "num_layers": 4, "attention_heads": 4, "vocab_size": 320, "max_position_embeddings": 64},
    ),
    "modernbert-decoder": ("modernbert-decoder", {**SIZES, "cls_token_id": 0, "sep_token_id": 0, "local_attention": 16}),
    "lfm2": ("lfm2", {**GROUPED, "layer_types": ["conv", "conv", "full_attention", "conv"]}),
    "lfm2 with biases": ("lfm2", {**GROUPED, "layer_types": ["conv", "full_attention"] * 2, "conv_bias": True, "conv_L_cache": 4}),
    "lfm2_moe": (
        "lfm2_moe",
        {
            **GROUPED, "layer_types": ["conv", "conv", "full_attention", "conv"], "num_dense_layers": 1, "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 48,
        },
    ),
    "kimi_linear": (
        "kimi_linear",
        {
            **{key: value for key, value in LATENT.items() if key not in ("n_routed_experts", "q_lora_rank")}, "num_experts": 4,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_head_dim": 16, "linear_num_heads": 4,
        },
    ),
    "internlm3": ("internlm3", HEADS),
    "gptj": ("gptj", {**GPT, "rotary_dim": 8}),
    "codegen": ("codegen", {**GPT, "rotary_dim": 8}),
    "gpt_neo": (
        "gpt_neo",
        {
            "hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 320, "max_position_embeddings": 64, "window_size": 8,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
    "gpt_bigcode": ("gpt_bigcode", GPT),
    "gpt_bigcode with heads of their own": ("gpt_bigcode", {**GPT, "multi_query": False}),
    "starcoder2": ("starcoder2", GROUPED),
    "starcoder2 without biases": ("starcoder2", {**GROUPED, "use_bias": False}),
    "falcon": ("falcon", FALCON),
    "falcon of 40B": ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon2": ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    "falcon of RW": ("falcon", {**FALCON, "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}),
    "stablelm": ("stablelm", GROUPED),
    "stablelm of 12B": ("stablelm", {**GROUPED, "use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True}),
    "persimmon": ("persimmon", SIZES),
    "cohere": ("cohere", GROUPED),
    "cohere with norms": ("cohere", {**GROUPED, "use_qk_norm": True}),
    "cohere2": ("cohere2", {**HEADS, "sliding_window": 8}),
    "phimoe": ("phimoe", {**EXPERTS, "attention_bias": True, "lm_head_bias": True}),
    "dbrx": (
        "dbrx",
        {
            "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 320,
            "attn_config": {"clip_qkv": 8, "kv_n_heads": 2, "rope_theta": 10000.0},
            "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    "openai-gpt": ("openai-gpt", GPT),
    "mamba": ("mamba", {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 320, "state_size": 8}),
    "mamba with other sizes": (
        "mamba",
        {
            "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 320, "expand": 3, "time_step_rank": 5, "conv_kernel": 3,
            "use_conv_bias": False,
        },
    ),
    "rwkv": ("rwkv", {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 320, "context_length": 64}),
    "rwkv with other widths": (
        "rwkv", {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 320, "attention_hidden_size": 96, "intermediate_size": 176},
    ),
    "falcon_mamba": ("falcon_mamba", {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 320}),
    "jamba": (
        "jamba",
        {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8},
    ),
    "jamba without experts": ("jamba", {**GROUPED, "num_experts": 1, "mamba_dt_rank": 6}),
    "qwen3_5_text": ("qwen3_5_text", DELTA),
    "qwen3_5_moe_text": (
        "qwen3_5_moe_text",
        {**DELTA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 32},
    ),
    "granitemoehybrid": ("granitemoehybrid", {**HYBRID, "layer_types": ["mamba", "mamba", "attention", "mamba"], "num_experts_per_tok": 2}),
    "granitemoehybrid without experts": ("granitemoehybrid", {**HYBRID, "num_local_experts": 0, "position_embedding_type": "rope"}),
    "nemotron_h with experts": (
        "nemotron_h",
        {
            **HEADS, "layers_block_type": ["mamba", "moe", "attention", "mlp"], "mamba_num_heads": 8, "mamba_head_dim": 16,
            "ssm_state_size": 16, "n_groups": 2, "chunk_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 96,
        },
    ),
    "bamba": ("bamba", {**MIXER, "attn_layer_indices": [1, 3]}),
    "falcon_h1": ("falcon_h1", {**MIXER, "mamba_d_ssm": 128}),
    "falcon_h1 with a norm": ("falcon_h1", {**MIXER, "mamba_d_ssm": None, "mamba_rms_norm": True}),
    "mpt with clamps": (
        "mpt",
        {
            "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 320, "no_bias": True,
            "attn_config": {"clip_qkv": 6.0, "alibi": True},
        },
    ),
}  # fmt: skip
PARAMETERS: dict[str, int] = {
    "gemma3_text": 230_656, "gemma3_text, a window in every layer but one": 230_656, "gemma4_text": 230_672,
    "gemma4_text, values of their own": 242_976, "gemma4_text, experts beside the MLP": 381_184,
    "gemma4_text, per-layer inputs and shared keys": 479_432, "gemma4_text, shared keys that are values": 239_088,
    "glm": 251_200, "glm4": 251_712,
    "glm4 without biases": 250_944, "olmo": 225_280, "olmo with clamps": 225_280, "olmo2": 226_240, "olmo2 with biases": 227_008,
    "olmo3": 226_240, "olmoe": 632_768, "exaone4": 225_984, "exaone4 without windows": 225_984, "smollm3": 205_376,
    "smollm3 with biases": 228_288, "granite": 225_856, "granite with biases": 228_288, "granitemoe": 632_384,
    "granitemoeshared": 706_112, "helium": 225_856, "arcee": 205_376, "apertus": 180_936, "nemotron": 205_952,
    "hunyuan_v1_dense": 250_624, "hunyuan_v1_moe": 792_320, "ernie4_5": 229_952, "ernie4_5 with biases": 232_640, "ernie4_5_moe": 270_668,
    "seed_oss": 251_200, "ministral": 250_432, "ministral3": 250_432, "minimax_m2": 657_536, "dots1": 315_904, "hyperclovax": 226_368,
    "vaultgemma": 229_952, "cwm": 250_432, "jais2": 207_936, "flex_olmo": 632_768, "solar_open": 300_608, "exaone_moe": 263_616,
    "youtu": 214_816, "minicpm3": 214_816, "glm4_moe_lite": 260_384, "glm_moe_dsa": 255_648, "internlm3": 250_432, "gptj": 140_608,
    "codegen": 140_608, "gpt_neo": 124_288, "gpt_bigcode": 112_192, "gpt_bigcode with heads of their own": 124_672, "starcoder2": 162_624,
    "starcoder2 without biases": 160_896, "falcon": 106_880, "falcon of 40B": 111_232, "falcon2": 110_976, "falcon of RW": 120_576,
    "stablelm": 226_432, "stablelm of 12B": 226_816, "persimmon": 200_000, "cohere": 205_120, "cohere with norms": 205_504,
    "cohere2": 229_696, "phimoe": 634_048, "dbrx": 213_824, "openai-gpt": 124_544, "mamba": 79_808, "mamba with other sizes": 118_592,
    "falcon_mamba": 85_952, "jamba": 463_720, "jamba without experts": 309_464, "qwen3_5_text": 247_096, "qwen3_5_moe_text": 285_240,
    "granitemoehybrid": 760_136, "granitemoehybrid without experts": 200_432, "nemotron_h with experts": 149_656, "bamba": 261_872,
    "rwkv": 149_120, "rwkv with other widths": 145_152, "falcon_h1": 346_528, "falcon_h1 with a norm": 347_040,
    "mpt with clamps": 119_104, "glm_moe_dsa with shared indexers": 251_744, "axk1": 273_120, "hy_v3": 315_904,
    "hy_v3 with biases": 276_736, "mimo_v2_flash": 245_580, "mimo_v2_flash with biases": 246_244, "laguna": 298_892,
    "granite_swa": 205_392, "granite_swa with biases": 228_304, "granitemoe_swa": 706_128, "mellum": 260_608, "afmoe": 341_004,
    "cohere2_moe": 636_224, "cohere2_moe with dense layers": 737_344, "nanochat": 180_224, "biogpt": 183_488, "xglm": 179_264,
    "modernbert-decoder": 226_240, "lfm2": 279_712, "lfm2 with biases": 276_224, "lfm2_moe": 228_256, "kimi_linear": 296_028,
}  # fmt: skip
"""of the class for causal language models in transformers 5.23; buffers are not counted"""

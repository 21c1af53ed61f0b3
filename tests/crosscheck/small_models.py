"""Small configurations of every supported family, as transformers' own classes."""

from __future__ import annotations

from typing import Any

from torch_side import transformers

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 64,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_LATENT = {
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "kv_lora_rank": 32,
    "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}  # fmt: skip
_EXPERTS = {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 320, "n_positions": 64}),
    "opt": (
        "OPTConfig",
        {
            "hidden_size": 64, "ffn_dim": 176, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 320,
            "max_position_embeddings": 64, "word_embed_proj_dim": 64,
        },
    ),
    "bloom": ("BloomConfig", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 320}),
    "gpt-neox": ("GPTNeoXConfig", _SIZES),
    "phi": ("PhiConfig", _SIZES),
    "mpt": ("MptConfig", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 320}),
    "llama": ("LlamaConfig", _SIZES),
    "llama grouped": ("LlamaConfig", _GROUPED),
    "llama tied": ("LlamaConfig", {**_SIZES, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralConfig", {**_GROUPED, "sliding_window": None}),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Config", {**_GROUPED, "head_dim": 16}),
    "gemma": ("GemmaConfig", {**_GROUPED, "head_dim": 16}),
    "gemma2": ("Gemma2Config", {**_GROUPED, "head_dim": 16, "query_pre_attn_scalar": 16}),
    "phi3": ("Phi3Config", _SIZES),
    "mixtral": ("MixtralConfig", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe": ("Qwen2MoeConfig", {**_SIZES, **_EXPERTS, "num_key_value_heads": 4, "shared_expert_intermediate_size": 96}),
    "qwen3-moe": ("Qwen3MoeConfig", {**_GROUPED, **_EXPERTS, "head_dim": 16}),
    "deepseek-v2": ("DeepseekV2Config", {**_SIZES, **_LATENT}),
    "deepseek-v3": ("DeepseekV3Config", {**_SIZES, **_LATENT, "n_group": 1, "topk_group": 1}),
    "deepseek-v3.2": (
        "DeepseekV32Config",
        {
            **_SIZES, **_LATENT, "n_group": 1, "topk_group": 1, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8,
        },
    ),
    "bert": ("BertConfig", _SIZES),
    "roberta": ("RobertaConfig", {**_SIZES, "max_position_embeddings": 66}),
    "vit": (
        "ViTConfig",
        {**{k: v for k, v in _SIZES.items() if k not in ("vocab_size", "max_position_embeddings")}, "image_size": 32, "patch_size": 8},
    ),
}  # fmt: skip
COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-oss": ("GptOssConfig", {**_GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "glm4-moe": (
        "Glm4MoeConfig",
        {
            **_GROUPED,
            "head_dim": 16,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "first_k_dense_replace": 1,
        },
    ),
    "llama4-text": (
        "Llama4TextConfig",
        {
            **_GROUPED,
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 2,
        },
    ),
    "mamba2": (
        "Mamba2Config",
        {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 320, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2},
    ),
}
"""of whose parameters only the number is compared"""
MASKED = ("deepseek-v3.2",)
"""of whose attention transformers computes all scores and masks those that were not chosen, which kernels for chosen keys do not"""
LANGUAGE = [name for name in SMALL if name not in ("vit", *MASKED)]
MIXTURES = ("mixtral", "qwen2-moe", "qwen3-moe", "deepseek-v2", "deepseek-v3")


def small(name: str, **changes: Any) -> Any:
    """The configuration called `name`, a new object every time."""
    kind, values = {**SMALL, **COUNTED}[name]
    special = {"vit": {}, "gpt2": {"bos_token_id": 0, "eos_token_id": 0}}.get(name, SPECIAL)
    return getattr(transformers, kind)(**{**special, **values, **changes})

"""Keys of a Hugging Face config that change neither parameters, nor work, nor memory of training, and why.

A config is never half understood: a key that stands in none of these tables, that no family reads, and that says something
(`says_nothing`) stops the reading and is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.model.families.family import words

REASONS: Mapping[str, frozenset[str]] = {
    "a name of something": words(
        "model_type name_or_path tokenizer_class tokenizer_name finetuning_task task_specific_params auto_map custom_pipelines language "
        "license transformers_version diffusers_version mergekit_version processor_class datasets model_name prefix base_model "
        "architecture model_version release_date"
    ),
    "a word's number, or a label's name": words(
        "id2label label2id num_labels problem_type special_tokens bos_token eos_token pad_token unk_token image_token audio_token "
        "video_token forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens bad_words_ids"
    ),
    "how weights are made before training": words(
        "init_std init_method init_config init_device init_scale initializer_factor initializer_range initializer_std "
        "rescale_prenorm_residual embedding_initializer_range"
    ),
    "a number that keeps from dividing by nothing, or the type of a statistic": words(
        "layer_norm_eps layer_norm_epsilon layernorm_epsilon rms_norm_eps norm_epsilon norm_eps ln_eps variance_epsilon "
        "attention_softmax_in_fp32 softmax_in_fp32"
    ),
    "an angle of rotary positions": words(
        "rope rope_theta rope_scaling rope_parameters rope_ratio rope_base rope_interleaved rope_interleave rope_local_base_freq "
        "rope_pct_base rotary_emb_base rotary_base rotary_emb_interleaved rotary_emb_scale_base global_rope_theta local_rope_theta "
        "use_dynamic_ntk use_logn_attn original_max_position_embeddings original_rope use_mrope mrope_section max_sequence_length "
        "initial_context_length partial_rotary_factors use_scaled_rope rope_type rope_mscale default_theta compress_rope_theta"
    ),
    "a choice between programs that compute the same": words(
        "attn_implementation use_cache use_flash_attn use_flash_attention use_flash_attention_2 flash_attention flash_attn use_bmm "
        "use_sdpa use_cache_quantization use_cache_kernel softmax_precision masked_softmax_fusion fused_dropout_add_ln "
        "fused_bias_fc fused_mlp use_fused_rms_norm use_fused_rope use_fused_head_and_loss_fn fuse_attention_qkv fuse_attention_ffn "
        "use_kernel use_mamba_kernels use_fused_mlp use_fused_cross_entropy fuse_norm fuse_swiglu fuse_cross_entropy "
        "fuse_linear_cross_entropy use_l2warp tensor_parallel_degree sequence_parallel pretraining_tp ep_size slow_but_exact "
        "use_xformers memory_efficient_attention use_memory_efficient_attention pure_bf16 bf16 fp16 fp32 pre_layer_norm_fp32 "
        "kv_cache_dtype cache_implementation gradient_checkpointing torchscript use_bfloat16 "
        "low_cpu_mem_usage device_map use_recompute recompute use_parallel_embedding embed_dtype chunk_size_feed_forward "
        "reset_attention_mask reset_position_ids no_recompute_layers unpad_inputs skip_bias_add bias_dropout_fusion "
        "apply_query_key_layer_scaling"
    ),
    "the type in which the checkpoint lies, which training chooses by itself": words(
        "torch_dtype dtype quantization_config quantization compression_config pre_quantized quantized for_llm_compressor quantize_config "
        "weight_block_size unsloth_version unsloth_fixed _unsloth"
    ),
    "what a forward pass returns": words(
        "output_attentions output_hidden_states output_scores return_dict return_dict_in_generate output_router_logits output_past "
        "return_last_hidden_state"
    ),
    "how text is generated": words(
        "max_length min_length max_new_tokens do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p "
        "typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences "
        "remove_invalid_values exponential_decay_length_penalty num_logits_to_keep generation_config max_window_size chat_format "
        "user_token_id assistant_token_id thinking_token_id no_cache"
    ),
    "a constant that multiplies what is there anyway, or a part of the loss": words(
        "attn_scale router_aux_loss_coef aux_loss_alpha seq_aux z_loss_coefficient router_z_loss_coef "
        "moe_loss_weight attention_multiplier query_pre_attn_scalar routed_scaling_factor router_jitter_noise input_jitter_noise "
        "label_smoothing max_z_loss z_loss_weight tf_legacy_loss softmax_scale"
    ),
    "a part that only encoders with decoders have": words("is_encoder_decoder tie_encoder_decoder cross_attention_hidden_size"),
}
"""why -> keys"""

BEGINNINGS = ("_", "rope_", "transformers.js", "unsloth_", "summary_", "tokenizer_", "wandb_", "attn_implementation")
"""of keys: private ones of transformers, angles, files of other programs, the pooling of classes that are refused by name"""

ENDINGS = ("_token_id", "_token_ids", "_token_index", "_eps", "_epsilon", "_initializer_range")

ON_BY_DEFAULT = words("is_causal causal use_rope use_rotary use_bias tie_embeddings use_positional_embeddings use_attention")
"""flags whose ``false`` takes something away that models usually have"""

HARMLESS = frozenset().union(*REASONS.values())


def says_nothing(key: str, value: Any) -> bool:
    """Whether an unknown key cannot mean anything: null, false, 0, or empty."""
    return (value is None or value is False or value in (0, "", [], {})) and not (value is False and key in ON_BY_DEFAULT)


def is_harmless(key: str) -> bool:
    """Whether `key` stands in the tables above."""
    return key in HARMLESS or key.startswith(BEGINNINGS) or key.endswith(ENDINGS)

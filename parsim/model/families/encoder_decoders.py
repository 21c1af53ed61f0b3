"""Encoder-decoders: the T5 line (1910.10683), the BART line (1910.13461) with Marian and Pegasus, Whisper (2212.04356).

Structure follows huggingface/transformers ``models/t5``, ``mt5``, ``umt5``, ``bart``, ``mbart``, ``marian``, ``pegasus``, ``m2m_100`` and
``whisper``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.model.families.family import Family, Fields, words

GENERATION = words(
    "max_length min_length num_beams num_beam_groups no_repeat_ngram_size early_stopping length_penalty repetition_penalty do_sample "
    "top_k top_p temperature typical_p diversity_penalty bad_words_ids prefix forced_bos_token_id forced_eos_token_id "
    "num_return_sequences output_scores return_dict_in_generate remove_invalid_values suppress_tokens begin_suppress_tokens "
    "exponential_decay_length_penalty encoder_no_repeat_ngram_size eos_token_ids output_past tf_legacy_loss use_bfloat16 pruned_heads "
    "cross_attention_hidden_size save_step force_bos_token_to_be_generated"
)
"""how text is generated, which training does not do, and what old versions of transformers wrote into every config"""
_REGISTRATION = (
    "query_key_value", "attention_output", "relative_bias", "attention_norm", "cross_query", "cross_key_value", "cross_output",
    "cross_norm", "mlp_up", "mlp_down", "mlp_norm",
)  # fmt: skip
_GATED = {"gelu": "gelu-new", "gelu_new": "gelu-new", "silu": "silu", "relu": "relu"}


def _writes(*names: str) -> dict[str, str]:
    """The classes that train a model to write its target."""
    return {f"{name}ForConditionalGeneration": "causal-lm" for name in names}


def _t5(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    word = str(tree.get("feed_forward_proj", "relu"))
    kind = word.removeprefix("gated-")
    fields["gated"] = word != kind
    fields["activation"] = _GATED.get(kind, kind) if fields["gated"] else {"gelu_new": "gelu-new"}.get(kind, kind)
    if str((tree.get("architectures") or [""])[0]).endswith("EncoderModel"):  # the first stack alone, which has no head
        fields |= {"encoder": None, "causal": False, "layers": fields["encoder"]["layers"]}
    return {"feed_forward_proj", "dense_act_fn", "is_gated_act"}


def _with_encoder(name: str) -> dict[str, str]:
    return {**_writes(name), f"{name}EncoderModel": "encoder"}


T5 = Family(
    name="t5",
    model_type="t5",
    structure={
        "position": "none", "relative_buckets": 32, "normalisation": "rmsnorm", "norm_keeps_input": True,
        "activation": "relu", "fused_query_key_value": False,
        "query_key_value_bias": False, "output_bias": False, "mlp_bias": False, "tied_embeddings": True, "dropout": 0.1,
        "activation_dropout": True, "final_dropout": True, "bare_pooler": False, "encoder": {},
    },
    registration=_REGISTRATION,
    keys={
        "vocab_size": "vocabulary", "d_model": "hidden", "d_kv": "head_dim", "d_ff": "mlp", "num_layers": "encoder.layers layers",
        "num_decoder_layers": "layers", "num_heads": "heads", "relative_attention_num_buckets": "relative_buckets",
        "dropout_rate": "dropout", "tie_word_embeddings": "tied_embeddings",
    },
    stated={"is_encoder_decoder": (True,), "is_decoder": (False,)},
    harmless=GENERATION | words(
        "relative_attention_max_distance initializer_factor n_positions classifier_dropout scale_decoder_outputs hidden_size head_dim "
        "num_hidden_layers num_attention_heads"
    ),
    adjust=_t5,
    classes=_with_encoder("T5"),
)  # fmt: skip
MT5 = T5._replace(name="mt5", model_type="mt5", classes=_with_encoder("MT5"), structure={**T5.structure, "tied_embeddings": False})
UMT5 = MT5._replace(name="umt5", model_type="umt5", classes=_with_encoder("UMT5"), structure={**MT5.structure, "relative_per_layer": True})


def _bart(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["attention_dropout"] = bool(tree.get("attention_dropout"))
    fields["activation_dropout"] = bool(tree.get("activation_dropout"))
    return {"attention_dropout", "activation_dropout"}


_BART: dict[str, Any] = {
    "norm_placement": "post", "final_norm": False, "embedding_norm": True, "position_offset": 2, "fused_query_key_value": False,
    "tied_embeddings": True, "dropout": 0.1, "attention_dropout": False, "maximum_sequence": 1024, "encoder": {},
}  # fmt: skip
BART = Family(
    name="bart",
    model_type="bart",
    structure=_BART,
    registration=_REGISTRATION,
    keys={
        "vocab_size": "vocabulary", "d_model": "hidden", "encoder_layers": "encoder.layers", "encoder_attention_heads": "encoder.heads",
        "encoder_ffn_dim": "encoder.mlp", "decoder_layers": "layers", "decoder_attention_heads": "heads", "decoder_ffn_dim": "mlp",
        "max_position_embeddings": "maximum_sequence", "activation_function": "activation", "dropout": "dropout",
        "tie_word_embeddings": "tied_embeddings",
    },
    stated={
        "is_encoder_decoder": (True,), "is_decoder": (False,), "encoder_layerdrop": (0, 0.0), "decoder_layerdrop": (0, 0.0),
        "normalize_before": (False,), "normalize_embedding": (True,), "add_final_layer_norm": (False,), "add_bias_logits": (False,),
        "static_position_embeddings": (False,), "extra_pos_embeddings": (2,),
    },
    harmless=GENERATION | words("init_std scale_embedding classifier_dropout classif_dropout num_hidden_layers gradient_checkpointing"),
    adjust=_bart,
    classes=_writes("Bart"),
)  # fmt: skip
MBART = BART._replace(
    name="mbart",
    model_type="mbart",
    classes=_writes("MBart"),
    structure={**_BART, "norm_placement": "pre", "final_norm": True},
    stated={**BART.stated, "normalize_before": (True,), "add_final_layer_norm": (True,)},
)
PEGASUS = BART._replace(
    name="pegasus",
    model_type="pegasus",
    classes=_writes("Pegasus"),
    structure={
        **_BART, "norm_placement": "pre", "final_norm": True, "embedding_norm": False, "position": "sinusoidal", "position_offset": 0,
    },
    stated={
        **BART.stated, "normalize_before": (True,), "add_final_layer_norm": (True,), "normalize_embedding": (False,),
        "static_position_embeddings": (True,), "extra_pos_embeddings": (0, 1, 2),
    },
)  # fmt: skip
MARIAN = BART._replace(
    name="marian",
    model_type="marian",
    classes={"MarianMTModel": "causal-lm"},
    structure={**_BART, "embedding_norm": False, "position": "sinusoidal", "position_offset": 0},
    stated={
        **BART.stated, "normalize_embedding": (False,), "static_position_embeddings": (True,), "share_encoder_decoder_embeddings": (True,),
        "extra_pos_embeddings": (0, 1, 2),
    },
    harmless=BART.harmless | {"decoder_vocab_size"},
)  # fmt: skip
M2M_100 = BART._replace(
    name="m2m-100",
    model_type="m2m_100",
    classes=_writes("M2M100"),
    structure={**_BART, "norm_placement": "pre", "final_norm": True, "embedding_norm": False, "position": "none"},
    stated={key: BART.stated[key] for key in ("is_encoder_decoder", "is_decoder", "encoder_layerdrop", "decoder_layerdrop")},
)

WHISPER = BART._replace(
    name="whisper",
    model_type="whisper",
    classes=_writes("Whisper"),
    structure={
        "norm_placement": "pre", "fused_query_key_value": False, "key_bias": False, "positions_per_sample": True,
        "tied_embeddings": True, "attention_dropout": False,
        "maximum_sequence": 448, "encoder": {"audio_channels": 80, "tokens": 1500},
    },
    keys={
        **{key: name for key, name in BART.keys.items() if key != "max_position_embeddings"},
        "num_mel_bins": "encoder.audio_channels", "max_source_positions": "encoder.tokens", "max_target_positions": "maximum_sequence",
    },
    stated={**BART.stated, "use_weighted_layer_sum": (False,)},
    harmless=BART.harmless | words(
        "apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob mask_feature_length "
        "mask_feature_min_masks median_filter_width classifier_proj_size alignment_heads forced_decoder_ids"
    ),
)  # fmt: skip

FAMILIES = (T5, MT5, UMT5, BART, MBART, PEGASUS, MARIAN, M2M_100, WHISPER)

"""Encoders of text: BERT (1810.04805), RoBERTa and its heirs, DistilBERT, ELECTRA, MPNet, NomicBERT, ModernBERT (2412.13663), DeBERTa
of version 2 and 3 (2111.09543).

Structure and heads follow the classes of huggingface/transformers, ``models/bert/modeling_bert.py`` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.families.family import SIZES, Family, Fields, shortest, words

_STRUCTURE: dict[str, Any] = {
    "task": "masked-lm", "causal": False, "activation": "gelu", "norm_placement": "post", "final_norm": False,
    "embedding_norm": True, "fused_query_key_value": False, "tied_embeddings": True, "dropout": 0.1, "maximum_sequence": 512,
}  # fmt: skip


def _encoder(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["attention_dropout"] = bool(tree.get("attention_probs_dropout_prob", 0.1))
    if labels := tree.get("id2label"):
        fields["labels"] = len(labels)
    return {"attention_probs_dropout_prob", "id2label", "label2id"}


_KEYS = {**SIZES, "hidden_act": "activation", "hidden_dropout_prob": "dropout", "type_vocab_size": "token_types", "num_labels": "labels"}
_FUSED = "a BERT whose layers attend to images, too (ALBEF, BLIP)"
_STATED = {"position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False,)}
_HARMLESS = words(
    "classifier_dropout directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type"
)

BERT = Family(
    name="bert",
    model_type="bert",
    structure={**_STRUCTURE, "token_types": 2},
    keys=_KEYS,
    stated=_STATED,
    elsewhere=dict.fromkeys(("fusion_layer", "encoder_width", "add_type_embeddings", "cross_module"), _FUSED),
    harmless=_HARMLESS,
    adjust=_encoder,
)

ROBERTA = BERT._replace(
    name="roberta",
    model_type="roberta",
    structure={**_STRUCTURE, "token_types": 1, "maximum_sequence": 514, "positions_per_sample": True},
)


XLM_ROBERTA = ROBERTA._replace(name="xlm-roberta", model_type="xlm-roberta")
CAMEMBERT = ROBERTA._replace(name="camembert", model_type="camembert")


def _distilbert(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["attention_dropout"] = bool(tree.get("attention_dropout", 0.1))
    return {"attention_dropout", *_labels(fields, tree)}


def _labels(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    if labels := tree.get("id2label"):
        fields["labels"] = len(labels)
    return {"id2label", "label2id"}


DISTILBERT = Family(
    name="distilbert",
    model_type="distilbert",
    structure={**_STRUCTURE, "pooler_activation": "relu", "bare_pooler": False},
    keys={
        "vocab_size": "vocabulary", "dim": "hidden", "hidden_dim": "mlp", "n_layers": "layers", "n_heads": "heads",
        "max_position_embeddings": "maximum_sequence", "activation": "activation", "dropout": "dropout", "num_labels": "labels",
        "tie_word_embeddings": "tied_embeddings",
    },
    stated={"sinusoidal_pos_embds": (False,)},
    harmless=words("qa_dropout seq_classif_dropout tie_weights_ output_past"),
    adjust=_distilbert,
)  # fmt: skip

ELECTRA = BERT._replace(
    name="electra",
    model_type="electra",
    structure={
        **_STRUCTURE, "token_types": 2, "embedding_projects_last": True, "pooler_activation": "gelu", "bare_pooler": False,
        "discriminates": True,
    },
    keys={**_KEYS, "embedding_size": "embedding_width"},
    harmless=_HARMLESS | words("summary_type summary_use_proj summary_activation summary_last_dropout"),
)  # fmt: skip

MPNET = BERT._replace(
    name="mpnet",
    model_type="mpnet",
    structure={**_STRUCTURE, "positions_per_sample": True, "relative_buckets": 32},
    registration=("query_key_value", "attention_output", "attention_norm", "mlp_up", "mlp_down", "mlp_norm", "relative_bias"),
    keys={**{key: name for key, name in _KEYS.items() if name != "token_types"}, "relative_attention_num_buckets": "relative_buckets"},
)

NOMIC_BERT = BERT._replace(
    name="nomic-bert",
    model_type="nomic_bert",
    structure={
        **_STRUCTURE, "token_types": 2, "position": "rotary", "gated": True, "activation": "silu", "query_key_value_bias": False,
        "output_bias": False, "mlp_bias": False, "bare_pooler": False,
    },
    keys={**_KEYS, "head_dim": "head_dim"},
)  # fmt: skip


def _modernbert(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Every third layer, the first among them, sees all tokens."""
    kinds = tree.get("layer_types")
    every = int(tree.get("global_attn_every_n_layers") or 3)
    letters = ["*" if number % every == 0 else "W" for number in range(fields["layers"])]
    if kinds is not None:
        letters = ["W" if kind == "sliding_attention" else "*" for kind in kinds]
    fields["layer_pattern"] = shortest("".join(letters)) if letters else ""
    dropped = [float(tree.get(f"{part}_dropout") or 0.0) for part in ("embedding", "attention", "mlp")]
    fields["dropout"] = max(dropped)
    fields["embedding_dropout"], fields["attention_dropout"], fields["activation_dropout"] = (bool(share) for share in dropped)
    if (bias := tree.get("attention_bias")) is not None:
        fields["query_key_value_bias"] = fields["output_bias"] = bias
    read = {"layer_types", "global_attn_every_n_layers", "embedding_dropout", "attention_dropout", "mlp_dropout", "attention_bias"}
    return read | _labels(fields, tree)


MODERNBERT = Family(
    name="modernbert",
    model_type="modernbert",
    structure={
        "task": "masked-lm", "causal": False, "activation": "gelu", "embedding_norm": True, "first_norm": False, "norm_bias": False,
        "position": "rotary", "gated": True, "fused_gate_up": True, "query_key_value_bias": False, "output_bias": False,
        "mlp_bias": False, "tied_embeddings": True, "attention_window": 128, "pooler_activation": "gelu", "bare_pooler": False,
        "head_transform": True, "upcast_softmax": True, "attention_dropout": False, "embedding_dropout": False,
    },
    keys={
        **SIZES, "hidden_activation": "activation", "local_attention": "attention_window", "norm_bias": "norm_bias",
        "mlp_bias": "mlp_bias", "classifier_activation": "pooler_activation", "num_labels": "labels",
    },
    stated={"decoder_bias": (True,), "classifier_bias": (False,), "sparse_prediction": (False,)},
    harmless=words(
        "initializer_cutoff_factor classifier_pooling classifier_dropout deterministic_flash_attn sparse_pred_ignore_index "
        "global_rope_theta local_rope_theta repad_logits_with_grad reference_compile position_embedding_type deterministic_flash_attn "
        "layer_norm_eps gradient_checkpointing"
    ),
    adjust=_modernbert,
)  # fmt: skip


def _modernbert_decoder(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Windows on one side of a token are half as long as ModernBERT's on both."""
    read = _modernbert(fields, tree)
    both = tree.get("local_attention", 128)
    if not isinstance(both, int) or isinstance(both, bool) or both < 2:
        raise ModelError(Finding("windows need a width of at least 2", "local_attention", both, "128: 64 tokens before each"))
    fields["attention_window"] = both // 2 if "W" in fields["layer_pattern"] else 0
    return read | {"local_attention", "sliding_window"}


MODERNBERT_DECODER = MODERNBERT._replace(
    name="modernbert-decoder",
    model_type="modernbert-decoder",
    structure={**MODERNBERT.structure, "task": "causal-lm", "causal": True, "fused_query_key_value": False, "head_bias": True},
    keys={**{key: name for key, name in MODERNBERT.keys.items() if name != "attention_window"}, "decoder_bias": "head_bias"},
    stated={"classifier_bias": (False,), "classifier_activation": ("gelu",)},
    adjust=_modernbert_decoder,
)
ROBERTA_PRENORM = ROBERTA._replace(
    name="roberta-prelayernorm",
    model_type="roberta-prelayernorm",
    structure={**ROBERTA.structure, "norm_placement": "pre", "final_norm": True},
    registration=("attention_norm", "query_key_value", "attention_output", "mlp_norm", "mlp_up", "mlp_down"),
)
MEGATRON_BERT = BERT._replace(
    name="megatron-bert",
    model_type="megatron-bert",
    structure={**BERT.structure, "norm_placement": "pre", "final_norm": True, "embedding_norm": False},
    registration=ROBERTA_PRENORM.registration,
)

DEBERTA_WORDS = ("c2p", "p2c")


def _distances(tree: Mapping[str, Any], key: str) -> int:
    """A number of distances; -1 where the number of positions says it."""
    value = -1 if tree.get(key) is None else tree[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(Finding("must be a whole number", key, value, "-1: as many as there are positions"))
    return value


def _deberta(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """The table of relative positions; words alone have absolute ones, unless ``position_biased_input`` says otherwise."""
    said = tree.get("pos_att_type") or ()
    kinds = sorted(word.strip() for word in (said.lower().split("|") if isinstance(said, str) else said))
    if not tree.get("relative_attention") or kinds != sorted(DEBERTA_WORDS):
        message = "attention without products of words with positions and of positions with words is not supported yet"
        hint = "relative_attention: true, pos_att_type: p2c|c2p"
        raise ModelError(Finding(message, "pos_att_type", said, hint))
    buckets, most = _distances(tree, "position_buckets"), _distances(tree, "max_relative_positions")
    most = most if most > 0 else int(fields.get("maximum_sequence") or 512)
    norms = [word.strip() for word in str(tree.get("norm_rel_ebd") or "none").lower().split("|")]
    fields["disentangled"] = {
        "buckets": buckets if buckets > 0 else most,
        "shared": bool(tree.get("share_att_key")),
        "normed": "layer_norm" in norms,
    }
    fields["position"] = "none" if tree.get("position_biased_input") is False else "learned"
    read = {"relative_attention", "pos_att_type", "position_buckets", "max_relative_positions", "norm_rel_ebd", "share_att_key"}
    return read | {"position_biased_input"} | _encoder(fields, tree)


DEBERTA_V2 = BERT._replace(
    name="deberta-v2",
    model_type="deberta-v2",
    structure={**_STRUCTURE, "token_types": 0, "position": "none", "pooler_activation": "gelu", "bare_pooler": False},
    keys={**_KEYS, "embedding_size": "embedding_width", "attention_head_size": "head_dim"},
    stated={"conv_kernel_size": (0,), "pooler_hidden_act": ("gelu",), "legacy": (True,)},
    elsewhere={},
    harmless=_HARMLESS | words("pooler_dropout pooler_hidden_size conv_act max_relative_position"),
    adjust=_deberta,
)

FAMILIES = (
    BERT,
    ROBERTA,
    XLM_ROBERTA,
    CAMEMBERT,
    DISTILBERT,
    ELECTRA,
    MPNET,
    NOMIC_BERT,
    MODERNBERT,
    MODERNBERT_DECODER,
    ROBERTA_PRENORM,
    MEGATRON_BERT,
    DEBERTA_V2,
)

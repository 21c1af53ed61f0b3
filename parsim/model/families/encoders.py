"""Encoders: BERT and RoBERTa, with the heads of Hugging Face's classes, and vision transformers (ViT, 2010.11929).

Structure follows huggingface/transformers ``models/bert/modeling_bert.py``, ``models/roberta/modeling_roberta.py`` and
``models/vit/modeling_vit.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.model.families.family import SIZES, Family, Fields, words

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
    harmless=_HARMLESS,
    adjust=_encoder,
)

ROBERTA = BERT._replace(
    name="roberta",
    model_type="roberta",
    structure={**_STRUCTURE, "token_types": 1, "maximum_sequence": 514, "positions_per_sample": True},
)


def _vit(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["attention_dropout"] = bool(tree.get("attention_probs_dropout_prob", 0.0))
    # a config without labels is ImageNet-1k's only by name: transformers' own default is 2
    fields["labels"] = len(tree["id2label"]) if tree.get("id2label") else int(2 if tree.get("num_labels") is None else tree["num_labels"])
    return {"attention_probs_dropout_prob", "id2label", "label2id", "num_labels"}


VIT = Family(
    name="vit",
    model_type="vit",
    structure={
        "task": "image-classification", "causal": False, "activation": "gelu", "fused_query_key_value": False,
        "attention_dropout": False, "labels": 1000, "image": {},
    },
    registration=("query_key_value", "attention_output", "attention_norm", "mlp_norm", "mlp_up", "mlp_down"),
    keys={
        **{key: name for key, name in SIZES.items() if name not in ("vocabulary", "maximum_sequence", "tied_embeddings")},
        "hidden_act": "activation", "hidden_dropout_prob": "dropout", "image_size": "image.size", "patch_size": "image.patch",
        "num_channels": "image.channels", "qkv_bias": "query_key_value_bias",
    },
    harmless=frozenset({"encoder_stride", "pooler_output_size", "pooler_act"}),
    adjust=_vit,
)  # fmt: skip

FAMILIES = (BERT, ROBERTA, VIT)

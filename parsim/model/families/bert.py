"""Encoders: BERT and RoBERTa, with the heads of Hugging Face's classes.

Structure follows huggingface/transformers ``models/bert/modeling_bert.py`` and ``models/roberta/modeling_roberta.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.model.families.family import SIZES, Family, Fields, words

_STRUCTURE: dict[str, Any] = {
    "task": "masked-lm",
    "causal": False,
    "activation": "gelu",
    "norm_placement": "post",
    "final_norm": False,
    "embedding_norm": True,
    "fused_query_key_value": False,
    "tied_embeddings": True,
    "dropout": 0.1,
    "maximum_sequence": 512,
}


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

ROBERTA = Family(
    name="roberta",
    model_type="roberta",
    structure={**_STRUCTURE, "token_types": 1, "maximum_sequence": 514, "positions_per_sample": True},
    keys=_KEYS,
    stated=_STATED,
    harmless=_HARMLESS,
    adjust=_encoder,
)

FAMILIES = (BERT, ROBERTA)

"""Vision transformers (ViT, 2010.11929), as huggingface/transformers ``models/vit/modeling_vit.py`` builds the classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.model.families.family import SIZES, Family, Fields


def _vit(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["attention_dropout"] = bool(tree.get("attention_probs_dropout_prob", 0.0))
    # a config without labels is ImageNet-1k's only by name: transformers' own default is 2
    fields["labels"] = len(tree["id2label"]) if tree.get("id2label") else int(2 if tree.get("num_labels") is None else tree["num_labels"])
    return {"attention_probs_dropout_prob", "id2label", "label2id", "num_labels"}


VIT = Family(
    name="vit",
    model_type="vit",
    structure={
        "task": "image-classification",
        "causal": False,
        "activation": "gelu",
        "fused_query_key_value": False,
        "attention_dropout": False,
        "labels": 1000,
        "image": {},
    },
    registration=("query_key_value", "attention_output", "attention_norm", "mlp_norm", "mlp_up", "mlp_down"),
    keys={
        **{key: name for key, name in SIZES.items() if name not in ("vocabulary", "maximum_sequence", "tied_embeddings")},
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "image_size": "image.size",
        "patch_size": "image.patch",
        "num_channels": "image.channels",
        "qkv_bias": "query_key_value_bias",
    },
    harmless=frozenset({"encoder_stride", "pooler_output_size", "pooler_act"}),
    adjust=_vit,
)

FAMILIES = (VIT,)

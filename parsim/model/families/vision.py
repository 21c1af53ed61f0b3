"""Encoders of images: ViT (2010.11929), DeiT (2012.12877), DINOv2 (2304.07193), and the two towers of CLIP (2103.00020), each alone.

Structure follows huggingface/transformers ``models/vit/modeling_vit.py``, ``models/deit``, ``models/dinov2`` and ``models/clip``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.model.families.family import SIZES, Family, Fields, words


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
        "upcast_softmax": True, "attention_dropout": False, "labels": 1000, "image": {},
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

DEIT = VIT._replace(name="deit", model_type="deit", structure={**VIT.structure, "image": {"class_tokens": 2}})


def _dinov2(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["mlp"] = int(fields["hidden"] * float(tree.get("mlp_ratio") or 4))
    if tree.get("use_swiglu_ffn"):  # two thirds of the width, a multiple of eight (Dinov2SwiGLUFFN)
        fields["gated"], fields["activation"], fields["mlp"] = True, "silu", (int(fields["mlp"] * 2 / 3) + 7) // 8 * 8
    return {"mlp_ratio", "use_swiglu_ffn", *_vit(fields, tree)}


DINOV2 = VIT._replace(
    name="dinov2",
    model_type="dinov2",
    structure={**VIT.structure, "layer_scale": True, "bare_pooler": False, "image": {"mask_token": True, "pools_patches": True}},
    registration=(
        "attention_norm", "query_key_value", "attention_output", "attention_scale", "mlp_norm", "mlp_up", "mlp_down", "mlp_scale",
    ),
    keys={**{key: name for key, name in VIT.keys.items() if name != "mlp"}, "use_mask_token": "image.mask_token"},
    stated={"drop_path_rate": (0, 0.0)},
    harmless=VIT.harmless | words(
        "layerscale_value apply_layernorm reshape_hidden_states out_features out_indices stage_names intermediate_size"
    ),
    adjust=_dinov2,
)  # fmt: skip


def _clip(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    fields["attention_dropout"] = bool(tree.get("attention_dropout"))
    fields["activation"] = fields.get("activation", "quick-gelu")
    return {"attention_dropout"}


_CLIP_REGISTRATION = ("query_key_value", "attention_output", "attention_norm", "mlp_up", "mlp_down", "mlp_norm")
CLIP_VISION = VIT._replace(
    name="clip-vision",
    model_type="clip_vision_model",
    structure={
        **VIT.structure, "task": "encoder", "activation": "quick-gelu", "embedding_norm": True, "bare_pooler": False,
        "image": {"patch": 32, "bias": False},
    },
    registration=_CLIP_REGISTRATION,
    keys={key: name for key, name in VIT.keys.items() if key not in ("qkv_bias", "hidden_dropout_prob")} | {"dropout": "dropout"},
    harmless=words("projection_dim initializer_factor"),
    adjust=_clip,
    classes={"CLIPVisionModel": "encoder", "CLIPForImageClassification": "unread"},
)  # fmt: skip
CLIP_TEXT = Family(
    name="clip-text",
    model_type="clip_text_model",
    structure={
        "task": "encoder", "activation": "quick-gelu", "fused_query_key_value": False, "upcast_softmax": True, "attention_dropout": False,
        "embedding_dropout": False, "maximum_sequence": 77, "bare_pooler": False,
    },
    registration=_CLIP_REGISTRATION,
    keys={key: name for key, name in SIZES.items() if name != "tied_embeddings"} | {"hidden_act": "activation", "dropout": "dropout"},
    harmless=words("projection_dim initializer_factor tie_word_embeddings"),
    adjust=_clip,
    classes={"CLIPTextModel": "encoder"},
)  # fmt: skip

FAMILIES = (VIT, DEIT, DINOV2, CLIP_VISION, CLIP_TEXT)

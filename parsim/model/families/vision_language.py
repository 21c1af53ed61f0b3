"""Models that read images and text: how their Hugging Face configs describe the vision tower and what joins it to the text.

A reader takes the config's ``vision_config`` and the whole config, and returns fields of the tower's `TransformerConfig` and of the
`Projector`. Structure follows huggingface/transformers ``models/clip``, ``siglip``, ``pixtral``, ``qwen2_vl``, ``qwen2_5_vl``,
``qwen3_vl``, ``qwen3_5``, ``gemma3``, ``gemma4``, ``paligemma``, ``idefics3``, ``mistral3``, ``internvl``, ``llava``, ``llama4`` and
``kimi_k25``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from parsim.errors import Finding, ModelError
from parsim.limits import MOST_LAYERS, beyond
from parsim.model.families.family import Fields, shortest, words
from parsim.model.families.harmless import is_harmless, says_nothing

Tree = Mapping[str, Any]
_GEMMA4_TOWER = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12, "num_key_value_heads": 12,
    "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh", "pooling_kernel_size": 3, "patch_size": 16, "position_embedding_size": 10240,
}  # fmt: skip
"""sizes of Gemma4VisionConfig (huggingface/transformers ``models/gemma4/configuration_gemma4.py`` of 5.23)"""
_GEMMA4_KEYS = {*_GEMMA4_TOWER, *words("global_head_dim use_clipped_linears standardize max_position_embeddings default_output_length")}
_TOWER: Fields = {
    "family": "vit", "task": "image-classification", "causal": False, "attention_dropout": False, "fused_query_key_value": False,
    "upcast_softmax": True, "embedding_dropout": False,
}  # fmt: skip


class VisionLanguage(NamedTuple):
    """How one ``model_type`` is read."""

    read: Callable[[Tree, Tree, int], tuple[Fields, Fields]]
    """(vision_config, whole config, width of the text) -> fields of the tower and of the projector"""
    text: Mapping[str, str] = {}
    """``model_type`` of the text part -> the one whose decoder it is"""
    harmless: frozenset[str] = frozenset()
    """keys of the whole config that change neither parameters nor work, or that `read` reads"""
    text_harmless: frozenset[str] = frozenset()
    """further ones of its text part"""
    tied: bool | None = None
    """whether embedding and head share weights where the whole config says nothing; None: as its text part says"""
    text_key: str = "text_config"
    """where the text part stands"""
    classes: tuple[str, ...] = ()
    """classes whose names do not end in ForConditionalGeneration"""
    text_classes: tuple[str, ...] = ()
    """classes that transformers makes of the text part alone, tower or not"""
    refused: Mapping[str, str] = {}
    """keys of the whole config -> what they describe and is not built"""
    text_alone: bool = False
    """a config without ``vision_config`` is of the text alone: its class makes no tower (Gemma 4) or one that fits no projector"""


def _sizes(vision: Tree, hidden: str = "hidden_size", layers: str = "num_hidden_layers", heads: str = "num_attention_heads") -> Fields:
    """Sizes without which nothing can be said of a tower."""
    wanted = {"hidden": hidden, "layers": layers, "heads": heads}
    if missing := [key for key in wanted.values() if vision.get(key) is None]:
        raise ModelError([Finding(f"{key} is required", f"model.vision_config.{key}") for key in missing])
    count = vision[layers]
    if isinstance(count, int) and (many := beyond(count, MOST_LAYERS, "layers", f"model.vision_config.{layers}")):
        raise ModelError(many)
    return {**_TOWER, **{field: vision[key] for field, key in wanted.items()}}


def _side(value: Any) -> Any:
    """One side of what is square."""
    return value[0] if isinstance(value, list) and len(set(map(str, value))) == 1 else value


def _image(vision: Tree, size: int, patch: int, **further: Any) -> Fields:
    return {
        "size": _side(vision.get("image_size", size)), "patch": _side(vision.get("patch_size", patch)),
        "channels": vision.get("num_channels", 3), **further,
    }  # fmt: skip


def _mlp(vision: Tree) -> Fields:
    if vision.get("intermediate_size") is None:
        raise ModelError(Finding("intermediate_size is required", "model.vision_config.intermediate_size"))
    return {"mlp": vision["intermediate_size"]}


def _clip(vision: Tree) -> Fields:
    image = _image(vision, 224, 32, bias=False)
    word = vision.get("hidden_act", "quick_gelu")
    return {**_sizes(vision), **_mlp(vision), "activation": word, "embedding_norm": True, "image": image}


def _siglip(vision: Tree, patch: int = 16) -> Fields:
    if vision.get("model_type") == "siglip_vision_model" and vision.get("vision_use_head", True):
        text = "the attention pooling of a SigLIP tower, which text models do not read, is not supported yet"
        raise ModelError(Finding(text, "model.vision_config.vision_use_head", True, "write vision_use_head: false if the model has none"))
    image = _image(vision, 224, patch, class_tokens=0)
    return {**_sizes(vision), **_mlp(vision), "activation": vision.get("hidden_act", "gelu_pytorch_tanh"), "image": image}


def _pixtral(vision: Tree) -> Fields:
    image = _image(vision, 1024, 16, class_tokens=0, bias=False, positions=0, any_size=True)
    own = {"head_dim": vision["head_dim"]} if vision.get("head_dim") else {}
    return {
        **_sizes(vision), **_mlp(vision), **own, "activation": vision.get("hidden_act", "gelu"), "gated": True,
        "normalisation": "rmsnorm", "query_key_value_bias": False, "output_bias": False, "mlp_bias": False, "position": "rotary",
        "embedding_norm": True, "final_norm": False, "image": image,
    }  # fmt: skip


def _tower(vision: Tree) -> Fields:
    """A tower that the config names by its ``model_type``."""
    kind = vision.get("model_type")
    readers: Mapping[str, Callable[[Tree], Fields]] = {
        "clip_vision_model": _clip, "siglip_vision_model": _siglip, "pixtral": _pixtral, "idefics3_vision": _siglip,
    }  # fmt: skip
    if kind not in readers:
        hint = f"supported: {', '.join(readers)}"
        raise ModelError(
            Finding(f"a vision tower of model_type {kind!r} is not supported yet", "model.vision_config.model_type", kind, hint)
        )
    return readers[str(kind)](vision)


def _llava(vision: Tree, tree: Tree, width: int) -> tuple[Fields, Fields]:
    tower = _tower(vision)
    layer, strategy = tree.get("vision_feature_layer", -2), tree.get("vision_feature_select_strategy", "default")
    if not isinstance(layer, int):
        text = "features of several layers side by side are not supported yet"
        raise ModelError(Finding(text, "model.vision_feature_layer", layer, "use one layer"))
    if strategy != "default" and tower["image"].get("class_tokens", 1):
        text = "image tokens with the class token among them are not supported yet"
        raise ModelError(Finding(text, "model.vision_feature_select_strategy", strategy, "use default"))
    newline = tree.get("model_type") in ("llava_next", "llava_onevision")
    return tower, {"first": width, "bias": tree.get("multimodal_projector_bias", True), "newline": newline}


def _paligemma(vision: Tree, _: Tree, __: int) -> tuple[Fields, Fields]:
    return _siglip(vision), {}


def _gemma3(vision: Tree, tree: Tree, _: int) -> tuple[Fields, Fields]:
    tower = _siglip(vision)
    image = tower["image"]
    side, tokens = int(image["size"]) // int(image["patch"]), int(tree.get("mm_tokens_per_image") or 256)
    merge = side // int(tokens**0.5)
    return tower, {"merge": merge, "pools": True, "norm": "rmsnorm", "norm_offset": True, "bias": False}


def _gemma4(vision: Tree, tree: Tree, _: int) -> tuple[Fields, Fields]:
    """Sizes that the file leaves out are those of the class, as transformers leaves out what equals them."""
    if (kind := vision.get("model_type", "gemma4_vision")) != "gemma4_vision":
        text = f"a vision tower of model_type {kind!r} is not supported yet in a gemma4 model"
        raise ModelError(Finding(text, "model.vision_config.model_type", kind, "supported: gemma4_vision"))
    unread = [key for key, value in vision.items() if key not in _GEMMA4_KEYS and not is_harmless(key) and not says_nothing(key, value)]
    if unread:
        text = "is a key that parsim does not read of a Gemma 4 tower"
        raise ModelError([Finding(f"{key!r} {text}", f"model.vision_config.{key}", vision[key], "") for key in unread])
    part = {**_GEMMA4_TOWER, **{key: value for key, value in vision.items() if value is not None}}
    _agree("global_head_dim", part.get("global_head_dim", part["head_dim"]), part["head_dim"], "head_dim")
    _agree("hidden_activation", part["hidden_activation"], "gelu_pytorch_tanh", "the class's")
    merge, patch = int(part["pooling_kernel_size"]), part["patch_size"]
    unit = int(patch) * merge
    image = {
        "patch": patch, "class_tokens": 0, "bias": False, "positions": 2 * int(part["position_embedding_size"]), "any_size": True,
        "usual_size": unit * int(float(tree.get("vision_soft_tokens_per_image") or 280) ** 0.5),
    }  # fmt: skip
    tower = {
        **_sizes(part), **_mlp(part), "kv_heads": part["num_key_value_heads"], "head_dim": part["head_dim"],
        "activation": part["hidden_activation"], "gated": True, "normalisation": "rmsnorm", "norm_in_fp32": True, "norm_by_power": True,
        "norm_placement": "sandwich", "query_key_norm": True, "value_norm": True, "query_key_value_bias": False, "output_bias": False,
        "mlp_bias": False, "position": "rotary", "final_norm": False, "image": image,
        "clamped_products": bool(part.get("use_clipped_linears")),
    }  # fmt: skip
    pooled = {"merge": merge, "pools": True, "pools_by_product": True, "standardised": bool(part.get("standardize"))}
    return tower, {**pooled, "norm": "rmsnorm", "norm_weights": False, "bias": False}


def _idefics3(vision: Tree, tree: Tree, _: int) -> tuple[Fields, Fields]:
    return _siglip(vision, 32), {"merge": tree.get("scale_factor", 2), "bias": False}


def _mistral3(vision: Tree, tree: Tree, width: int) -> tuple[Fields, Fields]:
    merge, bias = tree.get("spatial_merge_size", 2), tree.get("multimodal_projector_bias", False)
    return _tower(vision), {"merge": merge, "norm": "rmsnorm", "merging": True, "first": width, "bias": bias}


def _internvl(vision: Tree, tree: Tree, width: int) -> tuple[Fields, Fields]:
    normed = {"query_key_norm": True, "query_key_norm_over": "projection", "query_key_norm_everywhere": True}
    bias = bool(vision.get("attention_bias", False))
    rms = vision.get("norm_type", "layer_norm") == "rms_norm"
    tower = {
        **_sizes(vision), **_mlp(vision), "activation": vision.get("hidden_act", "gelu"), "layer_scale": True,
        "query_key_value_bias": bias, "final_norm": not vision.get("use_mean_pooling", True),
        "normalisation": "rmsnorm" if rms else "layernorm", "image": _image(vision, 448, 14),
        **(normed if vision.get("use_qk_norm") else {}),
    }  # fmt: skip
    merge = round(1 / float(tree.get("downsample_ratio", 0.5)))
    return tower, {"merge": merge, "norm": "layernorm", "norm_merged": True, "first": width}


def _internvl_chat(vision: Tree, tree: Tree, width: int) -> tuple[Fields, Fields]:
    """The files beside InternVL's first weights, with the same tower and projector under other names."""
    again = {"attention_bias": vision.get("qkv_bias", True), "use_qk_norm": vision.get("qk_normalization", False)}
    for key in ("use_backbone_lora", "use_llm_lora"):
        if tree.get(key):
            raise ModelError(Finding("adapters within the model are not supported yet", f"model.{key}", tree[key], f"use {key}: 0"))
    return _internvl({**vision, **again}, tree, width)


def _llama4(vision: Tree, _: Tree, __: int) -> tuple[Fields, Fields]:
    tower = {
        **_sizes(vision), **_mlp(vision), "activation": "gelu", "position": "rotary", "embedding_norm": True,
        "image": _image(vision, 448, 14, bias=False),
    }  # fmt: skip
    merge = round(1 / float(vision.get("pixel_shuffle_ratio", 0.5)))
    wide = vision.get("projector_output_dim", 4096)
    _agree("intermediate_size", vision["intermediate_size"], int(tower["hidden"]) * merge**2, "hidden_size / pixel_shuffle_ratio^2")
    _agree("vision_output_dim", vision.get("vision_output_dim", wide), wide, "projector_output_dim")
    return tower, {"merge": merge, "first": vision.get("projector_input_dim", 4096), "second": wide, "bias": False}


def _qwen(vision: Tree, **further: Any) -> Fields:
    image = {
        "size": 448, "patch": vision.get("patch_size", 14), "channels": vision.get("in_channels", vision.get("in_chans", 3)),
        "frames": vision.get("temporal_patch_size", 2), "class_tokens": 0, "bias": False, "positions": 0, "any_size": True,
    }  # fmt: skip
    fixed = {"fused_query_key_value": True, "position": "rotary", "final_norm": False}
    return {**fixed, **further, "image": {**image, **further.get("image", {})}}


def _agree(key: str, said: Any, needed: Any, of: str) -> None:
    """Raise `ModelError` where a size of the tower does not fit what stands behind it."""
    if said != needed:
        text = f"{key} {said} is not {of} = {needed}: the products of the tower and its projector do not fit each other"
        raise ModelError(Finding(text, f"model.vision_config.{key}", said, f"use {needed}"))


def _merger(vision: Tree, hidden: int, norm: str, width: int) -> Fields:
    merge = int(vision.get("spatial_merge_size", 2))
    _agree("out_hidden_size", vision.get("out_hidden_size", width), width, "the text's hidden_size")
    return {"merge": merge, "norm": norm, "first": hidden * merge**2}


def _qwen2(vision: Tree, _: Tree, width: int) -> tuple[Fields, Fields]:
    sizes = _sizes(vision, "embed_dim", "depth", "num_heads")
    hidden = int(sizes["hidden"])
    further = {"mlp": int(hidden * float(vision.get("mlp_ratio", 4))), "activation": vision.get("hidden_act", "quick_gelu")}
    return {**sizes, **_qwen(vision, **further)}, _merger(vision, hidden, "layernorm", width)


def _qwen25(vision: Tree, _: Tree, width: int) -> tuple[Fields, Fields]:
    sizes = _sizes(vision, layers="depth", heads="num_heads")
    said = vision.get("fullatt_block_indexes")
    full = [7, 15, 23, 31] if said is None else said
    letters = "".join("*" if layer in full else "W" for layer in range(int(sizes["layers"])))
    window = (int(vision.get("window_size", 112)) // int(vision.get("patch_size", 14))) ** 2
    further = {
        **_mlp(vision), "activation": vision.get("hidden_act", "silu"), "gated": True, "normalisation": "rmsnorm",
        "attention_chunk": window, "layer_pattern": shortest(letters),
    }  # fmt: skip
    return {**sizes, **_qwen(vision, **further)}, _merger(vision, int(sizes["hidden"]), "rmsnorm", width)


def _qwen3(vision: Tree, _: Tree, width: int) -> tuple[Fields, Fields]:
    sizes = _sizes(vision, layers="depth", heads="num_heads")
    image = {"bias": True, "positions": vision.get("num_position_embeddings", 2304), "patch": vision.get("patch_size", 16)}
    further = {**_mlp(vision), "activation": vision.get("hidden_act", "gelu_pytorch_tanh"), "image": image}
    extra = len(vision.get("deepstack_visual_indexes") or ())
    return {**sizes, **_qwen(vision, **further)}, {**_merger(vision, int(sizes["hidden"]), "layernorm", width), "extra": extra}


def _qwen35(vision: Tree, tree: Tree, width: int) -> tuple[Fields, Fields]:
    """Qwen3-VL's tower without the features of earlier layers: the class has none."""
    if earlier := vision.get("deepstack_visual_indexes"):
        text = "features of several layers of the tower, which Qwen3.5 does not read, are not supported yet"
        raise ModelError(Finding(text, "model.vision_config.deepstack_visual_indexes", earlier, "use []"))
    return _qwen3(vision, tree, width)


def _kimi(vision: Tree, tree: Tree, _: int) -> tuple[Fields, Fields]:
    """The names of transformers' class, or those beside the weights (``vt_hidden_size``). A video's moments are pooled."""
    part = {name.removeprefix("vt_").removeprefix("init_"): value for name, value in vision.items()}
    sizes, merge = _sizes(part), _side(part.get("merge_kernel_size", [2, 2]))
    _agree("hidden_size", sizes["hidden"], tree.get("projection_hidden_size", sizes["hidden"]), "projection_hidden_size")
    rows = int(part.get("pos_emb_height", 64)) * int(part.get("pos_emb_width", 64))
    image = {
        "size": 448, "patch": part.get("patch_size", 14), "class_tokens": 0, "positions": rows, "any_size": True,
    }  # fmt: skip
    activation = part.get("hidden_act", "gelu_pytorch_tanh")
    tower = {**sizes, **_mlp(part), "activation": activation, "position": "rotary", "image": image}
    return tower, {"merge": merge, "norm": "layernorm", "first": int(sizes["hidden"]) * int(merge) ** 2}


_COMMON = words(
    "text_config vision_config model_type architectures image_token_id image_token_index video_token_id video_token_index "
    "vision_start_token_id vision_end_token_id vision_token_id tie_word_embeddings vocab_size boi_token_index eoi_token_index "
    "image_seq_length ignore_index hidden_size"
)
_PROJECTED = words("projector_hidden_act multimodal_projector_bias vision_feature_layer vision_feature_select_strategy")
_NONE: Mapping[str, str] = {}
_QWEN2 = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2"}
VISION_LANGUAGE: Mapping[str, VisionLanguage] = {
    "llava": VisionLanguage(_llava, harmless=_COMMON | _PROJECTED),
    "llava_next": VisionLanguage(_llava, harmless=_COMMON | _PROJECTED | {"image_grid_pinpoints", "use_image_newline_parameter"}),
    "llava_onevision": VisionLanguage(_llava, harmless=_COMMON | _PROJECTED | words("image_grid_pinpoints vision_aspect_ratio")),
    "paligemma": VisionLanguage(_paligemma, _NONE, _COMMON | {"projection_dim"}, words("use_bidirectional_attention num_image_tokens")),
    "gemma3": VisionLanguage(_gemma3, harmless=_COMMON | {"mm_tokens_per_image"}),
    "gemma4": VisionLanguage(
        _gemma4, harmless=_COMMON | words("vision_soft_tokens_per_image boa_token_id eoa_token_id audio_token_id"), tied=True,
        refused={"audio_config": "a tower of speech, as Gemma 4's E2B and E4B have it,"}, text_alone=True,
    ),
    "idefics3": VisionLanguage(_idefics3, harmless=_COMMON | {"scale_factor"}),
    "smolvlm": VisionLanguage(_idefics3, harmless=_COMMON | {"scale_factor"}),
    "mistral3": VisionLanguage(_mistral3, harmless=_COMMON | _PROJECTED | {"spatial_merge_size"}),
    "internvl": VisionLanguage(_internvl, harmless=_COMMON | _PROJECTED | {"downsample_ratio"}),
    "internvl_chat": VisionLanguage(
        _internvl_chat, harmless=_COMMON
        | words(
            "llm_config downsample_ratio select_layer template ps_version dynamic_image_size use_thumbnail force_image_size "
            "min_dynamic_patch max_dynamic_patch pad2square image_fold use_backbone_lora use_llm_lora system_message img_context_token_id"
        ),
        text_key="llm_config", classes=("InternVLChatModel",),
    ),
    "llama4": VisionLanguage(_llama4, harmless=_COMMON, text_alone=True, text_classes=("Llama4ForCausalLM",)),
    "kimi_k25": VisionLanguage(
        _kimi, {"kimi_k2": "deepseek_v3"}, _COMMON
        | words("media_placeholder_token_id use_unified_vision_chunk video_placeholder projection_hidden_size"),
        tied=False,
    ),
    "kimi_vl": VisionLanguage(
        _kimi, {"kimi_vl": "deepseek_v3"}, _COMMON | words("media_placeholder_token_id projection_hidden_size"), tied=False
    ),
    "qwen2_vl": VisionLanguage(_qwen2, _QWEN2, _COMMON),
    "qwen2_5_vl": VisionLanguage(_qwen25, _QWEN2, _COMMON),
    "qwen3_vl": VisionLanguage(_qwen3, {"qwen3_vl_text": "qwen3"}, _COMMON),
    "qwen3_vl_moe": VisionLanguage(_qwen3, {"qwen3_vl_moe_text": "qwen3_moe"}, _COMMON),
    "qwen3_5": VisionLanguage(_qwen35, harmless=_COMMON, tied=False, text_classes=("Qwen3_5ForCausalLM",)),
    "qwen3_5_moe": VisionLanguage(_qwen35, harmless=_COMMON, tied=False, text_classes=("Qwen3_5MoeForCausalLM",)),
}  # fmt: skip
"""``model_type`` -> how it is read"""

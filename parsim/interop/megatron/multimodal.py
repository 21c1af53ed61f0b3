"""Megatron-LM's models of images and text (LLaVA, NVLM): a tower and a projector beside the options of the text.

NVIDIA/Megatron-LM, examples/multimodal: train.py, multimodal_args.py, model.py and config.py (`get_vision_model_config`,
`get_vision_projection_config`); megatron/core/models/vision/clip_vit_model.py; nvlm/internvit.py. The words of ``--vision-model-type``
and ``--language-model-type`` bring sizes that no option says. Until the autumn of 2024 a sample had one image, and --seq-length was the
text beside it (`model_provider` set decoder_seq_length to their sum).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from parsim.interop.command import Invocation
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source

_TOWER = {"family": "vit", "task": "encoder", "causal": False, "vocabulary": 0, "position": "none", "fused_query_key_value": True}
TOWERS: Mapping[str, dict[str, Any]] = {
    "clip": {
        "layers": 24, "hidden": 1024, "heads": 16, "mlp": 4096, "activation": "quick-gelu", "embedding_norm": True, "final_norm": False,
    },
    "siglip": {"layers": 27, "hidden": 1152, "heads": 16, "mlp": 4304, "activation": "gelu-tanh"},
    "internvit": {
        "layers": 45, "hidden": 3200, "heads": 25, "head_dim": 128, "mlp": 12800, "activation": "gelu", "normalisation": "rmsnorm",
        "final_norm": False, "query_key_value_bias": False, "layer_scale": True, "query_key_norm": True,
        "query_key_norm_over": "projection", "query_key_norm_everywhere": True,
    },
    "internvit300M": {
        "layers": 24, "hidden": 1024, "heads": 16, "mlp": 4096, "activation": "gelu", "final_norm": False, "layer_scale": True,
    },
}  # fmt: skip
"""--vision-model-type -> its layers"""
CLASSLESS = ("siglip",)
"""towers without a class token"""
BIASLESS = ("clip",)
"""towers whose patches have no bias"""


class Language(NamedTuple):
    """What --language-model-type decides beside the options."""

    mlp: int
    projector: int
    """width of the projector's first product"""
    norm: str = ""
    """of what it reads: none, or as the text's (empty)"""
    bias: bool = False
    adds_bias: bool = False
    """queries, keys and values have biases"""
    squared: bool = False
    """its MLP squares a relu and has no gate, and so does the projector"""


LANGUAGES: Mapping[str, Language] = {
    "8b": Language(16384, 16384, squared=True),
    "llama3_8b": Language(14336, 14336),
    "llama3.1_8b": Language(14336, 4096, "layernorm", bias=True),
    "mistral_7b": Language(14336, 14336, "none"),
    "yi-34b": Language(20480, 20480, "layernorm"),
    "qwen2.0_72B": Language(29568, 29568, "layernorm", adds_bias=True),
    "qwen2.5_7B": Language(18944, 3584, adds_bias=True),
    "qwen2.5_72B": Language(29568, 29568, "layernorm", adds_bias=True),
    "llama3.2_1b": Language(8192, 2048, "layernorm"),
    "llama_nemotron_8b": Language(14336, 14336, "layernorm", bias=True),
}
"""decoders with SwiGLU (but the first) and without biases, whatever the options say"""
_GATED = {"activation": "silu", "gated": True, "fused_gate_up": True}
_SQUARED = {"activation": "relu", "gated": False}
_BIASES = {"output_bias": False, "mlp_bias": False}
QUIET = {
    "the data set and how it is read": (
        "prompt_path", "dataset_config", "dataloader_save", "dataloader_seq_length", "dataloader_seed", "lr_data_range_start",
        "lr_data_range_end", "num_frames", "max_num_tiles", "use_tiling", "use_thumbnail", "thumbnail_area_threshold", "image_tag_type",
        "tokenizer_prompt_format", "special_tokens", "use_tile_tags",
    ),
    "checkpoints and restarts": ("allow_missing_vision_projection_checkpoint",),
    "evaluation": ("online_evaluation_config",),
}  # fmt: skip


def is_multimodal(call: Invocation) -> bool:
    """Whether the program is examples/multimodal/train.py, or what it was called in the spring of 2024."""
    folder, _, name = call.program.rpartition("/")
    return (name == "train.py" and folder.endswith("multimodal")) or name == "pretrain_multimodal.py"


def builds(source: Source) -> bool:
    """Whether both parts of the model are known."""
    vision, language = source.get("vision_model_type"), source.get("language_model_type")
    return language is not None and str(language.value) in LANGUAGES and (vision is None or str(vision.value) in TOWERS)


def write_multimodal(draft: ImportDraft, source: Source, tensor: int) -> Key | None:
    """Write tower, projector and what is frozen; the option that says how long samples are."""
    vision, language = source.get("vision_model_type"), source.get("language_model_type")
    kind, text = "clip" if vision is None else str(vision.value), LANGUAGES[str(language.value) if language is not None else ""]
    _write_text(draft, source, text, language)
    shuffles = source.get("pixel_shuffle")
    merge = 2 if draft.flag(shuffles) else 1
    tower, keys = _tower(draft, source, kind, tensor, merged=merge > 1)
    each, said = (tower["image"]["size"] // tower["image"]["patch"] // merge) ** 2, source.get("seq_length")
    length, of_2024 = source.get("decoder_seq_length"), False
    if said is not None and str(said.value) == str(each):
        keys.append(said)
    elif said is not None and length is None and (tokens := draft.whole(said, 1)) is not None:
        length, of_2024 = replace(said, value=tokens + each, original=said.value), True
    if not of_2024:
        draft.harmless(said, f"given again: a tile has {each} tokens")
    note = "" if vision is not None else "--vision-model-type is clip if not given"
    draft.write("model.vision", tower, vision, *keys, note=note)
    norm = text.norm or str(draft.value("model.normalisation") or "layernorm")
    width = text.projector
    projector: dict[str, Any] = {"merge": merge, "norm": norm, "norm_merged": merge > 1, "first": width, "bias": text.bias}
    draft.write("model.projector", projector, language, shuffles)
    _write_frozen(draft, source)
    most = [key for name in ("max_num_tiles", "num_frames") if (key := source.get(name)) is not None]
    told = ", ".join(key.quoted(draft.file) for key in most)
    if of_2024:
        draft.write("training.images", 1, said, note=f"without --decoder-seq-length it is the text beside one tile of {each} tokens")
    else:
        draft.fill("training.images", f"images (tiles) per sample{': ' + told if told else ', for example 1'}")
    for reason, names in QUIET.items():
        for key in source.all(*names):
            draft.harmless(key, reason)
    draft.harmless(source.get("use_te"), "Transformer Engine's kernels, as the profile has them")
    again = source.get("recompute_vision")
    if source.get("recompute_granularity", "recompute_activations") is not None and not draft.flag(again):
        draft.remark("without --recompute-vision the tower is not recomputed there; here it is as the text is", "training.recompute")
    draft.harmless(again, "the tower is recomputed as the text is")
    return length


def _write_text(draft: ImportDraft, source: Source, text: Language, key: Key | None) -> None:
    draft.write("model.mlp", text.mlp, key)
    for name, value in {**(_SQUARED if text.squared else _GATED), **_BIASES}.items():
        draft.write(f"model.{name}", value, key, note="its square is taken in the same kernel" if value == "relu" else "")
    draft.write("model.query_key_value_bias", text.adds_bias, key)
    for name in ("ffn_hidden_size", "swiglu", "squared_relu", "disable_bias_linear", "add_qkv_bias"):
        if (option := source.get(name)) is not None:
            draft.harmless(option, "--language-model-type says it, too")


def _tower(draft: ImportDraft, source: Source, kind: str, tensor: int, *, merged: bool) -> tuple[dict[str, Any], list[Key]]:
    """The tower's layers on images of the script's size, and the options that say that."""
    high, wide, patch = (source.get(name) for name in ("img_h", "img_w", "patch_dim"))
    size, side = draft.whole(high, 1) or 224, draft.whole(patch, 1) or 16
    if high is not None and wide is not None and str(high.value) != str(wide.value):
        draft.refuse(wide, "images that are no squares", "make --img-w as large as --img-h")
    keeps, classless = not draft.flag(dropped := source.get("disable_vision_class_token")), kind in CLASSLESS
    if keeps and not classless:
        where = dropped or high or source.keys[0]
        what = "class tokens among the patches that are merged" if merged else "tokens of an image with the class token among them"
        draft.errors.append(where.finding(f"not supported yet: {what}", "give --disable-vision-class-token"))
    tower = {**_TOWER, **TOWERS[kind]}
    if kind == "internvit":  # as many heads as the ranks divide; those beyond the 25 are zeros that are computed
        tower["heads"] = (24 // tensor + 1) * tensor
    image = {"size": size, "patch": side, "class_tokens": 0 if classless else 1, "bias": kind not in BIASLESS}
    return {**tower, "image": image}, [key for key in (high, wide, patch, dropped) if key is not None]


def _write_frozen(draft: ImportDraft, source: Source) -> None:
    """--freeze-ViT and --freeze-LM; the projector is always trained."""
    tower, text = source.get("freeze_ViT"), source.get("freeze_LM")
    parts = (["vision"] if draft.flag(tower) else []) + (["embedding", "layer", "head"] if draft.flag(text) else [])
    if parts:
        draft.write("training.finetune.method", "freeze", tower, text)
        draft.write("training.finetune.freeze", parts, tower, text)
    for key in (tower, text):
        draft.harmless(key, "switched off")


def settle_recompute(draft: ImportDraft, layers: int | None) -> None:
    """``block`` counts layers of the text, and every layer of the tower is recomputed with it: as many as there are is all of both."""
    line = draft.lines.get("training.recompute")
    if line is None or not isinstance(line.value, dict) or not set(line.value) & {"blocks", "every"}:
        return
    count = line.value.get("blocks")
    if isinstance(count, int) and layers is not None and count >= layers:
        draft.write("training.recompute", "full", *line.keys, note=f"all {layers} layers of the text, and the tower's")
    else:
        where = line.keys[0]
        draft.errors.append(where.finding("not supported yet: some layers of the text recomputed, and all of its tower", "recompute all"))

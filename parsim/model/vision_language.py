"""A Hugging Face ``config.json`` of a model with a vision tower as a `TransformerConfig` that holds both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.families.harmless import is_harmless, says_nothing
from parsim.model.families.vision_language import VISION_LANGUAGE, VisionLanguage
from parsim.model.huggingface import ACTIVATIONS, read_config
from parsim.model.transformer import TransformerConfig, configure

_LEGACY = ("qwen2_vl", "qwen2_5_vl")
"""whose older configs have the keys of the text beside ``vision_config``"""


def read_vision_language(tree: Mapping[str, Any], path: str) -> TransformerConfig:
    """Text, tower and projector. Raises `ModelError` as `parsim.model.huggingface.read_config` does."""
    kind = str(tree["model_type"])
    known = VISION_LANGUAGE[kind]
    classes = tree.get("architectures")
    if isinstance(classes, list) and [*classes, ""][0] in known.text_classes:
        return read_config({**_text_part(tree, known, kind, path), "architectures": classes}, f"{path}.{known.text_key}")
    vision = tree.get("vision_config")
    alone = lacks_tower(tree)
    if not isinstance(vision, Mapping) and not alone:
        text = f"a {kind} model has a vision_config; the text alone is another model"
        raise ModelError(Finding(text, f"{path}.vision_config", vision, "add it, or give the text_config as a config of its own"))
    usual = isinstance(classes, list) and str([*classes, ""][0]).endswith("ForConditionalGeneration")
    if isinstance(classes, list) and classes and not usual and classes[0] not in known.classes:
        text = f"of models with images, {classes[0]} is not supported yet"
        raise ModelError(Finding(text, f"{path}.architectures", classes, "supported: classes that end in ForConditionalGeneration"))
    part = _text_part(tree, known, kind, path)
    text_config = read_config(part, f"{path}.{known.text_key}" if known.text_key in tree else path)
    changes: dict[str, Any] = {}
    if isinstance(tied := tree.get("tie_word_embeddings", known.tied), bool):
        changes["tied_embeddings"] = tied
    if alone or not isinstance(vision, Mapping):
        return configure(changes, text_config, path)
    try:
        tower, projector = known.read(vision, tree, text_config.hidden)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(Finding(f"cannot be read: {error}", f"{path}.vision_config", None, "take it from the model's own file")) from None
    tower["activation"] = ACTIVATIONS.get(str(tower["activation"]), tower["activation"])
    return configure({**changes, "vision": tower, "projector": projector}, text_config, path)


def lacks_tower(tree: Mapping[str, Any]) -> bool:
    """Whether the config of a model with images describes its text alone, and may."""
    known = VISION_LANGUAGE.get(str(tree.get("model_type")))
    return known is not None and known.text_alone and tree.get("vision_config") is None


def _text_part(tree: Mapping[str, Any], known: VisionLanguage, kind: str, path: str) -> Mapping[str, Any]:
    """The config of the text, as its own file would have it; what else the whole config says must be known."""
    part = tree.get(known.text_key)
    if isinstance(part, Mapping):
        unread = [key for key, value in tree.items() if key not in known.harmless and not is_harmless(key) and not says_nothing(key, value)]
        if unread:
            hint = "remove it if it changes neither shapes nor work"
            message = f"is a key that parsim does not read for model_type {kind!r}"
            raise ModelError(
                [
                    Finding(f"{known.refused[key]} is not supported yet", f"{path}.{key}", tree[key], "null reads the model without it")
                    if key in known.refused
                    else Finding(f"{key!r} {message}", f"{path}.{key}", tree[key], hint)
                    for key in unread
                ]
            )
    elif kind in _LEGACY:
        own = known.harmless - {"vocab_size", "hidden_size", "tie_word_embeddings"}
        part = {key: value for key, value in tree.items() if key not in own} | {"model_type": f"{kind}_text"}
    else:
        raise ModelError(
            Finding(f"a {kind} model has a {known.text_key}", f"{path}.{known.text_key}", part, "take it from the model's own file")
        )
    name = str(part.get("model_type", ""))
    part = {key: value for key, value in part.items() if key not in known.text_harmless}
    return {**part, "model_type": known.text.get(name, name), "architectures": None}

"""From a parsed model description, of any of the six kinds, to a `Model`.

| the tree has | it is |
|---|---|
| ``base`` | another model with changes |
| ``model_type`` | a Hugging Face config.json |
| ``family`` | a catalogue file or a user's own transformer |
| ``input`` and ``layers`` | a plain network (MLP, CNN) |
| ``stages`` | measured stage times |
| ``input`` and ``blocks`` | a module that was traced |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.blocks import build_transformer
from parsim.model.families import FAMILIES
from parsim.model.huggingface import merged, read_config, sizes_of_class
from parsim.model.lengths import Lengths
from parsim.model.model import Model
from parsim.model.transformer import TransformerConfig, configure

Lookup = Callable[[str], Mapping[str, Any]]

LABELS = frozenset({"name", "aliases", "source", "parameters", "active_parameters"})
"""keys of a transformer file that describe it and change nothing; the two counts are what the source states"""


def build_model(
    tree: Mapping[str, Any],
    *,
    name: str,
    base_lookup: Lookup,
    tensor: int = 1,
    loss: str = "auto",
    divisor: int = 0,
    lengths: Lengths = Lengths(),  # noqa: B008 - immutable
) -> Model:
    """The model that `tree` describes.

    `base_lookup` returns the tree of a catalogue name, alias or path; it is called for ``base:`` only. `tensor` is the
    tensor-parallel size; `loss` is the scenario's ``training.loss``; `divisor` is what the stack pads vocabularies to a multiple of;
    `lengths` are those of samples with two kinds of tokens.
    Raises `ModelError` where the tree is of no known kind, or a field is unknown, missing or contradictory.
    """
    kind, tree = _unfold(tree, base_lookup, ())
    if kind == "plain":
        from parsim.model.plain import plain_model

        return plain_model(_fields(tree), name, loss)
    if kind == "traced":
        from parsim.model.traced import traced_model

        return traced_model(_fields(tree), name, loss, tree.get("parameters"))
    if kind == "stages":
        from parsim.model.stages import build_stages

        return build_stages(_fields(tree), name=name)
    config = _config(kind, tree, "model")
    if config.encoder is not None:
        from parsim.model.encoder_decoder import build_encoder_decoder

        return build_encoder_decoder(config, config.encoder, name=name, lengths=lengths, tensor=tensor, loss=loss, divisor=divisor)
    if config.vision is not None:
        from parsim.model.vision import build_with_vision

        return build_with_vision(config, name=name, lengths=lengths, tensor=tensor, loss=loss, divisor=divisor)
    return build_transformer(config, name=name, tensor=tensor, loss=loss, divisor=divisor)


def read_architecture(tree: Mapping[str, Any], *, base_lookup: Lookup, path: str = "model") -> TransformerConfig:
    """The architecture of a transformer tree (``base``, ``model_type`` or ``family``), without building it."""
    kind, tree = _unfold(tree, base_lookup, ())
    if kind in ("plain", "stages", "traced"):
        raise ModelError(Finding("this model is not a transformer", path))
    return _config(kind, tree, path)


def assumed_of_class(tree: Mapping[str, Any], base_lookup: Lookup) -> dict[str, int]:
    """Sizes of a Hugging Face config that only the default of its class says, by key."""
    kind, tree = _unfold(tree, base_lookup, ())
    return sizes_of_class(tree) if kind == "huggingface" else {}


def of_text_alone(tree: Mapping[str, Any], base_lookup: Lookup) -> bool:
    """Whether the Hugging Face config of a model with images describes no tower, so that its text alone is built."""
    from parsim.model.vision_language import lacks_tower

    kind, tree = _unfold(tree, base_lookup, ())
    return kind == "huggingface" and lacks_tower(tree)


def _unfold(tree: Mapping[str, Any], base_lookup: Lookup, seen: tuple[str, ...]) -> tuple[str, Mapping[str, Any]]:
    """Kind and tree with every ``base`` resolved; changes to a Hugging Face base travel under ``changes``."""
    if not isinstance(tree, Mapping):
        raise ModelError(Finding("a model is a mapping", "model", tree, _kinds()))
    if "base" not in tree:
        return _kind(tree), tree
    base = str(tree["base"])
    if base in seen:
        raise ModelError(Finding(f"bases go in a circle: {' -> '.join((*seen, base))}", "model.base", base))
    kind, below = _unfold(base_lookup(base), base_lookup, (*seen, base))
    changes = {key: value for key, value in tree.items() if key != "base"}
    if kind == "huggingface":
        return kind, {**below, "changes": [*below.get("changes", ()), changes]}
    if kind == "transformer" and "family" in changes and changes["family"] != below["family"]:
        message = f"{base} is of family {below['family']!r}; a base cannot change family"
        raise ModelError(Finding(message, "model.family", changes["family"], "write family and sizes without base"))
    return kind, merged(below, changes)


def _kind(tree: Mapping[str, Any]) -> str:
    if "stages" in tree:
        return "stages"
    if "family" in tree:
        return "transformer"
    if "model_type" in tree or "architectures" in tree:
        return "huggingface"
    if "blocks" in tree:
        return "traced"
    if "input" in tree or isinstance(tree.get("layers"), list):
        return "plain"
    raise ModelError(Finding("cannot tell what kind of model this is", "model", sorted(map(str, tree)), _kinds()))


def _kinds() -> str:
    return (
        "write base and changes, family and sizes, input and layers or blocks, stages, or give a Hugging Face config.json; "
        f"families: {', '.join(FAMILIES)}"
    )


def _config(kind: str, tree: Mapping[str, Any], path: str) -> TransformerConfig:
    if kind == "huggingface":
        config = read_config({key: value for key, value in _fields(tree).items() if key != "changes"}, path)
        for changes in tree.get("changes", ()):
            config = configure(_fields(changes), config, path)
        return config
    family = FAMILIES.get(str(tree["family"]))
    if family is None:
        near = get_close_matches(str(tree["family"]), FAMILIES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"families: {', '.join(FAMILIES)}"
        raise ModelError(Finding(f"unknown family {tree['family']!r}", f"{path}.family", tree["family"], hint))
    return configure(merged(family.structure, _fields(tree)), path=path)


def _fields(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in LABELS}

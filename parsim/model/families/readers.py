"""What several families read from a config and no table of keys can say: windows, kinds of layers, shared experts, biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.model.families.family import Adjust, Fields, shortest

LAYER_TYPES = {"full_attention": "*", "sliding_attention": "W"}
"""word of ``layer_types`` -> letter of `TransformerConfig.layer_pattern`"""


def together(*readers: Adjust) -> Adjust:
    """One reader that does what all of them do, in this order."""

    def read(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
        return set().union(*(reader(fields, tree) for reader in readers))

    return read


def windows(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Sliding windows: ``sliding_window`` with ``use_sliding_window``, ``max_window_layers`` and ``layer_types``."""
    window = int(tree.get("sliding_window") or tree.get("sliding_window_size") or 0)
    types = tree.get("layer_types")
    if not tree.get("use_sliding_window", True) or (types and set(types) == {"full_attention"}):
        window = 0
    first, layers = tree.get("max_window_layers"), int(tree.get("num_hidden_layers") or 0)
    if window and not types and first is not None:  # older configurations: the first layers see all keys
        types = ["full_attention" if layer < first else "sliding_attention" for layer in range(layers)]
    fields["attention_window"] = window
    if window and types:
        fields |= pattern(types)
    return {"sliding_window", "sliding_window_size", "use_sliding_window", "max_window_layers", "layer_types"}


def interleaved(window: int, every: int) -> Adjust:
    """A reader of windows of `window` tokens in all layers but every n-th, unless the config says other numbers."""

    def read(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
        keys = ("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")
        size = tree.get("sliding_window", window) or 0
        steps = [tree[key] for key in keys if tree.get(key) is not None]
        if steps and not isinstance(steps[0], str | int):
            raise ModelError(Finding("must be a whole number", "sliding_window_pattern", steps[0], "6: every sixth layer sees all keys"))
        step = len(steps[0]) if steps and isinstance(steps[0], str) else int(steps[0]) if steps else every  # EXAONE 4 writes LLLG
        types = tree.get("layer_types") or ()
        fields |= {"attention_window": 0 if types and set(types) == {"full_attention"} else size}
        if fields["attention_window"]:
            fields |= pattern(types) if types else {"full_attention_every": step}
        return {"sliding_window", "layer_types", *keys}

    return read


def pattern(types: list[str]) -> Fields:
    """The fields for this order of layers: every n-th one full if that says it, otherwise the shortest pattern that does."""
    if strange := sorted(set(types) - set(LAYER_TYPES)):
        message = f"layers of the kind {' and '.join(strange)} are not supported yet"
        raise ModelError(Finding(message, "layer_types", types, f"supported: {', '.join(LAYER_TYPES)}"))
    letters = "".join(LAYER_TYPES[kind] for kind in types)
    every = letters.find("*") + 1
    if all((letter == "*") == bool(every and (layer + 1) % every == 0) for layer, letter in enumerate(letters)):
        return {"full_attention_every": every}
    return {"full_attention_every": 0, "layer_pattern": shortest(letters)}


def rotary_shares(tree: Mapping[str, Any], usual: Mapping[str, float]) -> dict[str, float]:
    """The rotated share of a head by kind of layer, from ``rope_parameters`` of the kind or of all, `usual` where they are silent."""
    said = tree.get("rope_parameters")
    parameters = said if isinstance(said, Mapping) else {}
    found = {}
    for kind, share in usual.items():
        own = parameters.get(kind)
        values = (own if isinstance(own, Mapping) else parameters).get("partial_rotary_factor"), tree.get("partial_rotary_factor")
        value = next((value for value in values if value is not None), share)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 < value <= 1.0:
            text = f"partial_rotary_factor is a share of each head, is {repr(value)[:60]}"
            raise ModelError(Finding(text, "rope_parameters", said, "a number above 0 and at most 1"))
        found[kind] = float(value)
    return found


def unrotated(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Layers without rotary positions, every n-th one: ``no_rope_layer_interval``, or ``no_rope_layers`` with a 1 for those that rotate."""
    layers, interval = int(fields["layers"]), int(tree.get("no_rope_layer_interval") or 4)
    regular = [int((layer + 1) % interval != 0) for layer in range(layers)]
    said = tree.get("no_rope_layers")
    if said and all(said):
        interval = 0
    elif said and list(said) != regular:
        message = f"rotary positions in other layers than all but every {interval}th are not supported yet"
        raise ModelError(Finding(message, "no_rope_layers", said, f"leave it out for {regular}"))
    fields["no_rotary_every"] = interval
    return {"no_rope_layer_interval", "no_rope_layers"}


def dense_first(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Which layers have experts: ``mlp_layer_types``, or the layers without any in ``mlp_only_layers``; the first ones may be dense."""
    kinds, alone = tree.get("mlp_layer_types"), tree.get("mlp_only_layers")
    if alone and any(type(layer) is not int for layer in alone):
        raise ModelError(Finding("must be numbers of layers", "mlp_only_layers", alone, "take it from the model's own config.json"))
    dense = [i for i, kind in enumerate(kinds) if kind == "dense"] if kinds else sorted(alone or ())
    if dense != list(range(len(dense))):
        key = "mlp_layer_types" if kinds else "mlp_only_layers"
        raise ModelError(Finding(f"{key}: dense layers behind layers with experts are not supported yet", key, tree[key]))
    if dense:
        fields.setdefault("experts", {})["dense_layers"] = len(dense)
    return {"mlp_layer_types", "mlp_only_layers"}


def shared_experts(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """The MLP that every token visits: ``n_shared_experts`` times as wide as an expert."""
    size = tree.get("moe_intermediate_size")
    if size is None:
        raise ModelError(Finding("moe_intermediate_size is required", "moe_intermediate_size"))
    fields.setdefault("experts", {})["shared"] = (tree.get("n_shared_experts") or 0) * size
    return {"n_shared_experts"}


def groups(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Groups of experts among which a token chooses first (``n_group``), and how many it chooses."""
    count, kept = tree.get("n_group"), tree.get("topk_group")
    if isinstance(count, int) and isinstance(kept, int) and 1 <= kept < count:
        fields.setdefault("experts", {}).update({"groups": count, "groups_kept": kept})
    return {"n_group", "topk_group"}


def biases(key: str, names: str, *, usual: bool = False) -> Adjust:
    """A reader of one flag for the biases `names`, `usual` where the config is silent."""

    def read(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
        said = tree.get(key)
        fields.update(dict.fromkeys(names.split(), usual if said is None else bool(said)))
        return {key}

    return read


def given(key: str, name: str) -> Adjust:
    """A reader of a number that says no more here than that it is there."""

    def read(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
        fields[name] = tree.get(key) is not None
        return {key}

    return read


def dropout_of(key: str, usual: float = 0.0) -> Adjust:
    """A reader of the probability with which attention probabilities are dropped."""

    def read(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
        said = tree.get(key)
        fields["attention_dropout"] = bool(usual if said is None else said)
        return {key}

    return read

"""Gemma 4's text: what its config says of layers that see all keys, of experts beside the MLP, and of what E2B and E4B alone have:
per-layer inputs, and layers that read keys and values of earlier ones.

Keys and defaults: huggingface/transformers ``models/gemma4/configuration_gemma4.py`` of 5.23. Published files say ``global_head_dim`` and
``num_global_key_value_heads``; that version writes ``per_layer_config`` in their place: layer -> sizes that differ there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.errors import Finding, ModelError
from parsim.limits import LARGEST_SIZE
from parsim.model.families.family import Fields, words
from parsim.model.families.readers import pattern

_FULL, _WINDOW = "full_attention", "sliding_attention"
_PER_LAYER = {"head_dim": "head_dim", "num_key_value_heads": "kv_heads"}
_USUAL = {"head_dim": 256, "kv_heads": 4}
_EXPERTS = {"num_experts": "count", "top_k_experts": "top_k", "moe_intermediate_size": "mlp"}


def gemma4(fields: Fields, tree: Mapping[str, Any]) -> set[str]:
    """Windows, heads of either kind of layer, experts, per-layer inputs, shared keys and values."""
    if tree.get("use_bidirectional_attention") == "all":
        text = "attention to words behind a token, in windows of another size, is not supported yet"
        raise ModelError(Finding(text, "use_bidirectional_attention", "all", "null, or vision"))
    fields["activation"] = "gelu-tanh"
    for key in ("hidden_activation", "hidden_act"):
        if tree.get(key) not in (None, "gelu_pytorch_tanh"):
            raise ModelError(Finding(f"{key} {tree[key]!r} is not supported yet for gemma4-text", key, tree[key], "gelu_pytorch_tanh"))
    fields["softcap_logits"] = bool(tree.get("final_logit_softcapping"))
    types = _layer_types(fields, tree)
    window = tree.get("sliding_window", 512)
    if _WINDOW in types and not window:
        raise ModelError(Finding("layers of sliding_attention need a window", "sliding_window", window, "give it: 1024"))
    fields["attention_window"] = window if _WINDOW in types else 0
    if _WINDOW in types:
        fields |= pattern(types)
    fields["full_attention"] = full = _full(fields, tree, types)
    if _WINDOW not in types:  # no layer has other heads
        fields |= {name: full[name] for name in _USUAL}
    _per_layer(fields, tree)
    _shared(fields, tree, types)
    if tree.get("enable_moe_block"):
        fields["experts"] = {"beside": True, "scaled": True, "renormalise": True} | _experts(tree)
    return set(
        words(
            "hidden_act hidden_activation final_logit_softcapping layer_types sliding_window global_head_dim num_global_key_value_heads "
            "attention_k_eq_v per_layer_config enable_moe_block num_experts top_k_experts moe_intermediate_size "
            "hidden_size_per_layer_input vocab_size_per_layer_input num_kv_shared_layers use_double_wide_mlp"
        )
    )


def _per_layer(fields: Fields, tree: Mapping[str, Any]) -> None:
    """The second embedding, which the class has where the config is silent."""
    width = tree.get("hidden_size_per_layer_input", 256)
    if not width:
        return
    rows = tree.get("vocab_size_per_layer_input", 262144)
    _check_size("hidden_size_per_layer_input", width)
    _check_size("vocab_size_per_layer_input", rows)
    fields["per_layer_inputs"] = {"width": width, "vocabulary": rows}


def _shared(fields: Fields, tree: Mapping[str, Any], types: list[str]) -> None:
    """Layers that read keys and values of earlier ones, and the width of their MLPs."""
    key = "num_kv_shared_layers"
    shared = tree.get(key) or 0
    if not isinstance(shared, int) or isinstance(shared, bool) or not 0 <= shared < len(types):
        text = f"must be a whole number below num_hidden_layers {len(types)}, is {repr(shared)[:60]}"
        raise ModelError(Finding(text, key, shared, "0 where every layer has its own keys and values"))
    if lonely := sorted(set(types) - set(types[: len(types) - shared])):
        text = f"the last {shared} layers read keys and values of earlier ones, but no layer before them is one of {', '.join(lonely)}"
        raise ModelError(Finding(text, key, shared, "share among fewer layers"))
    if shared:
        fields["shared_key_values"] = shared
        if tree.get("use_double_wide_mlp"):
            fields["shared_key_value_mlp"] = 2 * int(fields.get("mlp") or 4 * int(fields["hidden"]))


def _layer_types(fields: Fields, tree: Mapping[str, Any]) -> list[str]:
    """One word per layer; the class makes the last one see all keys, whatever the config says."""
    layers = int(fields["layers"])
    types = list(tree.get("layer_types") or [_WINDOW if (layer + 1) % 6 else _FULL for layer in range(layers)])
    if len(types) != layers:
        text = f"layer_types has {len(types)} entries for num_hidden_layers {layers}"
        raise ModelError(Finding(text, "layer_types", tree.get("layer_types"), "one word for every layer"))
    pattern(types)  # words that it does not know are refused before the last one is replaced
    return [*types[:-1], _FULL]


def _full(fields: Fields, tree: Mapping[str, Any], types: list[str]) -> Fields:
    """Heads of the layers that see all keys."""
    usual = {name: fields.get(name) or _USUAL[name] for name in _PER_LAYER.values()}
    same = bool(tree.get("attention_k_eq_v"))
    said = tree.get("per_layer_config")
    if said is not None:
        return {**_of_layers(said, types, usual), "values_from_keys": same}
    dim = tree.get("global_head_dim", 512)
    kv_heads = tree.get("num_global_key_value_heads") if same else None  # without attention_k_eq_v the class passes over it
    sizes = {"head_dim": dim, "kv_heads": usual["kv_heads"] if kv_heads is None else kv_heads}
    for key, size in (("global_head_dim", dim), ("num_global_key_value_heads", sizes["kv_heads"])):
        _check_size(key, size)
    return {**sizes, "values_from_keys": same}


def _of_layers(said: Any, types: list[str], usual: Mapping[str, int]) -> Fields:
    """The sizes that ``per_layer_config`` gives all layers that see all keys; those of windows must have the config's."""
    key = "per_layer_config"
    if not isinstance(said, Mapping) or not all(isinstance(own, Mapping) for own in said.values()):
        raise ModelError(Finding("must be a mapping of layers to what differs there", key, said, "take it from the model's own file"))
    numbers = {str(layer) for layer in range(len(types))}
    for layer, own in said.items():
        if str(layer) not in numbers or (strange := sorted(set(map(str, own)) - set(_PER_LAYER))):
            what = f"no layer {layer}" if str(layer) not in numbers else f"{', '.join(strange)} of layer {layer}"
            hint = f"layers 0 to {len(types) - 1} with {' and '.join(_PER_LAYER)}"
            raise ModelError(Finding(f"{what}: cannot differ between layers here", key, said, hint))
    given = {int(layer): own for layer, own in said.items()}
    found: dict[str, dict[str, int]] = {_FULL: {}, _WINDOW: dict(usual)}
    for layer, kind in enumerate(types):
        sizes = {name: given.get(layer, {}).get(word, usual[name]) for word, name in _PER_LAYER.items()}
        for name, size in sizes.items():
            _check_size(f"{key}.{layer}.{name}", size)
        if sizes != (found[kind] or sizes):
            text = f"layer {layer} ({kind}) has heads of other sizes than other such layers: {sizes}"
            raise ModelError(Finding(text, key, said, f"here layers of {kind} have {found[kind]}"))
        found[kind] = sizes
    return dict(found[_FULL])


def _experts(tree: Mapping[str, Any]) -> Fields:
    if missing := [key for key in _EXPERTS if tree.get(key) is None]:
        raise ModelError([Finding(f"{key} is required with enable_moe_block", key) for key in missing])
    for key in _EXPERTS:
        _check_size(key, tree[key])
    return {name: tree[key] for key, name in _EXPERTS.items()}


def _check_size(key: str, size: Any) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_SIZE:
        raise ModelError(
            Finding(f"must be a whole number of at least 1, is {repr(size)[:60]}", key, size, "take it from the model's own file")
        )

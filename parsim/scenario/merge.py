"""Laying one source of settings over another, with the place of every key kept.

Mappings merge key by key, lists and single values replace, null deletes what is below (back to the default).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from parsim.scenario.shortforms import LATE_SCALAR, Layer, box
from parsim.scenario.yaml_tree import Origin

WHOLE = frozenset({"training.recompute"})
"""mappings that replace each other whole: their keys are alternatives"""
_KEEPS_NULL = ("model.", "cluster.set.", "assumptions.")
"""where null is a value, if there is nothing to delete"""


def merge(base: dict[str, Any], base_origins: dict[str, Origin], layer: Layer) -> None:
    """Lay `layer` over `base`, in place."""
    _merge(base, base_origins, layer.tree, layer.origins, "")


def _merge(
    base: dict[str, Any], origins: dict[str, Origin], over: Mapping[str, Any], over_origins: Mapping[str, Origin], prefix: str
) -> None:
    for key, value in over.items():
        path = f"{prefix}{key}"
        if value is None and (key in base or not path.startswith(_KEEPS_NULL)):
            base.pop(key, None)
            _forget(origins, path)
            continue
        below = base.get(key)
        if isinstance(value, Mapping) and isinstance(below, str) and path in LATE_SCALAR:
            below = base[key] = {LATE_SCALAR[path]: below}
            if path in origins:
                origins[f"{path}.{LATE_SCALAR[path]}"] = origins[path]
        if isinstance(value, Mapping) and isinstance(below, str) and path == "cluster.topology" and "node" not in value:
            below = base[key] = box(below) or below
        if isinstance(value, Mapping) and isinstance(below, dict) and path not in WHOLE:
            _merge(below, origins, value, over_origins, f"{path}.")
            if path in over_origins:
                origins.setdefault(path, over_origins[path])
            continue
        if key in base:
            _forget(origins, path)
        if isinstance(value, Mapping) and path not in WHOLE:
            base[key] = {}
            _merge(base[key], origins, value, over_origins, f"{path}.")
        else:
            base[key] = copy.deepcopy(value)
            if isinstance(value, (list, Mapping)):
                origins.update({name: origin for name, origin in over_origins.items() if name.startswith(f"{path}.")})
        if path in over_origins:
            origins[path] = over_origins[path]


def _forget(origins: dict[str, Origin], path: str) -> None:
    for name in [name for name in origins if name == path or name.startswith(f"{path}.")]:
        del origins[name]


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set a key of a plain tree by its path, making the mappings on the way."""
    *sections, last = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value

"""Training precision: presets, and what they cost per parameter.

Bytes of weight + gradient + master follow the accounting of ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1) for
fp16 and bf16, PyTorch autocast (fp32 weights and gradients, cached half-precision casts of linear weights) for amp-*, and
Megatron-LM's fp32 gradient accumulation for *-fp32grad; fp8 is bf16 weights with copies as its recipe has them, which may also
multiply in four bits (`parsim.model.low_precision`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from parsim.model.low_precision import RECIPES
from parsim.parallel.optimizer import state_bytes
from parsim.parallel.training import KEPT, Optimizer, Precision
from parsim.scenario.values import JsonSchema, Kind, did_you_mean, shown

BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
WIDTHS = {
    "parameters": (2, 4),
    "gradients": (2, 4),
    "master": (0, 2, 4),
    "optimizer": (1, 2, 4),
    "activations": (2, 4),
    "reduce": (1, 2, 4),
}
"""bytes that a value of each kind may have; 0 is none"""
MATMULS = ("fp32", "tf32", "fp16", "bf16", "fp8")
GATHERS = ("auto", "bf16", "fp8")
"""types of parameters on the wire of sharded strategies"""
_KEYS = ("preset", *WIDTHS, "matmul", "keep", "keep_layers", "recipe", "gather")
MOST_LAYERS = 10_000
SHORT = {
    "mxfp8": {"preset": "fp8", "recipe": "mxfp8"},
    "nvfp4": {"preset": "fp8", "recipe": "nvfp4"},
    "int8": {"preset": "fp8", "recipe": "int8"},
    "deepseek-v3": {"preset": "fp8", "recipe": "deepseek-v3", "optimizer": "bf16"},
}
"""words for a preset with a recipe; DeepSeek-V3's moments are bf16, its masters and gradients fp32 (2412.19437, section 3.3.3)"""


def _preset(name: str, sizes: tuple[int, int, int], activations: int, matmul: str, *, casts: int = 0, element: int = 4) -> Precision:
    parameters, gradients, master = sizes
    keep = KEPT if matmul == "fp8" else ()
    return Precision(name, parameters, casts, gradients, master, element, activations, matmul, gradients, keep)


PRESETS = {
    preset.name: preset
    for preset in (
        _preset("fp32", (4, 4, 0), 4, "fp32"),
        _preset("tf32", (4, 4, 0), 4, "tf32"),
        _preset("amp-fp16", (4, 4, 0), 2, "fp16", casts=2),
        _preset("amp-bf16", (4, 4, 0), 2, "bf16", casts=2),
        _preset("fp16", (2, 2, 4), 2, "fp16"),
        _preset("bf16", (2, 2, 4), 2, "bf16"),
        _preset("fp16-fp32grad", (2, 4, 4), 2, "fp16"),
        _preset("bf16-fp32grad", (2, 4, 4), 2, "bf16"),
        _preset("pure-bf16", (2, 2, 0), 2, "bf16", element=2),
        _preset("fp8", (2, 4, 4), 2, "fp8", casts=1),
    )
}
"""weight, gradient and master bytes per parameter, activation bytes per element, matmul type"""
HALF_SIBLING = {"bf16": "fp16", "amp-bf16": "amp-fp16", "bf16-fp32grad": "fp16-fp32grad"}
"""the same preset with fp16 in place of bf16"""
_HINTS = {
    "mixed": "write amp-bf16 (autocast) or bf16 (half-precision weights with an fp32 master)",
    "amp": "write amp-bf16 or amp-fp16",
    "half": "write fp16",
    "float16": "write fp16",
    "bfloat16": "write bf16",
    "float32": "write fp32",
    "float": "write fp32",
    "fp8-hybrid": "write fp8",
}


_STORED = {
    "fp8": "weights have 16 bits or more, except with gather: fp8 (Megatron-LM's --fp8-param-gather)",
    "int8": "no recipe trains weights and gradients of 8 bits; precision: int8 multiplies in int8, adam-8bit keeps its states in 8 bits",
}
"""types of weights that are refused, and what there is"""
_RECIPE_HINTS = {
    "fp4": "write nvfp4",
    "mxfp4": "not supported yet: no library trains in it; write nvfp4 or mxfp8",
    "dynamic": "write current (Transformer Engine) or tensorwise (torchao)",
    "float8": "write tensorwise",
    "block": "write blockwise",
    "axiswise": "write rowwise",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for: a preset (or auto) and changes to it."""

    preset: str = "auto"
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def keep(self) -> tuple[str, ...] | None:
        """Parts that stay bf16 under fp8; None where nobody says."""
        return dict(self.changes).get("keep")

    @property
    def recipe(self) -> str:
        """The fp8 recipe; auto where nobody says."""
        return str(dict(self.changes).get("recipe", "auto"))

    @property
    def gather(self) -> str:
        """Type of parameters on the wire of sharded strategies; auto where nobody says."""
        return str(dict(self.changes).get("gather", "auto"))


class PrecisionKind(Kind):
    """A preset name, auto, or a mapping of dtypes (``{gradients: fp32}``) on top of ``preset``."""

    def check(self, value: Any) -> Any:
        if isinstance(value, str) and value in SHORT:
            value = SHORT[value]
        if isinstance(value, dict) and value.get("preset") in SHORT:
            value = SHORT[value["preset"]] | {key: item for key, item in value.items() if key != "preset"}
        if isinstance(value, str):
            return Wanted(_known_preset(value))
        if not isinstance(value, dict):
            raise ValueError(f"{shown(value)} is not a precision; write one of {', '.join(PRESETS)}, or a mapping")
        for key in value:
            if key not in _KEYS:
                hint = did_you_mean(str(key), _KEYS) or f"known: {', '.join(_KEYS)}"
                raise ValueError(f"unknown key {key!r} in a precision; {hint}")
        preset = _known_preset(value.get("preset", "auto"))
        changes = tuple((key, _size(key, item)) for key, item in value.items() if key != "preset")
        return Wanted(preset, changes)

    def json_schema(self) -> JsonSchema:
        properties: JsonSchema = {"preset": {"enum": ["auto", *PRESETS, *SHORT]}}
        properties |= {key: {"enum": [*_names(widths), *widths]} for key, widths in WIDTHS.items()}
        properties["matmul"] = {"enum": list(MATMULS)}
        properties["keep"] = {"type": "array", "items": {"enum": list(KEPT)}, "contains": {"const": "norm"}, "uniqueItems": True}
        layers = {"type": "integer", "minimum": 0, "maximum": MOST_LAYERS}
        properties["keep_layers"] = {"anyOf": [layers, {"type": "array", "items": layers, "minItems": 2, "maxItems": 2}]}
        properties["recipe"] = {"enum": ["auto", *RECIPES]}
        properties["gather"] = {"enum": list(GATHERS)}
        mapping = {"type": "object", "properties": properties, "additionalProperties": False}
        return {"anyOf": [{"enum": ["auto", *PRESETS, *SHORT]}, mapping]}


PrecisionChoice = Annotated[Wanted, PrecisionKind()]


def kept_parts(value: Any) -> tuple[str, ...]:
    """The parts that stay bf16 under fp8, in the order of `KEPT`. Raises `ValueError` for others, and where norm is not among them."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"keep: {shown(value)} is not a list of parts; write for example [{', '.join(KEPT)}]")
    for part in value:
        if part not in KEPT:
            hint = did_you_mean(str(part), KEPT) or f"parts are {', '.join(KEPT)}"
            raise ValueError(f"keep: {shown(part)} is not a part of a model; {hint}")
    if "norm" not in value:
        raise ValueError("keep: normalisation has no matrix products, so it cannot run in fp8; add norm")
    return tuple(part for part in KEPT if part in value)


def kept_layers(value: Any) -> tuple[int, int]:
    """How many first and last layers stay bf16, from one number for both or from two. Raises `ValueError` for anything else."""
    pair = list(value) if isinstance(value, (list, tuple)) else [value, value]
    if len(pair) != 2 or any(isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= MOST_LAYERS for one in pair):
        raise ValueError(f"keep_layers: {shown(value)} is not a number of layers, or [first, last]; write for example 1")
    return pair[0], pair[1]


def resolve(wanted: Wanted, default: str, kept: tuple[str, ...] = KEPT) -> Precision:
    """The precision that `wanted` means where auto is the preset called `default`, and where fp8 keeps the parts `kept` in bf16.

    A mapping changes single bytes or types; cached casts then follow: autocast keeps 2-byte copies of 4-byte weights for
    half-precision matmuls, Transformer Engine 1-byte copies for fp8.
    """
    base = PRESETS[default if wanted.preset == "auto" else wanted.preset]
    changes = dict(wanted.changes)
    stated = changes.pop("keep", kept)
    changes.pop("recipe", None)
    changes.pop("gather", None)
    layers = changes.pop("keep_layers", (0, 0))
    precision = _changed(base, changes) if changes else base
    return replace(precision, keep=stated if precision.matmul == "fp8" else (), keep_layers=layers)


def _changed(base: Precision, changes: dict[str, Any]) -> Precision:
    """A preset with other bytes or types."""
    if "optimizer" in changes:
        changes["optimizer_element"] = changes.pop("optimizer")
    if "gradients" in changes:
        changes.setdefault("reduce", changes["gradients"])
    changed = replace(base, name="custom", **changes)
    casts = 1 if changed.matmul == "fp8" else 2 if changed.parameters == 4 and changed.matmul in ("fp16", "bf16") else 0
    return replace(changed, cached_casts=casts)


def stored_bytes(precision: Precision, optimizer: Optimizer) -> int:
    """Bytes per parameter of a checkpoint that training goes on from: weight, fp32 master and optimizer states, no gradient."""
    sizes = state_bytes(precision, optimizer)
    return sizes.total - sizes.gradient


def sum_text(precision: Precision, optimizer: Optimizer) -> str:
    """Bytes per parameter as the report prints them: ``2+2+4+8 = 16 B/parameter``."""
    sizes = state_bytes(precision, optimizer)
    parts = [sizes.weight, sizes.gradient, *([sizes.master] if sizes.master else []), sizes.optimizer]
    casts = f" (+{precision.weight_copies:g} cached)" if precision.weight_copies else ""
    return f"{'+'.join(map(str, parts))} = {'' if sizes.exact else '~'}{sizes.total} B/parameter{casts}"


def _known_preset(value: Any) -> str:
    if isinstance(value, str) and (value in PRESETS or value == "auto"):
        return value
    hint = _HINTS.get(str(value).lower(), "") or did_you_mean(str(value), list(PRESETS))
    raise ValueError(f"{shown(value)} is not a precision; {hint or 'write one of ' + ', '.join(PRESETS)}")


def _size(key: str, value: Any) -> Any:
    """Bytes for a dtype name or a number of bytes; the matmul type stays a name, parts that are kept stay a list."""
    if key == "keep":
        return kept_parts(value)
    if key == "keep_layers":
        return kept_layers(value)
    if key == "recipe":
        if value != "auto" and value not in RECIPES:
            hint = _RECIPE_HINTS.get(str(value), "") or did_you_mean(str(value), tuple(RECIPES)) or f"write one of {', '.join(RECIPES)}"
            raise ValueError(f"recipe: {shown(value)} is not a recipe for fp8, int8 or 4-bit products; {hint}")
        return value
    if key == "gather":
        if value not in GATHERS:
            raise ValueError(f"gather: {shown(value)} is not one of {', '.join(GATHERS)}")
        return value
    if key == "matmul":
        if value not in MATMULS:
            raise ValueError(f"matmul: {shown(value)} is not one of {', '.join(MATMULS)}")
        return value
    if key == "parameters" and value in _STORED:
        raise ValueError(f"parameters: {value} is not supported yet: {_STORED[value]}")
    allowed = WIDTHS[key]
    if isinstance(value, str) and value in _names(allowed):
        return BYTES.get(value, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        names = ", ".join(name for name in _names(allowed) if name != "tf32")
        raise ValueError(f"{key}: {shown(value)} is not a type of {' or '.join(map(str, allowed))} bytes; write one of {names}")
    return value


def _names(widths: tuple[int, ...]) -> list[str]:
    """The words for types of so many bytes."""
    return [*(name for name, width in BYTES.items() if width in widths), *(["none"] if 0 in widths else [])]

"""Transformer families by name, and by Hugging Face ``model_type``."""

from __future__ import annotations

from parsim.model.families import (
    beside_weights,
    convolutions,
    encoder_decoders,
    encoders,
    gpt,
    hybrids,
    layernorm,
    llama,
    mixed_windows,
    mixtures,
    recurrences,
    rmsnorm,
    vision,
)
from parsim.model.families.family import Family
from parsim.model.families.refused import REFUSED as _REFUSED
from parsim.model.families.refused_towers import REFUSED_TOWERS

_MODULES = (
    gpt, llama, mixtures, mixed_windows, encoders, recurrences, hybrids, convolutions, layernorm, rmsnorm, beside_weights,
    encoder_decoders, vision,
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.name: family for module in _MODULES for family in module.FAMILIES}
MODEL_TYPES: dict[str, Family] = {
    kind: family for family in FAMILIES.values() for kind in (family.model_type, *family.also) if kind
}  # fmt: skip
REFUSED = {**_REFUSED, **REFUSED_TOWERS}
"""``model_type`` of what is known and not built -> why"""

__all__ = ["FAMILIES", "MODEL_TYPES", "REFUSED", "Family"]

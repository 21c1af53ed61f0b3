"""Transformer families by name, and by Hugging Face ``model_type``."""

from __future__ import annotations

from parsim.model.families import encoders, gpt, hybrids, llama, mixtures
from parsim.model.families.family import Family

FAMILIES: dict[str, Family] = {family.name: family for module in (gpt, llama, mixtures, encoders, hybrids) for family in module.FAMILIES}
MODEL_TYPES: dict[str, Family] = {family.model_type: family for family in FAMILIES.values() if family.model_type}

__all__ = ["FAMILIES", "MODEL_TYPES", "Family"]

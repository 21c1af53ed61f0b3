"""Bytes that parameters occupy on a rank: trained ones as the precision says, frozen ones as fine-tuning stores them."""

from __future__ import annotations

from collections.abc import Iterable

from parsim.model.adapters import stored_bytes
from parsim.parallel.hooks import Weight
from parsim.parallel.settings import Training


def weight_bytes(weight: Weight, training: Training) -> int:
    """Bytes of one weight or buffer in memory [B]."""
    parameter = weight.parameter
    if parameter.storage:
        return stored_bytes(weight.count, parameter.storage)
    if parameter.element or parameter.buffer:
        return weight.count * (parameter.element or 4)
    return weight.count * (frozen_element(training) if not parameter.trainable else training.precision.parameters)


def frozen_element(training: Training) -> int:
    """Bytes per element of a frozen weight that is not quantised."""
    recipe = training.finetune
    return 2 if recipe is not None and recipe.base else training.precision.parameters


def trains(weight: Weight) -> bool:
    """Whether the weight gets a gradient."""
    return weight.parameter.trainable and not weight.parameter.buffer


def split_bytes(weights: Iterable[Weight], training: Training) -> tuple[int, int]:
    """(elements of trained weights and of frozen ones stored like them, bytes of all others [B])."""
    plain = other = 0
    for weight in weights:
        frozen = not trains(weight)
        if not frozen or (not weight.parameter.storage and frozen_element(training) == training.precision.parameters):
            plain += weight.count
        else:
            other += weight_bytes(weight, training)
    return plain, other

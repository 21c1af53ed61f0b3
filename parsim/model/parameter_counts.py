"""How many parameters a model has: tied ones once, buffers never; all in elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from parsim.model.model import Block, Model, Operator, Parameter


def parameter_count(model: Model) -> int:
    """Parameters of the model as published, without vocabulary padding (PyTorch's ``sum(p.numel() for p in parameters())``)."""
    return sum(times * _block_count(model, block, padded=False) for block, times in _distinct(model).items())


def padded_parameter_count(model: Model) -> int:
    """Parameters as built: with the rows that vocabulary padding adds."""
    return sum(times * _block_count(model, block, padded=True) for block, times in _distinct(model).items())


def trainable_parameter_count(model: Model) -> int:
    """Parameters that get gradients, without vocabulary padding."""
    total = 0
    for block, times in _distinct(model).items():
        for operator in block.operators:
            total += times * sum(_counted_size(model, operator, p, padded=False) for p in _counted(block, operator) if p.trainable)
    return total


def active_parameter_count(model: Model) -> int:
    """Parameters that take part in one token's forward pass: of the experts only those a token visits, and no table of per-layer inputs."""
    counts = {block: _block_count(model, block, padded=False) for block in _distinct(model)}
    return sum(round(counts[block] * model.active_fraction_blocks.get(index, 1.0)) for index, block in enumerate(model.blocks))


def _distinct(model: Model) -> Counter[Block]:
    """Every block and how often the model has it: equal layers are one object, and counted once."""
    return Counter(model.blocks)


def layer_parameter_count(model: Model) -> int:
    """Parameters outside embedding, head and positions, final norm included (Kaplan et al. 2001.08361's N)."""
    total = 0
    for block in model.blocks:
        if block.kind == "embedding":
            continue
        for operator in block.operators:
            if block.kind != "head" or operator.split != "vocab":
                total += sum(p.count for p in _counted(block, operator))
    return total


def operator_parameter_count(model: Model, block: Block, operator: Operator) -> int:
    """Parameters of one operator of a block, without vocabulary padding."""
    return sum(_counted_size(model, operator, p, padded=False) for p in _counted(block, operator))


def _block_count(model: Model, block: Block, *, padded: bool) -> int:
    return sum(_counted_size(model, operator, p, padded=padded) for operator in block.operators for p in _counted(block, operator))


def _counted(block: Block, operator: Operator) -> Iterator[Parameter]:
    return (p for p in block.by_operator[operator.name] if not p.buffer and not p.tied)


def _counted_size(model: Model, operator: Operator, parameter: Parameter, *, padded: bool) -> int:
    if padded or operator.split != "vocab" or parameter.split is None:
        return parameter.count
    rows = parameter.shape[parameter.split]
    if rows != model.vocabulary_padded:
        return parameter.count
    return parameter.count // rows * model.vocabulary

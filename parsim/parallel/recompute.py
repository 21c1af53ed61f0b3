"""Activation checkpointing: which blocks keep only their input (Chen et al. 2016, Korthikanti et al. 2022).

none keeps everything; full checkpoints every layer; every k checkpoints the input of each group of k layers;
blocks n checkpoints the first n layers of a stage one by one and keeps the rest (Megatron's `block` method);
selective keeps layers but drops and recomputes the parts it names, inside the tape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsim.model.loss import Loss
from parsim.model.model import Block, Model
from parsim.parallel.settings import Recompute


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive blocks of a stage that are checkpointed together, or a single block that keeps its activations."""

    blocks: tuple[int, ...]
    checkpoint: bool


def _repeatable(block: Block) -> bool:
    return block.kind not in ("embedding", "head") and not isinstance(block.operators[-1], Loss)


def checkpoint_groups(recompute: Recompute, model: Model, blocks: Sequence[int]) -> tuple[Group, ...]:
    """The blocks of a stage, grouped. Embedding, head and a block that ends in the loss are never checkpointed."""
    layers = [b for b in blocks if _repeatable(model.blocks[b])]
    size = {"none": 0, "selective": 0, "full": 1, "every": recompute.every, "blocks": 1}[recompute.mode]
    covered = layers if recompute.mode != "blocks" else layers[: recompute.blocks]
    groups: list[Group] = []
    taken: set[int] = set()
    for block in blocks:
        if block in taken:
            continue
        if size and block in covered:
            start = covered.index(block)
            members = tuple(covered[start : start + size])
            groups.append(Group(members, checkpoint=True))
            taken.update(members)
        else:
            groups.append(Group((block,), checkpoint=False))
    return tuple(groups)

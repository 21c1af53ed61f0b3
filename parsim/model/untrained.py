"""Floating-point work that a partly frozen model saves: what the conventions of `parsim.model.flops` count for full training,
less the gradients that nobody wants.

A frozen parameter has no weight gradient (2 per token); before the first trained parameter there is no backward pass at all
(another 2, and the backward of attention). LoRA therefore counts about 4 N instead of 6 N.
"""

from __future__ import annotations

from parsim.model.flops import block_flop
from parsim.model.model import Block, Model


def untrained_flop(model: Model, sequence: int, convention: str) -> float:
    """FLOP of one sample that training `model` saves against training all of it; `convention` is palm or exact."""
    trains = False
    total = 0.0
    for index, block in enumerate(model.blocks):
        trains = trains or any(p.trainable and not p.buffer for p in block.parameters())
        if convention == "palm":
            total += _palm(model, index, sequence, differentiated=trains)
        else:
            total += _exact(block, sequence, differentiated=trains)
    return total


def _palm(model: Model, index: int, sequence: int, *, differentiated: bool) -> float:
    block = model.blocks[index]
    own = [p for p in block.parameters() if not p.buffer and not p.tied]
    share = model.active_fraction_blocks.get(index, 1.0)
    frozen = share * sum(p.count for p in own if not p.trainable)
    if differentiated:
        return 2.0 * frozen * sequence
    attention = 8.0 * model.heads * model.head_dim * sequence if block.kind not in ("embedding", "head") else 0.0
    return (4.0 * frozen + attention) * sequence


def _exact(block: Block, sequence: int, *, differentiated: bool) -> float:
    flop = block_flop(block, sequence)
    spent = flop.forward + flop.backward_weight + (flop.backward_input if differentiated else 0.0)
    return 3.0 * flop.forward - spent

"""Floating-point work that a partly frozen model saves: what the conventions of `parsim.model.flops` count for full training,
less the gradients that nobody wants.

A frozen parameter has no weight gradient (2 per token); before the first trained parameter there is no backward pass at all
(another 2, and the backward of attention). LoRA therefore counts about 4 N instead of 6 N.
"""

from __future__ import annotations

from parsim.model.flops import attention_width, block_flop, masked_flop
from parsim.model.model import Block, Model, Parameter

COUNTED = ("palm", "exact", "exact-full", "llm-foundry", "6n", "6n-non-embedding")
"""conventions that tell parameters apart; Megatron's closed forms describe full training"""
_WITHOUT_ATTENTION = ("6n", "6n-non-embedding")


def untrained_flop(model: Model, sequence: int, convention: str) -> float:
    """FLOP of one sample that training `model` saves against training all of it; `convention` is one of `COUNTED`."""
    trains = False
    total = 0.0
    for index, block in enumerate(model.blocks):
        trains = trains or any(p.trainable and not p.buffer for p in block.parameters())
        if convention.startswith("exact"):
            total += _exact(block, sequence, differentiated=trains, full=convention == "exact-full")
        else:
            total += _by_parameters(model, index, sequence, convention, differentiated=trains)
    return total


def _by_parameters(model: Model, index: int, sequence: int, convention: str, *, differentiated: bool) -> float:
    block = model.blocks[index]
    own = [p for p in _counted(block, convention) if not p.buffer and not p.tied]
    share = model.active_fraction_blocks.get(index, 1.0)
    frozen = share * sum(p.count for p in own if not p.trainable)
    if differentiated:
        return 2.0 * frozen * sequence
    layer = block.kind not in ("embedding", "head") and convention not in _WITHOUT_ATTENTION
    attention = 8.0 * attention_width(model) * sequence if layer else 0.0
    return (4.0 * frozen + attention) * sequence


def _counted(block: Block, convention: str) -> tuple[Parameter, ...]:
    """The parameters of a block that the convention counts (as `parsim.model.counts.layer_parameter_count` does)."""
    if convention != "6n-non-embedding":
        return tuple(block.parameters())
    if block.kind == "embedding":
        return ()
    return tuple(p for o in block.operators if block.kind != "head" or o.split != "vocab" for p in o.parameters())


def _exact(block: Block, sequence: int, *, differentiated: bool, full: bool) -> float:
    flop = block_flop(block, sequence)
    spent = flop.forward + flop.backward_weight + (flop.backward_input if differentiated else 0.0)
    masked = 2.0 * masked_flop(block, sequence) if full and not differentiated else 0.0
    return 3.0 * flop.forward - spent + masked

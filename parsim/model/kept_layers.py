"""First and last layers whose products stay bf16 under a recipe of narrow products.

Megatron-LM enters no fp8 context for them (``--first-last-layers-bf16``: megatron/core/fp8_utils.py, fp4_utils.py), so that nothing in
them is quantised: neither projections nor experts, nor what tensor parallelism gathers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from parsim.model.model import Block, Model


def with_kept_layers(model: Model, first: int, last: int) -> Model:
    """The model with its `first` and `last` layers kept in bf16; equal layers share one block, as before."""
    layers = layer_numbers(model)
    kept = {*layers[:first], *layers[len(layers) - last :]}
    return replace(model, blocks=tuple(_kept(block) if number in kept else block for number, block in enumerate(model.blocks)))


def layer_numbers(model: Model) -> list[int]:
    """Numbers of the blocks that are layers."""
    return [number for number, block in enumerate(model.blocks) if block.kind not in ("embedding", "head")]


@lru_cache(maxsize=1024)
def _kept(block: Block) -> Block:
    """The block, kept; one and the same for every layer and model that has it, so that what is known of blocks by identity stays known."""
    return replace(block, kept=True)

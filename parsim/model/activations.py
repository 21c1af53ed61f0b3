"""Bytes that a whole model keeps for backward: the closed view of what the tapes say step by step."""

from __future__ import annotations

from parsim.model.model import Block, Model, Workload
from parsim.model.tape import tape


def saved_bytes(model: Model, at: Workload, drop: tuple[str, ...] = (), held: bool = False) -> int:
    """Bytes saved after the forward pass of all blocks, each storage once [B].

    A tensor between two blocks counts where either needs it. What only the training script holds (the model's output and
    its loss) counts when `held`. `drop` as in `parsim.model.tape.tape`.
    """
    total, before = 0, 0
    for index, block in enumerate(model.blocks):
        entry = tape(block, at, drop, input_gradient=index > 0)
        total += block_saved_bytes(block, at, drop, index > 0, held)
        boundary = max(before, entry.tensors["input"].bytes if entry.input_saved else 0)
        total += boundary
        before = entry.tensors["output"].bytes if entry.output_saved else 0
    if held:
        before = max(before, entry.tensors["output"].bytes)
    return total + before


def block_saved_bytes(block: Block, at: Workload, drop: tuple[str, ...] = (), input_gradient: bool = True, held: bool = False) -> int:
    """Bytes of the tensors inside one block that stay alive after its forward, ``input`` and ``output`` not counted [B]."""
    entry = tape(block, at, drop, input_gradient)
    names = dict.fromkeys((*entry.saved, *entry.held) if held else entry.saved)
    return sum(entry.tensors[name].bytes for name in names)

"""Bytes that a model keeps: for backward, of past tokens in inference, and while a block runs.

Keys and values of grouped heads (GQA, 2305.13245), the shared latent of multi-head latent attention (DeepSeek-V2,
2405.04434: the compressed key-value and the rotary key, the same on every tensor rank), sliding windows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from parsim.model.attention import AttentionCore
from parsim.model.heads import LossSum
from parsim.model.linear import Linear
from parsim.model.linear_attention import LinearAttention, ShortConvolution
from parsim.model.liveness import tape
from parsim.model.loss import Loss
from parsim.model.model import Block, Model
from parsim.model.rwkv import TokenShift
from parsim.model.selective_scan import SelectiveScan
from parsim.model.sparse_attention import LightningIndexer
from parsim.model.workload import Workload, shard


def saved_bytes(model: Model, at: Workload, drop: tuple[str, ...] = (), held: bool = False) -> int:
    """Bytes saved after the forward pass of all blocks, each storage once [B].

    A tensor between two blocks counts where either needs it. What only the training script holds (the model's output and
    its loss) counts when `held`. `drop` as in `parsim.model.liveness.tape`.
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


# inference


class Cache(NamedTuple):
    """What one layer keeps per token on one tensor-parallel rank."""

    elements: int
    """per token"""
    window: int = 0
    """tokens that are kept at most; 0 = all"""
    state: int = 0
    """elements per sequence, however long it is: the state of linear attention with the last inputs of its convolution"""

    def tokens(self, length: int, block: int = 1) -> int:
        """Tokens kept of a sequence of `length`, in whole pages of `block` tokens."""
        kept = min(length, self.window) if self.window else length
        return -(-kept // block) * block


def caches(model: Model, tensor: int = 1) -> tuple[Cache, ...]:
    """One entry per layer with causal or linear attention; empty for models that do not generate token by token."""
    at = Workload(batch=1, tensor=tensor)
    return tuple(cache for block in model.blocks if (cache := _cache(model, block, at)) is not None)


def _cache(model: Model, block: Block, at: Workload) -> Cache | None:
    """Keys and values, or a state, or both (attention and a mixer side by side)."""
    keys, state = _keys(model, block, at), _state(block, at)
    return (keys or Cache(0))._replace(state=state) if state else keys


def _state(block: Block, at: Workload) -> int:
    """Elements of linear attention and of its convolution's last inputs; 0 where the block has none."""
    scan = next((operator for operator in block.operators if isinstance(operator, LinearAttention)), None)
    taps = sum(shard(one.features, at) * (one.taps - 1) for one in block.operators if isinstance(one, ShortConvolution))
    if scan is None:
        return taps
    if isinstance(scan, SelectiveScan):
        taps += shard(scan.heads, at) * (scan.convolution - 1)
    taps += sum(one.features for one in block.operators if isinstance(one, TokenShift))
    return shard(scan.heads, at) * scan.key_dim * scan.value_dim + taps


def _keys(model: Model, block: Block, at: Workload) -> Cache | None:
    core = next((operator for operator in block.operators if isinstance(operator, AttentionCore)), None)
    if core is None or not core.causal or set(core.inputs) & set(block.beside):  # keys of an earlier layer are kept there
        return None
    if model.facts.get("latent"):
        down = next(operator for operator in block.operators if isinstance(operator, Linear) and operator.name == "key_value_down")
        keys = sum(one.width for one in block.operators if isinstance(one, LightningIndexer))
        return Cache(down.parameters()[0].shape[0] + keys, core.window or core.chunk)
    return Cache(shard(core.kv_heads, at) * (core.head_dim + (core.value_dim or core.head_dim)), core.window or core.chunk)


def forward_peak(block: Block, at: Workload) -> int:
    """Most bytes that live at once while a layer runs forward and keeps nothing, its input (as wide as its output) included."""
    taped = tape(block, at)
    size = {name: row.bytes for name, row in taped.tensors.items()}
    given = size["output"]
    live = most = given
    for index, step in enumerate(taped.forward_unsaved):
        live += sum(size[name] for name in step.allocates)
        most = max(most, live)
        live -= sum(size[name] for name in step.frees)
        if index == taped.input_last_forward:
            live -= given
    return most


class ForwardPass(NamedTuple):
    """Activations of one forward pass without gradients [B]."""

    peak: int
    """most that live at once, the batch included"""
    batch: int
    """the model's input, which the caller holds"""
    outputs: int
    """what the model returns"""


def forward_pass(model: Model, at: Workload, batch: int) -> ForwardPass:
    """Every block in turn under `torch.no_grad()`, without the loss; `batch` = bytes of the model's input."""
    at = replace(at, backward=False)
    live = peak = batch
    shown = 0
    for number, block in enumerate(model.blocks):
        taped, held = tape(block, at), tape(block, replace(at, backward=True)).held
        size = {name: row.bytes for name, row in taped.tensors.items()}
        returned = number == 0 or "input" in held
        for index, step in enumerate(taped.forward_unsaved):
            if not isinstance(step.operator, Loss | LossSum):
                live += sum(size[name] for name in step.allocates)
                peak = max(peak, live)
                live -= sum(size[name] for name in step.frees)
            if index == taped.input_last_forward and not returned:
                live -= size["input"]
        shown += sum(size[name] for name in taped.shown)
    return ForwardPass(peak, batch, live - batch - shown)

"""Activation formulas of Korthikanti et al. (2205.05198) in Megatron-LM's kernels, and the traffic of its elementwise ones."""

from __future__ import annotations

from functools import cache

import pytest

from parsim.kernel import Memory
from parsim.model.activations import block_saved_bytes
from parsim.model.attention import AttentionCore
from parsim.model.elementwise import Activation, Dropout, ResidualAdd
from parsim.model.linear import Linear
from parsim.model.liveness import tape
from parsim.model.model import Block
from parsim.model.norms import LayerNorm
from parsim.model.workload import Workload

MIB = 2**20


@cache
def gpt_layer(h: int, heads: int) -> Block:
    f = 4 * h
    return Block(
        "layer",
        (
            LayerNorm("norm1", ("input",), "n1", h),
            Linear("qkv", ("n1",), "qkv", h, (3 * h,), split="column"),
            AttentionCore("core", ("qkv",), "context", heads, heads, h // heads, dropout=True),
            Linear("proj", ("context",), "attended", h, (h,), split="row"),
            Dropout("drop1", ("attended",), "dropped1", h),
            ResidualAdd("add1", ("dropped1", "input"), "middle", h),
            LayerNorm("norm2", ("middle",), "n2", h),
            Linear("fc1", ("n2",), "wide", h, (f,), split="column", selective="mlp"),
            Activation("gelu", ("wide",), "gelu", f, "gelu", "column", "mlp"),
            Linear("fc2", ("gelu",), "fed", f, (h,), split="row"),
            Dropout("drop2", ("fed",), "dropped2", h),
            ResidualAdd("add2", ("dropped2", "middle"), "output", h),
        ),
    )


def megatron(b: int, s: int, t: int = 1, *, sp: bool = False, attention: str = "eager", dropout: float = 0.1) -> Workload:
    return Workload(b, s, t, sp, attention=attention, dropout=dropout, fused=True, loss_kernel="vocab-parallel")


def layer_bytes(h: int, heads: int, at: Workload, drop: tuple[str, ...] = ()) -> int:
    """Bytes of a layer as the paper counts them: its input included, norm statistics (8 B per row) and, under selective
    recomputation of a fused core, nothing else left out."""
    block = gpt_layer(h, heads)
    statistics = 2 * 8 * at.local_tokens
    return block_saved_bytes(block, at, drop) + tape(block, at, drop).tensors["input"].bytes - statistics


@pytest.mark.parametrize(
    ("h", "heads", "b", "expected"),
    [
        (12288, 96, 1, (2736, 552, 342, 312, 102)),
        (6144, 64, 4, (6752, 1264, 844, 624, 204)),
        (20480, 128, 1, (3920, 840, 490, 520, 170)),
        (25600, 160, 1, (4900, 1050, 612.5, 650, 212.5)),
    ],
)
def test_bytes_per_layer_of_the_paper(h: int, heads: int, b: int, expected: tuple[float, ...]) -> None:
    """Table 2 for 175B, 22B, 530B and 1T: none, TP 8, TP + SP, TP + selective, TP + SP + selective [MiB]."""
    s = 2048
    found = (
        layer_bytes(h, heads, megatron(b, s)),
        layer_bytes(h, heads, megatron(b, s, 8)),
        layer_bytes(h, heads, megatron(b, s, 8, sp=True)),
        layer_bytes(h, heads, megatron(b, s, 8), ("attention",)),
        layer_bytes(h, heads, megatron(b, s, 8, sp=True), ("attention",)),
    )
    assert tuple(value / MIB for value in found) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("drop", [(), ("attention",)])
@pytest.mark.parametrize("sp", [False, True])
def test_closed_form(drop: tuple[str, ...], sp: bool) -> None:
    b, s, h, heads, t = 2, 512, 1024, 16, 4
    scores = 0 if drop else 5 * heads * s / h
    divided = (34 + scores) / t if sp else 10 + (24 + scores) / t
    assert layer_bytes(h, heads, megatron(b, s, t, sp=sp), drop) == b * s * h * divided


def test_without_dropout() -> None:
    """32 instead of 34, and only the softmax's output: 2as/h."""
    b, s, h, heads = 1, 512, 1024, 16
    assert layer_bytes(h, heads, megatron(b, s, dropout=0.0)) == b * s * h * (32 + 2 * heads * s / h)


def test_flash_keeps_statistics_instead_of_scores() -> None:
    b, s, h, heads = 1, 2048, 12288, 96
    assert layer_bytes(h, heads, megatron(b, s, attention="flash2")) == b * s * (34 * h + 4 * heads) + 24


def traffic(block: Block, at: Workload, phases: tuple[str, ...]) -> float:
    entry = tape(block, at)
    steps = entry.forward if phases == ("forward",) else entry.backward
    return sum(kernel.bytes for step in steps if step.phase in phases for kernel in step.kernels if isinstance(kernel, Memory))


@pytest.mark.parametrize(("t", "sp"), [(1, False), (8, False), (8, True)])
def test_elementwise_traffic(t: int, sp: bool) -> None:
    """Per token and layer in 16 bit: norms, bias-dropout-add and residual gradients 22h forward and 38h backward (1/t only
    under sequence parallelism); the copy of the context, bias-GELU and bias gradients 4h + 4f and 20h + 8f over t; 8 and 9
    bytes per score of the causal softmax and its dropout."""
    b, s, h, heads = 1, 2048, 12288, 96
    at, f = megatron(b, s, t, sp=sp), 4 * h
    block, scores, shared = gpt_layer(h, heads), heads * s * s / t, (t if sp else 1)
    assert traffic(block, at, ("forward",)) == b * s * (22 * h / shared + (4 * h + 4 * f) / t) + 8 * scores
    backward = traffic(block, at, ("input", "weight"))
    assert backward == b * s * (38 * h / shared + (20 * h + 8 * f) / t) + 9 * scores


@pytest.mark.parametrize(
    ("h", "heads", "b", "whole", "sharded"), [(12288, 96, 1, 48, 6), (6144, 64, 4, 96, 12), (25600, 160, 1, 100, 12.5)]
)
def test_full_recomputation_keeps_the_input(h: int, heads: int, b: int, whole: float, sharded: float) -> None:
    """2sbh, and 2sbh/t where sequence parallelism shards it [MiB]."""
    for at, expected in ((megatron(b, 2048, 8), whole), (megatron(b, 2048, 8, sp=True), sharded)):
        entry = tape(gpt_layer(h, heads), at)
        assert entry.tensors["input"].bytes / MIB == expected
        made = {name for step in entry.forward_unsaved for name in step.allocates}
        freed = {name for step in entry.forward_unsaved for name in step.frees}
        assert made - freed == {"output"}


def test_a_split_backward_keeps_32_sbh_from_i_to_w() -> None:
    """Zero Bubble (2401.10241, table 1): the inputs of the four linear layers (14h) and the gradients of their outputs (18h)."""
    b, s, h, heads = 1, 2048, 12288, 96
    entry = tape(gpt_layer(h, heads), megatron(b, s, attention="flash2"))
    alive = {name: entry.tensors[name].bytes for name in entry.saved}
    for step in entry.backward:
        if step.phase != "weight":
            alive |= {name: entry.tensors[name].bytes for name in step.allocates}
            for name in step.frees:
                alive.pop(name, None)  # the gradient of the output came from the layer behind
    assert alive.pop("grad_input") == 2 * b * s * h  # goes to the layer before
    assert sum(alive.values()) == 32 * b * s * h

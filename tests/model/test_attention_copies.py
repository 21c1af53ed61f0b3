"""Kernels around a fused attention kernel: casts to eight bits, copies of queries, keys and values; bytes counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.kernel import Attention, Memory
from parsim.model.attention import AttentionCore, QKNorm
from parsim.model.low_precision import TRANSFORMER_ENGINE, Quantisation
from parsim.model.workload import Workload
from parsim.scenario.build import build
from parsim.scenario.load import load

T, HEADS, KV, D = 4096, 32, 4, 128
Q, K, O = T * HEADS * D, T * KV * D, T * HEADS * D  # elements; V has as many as K


def around(kernels: Any) -> float:
    """Bytes of everything but the attention kernel, which is there."""
    assert sum(isinstance(kernel, Attention) for kernel in kernels) == 1
    return sum(kernel.bytes for kernel in kernels if isinstance(kernel, Memory))


def core(*, kv: int = KV, replaced: bool = False) -> AttentionCore:
    return AttentionCore("core", ("qkv",), "out", HEADS, kv, D, replaced=replaced)


def workload(**more: Any) -> Workload:
    return Workload(1, T, **{"attention": "cudnn", "fused": True, "interleaved": True, **more})


@pytest.mark.parametrize(
    ("recipe", "forward", "backward", "saved"),
    [
        # both directions at once, 2 read and 1 + 1/32 written each; the kernel writes 16 bit, and backward quantises its gradient alone
        ("mxfp8", 4.0625 * (Q + 2 * K), 4.0625 * O, 2.0625 * (Q + 2 * K) + 2 * O),
        # one pass, 2 read and 1 written; output and three gradients back from 8 bit: 1 read, 2 written
        ("delayed", 3 * (Q + 2 * K) + 3 * O, 3 * O + 3 * (Q + 2 * K), Q + 2 * K + O),
        ("current", 5 * (Q + 2 * K), 5 * O, Q + 2 * K + 2 * O),  # 2 more read for the largest values
        ("nvfp4", 5 * (Q + 2 * K), 5 * O, Q + 2 * K + 2 * O),  # its products are in 4 bit, attention as with current scaling
    ],
)
def test_casts_around_attention_in_eight_bits(recipe: str, forward: float, backward: float, saved: float) -> None:
    """Transformer Engine, pytorch/attention/dot_product_attention/backends.py: FusedAttnFunc."""
    casts = Quantisation(recipe, TRANSFORMER_ENGINE, tn_only=False, caches_weights=True)
    work = core().work(workload(dtype=casts.products, quantisation=casts))
    assert (around(work.forward), around(work.backward_input)) == (forward, backward)
    assert {kernel.dtype for kernel in work.forward if isinstance(kernel, Attention)} == {"fp8"}
    kept = sum(save.bytes for save in work.saves if "random" not in save.tensor and "log" not in save.tensor)
    assert kept == saved
    sixteen = core().work(workload(dtype=casts.products, quantisation=casts, kept=("attention",)))
    assert (around(sixteen.forward), around(sixteen.backward_input)) == (0, 0)


def test_a_fused_product_is_taken_apart_and_its_gradient_joined() -> None:
    """Grouped queries are reshaped into heads, values made contiguous: read and written in 16 bit; backward joins all three."""
    work = core(replaced=True).work(workload())
    assert around(work.forward) == 4 * (Q + K)
    assert around(work.backward_input) == 4 * (Q + 2 * K)
    assert work.backward_temporary - core().work(workload()).backward_temporary == 2 * (Q + 2 * K)
    alone = core(kv=HEADS, replaced=True).work(workload())  # every head with keys of its own: queries are a view
    assert around(alone.forward) == 4 * Q


@pytest.mark.parametrize("more", [{"interleaved": False}, {"attention": "eager"}])
def test_only_where_they_lie_interleaved(more: dict[str, Any]) -> None:
    assert core(replaced=True).work(workload(**more)) == core().work(workload(**more))


def test_keys_are_a_slice_that_their_norm_copies() -> None:
    norm = QKNorm("norm", ("qkv",), "normed", HEADS, KV, D)
    assert norm.work(workload()).forward[0].bytes == 4 * (Q + K) + 4 * K
    assert norm.work(workload(interleaved=False)).forward[0].bytes == 4 * (Q + K)


JOB = {
    "model": {"base": "llama-3.2-1b"},
    "cluster": {"topology": "hgx-h100"},
    "training": {"sequence_length": 4096, "micro_batch": 1, "global_batch": 8},
    "parallel": {"tensor": {"size": 8, "sequence_parallel": True}},
}


def test_what_stacks_do_with_keys_and_values() -> None:
    """torchtitan repeated them for all query heads until January 2026 (pull request 2259); its profile of 2024 does."""
    stacks = {name: build(load(JOB, f"software.profile={name}")).runtime for name in ("torchtitan-2024", "torchtitan", "nemo")}
    assert [stack.repeats_kv for stack in stacks.values()] == [True, False, False]
    assert [stack.megatron for stack in stacks.values()] == [False, False, True]
    once, repeated = (core().work(Workload(1, T, attention="flash2", fused=True, compiled=True, repeats_kv=r)) for r in (False, True))
    assert around(repeated.forward) - around(once.forward) == 2 * (2 * O + 2 * K)  # 16 bit of K and V read, of 32 heads each written

"""software.fusion compiled: the bytes of fused kernels, fewer launches, and cross-entropy in two passes over the logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parsim.kernel import Memory
from parsim.model.activations import block_saved_bytes
from parsim.model.attention import AttentionCore
from parsim.model.catalogue import build_model
from parsim.model.liveness import tape
from parsim.model.loss import Loss
from parsim.model.model import Model
from parsim.model.norms import RMSNorm
from parsim.model.workload import Workload

H, F, A, V = 512, 1376, 8, 32000
EAGER = Workload(2, 256)
FUSED = replace(EAGER, fused=True)
COMPILED = replace(FUSED, compiled=True, loss_kernel="compiled")


def llama(**changes: Any) -> Model:
    tree = {"family": "llama", "hidden": H, "layers": 1, "heads": A, "vocabulary": V, "mlp": F, **changes}
    return build_model(tree, name="llama", base_lookup=lambda _: {})


def launches(model: Model, at: Workload) -> int:
    tapes = [tape(block, at) for block in model.blocks]
    steps = [step for entry in tapes for step in (*entry.forward, *entry.backward)]
    return sum(kernel.launches if isinstance(kernel, Memory) else 1 for step in steps for kernel in step.kernels)


def test_a_layer_keeps_what_fused_kernels_keep() -> None:
    layer = llama().blocks[1]
    tokens = COMPILED.tokens
    kept = block_saved_bytes(layer, COMPILED) + tape(layer, COMPILED).tensors["input"].bytes
    assert kept - 24 == tokens * (16 * H + 6 * F + 4 * A + 8)
    assert block_saved_bytes(layer, COMPILED) == block_saved_bytes(layer, FUSED)


def test_fewest_launches() -> None:
    model = llama()
    assert launches(model, COMPILED) < launches(model, FUSED) < launches(model, EAGER)


def test_cross_entropy_keeps_the_logits_and_eight_bytes_per_row() -> None:
    work = Loss("loss", ("logits",), "loss", V).work(COMPILED)
    tokens = COMPILED.tokens
    kept = {save.tensor: save.bytes for save in work.saves}
    assert kept == {
        "logits": 2 * tokens * V, "loss.log_sum_exp": 4 * tokens, "loss.maximum": 4 * tokens, "loss.targets": 8 * tokens, "loss": 4,
    }  # fmt: skip
    assert work.backward_temporary == 0


def test_masks_of_dropout_are_kept() -> None:
    """Random operations are never recomputed by the partitioner."""
    gpt = build_model(
        {"family": "gpt2", "hidden": H, "layers": 1, "heads": A, "vocabulary": V, "maximum_sequence": 256}, name="gpt", base_lookup=dict.get
    )
    with_dropout, without = (block_saved_bytes(gpt.blocks[1], replace(COMPILED, dropout=p)) for p in (0.1, 0.0))
    assert with_dropout - without == 2 * COMPILED.tokens * H


@pytest.mark.parametrize("at", [EAGER, COMPILED], ids=["eager", "compiled"])
def test_heads_first_queries_cost_a_copy_of_the_output(at: Workload) -> None:
    """GPT-NeoX: the kernel's output, its copy for the projection, and the whole fused tensor behind the values."""
    plain = AttentionCore("core", ("qkv",), "context", A, A, 64)
    copied = replace(plain, heads_first=True)
    context = 2 * at.tokens * H
    assert sum(s.bytes for s in copied.work(at).saves) == sum(s.bytes for s in plain.work(at).saves)
    assert [s.tensor for s in copied.work(at).saves][1] == "core.heads_first"
    assert copied.work(at).forward[-1] == Memory(2 * context)
    assert copied.work(replace(at, fused=True, compiled=False)) == plain.work(replace(at, fused=True, compiled=False))


def test_gemma_norm_keeps_fp32() -> None:
    """fp32 copy 4, normalised 4 instead of 2, and 1 + weight once; one pass more each way."""
    llama_norm, gemma_norm = (RMSNorm("norm", ("x",), "y", H, offset) for offset in (False, True))
    kept = [sum(s.bytes for s in norm.work(EAGER).saves) for norm in (llama_norm, gemma_norm)]
    assert kept[1] - kept[0] == 2 * EAGER.tokens * H + 4 * H
    assert gemma_norm.work(FUSED) == llama_norm.work(FUSED)

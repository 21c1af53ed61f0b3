"""Chunked cross-entropy: what exists at a time, what stays, what is computed, and that nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parsim.kernel import Gemm, Memory
from parsim.model.activations import block_saved_bytes
from parsim.model.catalogue import build_model
from parsim.model.liveness import tape
from parsim.model.model import Block, Model
from parsim.model.workload import Workload

T, H, V = 4096, 512, 32000
AT = Workload(2, 2048)
LLAMA: dict[str, Any] = {"family": "llama", "hidden": H, "layers": 1, "heads": 8, "vocabulary": V, "mlp": 1376}


def model(**changes: Any) -> Model:
    return build_model({**LLAMA, **changes}, name="small", base_lookup=lambda _: {})


def head(**changes: Any) -> Block:
    return model(**changes).blocks[-1]


def peak_of_loss(block: Block, at: Workload) -> int:
    """Most bytes of logits and what the loss makes of them that exist at once, over forward and backward."""
    entry = tape(block, at)
    mine = ("lm_head", "loss", "softcap")
    alive: dict[str, int] = {}
    peak = 0
    for step in (*entry.forward, *entry.backward):
        alive |= {name: entry.tensors[name].bytes for name in step.allocates}
        peak = max(peak, sum(size for name, size in alive.items() if name.removeprefix("grad:").split(".")[0] in mine))
        for name in step.frees:
            alive.pop(name, None)
    return peak


def flop(block: Block, at: Workload) -> float:
    entry = tape(block, at)
    return sum(k.flop for step in (*entry.forward, *entry.backward) for k in step.kernels if isinstance(k, Gemm))


@pytest.mark.parametrize("chunks", [2, 8, 64])
def test_memory_is_that_of_one_part(chunks: int) -> None:
    """14 B per logit of one part (logits 2, log-softmax 4, two gradients 4 + 4), and the gradients that forward leaves."""
    gradients = 2 * T * H + 2 * V * H
    found = peak_of_loss(head(), replace(AT, loss_chunks=chunks)) - gradients
    targets = 8 * T
    assert found == pytest.approx(14 * T * V // chunks + targets, rel=1e-3)
    whole = peak_of_loss(head(), AT)
    assert whole == pytest.approx(14 * T * V, rel=1e-2)


def test_a_fused_kernel_writes_the_gradient_over_the_logits() -> None:
    at = replace(AT, loss_chunks=8, loss_kernel="fused")
    found = peak_of_loss(head(), at) - 2 * T * H - 2 * V * H
    assert found == 2 * T * V // 8 + 4 * T + 8 * T  # logits, log-sum-exp, targets


def test_between_forward_and_backward_stay_two_gradients() -> None:
    entry = tape(head(), replace(AT, loss_chunks=8))
    kept = {name: entry.tensors[name].bytes for name in entry.saved if not name.startswith("final_norm")}
    assert kept == {"lm_head.hidden_gradient": 2 * T * H, "lm_head.weight_gradient": 2 * V * H}
    assert "lm_head" not in (*entry.saved, *entry.held)


def test_the_weight_gradient_leaves_before_the_strategy_makes_its_own() -> None:
    entry = tape(head(), replace(AT, loss_chunks=8))
    phases = [(step.operator.name, step.phase, step.frees) for step in entry.backward]
    freed = next(index for index, (_, _, frees) in enumerate(phases) if "lm_head.weight_gradient" in frees)
    step = next(index for index, (name, phase, _) in enumerate(phases) if (name, phase) == ("lm_head", "weight"))
    assert freed < step
    # the gradient of the hidden states goes on to the norm, which frees it
    norm = next(frees for name, phase, frees in phases if (name, phase) == ("final_norm", "input"))
    assert "lm_head.hidden_gradient" in norm


@pytest.mark.parametrize("kernel", ["eager", "fused", "vocab-parallel"])
@pytest.mark.parametrize("chunks", [1, 2, 8, 4096])
def test_the_same_products_all_in_forward(kernel: str, chunks: int) -> None:
    at = replace(AT, loss_chunks=chunks, loss_kernel=kernel)
    assert flop(head(), at) == 3 * 2 * T * H * V
    if chunks > 1:
        entry = tape(head(), at)
        assert not [k for step in entry.backward for k in step.kernels if isinstance(k, Gemm)]
        assert len([k for step in entry.forward for k in step.kernels if isinstance(k, Gemm)]) == 3 * chunks


@pytest.mark.parametrize("kernel", ["eager", "fused", "vocab-parallel"])
def test_the_loss_moves_the_same_bytes(kernel: str) -> None:
    def traffic(chunks: int) -> float:
        entry = tape(head(), replace(AT, loss_chunks=chunks, loss_kernel=kernel))
        steps = (*entry.forward, *entry.backward)
        return sum(k.bytes for step in steps if step.operator.name == "loss" for k in step.kernels if isinstance(k, Memory))

    assert traffic(8) == pytest.approx(traffic(1), rel=1e-12)


def test_evaluation_splits_the_logits_only() -> None:
    entry = tape(head(), replace(AT, loss_chunks=8, backward=False))
    assert entry.tensors["lm_head"].bytes == 2 * T * V // 8
    assert not entry.saved
    assert sum(k.flop for step in entry.forward for k in step.kernels if isinstance(k, Gemm)) == 2 * T * H * V


@pytest.mark.parametrize("chunks", [1, 4])
def test_every_allocation_is_freed(chunks: int) -> None:
    """Under any order of weight steps; boundary tensors are the neighbours' business."""
    for changes in ({}, {"tied_embeddings": True}, {"final_norm": False}, {"softcap_logits": True}):
        for block in model(**changes).blocks:
            entry = tape(block, replace(AT, loss_chunks=chunks))
            alive: set[str] = {"grad_output", "input", "output"}
            for step in (*entry.forward, *entry.backward):
                alive |= set(step.allocates)
                assert set(step.frees) <= alive
                alive -= set(step.frees)
            assert alive <= {"input", "output", "grad_input", "grad_output", *entry.held}


def test_softcapped_logits_keep_their_tanh() -> None:
    plain, capped = (block_saved_bytes(head(softcap_logits=value), AT) for value in (False, True))
    assert capped - plain == 2 * T * V

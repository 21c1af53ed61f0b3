"""Replicated convolutions with fully connected layers that replicas share (Krizhevsky 2014, 1404.5997)."""

from __future__ import annotations

from typing import Any

import pytest
from structures import shipped

from parsim.errors import InputError
from parsim.kernel import Gemm
from parsim.model.fully_connected import SharedLinear, share_outputs
from parsim.model.parameter_counts import parameter_count
from parsim.model.workload import Workload
from parsim.run import simulate

CONVOLUTIONS = 2_469_696
FULLY_CONNECTED = 58_631_144
INPUTS, OUTPUTS = (9216, 4096, 4096), (4096, 4096, 1000)


def job(ranks: int, model: Any = "alexnet", strategy: str = "ddp", **parallel: Any) -> dict[str, Any]:
    return {
        "model": model,
        "cluster": {"topology": "hgx-h100"},
        "training": {"micro_batch": 128, "gradient_accumulation": 1, "precision": "fp32", "optimizer": "momentum"},
        "parallel": {"fully_connected": ranks, "data": {"strategy": strategy}, **parallel},
    }


def moved(report: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Bytes by axis and kind."""
    total: dict[tuple[str, str], int] = {}
    for row in report["collectives"]:
        key = (row["axis"], row["kind"])
        total[key] = total.get(key, 0) + row["count"] * row["bytes"]
    return total


def test_alexnet_is_torchvisions() -> None:
    assert parameter_count(shipped("alexnet")) == CONVOLUTIONS + FULLY_CONNECTED == 61_100_840


def test_gradients_of_convolutions_travel_and_activations_of_the_rest() -> None:
    plain, shared = (moved(simulate(job(ranks)).document()) for ranks in (1, 8))
    assert plain == {("data", "all_reduce"): 4 * 61_100_840}
    gathered, returned = 8 * 128 * sum(INPUTS) * 4, 128 * sum(OUTPUTS) * 4
    assert shared == {
        ("data", "all_reduce"): 4 * CONVOLUTIONS + 4,  # and the squared norm of the gradients, of which every rank has a part
        ("expert", "all_gather"): gathered,
        ("expert", "reduce_scatter"): gathered,
        ("expert", "all_to_all"): 2 * returned,
    }


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_rank_holds_its_share(ranks: int) -> None:
    at = Workload(128, expert_tensor=ranks)
    held = sum(p.rank_count(at) for block in share_outputs(shipped("alexnet")).blocks for p in block.parameters())
    assert held == CONVOLUTIONS + FULLY_CONNECTED // ranks
    (device,) = simulate(job(ranks)).document()["memory"]["devices"]
    assert device["resident_bytes"]["parameters"] == pytest.approx(4 * held, rel=0.02)  # the allocator rounds tensors up


@pytest.mark.parametrize(("ranks", "strategy"), [(8, "ddp"), (4, "ddp"), (2, "zero1")])
def test_a_folded_step_is_the_unfolded_one(ranks: int, strategy: str) -> None:
    folded, whole = (simulate(job(ranks, strategy=strategy), unfolded=unfolded).document() for unfolded in (False, True))
    assert folded["step_time_s"] == pytest.approx(whole["step_time_s"], rel=1e-9)
    assert moved(folded) == moved(whole)


def test_the_work_is_the_same_whoever_does_it() -> None:
    layer = SharedLinear("l", ("x",), "y", 64, (32,))
    one, four = (layer.work(Workload(8, dtype="fp32", element=4, expert_tensor=ranks)) for ranks in (1, 4))
    for name in ("forward", "backward_input", "backward_weight"):
        flops = [sum(k.flop for k in getattr(work, name) if isinstance(k, Gemm)) for work in (one, four)]
        assert flops[0] == flops[1]  # 4 x the samples, a quarter of the outputs
    assert (one.output, one.input_gradients) == (four.output, four.input_gradients)
    assert four.saves[0].bytes == 4 * one.saves[0].bytes
    at = Workload(8, expert_tensor=4)
    assert [p.rank_count(at) for p in layer.parameters()] == [64 * 8, 8]


def test_convolutions_stay_as_they_are() -> None:
    before, after = shipped("alexnet"), share_outputs(shipped("alexnet"))
    assert [block is again for block, again in zip(before.blocks, after.blocks, strict=True)] == [True] * 5 + [False] * 3
    assert parameter_count(after) == parameter_count(before)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (job(8, "gpt2") | {"training": {"sequence_length": 512, "micro_batch": 1, "gradient_accumulation": 1}}, "is a transformer"),
        (job(3), "8 replicas / 3 that share fully connected layers = 2.667 is not whole"),
        (job(8, strategy="fsdp"), "shared fully connected layers with fsdp"),
        (job(8, expert={"imbalance": 2.0}), "parallel.expert needs experts"),
        (job(8, {"base": "alexnet", "layers": [{"conv2d": {"out": 4, "kernel": 3}}]}), "without fully connected layers"),
        (job(8, {"input": {"shape": [16]}, "layers": [{"linear": 16}, {"linear": 8}]}), "begins with a fully connected layer"),
        (job(8, {"base": "alexnet", "layers": [{"conv2d": {"out": 4, "kernel": 3}}, "flatten", {"linear": 10}]}), "10 outputs / 8 ranks"),
        (job(2, pipeline={"size": 2}), "with pipeline stages"),
    ],
)
def test_what_replicas_cannot_share(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(tree)
    assert words in str(caught.value)

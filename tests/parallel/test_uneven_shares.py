"""Shares that do not divide by the ranks are rounded up: every rank holds, adds and steps on the padded share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs import FP32, job, layers

from parsim.kernel import Memory
from parsim.parallel.training import Optimizer
from parsim.scenario.precision import PRESETS

SHARES = {  # tensors of a rank's share, each of one fp32 element per parameter of the share
    "fsdp": ("stage 0.shard", "stage 0.exp_avg", "stage 0.exp_avg_sq", "stage 0.grad.shard"),
    "zero3": ("stage 0.shard", "stage 0.exp_avg", "stage 0.exp_avg_sq", "stage 0.grad.shard"),
    "zero2": ("flat shard.exp_avg", "flat shard.exp_avg_sq", "gradient shard"),
    "zero1": ("flat shard.exp_avg", "flat shard.exp_avg_sq"),
}


@pytest.mark.parametrize("strategy", SHARES)
@pytest.mark.parametrize(("parameters", "replicas", "share"), [(1001, 4, 251), (1000, 4, 250), (1003, 4, 251), (5, 3, 2), (1, 4, 1)])
def test_a_share_is_rounded_up(strategy: str, parameters: int, replicas: int, share: int) -> None:
    recipe = {"precision": FP32, "optimizer": Optimizer("adam"), "data_settings": {"strategy": strategy}}
    run = job(layers(1, parameters=parameters), data=replicas, **recipe)
    for rank in range(replicas):
        sizes = {tensor.name: tensor.bytes for tensor in run.memory(rank).tensors}
        assert {name: sizes[name] for name in SHARES[strategy]} == dict.fromkeys(SHARES[strategy], 4 * share)


def test_a_later_micro_batch_adds_the_rounded_share_of_a_bucket() -> None:
    """ZeRO-2, 5 fp32 gradients on 3 ranks: what arrives and the share are read, the share is written, 3 x 2 x 4 B."""

    def moved(kernel: object) -> float:
        return kernel.bytes if isinstance(kernel, Memory) else 0.0

    recipe = {"precision": FP32, "micro_batches": 2, "step": False, "data_settings": {"strategy": "zero2"}}
    run = job(layers(1, parameters=5), data=3, clock=moved, **recipe)
    kernels = [op.duration for op in run.program.ops if op.duration and op.lanes[0].rank == 0]
    assert kernels == [40.0, 40.0, 24.0]  # each micro-batch copies its gradients into the bucket


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp"])
def test_gradients_travel_in_the_type_of_the_reduction(strategy: str) -> None:
    precision = replace(PRESETS["bf16"], reduce=4)
    run = job(layers(1, parameters=1000), data=2, precision=precision, data_settings={"strategy": strategy})
    kind = "all_reduce" if strategy == "ddp" else "reduce_scatter"
    assert (precision.gradients, run.bytes(axis="data", kind=kind)) == (2, 4 * 1000)


@pytest.mark.parametrize(
    ("strategy", "name"), [("zero1", "flat shard"), ("zero2", "flat shard"), ("zero3", "stage 0"), ("fsdp", "stage 0")]
)
def test_a_share_may_begin_and_end_within_a_row(strategy: str, name: str) -> None:
    """Adafactor's factors of a quarter of one row of 1,000: that row, and up to 251 columns."""
    run = job(layers(1, parameters=1000), data=4, optimizer=Optimizer("adafactor"), data_settings={"strategy": strategy})
    sizes = {tensor.name: tensor.bytes for tensor in run.memory(0).tensors}
    assert (sizes[f"{name}.exp_avg_sq_row"], sizes[f"{name}.exp_avg_sq_col"]) == (4 * 1, 4 * 251)

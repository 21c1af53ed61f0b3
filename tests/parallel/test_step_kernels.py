"""What an optimizer step moves, per parameter, and what stacks do to gradients around it."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest
from jobs import job, layers

from parsim.parallel.optimizer import step_kernels
from parsim.parallel.training import Optimizer, Precision

FP16 = Precision("fp16", 2, 0, 2, 4, matmul="fp16", reduce=2)
BF16 = replace(FP16, name="bf16", matmul="bf16")
WIDE = replace(BF16, name="bf16-fp32grad", gradients=4, reduce=4)
PURE = replace(BF16, name="pure-bf16", master=0, optimizer_element=2)
FUSED = Optimizer("adamw", "fused", clip_gradients=True)


def moved(precision, optimizer=FUSED, **options):
    """Bytes per parameter of each kernel."""
    states = precision.master + 2 * precision.optimizer_element
    return [kernel.bytes / 1000 for kernel in step_kernels(optimizer, precision, 1000, states * 1000, 1, **options)]


def test_fp16_of_megatron():
    """Widen 2 + 4, unscale 4 + 4, norm 4 and scale 4 + 4, Adam 4 + 8 + 16, copy back 4 + 2."""
    assert moved(FP16) == [6, 8, 12, 28, 6]


def test_bf16_has_no_loss_scale_and_fp32_gradients_are_wide_already():
    assert moved(BF16) == [6, 12, 28, 6]
    assert moved(WIDE) == [12, 28, 6]


def test_fsdp_steps_the_masters_alone():
    """Shards and their gradients are fp32; what is gathered is cast by the gather."""
    assert moved(BF16, masters_only=True) == [12, 28]


def test_without_masters_everything_is_as_narrow_as_the_weights():
    """Norm and scale 2 + 2 + 2, Adam 2 + 4 + 8."""
    assert moved(PURE) == [6, 14]


def test_narrow_states():
    """Moments of two bytes: Adam 4 + 8 + 8; masters as the 16 bits that bf16 weights lack: 4 + 4 + 8, and 2 + 2 for the weights."""
    assert moved(replace(WIDE, optimizer_element=2)) == [12, 20, 6]
    assert moved(replace(WIDE, optimizer_element=2, master=2)) == [12, 16, 4]


def test_without_clipping_nothing_is_scaled():
    assert moved(WIDE, replace(FUSED, clip_gradients=False)) == [28, 6]


def optimizer_bytes(run, names):
    """Bytes of the compute of rank 0 whose ops have these names."""
    work = run.program.work
    ops = [op for op in run.program.ops if op.lanes[0].rank == 0 and op.name in names]
    return sum(work.get((op.name, op.duration), (0.0, 0.0))[1] for op in ops)


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_megatron_zeroes_its_gradients_and_averages_them_before_they_are_reduced(strategy):
    """4 B written per parameter at the begin of a step; 8 B per parameter and step before the reduction, with several replicas."""
    for data, averaged in ((1, 0), (2, 8)):
        runs = [
            job(
                layers(2),
                data=data,
                data_settings={"strategy": strategy, "overlap_reduce": False},
                precision=WIDE,
                micro_batches=2,
                runtime=runtime,
            )
            for runtime in ({"profile": "megatron-core"}, {"profile": "pytorch-2", "gradient_accumulation_fusion": True})
        ]
        assert optimizer_bytes(runs[0], ("zero gradients",)) == 4 * 2000
        assert optimizer_bytes(runs[1], ("zero gradients",)) == 0
        finish = [optimizer_bytes(run, ("finish gradients",)) for run in runs]
        copied = 8 * 2000 if strategy == "ddp" and data > 1 else 0  # PyTorch's DDP copies gradients into its buckets
        assert finish == [averaged * 2000, copied]


@pytest.mark.parametrize("data", [1, 2])
def test_every_update_of_pipedream_zeroes_the_gradients(data):
    """4 B written per parameter of a stage and update, between the optimizer's step and the next backward; PyTorch drops gradients."""
    common = {
        "data": data, "pipeline": 2, "micro_batches": 6, "precision": WIDE, "pipeline_settings": {"schedule": "pipedream"},
    }  # fmt: skip
    megatron, other = (job(layers(2), runtime={"profile": profile}, **common) for profile in ("megatron-core", "pytorch-2"))
    assert optimizer_bytes(megatron, ("zero gradients",)) == 6 * 4 * 1000
    assert optimizer_bytes(other, ("zero gradients",)) == 0
    names = [op.name.split()[0] for op in megatron.program.ops if op.lanes == ((0, "compute"),)]
    updates = [name for name, _ in groupby(name for name in names if name in ("B0", "optimizer", "zero"))]
    assert updates == ["B0", "optimizer", "zero"] * 6


@pytest.mark.parametrize(("stage", "into"), [("zero1", 4), ("zero2", 0)])
def test_deepspeed_packs_buckets(stage, into):
    """bf16: into the bucket 2 + 2 (stage 2 has done that), divided 2 + 2, put together by destination 2 + 2."""
    run = job(
        layers(2), data=2, data_settings={"strategy": stage, "bucket": (1000, "elements")}, precision=BF16, runtime={"profile": "deepspeed"}
    )
    packed = [op for op in run.program.ops if op.name.startswith("copy bucket") and op.lanes[0].rank == 0]
    assert len(packed) == 2
    reductions = run.collectives(kind="reduce_scatter")
    for copy, reduction in zip(packed, reductions, strict=True):
        assert run.program.work[copy.name, copy.duration][1] == (into + 8) * 1000
        assert run.trace.start[reduction.index] >= run.trace.end[copy.index]

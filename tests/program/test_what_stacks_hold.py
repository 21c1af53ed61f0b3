"""What stacks hold beside tensors of the model: fp32 gradients of a step, joined buckets, outputs that a stage has sent, communicators."""

from __future__ import annotations

import pytest
from jobs import job

from parsim.run import simulate
from parsim.scenario.precision import PRESETS
from parsim.simulation.ledger import MemoryTimeline

GPT2 = 124_439_808
FP16 = PRESETS["fp16"]


def largest(run, part, rank=0):
    """Bytes of the largest tensor whose name has `part`; 0 if there is none."""
    return max((tensor.bytes for tensor in run.memory(rank).tensors if part in tensor.name), default=0)


def test_a_step_on_fp16_gradients_widens_them_all():
    """Megatron-LM without a distributed optimizer: main_param.grad = model_param.grad.float()."""
    run = job("gpt2", precision=FP16, runtime={"profile": "megatron-2021"})
    assert largest(run, "optimizer.gradients") == 4 * GPT2


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_deepspeed_joins_and_widens_its_share(strategy):
    run = job("gpt2", data=4, precision=FP16, data_settings={"strategy": strategy}, runtime={"profile": "deepspeed"})
    assert largest(run, "optimizer.joined gradients") == 2 * -(-GPT2 // 4)
    assert largest(run, "optimizer.gradients") == 4 * -(-GPT2 // 4)


def test_fp32_gradients_are_not_widened():
    run = job("gpt2", precision=PRESETS["fp16-fp32grad"], runtime={"profile": "megatron-2022"})
    assert largest(run, "optimizer.gradients") == 0


def test_deepspeeds_first_stage_joins_a_bucket_when_it_reduces():
    settings = {"strategy": "zero1", "overlap_reduce": False, "bucket": (30_000_000, "elements")}
    run = job("gpt2", data=4, precision=FP16, data_settings=settings, runtime={"profile": "deepspeed"})
    assert 2 * 30_000_000 <= largest(run, ".joined") <= 2 * (30_000_000 + 50_257 * 768)


def pipeline(profile, **training):
    return {
        "model": {"family": "megatron-gpt", "hidden": 512, "layers": 8, "heads": 8, "vocabulary": 51200},
        "cluster": {"topology": "4x a100-sxm-80gb"},
        "training": {"sequence_length": 1024, "micro_batch": 4, "gradient_accumulation": 8, "precision": "fp16", **training},
        "parallel": {"pipeline": {"size": 4}},
        "software": {"profile": profile, "fusion": "fused", "memory": {"allocator": "exact"}},
    }


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_stage_keeps_what_it_has_sent(recompute):
    """Four micro-batches in flight on the first stage: their outputs of b s h x 2 B stay under DeepSpeed, and go behind the send under
    Megatron-LM since 2022. At the peak, in the first backward, all four are there.
    """
    peaks = {}
    for profile in ("megatron-2021", "megatron-2022"):
        tree = pipeline(profile, recompute=recompute, attention="flash2", loss={"kernel": "vocab-parallel"})
        tree["software"]["gradient_accumulation_fusion"] = False
        memory = simulate(tree).measured.memory
        peaks[profile] = next(device.allocated_bytes for device in memory.devices if device.rank == 0)
    assert peaks["megatron-2021"] - peaks["megatron-2022"] == 4 * (4 * 1024 * 512 * 2)


def test_deepspeed_has_a_communicator_for_each_neighbour():
    """A middle stage: two of sends, and one of all ranks."""
    gib = 2**30
    found = {}
    for profile in ("deepspeed", "megatron-2021"):
        memory = simulate(pipeline(profile)).measured.memory
        found[profile] = next(device.at_peak["communicators"] for device in memory.devices if device.rank == 1)
    assert found["deepspeed"] - found["megatron-2021"] == int(0.2 * gib)


def test_the_allocator_may_reserve_what_context_and_communicators_leave(monkeypatch):
    """There it gives cached segments back before it fails, as PyTorch's does (tests/simulation/test_allocator.py)."""
    seen = []
    replayed = MemoryTimeline.replayed

    def spy(self, allocator, capacity=None, *, whole=True):
        seen.append(capacity)
        return replayed(self, allocator, capacity, whole=whole)

    monkeypatch.setattr(MemoryTimeline, "replayed", spy)
    memory = simulate(pipeline("deepspeed")).measured.memory
    outside = {device.at_peak["context"] + device.at_peak["communicators"] for device in memory.devices}
    assert {memory.capacity_bytes - capacity for capacity in seen} <= outside

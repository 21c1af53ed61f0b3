"""Effects of training: where they apply, and what they do to kernels, launches and the step."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim.errors import ScenarioError
from parsim.hardware.device import device_from_tree
from parsim.hardware.kernels import attention_time, gemm_time, kernel_time
from parsim.kernel import Attention, Gemm, Memory
from parsim.model.parameter_counts import parameter_count
from parsim.scenario.build import build
from parsim.scenario.effects import QUANTITIES, Effects, TrainingEffect, catalogue, effects_of
from parsim.scenario.files import find, names, read
from parsim.scenario.load import load
from parsim.validation.predicted_runs import step_time

SCENARIO = {
    "model": "gpt2",
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 2},
    "training": {"sequence_length": 512, "global_batch": 8, "micro_batch": 2, "precision": "bf16"},
}


def device(name):
    return device_from_tree(read(find("devices", name)).tree, name)


def scenario(effects, profile="megatron-2021", strategy="ddp"):
    return {**copy.deepcopy(SCENARIO), "software": {"profile": profile, "effects": effects}, "parallel": {"data": {"strategy": strategy}}}


def test_factors_are_exact_on_kernels():
    """Products run at `compute` of their rate and copies at `memory`; what a kernel costs besides stays."""
    a100 = device("a100-sxm-80gb")
    slow = Effects(compute=0.8, memory=0.5).on_device(a100)
    product = Gemm(8192, 8192, 8192, dtype="bf16")
    fixed = a100.kernel_latency
    assert gemm_time(slow, product) - fixed == pytest.approx((gemm_time(a100, product) - fixed) / 0.8, rel=1e-12)
    copied = Memory(10**9)
    assert kernel_time(slow, copied) - fixed == pytest.approx(2 * (kernel_time(a100, copied) - fixed), rel=1e-9)
    assert Effects().on_device(a100) is a100


def core(*, backward=False):
    """Attention of 65,536 tokens: long enough for its kernels to reach their best rate within half a percent."""
    return Attention(1, 16, 16, 65536, 65536, 128, True, backward, "flash2", "bf16")


def test_attention_loses_as_much_of_the_clock_as_it_uses_the_tensor_cores():
    """FlashAttention-2 reaches 0.385 of an H100's peak forward and 0.32 backward, products 0.766: about half of the loss, in logarithms."""
    h100 = device("h100-sxm-80gb")
    slow = Effects(compute=0.8).on_device(h100)
    for backward, share in ((False, 0.385), (True, 0.32)):
        lost = attention_time(slow, core(backward=backward)) / attention_time(h100, core(backward=backward))
        assert lost == pytest.approx(0.8 ** -(share / 0.766), rel=3e-3)
    assert attention_time(Effects(memory=0.5).on_device(h100), core()) == attention_time(h100, core())


@given(st.floats(0.7, 1.0), st.floats(0.01, 1.2))
def test_no_kernel_loses_more_than_products(left, share):
    """A device's own clock, on the other hand, slows whatever runs."""
    h100 = replace(device("h100-sxm-80gb"), sustained=left, clock_derate=0.9)
    assert 0.9 * left * (1 - 1e-12) <= h100.pace("bf16", share) <= 0.9 * (1 + 1e-12)
    assert h100.pace("bf16", 0.766) == pytest.approx(0.9 * left, rel=1e-12)


def test_a_boundary_is_added_once_per_step():
    """124 million local parameters at 5 s per 1e9."""
    jobs = [build(load(scenario(effects, "deepspeed-2021", "zero1"))) for effects in ({"boundary-deepspeed": 5.0}, "none")]
    assert [one.runtime.boundary for one in jobs] == [5.0, 0.0]
    slow, plain = (step_time(scenario(effects, "deepspeed-2021", "zero1")) for effects in ({"boundary-deepspeed": 5.0}, "none"))
    assert slow - plain == pytest.approx(5.0 * parameter_count(jobs[1].model) / 1e9, rel=1e-3)


def per_kernel(effects, profile="megatron-2021", *overrides):
    host = build(load(scenario(effects, profile), *overrides)).runtime.host
    return host.per_kernel_forward, host.per_kernel_backward


def test_launches_scale_what_the_profile_assumes_of_the_host():
    forward, backward = per_kernel("none")
    assert per_kernel({"launch-2021": 2.0}) == (2 * forward, 2 * backward)
    assert per_kernel({"launch-2021": 2.0}, "megatron-2021", "software.host.per_kernel_forward=5 us") == (5e-6, 2 * backward)


def test_transformer_engine_is_slower_beside_hosts_that_nobody_timed():
    """A Grace CPU was timed with Transformer Engine's linear layer; other stacks have times of their own."""
    effects, grace = {"launch-transformer-engine": 2.0}, ("cluster.topology=gb200-nvl72", "cluster.gpus=4")
    assert per_kernel(effects, "nemo") == per_kernel(effects, "megatron-core") == pytest.approx((24e-6, 18e-6))
    assert per_kernel(effects, "nemo", *grace) == per_kernel("none", "nemo", *grace)
    assert per_kernel(effects, "pytorch-2") == per_kernel("none", "pytorch-2")


@settings(max_examples=12, deadline=None)
@given(st.floats(0.75, 1.0), st.floats(0.65, 1.0), st.floats(1.0, 4.0))
def test_a_slower_part_never_speeds_a_step_up(compute, memory, launch):
    slower = step_time(scenario({"clock-ampere": compute, "memory-traffic": memory, "launch-2021": launch}))
    assert slower >= step_time(scenario("none")) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("effects", "problem"),
    [
        ("some", "is not published, none or a mapping"),
        ({"clock-amper": 0.9}, "did you mean 'clock-ampere'"),
        ({"clock-ampere": 7}, "is not a number from"),
        ({"clock-ampere": True}, "is not a number from"),
        ({"clock-amper": 0.9, "launch-2021": 99}, "did you mean 'clock-ampere'.*launch-2021: 99 is not a number from 0.5 to 8"),
    ],
)
def test_mistakes_are_found(effects, problem):
    with pytest.raises(ScenarioError, match=problem) as caught:
        load(scenario(effects))
    assert caught.value.findings[0].path == "software.effects"


def test_an_effect_concerns_some_jobs():
    one = TrainingEffect("x", "compute", "", 1, 0.5, 1, 0.9, ("hopper",), ("nemo",), ("zero1",))
    h100, a100 = device("h100-sxm-80gb"), device("a100-sxm-80gb")
    assert one.applies(h100, "nemo", "zero1", 8)
    assert not one.applies(a100, "nemo", "zero1", 8)
    assert not one.applies(h100, "megatron-core", "zero1", 8)
    assert not one.applies(h100, "nemo", "ddp", 8)


def test_an_effect_can_concern_jobs_of_several_gpus_alone():
    h200 = device("h200-sxm-141gb")
    assert effects_of({"clock-hopper": 0.8}, h200, "pytorch-2", "ddp", 1, []) == Effects()
    assert effects_of({"clock-hopper": 0.8}, h200, "pytorch-2", "ddp", 2, []) == Effects(compute=0.8)


def test_every_shipped_effect_is_sound():
    """Within its bounds, on known architectures and profiles, and what is used by default is recorded as an assumption."""
    profiles = names("software")
    architectures = {device(name).architecture for name in names("devices")}
    for effect in catalogue():
        assert effect.changes in QUANTITIES
        assert effect.least <= effect.start <= effect.most
        assert effect.least <= effect.value <= effect.most
        assert effect.meaning
        assert set(effect.architectures) <= architectures
        assert set(effect.profiles) <= set(profiles)
    recorded = []
    found = effects_of("published", device("a100-sxm-80gb"), "megatron-2021", "ddp", 8, recorded)
    moved = [e for e in catalogue() if e.applies(device("a100-sxm-80gb"), "megatron-2021", "ddp", 8) and abs(e.value - e.start) > 1e-3]
    assert [one.name for one in recorded] == ["training_effects"]
    assert recorded[0].value == ", ".join(f"{effect.name} x {effect.value:g}" for effect in moved)
    assert found.compute == pytest.approx(next(e.value for e in catalogue() if e.name == "clock-ampere"))


def test_clock_effects_are_those_of_the_device():
    assert effects_of({"clock-hopper": 0.8}, device("a100-sxm-80gb"), "pytorch-2", "ddp", 8, []) == Effects()
    assert effects_of({"clock-hopper": 0.8}, device("h100-sxm-80gb"), "pytorch-2", "ddp", 8, []) == Effects(compute=0.8)

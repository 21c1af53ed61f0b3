"""Offloading end to end: bytes by closed form and by DeepSpeed's estimators, times by the rates of the links they cross."""

from __future__ import annotations

import json

import pytest

from parsim.cli import execute
from parsim.errors import InputError
from parsim.hardware.transfers import LAUNCH
from parsim.run import simulate
from parsim.theory import deepspeed_zero2_bytes, deepspeed_zero3_host_bytes

P = 6_738_415_616
ROOT = 2 * 32_000 * 4096 + 4096
"""embedding, head and the last norm: gathered once per micro-batch"""
HOP, MEMORY = 0.4e-6, 0.1e-6
"""latency of a PCIe hop and of host memory [s]"""


def seven(offload, *, strategy="zero2", micro_batches=1, topology="dgx-a100-80gb", **more):
    """LLaMA-7B with full recomputation, one sequence of 2048 tokens per GPU and micro-batch."""
    training = {"sequence_length": 2048, "micro_batch": 1, "gradient_accumulation": micro_batches, "recompute": "full", "offload": offload}
    tree = {
        "model": "llama-7b",
        "training": training | more.pop("training", {}),
        "parallel": {"data": {"strategy": strategy}},
        "cluster": {"topology": topology, **more.pop("cluster", {})},
        "software": {"profile": "deepspeed"},
    }
    return simulate(tree | more)


def ops(report, kind, rank=0):
    """(start, end, name) of the ops of a rank's lane."""
    trace = report.measured.trace
    return [(trace.start[op.index], trace.end[op.index], op.name) for op in trace.lane(rank, kind)]


def carried(report, name):
    return sum(row.bytes for row in report.links if row.link == name)


@pytest.fixture(scope="module")
def zero2():
    return seven({"optimizer": "cpu"})


@pytest.fixture(scope="module")
def zero3():
    return seven({"optimizer": "cpu", "parameters": "cpu"}, strategy="zero3", micro_batches=2)


# -- memory -----------------------------------------------------------------------------------------------------------------


def test_zero_offload_leaves_the_weights_on_the_device(zero2):
    device = zero2.measured.memory.devices[0]
    assert device.resident_bytes["parameters"] == 2 * P == deepspeed_zero2_bytes(P, 8, offload=True)
    assert device.resident_bytes["optimizer"] == device.resident_bytes["gradients"] == 0
    assert device.at_peak["optimizer"] == 0


def test_the_host_holds_16_bytes_per_parameter(zero2):
    # fp32 master, two moments and the gradient: DeepSpeed's estimator counts the same 16 P, x 1.5 for buffers
    host = zero2.measured.memory.host
    assert host.bytes == 16 * P == deepspeed_zero3_host_bytes(P, offload_parameters=False, buffers=1)
    assert host.at_peak == {"optimizer": 12 * P, "gradients": 4 * P}
    assert host.capacity_bytes == 2 * 10**12
    assert zero2.document()["memory"]["host_bytes"] == 16 * P


def test_with_parameters_it_holds_18(zero3):
    assert zero3.measured.memory.host.bytes == 18 * P == deepspeed_zero3_host_bytes(P, offload_parameters=True, buffers=1)
    assert zero3.measured.memory.devices[0].resident_bytes["parameters"] == 0


def test_checkpoints_in_host_memory_are_2_sbh_per_layer():
    # the optimizer, whose fp32 gradients are the peak of a whole step, is left out: the peak is then in the backward
    stays, moved = (seven(offload, training={"step": False}) for offload in ({}, {"activations": "cpu"}))
    assert stays.measured.memory.devices[0].peak_op.startswith("B0 ")
    one = 2 * 2048 * 4096
    assert moved.measured.memory.host.at_peak == {"activations": 8 * 32 * one}
    assert sum(row.bytes * row.count for row in moved.collectives if row.kind == "d2h") == 32 * one
    assert sum(row.bytes * row.count for row in moved.collectives if row.kind == "h2d") == 32 * one
    # at the loss two are still on the device: one that leaves and the one that the head reads; before, all 32
    before, after = (report.measured.memory.devices[0].at_peak["activations"] for report in (stays, moved))
    assert 28 * one <= before - after <= 32 * one


def test_states_on_drives_leave_one_sub_group_in_host_memory():
    report = seven({"optimizer": "nvme", "parameters": "nvme"}, strategy="zero3")
    host = report.measured.memory.host
    assert host.nvme_bytes == 18 * P
    assert host.at_peak == {"buffers": 16 * P + 8 * 500_000_000 * 2}  # P / 8 is less than a sub-group of 1e9


# -- what moves -------------------------------------------------------------------------------------------------------------


def test_gradients_out_and_weights_in_are_2_p_over_n(zero2):
    assert carried(zero2, "gpu->pcie") == pytest.approx(2 * P / 8, rel=1e-6)
    assert carried(zero2, "pcie->gpu") == pytest.approx(2 * P / 8, rel=1e-6)
    assert carried(zero2, "cpu<->memory") == pytest.approx(4 * (28 + 2 + 2) * P / 8, rel=1e-6)  # four GPUs per socket


def test_later_micro_batches_fetch_what_the_host_has_to_add_to_it():
    twice = seven({"optimizer": "cpu"}, micro_batches=3)
    assert carried(twice, "gpu->pcie") == pytest.approx(3 * 2 * P / 8, rel=1e-6)
    assert carried(twice, "pcie->gpu") == pytest.approx((2 + 1) * 2 * P / 8, rel=1e-6)


def test_offloaded_parameters_are_fetched_before_every_use(zero3):
    # layers before forward and before backward, the root unit once; gradients of the second micro-batch are added on the device
    fetched = 2 * (2 * (P - ROOT) + ROOT) * 2 / 8
    assert carried(zero3, "pcie->gpu") == pytest.approx(fetched + 2 * P / 8, rel=1e-6)
    assert carried(zero3, "gpu->pcie") == pytest.approx(2 * 2 * P / 8, rel=1e-6)
    weights = [row for row in ops(zero3, "h2d") if row[2].endswith("weights")]
    assert len(weights) == 2 * (32 + 32 + 1)


def test_drives_read_and_write_k_plus_2_bytes():
    report = seven({"optimizer": "nvme"}, strategy="zero3")
    reads = sum(row.bytes * row.count for row in report.collectives if row.kind == "nvme_read")
    writes = sum(row.bytes * row.count for row in report.collectives if row.kind == "nvme_write")
    assert reads == pytest.approx((12 + 2) * P / 8, rel=1e-6)
    assert writes == pytest.approx((12 + 2) * P / 8, rel=1e-6)


# -- when -------------------------------------------------------------------------------------------------------------------


def test_the_cpu_steps_at_the_rate_of_host_memory(zero2):
    # 28 B/parameter (gradient 2, master and two moments read and written 24, weight 2), four ranks on a socket of 85 GB/s
    ((start, end, _),) = ops(zero2, "cpu_step")
    assert end - start == pytest.approx(LAUNCH + MEMORY + 4 * 28 * (P / 8) / 85e9, rel=1e-6)
    assert zero2.breakdown["optimizer"] == pytest.approx(end - start, rel=1e-9)


def test_two_gpus_share_the_switch_on_the_way_back(zero2):
    start, end, name = ops(zero2, "h2d")[-1]
    assert name == "h2d stepped weights"
    assert end - start == pytest.approx(LAUNCH + 2 * HOP + MEMORY + 2 * (2 * P / 8) / 24e9, rel=1e-6)


def test_steps_wait_for_the_last_bucket_and_gathers_for_the_weights(zero2):
    last_out = ops(zero2, "d2h")[-1][1]
    step = ops(zero2, "cpu_step")[0]
    back = ops(zero2, "h2d")[-1]
    gathers = [row for row in ops(zero2, "data") if row[2].startswith("all_gather weights")]
    assert last_out <= step[0] < step[1] <= back[0] < back[1] <= gathers[0][0]


def test_gradients_leave_under_backward(zero2):
    backward = [row for row in ops(zero2, "compute") if row[2].startswith("B0 ")]
    first_out = ops(zero2, "d2h")[0]
    assert first_out[0] < backward[-1][0]
    assert zero2.breakdown["offload"] < sum(end - start for kind in ("d2h", "h2d") for start, end, _ in ops(zero2, kind))


def test_a_torch_optimizer_on_the_cpu_takes_5_5_times_as_long():
    everything = {"parameters": "cpu", "gradients": "cpu", "optimizer": "cpu"}
    plain = seven(everything, strategy="fsdp", training={"optimizer": {"name": "adamw", "implementation": "foreach"}})
    fused = seven(everything, strategy="fsdp", training={"optimizer": {"name": "adamw", "implementation": "fused"}})
    (slow,), (fast,) = ops(plain, "cpu_step"), ops(fused, "cpu_step")
    ratio = (slow[1] - slow[0] - LAUNCH - MEMORY) / (fast[1] - fast[0] - LAUNCH - MEMORY)
    assert ratio == pytest.approx(5.5, rel=1e-6)


def test_one_gpu_steps_alone_on_its_socket():
    report = seven({"optimizer": "cpu"}, strategy="none", cluster={"gpus": 1})
    ((start, end, _),) = ops(report, "cpu_step")
    assert end - start == pytest.approx(LAUNCH + MEMORY + 28 * P / 85e9, rel=1e-6)
    assert start >= ops(report, "d2h")[-1][1]
    assert report.measured.memory.host.bytes == 16 * P


def test_drives_limit_a_run_from_drives():
    report = seven({"optimizer": "nvme", "parameters": "nvme"}, strategy="zero3")
    assert report.limiter_kind == "offload"
    assert "offload copies" in report.limiter


@pytest.mark.parametrize(
    ("strategy", "offload"),
    [("zero1", {"optimizer": "cpu"}), ("zero3", {"optimizer": "nvme", "parameters": "cpu", "activations": "cpu"})],
)
def test_folded_equals_unfolded(strategy, offload):
    tree = {
        "model": {"base": "gpt2", "layers": 4},
        "training": {"sequence_length": 512, "micro_batch": 1, "gradient_accumulation": 2, "recompute": "full", "offload": offload},
        "parallel": {"data": {"strategy": strategy}},
        "cluster": {"topology": "dgx-a100-80gb", "nodes": 2},
    }
    folded, whole = simulate(tree), simulate(tree, unfolded=True)
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    assert folded.measured.memory.host == whole.measured.memory.host
    assert folded.peak_memory == whole.peak_memory


# -- verdict ----------------------------------------------------------------------------------------------------------------


def test_too_little_host_memory_does_not_fit():
    report = seven({"optimizer": "cpu"}, cluster={"set": {"node": {"host_memory": "100 GB"}}})
    assert report.headroom > 0
    assert not report.fits
    assert report.host_lacks == 16 * P - 100 * 10**9
    assert report.limiter_kind == "memory"
    assert report.verdict.startswith(
        "does not fit: node 0 needs 100.4 GiB of host memory for what is offloaded, and has 93.1 GiB; devices: "
    )
    assert report.document()["memory"]["host"]["fits"] is False


def test_exit_code_3(capsys):
    code = execute(["run", "llama-7b-zero2-8x-a100", "training.offload.optimizer=cpu", "cluster.set.node.host_memory=100 GB", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 3
    assert document["memory"]["fits"] is False
    assert document["memory"]["headroom_bytes"] > 0


def refused(strategy, offload, **more):
    with pytest.raises(InputError) as caught:
        seven(offload, strategy=strategy, **more)
    return [(finding.path, finding.message, finding.suggestion) for finding in caught.value.findings]


@pytest.mark.parametrize(
    ("strategy", "offload", "key", "words"),
    [
        ("ddp", {"optimizer": "cpu"}, "optimizer", "whole model states on every device"),
        ("zero2", {"optimizer": "cpu", "parameters": "cpu"}, "parameters", "offload_param is ZeRO-3's"),
        ("zero3", {"parameters": "cpu"}, "parameters", "needs optimizer offload"),
        ("zero2", {"optimizer": "nvme"}, "optimizer", "need ZeRO-3"),
        ("zero3", {"gradients": "cpu"}, "gradients", "only with an optimizer on the CPU"),
        ("zero3", {"gradients": "nvme", "optimizer": "cpu"}, "gradients", "where the optimizer is"),
        ("fsdp", {"optimizer": "cpu"}, "parameters", "moves parameters, gradients and the optimizer together"),
        ("fsdp", {"optimizer": "nvme", "parameters": "nvme"}, "optimizer", "host memory only"),
        ("zero2", {"activations": "nvme"}, "activations", "not to drives"),
    ],
)
def test_what_no_stack_does_is_refused_with_a_way_out(strategy, offload, key, words):
    ((path, message, suggestion),) = refused(strategy, offload)
    assert path == f"training.offload.{key}"
    assert words in message
    assert suggestion


def test_activations_need_checkpoints():
    ((path, message, suggestion),) = refused("zero2", {"activations": "cpu"}, training={"recompute": "none"})
    assert path == "training.offload.activations"
    assert "recompute is none" in message
    assert "training.recompute: full" in suggestion


def test_optimizers_without_a_cpu_kernel_are_refused():
    ((path, message, _),) = refused("zero2", {"optimizer": "cpu"}, training={"optimizer": "adam-8bit"})
    assert (path, message) == ("training.optimizer", "DeepSpeed has no CPU kernel for adam-8bit")


def test_fsdp_does_not_accumulate_outside_no_sync():
    tree = {"parallel": {"data": {"strategy": "fsdp", "accumulate": "every"}}}
    offload = {"parameters": "cpu", "optimizer": "cpu"}
    with pytest.raises(InputError, match="outside no_sync"):
        seven(offload, strategy="fsdp", micro_batches=2, **tree)


# -- checkpoints on disk ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "gathered"),
    [
        ("ddp", 0),
        ("zero1", 0),
        ("zero2", 0),
        ("zero3", 2 * 32_000 * 4096),  # one module at a time: the embedding
        ("fsdp", 2 * (ROOT + 202_383_360)),  # the root unit and one layer
    ],
)
def test_what_saving_gathers(strategy, gathered):
    report = seven({}, strategy=strategy)
    memory = report.measured.memory
    device = memory.devices[0]
    resident = sum(device.resident_bytes.values()) + device.at_peak["context"] + device.at_peak["communicators"]
    assert memory.at_save_bytes == resident + gathered

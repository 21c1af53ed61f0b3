"""Fine-tuning beside offloading, hybrid sharding and FLOP conventions: frozen weights may leave the device, and have nothing else."""

from __future__ import annotations

import pytest

from parsim.errors import InputError
from parsim.model.flops import flop_per_step
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build

FROZEN = 67_736_832
"""four layers of GPT-2 with its embeddings and the last norm"""
TRAINED = 4 * 16 * ((768 + 2304) + (768 + 768) + (768 + 3072) + (3072 + 768))
"""rank 16 beside the four linear layers of each"""
ROOT = (50_257 + 1024) * 768 + 2 * 768
"""word and position tables and the last norm"""
ALL_OFF = {"parameters": "cpu", "gradients": "cpu", "optimizer": "cpu"}
ROUNDED = 2e-4
"""tensors are whole blocks of 512 B, shares whole elements"""


def tree(data, offload, *, finetune=None, context=1, **more):
    """Four layers of GPT-2 with LoRA on two nodes of eight A100, two micro-batches of one sequence of 512 tokens."""
    training = {"sequence_length": 512, "micro_batch": 1, "gradient_accumulation": 2, "recompute": "full", "offload": offload}
    return {
        "model": {"base": "gpt2", "layers": 4},
        "training": training | {"finetune": finetune or {"method": "lora"}} | more.pop("training", {}),
        "parallel": {"data": {"strategy": data} if isinstance(data, str) else data, "context": {"size": context}},
        "cluster": {"topology": "dgx-a100-80gb", "nodes": 2},
    } | more


def moved(report, kind):
    return sum(row.bytes * row.count for row in report.collectives if row.kind == kind)


def test_the_model():
    model = simulate(tree("zero3", {})).measured.model
    assert (model.parameters, model.parameters_trainable) == (FROZEN + TRAINED, TRAINED)


# -- ZeRO-3 -----------------------------------------------------------------------------------------------------------------


def test_frozen_parameters_leave_without_gradients_or_states():
    report = simulate(tree("zero3", {"parameters": "cpu", "optimizer": "cpu"}))
    host = report.measured.memory.host.at_peak  # half of 16 shares
    assert host["parameters"] == pytest.approx(2 * (FROZEN + TRAINED) / 2, rel=ROUNDED)
    assert host["gradients"] == 4 * TRAINED / 2
    assert host["optimizer"] == 12 * TRAINED / 2
    assert moved(report, "d2h") == 2 * 2 * TRAINED / 16  # every micro-batch's gradients
    assert moved(report, "cpu_step") == 28 * TRAINED / 16
    # per micro-batch: layers before forward and backward, the root unit once; the second micro-batch fetches gradients to add to
    layers = FROZEN + TRAINED - ROOT
    assert moved(report, "h2d") == pytest.approx(2 * 2 * (2 * layers + ROOT) / 16 + 2 * TRAINED / 16, rel=ROUNDED)


def test_only_stepped_weights_come_back_from_the_cpu():
    report = simulate(tree("zero3", {"optimizer": "cpu"}))
    assert moved(report, "h2d") == 2 * TRAINED / 16 + 2 * TRAINED / 16  # gradients so far; stepped weights
    assert report.measured.memory.devices[0].resident_bytes["parameters"] == pytest.approx(2 * (FROZEN + TRAINED) / 16, rel=1e-2)


def test_four_bit_weights_travel_as_they_are_stored():
    report = simulate(tree("zero3", {"parameters": "nvme", "optimizer": "nvme"}, finetune={"method": "qlora", "base": "nf4"}))
    linear = 4 * 12 * 768**2
    stored = 4.5 / 8 * linear + 2 * (FROZEN - linear + TRAINED)
    host = report.measured.memory.host
    assert host.nvme_bytes == pytest.approx(stored / 2 + 16 * TRAINED / 2, rel=1e-3)
    layers = stored - 2 * ROOT
    assert moved(report, "nvme_read") == pytest.approx(2 * (2 * layers + 2 * ROOT) / 16 + (12 + 2) * TRAINED / 16, rel=1e-3)
    # frozen weights are never written: states, stepped weights, and the gradients of both micro-batches
    assert moved(report, "nvme_write") == pytest.approx((12 + 2 + 2 * 2) * TRAINED / 16, rel=1e-6)


def test_one_gpu_keeps_all_in_its_host():
    report = simulate(tree("zero3", {"parameters": "cpu", "optimizer": "cpu"}, cluster={"topology": "1x a100-80gb"}))
    assert report.measured.memory.host.bytes == pytest.approx(2 * FROZEN + 18 * TRAINED, rel=ROUNDED)


def test_stages_without_trained_weights_have_no_step():
    """Two stages, of which the first is frozen: its CPU steps nothing."""
    data, finetune = {"strategy": "zero1"}, {"method": "freeze", "freeze": {"layers": 2}}
    scenario = tree(
        data, {"optimizer": "cpu"}, finetune=finetune, software={"profile": "deepspeed"}, model={"base": "llama-7b", "layers": 4}
    )
    scenario["parallel"]["pipeline"] = {"size": 2}
    report = simulate(scenario)
    stepped = {
        op.lanes[0].rank for op in report.measured.trace.program.ops if op.collective is not None and op.collective.kind == "cpu_step"
    }
    stages = {group.rank: group.stage for group in report.measured.classes}
    assert {stages[rank] for rank in stepped} == {1}


# -- FSDP and hybrid sharding -----------------------------------------------------------------------------------------------


def test_flat_gradients_leave_whole():
    """FSDP1's flat parameters have gradients for frozen elements too; the optimizer steps the adapters only."""
    report = simulate(tree("fsdp", ALL_OFF, finetune={"method": "lora", "flat_gradients": True}))
    flat = FROZEN + TRAINED - ROOT
    assert moved(report, "d2h") == pytest.approx(2 * flat / 16, rel=ROUNDED)
    assert report.measured.memory.host.at_peak["gradients"] == pytest.approx(4 * flat / 2, rel=ROUNDED)
    assert report.measured.memory.host.at_peak["optimizer"] == 12 * TRAINED / 2


def test_whole_frozen_weights_stay_on_the_device():
    report = simulate(tree("fsdp", ALL_OFF, finetune={"method": "lora", "base_sharded": False}))
    assert report.measured.memory.devices[0].resident_bytes["parameters"] == pytest.approx(2 * FROZEN, rel=2e-2)
    assert report.measured.memory.host.at_peak["parameters"] == 2 * TRAINED / 2


def test_shard_groups_sum_what_is_trained():
    groups = {"strategy": "hsdp", "shard_size": 8, "accumulate": "no_sync"}
    for offload in ({}, ALL_OFF):
        report = simulate(tree(groups, offload))
        summed = sum(row.bytes * row.count for row in report.collectives if row.kind == "all_reduce" and row.group_size == 2)
        assert summed == 2 * TRAINED / 8
    assert report.measured.memory.host.at_peak["parameters"] == pytest.approx(2 * (FROZEN + TRAINED), rel=ROUNDED)


def test_what_saving_gathers_of_a_partly_frozen_model():
    """The largest module of ZeRO-3 is the word table; FSDP's are the root unit and a layer; whole weights are not gathered."""
    layer = (FROZEN + TRAINED - ROOT) // 4
    expected = [
        ("zero3", {"method": "lora"}, 2 * 50_257 * 768),
        ("fsdp", {"method": "lora"}, 2 * (ROOT + layer)),
        ("fsdp", {"method": "lora", "base_sharded": False}, 2 * TRAINED // 4),
    ]
    for strategy, finetune, gathered in expected:
        memory = simulate(tree(strategy, {}, finetune=finetune)).measured.memory
        device = memory.devices[0]
        resident = sum(device.resident_bytes.values()) + device.at_peak["context"] + device.at_peak["communicators"]
        assert memory.at_save_bytes - resident == gathered


@pytest.mark.parametrize(
    "scenario",
    [
        tree({"strategy": "hsdp", "shard_size": 4}, ALL_OFF),
        tree("zero3", {"parameters": "cpu", "optimizer": "cpu", "activations": "cpu"}, finetune={"method": "qlora"}, context=2),
    ],
    ids=["hsdp", "zero3, context, checkpoints"],
)
def test_folded_equals_unfolded(scenario):
    folded, whole = simulate(scenario), simulate(scenario, unfolded=True)
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    assert folded.measured.memory.host == whole.measured.memory.host
    assert folded.peak_memory == whole.peak_memory


def test_layers_without_a_backward_pass_launch_nothing():
    """Frozen layers at the bottom: floors under four forwards, but under the backward of the two trained layers only."""
    none = dict.fromkeys(("per_layer_forward", "per_layer_backward", "per_collective", "per_kernel_forward", "per_kernel_backward"), 0)
    freeze = {"method": "freeze", "freeze": {"layers": 2}}
    software = {"host": none | {"per_layer_forward": "20 ms", "per_layer_backward": "40 ms"}}
    scenario = tree("zero3", {}, finetune=freeze, software=software, model={"base": "llama-7b", "layers": 4, "vocabulary": 32_000})
    trace = simulate(scenario, "training.recompute=none").measured.trace
    floors = [round(trace.end[op.index] - trace.start[op.index], 9) for op in trace.lane(0, "launch")]
    assert floors == 2 * ([0.02] * 4 + [0.04] * 2)


# -- counting ---------------------------------------------------------------------------------------------------------------


def test_what_conventions_count_of_lora():
    """6 N less 2 per frozen parameter, and less 2 more (with the attention's backward) below the first trained one: the tables."""
    tokens = 16 * 2 * 512
    tables = (50_257 + 1024) * 768
    for convention in ("palm", "llm-foundry", "6n"):
        attention = 0 if convention == "6n" else 12 * 4 * 768 * 512
        expected = (6 * (FROZEN + TRAINED) + attention - 2 * FROZEN - 2 * tables) * tokens
        report = simulate(tree("zero3", {}), f"report.flop_convention={convention}")
        assert report.measured.model.flop_per_step == pytest.approx(expected, rel=1e-12)
    whole = FROZEN + TRAINED - tables
    report = simulate(tree("zero3", {}), "report.flop_convention=6n-non-embedding")
    assert report.measured.model.flop_per_step == pytest.approx((6 * whole - 2 * (FROZEN - tables)) * tokens, rel=1e-12)


def test_masked_scores_count_in_full_where_there_is_a_backward():
    """Two frozen layers: exact-full saves their attention's backward in full, exact half of it, besides what both save."""
    freeze = {"method": "freeze", "freeze": {"layers": 2}}
    model = build(load(tree("zero3", {}, finetune=freeze))).model
    steps = [simulate(tree("zero3", {}, finetune=freeze), f"report.flop_convention={name}") for name in ("exact", "exact-full")]
    less = [
        flop_per_step(model, 512, 32, name) - step.measured.model.flop_per_step
        for name, step in zip(("exact", "exact-full"), steps, strict=True)
    ]
    assert less[1] - less[0] == pytest.approx(32 * 2 * 2 * 2 * 512**2 * 768, rel=1e-9)  # samples x layers x 2 backward x 2 s^2 h


def test_recomputation_repeats_a_forward_whatever_is_trained():
    lora = simulate(tree("zero3", {}), "report.flop_convention=llm-foundry").measured.model
    full = flop_per_step(build(load(tree("zero3", {}))).model, 512, 32, "llm-foundry")
    assert lora.hardware_flop_per_step - lora.flop_per_step == pytest.approx(full / 3, rel=0.01)


@pytest.mark.parametrize("convention", ["megatron", "megatron-lm"])
def test_closed_forms_of_full_training_are_refused(convention):
    with pytest.raises(InputError, match=r"counts full training.*use palm or exact"):
        simulate(tree("zero3", {}), f"report.flop_convention={convention}")


def test_a_training_has_one_length():
    with pytest.raises(InputError, match="leave out tokens, or examples and epochs"):
        simulate(tree("zero3", {}), "training.tokens=1G", "training.examples=1000")

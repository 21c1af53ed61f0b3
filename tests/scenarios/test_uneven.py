"""Samples of unequal length and a smaller last micro-batch: memory of the longest and largest, time of what there is."""

from __future__ import annotations

import pytest

from parsim.errors import InputError
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build


def gpt2(**changes):
    """GPT-2 on four A100, DDP, two micro-batches of four sequences of 1024 tokens."""
    training = {"sequence_length": 1024, "micro_batch": 4, "gradient_accumulation": 2, "dropout": 0.0}
    parallel = changes.pop("parallel", {"data": {"strategy": "ddp"}})
    training |= changes
    return {
        "model": "gpt2",
        "training": {key: value for key, value in training.items() if value is not None},
        "parallel": parallel,
        "cluster": {"topology": "dgx-a100-80gb", "gpus": 4},
    }


# -- mean length ------------------------------------------------------------------------------------------------------------


def test_the_longest_sample_decides_memory_and_the_mean_time():
    longest, mixed, short = (simulate(gpt2(**lengths)) for lengths in ({}, {"mean_sequence_length": 512}, {"sequence_length": 512}))
    assert mixed.peak_memory == longest.peak_memory > short.peak_memory
    assert mixed.step_time == pytest.approx(short.step_time, rel=1e-9)
    assert mixed.measured.model.tokens_per_step == 32 * 512
    assert mixed.tokens_per_s == pytest.approx(32 * 512 / mixed.step_time)
    assert mixed.mfu == pytest.approx(short.mfu, rel=1e-9)


def test_messages_are_as_long_as_the_mean():
    parallel = {"tensor": {"size": 2}, "pipeline": {"size": 2}}
    mixed = simulate(gpt2(parallel=parallel, mean_sequence_length=256))
    short = simulate(gpt2(parallel=parallel, sequence_length=256))
    carried = [[(row.kind, row.axis, row.bytes, row.count) for row in report.collectives] for report in (mixed, short)]
    assert carried[0] == carried[1]
    assert mixed.step_time == pytest.approx(short.step_time, rel=1e-9)


def test_checkpoints_travel_at_the_mean_and_take_the_longest():
    report = simulate(gpt2(mean_sequence_length=256, recompute="full", offload={"activations": "cpu"}))
    sent = sum(row.bytes * row.count for row in report.collectives if row.kind == "d2h")
    assert sent == 2 * 12 * 4 * 256 * 768 * 2  # micro-batches x layers x sequences x tokens x hidden x bytes
    assert report.measured.memory.host.bytes == 4 * 12 * 4 * 1024 * 768 * 2  # ranks x layers x ...


def test_a_mean_longer_than_the_longest_is_refused():
    with pytest.raises(InputError, match="longer than the longest sample, 1024"):
        simulate(gpt2(mean_sequence_length=2048))


def test_models_without_sequences_have_no_mean():
    tree = gpt2(sequence_length=None, mean_sequence_length=5) | {"model": "resnet50"}
    with pytest.raises(InputError, match="samples without sequences"):
        simulate(tree)


# -- a smaller last micro-batch -----------------------------------------------------------------------------------------------


def test_the_last_micro_batch_takes_what_is_left():
    # 28 samples / 4 replicas = 7 = 4 + 3
    tree = gpt2(global_batch=28, gradient_accumulation=None, partial_micro_batch=True)
    built = build(load(tree))
    assert (built.training.micro_batches, built.training.last_micro_batch) == (2, 3)
    assert built.batch_arithmetic.endswith("28 / 4 = 7 samples per replica = 1 x 4 + 3: 2")


@pytest.mark.parametrize("parallel", [{"data": {"strategy": "ddp"}}, {"data": {"strategy": "zero3"}}, {"pipeline": {"size": 2}}])
def test_the_time_is_that_of_the_micro_batches_there_are(parallel):
    """Compute of 4 + 3 samples = that of 4 and of 3 alone, by two other runs."""
    replicas = 2 if "pipeline" in parallel else 4
    mixed = simulate(gpt2(parallel=parallel, global_batch=7 * replicas, gradient_accumulation=None, partial_micro_batch=True, step=False))
    whole = simulate(gpt2(parallel=parallel, step=False))
    four, three = (simulate(gpt2(parallel=parallel, micro_batch=size, gradient_accumulation=1, step=False)) for size in (4, 3))
    stage = [sum(sum(times.values()) for times in report.measured.schedule.stage_time_s) for report in (four, three)]
    trace = mixed.measured.trace
    ops = [op for op in trace.program.ops if op.collective is None and op.name[0] in "FB" and op.name[1].isdigit()]
    ranks = len({op.lanes[0].rank for op in ops}) / parallel.get("pipeline", {}).get("size", 1)
    computed = sum(op.duration for op in ops) / ranks
    assert four.measured.schedule.stage_time_s == whole.measured.schedule.stage_time_s
    assert sum(stage) * (1 - 1e-9) <= computed < 1.1 * sum(stage)  # the rest is gradients that are added and copied to buckets
    assert whole.step_time > mixed.step_time > four.step_time


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_the_peak_is_that_of_the_largest_micro_batch(strategy):
    """Tensors at the peak are those of 4 samples, or those of 3 with the gradients that the first micro-batch left.

    With two whole micro-batches they are those of 4 with these gradients. What the allocator reserves for that lies between the two.
    """
    parallel = {"data": {"strategy": strategy}}
    mixed = simulate(gpt2(parallel=parallel, global_batch=28, gradient_accumulation=None, partial_micro_batch=True, step=False))
    whole = simulate(gpt2(parallel=parallel, step=False))
    four, three = (simulate(gpt2(parallel=parallel, micro_batch=size, gradient_accumulation=1, step=False)) for size in (4, 3))
    tensors = [report.measured.memory.devices[0].allocated_bytes for report in (mixed, whole, four, three)]
    accumulated = whole.measured.memory.devices[0].at_peak["gradients"]
    assert tensors[0] == max(tensors[2], tensors[3] + accumulated) == tensors[2]
    assert tensors[1] == pytest.approx(tensors[2] + accumulated, rel=2e-4)
    assert four.peak_memory <= mixed.peak_memory <= whole.peak_memory


def test_a_stage_holds_the_activations_of_what_is_in_flight():
    """The first of two stages holds both micro-batches: 4 + 3 samples instead of 4 + 4."""
    parallel = {"pipeline": {"size": 2}}
    mixed = simulate(gpt2(parallel=parallel, global_batch=14, gradient_accumulation=None, partial_micro_batch=True, step=False))
    whole = simulate(gpt2(parallel=parallel, step=False))
    four, three = (simulate(gpt2(parallel=parallel, micro_batch=size, gradient_accumulation=1, step=False)) for size in (4, 3))
    held = [report.measured.memory.devices[0].at_peak["activations"] for report in (mixed, whole, four, three)]
    assert held[0] == held[2] + held[3]
    assert held[1] == 2 * held[2]
    assert mixed.peak_memory == whole.peak_memory  # the last stage holds one micro-batch, at most the larger one


def test_whole_micro_batches_are_not_changed_by_the_permission():
    asked, plain = simulate(gpt2(partial_micro_batch=True)), simulate(gpt2())
    assert asked.step_time == plain.step_time
    assert asked.peak_memory == plain.peak_memory


def test_a_batch_below_one_micro_batch_is_one_smaller_one():
    mixed = simulate(gpt2(global_batch=12, gradient_accumulation=None, partial_micro_batch=True))
    small = simulate(gpt2(micro_batch=3, gradient_accumulation=1))
    assert mixed.step_time == pytest.approx(small.step_time, rel=1e-12)
    assert mixed.peak_memory == small.peak_memory


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"global_batch": 30, "gradient_accumulation": None}, "30 / 4 = 7.5 is not whole; use 28 or 32"),
        ({"global_batch": 28, "gradient_accumulation": 3}, "1 whole ones and one of 3"),
        ({"global_batch": 28, "gradient_accumulation": None, "partial_micro_batch": False}, "is not whole"),
        ({"global_batch": 28, "gradient_accumulation": None, "parallel": {"data": {"strategy": "torch-data-parallel"}}}, "equal parts"),
    ],
)
def test_what_does_not_divide_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        simulate(gpt2(**{"partial_micro_batch": True, **changes}))


def test_folded_equals_unfolded():
    tree = gpt2(
        parallel={"pipeline": {"size": 2}}, global_batch=14, gradient_accumulation=None, partial_micro_batch=True, mean_sequence_length=300
    )
    folded, whole = simulate(tree), simulate(tree, unfolded=True)
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    assert folded.peak_memory == whole.peak_memory

"""Offloading beside hybrid sharding, context parallelism and launch floors: what a rank's host holds, and when copies run."""

from __future__ import annotations

import pytest

from parsim.errors import InputError
from parsim.run import simulate

P = 67_736_832
"""four layers of GPT-2: 12 h^2 + 13 h each, h = 768; 50257 + 1024 rows of embeddings; the last norm"""
ROUNDED = 1e-4
"""tensors are whole blocks of 512 B, shares whole elements"""
EVERYTHING = {"parameters": "cpu", "gradients": "cpu", "optimizer": "cpu"}


def four_layers(data, offload, *, context=None, host=None, profile="auto", **training):
    """Four layers of GPT-2 on two nodes of eight A100, two micro-batches of one sequence of 512 tokens."""
    parallel = {"data": data} | ({"context": context} if context else {})
    return {
        "model": {"base": "gpt2", "layers": 4},
        "training": {"sequence_length": 512, "micro_batch": 1, "gradient_accumulation": 2, "offload": offload} | training,
        "parallel": parallel,
        "cluster": {"topology": "dgx-a100-80gb", "nodes": 2},
        "software": {"profile": profile} | ({"host": host} if host else {}),
    }


def ops(report, lane):
    """(start, end, name) of rank 0's ops of a lane."""
    trace = report.measured.trace
    return [(trace.start[op.index], trace.end[op.index], op.name) for op in trace.lane(0, lane)]


def moved(report, kind):
    return sum(row.bytes * row.count for row in report.collectives if row.kind == kind)


def test_the_model_has_so_many_parameters():
    assert P == 4 * (12 * 768**2 + 13 * 768) + (50_257 + 1024) * 768 + 2 * 768


# -- hybrid sharding --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hybrid():
    return simulate(four_layers({"strategy": "hsdp", "shard_size": 8}, EVERYTHING))


def test_a_shard_group_per_node_keeps_one_copy_in_each_host(hybrid):
    whole = simulate(four_layers({"strategy": "fsdp"}, EVERYTHING))
    assert hybrid.measured.memory.host.bytes == pytest.approx(18 * P, rel=ROUNDED)  # as many nodes, as many copies
    assert whole.measured.memory.host.bytes == pytest.approx(18 * P / 2, rel=ROUNDED)
    assert hybrid.measured.memory.devices[0].resident_bytes["optimizer"] == 0


def test_shares_leave_once_they_are_summed_over_the_groups(hybrid):
    summed = [row for row in ops(hybrid, "data replicas") if row[2].startswith("all_reduce")]
    left = ops(hybrid, "d2h")
    assert len(summed) == len(left) == 5  # four layers and the root unit, in the last micro-batch
    assert [row[2].split()[1] for row in summed] == [row[2].split()[1] for row in left]
    assert all(out[0] >= sums[1] for sums, out in zip(summed, left, strict=True))
    (step,) = ops(hybrid, "cpu_step")
    assert step[0] >= left[-1][1]
    assert moved(hybrid, "d2h") == pytest.approx(2 * P / 8, rel=ROUNDED)


def test_its_gathers_fetch_the_share_of_the_group(hybrid):
    # layers before forward and before backward, the root unit once per micro-batch
    layers = 4 * (12 * 768**2 + 13 * 768)
    assert moved(hybrid, "h2d") == pytest.approx(2 * 2 * (2 * layers + (P - layers)) / 8, rel=ROUNDED)
    assert {row.group_size for row in hybrid.collectives if row.kind == "all_gather"} == {8}


def test_it_is_refused_where_fsdp_is():
    with pytest.raises(InputError, match="moves parameters, gradients and the optimizer together"):
        simulate(four_layers({"strategy": "hsdp"}, {"optimizer": "cpu"}))


# -- context parallelism ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_states_are_spread_over_data_and_context(strategy):
    """Context ranks are replicas: the CPU of each of 16 ranks steps P / 16, as without context parallelism."""
    split = simulate(four_layers({"strategy": strategy}, {"optimizer": "cpu"}, context={"size": 2}))
    plain = simulate(four_layers({"strategy": strategy}, {"optimizer": "cpu"}))
    assert split.measured.memory.host.bytes == plain.measured.memory.host.bytes == pytest.approx(8 * 16 * P / 16, rel=ROUNDED)
    assert moved(split, "cpu_step") == moved(plain, "cpu_step") == pytest.approx(28 * P / 16, rel=ROUNDED)


def test_a_context_rank_keeps_its_part_of_a_checkpoint():
    tree = four_layers({"strategy": "zero2"}, {"activations": "cpu"}, context={"size": 2}, recompute="full")
    assert simulate(tree).measured.memory.host.at_peak == {"activations": 8 * 4 * 256 * 768 * 2}  # ranks x layers x tokens x ...


def test_auto_is_a_stack_that_offloads():
    report = simulate(four_layers({"strategy": "zero2"}, {"optimizer": "cpu"}, context={"size": 2}))
    profile = next(assumption for assumption in report.measured.assumptions if assumption.name == "software_profile")
    assert profile.value == "deepspeed"


def test_mean_length_with_context_ranks():
    """Blocks and messages are those of samples of mean length; it is divided like the longest."""
    context = {"size": 2, "method": "ring"}
    mixed = simulate(four_layers({"strategy": "zero2"}, {}, context=context, mean_sequence_length=256))
    short = simulate(four_layers({"strategy": "zero2"}, {}, context=context) | {"name": "short"}, "training.sequence_length=256")
    assert mixed.step_time == pytest.approx(short.step_time, rel=1e-9)
    assert moved(mixed, "sendrecv") == moved(short, "sendrecv")
    assert mixed.peak_memory > short.peak_memory
    with pytest.raises(InputError, match="use mean_sequence_length 252 or 256"):
        simulate(four_layers({"strategy": "zero2"}, {}, context=context, mean_sequence_length=254))


# -- the launch floor -------------------------------------------------------------------------------------------------------


def test_copies_do_not_hold_up_the_launches():
    """In each micro-batch 20 ms per layer forward, 20 ms again and 40 ms backward, as without offloading."""
    none = dict.fromkeys(("per_layer_forward", "per_layer_backward", "per_collective", "per_kernel_forward", "per_kernel_backward"), 0)
    host = none | {"per_layer_forward": "20 ms", "per_layer_backward": "40 ms"}
    offload = {"optimizer": "cpu", "parameters": "cpu", "activations": "cpu"}
    report = simulate(four_layers({"strategy": "zero3"}, offload, host=host, recompute="full"))
    launches = ops(report, "launch")
    assert [round(end - start, 9) for start, end, _ in launches] == 2 * ([0.02] * 4 + [0.02, 0.04] * 4)
    stays = simulate(four_layers({"strategy": "zero3"}, {}, host=host, recompute="full"))
    assert [round(end - start, 9) for start, end, _ in ops(stays, "launch")] == [round(end - start, 9) for start, end, _ in launches]


def test_transfers_of_weights_and_copies_are_not_launched_between_operators():
    """per_collective is for what stands between a block's operators: ZeRO-3's gathers and copies add nothing."""
    none = dict.fromkeys(("per_layer_forward", "per_layer_backward", "per_kernel_forward", "per_kernel_backward"), 0)
    for offload in ({}, {"optimizer": "cpu", "parameters": "cpu", "activations": "cpu"}):
        for strategy in ("zero3", "hsdp"):
            chosen = EVERYTHING if strategy == "hsdp" and offload else offload
            report = simulate(four_layers({"strategy": strategy}, chosen, host=none | {"per_collective": "10 ms"}, recompute="full"))
            assert ops(report, "launch") == []


# -- folding ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tree",
    [
        four_layers({"strategy": "hsdp", "shard_size": 4}, EVERYTHING),
        four_layers({"strategy": "hsdp", "shard_size": 8}, EVERYTHING, context={"size": 2}, host={"per_layer_forward": "1 ms"}),
        four_layers({"strategy": "zero3"}, {"optimizer": "cpu", "parameters": "cpu"}, context={"size": 2, "method": "ulysses"}),
    ],
    ids=["shard groups of half a node", "hsdp, context, launch floor", "zero3, ulysses"],
)
def test_folded_equals_unfolded(tree):
    folded, whole = simulate(tree), simulate(tree, unfolded=True)
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    assert folded.measured.memory.host == whole.measured.memory.host
    assert folded.peak_memory == whole.peak_memory

"""ZeRO++ (arXiv 2306.10209): bytes between machines, the second copy, kernels that quantise."""

from __future__ import annotations

from collections import Counter

import pytest
from jobs import job

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.parallel.fsdp import FullyShardedDataParallel
from parsim.parallel.zero_plus_plus import ZeroPlusPlus
from parsim.program.check import check
from parsim.scenario.build import build
from parsim.study.search.bounds import Bounder

LLAMA_8B, VECTORS = 8_030_261_248, 65 * 4096
ALL = {"quantised_weights": True, "quantised_gradients": True, "secondary_partition": 8}
SMALL = {"base": "llama-3-8b", "layers": 2, "hidden": 256, "heads": 8, "kv_heads": 4, "mlp": 512, "vocabulary": 1024}


def run_of(model="gpt2", data=16, **settings):
    switches = {"strategy": "zero3", "unit": "block", "local_ranks": 8 if settings.get("quantised_gradients") else 0, **settings}
    more = {"runtime": {"profile": "deepspeed"}, "data_settings": switches, "one_per_stage": True, "attention": "flash2"}
    return job(model, data=data, **more)


def between_machines(run, machine=8):
    """What a machine receives of others in a step, over 1 - 1/machines [B]: whole gathers and reductions, and its ranks' all-to-alls."""
    total = 0
    for op in run.collectives(0, "data"):
        group, size = op.collective.group, op.collective.bytes
        if size > 4 and max(group) - min(group) >= machine and "scales" not in op.name:
            total += machine * size if op.collective.kind == "all_to_all" else size
    return total


@pytest.mark.parametrize(
    ("settings", "units"),
    [
        ({}, 3),
        ({"quantised_weights": True}, 2),
        ({"secondary_partition": 8}, 2),
        ({"quantised_weights": True, "secondary_partition": 8}, 1.5),
    ],
)
def test_units_of_two_bytes_a_parameter(settings, units):
    """3 under ZeRO-3; int8 halves a gather, a second copy inside a machine saves one."""
    assert between_machines(run_of("llama-3-8b", **settings)) == units * 2 * LLAMA_8B


def test_all_three_parts_need_a_quarter():
    """48,181,567,488 B become 12,045,391,872 B and what 65 norms weigh more, which are reduced in 16 bits: 2 B instead of 0.5."""
    assert between_machines(run_of("llama-3-8b")) == 48_181_567_488
    assert between_machines(run_of("llama-3-8b", **ALL)) == 12_045_391_872 + 1.5 * VECTORS


def test_gradients_travel_inside_and_between():
    """0.5 B of every element among eight ranks of a machine, an eighth of that between rank 0's equals."""
    run = run_of(quantised_gradients=True)
    assert check(run.program) == []
    sent = Counter()
    for op in run.collectives(0, "data", "all_to_all"):
        if "scales" not in op.name:
            sent[op.collective.group] += op.collective.bytes
    whole = sum(w.count for w in run.plan.weights(run.plan.chunks[0]) if len(w.parameter.shape) > 1 and w.count % 32 == 0)
    assert sent == {tuple(range(8)): whole / 2, (0, 8): whole / 16}


def test_the_second_copy_takes_its_share():
    """2 P / g more; backward gathers among its g ranks only."""
    plain, second = run_of(), run_of(secondary_partition=4)
    kept = [
        sum(
            run.program.tensors[0][number].bytes for number in run.program.resident[0] if "optim" not in run.program.tensors[0][number].name
        )
        for run in (plain, second)
    ]
    assert kept[1] - kept[0] == pytest.approx(2 * 124_439_808 / 4, abs=100)
    groups = Counter(op.collective.group for op in second.collectives(0, "data", "all_gather"))
    assert groups == {tuple(range(16)): 14, (0, 1, 2, 3): 14}


def test_off_is_zero3():
    off, plain = (run_of(**settings) for settings in ({"secondary_partition": 1}, {}))
    assert type(plain.plan.sharding(plain.plan.chunks[0], "")) is FullyShardedDataParallel
    assert [(op.name, op.collective) for op in off.program.ops] == [(op.name, op.collective) for op in plain.program.ops]
    assert type(run_of(**ALL).plan.sharding(plain.plan.chunks[0], "")) is ZeroPlusPlus


def tree(*, nodes=2, **data):
    return {
        "model": SMALL,
        "cluster": {"topology": "hgx-h100", "nodes": nodes},
        "training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 2},
        "parallel": {"data": {"strategy": "zero3", **data}},
    }


@pytest.mark.parametrize("settings", [ALL, {**ALL, "quantised_weights": False, "secondary_partition": 2}])
def test_folded_is_unfolded_and_above_its_bounds(settings):
    folded, whole = (simulate(tree(**settings), unfolded=unfolded) for unfolded in (False, True))
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    built = build(load(tree(**settings)))
    bounder = Bounder()
    assert bounder.tight(built) <= bounder.chained(built) <= folded.step_time * (1 + 1e-9)


def test_a_machine_has_the_replicas_of_its_gpus():
    assert build(load(tree(quantised_gradients=True))).parallelism.data.local_ranks == 8
    half = tree(quantised_gradients=True) | {
        "parallel": {"tensor": {"size": 2}, "data": {"strategy": "zero3", "quantised_gradients": True}}
    }
    assert build(load(half)).parallelism.data.local_ranks == 4


@pytest.mark.parametrize(
    ("job_tree", "message"),
    [
        (tree(strategy="fsdp", quantised_weights=True), "ZeRO.. is DeepSpeed's ZeRO-3, and this is fsdp of pytorch-2"),
        (tree(secondary_partition=3), r"16 replicas \(data x context\) / 3 ranks of a secondary partition = 5.333 is not whole"),
        (tree(quantised_weights=True) | {"software": {"profile": "deepspeed-2021"}}, "ZeRO.. is DeepSpeed's ZeRO-3"),
    ],
)
def test_what_does_not_go_is_said(job_tree, message):
    with pytest.raises(ParsimError, match=message):
        simulate(job_tree)

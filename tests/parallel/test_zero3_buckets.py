"""Gradients of ZeRO-3 in buckets of elements, as DeepSpeed's stage3.py fills them; Megatron-LM's rule for many small weights."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import job

from parsim import simulate
from parsim.errors import ParsimError
from parsim.model.model import Parameter
from parsim.parallel.buckets import element_buckets, megatron_buckets
from parsim.parallel.hooks import Weight
from parsim.parallel.zero3_buckets import BucketedZero3
from parsim.program.check import check
from parsim.scenario.precision import PRESETS

GPT2 = 124_439_808


def run_of(cap, data=4, unit="elements", **more):
    settings = {"strategy": "zero3", **({"bucket": (cap, unit)} if cap else {}), "unit": "block"}
    return job("gpt2", data=data, data_settings=settings, runtime={"profile": "deepspeed"}, precision=PRESETS["bf16"], **more)


def sizes(run):
    """Elements of every reduction, in order."""
    return [op.collective.bytes // 2 for op in run.collectives(0, "data", "reduce_scatter")]


@pytest.mark.parametrize("cap", [5e8, 2e7, 7_087_872, 1e6])
def test_buckets_are_filled_weight_by_weight(cap):
    """A gradient that would overflow the bucket has it reduced first: the rule of stages 1 and 2, over the units of the backward."""
    run = run_of(cap)
    assert check(run.program) == []
    weights = [w for unit in run.plan.units(run.plan.chunks[0]) for w in unit.weights if w.trains]
    assert sizes(run) == [bucket.count for bucket in element_buckets(weights, cap)]
    assert sum(sizes(run)) == GPT2


def test_bytes_are_elements_of_the_wire():
    assert sizes(run_of(4e7, unit="bytes")) == sizes(run_of(2e7))


def test_a_bucket_is_reduced_while_backward_goes_on():
    run = run_of(2e7)
    first = next(op for op in run.program.ops if op.name == "reduce_scatter bucket 0 grads")
    assert run.trace.end[first.index] < run.end("B0 layer 0")


def test_its_buffer_stays():
    """Of its full size, however small the model; gradients leave their unit at once."""
    kept = [sum(run.program.tensors[0][n].bytes for n in run.program.resident[0]) for run in (run_of(None), run_of(5e8))]
    assert kept[1] - kept[0] == 2 * 5e8


def test_every_micro_batch_empties_it():
    run = run_of(5e8, micro_batches=3)
    assert check(run.program) == []
    assert sizes(run) == [GPT2] * 3


def test_without_one_units_are_reduced():
    plain = run_of(None)
    assert len(sizes(plain)) == 14
    assert type(plain.plan.sharding(plain.plan.chunks[0], "")) is not BucketedZero3


def tree(**data):
    return {
        "model": "gpt2",
        "cluster": {"topology": "hgx-h100"},
        "training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 2},
        "parallel": {"data": {"strategy": "zero3", "bucket": "2e7 elements", **data}},
    }


def test_folded_is_unfolded():
    folded, whole = (simulate(tree(), unfolded=unfolded) for unfolded in (False, True))
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)


def test_states_on_the_host_get_their_shares():
    report = simulate(tree(), "training.offload={optimizer: cpu}")
    assert report.step_time > simulate(tree()).step_time


def test_where_nothing_is_done_with_it_is_said():
    with pytest.raises(ParsimError, match="buckets of gradients under ZeRO-3 of deepspeed-2021"):
        simulate(tree(), "software.profile=deepspeed-2021")
    with pytest.raises(ParsimError, match=r"buckets of gradients under ZeRO\+\+"):
        simulate(tree(quantised_weights=True))


@given(st.sampled_from([(8, 201), (64, 126), (256, 32), (512, 16), (1024, 8)]))
def test_megatrons_buckets_of_eight_billion_small_weights(case):
    """max(40e6, 1e6 N) elements: 8.03e9 in weights of a million."""
    ranks, buckets = case
    weights = [Weight(f"w{i}", Parameter(f"w{i}", (1000, 1000)), 10**6, i) for i in range(8030)]
    found = megatron_buckets(weights, ranks)
    assert len(found) == buckets == math.ceil(8.03e9 / max(40e6, 1e6 * ranks))
    assert sum(bucket.count for bucket in found) == 8.03e9

"""Hybrid sharding (Zhao et al. 2023, arXiv 2304.11277 §3.2.2): FSDP inside shard groups, an all-reduce of each share across them."""

from __future__ import annotations

from collections import Counter

import pytest
from jobs import FP32, job, layers, measured

from parsim.errors import PlanError
from parsim.program.check import check
from parsim.report.timeline import Timeline, breakdown
from parsim.run import simulate

GPT2 = 124_439_808


def four_layers(gather, reduce, *, shard=2, data=4, **more):
    """Four layers of tF = 1, tB = 2 with 1000 fp32 parameters; gathers and reduce-scatters take `gather`, all-reduces `reduce` seconds."""
    wires = {("all_gather", "data"): gather, ("reduce_scatter", "data"): gather, ("all_reduce", "data"): reduce}
    settings = {"strategy": "hsdp", "shard_size": shard, **more}
    return job(layers(4), data=data, clock=measured, wires=wires, data_settings=settings, precision=FP32, step=False)


def moved(run, rank=0):
    return Counter((op.collective.kind, op.collective.group, op.collective.bytes) for op in run.collectives(rank, "data"))


def test_gathers_stay_inside_a_shard_group_and_shares_are_summed_across():
    """Eight replicas in groups of four: rank 5 gathers with 4-7 and sums its quarter with rank 1."""
    run = four_layers(0.5, 0.5, shard=4, data=8)
    whole, share = 4000, 1000
    assert moved(run, 5) == {
        ("all_gather", (4, 5, 6, 7), whole): 8,
        ("reduce_scatter", (4, 5, 6, 7), whole): 4,
        ("all_reduce", (1, 5), share): 4,
    }
    assert check(run.program) == []


@pytest.mark.parametrize(
    ("gather", "reduce", "end"), [(0.5, 0.0, 13.5), (0.5, 0.5, 14.0), (0.5, 2.0, 15.5), (0.5, 3.0, 19.5), (1.0, 1.0, 16.0)]
)
def test_all_reduces_hide_behind_backward(gather, reduce, end):
    """FSDP's 13.5 s (15 s with g = 1), then one all-reduce while r <= tB; else four of them from the first reduced unit on, at 6 + 3 g."""
    run = four_layers(gather, reduce)
    assert run.makespan == pytest.approx(end)
    assert breakdown(Timeline(run.trace), 0)["data_comm"] == pytest.approx(end - 12)


def test_one_shard_group_is_fsdp():
    one, plain = (job("gpt2", data=4, data_settings=settings) for settings in ({"strategy": "hsdp", "shard_size": 4}, {"strategy": "fsdp"}))
    assert [(op.name, op.collective) for op in one.program.ops] == [(op.name, op.collective) for op in plain.program.ops]


def test_states_are_divided_by_the_shard_group():
    """16 P / shard_size: half of them on each of two ranks, whatever the number of replicas."""
    for data, shard in ((4, 2), (8, 2), (8, 4)):
        run = job("gpt2", data=data, data_settings={"strategy": "hsdp", "shard_size": shard})
        resident = run.memory().resident
        assert resident["parameters"] + resident["optimizer"] == pytest.approx(14 * GPT2 / shard, rel=1e-3)


def test_gradients_are_reduced_once_unless_in_every_micro_batch():
    for accumulate, times in (("no_sync", 1), ("every", 3)):
        settings = {"strategy": "hsdp", "shard_size": 2, "accumulate": accumulate}
        run = job("gpt2", data=4, data_settings=settings, micro_batches=3)
        kinds = Counter(kind for kind, _, size in moved(run).elements() if size > 4)
        assert kinds["all_reduce"] == kinds["reduce_scatter"] == 13 * times


def test_context_ranks_are_replicas_too():
    run = job("gpt2", context=2, data=4, sequence_length=256, attention="flash2", data_settings={"strategy": "hsdp", "shard_size": 4})
    groups = {(kind, group) for kind, group, size in moved(run) if size > 4}
    assert groups == {("all_gather", (0, 1, 2, 3)), ("reduce_scatter", (0, 1, 2, 3)), ("all_reduce", (0, 4))}


def tree(**data):
    return {
        "model": "gpt2",
        "cluster": {"topology": "hgx-h100", "nodes": 2},
        "training": {"sequence_length": 1024, "micro_batch": 1, "gradient_accumulation": 1},
        "parallel": {"data": data},
    }


def test_a_shard_group_is_a_node_by_default():
    rows = {(row["kind"], row["group_size"]) for row in simulate(tree(strategy="hsdp")).document()["collectives"] if row["bytes"] > 4}
    assert rows == {("all_gather", 8), ("reduce_scatter", 8), ("all_reduce", 2)}
    half = tree(strategy="hsdp") | {"parallel": {"tensor": {"size": 2}, "data": {"strategy": "hsdp"}}}
    sizes = {row["group_size"] for row in simulate(half).document()["collectives"] if row["axis"] == "data" and row["kind"] == "all_gather"}
    assert sizes == {4}


def test_nodes_exchange_less_than_under_fsdp():
    """Over the network: 2 (n - 1)/n of a share of the gradients, instead of three times the whole model."""
    carried = []
    for strategy in ("hsdp", "fsdp"):
        links = simulate(tree(strategy=strategy)).document()["links"]
        carried.append(max(link["bytes"] for link in links if link["link"] == "gpu->pcie"))
    assert carried[0] < 0.5 * carried[1]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"strategy": "hsdp", "shard_size": 3}, "8 replicas (data x context) / shard_size 3 = 2.667 is not whole; use 2 or 4 or 8"),
        ({"strategy": "hsdp", "shard_size": 1}, "a shard group of 1 rank has no effect; use strategy ddp, or shard_size 2 or 4 or 8"),
        ({"strategy": "fsdp", "shard_size": 4}, "fsdp has no shard groups; leave it out, or use strategy hsdp"),
    ],
)
def test_groups_that_cannot_be(settings, text):
    with pytest.raises(PlanError) as caught:
        job("gpt2", data=8, data_settings=settings)
    (finding,) = caught.value.findings
    assert (finding.path, f"{finding.message}; {finding.suggestion}") == ("parallel.data.shard_size", text)

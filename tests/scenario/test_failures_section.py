"""Causes of failures, checkpoints, recovery and storage: what they resolve to, and what cannot be meant together."""

from __future__ import annotations

from typing import Any

import pytest

from parsim.errors import InputError
from parsim.report.economics import economics
from parsim.report.goodput import Failures
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.built import Built
from parsim.scenario.shortforms import published_failures

HOUR = 3600.0
LLAMA_70B = 68_976_648_192
"""parameters"""


def built(section: dict[str, Any], strategy: str = "hsdp", **cluster: Any) -> Built:
    """Llama 2 70B on four nodes of eight, one tensor-parallel replica in each; or its states sharded over all."""
    return build(load(tree(section, strategy, **cluster)))


def tree(section: dict[str, Any], strategy: str = "hsdp", **cluster: Any) -> dict[str, Any]:
    return {
        "model": "llama-2-70b",
        "cluster": {"topology": "hgx-h100", "nodes": 4, **cluster},
        "training": {"sequence_length": 4096, "micro_batch": 1, "gradient_accumulation": 1, "precision": "bf16"},
        "parallel": {"data": {"strategy": strategy}},
        "economics": section,
    }


def failures(job: Built) -> Failures:
    assert job.economics is not None
    found = economics(job.economics).failures
    assert found is not None
    return found


def test_the_published_causes_add_up() -> None:
    """419 in 54 days on 16,384 GPUs: one every 50,677 GPU-hours; 148 GPUs, 72 HBM ... (arXiv 2407.21783, table 5)."""
    causes = published_failures("llama-3")
    hours = [float(one["per_gpu"].removesuffix(" h")) for one in causes]
    assert sum(round(16_384 * 54 * 24 / one) for one in hours) == 419
    assert round(1 / sum(1 / one for one in hours), 1) == 50_677.0
    assert [round(16_384 * 54 * 24 / one) for one in hours[:5]] == [148, 72, 54, 35, 32]
    found = failures(built({"failures": "llama-3", "checkpoint": {"stall": "60 s"}}))
    assert found.mtbf == pytest.approx(50_677.0 * HOUR / 32, rel=1e-5)
    assert sum(share for share, _ in found.restarts) == pytest.approx(1)
    assert found.exchanged == pytest.approx(1 - (54 + 7 + 2) / 419)


def test_restarts_by_cause() -> None:
    """Nine of ten: 120 s; the tenth is a hang of 10 min and a restart of 20 min."""
    causes = [
        {"cause": "process", "per_gpu": "100 h", "restart_time": "120 s"},
        {"cause": "network", "per_gpu": "900 h", "detect": "hang", "restart_time": "20 min"},
    ]
    found = failures(built({"failures": causes, "checkpoint": {"stall": "1 s"}}))
    assert found.mtbf == pytest.approx(90 * HOUR / 32)
    assert [pytest.approx(one) for one in ((0.9, 120), (0.1, 1800))] == list(found.restarts)
    assert found.restart == pytest.approx(0.9 * 120 + 0.1 * 1800)


def test_checkpoints_in_the_background() -> None:
    """14 B per parameter; HSDP writes one replica of 8 GPUs, ZeRO-3 a share of each of 32; both at 20 GB/s to the host."""
    section = {"mtbf_per_gpu": "50_000 h", "checkpoint": {"mode": "async", "bandwidth": "10 GB/s"}}
    job = built(section)
    found = failures(job)
    assert found.checkpoint == pytest.approx(14 * LLAMA_70B / 8 / 20e9)
    assert found.lag == pytest.approx(14 * LLAMA_70B / 10e9)
    assert found.interval >= found.lag - found.checkpoint
    assert "120.7 GB" in {one.name: one.value for one in job.assumptions}["checkpoint_stall"] or "121 GB of each of 8" in str(
        job.assumptions
    )
    assert failures(built(section, "zero3")).checkpoint == pytest.approx(14 * LLAMA_70B / 32 / 20e9)
    assert failures(built({**section, "checkpoint": {"mode": "memory", "bandwidth": "10 GB/s"}})).in_memory == 1.0


@pytest.mark.parametrize(
    ("storage", "rate"),
    [
        ("100 GB/s", 100e9),
        ({"bandwidth": "100 GB/s", "per_node": "5 GB/s"}, 20e9),
        ({"bandwidth": "1 EB/s"}, None),
        ({"bandwidth": "100 GB/s", "latency": "2 s"}, 100e9),
    ],
)
def test_storage(storage: Any, rate: float | None) -> None:
    """Four machines write at the least of what the storage, they themselves and their NICs carry."""
    job = built({"mtbf_per_gpu": "50_000 h"}, storage=storage)
    fabric = job.cluster.fabric
    assert fabric is not None
    rate = 4 * 8 * fabric.link_kind.capacity if rate is None else rate
    assert failures(job).checkpoint == pytest.approx(14 * LLAMA_70B / rate + (2.0 if "latency" in storage else 0.0))


def test_storage_of_a_topology() -> None:
    """A topology file may name one; the scenario's keys go over it."""
    section = {"mtbf_per_gpu": "50_000 h"}
    assert failures(built(section, set={"storage": {"bandwidth": "50 GB/s"}})).checkpoint == pytest.approx(14 * LLAMA_70B / 50e9)
    slower = built(section, set={"storage": {"bandwidth": "50 GB/s"}}, storage={"per_node": "1 GB/s"})
    assert failures(slower).checkpoint == pytest.approx(14 * LLAMA_70B / 4e9)


def test_spares_are_paid_for() -> None:
    section = {"gpu_hour": 2, "mtbf_per_gpu": "50_000 h", "checkpoint_time": "60 s"}
    alone, spared = (built({**section, "recovery": {"spares": spares}}).economics for spares in (0, 2))
    assert alone is not None
    assert spared is not None
    assert (alone["billed_gpus"], spared["billed_gpus"]) == (32, 48)


STALL = {"stall": "60 s"}
GOOD = {"mtbf_per_gpu": "50_000 h", "checkpoint": STALL}
ONE = {"cause": "gpu", "per_gpu": "50_000 h"}


@pytest.mark.parametrize(
    ("section", "strategy", "said"),
    [
        ({**GOOD, "failures": [ONE]}, "hsdp", "economics.mtbf_per_gpu: failures are given twice"),
        ({"failures": [ONE, ONE], "checkpoint": {"stall": "60 s"}}, "hsdp", "economics.failures.1.cause: gpu is there twice"),
        ({"failures": [{**ONE, "per_gpu": "0 h"}], "checkpoint": STALL}, "hsdp", "economics.failures.0.per_gpu: must be greater"),
        ({**GOOD, "checkpoint": {"stall": "60 s", "lag": "60 s"}}, "hsdp", "economics.checkpoint.lag: a synchronous checkpoint"),
        ({**GOOD, "checkpoint": {"stall": "60 s", "bytes": "1 TB"}}, "hsdp", "economics.checkpoint.bytes: the time of a"),
        ({**GOOD, "recovery": {"policy": "hot_spare"}}, "hsdp", "economics.recovery.spares: hot_spare needs standby machines"),
        ({**GOOD, "recovery": {"policy": "replica"}}, "zero3", "economics.recovery.policy: zero3 shards states over all replicas"),
        (
            {"failures": [{**ONE, "recovery": "memory"}], "checkpoint": {"stall": "60 s"}}, "hsdp",
            "economics.failures.0.recovery: no copy in memory survives with checkpoint.mode sync",
        ),
        (
            {**GOOD, "checkpoint": {"mode": "async", "bandwidth": "1 GB/s", "interval": "10 s"}}, "hsdp",
            "economics.checkpoint.interval: a checkpoint is durable after",
        ),
        ({"horizon": "30 d"}, "hsdp", "economics.horizon: no training can be simulated: it needs economics.mtbf_per_gpu"),
        ({**GOOD, "horizon": "0 d"}, "hsdp", "economics.horizon: must be greater than 0"),
        ({**GOOD, "horizon": "10000 d", "checkpoint": {"stall": "1 s", "interval": "1 s"}}, "hsdp", "economics.horizon: about 1,7"),
        ({"failures": "llama-4", "checkpoint_time": "60 s"}, "hsdp", "economics.failures: unknown list of failures 'llama-4'"),
        ({"failures": [{"cause": "gpu"}]}, "hsdp", "economics.failures.0.per_gpu: required"),
        ({**GOOD, "checkpoint_time": "60 s"}, "hsdp", "economics.checkpoint_time: short and long form at once"),
    ],
)  # fmt: skip
def test_what_is_refused(section: dict[str, Any], strategy: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        built(section, strategy)
    assert any(
        str(finding).replace("  ", ": ").startswith(said) or said in f"{finding.path}: {finding.message}"
        for finding in caught.value.findings
    )


def test_all_contradictions_at_once() -> None:
    section = {
        **GOOD,
        "failures": [ONE, ONE],
        "checkpoint": {"stall": "60 s", "bandwidth": "1 GB/s", "lag": "1 s"},
        "recovery": {"policy": "hot_spare"},
    }
    with pytest.raises(InputError) as caught:
        built(section)
    assert {finding.path for finding in caught.value.findings} == {
        "economics.mtbf_per_gpu", "economics.checkpoint.bandwidth", "economics.checkpoint.lag", "economics.recovery.spares",
        "economics.failures.1.cause",
    }  # fmt: skip


def test_one_replica_cannot_go_on_without_itself() -> None:
    with pytest.raises(InputError, match="elastic continues with the other replicas, but there is only one"):
        simulate({"model": "gpt2", "cluster": "single-a100", "training": {"sequence_length": 128, "micro_batch": 1, "global_batch": 1},
                  "economics": {**GOOD, "recovery": {"policy": "elastic"}}})  # fmt: skip


@pytest.mark.parametrize(
    ("context", "shard_size", "replicas"),
    [
        (1, 8, 4),
        (4, 8, 4),  # a shard group is two data ranks with four context ranks each: 8 data ranks, 4 groups
        (4, 32, 1),
        (8, 2, 4),  # four shard groups to a sample: they stop together
    ],
)
def test_replicas_of_shard_groups_that_span_context_ranks(context: int, shard_size: int, replicas: int) -> None:
    job = tree({"mtbf_per_gpu": "50000 h", "checkpoint": {"mode": "async", "bandwidth": "1 GB/s"}})
    job["parallel"] = {"data": {"strategy": "hsdp", "shard_size": shard_size}, "context": {"size": context}}
    assert failures(build(load(job))).replicas == replicas


def test_a_shard_group_larger_than_the_job_is_refused() -> None:
    job = tree({"mtbf_per_gpu": "50000 h", "checkpoint": {"mode": "async", "bandwidth": "1 GB/s"}})
    job["parallel"]["data"]["shard_size"] = 64
    with pytest.raises(InputError, match="is not whole"):
        simulate(load(job))

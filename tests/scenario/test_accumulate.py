"""`parallel.data.accumulate: auto`: when each stack reduces the gradients of several micro-batches."""

from __future__ import annotations

import pytest

from parsim.errors import ScenarioError
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build

STACKS = ("pytorch-2", "deepspeed", "llm-foundry-2023", "megatron-2021", "megatron-2022", "megatron-core")
GIB = 2**30


def job(strategy, profile, *overrides):
    tree = {
        "model": "gpt2", "cluster": {"topology": "dgx-a100-80gb", "gpus": 4}, "software": {"profile": profile},
        "training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 4},
        "parallel": {"data": {"strategy": strategy}},
    }  # fmt: skip
    return load(tree, *overrides)


def rule(built):
    """What was chosen, and what says so."""
    records = [(a.value, a.origin) for a in built.assumptions if a.name == "gradient_reduction"]
    return built.parallelism.data.accumulate, records


@pytest.mark.parametrize("profile", STACKS)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp", "hsdp"])
def test_what_each_stack_does(strategy, profile):
    found, records = rule(build(job(strategy, profile)))
    waits = strategy in ("ddp", "zero1") and profile != "pytorch-2"
    assert found == ("no_sync" if waits else "every")
    assert [value for value, _ in records] == [found]
    assert records[0][1].startswith(f"catalogue/software/{profile}.yaml:")


def test_a_stage_of_torchs_pipeline_reduces_at_its_last_backward():
    pipeline = ("parallel.pipeline.size=2",)
    assert rule(build(job("fsdp", "pytorch-2", *pipeline)))[0] == "no_sync"
    assert rule(build(job("fsdp", "megatron-core", *pipeline)))[0] == "every"


def test_fsdp_with_cpu_offload_accumulates_inside_no_sync():
    offload = "training.offload={parameters: cpu, gradients: cpu, optimizer: cpu}"
    found, records = rule(build(job("fsdp", "pytorch-2", offload)))
    assert (found, records) == ("no_sync", [("no_sync", "training.offload.parameters")])


@pytest.mark.parametrize("change", ["training.gradient_accumulation=1", "cluster.gpus=1", "training.backward=false"])
def test_nothing_is_assumed_where_it_does_not_matter(change):
    assert rule(build(job("ddp", "pytorch-2", change)))[1] == []


@pytest.mark.parametrize("value", ["no_sync", "every"])
def test_what_is_stated_counts(value):
    for key in ("parallel.data.accumulate", "assumptions.gradient_reduction"):
        assert rule(build(job("fsdp", "pytorch-2", f"{key}={value}"))) == (value, [])
    stated, left = (simulate(job("ddp", "pytorch-2", *words)).step_time for words in ((f"parallel.data.accumulate={value}",), ()))
    assert (stated == left) == (value == "every")


def test_a_profile_of_ones_own(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("name: mine\naccumulate: {fsdp: no_sync, source: our trainer}\n")
    assert rule(build(job("fsdp", str(own))))[0] == "no_sync"
    assert rule(build(job("ddp", str(own)))) == ("no_sync", [])
    own.write_text("name: mine\naccumulate: {fsdp: sometimes}\n")
    with pytest.raises(ScenarioError, match=r"accumulate\.fsdp  'sometimes'"):
        build(job("fsdp", str(own)))


def test_llama_70b_under_fsdp_and_context_parallelism_fits_64_h100():
    """Whole 16-bit gradients of 70.55e9 parameters are 131 GiB on every GPU; they are kept only inside no_sync."""
    tree = {
        "model": "llama-3-70b", "cluster": {"topology": "hgx-h100", "nodes": 8},
        "training": {"sequence_length": 8192, "micro_batch": 1, "gradient_accumulation": 4, "recompute": "full"},
        "parallel": {"context": {"size": 2}, "data": {"strategy": "fsdp"}},
    }  # fmt: skip
    auto, waiting = simulate(load(tree)), simulate(load(tree, "parallel.data.accumulate=no_sync"))
    assert auto.fits
    assert not waiting.fits
    peaks = [report.document()["memory"]["peak_allocated_bytes"] for report in (auto, waiting)]
    assert peaks[0] < 38 * GIB
    assert peaks[1] - peaks[0] == pytest.approx(2 * 70.55e9, rel=0.05)

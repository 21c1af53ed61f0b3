"""What `parsim export` writes for another tool, `parsim import` reads back as the same job: every row of the tool's key table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from exports import LLAMA
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parsim.errors import InputError
from parsim.interop.formats import export, import_config
from parsim.interop.import_draft import Given
from parsim.interop.keys import key_table
from parsim.run import simulate
from parsim.scenario import Scenario, load
from parsim.scenario.build import build
from parsim.scenario.schema import is_key


@pytest.mark.parametrize(
    ("name", "tool", "given"),
    [
        ("gpt3-22b-8x-a100", "megatron", {}),
        ("llama-7b-zero2-8x-a100", "deepspeed", {"model": "llama-7b", "sequence_length": 2048}),
        ("llama-7b-zero3-8x-a100", "deepspeed", {"model": "llama-7b", "sequence_length": 2048}),
    ],
)
def test_there_and_back(name: str, tool: str, given: dict[str, Any]) -> None:
    scenario = load(name)
    text = export(scenario, tool).text
    imported = import_config(text, f"job.{tool}", Given(on="dgx-a100-80gb", **given))
    back = simulate(imported.tree)
    there = simulate(scenario)
    assert back.step_time == there.step_time
    assert back.peak_memory == there.peak_memory


MEGATRON: dict[str, Any] = {
    "model": {"family": "megatron-gpt", "layers": 8, "hidden": 1024, "heads": 16, "vocabulary": 51200, "maximum_sequence": 2048},
    "cluster": {"topology": "hgx-h100", "nodes": 2},
    "software": {"profile": "megatron-core"},
    "training": {
        "sequence_length": 2048, "micro_batch": 1, "global_batch": 64, "precision": "bf16-fp32grad", "optimizer": {"name": "adam"},
        "attention": "cudnn",
    },
    "parallel": {"tensor": {"size": 2}, "pipeline": {"size": 2}, "data": {"strategy": "zero1"}},
}  # fmt: skip
DEEPSPEED: dict[str, Any] = {
    **LLAMA,
    "software": {"profile": "deepspeed"},
    "training": {"sequence_length": 2048, "micro_batch": 2, "gradient_accumulation": 4, "precision": "bf16"},
    "parallel": {"data": {"strategy": "zero3"}},
}
FSDP: dict[str, Any] = {
    **LLAMA,
    "software": {"profile": "pytorch-2"},
    "training": {"sequence_length": 2048, "micro_batch": 2, "gradient_accumulation": 4, "precision": "amp-bf16"},
    "parallel": {"data": {"strategy": "fsdp", "accumulate": "no_sync"}},
}
TITAN: dict[str, Any] = {
    "name": "a Llama for torchtitan",
    "model": "llama-2-7b",
    "cluster": {"topology": "hgx-h100", "nodes": 2},
    "software": {"profile": "torchtitan"},
    "training": {"sequence_length": 2048, "micro_batch": 2, "global_batch": 128, "precision": "amp-bf16"},
    "parallel": {"data": {"strategy": "fsdp"}},
}
TITAN_STAGES = "parallel.pipeline={size: 2, split: [16,16]}"
BASES = {"megatron": MEGATRON, "deepspeed": DEEPSPEED, "accelerate": FSDP, "torchtitan": TITAN}
TARGETS = {
    "megatron": ("megatron", 2),
    "deepspeed": ("deepspeed", 2),
    "accelerate": ("fsdp", 2),
    "accelerate with FSDP1": ("fsdp", 1),
    "torchtitan": ("torchtitan", 2),
}
EXPERTS = "model.experts={{count: 8, top_k: 2, mlp: 2048, bias: true{}}}"
SPREAD = (EXPERTS.format(""), "parallel.tensor.sequence_parallel=true")
LATENT = "model={position: rotary, latent: {key_rank: 128, query_rank: 256, plain_dim: 64, rotary_dim: 32, value_dim: 64}}"
SPARSE = (
    "model={position: rotary, mlp_bias: false, output_bias: false, query_key_value_bias: false, latent: {key_rank: 128, query_rank: 256,"
    " plain_dim: 64, rotary_dim: 32, value_dim: 64, chosen: 256, index_heads: 8, index_dim: 64}}"
)
STATE = "{kind: gated-delta, heads: 8, key_heads: 4, key_dim: 64, value_dim: 32, convolution: 3}"
DELTA = f"model={{position: rotary, layer_pattern: MM*, mixer: {STATE}}}"
OWN_LAYERS = "parallel.pipeline.split=[3,5]"
FSDP2 = (
    "parallel.data={strategy: fsdp, reshard_after_forward: false}", "parallel.pipeline.size=1", "model.tied_embeddings=false",
    "software.gradient_accumulation_fusion=false",
)  # fmt: skip
ZERO1 = "parallel.data={strategy: zero1, bucket: 100000000 elements}"
MESH = ("parallel.data={strategy: hsdp, shard_size: 4}",)
CASES: dict[str, dict[str, tuple[str, ...]]] = {
    "megatron": {
        "model.layers": ("model.layers=16",),
        "model.hidden": ("model.hidden=2048",),
        "model.heads": ("model.heads=8",),
        "model.kv_heads": ("model.kv_heads=4",),
        "model.mlp": ("model.mlp=3072",),
        "model.head_dim": ("model.head_dim=128",),
        "model.activation": ("model={activation: silu, gated: true, fused_gate_up: true, mlp: 2752}",),
        "model.normalisation": ("model.normalisation=rmsnorm",),
        "model.position": ("model.position=none",),
        "model.rotary_fraction": ("model={position: rotary, rotary_fraction: 0.5}",),
        "model.maximum_sequence": ("model.maximum_sequence=4096",),
        "model.tied_embeddings": ("model.tied_embeddings=false",),
        "model.mlp_bias": ("model={mlp_bias: false, output_bias: false, query_key_value_bias: false}",),
        "model.query_key_value_bias": ("model={mlp_bias: false, output_bias: false, query_key_value_bias: true}",),
        "model.query_key_norm": ("model.query_key_norm=true",),
        "model.norm_offset": ("model={normalisation: rmsnorm, norm_offset: true}",),
        "model.vocabulary": ("model.vocabulary=32000",),
        "model.vocab_divisible_by": ("model={vocabulary: 50257, vocab_divisible_by: 64}",),
        "model.attention_window": ("model.attention_window=512",),
        "model.mtp": ("model={mtp: 2, tied_embeddings: false}",),
        "model.mtp_repeated": ("model={mtp: 2, mtp_repeated: true, tied_embeddings: false}",),
        "model.attention_sinks": ("model.attention_sinks=true",),
        "model.no_rotary_every": ("model={position: rotary, no_rotary_every: 4}",),
        "model.full_attention_every": ("model={attention_window: 512, full_attention_every: 4}",),
        "model.attention_dropout": ("model.attention_dropout=false", "training.dropout=0.1"),
        "model.experts.count": (EXPERTS.format(""),),
        "model.experts.top_k": (EXPERTS.format("").replace("top_k: 2", "top_k: 1"),),
        "model.experts.mlp": (EXPERTS.format("").replace("2048", "1024"),),
        "model.experts.shared": (EXPERTS.format(", shared: 1024"),),
        "model.experts.shared_gate": (EXPERTS.format(", shared: 1024, shared_gate: true"),),
        "model.experts.every": (EXPERTS.format(", every: 2"),),
        "model.experts.router_dtype": (EXPERTS.format(", router_dtype: fp32, dense_layers: 2"),),
        "model.experts.router_bias": (EXPERTS.format(", router_bias: true"),),
        "model.experts.renormalise": (EXPERTS.format(", renormalise: false"),),
        "model.experts.clamp": (EXPERTS.format(", clamp: true"),),
        "model.experts.groups": (EXPERTS.format(", groups: 4, groups_kept: 2"),),
        "model.experts.groups_kept": (EXPERTS.format(", groups: 2, groups_kept: 1"),),
        "model.latent": (LATENT,),
        **{f"model.latent.{name}": (LATENT,) for name in ("key_rank", "query_rank", "plain_dim", "rotary_dim", "value_dim")},
        **{f"model.latent.{name}": (SPARSE, "parallel.tensor.sequence_parallel=true") for name in ("chosen", "index_heads", "index_dim")},
        "model.attention_gate": ("model={attention_gate: true, position: rotary}",),
        **{f"model.mixer.{name}": (DELTA,) for name in ("kind", "heads", "key_heads", "key_dim", "value_dim", "convolution")},
        "model.layer_pattern.linear": (DELTA,),
        "training.sequence_length": ("training.sequence_length=1024",),
        "training.micro_batch": ("training.micro_batch=2",),
        "training.global_batch": ("training.global_batch=128",),
        "training.precision.bf16": ("training.precision=bf16-fp32grad",),
        "training.precision.fp16": ("training.precision=fp16",),
        "training.precision.fp8": ("training.precision=fp8",),
        "training.precision.fp4": ("training.precision=nvfp4", "cluster.topology=hgx-b200"),
        "training.precision.recipe": ("training.precision={preset: fp8, recipe: blockwise}",),
        "training.precision.gather": ("training.precision={preset: fp8, recipe: blockwise, gather: fp8}",),
        "training.precision.keep_layers": ("training.precision={preset: fp8, recipe: blockwise, keep_layers: 1}",),
        "training.precision.keep_layers.first": ("training.precision={preset: fp8, recipe: blockwise, keep_layers: [2, 1]}",),
        "training.precision.keep_layers.last": ("training.precision={preset: fp8, recipe: blockwise, keep_layers: [0, 1]}",),
        "training.precision.gradients.bf16": ("training.precision=bf16",),
        "training.precision.gradients.fp32": ("training.precision=fp16-fp32grad",),
        "training.precision.keep.head": ("training.precision={preset: fp8, keep: [embedding, router, norm, attention]}",),
        "training.precision.keep.attention": ("training.precision={preset: fp8, keep: [embedding, head, router, norm]}",),
        "training.optimizer.name": ("training.optimizer.name=lion",),
        "training.optimizer.momentum": ("training.optimizer.name=sgd",),
        "training.optimizer.clip_gradients": ("training.optimizer.clip_gradients=false",),
        "training.loss.kernel": ("training.loss.kernel=vocab-parallel-fused",),
        "training.loss.kernel.te": ("training.loss.kernel=te",),
        "training.dropout": ("training.dropout=0.2",),
        "training.attention": ("training.attention=flash2",),
        "training.recompute": ("training.recompute=full",),
        "training.recompute.method": ("training.recompute={blocks: 2}",),
        "training.recompute.layers": ("training.recompute={every: 2}",),
        "training.recompute.selective": (EXPERTS.format(", every: 2"), "training.recompute={selective: [attention, mlp, layernorm, moe]}"),
        "parallel.expert.size": (*SPREAD, "parallel.expert.size=4"),
        "parallel.expert.tensor": (*SPREAD, "parallel.expert={size: 2, tensor: 1}"),
        "parallel.expert.capacity_factor": (*SPREAD, "parallel.expert={size: 2, capacity_factor: 1.5}"),
        "parallel.expert.shared_overlap": (
            EXPERTS.format(", shared: 1024"),
            *SPREAD[1:],
            "parallel.expert={size: 2, shared_overlap: true}",
        ),
        "parallel.expert.batch_overlap": (
            *SPREAD,
            "parallel.expert={size: 2, batch_overlap: true}",
            "parallel.pipeline={schedule: interleaved, virtual_stages: 2}",
        ),
        "parallel.expert.fused_mlp": (
            *SPREAD,
            "cluster.topology=hgx-b200",
            "training.precision={preset: fp8, recipe: mxfp8}",
            "parallel.expert={size: 2, tensor: 1, fused_mlp: true}",
        ),
        "parallel.expert.permute_fusion": (*SPREAD, "parallel.expert={size: 2, permute_fusion: true}"),
        "parallel.expert.paged_stash": (
            *SPREAD,
            "cluster.topology=hgx-b200",
            "training.precision={preset: fp8, recipe: mxfp8}",
            "parallel.expert={size: 2, tensor: 1, dispatcher: hybridep, fused_mlp: true, paged_stash: true}",
        ),
        "parallel.expert.pad_to_capacity": (*SPREAD, "parallel.expert={size: 2, capacity_factor: 1.5, pad_to_capacity: true}"),
        "parallel.expert.dispatcher": (*SPREAD, "parallel.expert={size: 2, dispatcher: allgather}"),
        "parallel.expert.dispatcher.backend": (*SPREAD, "parallel.expert={size: 2, dispatcher: hybridep}"),
        "parallel.expert.dispatcher.deepep": (*SPREAD, "parallel.expert={size: 2, dispatcher: deepep}"),
        "parallel.expert.sms": (*SPREAD, "parallel.expert={size: 2, dispatcher: deepep, sms: 24}"),
        "parallel.tensor.size": ("parallel.tensor.size=4",),
        "parallel.tensor.sequence_parallel": ("parallel.tensor.sequence_parallel=true",),
        "parallel.tensor.overlap": ("parallel.tensor={sequence_parallel: true, overlap: full}",),
        "parallel.context.size": ("parallel.context={size: 2, method: ring}",),
        "parallel.context.method": ("parallel.context={size: 2, method: ulysses}",),
        "parallel.order": ("parallel.order=[tensor,context,pipeline,data]",),
        "parallel.pipeline.size": ("parallel.pipeline.size=4",),
        "parallel.pipeline.virtual_stages": ("parallel.pipeline={schedule: interleaved, virtual_stages: 2}",),
        "parallel.pipeline.split.first": (OWN_LAYERS,),
        "parallel.pipeline.split.last": (
            "model.layers=16",
            "parallel.pipeline={size: 4, split: [4,4,4,4]}",
            "parallel.pipeline.split=[5,4,4,3]",
        ),
        "parallel.pipeline.split": ("parallel.pipeline={size: 4, split: [1,3,2,2]}",),
        "parallel.pipeline.overlap_sends": ("parallel.pipeline={schedule: interleaved, virtual_stages: 2, overlap_sends: false}",),
        "parallel.data.strategy.zero1": ("parallel.data.strategy=zero1",),
        "parallel.data.strategy.fsdp": FSDP2,
        "parallel.data.reshard_after_forward": FSDP2,
        "parallel.data.overlap_reduce": ("parallel.data.overlap_reduce=true",),
        "parallel.data.overlap_gather": ("parallel.data.overlap_gather=true",),
        "training.optimizer.newton_schulz_steps": ("training.optimizer={name: muon, newton_schulz_steps: 6}",),
        "training.optimizer.tensor_mode": ("training.optimizer={name: muon, tensor_mode: duplicated}",),
        "training.optimizer.split_query_key_value": ("training.optimizer={name: muon, split_query_key_value: false}",),
        "training.optimizer.padded_parts": ("training.optimizer={name: muon, padded_parts: true}", "parallel.data.strategy=zero1"),
        "parallel.data.optimizer_instances": ("parallel.data={strategy: zero1, optimizer_instances: 2}",),
        "parallel.data.bucket": ("parallel.data.bucket=100000000 elements",),
        "software.gradient_accumulation_fusion": ("software.gradient_accumulation_fusion=false",),
        "software.host.graphs": ("software.host.graphs=true",),
    },
    "deepspeed": {
        "training.global_batch": ("training.gradient_accumulation=2",),
        "training.micro_batch": ("training.micro_batch=1",),
        "training.gradient_accumulation": ("training.gradient_accumulation=8",),
        "training.precision.bf16": ("training.precision=bf16",),
        "training.precision.fp16": ("training.precision=fp16",),
        "training.precision.autocast": ("training.precision=amp-bf16",),
        "training.precision.autocast.dtype": ("training.precision=amp-fp16",),
        "training.precision.master": ("training.precision=pure-bf16",),
        "training.precision.optimizer": ("training.precision=pure-bf16",),
        "training.precision.gradients": ("training.precision=bf16-fp32grad",),
        "training.precision.reduce": ("training.precision={preset: bf16, reduce: fp32}",),
        "training.optimizer.name": ("training.optimizer.name=adam",),
        "training.optimizer.implementation": ("training.optimizer.implementation=foreach",),
        "training.optimizer.clip_gradients": ("training.optimizer.clip_gradients=false",),
        "training.recompute": ("training.recompute={every: 2}",),
        "training.offload.activations": ("training.recompute=full", "training.offload.activations=cpu"),
        "training.offload.optimizer": ("training.offload.optimizer=cpu",),
        "training.offload.parameters": ("training.offload={optimizer: cpu, parameters: cpu}",),
        "parallel.data.strategy": (ZERO1,),
        "parallel.data.overlap_reduce": ("parallel.data.overlap_reduce=false",),
        "parallel.data.quantised_weights": ("parallel.data.quantised_weights=true",),
        "parallel.data.quantised_gradients": ("parallel.data.quantised_gradients=true",),
        "parallel.data.secondary_partition": ("parallel.data.secondary_partition=8",),
        "parallel.data.bucket": (ZERO1,),
        "parallel.data.bucket.gather": (ZERO1,),
        "parallel.data.prefetch": ("parallel.data.prefetch=2",),
        "parallel.data.limit_gathers": ("parallel.data.limit_gathers=3",),
        "parallel.data.reshard_after_forward": ("parallel.data.reshard_after_forward=false",),
        "parallel.data.shard_size": MESH,
        "parallel.tensor.size": ("parallel.tensor.size=2",),
        "parallel.tensor.overlap": ("parallel.tensor={size: 2, overlap: backward}",),
        "parallel.context.size": ("parallel.context={size: 2, method: ulysses}",),
    },
    "accelerate": {
        "cluster.nodes": ("cluster.nodes=4", "parallel.data.strategy=ddp"),
        "cluster.gpus": ("cluster={nodes: 1, gpus: 4}",),
        "training.precision": ("training.precision=amp-fp16",),
        "training.precision.recipe": ("training.precision={preset: fp8, recipe: tensorwise}", "cluster.topology=dgx-h100"),
        "parallel.data.reshard_after_forward": ("parallel.data.reshard_after_forward=false",),
        "parallel.data.fsdp_version": ("parallel.data.fsdp_version=2",),
        "parallel.data.unit": ("parallel.data.unit=model",),
        "parallel.data.unit.class": ("parallel.data.unit=layer",),
        "training.recompute.fsdp": ("training.recompute=full",),
        "training.offload.parameters": ("training.offload={parameters: cpu, gradients: cpu, optimizer: cpu}",),
        "parallel.tensor.size": ("parallel.tensor.size=2",),
        "parallel.context.size": ("parallel.context={size: 2, method: ring}",),
        "parallel.context.method": ("parallel.context={size: 2, method: all-gather}",),
        "parallel.data.size.copies": MESH,
        "parallel.data.size.shards": (*MESH, "parallel.context={size: 2, method: ring}"),
    },
    "accelerate with FSDP1": {
        "parallel.data.strategy": (
            "parallel.data={strategy: hsdp, shard_size: 8, reshard_after_forward: false}",
            "parallel.data.fsdp_version=1",
        ),
        "parallel.data.prefetch": ("parallel.data.prefetch=0", "parallel.data.fsdp_version=1"),
    },
    "torchtitan": {
        "training.sequence_length": ("training.sequence_length=4096",),
        "training.micro_batch": ("training.micro_batch=1",),
        "training.global_batch": ("training.global_batch=64",),
        "training.precision.half": ("training.precision=fp32",),
        "training.precision.stored": ("training.precision=pure-bf16",),
        "training.precision.recipe": ("training.precision={preset: amp-bf16, matmul: fp8, recipe: rowwise}",),
        "training.precision.gather": ("training.precision={preset: amp-bf16, matmul: fp8, recipe: tensorwise, gather: fp8}",),
        "training.precision.keep": ("training.precision={preset: amp-bf16, matmul: fp8, recipe: tensorwise}",),
        "training.optimizer.name": ("training.optimizer.name=adam",),
        "training.optimizer.implementation": ("training.optimizer.implementation=fused",),
        "training.optimizer.clip_gradients": ("training.optimizer.clip_gradients=false",),
        "training.offload": ("training.offload={parameters: cpu, gradients: cpu, optimizer: cpu}",),
        "training.recompute": ("training.recompute=full",),
        "training.recompute.selective": ("training.recompute={selective: [matmuls]}",),
        "parallel.data.copies": ("parallel.data={strategy: ddp}",),
        "parallel.data.shards": ("parallel.data={strategy: hsdp, shard_size: 8}",),
        "parallel.data.reshard_after_forward": ("parallel.data.reshard_after_forward=false",),
        "parallel.tensor.size": ("parallel.tensor={size: 2, sequence_parallel: true}",),
        "parallel.tensor.overlap": ("parallel.tensor={size: 2, sequence_parallel: true, overlap: async}", "software.fusion=compiled"),
        "parallel.context.size": ("parallel.context={size: 2, method: all-gather}",),
        "parallel.context.method": ("parallel.context={size: 4, method: ring}",),
        "parallel.pipeline.size": (TITAN_STAGES,),
        "parallel.pipeline.schedule": ("parallel.pipeline={size: 2, schedule: gpipe, split: [16,16]}",),
        "parallel.pipeline.micro_batch": (TITAN_STAGES, "training.micro_batch=4"),
        "parallel.pipeline.modules": ("parallel.pipeline={size: 2, schedule: interleaved, virtual_stages: 2, split: [8,8,8,8]}",),
        "parallel.expert.size": ("model=qwen3-30b-a3b", "parallel.expert={size: 4}"),
        "parallel.expert.tensor": (
            "model=qwen3-30b-a3b",
            "parallel.expert={size: 4, tensor: 2}",
            "parallel.tensor={size: 2, sequence_parallel: true}",
        ),
        "software.fusion": ("software.fusion=compiled",),
    },
}
"""tool -> row of its key table -> changes of the tool's base that say it"""
ONE_WAY = {
    "megatron": {
        "model.mtp_pattern": "hybrid models are read only",
        "training.tokens": "read only: an export counts iterations",
        "training.examples": "iterations are written for examples, and read as tokens",
        "training.offload.optimizer": "the Megatron profiles keep the optimizer on the device",
        "parallel.pipeline.scatter_sends": "an option of Megatron-LM of 2021 to 2023, which is read only",
    },
    "deepspeed": {"training.recompute.pipeline": "the stages are in the script, so that a JSON alone has no pipeline"},
    "accelerate": {
        "training.gradient_accumulation": "in the script, and read for DeepSpeed and Megatron-LM",
        "training.optimizer.clip_gradients": "in the script, and read for DeepSpeed and Megatron-LM",
        "software.fusion": "in the script",
        "parallel.data.unit.size": "read only: the simulator wraps layers",
        "parallel.data.limit_gathers": "read only: FSDP holds two gathered units",
        "parallel.data.strategy": "FSDP1's, below",
        "parallel.data.prefetch": "FSDP1's, below",
        "parallel.context.size.ulysses": "read only: no export says Ulysses",
    },
    "torchtitan": {
        "training.optimizer.fused": "read only: a key of 2024",
        "parallel.pipeline.csv": "read only: schedules of one's own are refused",
        "parallel.pipeline.virtual_stages": "read only: modules of the stages are written",
        "parallel.pipeline.micro_batches": "read only: a key of 2024",
        "parallel.pipeline.split": "read only: a key of 2025, before lists of modules",
    },
}
"""rows that go one way, and why"""


def written(scenario: Scenario, tool: str) -> str:
    target, version = TARGETS[tool]
    return export(scenario, target, fsdp_version=version).text


def imported(scenario: Scenario, tool: str, text: str = "") -> Scenario:
    """`scenario`, written for a tool (as `text`) and read again; what a tool's file does not say is given."""
    text = text or written(scenario, tool)
    said: dict[str, Any] = {"on": scenario.written["cluster"]["topology"]}
    if tool not in ("megatron", "torchtitan"):
        said |= {"model": "llama-2-7b", "sequence_length": 2048}
    if tool == "deepspeed":
        said["nodes"] = 2
    elif tool not in ("megatron", "torchtitan"):
        said |= {"micro_batch": 2, "gradient_accumulation": 4}
    return load(import_config(text, "f", Given(**said), tool=tool.partition(" ")[0]).tree)


def facts(scenario: Scenario) -> dict[str, Any]:
    """What is simulated: the job without the names that it is written with."""
    built = build(scenario)
    training = replace(built.training, precision=replace(built.training.precision, name=""))
    blocks = [[(p.name, p.count, p.shape) for p in block.parameters()] for block in built.model.blocks]
    return {"training": training, "parallel": built.parallelism, "runtime": built.runtime, "gpus": built.gpus, "blocks": blocks}


def test_every_row_of_a_key_table_goes_both_ways_or_says_why_not() -> None:
    for tool in ("megatron", "deepspeed", "accelerate", "torchtitan"):
        rows = list(key_table(tool).rows)
        assert [row for row in rows if row not in CASES[tool] and row not in ONE_WAY[tool]] == []
        assert [row for row in (*CASES[tool], *ONE_WAY[tool]) if row not in rows] == []
        longest = {row: max((row[:end] for end in range(len(row) + 1) if is_key(row[:end])), default="") for row in rows}
        assert all(longest.values()), "a row that begins with no key of a scenario"


def test_weights_in_mxfp8_alone_share_the_buffer_of_the_gradients() -> None:
    scenario = load(BASES["megatron"], "cluster.topology=hgx-b200", "training.precision={preset: fp8, recipe: mxfp8, gather: fp8}")
    text = written(scenario, "megatron")
    assert "--fp8-param-gather" in text
    assert "--reuse-grad-buf-for-mxfp8-param-ag" in text
    assert facts(imported(scenario, "megatron", text)) == facts(scenario)


@pytest.mark.parametrize(("tool", "row"), [(tool, row) for tool, cases in CASES.items() for row in cases])
def test_every_row_there_and_back(tool: str, row: str) -> None:
    scenario = load(BASES[tool.partition(" ")[0]], *CASES[tool][row])
    name = key_table(tool.partition(" ")[0]).rows[row].name.rpartition(".")[2]
    text = written(scenario, tool)
    assert (f"--{name.replace('_', '-')}" if tool == "megatron" else name) in text
    assert facts(imported(scenario, tool, text)) == facts(scenario)


def test_a_pattern_of_windows_goes_to_megatron_and_back() -> None:
    scenario = load(MEGATRON, "model={attention_window: 512, layer_pattern: '*WWW'}")
    text = written(scenario, "megatron")
    assert "--window-attn-skip-freq '([0]*1+[1]*3+[0]*1+[1]*3)'" in text.replace("\n", " ")
    assert imported(scenario, "megatron", text).written["model"]["layer_pattern"] == "*WWW"


@pytest.mark.parametrize("tool", CASES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_law_what_was_exported_is_imported_as_the_same_scenario(tool: str, data: st.DataObject) -> None:
    """Any rows together; jobs that cannot be, that the tool refuses, or of which it says that a key is lost, are left out."""
    chosen = data.draw(st.lists(st.sampled_from(list(CASES[tool])), min_size=2, max_size=5, unique=True))
    changes = {change.partition("=")[0]: change for row in chosen for change in CASES[tool][row]}
    try:
        scenario = load(BASES[tool.partition(" ")[0]], *changes.values())
        target, version = TARGETS[tool]
        first = export(scenario, target, fsdp_version=version)
    except InputError:
        assume(False)
    assume(not any(note.message.startswith("no counterpart") for note in first.notes))  # said to be lost
    parallel = build(scenario).parallelism
    replicas = parallel.data.size * parallel.context.size
    assume(parallel.data.strategy != "hsdp" or parallel.data.shard_size < replicas)  # one shard group is what fsdp says
    again = imported(scenario, tool)
    assert facts(again) == facts(scenario)
    second = export(again, target, fsdp_version=version).text
    assert without_comments(second) == without_comments(first.text)


TIMES = ("training.data_loading=1 ms", "training.mean_sequence_length=1024", "training.document_length=512")
LOST = {
    "megatron": (*TIMES, "parallel.data.prefetch=2", "parallel.data.limit_gathers=3", "parallel.data.first_bucket='2 MiB'"),
    "deepspeed": (*TIMES, "parallel.data.unit=block", "parallel.data.queues=separate", "training.loss.kernel=fused"),
    "accelerate": (*TIMES, "parallel.data.prefetch=2", "parallel.data.limit_gathers=3", "parallel.data.queues=separate"),
    "torchtitan": (*TIMES, "parallel.data.prefetch=2", "parallel.data.unit=block", "training.loss.hold_logits=true"),
}
"""tool -> changes of its base that it cannot say"""


@pytest.mark.parametrize("tool", LOST)
def test_what_is_lost_is_what_the_notes_name(tool: str) -> None:
    base = BASES[tool]
    target, version = TARGETS[tool]
    changed = load(base, *LOST[tool])
    result = export(changed, target, fsdp_version=version)
    noted = {note.path for note in result.notes if note.message.startswith("no counterpart")}
    assert noted == {change.partition("=")[0] for change in LOST[tool]}
    assert all(f"note: {path}: no counterpart" in result.text for path in noted if target != "deepspeed")  # JSON has no comments
    assert facts(imported(changed, tool, result.text)) == facts(load(base)) != facts(changed)


def without_comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("# ")]

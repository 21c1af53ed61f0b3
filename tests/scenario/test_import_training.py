"""Training configurations of other tools as scenarios: exact values, and that no key is dropped silently.

The expected values were worked out by hand from what the tools document (argument parsers of NVIDIA/Megatron-LM, DeepSpeed's
configuration JSON, accelerate's and transformers' arguments, hiyouga/LLaMA-Factory's hparams).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from training_samples import DATA, GIVEN, from_text, keys_of, of_kind, taken, values

from parsim.errors import ScenarioError
from parsim.interop.formats import TOOLS, import_config
from parsim.interop.import_draft import Given
from parsim.model.parameter_counts import parameter_count
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build

MEGATRON = {
    "training.optimizer.name": "adam", "model.family": "megatron-gpt", "software.profile": "megatron-core",
}  # fmt: skip
LLAMA = {
    "model.activation": "silu", "model.gated": True, "model.fused_gate_up": True, "model.normalisation": "rmsnorm",
    "model.query_key_value_bias": False, "model.output_bias": False, "model.mlp_bias": False, "model.tied_embeddings": False,
    "model.position": "rotary", "model.mlp": 14336, "model.hidden": 4096, "model.layers": 32, "model.heads": 32, "model.kv_heads": 8,
}  # fmt: skip
TRAINER = {"training.optimizer.name": "adamw", "training.optimizer.clip_gradients": True}
ARGUMENTS = {**TRAINER, "training.optimizer.implementation": "fused"}
DSA = "--experimental-attention-variant dsa --dsa-indexer-topk 2048 --dsa-indexer-head-dim 128"
EXPECTED: dict[str, dict[str, Any]] = {
    "megatron-gpt3-175b.sh": {
        **MEGATRON, "model.layers": 96, "model.hidden": 12288, "model.heads": 96, "model.maximum_sequence": 2048,
        "model.vocabulary": 50257, "cluster.topology": "dgx-a100-80gb", "cluster.nodes": 16, "cluster.gpus": 128,
        "training.sequence_length": 2048, "training.micro_batch": 1, "training.global_batch": 1536,
        "training.tokens": 500000 * 1536 * 2048, "training.precision": "fp16", "training.optimizer.clip_gradients": True,
        "training.dropout": 0.1, "parallel.tensor.size": 8, "parallel.pipeline.size": 16, "parallel.data.strategy": "ddp",
        "parallel.data.overlap_reduce": False,
    },
    "megatron-llama3-8b-fp8.sh": {
        **MEGATRON, **LLAMA, "model.head_dim": 128, "model.rotary_fraction": 1.0, "model.maximum_sequence": 8192,
        "model.vocabulary": 128256,
        "cluster.topology": "hgx-h100", "cluster.nodes": 1, "cluster.gpus": 8, "training.sequence_length": 8192,
        "training.micro_batch": 1, "training.global_batch": 128, "training.tokens": 1953125000 * 8192,
        "training.precision": {"preset": "fp8", "gradients": "bf16"}, "training.dropout": 0.0, "training.attention": "cudnn",
        "training.loss.kernel": "vocab-parallel-fused",
        "parallel.tensor.size": 2, "parallel.tensor.sequence_parallel": True, "parallel.context.size": 1, "parallel.data.strategy": "zero1",
        "parallel.data.overlap_reduce": True, "parallel.data.overlap_gather": True,
    },
    "megatron-sc21.sh": {
        **MEGATRON, "model.layers": 48, "model.hidden": 8192, "model.heads": 64, "model.maximum_sequence": 2048, "model.vocabulary": 50257,
        "cluster.topology": "dgx-a100-80gb", "cluster.nodes": 64, "cluster.gpus": 512, "training.sequence_length": 2048,
        "training.micro_batch": 4, "training.global_batch": 1536, "training.tokens": 500 * 1536 * 2048, "training.precision": "fp16",
        "training.dropout": 0.1, "training.recompute": "full", "parallel.tensor.size": 8, "parallel.tensor.overlap": "none",
        "parallel.pipeline.size": 2, "parallel.data.strategy": "ddp", "parallel.data.overlap_reduce": False,
        "software.profile": "megatron-2021",
    },
    "megatron-mixtral.txt": {
        **MEGATRON, **LLAMA, "model.maximum_sequence": 32768, "model.vocabulary": 32000, "model.experts.count": 8, "model.experts.top_k": 2,
        "cluster.topology": "dgx-a100-80gb", "cluster.nodes": 4, "training.sequence_length": 4096, "training.micro_batch": 1,
        "training.global_batch": 256, "training.tokens": 500000 * 256 * 4096, "training.precision": "bf16-fp32grad",
        "training.dropout": 0.0, "training.recompute": {"blocks": 2}, "parallel.tensor.size": 1, "parallel.pipeline.size": 4,
        "parallel.pipeline.schedule": "interleaved", "parallel.pipeline.virtual_stages": 2, "parallel.data.strategy": "zero1",
        "parallel.data.overlap_reduce": True, "parallel.data.overlap_gather": True, "parallel.expert.size": 8,
        "parallel.expert.dispatcher": "alltoall", "parallel.expert.permute_fusion": False,
    },
    "megatron-recipe.yaml": {
        **MEGATRON, **{key: value for key, value in LLAMA.items() if key != "model.mlp"}, "model.layers": 4, "model.hidden": 1024,
        "model.heads": 8, "model.kv_heads": 4, "model.head_dim": 64, "model.mlp": 2048, "model.query_key_norm": True,
        "model.maximum_sequence": 2048, "model.vocabulary": 32000, "model.experts.count": 8, "model.experts.top_k": 2,
        "model.experts.mlp": 256, "model.experts.dense_layers": 1, "model.experts.router_dtype": "fp32",
        "cluster.topology": "hgx-b200", "cluster.nodes": 2, "training.sequence_length": 2048, "training.micro_batch": 1,
        "training.global_batch": 64, "training.tokens": 50 * 64 * 2048, "training.precision": {"preset": "fp8", "recipe": "mxfp8"},
        "training.optimizer.clip_gradients": True, "training.dropout": 0.0, "training.loss.kernel": "te",
        "training.recompute": {"selective": ["moe_act", "layernorm"]}, "parallel.tensor.size": 2, "parallel.tensor.sequence_parallel": True,
        "parallel.pipeline.size": 2, "parallel.pipeline.schedule": "interleaved", "parallel.pipeline.virtual_stages": 2,
        "parallel.context.size": 1, "parallel.expert.size": 8, "parallel.expert.tensor": 1, "parallel.expert.batch_overlap": True,
        "parallel.expert.dispatcher": "hybridep", "parallel.expert.sms": 24, "parallel.data.strategy": "zero1",
        "parallel.data.overlap_reduce": True, "parallel.data.overlap_gather": True, "software.host.graphs": ["attention", "router"],
        "software.memory.allocator": "expandable",
    },
    "ds_z2.json": {
        **TRAINER, "model": "llama-2-7b", "cluster.topology": "dgx-a100-80gb", "cluster.nodes": 2, "training.sequence_length": 2048,
        "training.micro_batch": 8, "training.gradient_accumulation": 4, "training.global_batch": 512, "training.precision": "bf16",
        "parallel.data.strategy": "zero2", "parallel.data.overlap_reduce": True, "parallel.data.bucket": "200000000 elements",
        "software.profile": "deepspeed",
    },
    "ds_z3_offload.json": {
        **TRAINER, "model": "llama-2-7b", "cluster.topology": "dgx-a100-80gb", "training.sequence_length": 2048,
        "training.micro_batch": 2, "training.gradient_accumulation": 4, "training.precision": "FILL-IN",
        "training.offload.optimizer": "cpu",
        "training.offload.parameters": "cpu", "parallel.data.strategy": "zero3", "parallel.data.overlap_reduce": False,
        "parallel.data.prefetch": 1, "parallel.data.limit_gathers": 4, "software.profile": "deepspeed",
    },
    "accelerate-fsdp.yaml": {
        "model": "llama-2-7b", "cluster.topology": "dgx-a100-80gb", "cluster.nodes": 2, "cluster.gpus": 16,
        "training.sequence_length": 2048,
        "training.micro_batch": 2, "training.gradient_accumulation": 4, "training.precision": "amp-bf16", "training.recompute": "full",
        "training.optimizer.name": "adamw", "parallel.data.strategy": "fsdp", "parallel.data.reshard_after_forward": False,
        "parallel.data.unit": "layer", "parallel.data.prefetch": 1, "software.profile": "pytorch-2",
        "parallel.data.accumulate": "no_sync", "parallel.data.fsdp_version": 1,
    },
    "accelerate-hsdp.yaml": {
        "model": "llama-2-7b", "cluster.topology": "dgx-a100-80gb", "cluster.nodes": 1, "cluster.gpus": 8,
        "training.sequence_length": 2048,
        "training.micro_batch": 2, "training.gradient_accumulation": 4, "training.precision": "amp-bf16",
        "training.optimizer.name": "adamw", "parallel.data.strategy": "hsdp", "parallel.data.shard_size": 4,
        "parallel.data.reshard_after_forward": True, "parallel.data.unit": "layer", "parallel.tensor.size": 1, "parallel.context.size": 1,
        "software.profile": "pytorch-2",
        "parallel.data.accumulate": "no_sync", "parallel.data.fsdp_version": 2,
    },
    "accelerate-deepspeed.yaml": {
        **TRAINER, "model": "llama-2-7b", "cluster.topology": "dgx-a100-80gb", "cluster.nodes": 1, "cluster.gpus": 8,
        "training.sequence_length": 2048, "training.micro_batch": 2, "training.gradient_accumulation": 4, "training.precision": "bf16",
        "training.offload.optimizer": "none", "training.offload.parameters": "none", "parallel.data.strategy": "zero3",
        "parallel.data.overlap_reduce": True, "software.profile": "deepspeed",
    },
    "trainer-ddp.json": {
        "model": "openai-community/gpt2", "cluster.topology": "4x a100-80gb", "training.sequence_length": 1024, "training.micro_batch": 16,
        "training.gradient_accumulation": 2, "training.precision": "amp-bf16", "training.optimizer.name": "adamw",
        "training.optimizer.implementation": "fused", "training.optimizer.clip_gradients": False, "parallel.data.strategy": "ddp",
        "parallel.data.bucket": "50 MiB", "software.profile": "pytorch-2", "software.fusion": "compiled",
        "parallel.data.accumulate": "no_sync",
    },
    "trainer-run-clm.sh": {
        **ARGUMENTS, "model": "meta-llama/Llama-2-7b-hf", "cluster.topology": "dgx-a100-80gb", "cluster.nodes": 2, "cluster.gpus": 16,
        "cluster.collectives.algorithm": "ring", "training.sequence_length": 4096, "training.micro_batch": 1,
        "training.gradient_accumulation": 4, "training.precision": "amp-bf16", "training.recompute": "full", "training.attention": "flash2",
        "training.loss.kernel": "fused", "training.loss.chunks": 8, "parallel.data.strategy": "fsdp", "parallel.data.unit": "layer",
        "software.profile": "pytorch-2", "software.fusion": "fused", "software.memory.allocator": "expandable",
        "parallel.data.accumulate": "no_sync", "parallel.data.fsdp_version": 1,
    },
    "trainer-deepspeed.yaml": {
        **ARGUMENTS, "model": "meta-llama/Llama-2-13b-hf", "cluster.topology": "dgx-a100-80gb", "training.sequence_length": 2048,
        "training.micro_batch": 4, "training.gradient_accumulation": 8, "training.precision": "bf16", "training.recompute": "full",
        "training.optimizer.implementation": "foreach", "training.offload.optimizer": "cpu", "training.offload.parameters": "cpu",
        "parallel.data.strategy": "zero3", "parallel.data.overlap_reduce": False, "parallel.data.prefetch": 1,
        "parallel.data.limit_gathers": 3, "software.profile": "deepspeed",
    },
    "llama-factory-lora.yaml": {
        **ARGUMENTS, "model": "Qwen/Qwen3-4B", "cluster.topology": "1x rtx-4090", "training.sequence_length": 2048,
        "training.micro_batch": 1,
        "training.gradient_accumulation": 8, "training.precision": "amp-bf16", "training.recompute": "full",
        "training.finetune.method": "lora", "training.finetune.rank": 8, "training.finetune.targets": "all-linear",
        "parallel.data.strategy": "ddp", "software.profile": "pytorch-2",
        "parallel.data.accumulate": "no_sync",
    },
    "llama-factory-qlora.yaml": {
        **ARGUMENTS, "model": "meta-llama/Meta-Llama-3-8B-Instruct", "cluster.topology": "4x a100-80gb", "training.sequence_length": 1024,
        "training.micro_batch": 2, "training.gradient_accumulation": 4, "training.precision": "amp-bf16", "training.recompute": "full",
        "training.attention": "flash2", "training.finetune.method": "qlora", "training.finetune.rank": 16,
        "training.finetune.targets": ["q_proj", "v_proj"], "training.finetune.dropout": 0.05, "training.finetune.base": "nf4",
        "parallel.data.strategy": "ddp", "software.profile": "pytorch-2",
        "parallel.data.accumulate": "no_sync",
    },
    "llama-factory-full.yaml": {
        **ARGUMENTS, "model": "Qwen/Qwen2.5-7B", "cluster.topology": "dgx-a100-80gb", "training.sequence_length": 2048,
        "training.micro_batch": 2, "training.gradient_accumulation": 4, "training.precision": "bf16", "training.recompute": "full",
        "training.loss.kernel": "fused", "training.loss.chunks": 32, "training.offload.optimizer": "cpu",
        "training.offload.parameters": "cpu", "parallel.data.strategy": "zero3", "parallel.data.overlap_reduce": False,
        "parallel.data.prefetch": 1, "parallel.data.limit_gathers": 4, "software.profile": "deepspeed", "software.fusion": "fused",
    },
    "llama-factory-freeze.yaml": {
        **ARGUMENTS, "model": "meta-llama/Meta-Llama-3-8B", "cluster.topology": "8x a100-80gb", "training.sequence_length": 4096,
        "training.micro_batch": 1, "training.gradient_accumulation": 1, "training.precision": "pure-bf16",
        "training.finetune.method": "freeze", "training.finetune.freeze": {"layers": 24}, "parallel.data.strategy": "ddp",
        "software.profile": "pytorch-2",
    },
    "axolotl-qlora.yaml": {
        "model": "meta-llama/Meta-Llama-3-8B", "cluster.topology": "1x rtx-4090", "training.sequence_length": 4096,
        "training.micro_batch": 2, "training.gradient_accumulation": 4, "training.precision": "amp-bf16",
        "training.optimizer.name": "adam-8bit", "training.optimizer.clip_gradients": True, "training.recompute": "full",
        "training.attention": "flash2", "training.finetune.method": "qlora", "training.finetune.rank": 32,
        "training.finetune.targets": "all-linear", "training.finetune.dropout": 0.05, "training.finetune.base": "nf4-dq",
        "parallel.data.strategy": "ddp", "parallel.data.accumulate": "no_sync", "software.profile": "pytorch-2",
    },
    "axolotl-fsdp.yaml": {
        **TRAINER, "model": "meta-llama/Llama-2-7b-hf", "cluster.topology": "dgx-a100-80gb", "cluster.gpus": 8,
        "training.sequence_length": 2048, "training.micro_batch": 4, "training.gradient_accumulation": 2, "training.precision": "pure-bf16",
        "training.optimizer.implementation": "fused", "training.recompute": "full", "training.loss.kernel": "fused",
        "training.loss.chunks": 8, "parallel.data.strategy": "hsdp", "parallel.data.shard_size": 4,
        "parallel.data.reshard_after_forward": True, "parallel.data.fsdp_version": 2, "parallel.data.unit": "layer",
        "parallel.data.accumulate": "no_sync", "software.profile": "pytorch-2", "software.fusion": "fused",
    },
    "neox-6.9b.yaml": {
        "model.family": "megatron-gpt", "model.layers": 32, "model.hidden": 4096, "model.heads": 32, "model.mlp": 16384,
        "model.activation": "gelu", "model.position": "rotary", "model.rotary_fraction": 0.25, "model.normalisation": "layernorm",
        "model.parallel_residual": True, "model.maximum_sequence": 2048, "model.tied_embeddings": False, "model.vocabulary": 50277,
        "model.vocab_divisible_by": 128, "model.attention_dropout": False, "cluster.topology": "dgx-a100-40gb",
        "training.sequence_length": 2048, "training.micro_batch": 8, "training.gradient_accumulation": 2, "training.precision": "fp16",
        "training.optimizer.name": "adam", "training.optimizer.clip_gradients": True, "training.recompute": "full",
        "training.dropout": 0.0, "training.attention": "flash2", "parallel.data.strategy": "zero1", "parallel.data.overlap_reduce": True,
        "parallel.data.bucket": "500000000 elements", "parallel.tensor.size": 2, "parallel.pipeline.size": 2,
        "software.profile": "deepspeed",
    },
    "torchtitan-llama3.toml": {
        "model": "llama-3-8b", "cluster.topology": "hgx-h100", "cluster.nodes": 2, "training.sequence_length": 8192,
        "training.micro_batch": 2, "training.gradient_accumulation": 4,
        "training.precision": {"preset": "amp-bf16", "matmul": "fp8", "recipe": "rowwise"}, "training.optimizer.name": "adamw",
        "training.optimizer.implementation": "fused", "training.optimizer.clip_gradients": True,
        "training.recompute": {"selective": ["matmuls"]}, "parallel.data.strategy": "fsdp", "parallel.data.reshard_after_forward": False,
        "parallel.tensor.size": 2, "parallel.tensor.sequence_parallel": True, "parallel.tensor.overlap": "async",
        "parallel.context.size": 1, "parallel.pipeline.size": 4, "parallel.pipeline.schedule": "interleaved",
        "parallel.pipeline.split": [4, 5, 4, 4, 4, 4, 4, 3], "parallel.pipeline.virtual_stages": 2, "software.profile": "torchtitan",
        "software.fusion": "compiled",
    },
    "nemo-gpt.yaml": {
        **{key: value for key, value in LLAMA.items() if key != "model.mlp"}, "model.family": "megatron-gpt", "model.mlp": 11008,
        "model.maximum_sequence": 4096, "model.vocabulary": 32000, "cluster.topology": "dgx-a100-80gb", "cluster.nodes": 4,
        "cluster.gpus": 32, "training.sequence_length": 4096, "training.micro_batch": 1, "training.global_batch": 128,
        "training.tokens": 1000 * 128 * 4096, "training.precision": "bf16-fp32grad", "training.optimizer.name": "adam",
        "training.optimizer.clip_gradients": True, "training.dropout": 0.0, "training.recompute": {"selective": ["attention"]},
        "parallel.tensor.size": 4, "parallel.tensor.sequence_parallel": True, "parallel.tensor.overlap": "backward",
        "parallel.pipeline.size": 2, "parallel.pipeline.schedule": "interleaved", "parallel.pipeline.virtual_stages": 4,
        "parallel.data.strategy": "zero1", "parallel.data.overlap_reduce": True, "software.profile": "nemo",
        "software.gradient_accumulation_fusion": False,
    },
    "nemo-bridge.yaml": {
        "model.base": "llama-3-8b", "model.layers": 16, "cluster.topology": "hgx-h100", "training.sequence_length": 8192,
        "training.micro_batch": 1, "training.global_batch": 128, "training.tokens": 100 * 128 * 8192,
        "training.precision": "bf16-fp32grad", "training.optimizer.name": "adam", "training.optimizer.clip_gradients": True,
        "training.dropout": 0.0, "parallel.tensor.size": 2, "parallel.tensor.sequence_parallel": True,
        "parallel.tensor.overlap": "backward", "parallel.pipeline.size": 1, "parallel.context.size": 2, "parallel.data.strategy": "zero1",
        "parallel.data.overlap_reduce": True, "parallel.data.overlap_gather": True, "software.profile": "nemo",
    },
}  # fmt: skip
"""sample -> every value of the scenario"""
UNMODELLED = {
    "megatron-gpt3-175b.sh": ["--rampup-batch-size"],
    "megatron-llama3-8b-fp8.sh": ["--fp8-amax-history-len"],
    "megatron-sc21.sh": [],
    "megatron-mixtral.txt": ["--moe-grouped-gemm"],
    "ds_z2.json": ["zero_optimization.round_robin_gradients"],
    "ds_z3_offload.json": [
        "zero_optimization.reduce_bucket_size", "zero_optimization.stage3_param_persistence_threshold",
        "zero_optimization.stage3_max_reuse_distance", "zero_optimization.zero_quantized_weights",
    ],
    "trainer-ddp.json": ["group_by_length"],
    "trainer-run-clm.sh": ["export NCCL_IB_HCA"],
    "llama-factory-qlora.yaml": ["shift_attn"],
    "axolotl-qlora.yaml": ["sample_packing"],
    "megatron-recipe.yaml": ["CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_NVLS_ENABLE", "USE_MNNVL", "moe_grouped_gemm"],
    "neox-6.9b.yaml": ["bias_gelu_fusion"],
}  # fmt: skip
"""sample -> keys that are said not to be modelled"""
UNKNOWN = {"megatron-mixtral.txt": ["--my-own-switch"], "ds_z2.json": ["wall_clock_brakdown"]}


@pytest.mark.parametrize("sample", EXPECTED)
def test_every_value_of_a_sample(sample: str) -> None:
    assert values(taken(sample)) == EXPECTED[sample]


def test_every_sample_is_expected() -> None:
    assert sorted(EXPECTED) == sorted(GIVEN) == sorted(path.name for path in DATA.iterdir())


@pytest.mark.parametrize("sample", EXPECTED)
def test_what_is_not_modelled_and_what_is_unknown(sample: str) -> None:
    imported = taken(sample)
    assert of_kind(imported, "not modelled", sample) == UNMODELLED.get(sample, [])
    assert of_kind(imported, "unknown", sample) == UNKNOWN.get(sample, [])
    said = "\n".join(map(str, imported.warnings))
    for name in (*UNMODELLED.get(sample, []), *UNKNOWN.get(sample, [])):
        assert f"  {name}  " in said
        assert f"#   {name}" in imported.yaml


@pytest.mark.parametrize("sample", EXPECTED)
def test_every_key_ends_in_exactly_one_way(sample: str) -> None:
    fates = [fate for fate in taken(sample).fates if Path(fate.key.file).name == sample]
    found = [fate.key.written for fate in fates if fate.key.written not in ("-l", "-c", "-u")]
    assert sorted(found) == sorted(keys_of(sample))
    for fate in fates:
        assert (fate.kind == "translated") == bool(fate.to)
        assert fate.kind == "translated" or fate.why


@pytest.mark.parametrize("sample", ["trainer-deepspeed.yaml", "llama-factory-full.yaml"])
def test_keys_of_a_file_that_is_named_end_in_one_way_too(sample: str) -> None:
    fates = [fate for fate in taken(sample).fates if Path(fate.key.file).name == "ds_z3_offload.json"]
    assert sorted(fate.key.written for fate in fates) == sorted(keys_of("ds_z3_offload.json"))


@pytest.mark.parametrize("sample", EXPECTED)
def test_lines_and_comments_name_their_keys(sample: str) -> None:
    """Each translated key stands in a comment of the line it became, with its line in the source."""
    imported = taken(sample)
    for fate in imported.fates:
        if fate.kind == "translated":
            place = f"line {fate.key.line}" if Path(fate.key.file).name == sample else f"{Path(fate.key.file).name}:{fate.key.line}"
            assert re.search(rf"{re.escape(fate.key.written)}.*\({re.escape(place)}\)", imported.yaml), fate
    source = (DATA / sample).read_text(encoding="utf-8").splitlines()
    for fate in imported.fates:
        if fate.key.line and Path(fate.key.file).name == sample and not fate.key.written.startswith("export"):
            assert fate.key.written.rpartition(".")[2].removeprefix("#SBATCH ").split("=")[0] in source[fate.key.line - 1]


@pytest.mark.parametrize("sample", [name for name in EXPECTED if name != "ds_z3_offload.json"])
def test_the_scenario_can_be_built(sample: str, tmp_path: Path) -> None:
    imported = taken(sample)
    assert imported.to_fill == ()
    path = tmp_path / "imported.yaml"
    path.write_text(imported.yaml, encoding="utf-8")
    build(load(path))


def test_parameters_of_imported_architectures() -> None:
    """Second way: the catalogue's counts, which the makers' configurations give (Llama-3-8B, Mixtral-8x7B, Pythia-6.9B)."""
    for sample, parameters in (
        ("megatron-llama3-8b-fp8.sh", 8030261248),
        ("megatron-mixtral.txt", 46702792704),
        ("torchtitan-llama3.toml", 8030261248),
        ("neox-6.9b.yaml", 6857302016 - 2 * 4096 * (50432 - 50277)),  # Pythia 6.9B's config has the rows after padding
    ):
        assert parameter_count(build(load(taken(sample).tree)).model) == parameters


SAME = ("step_time_s", "memory", "collectives", "breakdown_s", "model", "ranks")
HAND_WRITTEN: dict[str, dict[str, Any]] = {
    "trainer-ddp.json": {
        "model": "gpt2", "cluster": "4x a100-80gb", "software": {"profile": "pytorch-2", "fusion": "compiled"},
        "training": {"sequence_length": 1024, "micro_batch": 16, "global_batch": 128, "precision": "amp-bf16",
                     "optimizer": {"name": "adamw", "implementation": "fused", "clip_gradients": False}},
        "parallel": {"data": {"bucket": "50 MiB", "accumulate": "no_sync"}},
    },
    "accelerate-deepspeed.yaml": {
        "model": "llama-2-7b", "cluster": "dgx-a100-80gb",
        "training": {"sequence_length": 2048, "micro_batch": 2, "gradient_accumulation": 4, "precision": "bf16"},
        "parallel": {"zero": 3},
    },
    "llama-factory-lora.yaml": {
        "model": "qwen3-4b", "cluster": "1x rtx-4090",
        "training": {"sequence_length": 2048, "micro_batch": 1, "gradient_accumulation": 8, "precision": "amp-bf16", "recompute": "full",
                     "optimizer": {"name": "adamw", "implementation": "fused"}, "finetune": {"method": "lora", "rank": 8}},
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("sample", HAND_WRITTEN)
def test_the_same_report_as_the_scenario_written_by_hand(sample: str) -> None:
    ours, theirs = simulate(HAND_WRITTEN[sample]).document(), simulate(taken(sample).tree).document()
    assert {key: ours[key] for key in SAME} == {key: theirs[key] for key in SAME}


@pytest.mark.slow
def test_the_same_report_as_a_megatron_scenario_written_by_hand() -> None:
    script = """
TP=2
MODEL=(--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024)
torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL[@]} --tokenizer-type GPT2BPETokenizer --bf16 --hidden-dropout 0 --attention-dropout 0 \\
    --tensor-model-parallel-size $TP --sequence-parallel --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 \\
    --micro-batch-size 2 --global-batch-size 32 --use-distributed-optimizer --overlap-grad-reduce --recompute-activations
"""
    by_hand = {
        "model": {"family": "megatron-gpt", "layers": 8, "hidden": 1024, "heads": 16, "vocabulary": 50257, "maximum_sequence": 1024},
        "cluster": "dgx-a100-80gb",
        "training": {"sequence_length": 1024, "micro_batch": 2, "global_batch": 32, "recompute": "selective", "dropout": 0,
                     "optimizer": "adam"},
        "parallel": {"tensor": {"size": 2, "sequence_parallel": True}, "data": {"strategy": "zero1"},
                     "pipeline": {"size": 2, "schedule": "interleaved", "virtual_stages": 2}},
        "software": {"profile": "megatron-core"},
    }  # fmt: skip
    ours, theirs = simulate(by_hand).document(), simulate(from_text(script, on="dgx-a100-80gb").tree).document()
    assert {key: ours[key] for key in SAME} == {key: theirs[key] for key in SAME}


# -- Megatron-LM


BASE = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4"


def megatron(options: str, **given: Any) -> dict[str, Any]:
    return values(from_text(f"{BASE} {options}", **given))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--bf16", {"training.precision": "bf16-fp32grad"}),
        ("--bf16 --grad-reduce-in-bf16", {"training.precision": "bf16"}),
        ("--bf16 --accumulate-allreduce-grads-in-fp32", {"training.precision": "bf16-fp32grad"}),
        ("--bf16 --main-grads-dtype bf16", {"training.precision": "bf16"}),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", {"training.precision": "fp16-fp32grad"}),
        ("--fp16 --grad-reduce-in-bf16 --exp-avg-dtype bf16", {"training.precision": "fp16"}),
        ("", {"training.precision": "fp32", "training.gradient_accumulation": 1}),
        ("--bf16 --fp8-format e4m3", {"training.precision": "fp8"}),
        ("--bf16 --fp8-format e4m3 --fp8-recipe tensorwise", {"training.precision": {"preset": "fp8", "recipe": "current"}}),
        ("--bf16 --fp8-format e4m3 --fp8-recipe custom", {"training.precision": "fp8"}),
        (
            "--bf16 --fp8-format e4m3 --fp8-recipe tensorwise --first-last-layers-bf16 --num-layers-at-end-in-bf16 3",
            {"training.precision": {"preset": "fp8", "recipe": "current", "keep_layers": [1, 3]}},
        ),
        ("--bf16 --first-last-layers-bf16", {"training.precision": "bf16-fp32grad"}),
        ("--bf16 --fp4-format e2m1", {"training.precision": {"preset": "fp8", "recipe": "nvfp4"}}),
        (
            "--bf16 --fp4-format e2m1 --fp4-recipe nvfp4 --grad-reduce-in-bf16",
            {"training.precision": {"preset": "fp8", "gradients": "bf16", "recipe": "nvfp4"}},
        ),
        (
            "--bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            {"training.precision": {"preset": "bf16-fp32grad", "master": "bf16", "optimizer": "bf16"}},
        ),
        (
            "--bf16 --fp8-format e4m3 --fp8-recipe blockwise --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            {"training.precision": {"preset": "fp8", "recipe": "blockwise", "optimizer": "bf16"}},
        ),
        (
            "--bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --main-params-dtype fp16",
            {"training.precision": {"preset": "bf16-fp32grad", "master": "fp16", "optimizer": "bf16"}},
        ),
        ("--recompute-activations", {"training.recompute": {"selective": ["attention"]}}),
        ("--moe-layer-recompute", {"training.recompute": {"selective": ["moe"]}}),
        (
            "--recompute-granularity selective --recompute-modules moe_act layernorm mla_up_proj",
            {"training.recompute": {"selective": ["moe_act", "layernorm", "mla_up_proj"]}},
        ),
        (
            "--recompute-granularity selective --recompute-modules core_attn mlp",
            {"training.recompute": {"selective": ["attention", "mlp"]}},
        ),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", {"training.recompute": "full"}),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4", {"training.recompute": {"every": 4}}),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 4", {"training.recompute": {"blocks": 4}}),
        ("--checkpoint-activations", {"training.recompute": "full", "software.profile": "megatron-2021"}),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2", {"parallel.pipeline.virtual_stages": 3}),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2", {"parallel.pipeline.schedule": "interleaved"}),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 3", {"parallel.pipeline.split": [3, 7, 7, 7]}),
        (
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 3",
            {"parallel.pipeline.split": [5, 8, 8, 3]},
        ),
        (
            "--pipeline-model-parallel-size 13 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            {"parallel.pipeline.split": [1, *[2] * 11, 1]},
        ),
        ("--no-overlap-p2p-communication", {"parallel.pipeline.overlap_sends": False}),
        ("--DDP-impl torch", {"parallel.data.overlap_reduce": True, "parallel.data.bucket": "25 MiB", "software.profile": "megatron-2021"}),
        ("--use-tp-pp-dp-mapping", {"parallel.order": ["tensor", "context", "pipeline", "data"]}),
        ("--context-parallel-size 2 --cp-comm-type a2a", {"parallel.context.method": "ulysses"}),
        (
            "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap",
            {"parallel.tensor.sequence_parallel": True, "parallel.tensor.overlap": "full"},
        ),
        ("--tensor-model-parallel-size 2 --no-async-tensor-model-parallel-allreduce", {"parallel.tensor.overlap": "none"}),
        ("--swiglu", {"model.mlp": 2688}),  # 8/3 x 1024 = 2730, a multiple of 64
        ("--swiglu --ffn-hidden-size 4096", {"model.mlp": 4096}),
        ("--vocab-size 50257", {"model.vocabulary": 50257}),
        ("--padded-vocab-size 50304", {"model.vocabulary": 50304}),
        ("--padded-vocab-size 50257", {"model.vocabulary": 50257, "model.vocab_divisible_by": 1}),
        ("--vocab-size 50257 --tensor-model-parallel-size 2", {"model.vocabulary": 50257}),
        ("--vocab-size 50257 --make-vocab-size-divisible-by 1000", {"model.vocabulary": 50257, "model.vocab_divisible_by": 1000}),
        ("--tokenizer-type NullTokenizer", {"model.vocabulary": "FILL-IN"}),
        ("--use-flash-attn --bf16", {"training.attention": "flash2"}),
        ("--use-flash-attn", {"training.attention": "eager", "training.precision": "fp32"}),
        ("--attention-backend unfused", {"training.attention": "eager"}),
        ("--optimizer sgd --clip-grad 0.0", {"training.optimizer.name": "momentum", "training.optimizer.clip_gradients": False}),
        (
            "--optimizer muon --muon-num-ns-steps 6 --muon-tp-mode duplicated --muon-no-split-qkv --use-layer-wise-param-layout",
            {
                "training.optimizer.name": "muon",
                "training.optimizer.newton_schulz_steps": 6,
                "training.optimizer.tensor_mode": "duplicated",
                "training.optimizer.split_query_key_value": False,
                "training.optimizer.padded_parts": True,
            },
        ),
        ("--optimizer muon --use-distributed-optimizer --muon-momentum 0.9", {"parallel.data.strategy": "zero1"}),
        ("--optimizer dist_muon", {"training.optimizer.name": "muon", "parallel.data.strategy": "zero1"}),
        (
            "--optimizer soap --use-layer-wise-param-layout --muon-num-ns-steps 6",
            {"training.optimizer.name": "soap", "training.optimizer.padded_parts": True},
        ),
        ("--optimizer adam --muon-num-ns-steps 6", {"training.optimizer.name": "adam"}),
        ("--hidden-dropout 0.1 --attention-dropout 0", {"training.dropout": 0.1, "model.attention_dropout": False}),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", {"parallel.data.reshard_after_forward": False}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"parallel.data.strategy": "zero2"}),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 2", {"parallel.data.optimizer_instances": 2}),
        ("--ddp-bucket-size 1000000", {"parallel.data.bucket": "1000000 elements"}),
        ("--no-gradient-accumulation-fusion", {"software.gradient_accumulation_fusion": False}),
        ("--enable-cuda-graph", {"software.host.graphs": True}),
        ("--enable-cuda-graph --cuda-graph-scope attn moe_router moe_preprocess", {"software.host.graphs": ["attention", "router"]}),
        ("--enable-cuda-graph --cuda-graph-scope mamba attn", {"software.host.graphs": ["mamba", "attention"]}),
        ("--enable-cuda-graph --cuda-graph-scope moe", {"software.host.graphs": ["router", "experts"]}),
        ("--enable-cuda-graph --cuda-graph-scope moe_preprocess", {"software.host.graphs": False}),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", {"software.host.graphs": True}),
        ("--global-batch-size 64 --train-iters 10", {"training.tokens": 10 * 64 * 1024, "training.global_batch": 64}),
        (
            "--num-experts 64 --moe-layer-freq '([0]*1+[1]*23)' --moe-ffn-hidden-size 512",
            {"model.experts.dense_layers": 1, "model.experts.mlp": 512},
        ),
        ("--num-experts 8 --moe-layer-freq 2", {"model.experts.every": 2, "model.experts.top_k": 2}),
        (
            f"--multi-latent-attention --q-lora-rank 192 {DSA} --dsa-indexer-n-heads 64 --dsa-kernel-backend cudnn",
            {"model.latent.chosen": 2048, "model.latent.index_heads": 64, "model.latent.index_dim": 128},
        ),
        ("--multi-latent-attention --dsa-indexer-topk 2048", {"model.latent.value_dim": 128}),
        ("--multi-latent-attention --kv-lora-rank 512", {"model.latent.key_rank": 512, "model.latent.value_dim": 128}),
    ],
)
def test_an_option_of_megatron(options: str, expected: dict[str, Any]) -> None:
    assert expected.items() <= megatron(options).items()


def test_megatron_arithmetic_that_does_not_come_out() -> None:
    with pytest.raises(
        ScenarioError, match=r"args:1  --num-layers-per-virtual-pipeline-stage  24 layers / \(4 stages x 5 layers per chunk\) = 1.2"
    ):
        from_text(f"{BASE} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5", file="args")


def test_all_wrong_values_at_once_with_their_lines() -> None:
    text = "torchrun pretrain_gpt.py \\\n --num-layers many \\\n --hidden-size 1.5 \\\n --num-attention-heads $HEADS --seq-length 8"
    with pytest.raises(ScenarioError) as raised:
        from_text(text, file="run.sh")
    assert [str(finding) for finding in raised.value.findings] == [
        "run.sh:2  --num-layers  'many' is not a number; write a number",
        "run.sh:3  --hidden-size  1.5 is not a whole number from 1",
        "run.sh:4  --num-attention-heads  it has no value; set it: --set HEADS=VALUE",
    ]


def test_variables_that_the_user_sets_win() -> None:
    text = "NODES=1\nSIZE=${1:-small}\ntorchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --save $SIZE"
    imported = from_text(text, variables={"NODES": "4", "LAYERS": "12", "1": "big"})
    assert values(imported)["cluster.nodes"] == 4
    assert values(imported)["cluster.gpus"] == 32
    assert values(imported)["model.layers"] == 12
    assert "--save big" in imported.yaml


def test_the_users_machine_wins_over_the_launchers() -> None:
    text = f"torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py {BASE} --pipeline-model-parallel-size 16"
    found = values(from_text(text, on="dgx-a100-80gb", nodes=2))
    assert (found["cluster.nodes"], found["cluster.gpus"]) == (2, 16)


def test_how_many_machines_may_be_open() -> None:
    text = f"torchrun --nnodes $NNODES --nproc_per_node 8 pretrain_gpt.py {BASE}"
    imported = from_text(text, on="dgx-a100-80gb")
    assert (values(imported)["cluster.nodes"], imported.to_fill) == ("FILL-IN", ("cluster.nodes",))
    assert "set it: --set NNODES=VALUE" in imported.yaml
    assert values(from_text(text, on="dgx-a100-80gb", nodes=4))["cluster.gpus"] == 32
    assert values(from_text(text, on="dgx-a100-80gb", variables={"NNODES": "2"}))["cluster.gpus"] == 16


EXPERTS = f"{BASE} --num-experts 8 --expert-model-parallel-size"


def test_experts_and_the_ranks_that_share_them() -> None:
    assert megatron("--num-experts 8 --expert-model-parallel-size 1")["parallel.expert.size"] == 1
    found = megatron("--num-experts 8 --expert-model-parallel-size 4 --expert-tensor-parallel-size 2")
    assert (found["parallel.expert.size"], found["parallel.expert.tensor"]) == (4, 2)
    assert "parallel.expert.tensor" not in megatron("--num-experts 8 --expert-model-parallel-size 4")


@pytest.mark.parametrize(
    ("options", "dispatcher"),
    [
        ("4 --moe-token-dispatcher-type alltoall", "alltoall"),
        ("4 --moe-token-dispatcher-type allgather", "allgather"),
        ("4 --moe-token-dispatcher-type flex --moe-enable-deepep --moe-deepep-num-sms 24", "deepep"),
        ("4 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "hybridep"),
        ("4", "allgather"),
        ("1 --moe-token-dispatcher-type alltoall --moe-deepep-num-sms 24", None),
    ],
)
def test_dispatchers(options: str, dispatcher: str | None) -> None:
    imported = from_text(f"{EXPERTS} {options}", on="dgx-a100-80gb")
    found = values(imported)
    assert found.get("parallel.expert.dispatcher") == dispatcher
    assert found.get("parallel.expert.sms") == (24 if dispatcher == "deepep" else None)
    assert not [fate for fate in imported.fates if fate.kind in ("not modelled", "unknown")]


@pytest.mark.parametrize("options", ["alltoall_seq", "flex --moe-flex-dispatcher-backend ncclep"])
def test_dispatchers_that_are_not_modelled(options: str) -> None:
    imported = from_text(f"{EXPERTS} 4 --moe-token-dispatcher-type {options}", on="dgx-a100-80gb")
    assert [fate.key.written for fate in imported.fates if fate.kind == "not modelled"] == ["--moe-token-dispatcher-type"]


def test_a_model_of_the_user_replaces_all_sizes() -> None:
    imported = from_text(f"{BASE} --swiglu", model="gpt2")
    assert imported.tree["model"] == "gpt2"
    assert {fate.why for fate in imported.fates if fate.key.written in ("--num-layers", "--swiglu")} == {"replaced by --model gpt2"}


# -- DeepSpeed


def deepspeed(tree: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    return values(from_text(json.dumps(tree), "deepspeed", **given))


def zero(stage: int, **keys: Any) -> dict[str, Any]:
    return {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage, **keys}}


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, {"training.global_batch": 64, "training.gradient_accumulation": 2}),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, {"training.global_batch": 64, "training.micro_batch": 2}),
        ({"train_micro_batch_size_per_gpu": 2}, {"training.micro_batch": 2, "training.gradient_accumulation": 1}),
        ({"train_batch_size": 64}, {"training.global_batch": 64, "training.gradient_accumulation": 1}),
        (
            {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"},
            {"training.micro_batch": "FILL-IN", "training.gradient_accumulation": "FILL-IN"},
        ),
        (zero(0), {"parallel.data.strategy": "ddp", "training.optimizer.clip_gradients": False, "training.precision": "fp32"}),
        (zero(1), {"parallel.data.strategy": "zero1", "parallel.data.overlap_reduce": False}),
        (zero(3), {"parallel.data.strategy": "zero3", "parallel.data.overlap_reduce": True}),
        (zero(2, reduce_bucket_size=5e8), {"parallel.data.bucket": "500000000 elements"}),
        (zero(2, cpu_offload=True), {"training.offload.optimizer": "cpu"}),
        ({**zero(2), "optimizer": {"type": "Muon", "params": {"lr": 0.02, "ns_method": "gram"}}}, {"training.optimizer.name": "muon"}),
        (zero(3, offload_optimizer={"device": "nvme", "nvme_path": "/x"}), {"training.offload.optimizer": "nvme"}),
        (zero(3, stage3_prefetch_bucket_size=0), {"parallel.data.prefetch": 0}),
        ({**zero(1), "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, {"training.precision": "bf16-fp32grad"}),
        (
            {**zero(1), "fp16": {"enabled": True}, "communication_data_type": "fp32"},
            {"training.precision": {"preset": "fp16", "reduce": "fp32"}},
        ),
        ({**zero(1), "optimizer": {"type": "Lion"}}, {"training.optimizer.name": "lion"}),
        (
            {**zero(1), "activation_checkpointing": {"cpu_checkpointing": True}},
            {"training.recompute": "full", "training.offload.activations": "cpu"},
        ),
        ({**zero(1), "activation_checkpointing": {"number_checkpoints": 24}}, {"training.recompute": "full"}),
        ({**zero(0), "sequence_parallel_size": 4}, {"parallel.context.size": 4, "parallel.context.method": "ulysses"}),
        ({**zero(1), "tensor_parallel": {"autotp_size": 2}}, {"parallel.tensor.size": 2}),
    ],
)
def test_a_key_of_deepspeed(tree: dict[str, Any], expected: dict[str, Any]) -> None:
    assert expected.items() <= deepspeed(tree).items()


def test_auto_buckets_are_squares_of_the_hidden_size() -> None:
    """transformers, integrations/deepspeed.py: reduce_bucket_size = hidden_size * hidden_size."""
    assert deepspeed(zero(2, reduce_bucket_size="auto"), model="llama-2-7b")["parallel.data.bucket"] == "16777216 elements"
    assert "parallel.data.bucket" not in deepspeed(zero(2, reduce_bucket_size="auto"))


def test_elements_become_layers() -> None:
    """A layer of Llama-2-7B has 4 x 4096^2 + 3 x 4096 x 11008 + 2 x 4096 = 202,383,360 parameters: 1e9 are 4 of them, 5e8 are 2."""
    found = deepspeed(zero(3, stage3_max_live_parameters=1e9, stage3_prefetch_bucket_size=5e8), model="llama-2-7b")
    assert (found["parallel.data.limit_gathers"], found["parallel.data.prefetch"]) == (4, 2)


def test_training_arguments_resolve_auto(tmp_path: Path) -> None:
    arguments = tmp_path / "args.json"
    arguments.write_text('{"per_device_train_batch_size": 3, "gradient_accumulation_steps": 5, "bf16": true, "max_grad_norm": 0}')
    path = DATA / "ds_z3_offload.json"
    given = Given(model="llama-2-7b", sequence_length=512, on="dgx-a100-80gb")
    imported = import_config(path.read_text(), str(path), given, arguments=str(arguments))
    found = values(imported)
    assert imported.to_fill == ()
    assert (found["training.micro_batch"], found["training.gradient_accumulation"], found["training.precision"]) == (3, 5, "bf16")
    assert (found["parallel.data.strategy"], found["training.optimizer.clip_gradients"]) == ("zero3", False)


def test_batch_sizes_that_do_not_agree_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}')
    file = tmp_path / "args.yaml"
    text = "per_device_train_batch_size: 8\nnum_train_epochs: 1\ndeepspeed: ds.json\n"
    with pytest.raises(ScenarioError, match=r"ds.json:1:2  train_micro_batch_size_per_gpu  4 here and per_device_train_batch_size: 8"):
        import_config(text, str(file), Given())


# -- accelerate and Trainer


MEGATRON_FILE = """
distributed_type: MEGATRON_LM
megatron_lm_config:
  megatron_lm_tp_degree: 2
  megatron_lm_pp_degree: 2
  megatron_lm_num_micro_batches: 4
  megatron_lm_use_distributed_optimizer: true
  megatron_lm_sequence_parallelism: true
  megatron_lm_expert_model_parallel_size: 4
  megatron_lm_expert_tensor_parallel_size: 1
"""


FIRST_FSDP = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("distributed_type: MULTI_GPU\nnum_processes: 4\n", {"parallel.data.strategy": "ddp", "training.precision": "fp32"}),
        (
            "distributed_type: 'NO'\nnum_processes: 1\nmixed_precision: fp16\n",
            {"parallel.data.strategy": "none", "training.precision": "amp-fp16"},
        ),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 1\n", {"parallel.data.strategy": "fsdp"}),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: NO_SHARD\n", {"parallel.data.strategy": "ddp"}),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n", {"parallel.data.strategy": "hsdp"}),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: true\n", {"training.offload.gradients": "cpu"}),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_backward_prefetch: NO_PREFETCH\n", {"parallel.data.prefetch": 0}),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: NO_WRAP\n", {"parallel.data.unit": "model"}),
        (
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n",
            {"parallel.data.reshard_after_forward": False},
        ),
        (  # read by FSDP 1 only
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_sharding_strategy: NO_SHARD\n",
            {"parallel.data.strategy": "fsdp", "parallel.data.fsdp_version": 2},
        ),
        (
            f"{FIRST_FSDP}  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_reshard_after_forward: true\n",
            {"parallel.data.strategy": "fsdp", "parallel.data.reshard_after_forward": False},
        ),
        ("distributed_type: FSDP\ndynamo_config:\n  dynamo_backend: INDUCTOR\n", {"software.fusion": "compiled"}),
        (
            MEGATRON_FILE,
            {
                "parallel.tensor.size": 2,
                "parallel.pipeline.size": 2,
                "parallel.data.strategy": "zero1",
                "training.gradient_accumulation": 4,
            },
        ),
        (f"{MEGATRON_FILE}mixed_precision: bf16\n", {"training.precision": "bf16-fp32grad", "software.profile": "megatron-core"}),
        (f"{MEGATRON_FILE}mixed_precision: fp16\n", {"training.precision": "fp16"}),
        (f"{MEGATRON_FILE}  megatron_lm_recompute_granularity: full\n", {"training.recompute": "full"}),
        (f"{MEGATRON_FILE}  megatron_lm_recompute_activations: true\n", {"training.recompute": {"selective": ["attention"]}}),
        ("distributed_type: MULTI_GPU\nnum_processes: 4\n", {"training.gradient_accumulation": 1}),
    ],
)
def test_a_file_of_accelerate(text: str, expected: dict[str, Any]) -> None:
    assert expected.items() <= values(from_text(text)).items()


def test_as_many_processes_as_the_machine_has() -> None:
    text = "distributed_type: FSDP\nnum_processes: gpu\nparallelism_config:\n  parallelism_config_tp_size: 2\n"
    assert values(from_text(text))["parallel.tensor.size"] == 2


def test_accelerators_of_other_makers_are_the_same_job_on_another_machine() -> None:
    imported = from_text("distributed_type: MULTI_XPU\nnum_processes: 4\n")
    assert values(imported)["parallel.data.strategy"] == "ddp"
    assert "the processes run on Intel's XPUs, of which parsim ships no device" in imported.yaml


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ('{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}', 32),
        ('{"train_batch_size": 1, "zero_optimization": {"stage": 3}}', 1),
        ('{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4}', None),
        ('{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 16}', 1),
        (
            '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "pipeline": {}}',
            "FILL-IN",
        ),
    ],
)
def test_a_batch_of_deepspeed_is_for_so_many_ranks(text: str, gpus: int | str | None) -> None:
    """train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks."""
    assert values(from_text(text, "deepspeed")).get("cluster.gpus") == gpus
    assert "cluster.gpus" not in values(from_text(text, "deepspeed", nodes=2, on="dgx-a100-80gb"))


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ('"train_batch_size": 3, "gradient_accumulation_steps": 1', "1, 3"),
        ('"train_batch_size": 12, "train_micro_batch_size_per_gpu": "auto"', "1, 2, 3, 4, 6, 12"),
        ('"train_batch_size": 720, "train_micro_batch_size_per_gpu": 360', "1, 2"),
        ('"train_batch_size": 32', ""),
    ],
)
def test_gpus_that_do_not_divide_a_batch_of_deepspeed_are_asked_for_with_the_machine(sizes: str, counts: str) -> None:
    found = from_text(f"{{{sizes}}}", "deepspeed")
    assert ("cluster.gpus" in found.to_fill) is bool(counts)
    assert found.questions == 2
    assert counts in found.yaml
    assert "cluster.gpus" not in from_text(f"{{{sizes}}}", "deepspeed", on="1x a100-80gb").to_fill


def test_a_batch_of_deepspeed_that_no_ranks_divide_is_refused() -> None:
    text = '{"train_batch_size": 250, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}'
    with pytest.raises(ScenarioError, match="250 is no multiple of train_micro_batch_size_per_gpu: 4 x gradient_accumulation_steps: 2"):
        from_text(text, "deepspeed")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("distributed_type: MULTI_GPU\nnum_processes: 4\nuse_cpu: true\n", "use_cpu  not supported yet: training on the CPU"),
        ("distributed_type: MULTI_CPU\nnum_processes: 4\n", "MULTI_CPU is no job on GPUs"),
        (f"{MEGATRON_FILE}mixed_precision: fp8\n", "mixed_precision fp8 with Megatron-LM"),
        (f"{MEGATRON_FILE}  megatron_lm_optimizer_cpu_offload: true\n", "megatron_lm_optimizer_cpu_offload  not supported yet"),
        (
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: FULL_SHARD\n",
            "fsdp_reshard_after_forward  FSDP 2 has no FULL_SHARD here; true or false",
        ),
        (
            "distributed_type: MULTI_GPU\nnum_processes: 8\nparallelism_config:\n  parallelism_config_dp_shard_size: 8\n",
            "parallelism_config_dp_shard_size  not supported yet: shards without FSDP",
        ),
    ],
)
def test_a_file_of_accelerate_that_is_refused(text: str, named: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        from_text(text)
    assert named in str(caught.value)


def test_products_in_fp16_of_weights_in_bf16_are_refused() -> None:
    with pytest.raises(ScenarioError) as caught:
        from_text('{"output_dir": "x", "fp16": true, "torch_dtype": "bfloat16"}', "hf")
    assert "fp16  not supported yet: parsim has no products in fp16 of weights that are held in bf16; use bf16" in str(caught.value)


def test_deepspeeds_micro_batch_follows_from_the_ranks() -> None:
    imported = from_text('{"train_batch_size": 64, "zero_optimization": {"stage": 1}}', "deepspeed", on="hgx-h100", model="llama-2-7b")
    assert imported.to_fill == ("training.sequence_length",)
    tree = {**imported.tree, "training": {**imported.tree["training"], "sequence_length": 2048}}
    assert build(load(tree)).training.micro_batch == 8


def trainer(**keys: Any) -> dict[str, Any]:
    return values(from_text(json.dumps({"output_dir": "x", **keys}), "hf"))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {"training.micro_batch": 8, "training.gradient_accumulation": 1, "training.precision": "fp32", "model": "FILL-IN"}),
        ({"tf32": True}, {"training.precision": "tf32"}),
        ({"bf16": True, "torch_dtype": "bfloat16"}, {"training.precision": "pure-bf16"}),
        ({"fp16": True}, {"training.precision": "amp-fp16"}),
        ({"bf16": True}, {"training.precision": "amp-bf16", "training.optimizer.implementation": "fused"}),
        ({"optim": "adamw_torch"}, {"training.optimizer.name": "adamw", "training.optimizer.implementation": "foreach"}),
        ({"optim": "paged_adamw_8bit"}, {"training.optimizer.name": "adam-8bit"}),
        ({"optim": "adafactor"}, {"training.optimizer.name": "adafactor"}),
        ({"fsdp": "hybrid_shard auto_wrap"}, {"parallel.data.strategy": "hsdp"}),
        ({"fsdp": ["shard_grad_op", "auto_wrap"]}, {"parallel.data.strategy": "fsdp", "parallel.data.reshard_after_forward": False}),
        (
            {"fsdp": "shard_grad_op auto_wrap", "fsdp_config": {"version": 2}},
            {"parallel.data.fsdp_version": 2, "parallel.data.reshard_after_forward": False},
        ),
        ({"fsdp": "full_shard offload"}, {"training.offload.parameters": "cpu", "parallel.data.unit": "model"}),
        (
            {
                "fsdp": "full_shard auto_wrap",
                "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "activation_checkpointing": True},
            },
            {"training.recompute": "full", "parallel.data.unit": "layer"},
        ),
        ({"attn_implementation": "eager"}, {"training.attention": "eager"}),
        ({"model_name_or_path": "my/own-model"}, {"model": "FILL-IN"}),
        ({"max_seq_length": 512}, {"training.sequence_length": 512}),
        ({"tp_size": 2}, {"parallel.tensor.size": 2}),
    ],
)
def test_training_arguments(keys: dict[str, Any], expected: dict[str, Any]) -> None:
    assert expected.items() <= trainer(**keys).items()


def test_checkpoints_that_are_fewer_than_layers() -> None:
    tree = {**zero(1), "activation_checkpointing": {"number_checkpoints": 8}}
    assert deepspeed(tree, model="llama-2-7b")["training.recompute"] == {"every": 4}


@pytest.mark.parametrize(("dtype", "kind"), [("float16", "not modelled"), ("float32", "no effect")])
def test_types_that_weights_are_loaded_in(dtype: str, kind: str) -> None:
    imported = from_text(json.dumps({"output_dir": "x", "torch_dtype": dtype, "bf16": True}), "hf")
    assert next(fate.kind for fate in imported.fates if fate.key.name == "torch_dtype") == kind
    assert values(imported)["training.precision"] == "amp-bf16"


def test_weights_of_the_type_of_their_file() -> None:
    """dtype="auto" is what transformers 5 does where nothing is said; most files are in bfloat16."""
    said, silent = (from_text(json.dumps({"output_dir": "x", "bf16": True, **more}), "hf") for more in ({"torch_dtype": "auto"}, {}))
    assert values(said)["training.precision"] == "pure-bf16"
    assert values(silent)["training.precision"] == "amp-bf16"
    assert [finding.path for imported in (said, silent) for finding in imported.warnings if "bf" in finding.message] == [
        "training.precision"
    ] * 2
    for more in ({"torch_dtype": "float32"}, {"fsdp": "full_shard auto_wrap"}, {"use_peft": True}, {"fp16": True, "bf16": False}):
        assert "transformers 5" not in str(from_text(json.dumps({"output_dir": "x", "bf16": True, **more}), "hf").warnings)


@pytest.mark.parametrize(("config", "said"), [({}, True), ({"version": 1}, False), ({"version": 2}, False)])
def test_the_version_of_fsdp(config: dict[str, Any], said: bool) -> None:
    """transformers 5.10 took fully_shard where its fsdp_config has no version; accelerate's own file means version 1."""
    imported = from_text(json.dumps({"output_dir": "x", "fsdp": "full_shard auto_wrap", "fsdp_config": config}), "hf")
    assert values(imported)["parallel.data.fsdp_version"] == config.get("version", 1)
    assert ("parallel.data.fsdp_version" in [finding.path for finding in imported.warnings]) is said


def test_epochs_need_the_number_of_samples() -> None:
    text = '{"output_dir": "x", "num_train_epochs": 2}'
    assert "training.epochs" not in values(from_text(text, "hf"))
    found = values(from_text(text, "hf", examples=1000))
    assert (found["training.examples"], found["training.epochs"]) == (1000, 2.0)


def test_a_deepspeed_file_that_is_not_there_is_left_to_fill_in() -> None:
    text = "cutoff_len: 512\nfinetuning_type: full\nstage: sft\nbf16: true\ndeepspeed: nowhere/ds.json\n"
    imported = from_text(text, model="gpt2", on="hgx-h100")
    found = values(imported)
    assert (found["parallel.data.strategy"], found["training.precision"]) == ("FILL-IN", "FILL-IN")
    assert imported.questions == 1
    assert "nowhere/ds.json is not there: parallel.data.strategy and training.precision" in "\n".join(map(str, imported.warnings))
    assert values(from_text(text, model="gpt2", precision="bf16"))["training.precision"] == "bf16"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--fp16 --fp8-format hybrid", "--fp8-format beside fp16 weights"),
        ("--bf16 --main-grads-dtype fp16", "fp16 gradients beside weights of another type"),
    ],
)
def test_types_that_megatron_has_and_parsim_has_not(options: str, words: str) -> None:
    text = f"--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 320 --seq-length 64 --micro-batch-size 1 {options}"
    with pytest.raises(ScenarioError) as caught:
        from_text(text)
    assert words in str(caught.value)


NOWHERE = "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  deepspeed_config_file: nowhere.json\n"


@pytest.mark.parametrize(
    ("text", "questions"),
    [
        (f"compute_environment: LOCAL_MACHINE\n{NOWHERE}", 2),  # the file, and what is trained
        ("accelerate launch --use_deepspeed --deepspeed_config_file nowhere.json run_clm.py --bf16 --max_seq_length 512", 1),
        ("base_model: gpt2\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\ndeepspeed: nowhere.json\n", 1),
        ("output_dir: x\nper_device_train_batch_size: 1\nmax_seq_length: 512\nbf16: true\ndeepspeed: nowhere.json\n", 1),
    ],
)
def test_no_tool_guesses_what_a_deepspeed_file_says(text: str, questions: int) -> None:
    imported = from_text(text, model=None if "compute_environment" in text else "gpt2", on="hgx-h100")
    found = values(imported)
    assert (found["parallel.data.strategy"], found["training.precision"]) == ("FILL-IN", "FILL-IN")
    assert found["software.profile"] == "deepspeed"
    assert imported.questions == questions


@pytest.mark.parametrize(
    "text",
    [
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 8\n",
        '{"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}',
    ],
)
def test_what_is_trained_is_one_question(text: str, tmp_path: Path) -> None:
    """Of a file that says how a training is spread: the arguments answer it at once, or the options that are named."""
    imported = from_text(text, on="hgx-h100")
    assert imported.questions == 1
    said = "\n".join(map(str, imported.warnings))
    assert "model, training.sequence_length, training.micro_batch" in said
    assert "--hf FILE" in said
    arguments = tmp_path / "args.yaml"
    arguments.write_text("model_name_or_path: gpt2\nmax_seq_length: 512\nper_device_train_batch_size: 2\nbf16: true\noutput_dir: x\n")
    whole = import_config(text, "-", Given(on="hgx-h100"), arguments=str(arguments))
    assert whole.questions == 0
    script = tmp_path / "train.sh"
    options = "--model_name_or_path gpt2 --max_seq_length 512 --per_device_train_batch_size 2 --bf16 --output_dir x"
    script.write_text(f"accelerate launch --config_file acc.yaml run_clm.py {options}\n")
    started = import_config(text, "-", Given(on="hgx-h100"), arguments=str(script))
    assert started.questions == 0
    assert {path: value for path, value in values(started).items() if path != "cluster.gpus"} == {
        path: value for path, value in values(whole).items() if path != "cluster.gpus"
    }
    script.write_text("torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4\n")
    with pytest.raises(ScenarioError, match=r"no training arguments: they are Megatron-LM's"):
        import_config(text, "-", Given(on="hgx-h100"), arguments=str(script))


def test_accelerate_launch_reads_its_file(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text((DATA / "accelerate-fsdp.yaml").read_text())
    (tmp_path / "lora.yaml").write_text((DATA / "llama-factory-lora.yaml").read_text())
    text = "CUDA_VISIBLE_DEVICES=0,1 accelerate launch \\\n  --config_file fsdp.yaml \\\n  src/train.py lora.yaml\n"
    found = values(import_config(text, str(tmp_path / "train.sh"), Given(), tool="llama-factory"))
    assert (found["parallel.data.strategy"], found["cluster.gpus"], found["training.finetune.rank"]) == ("fsdp", 16, 8)


def test_options_of_accelerate_launch_win_over_its_file(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text((DATA / "accelerate-fsdp.yaml").read_text())
    options = "--config_file fsdp.yaml --num_processes 8 --num_machines 1 --fsdp_sharding_strategy FULL_SHARD"
    text = f"accelerate launch {options} run_clm.py --max_steps 9"
    imported = import_config(text, str(tmp_path / "run.sh"), Given(), tool="hf")
    found = values(imported)
    assert (found["parallel.data.strategy"], found["cluster.gpus"], found["cluster.nodes"]) == ("fsdp", 8, 1)
    assert "parallel.data.reshard_after_forward" not in found
    assert of_kind(imported, "unknown") == []


def test_adapters_of_trl() -> None:
    text = (
        "trl sft --model_name_or_path meta-llama/Llama-2-7b-hf --use_peft --lora_r 32 --lora_target_modules q_proj v_proj --load_in_4bit "
        "--dtype bfloat16 --bf16 --per_device_train_batch_size 2 --max_length 512 --lora_modules_to_save lm_head"
    )
    found = {key: value for key, value in values(from_text(text)).items() if "finetune" in key or "precision" in key}
    assert found == {
        "training.precision": "amp-bf16", "training.finetune.method": "qlora", "training.finetune.rank": 32,
        "training.finetune.targets": ["q_proj", "v_proj"], "training.finetune.dropout": 0.05, "training.finetune.base": "nf4",
        "training.finetune.train_embeddings": True,
    }  # fmt: skip


def test_a_file_that_fsdp_config_names(tmp_path: Path) -> None:
    (tmp_path / "fsdp.json").write_text('{"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "backward_prefetch": "no_prefetch"}')
    text = '{"output_dir": "x", "fsdp": "full_shard auto_wrap", "fsdp_config": "fsdp.json"}'
    found = values(import_config(text, str(tmp_path / "args.json"), Given(), tool="hf"))
    assert (found["parallel.data.prefetch"], found["parallel.data.unit"]) == (0, "layer")


def test_what_the_user_says_in_vain_is_said() -> None:
    imported = from_text(f"{BASE} --save $DIR", gradient_accumulation=4, examples=10, variables={"DIR": "x", "NODES": "4"})
    said = "\n".join(map(str, imported.warnings))
    assert "--gradient-accumulation 4 has no use" in said
    assert "--examples 10 has no use" in said
    assert "--set NODES has no use" in said
    assert "--set DIR" not in said


# -- what is left open, and what is no configuration


def test_loading_says_what_is_still_to_be_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "open.yaml"
    path.write_text(from_text(json.dumps(zero(1)), "deepspeed").yaml)
    with pytest.raises(ScenarioError) as raised:
        load(path)
    found = [(finding.path, finding.line) for finding in raised.value.findings]
    rows = path.read_text().splitlines()
    assert [key for key, _ in found] == ["model", "cluster.topology", "training.sequence_length"]
    assert all(line is not None and "FILL-IN" in rows[line - 1] for _, line in found)
    assert all("must be filled in" in finding.message and finding.suggestion for finding in raised.value.findings)


@pytest.mark.parametrize("text", ["hello: world\n", "[1, 2]\n", "", "#!/bin/bash\necho hello\n"])
def test_what_is_no_training_configuration(text: str) -> None:
    with pytest.raises(ScenarioError):
        from_text(text, file="x")


def test_an_unknown_tool_and_a_wrong_kind_of_text() -> None:
    with pytest.raises(ScenarioError, match="known: megatron, megatron-yaml, deepspeed"):
        from_text("{}", "word")
    with pytest.raises(ScenarioError, match="a shell script or arguments are expected"):
        from_text("a: 1\n", "megatron")
    with pytest.raises(ScenarioError, match="writes YAML, JSON or TOML"):
        from_text("--num-layers 3", "deepspeed")


def test_whose_a_configuration_is() -> None:
    tools = {path.name: taken(path.name).tool for path in DATA.iterdir()}
    prefixes = {
        "megatron-recipe": "megatron-recipe",
        "megatron": "megatron",
        "ds": "deepspeed",
        "accelerate": "accelerate",
        "trainer": "hf",
        "llama": "llama-factory",
    }
    prefixes |= {"axolotl": "axolotl", "neox": "neox", "torchtitan": "torchtitan", "nemo": "nemo"}
    for name, tool in tools.items():
        assert tool == TOOLS[next(ours for prefix, ours in prefixes.items() if name.startswith(prefix))]


def test_a_launchers_file_that_is_not_there_leaves_the_strategy_open() -> None:
    imported = from_text("accelerate launch --config_file nowhere.yaml --num_processes 8 run_clm.py --max_steps 3 --bf16", "hf")
    found = values(imported)
    # --bf16 is autocast under DDP and FSDP, and bf16 weights under DeepSpeed
    assert (found["parallel.data.strategy"], found["training.precision"], found["cluster.gpus"]) == ("FILL-IN", "FILL-IN", 8)
    assert "nowhere.yaml is not there" in "\n".join(map(str, imported.warnings))


def test_a_deepspeed_section_in_the_arguments() -> None:
    tree = {"output_dir": "x", "bf16": True, "deepspeed": {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "stge": 1}}}
    imported = from_text(json.dumps(tree), "hf")
    found = values(imported)
    assert (found["parallel.data.strategy"], found["training.precision"]) == ("zero3", "bf16")
    assert of_kind(imported, "unknown") == ["deepspeed.zero_optimization.stge"]


def test_auto_that_nobody_fills_in_is_the_default() -> None:
    """DeepSpeedConfigModel drops it; transformers fills in the sizes of buckets, accelerate the stage."""
    autos = ("sub_group_size", "zero_hpz_partition_size", "mics_shard_size", "zero_quantized_weights", "zero_quantized_gradients")
    assert deepspeed(zero(3, **dict.fromkeys(autos, "auto")), on="hgx-h100") == deepspeed(zero(3), on="hgx-h100")

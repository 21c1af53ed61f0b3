"""Exported accelerate YAML: exact texts of both versions of FSDP, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from exports import GPT, LLAMA, exported, notes
from ruamel.yaml import YAML

from parsim.errors import InputError

WHOLE = """\
# a Llama: llama-2-7b on 16 GPUs, accelerate with FSDP2, by parsim export
# in the script: TrainingArguments(per_device_train_batch_size=2, gradient_accumulation_steps=4, optim="adamw_torch",
# max_grad_norm=1.0); tokenizer(..., max_length=2048)
# note: cluster.nodes: give every node its machine_rank, and main_process_ip and main_process_port to accelerate launch
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_cpu_ram_efficient_loading: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_activation_checkpointing: true
  fsdp_offload_params: true
mixed_precision: 'no'
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
use_cpu: false
"""
OFFLOAD = ("training.offload.parameters=cpu", "training.offload.optimizer=cpu")
KEYS = {
    "compute_environment", "debug", "distributed_type", "mixed_precision", "use_cpu", "num_processes", "machine_rank", "num_machines",
    "main_training_function", "rdzv_backend", "same_network", "downcast_bf16", "fsdp_config", "parallelism_config", "fp8_config",
}  # fmt: skip
"""a part of what accelerate's ClusterConfig takes; it refuses every other key"""


def document(base: dict[str, Any], *overrides: str, version: int = 2) -> dict[str, Any]:
    result: dict[str, Any] = YAML(typ="safe").load(exported(base, "fsdp", *overrides, version=version).text)
    assert set(result) <= KEYS
    return result


def test_a_whole_file() -> None:
    overrides = ("training.precision=fp32", "training.attention=mem-efficient", "training.recompute=full", *OFFLOAD)
    text = exported(LLAMA, "fsdp", "name=a Llama", *overrides).text
    assert text == WHOLE.replace("max_length=2048)", 'max_length=2048); from_pretrained(attn_implementation="sdpa")')


def test_version_1() -> None:
    assert document(LLAMA, "training.precision=amp-bf16", version=1)["fsdp_config"] == {
        "fsdp_version": 1,
        "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_forward_prefetch": False,
        "fsdp_use_orig_params": True,
        "fsdp_sync_module_states": True,
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_activation_checkpointing": False,
        "fsdp_offload_params": False,
    }


@pytest.mark.parametrize(
    ("strategy", "version", "key", "value"),
    [
        ("fsdp", 2, "fsdp_reshard_after_forward", True),
        ("zero3", 2, "fsdp_reshard_after_forward", True),
        ("zero2", 2, "fsdp_reshard_after_forward", False),
        ("zero2", 1, "fsdp_sharding_strategy", "SHARD_GRAD_OP"),
        ("hsdp", 1, "fsdp_sharding_strategy", "HYBRID_SHARD"),
    ],
)
def test_strategies(strategy: str, version: int, key: str, value: Any) -> None:
    assert document(LLAMA, f"parallel.data.strategy={strategy}", version=version)["fsdp_config"][key] == value


def test_hybrid_sharding_tensor_and_context_parallelism_are_a_mesh() -> None:
    assert document(LLAMA, "parallel.data.strategy=hsdp")["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 2,
        "parallelism_config_dp_shard_size": 8,
        "parallelism_config_tp_size": 1,
        "parallelism_config_cp_size": 1,
    }
    assert document(LLAMA, "parallel.tensor.size=4", "parallel.context.size=2")["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 1,
        "parallelism_config_dp_shard_size": 2,
        "parallelism_config_tp_size": 4,
        "parallelism_config_cp_size": 2,
        "parallelism_config_cp_comm_strategy": "alltoall",
    }


def test_ddp_is_no_fsdp() -> None:
    result = exported(LLAMA, "fsdp", "parallel.data.strategy=ddp", "parallel.data.bucket='100 MiB'", "training.recompute=full")
    found = YAML(typ="safe").load(result.text)
    assert found["distributed_type"] == "MULTI_GPU"
    assert "fsdp_config" not in found
    assert "gradient_checkpointing=True, ddp_bucket_cap_mb=100)" in result.script[0]
    alone = document(LLAMA, "parallel.data.strategy=none", "cluster.nodes=1", "cluster.gpus=1")
    assert (alone["distributed_type"], alone["num_processes"]) == ("NO", 1)


@pytest.mark.parametrize(
    ("precision", "mixed"),
    [("fp32", "no"), ("amp-bf16", "bf16"), ("amp-fp16", "fp16"), ("bf16", "bf16"), ("bf16-fp32grad", "bf16"), ("pure-bf16", "no")],
)
def test_precisions(precision: str, mixed: str) -> None:
    result = exported(LLAMA, "fsdp", f"training.precision={precision}")
    assert YAML(typ="safe").load(result.text)["mixed_precision"] == mixed
    assert ("training.precision" in notes(result)) == (mixed != "no")


@pytest.mark.parametrize(
    ("recipe", "config"), [("delayed", {"fp8_backend": "TE", "fp8_format": "HYBRID"}), ("tensorwise", {"fp8_backend": "AO"})]
)
def test_fp8_is_that_of_the_recipes_library(recipe: str, config: dict[str, str]) -> None:
    found = document(LLAMA, f"training.precision={{preset: fp8, recipe: {recipe}}}", "cluster.topology=dgx-h100")
    assert found["mixed_precision"] == "fp8"
    assert found["fp8_config"] == config


def test_every_family_has_the_class_of_its_layers() -> None:
    from parsim.interop.fsdp import LAYER_CLASSES
    from parsim.model.families import FAMILIES, beside_weights

    beside = {family.name for family in beside_weights.FAMILIES}  # their code names them
    assert set(FAMILIES) - set(LAYER_CLASSES) == {"megatron-gpt", *beside}
    assert set(LAYER_CLASSES) <= set(FAMILIES)


@pytest.mark.parametrize(
    ("base", "overrides", "version", "path", "rule"),
    [
        (GPT, [], 2, "parallel.pipeline.size", r"FSDP has no pipeline parallelism; use --to megatron, or --to deepspeed"),
        (GPT, [], 2, "parallel.data.strategy", r"shards gradients wherever.*--to deepspeed or --to megatron"),
        (GPT, [], 2, "parallel.tensor.sequence_parallel", r"--to megatron"),
        (LLAMA, ["parallel.tensor.size=2"], 1, "parallel.tensor.size", r"goes with FSDP2.*leave --fsdp-version 1 out"),
        (LLAMA, ["parallel.context.size=2", "parallel.context.method=ulysses"], 2, "parallel.context.method", r"ring or all-gather"),
        (LLAMA, ["training.recompute={every: 2}"], 2, "training.recompute", r"not groups of layers; use --to megatron"),
        (LLAMA, ["parallel.data.strategy=hsdp", "parallel.data.shard_size=4"], 1, "parallel.data.shard_size", r"nodes of 8 GPUs, not"),
        (
            {**LLAMA, "parallel": {"data": {"strategy": "zero3"}}},
            ["training.offload.optimizer=nvme"],
            2,
            "training.offload.optimizer",
            r"not to drives; use --to deepspeed",
        ),
        (
            {**LLAMA, "parallel": {"data": {"strategy": "zero3"}}},
            ["training.offload.optimizer=cpu"],
            2,
            "training.offload.optimizer",
            r"together, not parameters none",
        ),
        (LLAMA, ["training.recompute=full", "training.offload.activations=cpu"], 2, "training.offload.activations", r"--to deepspeed"),
    ],
)
def test_what_fsdp_cannot_run_is_refused(base: dict[str, Any], overrides: list[str], version: int, path: str, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        exported(base, "fsdp", *overrides, version=version)
    found = [f"{finding.message}; {finding.suggestion}" for finding in caught.value.findings if finding.path == path]
    assert any(re.search(rule, text) for text in found), caught.value.findings


@pytest.mark.parametrize("name", ["plain", "two\nlines: true", "名前 # no", "tab\there"])
def test_the_yaml_is_the_same_whatever_the_job_is_called(name: str) -> None:
    assert document({**LLAMA, "name": name}) == document(LLAMA)

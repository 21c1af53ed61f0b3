"""Exported DeepSpeed JSON: exact documents, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from exports import GPT, LLAMA, exported, notes

from parsim.errors import InputError

ZERO3: dict[str, Any] = {**LLAMA, "parallel": {"data": {"strategy": "zero3"}}}
LAYER = 202_383_360
"""parameters of a Llama-2-7B layer: 4 x 4096^2 + 3 x 4096 x 11008 + 2 x 4096"""


def document(base: dict[str, Any], *overrides: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(exported(base, "deepspeed", *overrides).text)
    return result


def test_a_whole_document() -> None:
    assert LAYER == 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert document(ZERO3, "training.recompute=full", "training.offload.optimizer=cpu", "training.offload.parameters=cpu") == {
        "train_batch_size": 128,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "stage3_prefetch_bucket_size": LAYER,
            "stage3_max_live_parameters": 2 * LAYER,
            "stage3_max_reuse_distance": LAYER,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "offload_param": {"device": "cpu", "pin_memory": True},
        },
        "activation_checkpointing": {"partition_activations": False, "cpu_checkpointing": False, "number_checkpoints": 32},
    }


@pytest.mark.parametrize(
    ("strategy", "zero"),
    [
        ("zero1", {"stage": 1, "overlap_comm": True, "reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000}),
        ("zero2", {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000}),
        (
            "hsdp",
            {
                "stage": 3,
                "overlap_comm": True,
                "stage3_prefetch_bucket_size": LAYER,
                "stage3_max_live_parameters": 2 * LAYER,
                "stage3_max_reuse_distance": LAYER,
                "mics_shard_size": 8,
            },
        ),
    ],
)
def test_the_stages(strategy: str, zero: dict[str, Any]) -> None:
    assert document(LLAMA, f"parallel.data.strategy={strategy}")["zero_optimization"] == zero


@pytest.mark.parametrize(
    ("preset", "keys"),
    [
        ("bf16", {"bf16": {"enabled": True}}),
        ("fp16", {"fp16": {"enabled": True}}),
        ("bf16-fp32grad", {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}),
        ("amp-bf16", {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}),
        ("amp-fp16", {"torch_autocast": {"enabled": True, "dtype": "float16"}}),
        ("fp32", {}),
        ("pure-bf16", {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}),
        ("{preset: bf16, reduce: fp32}", {"bf16": {"enabled": True}, "communication_data_type": "fp32"}),
    ],
)
def test_precisions(preset: str, keys: dict[str, Any]) -> None:
    found = document(ZERO3, f"training.precision={preset}", "training.attention=eager")
    types = ("bf16", "fp16", "data_types", "communication_data_type", "torch_autocast")
    assert {key: found[key] for key in types if key in found} == keys


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("training.optimizer=adam", "optimizer", {"type": "Adam", "params": {"adam_w_mode": False}}),
        ("training.optimizer={name: adamw, implementation: foreach}", "optimizer", {"type": "AdamW", "params": {"torch_adam": True}}),
        ("training.optimizer=lion", "optimizer", {"type": "Lion"}),
        ("training.optimizer=adafactor", "zero_allow_untested_optimizer", True),
        ("training.optimizer.clip_gradients=false", "gradient_clipping", 0.0),
        ("parallel.data.bucket='100 MiB'", "zero_optimization.reduce_bucket_size", 50 * 2**20),
        ("parallel.data.prefetch=3", "zero_optimization.stage3_prefetch_bucket_size", 3 * LAYER),
        ("parallel.data.limit_gathers=4", "zero_optimization.stage3_max_live_parameters", 4 * LAYER),
        ("parallel.data.reshard_after_forward=false", "zero_optimization.stage3_max_reuse_distance", 2 * 6_738_415_616),
        ("parallel.data.overlap_reduce=false", "zero_optimization.overlap_comm", False),
        ("training.offload.optimizer=nvme", "zero_optimization.offload_optimizer.nvme_path", "/local_nvme"),
        ("training.recompute={every: 5}", "activation_checkpointing.number_checkpoints", 7),
        ("parallel.tensor.size=2", "tensor_parallel", {"autotp_size": 2, "tp_overlap_comm": False}),
    ],
)
def test_what_a_key_becomes(override: str, path: str, value: Any) -> None:
    found: Any = document(ZERO3, override)
    for key in path.split("."):
        found = found[key]
    assert found == value


def test_ulysses() -> None:
    result = exported(ZERO3, "deepspeed", "parallel.context.size=4", "parallel.context.method=ulysses")
    assert json.loads(result.text)["sequence_parallel_size"] == 4
    assert "UlyssesSPAttentionHF.register_with_transformers(..., sequence_parallel_size=4)" in result.script


def test_a_pipeline_is_the_scripts_and_checkpoints_are_the_engines() -> None:
    base = {**GPT, "software": {"profile": "deepspeed"}}
    result = exported(base, "deepspeed", "parallel.tensor.sequence_parallel=false", "training.recompute={every: 3}")
    assert json.loads(result.text)["pipeline"] == {"activation_checkpoint_interval": 3}
    assert json.loads(result.text)["tensor_parallel"]["autotp_size"] == 8
    assert "PipelineModule(layers, num_stages=4)" in result.script
    assert result.keys["parallel.pipeline.size"].kind == "in the script"


def test_adapters_are_the_scripts() -> None:
    lora = "training.finetune={method: qlora, rank: 8, targets: [q, v], base: nf4}"
    result = exported({**LLAMA, "parallel": {"data": {"strategy": "zero2"}}}, "deepspeed", lora, "training.precision=bf16")
    assert result.script[-2:] == (
        "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=False)",
        "LoraConfig(r=8, target_modules=['q', 'v'], lora_dropout=0)",
    )


def test_zero_has_to_be_told_that_lamb_is_meant() -> None:
    document = json.loads(exported(ZERO3, "deepspeed", "training.optimizer=lamb").text)
    assert (document["optimizer"], document["zero_allow_untested_optimizer"]) == ({"type": "Lamb"}, True)


def test_other_optimizers_are_handed_over() -> None:
    result = exported(ZERO3, "deepspeed", "training.optimizer=adam-8bit")
    assert "optimizer" not in json.loads(result.text)
    assert result.script[0] == "deepspeed.initialize(optimizer=bitsandbytes.optim.AdamW8bit(parameters))"


@pytest.mark.parametrize(
    ("base", "overrides", "path", "rule"),
    [
        (GPT, [], "parallel.tensor.sequence_parallel", r"repeats norms and dropout.*--to megatron"),
        (
            GPT,
            ["parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2"],
            "parallel.pipeline.schedule",
            r"TrainSchedule is 1F1B with one stage per rank; use --to megatron, or 1f1b",
        ),
        (GPT, ["parallel.pipeline.schedule=gpipe"], "parallel.pipeline.schedule", r"no tool has it by configuration"),
        (GPT, ["parallel.data.strategy=zero2"], "parallel.pipeline.size", r"ZeRO-2 is incompatible with DeepSpeed's pipeline engine"),
        (ZERO3, ["parallel.context.size=2"], "parallel.context.method", r"use method: ulysses, or --to megatron or fsdp"),
        (ZERO3, ["training.recompute=selective"], "training.recompute", r"parts of a layer; use --to megatron"),
        (ZERO3, ["training.precision=fp8", "cluster.topology=dgx-h100"], "training.precision", r"fp8.*--to megatron or fsdp"),
        (
            LLAMA,
            ["parallel.data.strategy=ddp", "training.precision=pure-bf16"],
            "training.precision",
            "without ZeRO bf16 has fp32 master weights",
        ),
        (
            {**LLAMA, "training": {"sequence_length": 2048, "micro_batch": 2, "global_batch": 48, "partial_micro_batch": True}},
            ["parallel.data.strategy=zero1"],
            "training.partial_micro_batch",
            r"the last micro-batch has 1 samples.*--to fsdp",
        ),
    ],
)
def test_what_deepspeed_cannot_run_is_refused(base: dict[str, Any], overrides: list[str], path: str, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        exported(base, "deepspeed", *overrides)
    finding = next(finding for finding in caught.value.findings if finding.path == path)
    assert re.search(rule, f"{finding.message}; {finding.suggestion}")


def test_fsdp_as_zero3_is_said_to_differ() -> None:
    assert "reduces gradients in every micro-batch" in notes(exported(LLAMA, "deepspeed"))["parallel.data.strategy"]


@pytest.mark.parametrize("stage", [1, 2])
def test_muon(stage: int) -> None:
    """It is DeepSpeed's own under ZeRO-1 and 2."""
    base = {**ZERO3, "parallel": {"data": {"strategy": f"zero{stage}"}}, "software": {"profile": "deepspeed"}}
    found: Any = document(base, "training.optimizer=muon")
    assert found["optimizer"] == {"type": "Muon"}
    assert found["zero_optimization"]["stage"] == stage


def test_kernels_of_an_optimizer_on_the_cpu() -> None:
    kind, offload = "training.optimizer.implementation", "training.offload.optimizer=cpu"
    assert "DeepSpeedCPUAdam, whose kernels are its own" in notes(exported(ZERO3, "deepspeed", f"{kind}=foreach", offload))[kind]
    assert kind not in notes(exported(ZERO3, "deepspeed", offload))

"""Commands of Megatron-SWIFT: Megatron-LM's options with ms-swift's model, data, adapters and defaults."""

from __future__ import annotations

from typing import Any

import pytest
from training_samples import from_text, values

from parsim.errors import ScenarioError
from parsim.model.parameter_counts import parameter_count
from parsim.scenario import load
from parsim.scenario.build import build

HEAD = "NPROC_PER_NODE=8 CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 megatron sft --model {} --max_length 2048 --torch_dtype bfloat16 "
DENSE, MIXTURE = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-30B-A3B"


def imported(options: str, model: str = DENSE, **given: Any) -> dict[str, Any]:
    return values(from_text(HEAD.format(model) + options, file="run.sh", **{"on": "8x h100-sxm", **given}))


def test_defaults_are_those_of_the_tool() -> None:
    """swift/megatron/arguments/megatron_args.py: one sample, sixteen in a step, a distributed optimizer, attention recomputed."""
    found = imported("--output_dir out")
    assert found == {
        "model": DENSE,
        "cluster.topology": "8x h100-sxm",
        "cluster.gpus": 8,
        "training.sequence_length": 2048,
        "training.micro_batch": 1,
        "training.global_batch": 16,
        "training.precision": "bf16-fp32grad",
        "training.optimizer.name": "adam",
        "training.dropout": 0.0,
        "training.attention": "flash2",
        "training.recompute": {"selective": ["attention"]},
        "training.loss.kernel": "vocab-parallel-fused",
        "parallel.data.strategy": "zero1",
        "parallel.data.overlap_reduce": False,
        "software.profile": "megatron-core",
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--tensor_model_parallel_size 4 --sequence_parallel true", {"parallel.tensor.size": 4, "parallel.tensor.sequence_parallel": True}),
        (
            "--pipeline_model_parallel_size 2 --overlap_p2p_comm false",
            {"parallel.pipeline.size": 2, "parallel.pipeline.overlap_sends": False},
        ),
        ("--micro_batch_size 2 --global_batch_size 64", {"training.micro_batch": 2, "training.global_batch": 64}),
        ("--recompute_granularity full --recompute_method uniform --recompute_num_layers 1", {"training.recompute": "full"}),
        ("--recompute_granularity none", {"training.recompute": None}),
        ("--use_distributed_optimizer false", {"parallel.data.strategy": "ddp"}),
        ("--gradient_accumulation_fusion false", {"software.gradient_accumulation_fusion": False}),
        ("--cross_entropy_loss_fusion false", {"training.loss.kernel": None}),
        ("--max_epochs 2", {"training.loss.kernel": None}),  # of version 3
        ("--attention_backend unfused", {"training.attention": "eager"}),
        ("--main_grads_dtype bf16", {"training.precision": "bf16"}),
        ("--tuner_type full", {"training.finetune.method": None}),
        ("--train_type lora --lora_rank 32", {"training.finetune.method": "lora", "training.finetune.rank": 32}),
        (
            "--tuner_type lora --target_modules linear_qkv linear_proj",
            {"training.finetune.targets": ["q_proj", "k_proj", "v_proj", "o_proj"], "training.finetune.dropout": 0.05},
        ),
        ("--mtp_num_layers 1", {"model.base": DENSE, "model.mtp": 1}),
    ],
)
def test_one_option_changes_the_scenario(options: str, expected: dict[str, Any]) -> None:
    found = imported(options)
    assert {path: found.get(path) for path in expected} == expected


def test_adapters_stand_beside_experts_too() -> None:
    """By hand: rank 8 beside the four products of attention and the three of each of 128 experts and the router, in 48 layers."""
    text = HEAD.format(MIXTURE) + "--tuner_type lora --expert_model_parallel_size 4 --moe_permute_fusion true"
    read = from_text(text, file="run.sh", on="8x h100-sxm")
    found = values(read)
    assert found["training.finetune.experts"] == "linear"
    assert (found["parallel.expert.size"], found["parallel.expert.dispatcher"]) == (4, "alltoall")
    assert found["parallel.expert.permute_fusion"] is True
    attention = 8 * ((2048 + 4096) + 2 * (2048 + 512) + (4096 + 2048))
    experts = 8 * 128 * 3 * (2048 + 768)
    router = 8 * (2048 + 128)
    assert parameter_count(build(load(read.tree)).model) - 30_532_122_624 == 48 * (attention + experts + router)


def test_a_folder_with_a_converted_model_is_called_after_it() -> None:
    text = HEAD.replace("--model {}", "--load /data/Qwen3-30B-A3B-mcore") + "--micro_batch_size 1"
    assert values(from_text(text, file="run.sh"))["model"] == "Qwen/Qwen3-30B-A3B"


@pytest.mark.parametrize(
    ("options", "command", "named"),
    [
        ("--tuner_type lora_llm", "sft", "--tuner_type"),
        ("--task_type seq_cls", "sft", "--task_type"),
        ("--rlhf_type grpo --num_iterations 2", "rlhf", "--num_iterations"),
        ("--rlhf_type gkd --teacher_model x", "rlhf", "--rlhf_type"),
        ("--freeze_parameters_ratio 0.5", "sft", "--freeze_parameters_ratio"),
        ("--export_model_parallel_size 4", "sft", "--export_model_parallel_size"),
        ("--tuner_type lora --target_modules all-router", "sft", "--target_modules"),
    ],
)
def test_other_jobs_are_refused_by_name(options: str, command: str, named: str) -> None:
    with pytest.raises(ScenarioError) as error:
        from_text(HEAD.format(DENSE).replace("sft", command, 1) + options, file="run.sh")
    assert named in [finding.path for finding in error.value.findings]


def test_pairs_are_preferred() -> None:
    text = HEAD.format(DENSE).replace("megatron sft", "megatron rlhf")
    assert values(from_text(f"{text} --beta 0.1", file="run.sh"))["training.objective"] == "dpo"
    assert values(from_text(f"{text} --rlhf_type kto", file="run.sh"))["training.objective"] == "kto"

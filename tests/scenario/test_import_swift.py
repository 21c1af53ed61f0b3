"""Commands of ms-swift become scenarios with its defaults; what another trainer does is refused by name."""

from __future__ import annotations

import pytest

from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given, ImportedScenario
from parsim.scenario import load
from parsim.scenario.build import build

HEAD = "NPROC_PER_NODE=4 \\\nCUDA_VISIBLE_DEVICES=0,1,2,3 \\\nswift {} --model Qwen/Qwen2.5-7B-Instruct "
HEAD += "--torch_dtype bfloat16 --max_length 2048 "


def imported(options: str, command: str = "sft", head: str = HEAD, **given: object) -> ImportedScenario:
    return import_config(head.format(command) + options, "train.sh", Given(**{"on": "8x h100-sxm", **given}))


def test_defaults_are_those_of_the_tool() -> None:
    read = imported("--dataset some/data --gradient_accumulation_steps 4")
    training = read.tree["training"]
    assert read.tool == "ms-swift"
    assert read.tree["cluster"]["gpus"] == 4
    assert (training["micro_batch"], training["gradient_accumulation"], training["recompute"]) == (1, 4, "full")
    assert training["finetune"] == {"method": "lora", "rank": 8, "targets": "all-linear", "dropout": 0.05}
    assert read.tree["parallel"]["data"]["strategy"] == "ddp"
    assert not [fate for fate in read.fates if fate.kind == "unknown"]
    build(load(read.tree))


def test_accumulation_follows_the_ranks_and_is_asked_for() -> None:
    assert imported("").to_fill == ("training.gradient_accumulation",)
    assert imported("", gradient_accumulation=2).to_fill == ()


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ("--train_type full", {"training.finetune": None, "training.precision": "pure-bf16"}),
        ("--tuner_type full --deepspeed zero3", {"parallel.data.strategy": "zero3", "training.precision": "bf16"}),
        ("--sft_type full --deepspeed zero3_offload", {"training.offload.parameters": "cpu", "training.offload.optimizer": "cpu"}),
        ("--deepspeed zero2", {"parallel.data.strategy": "zero2", "parallel.data.bucket": "200000000 elements"}),
        ("--quant_method bnb --quant_bits 4", {"training.finetune.method": "qlora", "training.finetune.base": "nf4-dq"}),
        ("--gradient_checkpointing false", {"training.recompute": None}),
        ("--attn_impl flash_attn", {"training.attention": "flash2"}),
        (
            "--lora_rank 64 --target_modules q_proj v_proj",
            {"training.finetune.rank": 64, "training.finetune.targets": ["q_proj", "v_proj"]},
        ),
        ("--lora_dtype bfloat16", {"training.finetune.adapter_dtype": "model"}),
        ("--lora_dtype float32", {"training.finetune.adapter_dtype": None}),
        ("--sequence_parallel_size 2", {"parallel.context.size": 2, "parallel.context.method": "ulysses"}),
        ("--per_device_train_batch_size 3", {"training.micro_batch": 3}),
    ],
)
def test_one_option_changes_the_scenario(options: str, values: dict[str, object]) -> None:
    read = imported(f"--gradient_accumulation_steps 4 {options}")
    for path, value in values.items():
        holder: object = read.tree
        for key in path.split("."):
            holder = holder.get(key) if isinstance(holder, dict) else None
        assert holder == value, path


@pytest.mark.parametrize(
    ("options", "command", "objective"),
    [
        ("", "pt", None),
        ("", "rlhf", "dpo"),
        ("--rlhf_type kto", "rlhf", "kto"),
        ("--rlhf_type orpo", "rlhf", "orpo"),
        ("--rlhf_type simpo", "rlhf", "orpo"),
        ("--rlhf_type rm", "rlhf", "reward"),
    ],
)
def test_what_is_trained_for(options: str, command: str, objective: str | None) -> None:
    assert imported(f"{options} --gradient_accumulation_steps 4", command).tree["training"].get("objective") == objective


@pytest.mark.parametrize(
    ("options", "command", "named"),
    [
        ("--tuner_type longlora", "sft", "--tuner_type"),
        ("--tuner_type llamapro", "sft", "--tuner_type"),
        ("--task_type seq_cls --num_labels 2", "sft", "--task_type"),
        ("--quant_method hqq --quant_bits 4", "sft", "--quant_method"),
        ("--quant_bits 2", "sft", "--quant_bits"),
        ("--tuner_type full --quant_bits 4", "sft", "--quant_bits"),
        ("--use_galore true", "sft", "--use_galore"),
        ("--optim galore_adamw", "sft", "--optim"),
        ("--rlhf_type gkd --num_generations 8", "rlhf", "--rlhf_type"),
        ("--rlhf_type ppo", "rlhf", "--rlhf_type"),
        ("--freeze_parameters_ratio 0.5 --tuner_type full", "sft", "--freeze_parameters_ratio"),
    ],
)
def test_other_jobs_are_refused_by_name(options: str, command: str, named: str) -> None:
    with pytest.raises(ScenarioError) as error:
        imported(options, command)
    assert named in [finding.path for finding in error.value.findings]


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ("", "amp-bf16"),
        ("--train_type full", "pure-bf16"),
        ("--train_type full --torch_dtype float32", "amp-fp16"),
        ("--train_type full --torch_dtype $DTYPE", "pure-bf16"),
        ("--torch_dtype float16", "amp-fp16"),
        ("--fp16 true", "amp-fp16"),
    ],
)
def test_types_are_the_models_where_none_is_said(options: str, precision: str) -> None:
    """There is no training in fp32: swift/arguments/base_args/model_args.py, _init_mixed_precision."""
    read = imported(f"--gradient_accumulation_steps 4 {options}", head=HEAD.replace("--torch_dtype bfloat16 ", ""))
    assert read.tree["training"]["precision"] == precision


def test_frozen_weights_in_fp32_are_said_not_to_be_modelled() -> None:
    read = imported("--gradient_accumulation_steps 4 --torch_dtype float32", head=HEAD.replace("--torch_dtype bfloat16 ", ""))
    assert [fate.key.written for fate in read.fates if fate.kind == "not modelled"] == ["--torch_dtype"]


def test_the_command_by_its_path() -> None:
    head = "torchrun --nproc_per_node=2 $(which swift) {} --model Qwen/Qwen2.5-7B-Instruct --torch_dtype bfloat16 --max_length 2048 "
    read = imported("--gradient_accumulation_steps 4", head=head)
    assert (read.tool, read.tree["cluster"]["gpus"]) == ("ms-swift", 2)


def test_without_a_number_of_processes_there_is_one() -> None:
    assert (
        imported("--gradient_accumulation_steps 4", head=HEAD.partition("swift")[1] + HEAD.partition("swift")[2]).tree["cluster"]["gpus"]
        == 1
    )


def test_its_yaml_is_read_like_its_command() -> None:
    text = "model: Qwen/Qwen2.5-7B-Instruct\ntorch_dtype: bfloat16\ntuner_type: full\nmax_length: 2048\nper_device_train_batch_size: 2\n"
    read = import_config(f"{text}gradient_accumulation_steps: 4\ndeepspeed: zero3\n", "demo.yaml", Given(on="8x h100-sxm"))
    assert read.tool == "ms-swift"
    assert read.tree["parallel"]["data"]["strategy"] == "zero3"
    assert (read.tree["training"]["micro_batch"], read.tree["training"]["recompute"]) == (2, "full")
    assert "gpus" not in read.tree["cluster"]

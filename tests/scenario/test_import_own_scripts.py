"""Scripts beside the tools' own: files that they write before they train, DeepSpeed-Chat's options, adapters under other names.

What the options mean: deepspeedai/DeepSpeedExamples, applications/DeepSpeed-Chat; shibing624/MedicalGPT, training/pretraining.py;
NVIDIA/Model-Optimizer, examples/llm_qat; huggingface/transformers, examples/pytorch/language-modeling/run_clm.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_samples import from_text, of_kind, values

from parsim.errors import ScenarioError

H100 = {"on": "hgx-h100"}
WRITES = """
ZERO=2
cat <<EOT > ./{name}
{{"zero_optimization": {{"stage": $ZERO, "overlap_comm": true}}, "fp16": {{"enabled": "auto"}},
  "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}}
EOT
torchrun --nproc_per_node 4 run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 3 --block_size 512 --fp16 \\
  --output_dir out --num_train_epochs 1 --deepspeed {asked}
"""
FACTORY = """#!/bin/bash
cat > job.yaml <<EOF
model_name_or_path: Qwen/Qwen2.5-7B
stage: sft
finetuning_type: lora
lora_rank: ${RANK:-24}
cutoff_len: 1536
template: qwen
per_device_train_batch_size: 5
bf16: true
EOF
llamafactory-cli train job.yaml
"""
CHAT = """
deepspeed --num_gpus 4 {program} --data_path Dahoas/rm-static --data_split 2,4,4 --model_name_or_path facebook/opt-1.3b \\
  --gradient_accumulation_steps 2 --learning_rate 9.65e-6 --num_train_epochs 4 --output_dir out --deepspeed {more}
"""


@pytest.mark.parametrize("name", ["ds_z3_cpu_offload.json", "config.json"])
def test_the_deepspeed_file_that_a_script_writes_counts_before_its_name(name: str) -> None:
    """The first name alone would say ZeRO-3 with states in host memory."""
    for asked in (name, f"./{name}"):
        found = from_text(WRITES.format(name=name, asked=asked), **H100)
        said = values(found)
        assert (said["parallel.data.strategy"], said["training.precision"]) == ("zero2", "fp16")
        assert "training.offload.parameters" not in said
        assert (said["cluster.gpus"], said["training.micro_batch"], said["training.sequence_length"]) == (4, 3, 512)
        assert not found.to_fill


def test_the_yaml_that_a_script_writes_holds_the_arguments() -> None:
    said = values(from_text(FACTORY, **H100))
    assert said["model"] == "Qwen/Qwen2.5-7B"
    assert (said["training.finetune.rank"], said["training.sequence_length"], said["training.micro_batch"]) == (24, 1536, 5)


def test_the_file_that_a_script_writes_is_not_one_that_lies_beside_it(tmp_path: Path) -> None:
    tmp_path.joinpath("job.yaml").write_text("lora_rank: 2\ncutoff_len: 64\n")
    said = values(from_text(FACTORY, file=str(tmp_path / "run.sh"), **H100))
    assert (said["training.finetune.rank"], said["training.sequence_length"]) == (24, 1536)


def test_what_is_wrong_in_a_written_file_has_its_line() -> None:
    text = WRITES.format(name="ds.json", asked="ds.json").replace('"overlap_comm": true', '"overlap_comm": ')
    with pytest.raises(ScenarioError) as error:
        from_text(text.replace('"stage": $ZERO', '"stage": $ZERO,,'), **H100)
    assert error.value.findings[0].line == 4


def chat(
    more: str, program: str = "step1/main.py", file: str = "DeepSpeed-Chat/training/step1_supervised_finetuning/run.sh"
) -> dict[str, Any]:
    found = from_text(CHAT.format(program=program, more=more), file=file, **H100)
    assert not of_kind(found, "unknown")
    return values(found)


def test_deepspeed_chat_makes_its_configuration_of_options() -> None:
    """fp16, 512 tokens and 16 samples where nothing is said."""
    said = chat("--zero_stage 2")
    assert said["parallel.data.strategy"] == "zero2"
    assert (said["training.precision"], said["training.sequence_length"], said["training.micro_batch"]) == ("fp16", 512, 16)
    assert (said["cluster.gpus"], said["training.gradient_accumulation"]) == (4, 2)
    assert "training.objective" not in said
    assert "training.finetune.method" not in said
    said = chat("--zero_stage 3 --offload --dtype bf16 --max_seq_len 1024 --per_device_train_batch_size 2")
    assert (said["parallel.data.strategy"], said["training.precision"]) == ("zero3", "bf16")
    assert (said["training.offload.optimizer"], said["training.offload.parameters"]) == ("cpu", "cpu")
    assert (said["training.sequence_length"], said["training.micro_batch"]) == (1024, 2)
    assert chat("")["parallel.data.strategy"] == "ddp"


def test_deepspeed_chats_adapters() -> None:
    """Only with --only_optimize_lora is all else frozen."""
    said = chat("--zero_stage 3 --lora_dim 128 --lora_module_name layers. --only_optimize_lora")
    assert (said["training.finetune.method"], said["training.finetune.rank"]) == ("lora", 128)
    assert "training.finetune.train_embeddings" not in said
    assert chat("--lora_dim 64")["training.finetune.train_embeddings"] is True
    assert "training.finetune.method" not in chat("--lora_dim 0")
    with pytest.raises(ScenarioError, match="some modules only"):
        chat("--lora_dim 64 --lora_module_name q_proj")


@pytest.mark.parametrize(
    ("folder", "objective"), [("step2_dpo_finetuning", "dpo"), ("step2_reward_model_finetuning", "reward"), ("elsewhere", "FILL-IN")]
)
def test_deepspeed_chats_other_steps(folder: str, objective: str) -> None:
    assert chat("--zero_stage 0", file=f"training/{folder}/run.sh")["training.objective"] == objective


@pytest.mark.parametrize(("rank", "expected"), [("--lora_rank 8", 8), ("--lora_r 8", 8), ("", 16)])
def test_the_rank_of_adapters_under_either_name(rank: str, expected: int) -> None:
    """TRL's option is lora_r; lora_rank beside use_peft is a script's own."""
    text = "torchrun --nproc_per_node 2 pretraining.py --model_name_or_path gpt2 --use_peft True --max_seq_length 512"
    said = values(from_text(f"{text} --per_device_train_batch_size 4 --bf16 --output_dir out {rank}", **H100))
    assert (said["training.finetune.method"], said["training.finetune.rank"]) == ("lora", expected)


@pytest.mark.parametrize(
    "key",
    ["distill: true", "teacher_model: Qwen/Qwen3-8B", "modelopt: {recipe: nvfp4}", "trainable_params: ['*scale*']", "extra_config: '{}'"],
)
def test_another_training_than_the_trainers_is_refused(key: str) -> None:
    plain = "model_name_or_path: gpt2\nper_device_train_batch_size: 2\nmax_length: 512\nnum_train_epochs: 1\noutput_dir: out\nbf16: true\n"
    assert values(from_text(plain, **H100))["training.micro_batch"] == 2
    with pytest.raises(ScenarioError, match=key.partition(":")[0]):
        from_text(f"{plain}{key}\n", **H100)


def test_sizes_that_are_changed_on_the_command_line_are_asked_for() -> None:
    text = (
        "python run_clm.py --model_type gpt2 --config_overrides n_embd=8192,n_layer=64 --per_device_train_batch_size 4 --num_train_epochs 1"
    )
    found = from_text(f"{text} --block_size 512", **H100)
    assert "model" in found.to_fill
    assert values(from_text(f"{text} --block_size 512", model="gpt2-xl", **H100))["model"] == "gpt2-xl"


def test_the_gpus_of_a_slurm_job_that_accelerate_starts() -> None:
    """One process on each, where neither its options nor its file counts them."""
    text = "#!/bin/bash\n#SBATCH --gres=gpu:6\naccelerate launch {}train_dpo.py --model_name_or_path gpt2 --per_device_train_batch_size 4"
    rest = " --max_length 512 --output_dir out --num_train_epochs 1 --bf16"
    assert values(from_text(f"{text.format('')}{rest}", **H100))["cluster.gpus"] == 6
    assert values(from_text(f"{text.format('--config_file six.yaml ')}{rest}", **H100))["cluster.gpus"] == 6
    assert values(from_text(f"{text.format('--num_processes 4 ')}{rest}", **H100))["cluster.gpus"] == 4


def test_fsdps_settings_on_the_command_line() -> None:
    text = "torchrun --nproc_per_node 4 run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --bf16 --num_train_epochs 1"
    inside = '{\\"transformer_layer_cls_to_wrap\\": \\"GPT2Block\\", \\"backward_prefetch\\": \\"backward_pre\\"}'
    found = from_text(f"{text} --block_size 512 --output_dir out --fsdp 'full_shard auto_wrap' --fsdp_config '{inside}'", **H100)
    assert values(found)["parallel.data.strategy"] == "fsdp"
    assert values(found)["parallel.data.prefetch"] == 1
    assert not of_kind(found, "not modelled")


def test_a_command_that_an_argument_chooses_is_asked_for() -> None:
    text = 'TEST=$1\nif [ "$TEST" == "0" ]; then\n  python run_glue.py --max_seq_length 128\nfi\n'
    with pytest.raises(ScenarioError, match=r"--arguments .*TEST"):
        from_text(text, **H100)


def test_a_task_without_a_value() -> None:
    """The task says what a program of many trains: the model is asked for, with the script's arguments."""
    text = "task=$4\ntorchrun --nproc_per_node 8 tasks/main.py --task {} --num-layers 24 --hidden-size 1024 --num-attention-heads 16"
    rest = " --seq-length 512 --max-position-embeddings 512 --micro-batch-size 8 --global-batch-size 64 --fp16 --vocab-size 30522"
    found = from_text(f"{text.format('$task')}{rest}", **H100)
    assert found.to_fill == ("model",)
    said = values(from_text(f"{text.format('$task')}{rest}", variables={"4": "MNLI"}, **H100))
    assert (said["model.family"], said["model.layers"]) == ("bert", 24)


@pytest.mark.parametrize(("recipe", "read"), [("bf16_mixed", True), ("bf16_with_fp8_current_scaling_mixed", False)])
def test_types_of_llama_factorys_megatron_bridge(recipe: str, read: bool) -> None:
    text = (
        "model_name_or_path: meta-llama/Llama-3.2-1B\nstage: sft\ndo_train: true\nfinetuning_type: full\ncutoff_len: 2048\nbf16: true\n"
        f"per_device_train_batch_size: 1\ntensor_model_parallel_size: 2\nmixed_precision: {recipe}\n"
    )
    if read:
        assert values(from_text(text, **H100))["training.precision"] == "bf16-fp32grad"
        return
    with pytest.raises(ScenarioError, match="mixed_precision"):
        from_text(text, **H100)


ARGUMENTS = "model_name_or_path: Qwen/Qwen2.5-1.5B\nmax_length: 4096\nper_device_train_batch_size: 4\nnum_train_epochs: 1\nbf16: true\n"


@pytest.mark.parametrize(
    ("more", "file", "strategy", "ranks"),
    [
        ("", "", "ddp", None),
        ("--accelerate_config zero3", "", "zero3", 8),
        ("--accelerate_config zero2 --num_processes 4", "", "zero2", 4),
        ("--accelerate_config fsdp2", "", "fsdp", 8),
        ("--accelerate_config multi_gpu", "", "ddp", 8),
        ("", "accelerate_config: zero1\n", "zero1", 8),
        ("--num_processes 2", "", "ddp", 2),
    ],
)
def test_what_trls_command_hands_to_accelerate(
    more: str, file: str, strategy: str, ranks: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a name under which TRL ships a file; in the command or in its YAML (huggingface/trl, trl/accelerate_configs)."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(ARGUMENTS + file, encoding="utf-8")
    found = from_text(f"trl sft --config job.yaml {more}", **H100)
    said = values(found)
    assert (said["parallel.data.strategy"], said.get("cluster.gpus")) == (strategy, ranks)
    assert not of_kind(found, "unknown")


def test_trls_file_of_accelerate_that_is_not_there_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(ARGUMENTS, encoding="utf-8")
    found = from_text("trl sft --config job.yaml --accelerate_config mine.yaml", **H100)
    assert "parallel.data.strategy" in found.to_fill


def test_a_script_of_any_name_whose_arguments_lie_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(ARGUMENTS, encoding="utf-8")
    said = values(from_text("accelerate launch --num_processes 4 train.py --config job.yaml", **H100))
    assert (said["cluster.gpus"], said["training.micro_batch"], said["training.sequence_length"]) == (4, 4, 4096)
    with pytest.raises(ScenarioError, match=r"other\.yaml is not there, and holds the arguments"):
        from_text("accelerate launch --num_processes 4 train.py --config other.yaml", **H100)


VERSIONED = "--model_name_or_path Qwen/Qwen2.5-1.5B --per_device_train_batch_size 4 --num_train_epochs 1 --output_dir out"


@pytest.mark.parametrize(
    ("command", "precision", "recompute"),
    [
        ("trl sft", "FILL-IN", "FILL-IN"),
        ("trl sft --loss_type nll", "amp-bf16", "full"),
        ("trl sft --assistant_only_loss", "amp-bf16", "FILL-IN"),
        ("trl sft --assistant_only_loss --bf16 false --gradient_checkpointing false", "fp32", None),
        ("trl sft --num_of_sequences 1024", "fp32", None),
        ("trl sft --fp16 --loss_type nll", "amp-fp16", "full"),
        ("trl dpo --loss_weights 1.0", "amp-bf16", "FILL-IN"),
        ("trl dpo --pad_token x", "amp-bf16", "full"),
        ("python trl/scripts/sft.py --loss_type nll", "amp-bf16", "full"),
        ("python run_clm.py --block_size 1024", "fp32", None),
    ],
)
def test_what_trl_takes_depends_on_its_version(command: str, precision: str, recompute: str | None) -> None:
    """bf16 since 0.19 and checkpoints since 0.22 (huggingface/trl, trl/trainer/sft_config.py at these tags); 1024 tokens in all."""
    found = from_text(f"{command} {VERSIONED}", **H100)
    said = values(found)
    assert (said["training.precision"], said.get("training.recompute")) == (precision, recompute)
    assert said["training.sequence_length"] == 1024
    assert found.questions == len({path for path in found.to_fill if path == "training.recompute"})


def test_a_key_that_only_trl_has_tells_it_in_yaml() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-1.5B\nper_device_train_batch_size: 4\nnum_train_epochs: 1\noutput_dir: out\nmax_length: 2048\n"
    assert values(from_text(text, **H100))["training.precision"] == "fp32"
    assert values(from_text(f"{text}packing_strategy: bfd\n", **H100))["training.precision"] == "amp-bf16"


def test_a_deepspeed_file_that_accelerate_passes_over_is_said() -> None:
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\nnum_machines: 1\n"
    found = from_text(f"{text}deepspeed_config: ./ds_z2.json\n", **H100)
    assert values(found)["parallel.data.strategy"] == "ddp"
    assert any("ds_z2.json counts with distributed_type: DEEPSPEED only" in str(text) for text in found.warnings)

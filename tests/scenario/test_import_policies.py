"""GRPO of TRL, axolotl, ms-swift and Megatron-SWIFT becomes one update on answers that are there, with the passes that come before it."""

from __future__ import annotations

from typing import Any

import pytest

from parsim import simulate
from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given, ImportedScenario
from parsim.interop.trl_versions import TrlVersions, versions_of
from parsim.scenario import load
from parsim.scenario.build import build

TRL: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen2.5-1.5B-Instruct", "bf16": True, "gradient_checkpointing": True, "beta": 0.04,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_generations": 8, "max_prompt_length": 512,
    "max_completion_length": 1024, "num_train_epochs": 1,
}  # fmt: skip
SWIFT = (
    "NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-1.5B-Instruct --tuner_type full --torch_dtype bfloat16 "
    "--max_length 1024 --max_completion_length 2048 --num_generations 8 --deepspeed zero2 "
)
MEGATRON = (
    "NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --model Qwen/Qwen2.5-1.5B-Instruct --tuner_type full --bf16 true "
    "--max_length 1024 --max_completion_length 2048 --micro_batch_size 2 --global_batch_size 128 --vllm_mode server "
)
AXOLOTL = (
    "base_model: Qwen/Qwen2.5-1.5B-Instruct\nrl: grpo\ndatasets: [{path: x, type: y}]\nsequence_len: 2048\nmicro_batch_size: 4\n"
    "gradient_accumulation_steps: 4\nbf16: true\ntrl:\n  num_generations: 4\n  max_completion_length: 256\n"
)
ON = "8x h100-sxm"


def yaml(changes: dict[str, Any]) -> str:
    return "".join(f"{name}: {str(value).lower() if isinstance(value, bool) else value}\n" for name, value in changes.items())


def trl(on: str | None = ON, **changes: Any) -> ImportedScenario:
    kept = {name: value for name, value in (TRL | changes).items() if value is not ...}
    return import_config(yaml(kept), "job.yaml", Given(on=on))


def command(text: str, **given: Any) -> ImportedScenario:
    return import_config(text, "run.sh", Given(**{"on": ON} | given))


def axolotl(more: str = "", sequence: int | None = 1024) -> ImportedScenario:
    return import_config(AXOLOTL + more, "job.yaml", Given(on=ON, sequence_length=sequence))


def at(read: ImportedScenario, path: str) -> Any:
    holder: Any = read.tree
    for key in path.split("."):
        holder = holder.get(key) if isinstance(holder, dict) else None
    return holder


def objective(read: ImportedScenario) -> Any:
    return at(read, "training.objective")


def fates(read: ImportedScenario) -> dict[str, str]:
    return {fate.key.written: fate.kind for fate in read.fates}


def test_an_update_of_trl() -> None:
    read = trl()
    assert read.to_fill == ()
    assert read.tree["training"] == {
        "sequence_length": 1536,
        "micro_batch": 4,
        "gradient_accumulation": 4,
        "objective": "grpo-on-policy",
        "precision": "amp-bf16",
        "optimizer": {"name": "adamw", "implementation": "fused", "clip_gradients": True},
        "recompute": "full",
    }
    assert not [fate for fate in read.fates if fate.kind in ("unknown", "not modelled")]
    assert any("generating and scoring the answers is not part of it" in str(warning) for warning in read.warnings)
    assert any("generating and scoring" in str(warning) for warning in simulate(read.tree).warnings)


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ({"max_prompt_length": 256}, "training.sequence_length", 1280),
        ({"max_completion_length": 2048}, "training.sequence_length", 2560),
        ({"per_device_train_batch_size": 8}, "training.micro_batch", 8),
        ({"gradient_accumulation_steps": 8}, "training.gradient_accumulation", 8),
        ({"beta": 0.0}, "training.objective", "grpo-on-policy-without-reference"),
        ({"steps_per_generation": 2}, "training.objective", "grpo-on-policy"),  # two generations for an update
        ({"steps_per_generation": 8}, "training.objective", "grpo"),  # two updates per generation
        ({"steps_per_generation": 3}, "training.objective", "grpo"),
        ({"steps_per_generation": 8, "beta": 0}, "training.objective", "grpo-without-reference"),
        ({"generation_batch_size": 128}, "training.objective", "grpo-on-policy"),  # 4 samples x 8 GPUs x 4
        ({"generation_batch_size": 256}, "training.objective", "grpo"),
        ({"use_vllm": True, "vllm_importance_sampling_correction": True}, "training.objective", "grpo"),
        ({"use_vllm": True, "vllm_importance_sampling_correction": False}, "training.objective", "grpo-on-policy"),
        ({"use_vllm": False, "vllm_importance_sampling_correction": True}, "training.objective", "grpo-on-policy"),
        ({"use_vllm": True, "vllm_enable_sleep_mode": True}, "training.objective", "grpo"),  # a key of TRL 0.23
        ({"use_vllm": True, "vllm_device": "auto"}, "training.objective", "grpo-on-policy"),  # and one of 0.17
        ({"bf16": False, "fp16": True}, "training.precision", "amp-fp16"),
        ({"gradient_checkpointing": False}, "training.recompute", None),
        ({"use_peft": True}, "training.finetune.method", "lora"),
    ],
)
def test_one_key_changes_the_update(changes: dict[str, Any], path: str, value: object) -> None:
    assert at(trl(**changes), path) == value


@pytest.mark.parametrize("changes", [{"loss_type": "dr_grpo"}, {"epsilon_high": 0.28}, {"scale_rewards": False}])
def test_what_weighs_answers_changes_nothing(changes: dict[str, Any]) -> None:
    read = trl(**changes)
    assert read.tree == trl().tree
    assert fates(read)[next(iter(changes))] == "no effect"


def test_answers_to_a_prompt_are_counted_by_the_batch() -> None:
    assert trl(num_generations=4).tree == trl().tree
    assert "num_generations: 4" in trl(num_generations=4).yaml


def test_memory_that_vllm_keeps_stays_free() -> None:
    """0.3 of the 79.11 GiB that an H100 shows, unless the share is said, vLLM sleeps, or has GPUs of its own."""
    correction = {"use_vllm": True, "vllm_importance_sampling_correction": True}
    path = "cluster.memory_reserve"
    assert at(trl(**correction, vllm_mode="colocate"), path) == "23.73 GiB"
    assert at(trl(**correction, vllm_mode="colocate", vllm_gpu_memory_utilization=0.5), path) == "39.56 GiB"
    assert at(trl(**correction, vllm_mode="server"), path) is None
    assert at(trl(**correction, vllm_server_host="0.0.0.0"), path) is None
    assert at(trl(**correction, vllm_mode="colocate", vllm_enable_sleep_mode=True), path) is None
    assert at(trl(use_vllm=False, vllm_mode="colocate"), path) is None
    nowhere = trl(on=None, **correction, vllm_mode="colocate")
    assert path in nowhere.to_fill
    assert nowhere.questions == 1  # the machine says it
    built = build(load(trl(**correction, vllm_mode="colocate").tree))
    assert built.memory_reserve == pytest.approx(0.3 * 79.11 * 2**30, rel=1e-3)


def test_what_depends_on_the_version_of_trl_is_one_question() -> None:
    read = trl(beta=..., bf16=..., gradient_checkpointing=...)
    assert read.to_fill == ("training.objective", "training.precision", "training.recompute")
    assert read.questions == 1
    assert "grpo-on-policy, or grpo-on-policy-without-reference since TRL 0.19" in read.yaml
    assert trl(bf16=..., gradient_checkpointing=..., vllm_device="auto").tree["training"]["precision"] == "fp32"


@pytest.mark.parametrize("key", [{"entropy_coef": 0.0}, {"cast_lm_head_to_fp32": False}, {"vllm_enable_sleep_mode": False}])
def test_a_key_of_newer_versions_says_what_they_take(key: dict[str, Any]) -> None:
    read = trl(beta=..., bf16=..., gradient_checkpointing=..., **key)
    assert read.to_fill == ()
    assert objective(read) == "grpo-on-policy-without-reference"
    assert (at(read, "training.precision"), at(read, "training.recompute")) == ("amp-bf16", "full")


def test_versions_by_keys() -> None:
    assert versions_of(["beta", "num_generations"]) == TrlVersions((0, 14), None)
    assert versions_of(["vllm_mode", "max_prompt_length"]) == TrlVersions((0, 18), (0, 27))
    assert versions_of(["vllm_device", "num_iterations"]) == TrlVersions((0, 16), (0, 17))
    assert versions_of(["vllm_mode", "max_prompt_length"], own=False) == TrlVersions((0, 18), None)
    assert versions_of(["entropy_coef"]).values("beta") == {"0.19": 0.0}
    assert versions_of(["vllm_device"]).values("beta") == {"0.14": 0.04}
    assert versions_of(["vllm_mode"]).said("beta") == "beta is 0.04 if not given, 0.0 since TRL 0.19"


def test_lengths_that_are_not_said() -> None:
    assert at(trl(max_completion_length=...), "training.sequence_length") == 512 + 256
    asked = trl(max_prompt_length=...)
    assert asked.to_fill == ("training.sequence_length",)
    assert "tokens of a prompt + 1024 of an answer" in asked.yaml
    told = import_config(yaml(TRL), "job.yaml", Given(on=ON, sequence_length=700))
    assert at(told, "training.sequence_length") == 700


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_iterations": 2}, "num_iterations"),
        ({"teacher_model_name_or_path": "x"}, "teacher_model_name_or_path"),
        ({"generation_batch_size": 100}, "generation_batch_size"),  # 4 x 8 GPUs do not divide it
        ({"max_completion_length": "long"}, "max_completion_length"),
        ({"beta": "some"}, "beta"),
        ({"steps_per_generation": 0}, "steps_per_generation"),
        ({"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 1.5}, "vllm_gpu_memory_utilization"),
    ],
)
def test_another_update_is_refused_by_its_key(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ScenarioError) as error:
        trl(**changes)
    assert named in [finding.path for finding in error.value.findings]


@pytest.mark.parametrize(
    ("changes", "fate"),
    [
        ({"sync_ref_model": True}, "not modelled"),
        ({"sync_ref_model": False}, "no effect"),
        ({"use_liger_loss": True}, "not modelled"),
        ({"entropy_coef": 0.01}, "not modelled"),
        ({"reward_model_name_or_path": "x"}, "not modelled"),
        ({"reward_funcs": "accuracy"}, "no effect"),
        ({"ds3_gather_for_generation": False}, "no effect"),
        ({"vllm_tensor_parallel_size": 4}, "no effect"),
        ({"nonsense_of_grpo": 1}, "unknown"),
    ],
)
def test_what_an_update_does_not_show_is_said(changes: dict[str, Any], fate: str) -> None:
    assert fates(trl(**changes))[next(iter(changes))] == fate


def test_ligers_loss_makes_logits_answer_by_answer_where_no_other_pass_needs_them() -> None:
    read = trl(beta=0.0, use_liger_loss=True)
    assert at(read, "training.loss") == {"kernel": "fused", "chunks": 4}
    assert build(load(read.tree)).training.loss_chunks == 4
    newer = trl(beta=0.0, use_liger_kernel=True, cast_lm_head_to_fp32=False)
    assert (at(newer, "training.loss.chunks"), at(newer, "software.fusion")) == (4, "fused")
    older = trl(beta=0.0, use_liger_kernel=True, vllm_device="auto")
    assert (at(older, "training.loss"), at(older, "software.fusion")) == (None, "fused")
    assert at(trl(use_liger_loss=True), "training.loss") is None


def test_a_generation_is_a_whole_number_of_prompts() -> None:
    text = "no whole number of prompts"
    assert text not in trl().yaml
    assert text in trl(num_generations=12).yaml


def test_examples_are_prompts() -> None:
    read = import_config(yaml(TRL), "job.yaml", Given(on=ON, examples=1000))
    assert at(read, "training.examples") == 8000
    assert "has no use" not in read.yaml


def test_the_command_and_scripts_of_trl() -> None:
    options = "--model_name_or_path Qwen/Qwen2.5-1.5B-Instruct --bf16 true --beta 0.1 --gradient_checkpointing true --max_prompt_length 512"
    assert objective(command(f"trl grpo {options}")) == "grpo-on-policy"
    assert objective(command(f"accelerate launch --num_processes 8 examples/scripts/grpo_vlm.py {options} --num_generations 8")) == (
        "grpo-on-policy"
    )
    with pytest.raises(ScenarioError, match="GRPO: answers are generated"):
        command(f"python open_instruct/grpo_fast.py {options.replace('--max_prompt_length 512', '--response_length 512')}")


def test_arguments_in_the_file_of_config(tmp_path: Any) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml(TRL))
    script = tmp_path / "run.sh"
    script.write_text("trl grpo --config recipe.yaml --beta 0.0\n")
    read = import_config(script.read_text(), str(script), Given(on=ON))
    assert objective(read) == "grpo-on-policy-without-reference"
    assert at(read, "training.micro_batch") == 4
    script.write_text("trl grpo --config nowhere.yaml\n")
    with pytest.raises(ScenarioError, match="is not there"):
        import_config(script.read_text(), str(script), Given(on=ON))


def test_the_file_of_ms_swifts_config_says_what_is_trained_for(tmp_path: Any) -> None:
    """Without it ``rlhf`` would be DPO."""
    (tmp_path / "job.yaml").write_text(yaml({"rlhf_type": "grpo", "model": "Qwen/Qwen2.5-1.5B-Instruct", "max_length": 1024}))
    script = tmp_path / "run.sh"
    for program, options in (("swift", "--tuner_type full"), ("megatron", "--micro_batch_size 2 --tuner_type full")):
        text = f"NPROC_PER_NODE=8 {program} rlhf --config job.yaml --torch_dtype bfloat16 {options}\n"
        script.write_text(text)
        read = import_config(text, str(script), Given(on=ON))
        assert (objective(read), at(read, "training.sequence_length")) == ("grpo", 1024 + 512)
        with pytest.raises(ScenarioError, match="is not there"):
            import_config(text.replace("job.yaml", "other.yaml"), str(script), Given(on=ON))
    with pytest.raises(ScenarioError, match="Ray"):
        command(f"{MEGATRON} --use_ray true")


@pytest.mark.parametrize(
    ("options", "path", "value"),
    [
        ("", "training.sequence_length", 3072),
        ("", "training.objective", "grpo"),  # beta is 0.04
        ("", "training.micro_batch", 1),
        ("", "training.gradient_accumulation", 1),
        ("--max_length 512", "training.sequence_length", 2560),
        ("--max_completion_length 512", "training.sequence_length", 1536),
        ("--beta 0", "training.objective", "grpo-without-reference"),
        ("--per_device_train_batch_size 4", "training.micro_batch", 4),
        ("--gradient_accumulation_steps 2", "training.gradient_accumulation", 2),
        ("--use_vllm true --vllm_mode colocate", "cluster.memory_reserve", "71.2 GiB"),
        ("--use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.5", "cluster.memory_reserve", "39.56 GiB"),
        ("--use_vllm true --vllm_mode colocate --sleep_level 1", "cluster.memory_reserve", None),
        ("--use_vllm true --vllm_mode server --vllm_server_host h", "cluster.memory_reserve", None),
        ("--advantage_estimator rloo", "training.objective", "grpo"),
        ("--ref_model Qwen/Qwen2.5-1.5B-Instruct", "training.objective", "grpo"),
        ("--beta 0 --ref_model other/model", "training.objective", "grpo-without-reference"),
    ],
)
def test_an_update_of_ms_swift(options: str, path: str, value: object) -> None:
    read = command(SWIFT + options)
    assert read.to_fill == ()
    assert at(read, path) == value


def test_ms_swift_reads_answers_before_every_update_since_a_version() -> None:
    older = SWIFT.replace("--tuner_type", "--train_type")
    asked = command(older)
    assert asked.to_fill == ("training.objective",)
    assert "grpo, or grpo-on-policy" in asked.yaml
    assert "since ms-swift 3.11" in asked.yaml
    assert objective(command(f"{older} --gradient_accumulation_steps 2 --steps_per_generation 4")) == "grpo"


@pytest.mark.parametrize(
    "options", ["--num_iterations 4", "--ref_model other/model", "--teacher_model x", "--chord_sft_dataset x", "--advantage_reweight rlsd"]
)
def test_another_update_of_ms_swift_is_refused_by_its_option(options: str) -> None:
    with pytest.raises(ScenarioError) as error:
        command(SWIFT + options)
    assert options.split(maxsplit=1)[0] in [finding.path for finding in error.value.findings]


def test_an_update_of_megatron_swift() -> None:
    """It reads the answers before every update; the reference model is left out with beta 0, and memory is vLLM's beside it."""
    read = command(MEGATRON)
    assert (objective(read), at(read, "training.sequence_length"), at(read, "training.global_batch")) == ("grpo", 3072, 128)
    assert build(load(read.tree)).training.micro_batches == 8
    assert objective(command(f"{MEGATRON} --beta 0")) == "grpo-without-reference"
    assert at(command(f"{MEGATRON} --vllm_mode colocate"), "cluster.memory_reserve") == "71.2 GiB"
    assert objective(command(f"{MEGATRON} --steps_per_generation 4")) == "grpo"
    divided = build(load(command(f"{MEGATRON} --tensor_model_parallel_size 2 --pipeline_model_parallel_size 2").tree))
    assert (divided.parallelism.tensor.size, divided.parallelism.pipeline.size, divided.training.micro_batches) == (2, 2, 32)


@pytest.mark.parametrize(
    ("more", "path", "value"),
    [
        ("  beta: 0.01\n", "training.objective", "grpo-on-policy"),
        ("  beta: 0.01\n  vllm_importance_sampling_correction: true\n  use_vllm: true\n", "training.objective", "grpo"),
        ("  beta: 0\n", "training.objective", "grpo-on-policy-without-reference"),
        ("rl_beta: 0.1\n", "training.objective", "grpo-on-policy"),
        ("  beta: 0\nrl_beta: 0.1\n", "training.objective", "grpo-on-policy-without-reference"),
        ("  multi_objective_aggregation: sum_then_normalize\n", "training.objective", "grpo-on-policy-without-reference"),
        (
            "  beta: 0\n  use_vllm: true\n  vllm_mode: colocate\nvllm: {gpu_memory_utilization: 0.5}\n",
            "cluster.memory_reserve",
            "39.56 GiB",
        ),
        ("  beta: 0\n  use_vllm: true\n  vllm_mode: server\nvllm: {gpu_memory_utilization: 0.5}\n", "cluster.memory_reserve", None),
    ],
)
def test_an_update_of_axolotl(more: str, path: str, value: object) -> None:
    assert at(axolotl(more), path) == value


def test_axolotls_length_is_no_limit_of_prompts_and_answers() -> None:
    read = axolotl("  beta: 0\n", sequence=None)
    assert read.to_fill == ("training.sequence_length",)
    assert "tokens of a prompt + 256 of an answer (--sequence); sequence_len limits neither" in read.yaml


@pytest.mark.parametrize("more", ["  num_iterations: 2\n", "  async_prefetch: true\n", "  use_data_producer: true\n"])
def test_another_update_of_axolotl_is_refused_by_its_key(more: str) -> None:
    with pytest.raises(ScenarioError, match=r"trl\."):
        axolotl(more)


def test_rewards_that_are_normed_one_by_one_are_the_same_update() -> None:
    assert objective(import_config(f"{AXOLOTL}  beta: 0\n".replace("rl: grpo", "rl: gdpo"), "job.yaml", Given(on=ON))) == (
        "grpo-on-policy-without-reference"
    )

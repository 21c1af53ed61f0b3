"""Keys that make another job of it are modelled, asked for, or refused by name: never trained as if they were not there."""

from __future__ import annotations

import pytest

from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given, ImportedScenario

FACTORY = "model_name_or_path: Qwen/Qwen3-4B\ncutoff_len: 1024\ntemplate: qwen3\nper_device_train_batch_size: 2\nbf16: true\n"
TRL = "model_name_or_path: Qwen/Qwen3-4B\nmax_length: 1024\nper_device_train_batch_size: 2\nnum_train_epochs: 1\nbf16: true\n"


def imported(text: str) -> ImportedScenario:
    return import_config(text, "job.yaml", Given(on="8x h100-sxm"))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("stage: ppo", "stage"),
        ("stage: grpo", "stage"),
        ("stage: nonsense", "stage"),
        ("stage: sft\nfinetuning_type: oft", "finetuning_type"),
        ("stage: sft\nfinetuning_type: lora\nquantization_bit: 3", "quantization_bit"),
        ("stage: sft\nfinetuning_type: full\nquantization_bit: 4", "quantization_bit"),
        ("stage: sft\nfinetuning_type: lora\nquantization_bit: 4\nquantization_method: hqq", "quantization_method"),
        ("stage: sft\nuse_galore: true", "use_galore"),
        ("stage: sft\nuse_badam: true", "use_badam"),
        ("stage: sft\nuse_apollo: true", "use_apollo"),
        ("stage: sft\nuse_llama_pro: true", "use_llama_pro"),
        ("stage: sft\nfinetuning_type: full\nuse_dora: true", "use_dora"),
        ("stage: sft\nmixture_of_depths: convert", "mixture_of_depths"),
        ("stage: sft\nuse_kt: true", "use_kt"),
        ("stage: sft\nuse_cpu: true", "use_cpu"),
        *((f"stage: sft\noptim: {name}", "optim") for name in (
            "galore_adamw", "apollo_adamw", "lomo", "adalomo", "ademamix", "lion_8bit", "schedule_free_adamw")),
    ],
)  # fmt: skip
def test_other_jobs_are_refused_by_name(line: str, named: str) -> None:
    with pytest.raises(ScenarioError) as error:
        imported(f"{FACTORY}{line}\n")
    assert [finding.path for finding in error.value.findings] == [named]


@pytest.mark.parametrize("name", ["use_galore", "use_badam", "use_llama_pro", "use_cpu"])
def test_what_is_switched_off_is_no_other_job(name: str) -> None:
    fates = {fate.key.name: fate.why for fate in imported(f"{FACTORY}stage: sft\n{name}: false\ngalore_rank: 16\n").fates}
    assert fates[name] == "switched off"


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        ("optim: paged_adamw_8bit", "name", "adam-8bit"),
        ("optim: adamw_8bit", "name", "adam-8bit"),
        ("optim: muon", "name", "muon"),
        ("use_muon: true", "name", "muon"),
    ],
)
def test_other_optimizers_are_written(line: str, path: str, value: str) -> None:
    read = imported(f"{FACTORY}stage: sft\nfinetuning_type: full\n{line}\n")
    assert read.tree["training"]["optimizer"][path] == value
    assert ("paged states" in read.yaml) == ("paged" in line)


@pytest.mark.parametrize(
    "name", ["use_rslora: true", "pissa_init: true", "loraplus_lr_ratio: 16.0", "neftune_noise_alpha: 5", "use_unsloth: true"]
)
def test_what_does_not_change_the_work_is_said(name: str) -> None:
    key = name.partition(":")[0]
    fates = {fate.key.name: fate.kind for fate in imported(f"{FACTORY}stage: sft\n{name}\n").fates}
    assert fates[key] == ("not modelled" if key in ("neftune_noise_alpha", "use_unsloth") else "no effect")


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        (f"{FACTORY}stage: dpo\n", "dpo"),
        (f"{FACTORY}stage: dpo\npref_loss: simpo\n", "orpo"),
        (f"{FACTORY}stage: dpo\npref_loss: orpo\n", "orpo"),
        (f"{FACTORY}stage: kto\n", "kto"),
        (f"{FACTORY}stage: rm\n", "reward"),
        (f"{FACTORY}stage: sft\n", None),
        (f"{TRL}beta: 0.1\n", "FILL-IN"),
        (f"{TRL}beta: 0.1\nrpo_alpha: 1.0\n", "dpo"),
        (f"{TRL}beta: 0.1\nprecompute_ref_log_probs: true\n", "orpo"),
        (f"{TRL}center_rewards_coefficient: 0.01\n", "reward"),
        (f"{TRL}desirable_weight: 1.0\n", "kto"),
        ("trl dpo --model_name_or_path Qwen/Qwen3-4B --max_length 1024 --per_device_train_batch_size 2", "dpo"),
        (
            "accelerate launch examples/scripts/orpo.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --max_length 9",
            "orpo",
        ),
        (
            "python trl/scripts/reward_modeling.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --max_length 9",
            "reward",
        ),
        ("torchrun --nproc_per_node=1 open_instruct/dpo.py --model_name_or_path x --per_device_train_batch_size 2 --max_length 9", "dpo"),
        ("python mason.py -- python run_dpo_lora.py --model_name_or_path x --per_device_train_batch_size 2 --max_length 9", "dpo"),
        ("trl sft --model_name_or_path Qwen/Qwen3-4B --max_length 1024 --per_device_train_batch_size 2", None),
    ],
)
def test_objectives_are_told(text: str, objective: str | None) -> None:
    assert imported(text).tree["training"].get("objective") == objective


@pytest.mark.parametrize(
    "text",
    [
        f"{TRL}num_ppo_epochs: 4\nnum_generations: 16\n",
        f"{TRL}rloo_k: 4\n",
        f"{TRL}normalize_advantages: true\nnum_generations: 4\n",
        f"{TRL}use_vllm: true\n",
        "trl rloo --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --num_generations 4",
        "accelerate launch online_dpo.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --use_vllm",
        "accelerate launch examples/scripts/ppo.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2",
        f"{FACTORY}stage: dpo\nref_model: other/model\n",
        "python open_instruct/grpo_fast.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --beta 0.1",
    ],
)
def test_generated_answers_and_other_references_are_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match="not supported yet"):
        imported(text)


def test_a_base_in_eight_bits_is_bitsandbytes() -> None:
    for text in (f"{FACTORY}stage: sft\nfinetuning_type: lora\nquantization_bit: 8\n", f"{TRL}use_peft: true\nload_in_8bit: true\n"):
        assert not imported(text).to_fill
        assert imported(text).tree["training"]["finetune"]["base"] == "int8"


DEEPSPEED = '{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}, %s}'


def test_every_auto_of_deepspeed_is_one_question_or_an_answer() -> None:
    text = DEEPSPEED % (
        '"fp16": {"enabled": "auto"}, "train_batch_size": "auto", "gradient_clipping": "auto", "zero_optimization": {"stage": "auto", '
        '"overlap_comm": "auto", "reduce_bucket_size": "auto", "offload_optimizer": {"device": "auto"}}'
    )
    job = {"on": "8x a100-80gb", "model": "llama-2-7b", "sequence_length": 128}
    asked = import_config(text, "ds.json", Given(**job)).to_fill
    assert asked == (
        "training.micro_batch",
        "training.gradient_accumulation",
        "training.precision",
        "parallel.data.strategy",
        "training.offload.optimizer",
    )
    answered = import_config(text, "ds.json", Given(**job, micro_batch=2, gradient_accumulation=4, precision="bf16"))
    assert answered.to_fill == asked[3:]
    assert answered.tree["training"] | {"micro_batch": 2, "gradient_accumulation": 4, "precision": "bf16"} == answered.tree["training"]


def test_an_answer_that_nobody_asks_for_is_said_to_have_no_use() -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "fp16": {"enabled": true}}'
    read = import_config(text, "ds.json", Given(on="8x a100-80gb", precision="bf16"))
    assert read.tree["training"]["precision"] == "fp16"
    assert "--precision bf16 has no use" in read.yaml


def test_other_optimizers_of_deepspeed_are_refused() -> None:
    text = DEEPSPEED % '"optimizer": {"type": "OneBitAdam"}'
    with pytest.raises(ScenarioError, match="not supported yet: the optimizer OneBitAdam"):
        import_config(text, "ds.json", Given(on="8x a100-80gb"))


AXOLOTL = "base_model: meta-llama/Meta-Llama-3-8B\nsequence_len: 1024\nmicro_batch_size: 1\ngradient_accumulation_steps: 2\nbf16: true\n"


@pytest.mark.parametrize(
    ("line", "objective"), [("rl: dpo", "dpo"), ("rl: orpo", "orpo"), ("rl: kto", "kto"), ("reward_model: true", "reward")]
)
def test_axolotl_says_what_is_trained_for(line: str, objective: str) -> None:
    assert imported(f"{AXOLOTL}{line}\ndatasets: [{{path: x, type: y}}]\n").tree["training"]["objective"] == objective


def test_a_script_that_is_sourced_from_an_unknown_folder_is_named_legibly() -> None:
    text = 'ROOT=$(cd .. && pwd)\nsource "$ROOT/.env"\nswift sft --model Qwen/Qwen2.5-7B-Instruct --max_length 9'
    assert "/.env is another script" in import_config(text, "train.sh", Given()).yaml


def test_adam_mini_counts_before_optim() -> None:
    found = imported(f"{FACTORY}stage: sft\nfinetuning_type: full\nuse_adam_mini: true\noptim: adamw_torch\n").tree
    assert found["training"]["optimizer"] == {"name": "adam-mini", "implementation": "loop"} | found["training"]["optimizer"]
    off = imported(f"{FACTORY}stage: sft\nfinetuning_type: full\nuse_adam_mini: false\noptim: adamw_torch\n").tree
    assert off["training"]["optimizer"]["name"] == "adamw"


@pytest.mark.parametrize(("line", "layers"), [("freeze_trainable_layers: 8", 8), ("", 2)])
def test_llama_pro_trains_layers_that_stand_evenly_apart(line: str, layers: int) -> None:
    found = imported(f"{FACTORY}stage: sft\nfinetuning_type: freeze\nuse_llama_pro: true\n{line}\n").tree
    assert found["training"]["finetune"] == {"method": "freeze", "freeze": {"spread": layers}}


def test_states_of_torchao_in_four_and_eight_bits() -> None:
    for optim, name in (("adamw_torch_4bit", "adam-4bit"), ("adamw_torch_8bit", "adam-8bit")):
        found = imported(f"{FACTORY}stage: sft\nfinetuning_type: full\noptim: {optim}\n").tree
        assert found["training"]["optimizer"]["name"] == name


@pytest.mark.parametrize(
    ("lines", "precision"),
    [
        ("finetuning_type: lora\n", "pure-bf16"),
        ("quantization_bit: 4\n", "pure-bf16"),
        ("finetuning_type: lora\nfp16: true\n", "amp-fp16"),
        ("finetuning_type: lora\nbf16: true\n", "amp-bf16"),
        ("finetuning_type: full\n", "fp32"),
    ],
)
def test_without_a_half_type_frozen_weights_keep_their_own(lines: str, precision: str) -> None:
    """LLaMA-Factory loads weights in the model's type and casts those that are trained to fp32; autocast needs bf16 or fp16."""
    text = f"{FACTORY.replace('bf16: true', 'stage: sft')}{lines}"
    assert import_config(text, "-", Given(on="8x h100-sxm")).tree["training"]["precision"] == precision

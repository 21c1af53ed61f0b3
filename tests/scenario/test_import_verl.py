"""Commands of verl: supervised fine-tuning and updates of a policy become scenarios, what trains a critic is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given, ImportedScenario
from parsim.scenario import load
from parsim.scenario.build import build

SFT = (
    "torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.train_files=a.parquet "
    "data.max_length=2048 model.partial_pretrain=Qwen/Qwen2.5-7B-Instruct trainer.total_epochs=2 optim.lr=1e-5 "
)

BY_ENGINE = (
    "torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer data.train_files=a.parquet "
    "data.max_length=2048 model.path=Qwen/Qwen2.5-7B-Instruct optim.lr=1e-5 "
)
OF_MEGATRON = f"{BY_ENGINE} engine=megatron optim=megatron engine.tensor_model_parallel_size=2 engine.pipeline_model_parallel_size=2"

ACTOR = "actor_rollout_ref.actor"
GRPO = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 data.max_prompt_length=512 "
    "data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct actor_rollout_ref.rollout.n=5 "
    f"actor_rollout_ref.model.enable_gradient_checkpointing=True {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.use_kl_loss=True "
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=8 trainer.n_gpus_per_node=8 trainer.nnodes=1"
)

FULL = " ".join(
    f"+{ACTOR}.megatron.override_transformer_config.recompute_{key}" for key in ("granularity=full", "method=uniform", "num_layers=1")
)
MEGATRON = (
    f"{GRPO} --config-name=ppo_megatron_trainer.yaml {ACTOR}.megatron.tensor_model_parallel_size=2 "
    f"{ACTOR}.megatron.pipeline_model_parallel_size=2 {ACTOR}.megatron.param_offload=True {FULL}"
)


def imported(text: str) -> ImportedScenario:
    return import_config(f"set -x\n{text}\n", "run.sh", Given(on="8x h100-sxm"))


def value_at(text: str, path: str) -> object:
    """What an imported scenario says of a key; None if nothing."""
    holder: object = imported(text).tree
    for key in path.split("."):
        holder = holder.get(key) if isinstance(holder, dict) else None
    return holder


@pytest.mark.parametrize(
    "text", [f"{SFT} model.enable_gradient_checkpointing=true +data.multiturn.enable=true", BY_ENGINE], ids=["of-fsdp", "by-an-engine"]
)
def test_supervised_fine_tuning(text: str) -> None:
    """An engine takes as many samples as 8,192 tokens of a GPU hold: four, which is the number that the first trainer has."""
    read = imported(text)
    assert read.tool == "verl"
    assert read.to_fill == ()
    assert read.tree["training"] == {
        "sequence_length": 2048,
        "global_batch": 256,
        "micro_batch": 4,
        "precision": "amp-bf16",
        "optimizer": {"name": "adamw", "clip_gradients": True},
        "recompute": "full",
    }
    assert read.tree["parallel"] == {"data": {"strategy": "fsdp"}}
    assert not [fate for fate in read.fates if fate.kind in ("unknown", "not modelled")]
    assert build(load(read.tree)).training.micro_batches == 256 // (4 * 8)


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("data.train_batch_size=64", "training.global_batch", 64),
        ("data.micro_batch_size_per_gpu=2", "training.micro_batch", 2),
        ("model.fsdp_config.model_dtype=bf16", "training.precision", "pure-bf16"),
        ("model.enable_gradient_checkpointing=False", "training.recompute", None),
        ("model.lora_rank=32", "training.finetune.rank", 32),
        ("model.strategy=fsdp2", "parallel.data.fsdp_version", 2),
        ("model.fsdp_config.cpu_offload=True model.fsdp_config.offload_params=True", "training.offload.optimizer", "cpu"),
        ("model.fsdp_config.cpu_offload=True", "training.offload", None),  # FSDP 1 is told to offload nothing
        ("model.strategy=fsdp2 model.fsdp_config.cpu_offload=True model.fsdp_config.offload_params=True", "training.offload", None),
        ("data.micro_batch_size=32 data.micro_batch_size_per_gpu=2", "training.micro_batch", 2),
        ("ulysses_sequence_parallel_size=2", "parallel.context.size", 2),
    ],
)
def test_one_override_changes_the_scenario(override: str, path: str, value: object) -> None:
    assert value_at(SFT + override, path) == value


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("engine.ulysses_sequence_parallel_size=2", "parallel.context", {"size": 2, "method": "ulysses"}),
        ("engine.ulysses_sequence_parallel_size=2", "training.micro_batch", 8),
        ("data.max_token_len_per_gpu=4096", "training.micro_batch", 2),
        ("data.use_dynamic_bsz=False data.micro_batch_size_per_gpu=1", "training.micro_batch", 1),
        ("engine.strategy=fsdp2 engine.reshard_after_forward=False", "parallel.data.reshard_after_forward", False),
        ("engine.strategy=fsdp2", "parallel.data.fsdp_version", 2),
        ("engine.fsdp_size=4", "parallel.data.shard_size", 4),
        ("engine.model_dtype=bfloat16", "training.precision", "pure-bf16"),
        ("model.enable_gradient_checkpointing=False", "training.recompute", None),
        ("model.lora_rank=32", "training.finetune.rank", 32),
        ("optim.clip_grad=0", "training.optimizer.clip_gradients", False),
    ],
)
def test_one_override_changes_the_fine_tuning_by_an_engine(override: str, path: str, value: object) -> None:
    assert value_at(f"{BY_ENGINE} {override}", path) == value


def test_fine_tuning_by_megatrons_engine() -> None:
    """Settings of the engine are options of Megatron-LM; four of eight GPUs have a copy of the model, so two ranks have samples."""
    read = imported(f"{OF_MEGATRON} engine.use_remove_padding=False optim.clip_grad=0.5")
    assert read.to_fill == ()
    assert read.tree["parallel"] == {
        "tensor": {"size": 2, "sequence_parallel": True},
        "pipeline": {"size": 2},
        "data": {"strategy": "zero1", "overlap_reduce": False},
    }
    training = read.tree["training"]
    assert (training["precision"], training["micro_batch"], "recompute" in training) == ("bf16-fp32grad", 4, False)
    assert not [fate for fate in read.fates if fate.kind in ("unknown", "not modelled")]
    assert build(load(read.tree)).training.micro_batches == 256 // (4 * 2)


def test_ray_starts_the_processes_that_the_trainer_asks_for() -> None:
    text = BY_ENGINE.replace("torchrun --standalone --nnodes=1 --nproc_per_node=8", "python3").replace("sft_trainer", "sft_trainer_ray")
    read = imported(f"{text} trainer.nnodes=2 trainer.n_gpus_per_node=4")
    assert (read.tree["cluster"]["nodes"], read.tree["cluster"]["gpus"]) == (2, 8)
    assert read.tree["training"]["micro_batch"] == 4


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("engine=veomni", "verl's engine veomni"),
        ("engine.strategy=ddp", "the strategy ddp"),
        ("engine.offload_policy=True", "weights that stay on the host"),
        ("optim.optimizer=SGD", "the optimizer SGD"),
        ("engine.dtype=float16", "products in float16"),
        ("engine=megatron model.lora_rank=8", "adapters under Megatron's engine"),
        ("model.mtp.enable=True", "multi-token prediction"),
    ],
)
def test_what_an_engine_does_not_do_here_is_refused_by_name(override: str, named: str) -> None:
    with pytest.raises(ScenarioError, match=f"not supported yet: {named}"):
        imported(f"{BY_ENGINE} {override}")


def test_what_waits_on_the_host_between_steps_is_not_modelled() -> None:
    fates = {
        fate.key.written: fate.kind for fate in imported(f"{BY_ENGINE} engine.param_offload=True engine.optimizer_offload=False").fates
    }
    assert (fates["engine.param_offload"], fates["engine.optimizer_offload"]) == ("not modelled", "no effect")


def test_checkpointing_is_asked_for_where_versions_differ() -> None:
    assert imported(SFT).to_fill == ("training.recompute",)


@pytest.mark.parametrize("key", ["model.strategy=fsdp", "trainer.save_freq=100", "model.fsdp_config.model_dtype=fp32"])
def test_a_key_of_newer_versions_says_what_they_take_for_checkpointing(key: str) -> None:
    read = imported(f"{SFT} {key}")
    assert (read.to_fill, read.tree["training"]["recompute"]) == ((), "full")


def test_the_older_key_of_the_batch_is_one_question_with_checkpointing() -> None:
    read = imported(f"{SFT} data.micro_batch_size=32")
    assert (set(read.to_fill), read.questions) == ({"training.micro_batch", "training.recompute"}, 1)
    assert "32 / GPUs in verl of 2024" in read.yaml
    with pytest.raises(ScenarioError, match=r"256 samples of a step / 48 = 5\.333 is not whole"):
        imported(f"{SFT} data.micro_batch_size=48")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae data.train_batch_size=1024", "algorithm.adv_estimator"),
        ("python3 -m verl.trainer.main_ppo algorithm.adv_estimator=own data.train_batch_size=1024", "algorithm.adv_estimator"),
        ("python3 -m verl.trainer.main_ppo data.train_batch_size=1024", "python -m"),
        ("python3 -m verl.trainer.main_generation model.path=x", "python -m"),
        (f"{SFT} model.strategy=megatron", "model.strategy"),
        (f"{MEGATRON} actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_rank"),
        (
            f"{MEGATRON} actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=1",
            "actor_rollout_ref.ref.megatron.pipeline_model_parallel_size",
        ),
        (f"{GRPO} {ACTOR}.optim.optimizer=AdamW8bit", f"{ACTOR}.optim.optimizer"),
        (
            f"{GRPO} actor_rollout_ref.model.override_config.num_hidden_layers=2",
            "actor_rollout_ref.model.override_config.num_hidden_layers",
        ),
        (f"{GRPO} actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.actor.ppo_epochs"),
        (
            f"{GRPO} {ACTOR}.ulysses_sequence_parallel_size=2 actor_rollout_ref.ref.ulysses_sequence_parallel_size=4",
            "actor_rollout_ref.ref.ulysses_sequence_parallel_size",
        ),
        (f"{GRPO} actor_rollout_ref.actor.freeze_vision_tower=True", "actor_rollout_ref.actor.freeze_vision_tower"),
        (f"{GRPO} actor_rollout_ref.actor.fsdp_config.offload_policy=True", "actor_rollout_ref.actor.fsdp_config.offload_policy"),
    ],
)
def test_another_job_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(ScenarioError, match="not supported yet") as error:
        imported(text)
    assert [finding.path for finding in error.value.findings] == [named]


def test_an_update_of_a_policy() -> None:
    """256 prompts with five answers each; four updates of a rollout share its forward passes evenly."""
    read = imported(GRPO)
    assert read.to_fill == ()
    assert read.tree["training"] == {
        "sequence_length": 512 + 1024,
        "global_batch": 256 * 5,
        "micro_batch": 8,
        "precision": "amp-bf16",
        "optimizer": {"name": "adamw", "clip_gradients": True},
        "recompute": "full",
        "objective": "grpo",
    }
    assert read.tree["parallel"] == {"data": {"strategy": "fsdp"}}
    assert not [fate for fate in read.fates if fate.kind in ("unknown", "not modelled")]
    assert [remark.path for remark in read.warnings] == ["training.objective"]
    built = build(load(read.tree))
    assert built.training.micro_batches == 1280 // (8 * 8)
    assert [finding.path for finding in built.warnings] == ["training.objective"]


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        (f"{ACTOR}.use_kl_loss=False", "training.objective", "grpo-without-reference"),
        (f"{ACTOR}.use_kl_loss=False algorithm.use_kl_in_reward=True", "training.objective", "grpo"),
        (f"{ACTOR}.ppo_mini_batch_size=128", "training.global_batch", 640),
        ("actor_rollout_ref.rollout.n=8", "training.global_batch", 2048),
        ("data.max_response_length=512", "training.sequence_length", 1024),
        (f"{ACTOR}.fsdp_config.model_dtype=bfloat16", "training.precision", "pure-bf16"),
        ("actor_rollout_ref.model.enable_gradient_checkpointing=False", "training.recompute", None),
        ("actor_rollout_ref.model.lora_rank=64", "training.finetune.rank", 64),
        (f"{ACTOR}.strategy=fsdp2", "parallel.data.fsdp_version", 2),
        (f"{ACTOR}.fsdp_config.fsdp_size=4", "parallel.data.shard_size", 4),
        (f"{ACTOR}.fsdp_config.fsdp_size=4", "parallel.data.strategy", "hsdp"),
        (f"{ACTOR}.fsdp_config.fsdp_size=8", "parallel.data.strategy", "fsdp"),
        (f"{ACTOR}.fsdp_config.reshard_after_forward=False", "parallel.data.reshard_after_forward", False),
        (f"{ACTOR}.grad_clip=0", "training.optimizer.clip_gradients", False),
        (f"{ACTOR}.use_dynamic_bsz=True", "training.micro_batch", 10),  # 16,384 tokens hold 10 answers of 1,536; 160 of a GPU are 16 x 10
        (f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=24000", "training.micro_batch", 10),  # they hold 15
        ("trainer.n_gpus_per_node=4", "cluster.gpus", 4),
        (f"{ACTOR}.ulysses_sequence_parallel_size=2", "parallel.context", {"size": 2, "method": "ulysses"}),
        # 32,768 tokens of two ranks hold 21 answers of 1,536; 320 of a pair are 16 x 20
        (f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ulysses_sequence_parallel_size=2", "training.micro_batch", 20),
    ],
)
def test_one_override_changes_the_update(override: str, path: str, value: object) -> None:
    assert value_at(f"{GRPO} {override}", path) == value


SETTINGS = """hydra: {searchpath: [file://verl/trainer/config]}
defaults: [BASE, _self_]
data: {max_prompt_length: 256, max_response_length: 3840, train_batch_size: 64}
actor_rollout_ref: {rollout: {name: sglang, multi_turn: {enable: true}}}
"""


@pytest.mark.parametrize(("base", "strategy"), [("ppo_trainer", "fsdp"), ("ppo_megatron_trainer", "zero1")])
def test_a_settings_file_of_ones_own_is_read_beside_the_script(base: str, strategy: str, tmp_path: Path) -> None:
    """What the command says counts; the rest is the file's, and verl's below it."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config/mine.yaml").write_text(SETTINGS.replace("BASE", base))
    script = tmp_path / "run.sh"
    command = GRPO.replace("data.max_prompt_length=512 data.max_response_length=1024", "data.max_response_length=768")
    script.write_text(f"{command} --config-path=$ROOT/examples/config --config-name=mine {ACTOR}.ppo_mini_batch_size=32\n")
    read = import_config(script.read_text(), str(script), Given("job", on="hgx-h100"))
    assert read.tree["training"]["sequence_length"] == 256 + 768
    assert read.tree["training"]["global_batch"] == 32 * 5
    assert read.tree["parallel"]["data"]["strategy"] == strategy
    (tmp_path / "config/mine.yaml").write_text(SETTINGS.replace("BASE", "other"))
    with pytest.raises(ScenarioError, match="not supported yet: the settings of other"):
        import_config(script.read_text(), str(script), Given("job", on="hgx-h100"))


def test_a_settings_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"mine.yaml is not there"):
        imported(f"{GRPO} --config-path=config --config-name=mine")


def test_megatrons_engine_is_read_as_megatrons_options() -> None:
    """Eight GPUs are two tensor x two pipeline x two data ranks; the reference model is divided as the policy."""
    read = imported(MEGATRON)
    assert read.to_fill == ()
    assert read.tree["parallel"] == {
        "tensor": {"size": 2, "sequence_parallel": True},
        "pipeline": {"size": 2},
        "data": {"strategy": "zero1", "overlap_reduce": False},
    }
    training = read.tree["training"]
    assert (training["precision"], training["recompute"], training["objective"]) == ("bf16-fp32grad", "full", "grpo")
    assert read.tree["software"] == {"gradient_accumulation_fusion": False, "profile": "megatron-core"}
    assert not [fate for fate in read.fates if fate.kind in ("unknown", "not modelled")]
    assert build(load(read.tree)).training.micro_batches == 1280 // (8 * 2)


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("virtual_pipeline_model_parallel_size=2", "parallel.pipeline.virtual_stages", 2),
        ("virtual_pipeline_model_parallel_size=null", "parallel.pipeline.virtual_stages", None),
        ("context_parallel_size=2", "parallel.context.size", 2),
        ("sequence_parallel=False", "parallel.tensor.sequence_parallel", False),
        ("use_distributed_optimizer=False", "parallel.data.strategy", "ddp"),
        ("override_transformer_config.recompute_granularity=selective", "training.recompute", {"selective": ["attention"]}),
        ("override_transformer_config.gradient_accumulation_fusion=True", "software.gradient_accumulation_fusion", True),
        ("override_ddp_config.overlap_grad_reduce=True", "parallel.data.overlap_reduce", True),
    ],
)
def test_one_setting_of_megatrons_engine_changes_the_update(override: str, path: str, value: object) -> None:
    base = MEGATRON if "recompute" not in override else MEGATRON.replace(FULL, "")
    assert value_at(f"{base} {ACTOR}.megatron.{override}", path) == value


def test_a_setting_of_megatrons_engine_without_a_value_is_an_error() -> None:
    """A variable that nobody has set is not the default."""
    with pytest.raises(ScenarioError, match="it has no value"):
        imported(f"{MEGATRON} {ACTOR}.megatron.context_parallel_size=$RANKS")


def test_micro_batches_of_tokens_count_the_ranks_that_share_a_sample() -> None:
    """16,384 tokens of each of two context ranks hold 21 answers of 1,536; a data rank, one of one, has 1,280 = 64 x 20."""
    tokens = f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.megatron.context_parallel_size=2"
    assert imported(f"{MEGATRON} {tokens}").tree["training"]["micro_batch"] == 20


def test_answers_of_all_gpus_are_divided_among_them() -> None:
    older = GRPO.replace("ppo_micro_batch_size_per_gpu=8", "ppo_micro_batch_size=128")
    assert imported(older).tree["training"]["micro_batch"] == 128 // 8
    shared = imported(f"{older} {ACTOR}.ulysses_sequence_parallel_size=4").tree
    assert shared["training"]["micro_batch"] == 128 // (8 // 4)
    assert build(load(shared)).training.micro_batches == 1280 // 128


def test_an_update_takes_no_more_prompts_than_a_rollout_has() -> None:
    with pytest.raises(ScenarioError, match="an update takes 2048 prompts, and a rollout has 1024"):
        imported(f"{GRPO} {ACTOR}.ppo_mini_batch_size=2048")


@pytest.mark.parametrize(
    ("override", "fate"),
    [
        ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8", "no effect"),
        ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32", "not modelled"),
        ("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32", "not modelled"),
        ("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True", "not modelled"),
        ("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False", "no effect"),
        (f"{ACTOR}.entropy_coeff=0", "no effect"),
        (f"{ACTOR}.entropy_coeff=0.001", "not modelled"),
        ("actor_rollout_ref.ref.fsdp_config.param_offload=True", "not modelled"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=2", "no effect"),
    ],
)
def test_what_an_update_does_not_show_is_said(override: str, fate: str) -> None:
    fates = {one.key.written: one.kind for one in imported(f"{GRPO} {override}").fates}
    assert fates[override.partition("=")[0]] == fate

"""Primus's experiments: post-training by Megatron-LM, and both modules by Megatron-Bridge's recipes.

What the recipes have where a file says nothing was read in NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/recipes (commit 9577b128 of 18
January 2026, Primus's submodule) and in AMD-AGI/Primus, primus/configs/modules and primus/backends/megatron_bridge.
"""

from __future__ import annotations

from typing import Any

import pytest
from training_samples import from_text, of_kind, values

from parsim.errors import ScenarioError
from parsim.interop.import_draft import ImportedScenario
from parsim.model.parameter_counts import parameter_count
from parsim.scenario import load
from parsim.scenario.build import build

EXPERIMENT = """
work_group: ${{PRIMUS_TEAM:team}}
user_name: user
exp_name: job
workspace: ./output
modules:
  {module}:
    framework: {framework}
    config: {config}
    model: {model}.yaml
    overrides:
      stderr_sink_level: DEBUG
      {overrides}
{behind}"""


def block(overrides: str) -> str:
    """Lines of a section, of options between semicolons."""
    return overrides.replace("; ", "\n      ")


def bridge(model: str, overrides: str = "train_iters: 50", behind: str = "", on: str = "mi355x-8", **given: Any) -> ImportedScenario:
    module, config = ("pre_trainer", "pretrain_trainer.yaml") if "pretrain" in overrides else ("post_trainer", "sft_trainer.yaml")
    said = {
        "module": module,
        "config": config,
        "framework": "megatron_bridge",
        "model": model,
        "overrides": block(overrides),
        "behind": behind,
    }
    return from_text(EXPERIMENT.format(**said), on=on, **given)


def native(overrides: str, model: str = "llama3_8B") -> ImportedScenario:
    said = {"module": "post_trainer", "config": "sft_trainer.yaml", "framework": "megatron", "model": model, "behind": ""}
    return from_text(EXPERIMENT.format(**said, overrides=block(overrides)), on="mi355x-8")


def built(imported: ImportedScenario, tmp_path: Any) -> Any:
    path = tmp_path / "job.yaml"
    path.write_text(imported.yaml, encoding="utf-8")
    return build(load(path))


SIZES = ("tensor", "pipeline", "context", "expert")


def job(imported: ImportedScenario) -> dict[str, Any]:
    """What decides the work of a step."""
    said = values(imported)
    found = {axis: said.get(f"parallel.{axis}.size", 1) for axis in SIZES}
    batch = (said["training.micro_batch"], said["training.global_batch"], said["training.sequence_length"])
    return {
        **{axis: size for axis, size in found.items() if size > 1}, "batch": batch, "shards": said["parallel.data.strategy"],
        "rank": said.get("training.finetune.rank"), "recompute": said.get("training.recompute"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "overrides", "expected"),
    [
        ("qwen3_8b", "train_iters: 50", {"batch": (1, 128, 2048), "shards": "zero1", "rank": 32, "recompute": None}),
        ("qwen3_8b", "packed_sequence: true", {"batch": (1, 8, 2048), "shards": "zero1", "rank": 32, "recompute": None}),
        ("qwen3_8b", "peft: none", {"tensor": 4, "batch": (1, 128, 2048), "shards": "zero1", "rank": None, "recompute": None}),
        (
            "qwen3_32b", "flavor: qwen3_32b_pretrain_config",
            {"tensor": 8, "pipeline": 2, "batch": (2, 32, 4096), "shards": "zero1", "rank": None, "recompute": "full"},
        ),
        (
            "qwen3_32b", "flavor: qwen3_32b_pretrain_config; enable_recompute: false",
            {"tensor": 8, "pipeline": 2, "batch": (2, 32, 4096), "shards": "zero1", "rank": None, "recompute": None},
        ),
        (
            "qwen3_32b", "tensor_model_parallel_size: 2; micro_batch_size: 1; global_batch_size: 8; seq_length: 8192; peft: none",
            {"tensor": 2, "pipeline": 2, "batch": (1, 8, 8192), "shards": "zero1", "rank": None, "recompute": "full"},
        ),
        (
            "qwen3_30b_a3b", "train_iters: 50",
            {"tensor": 4, "expert": 4, "batch": (1, 32, 4096), "shards": "zero1", "rank": 8, "recompute": None},
        ),
        (
            "qwen3_30b_a3b", "peft: none; packed_sequence: true",
            {"tensor": 4, "pipeline": 2, "expert": 4, "batch": (1, 32, 2048), "shards": "zero1", "rank": None, "recompute": None},
        ),
        ("llama31_70b", "peft: lora", {"tensor": 8, "batch": (1, 128, 2048), "shards": "ddp", "rank": 16, "recompute": None}),
        (
            "llama31_70b", "peft: lora; peft_dim: 64; use_distributed_optimizer: true",
            {"tensor": 8, "batch": (1, 128, 2048), "shards": "zero1", "rank": 64, "recompute": None},
        ),
        ("qwen3_8b", "peft: none; peft_dim: 8", {"tensor": 4, "batch": (1, 128, 2048), "shards": "zero1", "rank": None, "recompute": None}),
        ("llama3_8b", "packed_sequence: true", {"batch": (1, 8, 4096), "shards": "ddp", "rank": 8, "recompute": None}),
        (
            "llama3_8b", "flavor: llama3_8b_pretrain_config; seq_length: ${PRIMUS_SEQ_LENGTH:2048}",
            {"context": 2, "batch": (1, 512, 2048), "shards": "zero1", "rank": None, "recompute": None},
        ),
        ("mamba_370M", "train_iters: 50", {"batch": (4, 128, 2048), "shards": "zero1", "rank": None, "recompute": None}),
    ],
)  # fmt: skip
def test_a_recipe_has_what_the_file_does_not_say(model: str, overrides: str, expected: dict[str, Any]) -> None:
    found = bridge(model, overrides, nodes=2)
    assert job(found) == expected
    assert values(found)["training.precision"] == "bf16-fp32grad"


@pytest.mark.parametrize(
    ("model", "parameters", "ranks"),
    [("qwen3_8b", 8_190_735_360, 8), ("llama31_70b", 70_553_706_496, 32), ("mamba_370M", 419_819_008, 8)],
)
def test_the_model_is_built(model: str, parameters: int, ranks: int, tmp_path: Any) -> None:
    """Mamba's word table and output layer are two there; the model of the Hub shares one."""
    experiment = built(bridge(model, "peft: none", nodes=ranks // 8), tmp_path)
    assert parameter_count(experiment.model) == parameters
    assert experiment.cluster.gpus == ranks


def test_interleaved_stages_and_their_switch() -> None:
    """null switches off what the recipe would have."""
    found = values(bridge("llama31_70b", "flavor: llama3_70b_pretrain_config", nodes=8))
    assert found["model"] == "llama-3-70b"
    assert (found["parallel.pipeline.virtual_stages"], found["parallel.tensor.overlap"]) == (5, "full")
    off = "virtual_pipeline_model_parallel_size: null; comm_overlap_config: null"
    found = values(bridge("llama31_70b", f"flavor: llama3_70b_pretrain_config; {off}", nodes=8))
    assert "parallel.pipeline.virtual_stages" not in found
    assert found["parallel.tensor.overlap"] == "backward"


def test_stages_that_count_the_word_table_and_the_output_layer() -> None:
    """94 layers and both of them on 16 stages: the recipe's model says how many layers there are."""
    found = values(bridge("qwen3_30b_a3b", "flavor: qwen3_235b_a22b_pretrain_config", nodes=16))
    assert found["parallel.pipeline.split"] == [5, *[6] * 14, 5]
    assert (found["parallel.context.size"], found["parallel.expert.size"], found["training.micro_batch"]) == (2, 8, 1)


def test_a_mixture_of_precisions_and_another_model() -> None:
    more = "precision_config: bf16_with_fp8_current_scaling_mixed; hf_path: Qwen/Qwen3-4B"
    found = values(bridge("qwen3_8b", f"flavor: qwen3_8b_pretrain_config; {more}"))
    assert found["training.precision"] == {"preset": "fp8", "recipe": "current", "gather": "fp8", "keep_layers": 1}
    assert found["model"] == "Qwen/Qwen3-4B"


def test_what_primus_may_leave_out_is_said() -> None:
    """A recipe that sets its own sizes takes none of the file's, and the section behind the modules reaches none."""
    found = bridge("llama31_70b", "peft: none; tensor_model_parallel_size: 8; pipeline_model_parallel_size: 1")
    assert job(found)["tensor"] == 8
    assert any("pipeline_model_parallel_size (its own: 4)" in str(text) for text in found.warnings)
    assert not any("tensor_model_parallel_size (its own" in str(text) for text in found.warnings)
    found = bridge("llama3_8b", "peft: lora", "peft:\n  dim: 32\n  alpha: 32\n")
    assert job(found)["rank"] == 32
    assert any("hands on what stands in" in str(text) for text in found.warnings)
    assert not any("does not take" in str(text) for text in bridge("qwen3_8b", "tensor_model_parallel_size: 2").warnings)


@pytest.mark.parametrize(
    ("model", "overrides", "words"),
    [
        ("zebra_llama_1B", "train_iters: 1", "Zebra-Llama"),
        ("llama2_70b_lora_mxfp4", "train_iters: 1", "MXFP4"),
        ("gemma3_1b", "train_iters: 1", "the recipe gemma3_1b"),
        ("qwen3_8b", "flavor: gemma3_1b_pretrain_config", "the recipe gemma3_1b_pretrain_config"),
        ("qwen3_8b", "flavor: qwen3_8b_pretrain_config; peft: lora", "a recipe of pre-training"),
        ("qwen3_8b", "peft: dora", "adapters of the kind dora"),
        ("mamba_370M", "peft: lora", "adapters of in_proj"),
        ("qwen3_8b", "comm_overlap_config: {tp_comm_overlap: true}", "tp_comm_overlap"),
    ],
)
def test_what_is_not_read_is_refused_by_name(model: str, overrides: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        bridge(model, overrides)


def test_a_module_of_another_name_is_an_error_in_words() -> None:
    text = "modules:\n  trainer:\n    framework: megatron_bridge\n    config: sft_trainer.yaml\n    model: qwen3_8b.yaml\n"
    with pytest.raises(ScenarioError, match=r"neither modules\.pre_trainer\.model nor modules\.pre_trainer\.overrides\.flavor"):
        from_text(text, tool="primus", on="mi300x-8")


def test_fine_tuning_by_megatron_itself() -> None:
    """Defaults of sft_trainer.yaml; its section lora has the keys of Megatron-Bridge's."""
    found = native("lora: {enabled: true, dim: 16, target_modules: [linear_qkv, linear_proj]}; sft_dataset_name: x; hf_path: a/b")
    assert job(found) == {"batch": (1, 128, 2048), "shards": "zero1", "rank": 16, "recompute": None}
    assert values(found)["training.finetune.targets"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert not of_kind(found, "unknown")
    found = native("lora: {enabled: false, dim: 16}; use_distributed_optimizer: false; micro_batch_size: 4")
    assert job(found) == {"batch": (4, 128, 2048), "shards": "ddp", "rank": None, "recompute": None}


def test_ranks_that_fetch_layers_when_they_want() -> None:
    with pytest.raises(ScenarioError, match="ODC"):
        native("enable_odc: true")
    assert job(native("enable_odc: false"))["batch"] == (1, 128, 2048)


@pytest.mark.parametrize("framework", ["maxtext", "diffusion"])
def test_other_frameworks(framework: str) -> None:
    said = {"module": "pre_trainer", "config": "pre_trainer.yaml", "model": "llama3_8B", "overrides": "seq_length: 1", "behind": ""}
    with pytest.raises(ScenarioError, match=f"Primus with {framework}"):
        from_text(EXPERIMENT.format(**said, framework=framework), on="mi355x-8")

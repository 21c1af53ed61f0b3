"""axolotl's mesh, adapters and the DeepSpeed file that it names: followed as axolotl follows them, asked for, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_samples import values

from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given, ImportedScenario
from parsim.model.parameter_counts import trainable_parameter_count
from parsim.scenario import load
from parsim.scenario.build import build

BASE = """base_model: Qwen/Qwen3-4B
datasets: [{path: a/data-set, type: alpaca}]
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
"""
FSDP = "fsdp_version: 2\nfsdp_config: {auto_wrap_policy: TRANSFORMER_BASED_WRAP, transformer_layer_cls_to_wrap: Qwen3DecoderLayer}\n"
LORA = "adapter: lora\nlora_r: 8\nlora_target_modules: [q_proj, v_proj]\n"


def read(text: str, **given: Any) -> ImportedScenario:
    return import_config(BASE + text, "job.yml", Given(on="8x h100-sxm", **given))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dp_shard_size: 8\n", "dp_shard_size 8 without fsdp_config: axolotl stops here"),
        ("dp_shard_size: 8\ndp_replicate_size: 2\n", "dp_shard_size 8 without fsdp_config"),
        ("relora_steps: 100\n", "relora_steps  not supported yet: adapters that are merged while training"),
        ("relora: true\n", "relora  not supported yet"),
        ("overrides_of_model_config: {num_hidden_layers: 2}\n", "num_hidden_layers  not supported yet: a model of other sizes"),
        (
            "fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n",
            "SHARD_GRAD_OP here, full_shard in fsdp, which the Trainer takes",
        ),
        ("expert_parallel_size: 4\n", "expert_parallel_size  not supported yet: experts spread over ranks"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(text)
    assert said in str(caught.value)


def test_dora_and_relora() -> None:
    found = read(f"{LORA}peft_use_dora: true\nrelora: true\nrelora_steps: 150\nrelora_warmup_steps: 10\n")
    section = found.tree["training"]["finetune"]
    assert (section["method"], section["rank"], section["targets"], section["dora"]) == ("lora", 8, ["q_proj", "v_proj"], True)
    made = build(load(found.tree))
    assert trainable_parameter_count(made.model) == 36 * (8 * (2560 + 4096 + 2560 + 1024) + 4096 + 1024)  # Qwen3-4B
    assert {fate.key.name: fate.kind for fate in found.fates}["relora_steps"] == "not modelled"
    plain = read(LORA).tree
    assert found.tree["cluster"] == plain["cluster"]
    assert found.tree["training"]["precision"] == plain["training"]["precision"]
    assert "dora" not in plain["training"]["finetune"]


@pytest.mark.parametrize(
    ("text", "stated", "fp32"),
    [("", None, True), ("peft_autocast_adapter_dtype: true\n", None, True), ("peft_autocast_adapter_dtype: false\n", "model", False)],
)
def test_the_type_of_adapters_is_written_where_it_is_not_pefts_own(text: str, stated: str | None, fp32: bool) -> None:
    found = read(LORA + text).tree
    assert found["training"]["finetune"].get("adapter_dtype") == stated
    recipe = build(load(found)).training.finetune
    assert recipe is not None
    assert recipe.fp32_adapters is fp32


def test_experts_in_four_bits_are_linear_layers() -> None:
    text = f"{LORA}lora_target_linear: true\nload_in_4bit: true\n"
    found = import_config(BASE.replace("Qwen/Qwen3-4B", "mistralai/Mixtral-8x7B-v0.1") + text, "job.yml", Given(on="8x h100-sxm"))
    section = found.tree["training"]["finetune"]
    assert (section["method"], section["base"], section["experts"]) == ("qlora", "nf4-dq", "linear")
    assert trainable_parameter_count(build(load(found.tree)).model) == 121_112_576
    fused = import_config(BASE.replace("Qwen/Qwen3-4B", "openai/gpt-oss-20b") + text, "job.yml", Given(on="8x h100-sxm"))
    assert "experts" not in fused.tree["training"]["finetune"]


def test_what_is_switched_off_is_no_other_job() -> None:
    fates = {fate.key.name: fate.kind for fate in read(f"{LORA}peft_use_dora: false\nrelora: false\nexpert_parallel_size: 1\n").fates}
    assert {fates[name] for name in ("peft_use_dora", "relora", "expert_parallel_size")} == {"no effect"}


@pytest.mark.parametrize(
    ("text", "nodes", "data", "gpus"),
    [
        (f"dp_shard_size: 8\n{FSDP}", None, ("fsdp", None), 8),
        (f"dp_shard_size: 4\ndp_replicate_size: 2\n{FSDP}", None, ("hsdp", 4), 8),
        (f"dp_shard_size: 8\n{FSDP}", 2, ("hsdp", 8), None),
        (f"dp_replicate_size: 2\n{FSDP}", 2, ("hsdp", "FILL-IN"), None),
        ("dp_replicate_size: 4\n", None, ("ddp", None), 4),
        ("dp_shard_size: 1\n", None, ("ddp", None), 1),
    ],
)
def test_shards_and_copies(text: str, nodes: int | None, data: tuple[str, Any], gpus: int | None) -> None:
    tree = read(text, nodes=nodes).tree
    assert (tree["parallel"]["data"]["strategy"], tree["parallel"]["data"].get("shard_size")) == data
    assert tree["cluster"].get("gpus") == gpus


def test_the_types_of_a_deepspeed_file_that_is_not_there_are_asked_for() -> None:
    imported = read("deepspeed: mine/ds_bf16.json\n")
    assert set(imported.to_fill) == {"parallel.data.strategy", "training.precision"}
    assert "bf16, unless DeepSpeed's file says otherwise" in imported.yaml


def test_a_deepspeed_file_that_the_tool_ships_is_known_and_said() -> None:
    imported = read("deepspeed: ./axolotl/deepspeed_configs/zero3_bf16_cpuoffload_all.json\n")
    found = values(imported)
    assert (found["parallel.data.strategy"], found["training.precision"], found["training.offload.parameters"]) == ("zero3", "bf16", "cpu")
    assert not imported.to_fill
    assert "is not there: it is taken as axolotl-ai-cloud/axolotl of July 2026 ships it" in imported.yaml


def test_a_file_beside_counts_before_the_one_that_the_tool_ships(tmp_path: Path) -> None:
    (tmp_path / "deepspeed_configs").mkdir()
    (tmp_path / "deepspeed_configs" / "zero3.json").write_text('{"zero_optimization": {"stage": 1}}', encoding="utf-8")
    text = BASE + "deepspeed: deepspeed_configs/zero3.json\n"
    found = import_config(text, str(tmp_path / "job.yml"), Given(on="8x h100-sxm"))
    assert values(found)["parallel.data.strategy"] == "zero1"
    assert "ships it" not in found.yaml


@pytest.mark.parametrize(("stage", "offload", "strategy"), [("0", "", "ddp"), ("2", "_offload", "zero2"), ("3", "_offload", "zero3")])
def test_llama_factory_ships_files_of_its_own(stage: str, offload: str, strategy: str) -> None:
    text = "model_name_or_path: Qwen/Qwen3-4B\nstage: sft\nfinetuning_type: full\ncutoff_len: 1024\ntemplate: qwen3\nbf16: true\n"
    named = f"deepspeed: examples/deepspeed/ds_z{stage}{offload}_config.json\nper_device_train_batch_size: 1\n"
    found = values(import_config(text + named, "job.yml", Given(on="8x h100-sxm")))
    assert (found["parallel.data.strategy"], found["training.precision"]) == (strategy, "bf16")
    assert found.get("training.offload.optimizer") == ("cpu" if offload else None)


def test_a_length_by_another_tools_name_is_refused() -> None:
    """axolotl takes 512 tokens without sequence_len, which is not what the file's writer meant."""
    with pytest.raises(ScenarioError, match="a length by LLaMA-Factory's name") as error:
        read(f"{LORA}cutoff_len: 2048\n")
    assert [finding.path for finding in error.value.findings] == ["cutoff_len"]


@pytest.mark.parametrize(("mixed", "attention"), [("true", "mem-efficient"), ("false", "flash2")])
def test_layers_whose_heads_flash_attention_does_not_take(mixed: str, attention: str) -> None:
    """Gemma 4 has heads of 512 elements beside windows (axolotl-ai-cloud/axolotl, src/axolotl/loaders/patch_manager.py)."""
    found = read(f"attn_implementation: flash_attention_2\ngemma4_hybrid_attn_impl: {mixed}\n")
    assert values(found)["training.attention"] == attention

"""LLaMA-Factory and ms-swift freeze the tower of a model of images: followed, asked for, or refused, never without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given, ImportedScenario
from parsim.interop.peft import matched
from parsim.scenario import load
from parsim.scenario.build import build

LLAVA = {
    "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "vision_feature_layer": -2,
    "text_config": {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 8,
        "vocab_size": 32064,
    },
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 4,
        "image_size": 336, "patch_size": 14,
    },
}  # fmt: skip
FACTORY = """stage: sft
do_train: true
cutoff_len: 2048
template: llava
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""


@pytest.fixture
def llava(tmp_path: Path) -> str:
    (tmp_path / "llava").mkdir()
    (tmp_path / "llava" / "config.json").write_text(json.dumps(LLAVA), encoding="utf-8")
    return str(tmp_path / "llava" / "config.json")


def factory(model: str, text: str) -> ImportedScenario:
    return import_config(f"model_name_or_path: {model}\n{FACTORY}{text}", "job.yaml", Given(on="8x h100-sxm"))


@pytest.mark.parametrize(
    ("text", "frozen"),
    [
        ("finetuning_type: full\n", ["vision", "projector"]),
        ("finetuning_type: full\nfreeze_vision_tower: false\n", ["projector"]),
        ("finetuning_type: full\nfreeze_multi_modal_projector: false\n", ["vision"]),
        (
            "finetuning_type: full\nfreeze_multi_modal_projector: false\nfreeze_language_model: true\n",
            ["vision", "embedding", "layer", "head"],
        ),
        ("finetuning_type: full\nfreeze_vision_tower: false\nfreeze_multi_modal_projector: false\n", None),
        ("finetuning_type: lora\nfreeze_vision_tower: false\nfreeze_multi_modal_projector: false\n", "lora"),
    ],
)
def test_what_is_frozen(llava: str, text: str, frozen: Any) -> None:
    imported = factory(llava, text)
    assert imported.to_fill == ("training.images",)
    imported.tree["training"]["images"] = 1
    finetune = imported.tree["training"].get("finetune")
    if frozen == "lora":
        assert finetune["method"] == "lora"
        return
    assert finetune == (None if frozen is None else {"method": "freeze", "freeze": frozen})
    trained = {block.kind for block in build(load(imported.tree)).model.blocks if any(p.trainable for p in block.parameters())}
    assert trained == {"vision", "projector", "embedding", "layer", "head"} - set(frozen or ())


@pytest.mark.parametrize(
    "text",
    [
        "finetuning_type: lora\n",
        "finetuning_type: lora\nfreeze_vision_tower: true\n",
        "finetuning_type: lora\nfreeze_multi_modal_projector: false\n",  # find_all_linear_modules leaves the projector out
    ],
)
def test_adapters_beside_a_frozen_tower_stand_in_the_text_alone(llava: str, text: str) -> None:
    imported = factory(llava, text)
    assert imported.tree["training"]["finetune"]["tower"] is False
    imported.tree["training"]["images"] = 2
    trained = {block.kind for block in build(load(imported.tree)).model.blocks if any(p.trainable for p in block.parameters())}
    assert trained == {"layer"}


@pytest.mark.parametrize("text", ["finetuning_type: freeze\n", "finetuning_type: lora\nfreeze_vision_tower: false\n"])
def test_other_parts_beside_a_frozen_tower_are_refused(llava: str, text: str) -> None:
    with pytest.raises(ScenarioError, match=r"not supported yet: .* of the (text )?model"):
        factory(llava, text)


PATTERN = r"model.language_model.layers.[\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj"


@pytest.mark.parametrize(
    ("pattern", "names", "tower"),
    [
        (PATTERN, "q k v o gate up down", False),
        (r".*\.(q|v)_proj", "q v", True),
        (r".*language_model.*self_attn\.(q|k)_proj$", "q k", False),
        (r"^(?!.*(visual|vision)).*(o_proj|gate_proj).*", "o gate", False),
        (r"model.language_model.layers.[\d]+.(_checkpoint_wrapped_module.)?(mlp|self_attn).(up|q)_proj", "q up", False),
        (r".*\.layers\.(3|7|11)\.self_attn\.(q|k)_proj|.*\.mlp\.(gate|up)_proj", None, None),
        (r"model.layers.[0-9].self_attn.q_proj", None, None),
        (r".*experts.*", None, None),
    ],
)
def test_a_pattern_of_layers_is_matched_as_peft_matches_it(pattern: str, names: str | None, tower: bool | None) -> None:
    expected = None if names is None else ([f"{name}_proj" for name in names.split()], tower)
    assert matched(pattern) == expected


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(.*)*x", ".*" * 4 + "q_proj", "model.layers.0.self_attn.q_proj(" + "(" * 20, "q_proj" * 100]
)
def test_patterns_that_could_take_for_ever_are_not_tried(pattern: str) -> None:
    assert matched(pattern) is None


def test_a_pattern_beside_a_model_of_images(llava: str) -> None:
    text = f"base_model: {llava}\nsequence_len: 2048\nmicro_batch_size: 1\nadapter: lora\nlora_target_modules: '{PATTERN}'\n"
    finetune = import_config(text, "job.yml", Given(on="8x h100-sxm")).tree["training"]["finetune"]
    assert (finetune["targets"], finetune["tower"]) == ([f"{name}_proj" for name in ["q", "k", "v", "o", "gate", "up", "down"]], False)
    with pytest.raises(ScenarioError, match="a pattern that names no linear layers"):
        import_config(text.replace(PATTERN, ".*experts.*"), "job.yml", Given(on="8x h100-sxm"))


def test_of_a_model_of_text_the_keys_say_nothing() -> None:
    imported = factory("Qwen/Qwen3-4B", "finetuning_type: full\nfreeze_vision_tower: true\n")
    assert next(fate.why for fate in imported.fates if fate.key.name == "freeze_vision_tower") == "the model has neither images nor sound"
    assert "finetune" not in imported.tree["training"]


def test_of_a_model_that_nobody_knows_they_are_a_question() -> None:
    imported = factory("Qwen/Qwen2.5-Omni-7B", "finetuning_type: full\nfreeze_vision_tower: true\n")
    assert imported.to_fill == ("model", "training.finetune")
    assert "did you mean" not in imported.yaml
    imported = factory("Qwen/Qwen2.5-Omni-7B", "finetuning_type: lora\nfreeze_vision_tower: true\n")
    assert next(fate.kind for fate in imported.fates if fate.key.name == "freeze_vision_tower") == "not modelled"


def test_ms_swift_freezes_by_names_of_its_own(llava: str) -> None:
    options = "--per_device_train_batch_size 1 --gradient_accumulation_steps 4 --max_length 2048 --torch_dtype bfloat16 --freeze_vit false"
    text = f"NPROC_PER_NODE=8 swift sft --model {llava} --tuner_type full {options}"
    tree = import_config(text, "job.sh", Given(on="8x h100-sxm")).tree
    assert tree["training"]["finetune"] == {"method": "freeze", "freeze": ["projector"]}


# -- ranks that share a sample


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("sequence_parallel_size: 4\n", "ring"),
        ("sequence_parallel_size: 4\nsequence_parallel_mode: ulysses\n", "ulysses"),
        ("sequence_parallel_size: 4\nsequence_parallel_mode: llama3\n", "all-gather"),
        ("sequence_parallel_size: 1\n", None),
    ],
)
def test_ranks_that_share_a_sample(text: str, method: str | None) -> None:
    tree = factory("Qwen/Qwen3-4B", f"finetuning_type: full\n{text}").tree
    assert tree["parallel"].get("context") == (None if method is None else {"size": 4, "method": method})


@pytest.mark.parametrize(("types", "precision"), [("bf16: true", "bf16-fp32grad"), ("fp16: true", "fp16"), ("bf16: false", "fp32")])
def test_types_of_the_megatron_engine(types: str, precision: str) -> None:
    text = FACTORY.replace("bf16: true", types) + "finetuning_type: full\ntensor_model_parallel_size: 2\n"
    tree = import_config(f"model_name_or_path: Qwen/Qwen3-4B\n{text}", "job.yaml", Given(on="8x h100-sxm")).tree
    assert tree["training"]["precision"] == precision


def test_another_way_to_split_a_sample_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"sequence_parallel_mode .* not supported yet: sequences that are split by usp"):
        factory("Qwen/Qwen3-4B", "finetuning_type: full\nsequence_parallel_size: 4\nsequence_parallel_mode: usp\n")

"""LLaMA-Factory and ms-swift freeze the tower of a model of images: followed, asked for, or refused, never without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given, ImportedScenario
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
    finetune = imported.tree["training"].get("finetune")
    if frozen == "lora":
        assert finetune["method"] == "lora"
        return
    assert finetune == (None if frozen is None else {"method": "freeze", "freeze": frozen})
    trained = {block.kind for block in build(load(imported.tree)).model.blocks if any(p.trainable for p in block.parameters())}
    assert trained == {"vision", "projector", "embedding", "layer", "head"} - set(frozen or ())


@pytest.mark.parametrize(
    "text", ["finetuning_type: lora\n", "finetuning_type: lora\nfreeze_vision_tower: true\n", "finetuning_type: freeze\n"]
)
def test_adapters_beside_a_frozen_tower_are_refused(llava: str, text: str) -> None:
    with pytest.raises(ScenarioError, match=r"not supported yet: .* of the text model alone|adapters in the text model alone"):
        factory(llava, text)


def test_of_a_model_of_text_the_keys_say_nothing() -> None:
    imported = factory("Qwen/Qwen3-4B", "finetuning_type: full\nfreeze_vision_tower: true\n")
    assert next(fate.why for fate in imported.fates if fate.key.name == "freeze_vision_tower") == "the model has neither images nor sound"
    assert "finetune" not in imported.tree["training"]


def test_of_a_model_that_nobody_knows_they_are_a_question() -> None:
    imported = factory("Qwen/Qwen2.5-VL-7B-Instruct", "finetuning_type: full\nfreeze_vision_tower: true\n")
    assert imported.to_fill == ("model", "training.finetune")
    assert "did you mean" not in imported.yaml
    imported = factory("Qwen/Qwen2.5-VL-7B-Instruct", "finetuning_type: lora\nfreeze_vision_tower: true\n")
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

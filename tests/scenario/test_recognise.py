"""Whose a configuration is: told by keys that only one tool has, and never read as another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_samples import from_text

from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given
from parsim.interop.recognise import Foreign, claims
from parsim.interop.tools import RECORDS, TABLE
from parsim.scenario.files import parse_text

FILES = {
    "deepspeed": "zero_optimization: {stage: 2}\ntrain_batch_size: 8",
    "accelerate": "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}",
    "hf": "per_device_train_batch_size: 4\noutput_dir: x\nfsdp_config: {min_num_params: 1}",
    "llama-factory": "model_name_or_path: gpt2\nper_device_train_batch_size: 4\nfinetuning_type: lora",
    "axolotl": "base_model: gpt2\nmicro_batch_size: 2\nsequence_len: 512\nlearning_rate: 1e-4\noutput_dir: x\nmax_steps: 4",
    "neox": "pipe-parallel-size: 1\nnum-layers: 12\ntrain_micro_batch_size_per_gpu: 4\nzero_optimization: {stage: 1}",
    "torchtitan": "model: {name: llama3, flavor: 8B}\ntraining: {seq_len: 8192}\nparallelism: {tensor_parallel_degree: 2}",
    "nemo": "model: {tensor_model_parallel_size: 2, micro_batch_size: 1}\ntrainer: {num_nodes: 2}",
    "verl": "actor_rollout_ref: {model: {path: x}}\ndata: {train_batch_size: 8}",
    "hf-model": "architectures: [LlamaForCausalLM]\nmodel_type: llama\nhidden_size: 8\nnum_attention_heads: 2",
    "parsim": "model: gpt2\ncluster: {topology: dgx-a100-80gb}\ntraining: {sequence_length: 8}",
}
"""tool -> a small file in its form"""


def claimed(text: str) -> list[str]:
    return [claim.tool.name for claim in claims(TABLE, Foreign("x", parse_text(text, "x")))]


@pytest.mark.parametrize("tool", FILES)
def test_one_tool_claims_a_file(tool: str) -> None:
    assert claimed(FILES[tool]) == [tool]


@pytest.mark.parametrize("tool", FILES)
def test_law_a_key_of_one_tool_keeps_a_file_from_being_read_as_another(tool: str) -> None:
    """Each own key of each record in a file of another tool: either has the other's keys too, or both claim it."""
    for record in RECORDS:
        for key in record.own if "document" in record.forms and record.name != tool else ():
            document = parse_text(FILES[tool], "x")
            for part in key.split("+"):  # keys that speak for it together
                nest(document.tree, part.replace(".*", ".word").split("."))
            found = [claim.tool.name for claim in claims(TABLE, Foreign("x", document))]
            wanted = {tool, record.name} - {*record.has} - {*TABLE[tool].has}
            assert wanted <= {*found}, (key, found)


def nest(tree: dict[str, Any], path: list[str]) -> None:
    """Put a value under `path`."""
    for part in path[:-1]:
        if not isinstance(tree.get(part), dict):
            tree[part] = {}
        tree = tree[part]
    tree.setdefault(path[-1], 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base_model: gpt2\npipe_parallel_size: 2", "for axolotl: base_model; for GPT-NeoX: pipe_parallel_size"),
        (FILES["verl"], "this is YAML of verl, which parsim does not read"),
        (FILES["parsim"], "it needs no import: parsim run FILE"),
        (FILES["hf-model"], "this is a Hugging Face model's configuration, and no training's; parsim new --model"),
        (
            '{"model_type": "gpt_neox", "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9, "num_hidden_layers": 1}',
            "this is a Hugging Face model's configuration",
        ),
        ("base_model: gpt2\nmerge_method: slerp", "base_model  nothing of a training stands beside it"),
        ("exp_manager: {name: x}\nmodel: {sample_rate: 16000}", "no training of a language model"),
        ("system: {tensor_model_parallel_size: 1}\nmodel: {model_path: x}", "no training of a language model"),
        ("a: 1", "this is no training configuration that parsim knows"),
        ("output_dir: x\nlearning_rate: 1e-4\nmodel: {_component_: a}", "this is torchtune"),
        ("[a\nb = 1", "not valid"),
        ("from torchtitan.config import JobConfig\nx = 1", "this is torchtitan's configuration as Python code"),
    ],
)
def test_what_is_no_one_tools_is_refused_with_what_speaks_for_each(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as error:
        from_text(text)
    assert said in str(error.value)


def test_a_model_beside_a_training_is_told_its_place() -> None:
    with pytest.raises(ScenarioError, match=r"parsim import TRAINING --model config\.json") as error:
        import_config(FILES["torchtitan"], "t.yaml", Given(), more=[(FILES["hf-model"], "config.json")])
    assert [finding.file for finding in error.value.findings] == ["config.json"]


def test_the_user_decides() -> None:
    mixed = "per_device_train_batch_size: 4\ntrain_batch_size: 8\nzero_optimization: {stage: 2}"
    with pytest.raises(ScenarioError, match="say whose it is: --from deepspeed or hf"):
        from_text(mixed)
    assert from_text(mixed, "deepspeed").evidence == "zero_optimization"
    assert "# From standard input, read as DeepSpeed (zero_optimization);" in from_text(mixed, "deepspeed").yaml


def test_a_command_whose_file_is_another_tools(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("pipe_parallel_size: 1\nnum_layers: 12\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"import the file that the command names: parsim import .*config.yml"):
        from_text("deepspeed run.py config.yml --micro_steps 4", file=str(tmp_path / "run.sh"))
    with pytest.raises(ScenarioError, match="for Hugging Face TrainingArguments: per_device_train_batch_size; for GPT-NeoX: pipe_parallel"):
        from_text("deepspeed run.py config.yml --per_device_train_batch_size 4", file=str(tmp_path / "run.sh"))


def test_a_length_alone_is_no_llama_factory() -> None:
    """``cutoff_len`` is LLaMA-Factory's beside another key of its own; scripts of one's own have it, too, with four bits by their names."""
    own = "model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct\ncutoff_len: 1024\nper_device_train_batch_size: 1\nbf16: true\n"
    own += "lora_rank: 8\nlora_target_modules: [q_proj, v_proj]\nload_in_4bit: true\n"
    read = import_config(own, "-", Given("x"))
    assert read.tool == "Hugging Face TrainingArguments"
    assert read.tree["training"]["finetune"] | {"dropout": 0.0} == {
        "method": "qlora",
        "rank": 8,
        "targets": ["q_proj", "v_proj"],
        "dropout": 0.0,
    }
    assert read.tree["training"]["sequence_length"] == 1024
    assert import_config(f"{own}template: qwen\n", "-", Given("x")).tool == "LLaMA-Factory"

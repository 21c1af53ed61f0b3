"""Commands that override a YAML file in Hydra's form: NeMo 1's pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given, ImportedScenario
from parsim.scenario import load
from parsim.scenario.build import build

CONFIG = """trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  micro_batch_size: 2
  global_batch_size: 128
  tensor_model_parallel_size: 2
  encoder_seq_length: 2048
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 24
  hidden_size: 2048
  num_attention_heads: 16
  activations_checkpoint_granularity: selective
  optim: {name: distributed_fused_adam}
"""
START = "torchrun --nproc_per_node=8 --nnodes=2 NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py"


def imported(folder: Path, words: str, start: str = START, config: str = "--config-path=conf --config-name=gpt") -> ImportedScenario:
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / "gpt.yaml").write_text(CONFIG)
    script = folder / "train.sh"
    script.write_text(f"#!/bin/bash\n{start} \\\n  {config} \\\n  {words}\n")
    return import_config(script.read_text(), str(script), Given(on="hgx-h100", vocabulary=50257))


def sizes(read: ImportedScenario) -> dict[str, Any]:
    made = build(load(read.tree))
    split, training = made.parallelism, made.training
    return {
        "world": made.used_gpus, "tensor": split.tensor.size, "pipeline": split.pipeline.size, "micro": training.micro_batch,
        "batch": training.global_batch, "layers": made.model.layers, "hidden": made.model.hidden, "sequence": training.sequence_length,
    }  # fmt: skip


AS_WRITTEN = {"world": 16, "tensor": 2, "pipeline": 1, "micro": 2, "batch": 128, "layers": 24, "hidden": 2048, "sequence": 2048}


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("", {}),
        ("model.tensor_model_parallel_size=4", {"tensor": 4}),
        ("+model.pipeline_model_parallel_size=2", {"pipeline": 2}),
        ("++model.micro_batch_size=4", {"micro": 4}),
        ("model.global_batch_size=256 model.num_layers=12", {"batch": 256, "layers": 12}),
        ("model.hidden_size=1024", {"hidden": 1024}),
        ("model.encoder_seq_length=4096", {"sequence": 4096}),
        ("~model.activations_checkpoint_granularity", {}),
    ],
)
def test_overrides_win_over_the_file(tmp_path: Path, words: str, changes: dict[str, int]) -> None:
    read = imported(tmp_path, words)
    assert (read.tool, read.to_fill) == ("NeMo", ())
    assert sizes(read) == AS_WRITTEN | changes
    assert read.tree["training"].get("recompute", "none") == ("none" if words.startswith("~") else {"selective": ["attention"]})
    assert not [fate for fate in read.fates if fate.kind == "unknown"]


def test_slurm_starts_it(tmp_path: Path) -> None:
    start = "srun --nodes=2 --ntasks-per-node=8 python megatron_gpt_pretraining.py"
    assert sizes(imported(tmp_path, "", start))["world"] == 16


def test_what_an_override_became_is_said(tmp_path: Path) -> None:
    read = imported(tmp_path, "++model.micro_batch_size=4 exp_manager.exp_dir=$OUT model.data.data_prefix=[1,/data/x]")
    assert "micro_batch: 4" in read.yaml
    assert "model.micro_batch_size: 4 (line 4)" in read.yaml
    assert "gpt.yaml:" in read.yaml  # what is not overridden


@pytest.mark.parametrize(
    ("words", "start", "config", "said"),
    [
        ("", START, "--config-path=conf --config-name=other", "conf/other.yaml is not there"),
        ("", START, "", "does not say which configuration it overrides"),
        ("model.tensor_model_parallel_size=$TP", START, "--config-name=gpt", "??? is open"),
        ("model=gpt_20b", START, "--config-name=gpt", "chooses another file of settings"),
        ("'model.optim={name: adam}'", START, "--config-name=gpt", "a whole section"),
        ("model.peft.peft_scheme=sdlora", START, "--config-name=gpt", "adapters of the kind sdlora"),
        ("", START.replace("--nnodes=2", "--nnodes=4"), "--config-name=gpt", "--nnodes 4 (line 2) and trainer.num_nodes 2"),
        ("", "srun --nodes=4 --ntasks-per-node=8 python megatron_gpt_pretraining.py", "--config-name=gpt", "contradict each other"),
    ],
)
def test_what_cannot_be_followed_is_refused(tmp_path: Path, words: str, start: str, config: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        imported(tmp_path, words, start, config)
    assert said in str(caught.value)
    assert all(finding.line for finding in caught.value.findings)

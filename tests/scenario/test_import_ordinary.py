"""What files in ordinary use hold beside the usual: counts that cannot be, keys written twice, files that are named and not there."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from parsim.errors import ScenarioError
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given, ImportedScenario
from parsim.model.parameter_counts import parameter_count, trainable_parameter_count
from parsim.scenario import load
from parsim.scenario.build import build

GPT = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --bf16"


def read(text: str, file: str = "-", **given: Any) -> ImportedScenario:
    return import_config(text, file, Given(**{"on": "hgx-h100", **given}))


def at(found: ImportedScenario, path: str) -> Any:
    value: Any = found.tree
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def script(options: str, launch: str = "torchrun --nnodes 1 --nproc_per_node 8", program: str = "pretrain_gpt.py") -> str:
    return f"#!/bin/bash\n{launch} {program} {GPT} {options}\n"


@pytest.mark.parametrize(
    ("options", "gpus", "nodes"),
    [
        ("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 64", 32, 4),
        ("--tensor-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 64", 8, 1),
    ],
)
def test_too_few_gpus_for_one_copy_are_replaced_by_the_fewest_that_hold_it(options: str, gpus: int, nodes: int) -> None:
    found = read(script(options))
    assert (at(found, "cluster.gpus"), at(found, "cluster.nodes")) == (gpus, nodes)
    assert not found.to_fill
    assert build(load(found.tree)).used_gpus == gpus
    assert ("the smallest job that holds it is taken" in found.yaml) == (gpus == 32)


def test_gpus_that_do_not_share_the_batch_are_asked_for() -> None:
    found = read(script("--micro-batch-size 4 --global-batch-size 8"))
    assert found.to_fill == ("cluster.gpus",)
    assert "GPUs, at most 2: a batch of 8 cannot be split into micro-batches of 4 on 8 GPUs = 8 copies of the model" in found.yaml
    many = read(script("--micro-batch-size 1 --global-batch-size 24", launch="torchrun --nnodes 2 --nproc_per_node 8"))
    assert many.to_fill == ("cluster.nodes",)
    said = read(script("--micro-batch-size 4 --global-batch-size 8"), nodes=1)
    assert (said.to_fill, at(said, "cluster.gpus")) == ((), 8)


@pytest.mark.parametrize("word", ["your_own_num_nodes", "<number-of-nodes>"])
def test_a_word_in_place_of_the_number_of_nodes_is_asked_for(word: str) -> None:
    text = f"#!/bin/bash\n#SBATCH --nodes={word}\nsrun python pretrain_gpt.py {GPT} --micro-batch-size 1 --global-batch-size 64\n"
    assert read(text).to_fill == ("cluster.nodes",)
    assert at(read(text, nodes=2), "cluster.nodes") == 2


def test_a_word_in_place_of_the_number_of_tasks_is_the_machines() -> None:
    """examples/megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh of Megatron-LM."""
    slurm = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node={your_own_tasks_per_node}\n"
    text = f"#!/bin/bash\n{slurm}srun python pretrain_gpt.py {GPT} --micro-batch-size 1 --global-batch-size 64\n"
    for word in ("your_own_tasks_per_node", "<tasks>"):
        found = read(text.replace("{your_own_tasks_per_node}", word))
        assert (found.to_fill, build(load(found.tree)).used_gpus) == ((), 16)
        assert "it stands for a number: --on says it" in found.yaml


def test_a_small_batch_bounds_the_gpus_where_none_are_counted() -> None:
    found = read(f"{GPT} --vocab-size 50257 --micro-batch-size 4 --global-batch-size 8 --tensor-model-parallel-size 2")
    assert at(found, "cluster.gpus") == 8 // 4 * 2
    assert build(load(found.tree)).parallelism.data.size == 2
    assert "cluster.gpus" in read('{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4}', "ds.json").to_fill


def test_gpus_in_an_unknown_number_of_machines_are_bounded_alike() -> None:
    found = read(script("--vocab-size 50257 --micro-batch-size 64 --global-batch-size 64", launch="deepspeed --hostfile=hosts"))
    assert at(found, "cluster.gpus") == 1
    assert "cluster.nodes" not in found.to_fill


@pytest.mark.parametrize(
    ("program", "rows"), [("pretrain_gpt.py", 50257), ("pretrain_bert.py", 30522), ("examples/pretrain_gpt.py", 50257)]
)
def test_a_program_has_a_tokenizer_of_its_own(program: str, rows: int) -> None:
    found = read(script("--micro-batch-size 1", program=program))
    assert at(found, "model.vocabulary") == rows
    assert "model.vocabulary" in read(script("--micro-batch-size 1 --tokenizer-type HuggingFaceTokenizer", program=program)).to_fill


def test_a_task_of_megatron_is_a_classifier_or_no_training() -> None:
    found = read(script("--task MNLI --micro-batch-size 8 --tokenizer-type BertWordPieceLowerCase", program="tasks/main.py"))
    assert at(found, "model.task") == "sequence-classification"
    assert at(found, "model.labels") == 3
    assert at(found, "model.family") == "bert"
    for task in ("LAMBADA", "WIKITEXT103", "MSDP-PROMPT"):
        with pytest.raises(ScenarioError, match="this task does not train"):
            read(script(f"--task {task} --micro-batch-size 8", program="tasks/main.py"))
    race = read(script("--task RACE --micro-batch-size 8 --tokenizer-type BertWordPieceLowerCase", program="tasks/main.py"))
    assert (at(race, "model.labels"), at(race, "training.micro_batch")) == (1, 8 * 4)
    assert "8 x 4 texts of a question" in race.yaml
    for steps in ("--train-iters 0", "--train-samples 0"):
        with pytest.raises(ScenarioError, match="without a step the program does not train"):
            read(script(f"--micro-batch-size 8 {steps}"))
    with pytest.raises(ScenarioError, match="trains a vision model, which is not supported yet"):
        read(script("--task classify --micro-batch-size 8", program="tasks/vision/main.py"))


def test_a_norm_is_called_alike_in_forks_that_write_it_small() -> None:
    found = read(script("--normalization rmsnorm --micro-batch-size 1 --global-batch-size 64"))
    assert at(found, "model.normalisation") == "rmsnorm"
    with pytest.raises(ScenarioError, match="does not train: it evaluates"):
        read(script("--skip-train --micro-batch-size 8"))
    with pytest.raises(ScenarioError, match="a model of several kinds of input"):
        read(script("--model-provider llava_vlm --micro-batch-size 8", program="examples/mimo/train.py"))


MEGATRON_YAML = """language_model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  ffn_hidden_size: null
  add_bias_linear: false
  activation_func: swiglu
  normalization: RMSNorm
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 2
  bias_swiglu_fusion: true
model_parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  sequence_parallel: true
  bf16: true
  gradient_accumulation_fusion: false
micro_batch_size: 2
global_batch_size: 128
seq_length: 4096
max_position_embeddings: 4096
untie_embeddings_and_output_weights: true
position_embedding_type: rope
swiglu: false
bert_binary_head: true
vision_pretraining: false
decoder_num_layers: null
use_distributed_optimizer: true
vocab_size: 32000
train_iters: null
"""


def test_a_pipe_into_nothing() -> None:
    found = read(script("--micro-batch-size 1 --global-batch-size 8 2>&1 | $LOGGER"))
    assert at(found, "training.global_batch") == 8


def test_weights_in_fp8_alone_count_without_fsdp_only() -> None:
    options = "--micro-batch-size 1 --fp8-format hybrid --fp8-param-gather --use-distributed-optimizer"
    assert at(read(script(options)), "training.precision.gather") == "fp8"
    sharded = read(script(f"{options} --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"))
    assert at(sharded, "training.precision") == "fp8"
    build(load(sharded.tree))


def test_the_yaml_of_megatron_is_its_options() -> None:
    found = read(MEGATRON_YAML, "gpt_config.yaml")
    made = build(load(found.tree))
    assert (made.model.layers, made.parallelism.tensor.size, made.parallelism.pipeline.size) == (24, 2, 4)
    said = {path: at(found, path) for path in ("model.gated", "model.mlp", "model.mlp_bias", "model.tied_embeddings")}
    assert said == {"model.gated": True, "model.mlp": 2688, "model.mlp_bias": False, "model.tied_embeddings": False}  # 8/3 x 1024 / 64
    assert at(found, "training.recompute") == {"every": 2}
    assert at(found, "parallel.data.strategy") == "zero1"
    assert at(found, "software.gradient_accumulation_fusion") is False
    assert not [fate.key.written for fate in found.fates if fate.kind == "unknown"]
    with pytest.raises(ScenarioError, match="an MLP with relu"):
        read(MEGATRON_YAML.replace("activation_func: swiglu", "activation_func: relu"), "gpt_config.yaml")


AXOLOTL = "base_model: Qwen/Qwen3-4B\nsequence_len: 2048\nmicro_batch_size: 1\ndatasets: [{path: a, type: alpaca}]\nbf16: true\n"


def test_of_a_key_that_stands_twice_the_last_one_counts() -> None:
    found = read(f"{AXOLOTL}micro_batch_size: 4\n", "job.yml")
    assert at(found, "training.micro_batch") == 4
    assert "the key is written twice: first at line 3, column 1; this one counts, as in axolotl" in found.yaml
    with pytest.raises(ScenarioError, match="the key is written twice"):  # OmegaConf refuses it
        read("model: {tensor_model_parallel_size: 1, micro_batch_size: 1, micro_batch_size: 2}\n", "nemo.yaml")


TRAINER = "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 2\nnum_train_epochs: 1\nmax_length: 2048\nbf16: true\n"


@pytest.mark.parametrize(
    ("name", "strategy", "optimizer", "parameters"),
    [
        ("scripts/zero3.json", "zero3", None, None),
        ("ds_z2_offload.json", "zero2", "cpu", None),
        ("configs/zero_stage3_offload.json", "zero3", "cpu", "cpu"),
        ("my-stage1.json", "zero1", None, None),
    ],
)
def test_a_deepspeed_file_that_is_not_there_is_what_its_name_says(name: str, strategy: str, optimizer: Any, parameters: Any) -> None:
    found = read(f"{TRAINER}deepspeed: {name}\n", "train.yaml")
    assert not found.to_fill
    assert (at(found, "parallel.data.strategy"), at(found, "training.precision")) == (strategy, "bf16")
    assert (at(found, "training.offload.optimizer"), at(found, "training.offload.parameters")) == (optimizer, parameters)
    assert f"{name} is not there: it is taken as ZeRO-{strategy[-1]}" in found.yaml


@pytest.mark.parametrize("name", ["ds_config.json", "zero2_or_zero3.json", "qwen2.json", "a100.json"])
def test_a_name_without_one_stage_says_nothing(name: str) -> None:
    assert "parallel.data.strategy" in read(f"{TRAINER}deepspeed: {name}\n", "train.yaml").to_fill


def test_adapters_of_a_script_of_its_own() -> None:
    head = "torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --bf16 True"
    found = read(f"{head} --max_length 2048 --lora_enable True --lora_r 128 --lora_alpha 256", "train.sh")
    assert at(found, "training.finetune") == {"method": "lora", "rank": 128, "targets": "all-linear", "dropout": 0.0}
    assert "own options of adapters are read as their names say" in found.yaml
    assert at(read(f"{head} --max_length 2048 --lora_enable False --lora_r 128", "train.sh"), "training.finetune") is None
    alone = read(f"{head} --max_length 2048 --lora_r 8", "train.sh")  # of TRL's, which needs use_peft, or of a script's own
    assert {fate.key.name: fate.kind for fate in alone.fates}["lora_r"] == "not modelled"
    quantised = read(f"{head} --max_length 2048 --peft_lora_r 8 --bits 4", "train.sh")
    assert (at(quantised, "training.finetune.method"), at(quantised, "training.finetune.rank")) == ("qlora", 8)


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        (f"{TRAINER}packing: true\n", True),
        (f"stage: sft\nfinetuning_type: full\ncutoff_len: 2048\n{TRAINER}packing: true\nneat_packing: true\n", True),
        (f"stage: sft\nfinetuning_type: full\ncutoff_len: 2048\n{TRAINER}neat_packing: true\n", True),
        (f"stage: sft\nfinetuning_type: full\ncutoff_len: 2048\n{TRAINER}packing: true\n", False),
    ],
)
def test_packed_rows_point_to_the_length_of_documents(text: str, apart: bool) -> None:
    found = read(text, "train.yaml")
    assert ("training.document_length says how long samples are" in found.yaml) is apart
    assert "rows are full, as the scenario has it" in found.yaml
    assert "mean_sequence_length" not in found.yaml


def test_a_script_that_ends_in_a_backslash() -> None:
    found = read("swift sft --model Qwen/Qwen2.5-7B --train_type lora --max_length 2048 --optim adamw_torch \\", "train.sh")
    assert at(found, "training.optimizer.name") == "adamw"


NEMO = """trainer: {devices: 8, num_nodes: 1, precision: bf16, gradient_clip_val: 1.0}
exp_manager:
  exp_dir: ???
model:
  restore_from_path: ${data_dir}/gpt.nemo
  micro_batch_size: 1
  global_batch_size: ${multiply:${.micro_batch_size}, ${int_div:${sum:70,-6}, 2}}
  tensor_model_parallel_size: 2
  encoder_seq_length: ${subtract:4097, 1}
  megatron_amp_O2: true
  num_layers: 12
  hidden_size: 768
  num_attention_heads: 12
  hidden_dropout: 0.0
  attention_dropout: 0.0
  cpu_offloading_num_layers: ${sum:12,-1}
  tokenizer: {library: megatron, type: GPT2BPETokenizer}
  optim: {name: distributed_fused_adam}
"""


@pytest.mark.parametrize(("said", "gpus"), [("gpus: 2", 2), ("devices: 2", 2), ("gpus: -1", None), ("devices: -1", None)])
def test_nemo_counts_gpus_by_the_words_of_two_lightnings(said: str, gpus: int | None) -> None:
    found = read(NEMO.replace("devices: 8", said), "nemo.yaml")
    assert at(found, "cluster.gpus") == gpus
    assert not [fate.key.name for fate in found.fates if fate.kind == "unknown"]


def test_nemo_calculates_and_leaves_paths_open() -> None:
    found = read(NEMO, "nemo.yaml")
    assert not found.to_fill
    assert (at(found, "training.global_batch"), at(found, "training.sequence_length")) == (32, 4096)
    assert at(found, "model.vocabulary") == 50257
    asked = read(NEMO.replace("micro_batch_size: 1\n", "micro_batch_size: ???\n").replace("${.micro_batch_size}", "1"), "nemo.yaml")
    assert asked.to_fill == ("training.micro_batch",)


@pytest.mark.parametrize(("switch", "precision"), [("False", "bf16-fp32grad"), ("True", "fp8"), ("null", "bf16-fp32grad")])
def test_the_format_of_fp8_counts_where_fp8_is_on(switch: str, precision: str) -> None:
    found = read(f"{NEMO}  fp8: {switch}\n  fp8_e4m3: False\n  fp8_hybrid: True\n", "nemo.yaml")
    assert at(found, "training.precision") == precision


PEFT = "  peft: {peft_scheme: WORD, lora_tuning: {target_modules: [attention_qkv], adapter_dim: 16, alpha: 32, adapter_dropout: 0.0}}\n"


def test_adapters_of_nemo() -> None:
    found = read(NEMO + PEFT.replace("WORD", "lora"), "nemo.yaml")
    assert at(found, "training.finetune") == {"method": "lora", "rank": 16, "targets": ["query_key_value"], "dropout": 0.0}
    build(load(found.tree))
    narrow = "  fp8: True\n  fp8_hybrid: True\n  fp8_params: True\n  fp8_dot_product_attention: True\n"
    stored = read(NEMO + PEFT.replace("WORD", "lora") + narrow, "nemo.yaml")
    assert at(stored, "training.finetune.base") == "fp8"
    assert at(stored, "training.precision") == {"preset": "fp8", "keep": ["embedding", "head", "router", "norm"]}
    assert at(read(NEMO + narrow, "nemo.yaml"), "training.finetune") is None
    unsized = "\n".join(row for row in (NEMO + PEFT).splitlines() if "num_layers: 12" not in row and "size: 768" not in row)
    named = read(unsized.replace("WORD", "lora"), "nemo.yaml", model="llama-2-7b")
    assert at(named, "training.finetune.targets") == ["q_proj", "k_proj", "v_proj"]
    assert at(read(NEMO + PEFT.replace("WORD", "none"), "nemo.yaml"), "training.finetune") is None
    with pytest.raises(ScenarioError, match="adapters of the kind selective"):
        read(NEMO + PEFT.replace("WORD", "selective"), "nemo.yaml")
    for more, why in (
        ("layer_selection: [1, 12]", "adapters in some layers only"),
        ("weight_tying: True", "adapters that share their weights"),
    ):
        with pytest.raises(ScenarioError, match=why):
            read(NEMO + PEFT.replace("WORD", "lora").replace("alpha: 32", f"alpha: 32, {more}"), "nemo.yaml")
    bridge = "peft: {_target_: megatron.bridge.peft.lora.LoRA, dim: 8, target_modules: [linear_qkv, linear_fc2]}\n"
    section = read(f"{NEMO}{bridge}", "nemo.yaml").tree["training"]["finetune"]
    assert (section["rank"], section["targets"]) == (8, ["query_key_value", "mlp_down"])


SIZED = NEMO
UNSIZED = "\n".join(row for row in NEMO.splitlines() if not row.startswith(("  num_", "  hidden_size", "  encoder_seq", "  cpu_"))) + "\n"
TASKS = "  new_tasks: [rte]\n  task_templates: [{taskname: boolq, total_virtual_tokens: 30}, {taskname: rte, total_virtual_tokens: 9}]\n"
OF_LAYERS = 12 * (2 * 768 + 4 * 768)


@cache
def sized() -> ImportedScenario:
    return read(SIZED, "nemo.yaml")


@pytest.mark.parametrize(
    ("more", "section", "trained"),
    [
        (
            "  virtual_prompt_style: p-tuning\n" + TASKS + "  p_tuning: {encoder_type: tpmlp, encoder_hidden: 2048, num_layers: 7}\n",
            {"method": "prompt", "virtual_tokens": 9, "prompt_encoder": "mlp", "encoder_hidden": 2048},
            9 * 768 + 2 * 768 * 2048 + 2048 + 768,
        ),
        (
            "  virtual_prompt_style: p-tuning\n" + TASKS + "  p_tuning: {dropout: 0.0, num_layers: 2}\n",
            {"method": "prompt", "virtual_tokens": 9, "prompt_encoder": "lstm", "encoder_layers": 2},
            # two layers of 4 x 384 x (768 + 384 + 2), both ways; two Linear layers of 768 x 768
            9 * 768 + 4 * (4 * 384 * (768 + 384 + 2)) + 2 * (768 * 768 + 768),
        ),
        ("  virtual_prompt_style: prompt-tuning\n" + TASKS, {"method": "prompt", "virtual_tokens": 9}, 9 * 768),
        (
            "  prompt_encoder: {template: [3, 2, 1], num_layers: 1}\n",
            {"method": "prompt", "virtual_tokens": 6, "prompt_encoder": "lstm", "encoder_layers": 1},
            6 * 768 + 2 * (4 * 384 * (768 + 384 + 2)) + 2 * (768 * 768 + 768),
        ),
        (
            "  virtual_prompt_style: no-prompts\n  adapter_tuning: {type: linear_adapter, adapter_dim: 50, adapter_dropout: 0.1}\n",
            {"method": "bottleneck", "rank": 50, "dropout": 0.1},
            24 * (2 * 768 + 2 * 50 * 768),
        ),
        (
            "  peft: {peft_scheme: adapter, adapter_tuning: {adapter_dim: 32, layer_selection: null, weight_tying: False}}\n",
            {"method": "bottleneck", "rank": 32, "dropout": 0.0},
            24 * (2 * 768 + 2 * 32 * 768),
        ),
        ("  peft: {peft_scheme: ia3, ia3_tuning: {layer_selection: null}}\n", {"method": "ia3"}, OF_LAYERS),
        ("  virtual_prompt_style: no-prompts\nname: ia3_tuning\n", {"method": "ia3"}, OF_LAYERS),
        (
            "  peft: {peft_scheme: ptuning, p_tuning: {virtual_tokens: 10, bottleneck_dim: 1024, embedding_dim: 768}}\n",
            {"method": "prompt", "virtual_tokens": 10, "prompt_encoder": "mlp", "encoder_hidden": 1024},
            10 * 768 + 2 * 768 * 1024 + 1024 + 768,
        ),
    ],
)
def test_modules_of_nemo(more: str, section: dict[str, Any], trained: int) -> None:
    """Parameters are those of NeMo's PromptEncoder, ParallelLinearAdapter and InfusedAdapter; everything else is the job without them."""
    found, plain = read(SIZED + more, "nemo.yaml"), sized()
    assert found.tree["training"].pop("finetune") == section
    assert {key: found.tree[key] for key in ("cluster", "model", "parallel")} == {
        key: plain.tree[key] for key in ("cluster", "model", "parallel")
    }
    assert found.tree["training"] == plain.tree["training"]
    made = build(load({**found.tree, "training": {**found.tree["training"], "finetune": section}}))
    assert trainable_parameter_count(made.model) == trained
    asked = read(UNSIZED + more, "nemo.yaml")
    assert asked.to_fill == ("model", "training.sequence_length")
    assert asked.questions == 1  # the frozen model's file says both


@pytest.mark.parametrize(("gpus", "count"), [("[0, 3]", 2), ("[0, 1, 2, 3]", 4)])
def test_nemo_counts_devices_by_their_numbers(gpus: str, count: int) -> None:
    assert at(read(NEMO.replace("devices: 8", f"devices: {gpus}"), "nemo.yaml"), "cluster.gpus") == count


def test_a_batch_of_a_loader_is_accumulated_by_lightning() -> None:
    loaded = "\n".join(row for row in NEMO.splitlines() if "batch_size" not in row and "encoder_seq" not in row)
    loaded = (
        loaded.replace("num_nodes: 1", "num_nodes: 1, accumulate_grad_batches: 3")
        + "\n  data: {train_ds: {batch_size: 32, max_seq_length: 512}}\n"
    )
    found = read(loaded, "nemo.yaml")
    assert (at(found, "training.micro_batch"), at(found, "training.gradient_accumulation")) == (32, 3)
    with pytest.raises(ScenarioError, match="NeMo stops here"):
        read(NEMO.replace("num_nodes: 1", "num_nodes: 1, accumulate_grad_batches: 3"), "nemo.yaml")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("  vision: {num_layers: 24, hidden_size: 1024}\n", "a model of several parts (vision)"),
        ("  freeze_llm: true\n", "a part of the model that is not trained (freeze_llm)"),
        ("  virtual_prompt_style: inference\n", "which trains nothing"),
        ("  virtual_prompt_style: no-prompts\n", "adapters of a kind that the file does not say"),
        ("  virtual_prompt_style: no-prompts\n  lora_tuning: {kqv_adapter_dim: 24}\n", "adapters of ranks of their own"),
        ("  virtual_prompt_style: p-tuning\n  new_tasks: [a, b]\n", "learned tokens of several tasks"),
        ("  virtual_prompt_style: p-tuning\n  p_tuning: {encoder_type: rnn}\n", "learned tokens through rnn"),
        (
            "  adapter_tuning: {norm_position: null}\n  peft: {peft_scheme: adapter, adapter_tuning: {norm_position: none}}\n",
            "without a norm",
        ),
        ("  prompt_encoder: {template: [3, 3, 3]}\n  use_lm_finetune: true\n", "a model that is trained with its learned tokens"),
        ("  mcore_customization_config: {parallel_attention: true}\n", "a GPT whose sublayers stand side by side"),
        ("  encoder_tokenizer: {library: sentencepiece}\n", "a translation model"),
        ("  kd_config: {temperature: 1.0}\n", "a teacher that runs beside the model"),
        ("  crossattn_emb_size: 5120\n", "a model that attends to another one's states"),
        ("server: false\n", "which trains nothing"),
        ("  data: {train_ds: {neighbors: 20}}\n", "RETRO, a GPT that reads what a retriever finds"),
        ("quantization: {algorithm: int4}\n", "quantisation-aware training"),
        ("  data: {test_ds: {file_names: [a.jsonl], max_seq_length: 2048}}\n", "an evaluation: there is a test set and no training set"),
    ],
)
def test_other_jobs_of_nemo_are_refused_by_name(more: str, why: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(NEMO + more, "nemo.yaml")
    assert why in str(caught.value)


def test_what_is_named_beside_a_training_of_nemo_is_no_other_job() -> None:
    idle = read(f"{NEMO}quantization: {{algorithm: fp8, enable: false}}\n", "nemo.yaml")
    none = read(f"{NEMO}quantization: {{algorithm: null}}\n", "nemo.yaml")
    both = read(f"{NEMO}  data: {{train_ds: {{max_seq_length: 4096}}, test_ds: {{max_seq_length: 2048}}}}\n", "nemo.yaml")
    assert at(idle, "training.sequence_length") == at(none, "training.sequence_length") == at(both, "training.sequence_length") == 4096


def test_characters_that_no_yaml_holds_are_shown_by_their_codes() -> None:
    """NeMo-Aligner's gpt_sft.yaml separates turns with them."""
    found = read(f'{NEMO}  data: {{chat_prompt_tokens: {{system_turn_start: "\\x00", turn_start: "\\x11"}}}}\n', "nemo.yaml")
    assert "\\x00" in found.yaml
    assert "\\x11" in found.yaml


@pytest.mark.parametrize("word", ["dpo", "ppo", "rm", "kto"])
def test_preferences_of_nemo_aligner_are_refused(word: str) -> None:
    with pytest.raises(ScenarioError, match=f"NeMo-Aligner's training by {word}"):
        read(NEMO.replace("gradient_clip_val: 1.0}", f"{word}: {{max_steps: 10}}}}"), "nemo.yaml")
    tuned = read(NEMO.replace("gradient_clip_val: 1.0}", "sft: {max_steps: 10, gradient_clip_val: 1.0}}"), "nemo.yaml")
    assert at(tuned, "training.tokens") == 10 * 32 * 4096


def test_a_bert_of_nemo() -> None:
    text = NEMO.replace("GPT2BPETokenizer", "BertWordPieceLowerCase")
    found = read(f"{text}  bert_binary_head: true\n  transformer_block_type: pre_ln\n", "nemo.yaml")
    assert (at(found, "model.family"), at(found, "model.task"), at(found, "model.vocabulary")) == ("bert", "pretraining", 30522)
    assert at(read(f"{text}  bert_binary_head: false\n", "nemo.yaml"), "model.task") == "masked-lm"
    with pytest.raises(ScenarioError, match="a BERT of Megatron's with post_ln"):
        read(f"{text}  bert_binary_head: true\n  transformer_block_type: post_ln\n", "nemo.yaml")


def test_types_of_a_recipe_that_says_none() -> None:
    text = "train: {micro_batch_size: 1, global_batch_size: 8, train_iters: 10}\nddp: {grad_reduce_in_fp32: true}\n"
    text += "model: {tensor_model_parallel_size: 1, seq_length: 4096}\n"
    found = read(text, "bridge.yaml", model="llama-3.2-1b")
    assert at(found, "training.precision") == "bf16-fp32grad"
    assert not found.to_fill
    assert "take bf16_mixed if nothing is said" in found.yaml


def test_a_tower_before_a_language_model_makes_it_another_model() -> None:
    head = "deepspeed llava/train/train_mem.py --deepspeed ./scripts/zero2.json --model_name_or_path Qwen/Qwen2.5-7B --bf16 True"
    text = f"{head} --per_device_train_batch_size 16 --model_max_length 2048 --tf32 True --vision_tower openai/clip-vit-large-patch14"
    found = read(text, "finetune.sh")
    assert found.to_fill == ("model",)
    assert "LLaVA trains all but the tower: freeze: [vision]" in found.yaml
    tuned = read(f"{text} --tune_mm_mlp_adapter True", "pretrain.sh", model="llava-1.5-7b")
    assert at(tuned, "model") == "llava-1.5-7b"
    assert {fate.key.name: fate.kind for fate in tuned.fates}["tune_mm_mlp_adapter"] == "not modelled"


def test_a_batch_alone_is_not_deepspeeds() -> None:
    with pytest.raises(ScenarioError, match="no training configuration that parsim knows"):
        read('{"train_batch_size": 64, "train_image_shape": [64, 3, 256, 256], "learning_rate": 0.1}', "data.json")
    assert read('{"train_batch_size": 64, "bf16": {"enabled": true}}', "ds.json").tool == "DeepSpeed"


def test_a_model_that_torchtitan_does_not_name_is_refused() -> None:
    text = "[model]\nbackbone = 'dinov3_vitl16'\n[training]\nbatch_size = 16\nseq_len = 2048\n[job]\ndump_folder = 'x'\n"
    with pytest.raises(ScenarioError, match="a model of this key"):
        read(text, "train.toml")
    assert at(read(text.replace("backbone = 'dinov3_vitl16'", "norm_type = 'rmsnorm'"), "train.toml"), "model.layers") == 6


MAMBA = "--normalization RMSNorm --position-embedding-type none --disable-bias-linear --hidden-size 4096 --num-attention-heads 32"


def test_a_hybrid_by_its_shares() -> None:
    """NVIDIA's Mamba-2-Hybrid of 8B (Waleffe et al. 2024, 2406.07887, section 3.2): 24 Mamba-2, 4 attention and 28 MLP layers of 56."""
    text = f"torchrun --nproc_per_node 8 pretrain_mamba.py --num-layers 56 {MAMBA} --hybrid-attention-ratio 0.08 --hybrid-mlp-ratio 0.5"
    found = read(f"{text} --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --bf16 --vocab-size 256000", "train.sh")
    pattern = at(found, "model.layer_pattern")
    assert (pattern.count("M"), pattern.count("*"), pattern.count("-"), len(pattern)) == (24, 4, 28, 56)
    assert pattern == "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-"
    assert build(load(found.tree)).model.layers == 56


def test_arguments_are_not_blamed_for_what_is_not_supported() -> None:
    with pytest.raises(ScenarioError) as caught:
        read("TP=$1\n" + script("--tensor-model-parallel-size $TP --micro-batch-size 1", program="pretrain_vlm.py"))
    assert "--arguments" not in str(caught.value)


TITAN = """
[model]
name = "llama3"
flavor = "8B"
norm_type = "rmsnorm"
[training]
batch_size = 1
seq_len = 8192
vocab_size = 256
"""


def test_a_fork_of_torchtitan_has_words_of_its_own() -> None:
    """eminorhan/gpt-neuro: bytes in place of Llama 3's 128,256 words; both tables have as many rows less."""
    found = read(TITAN, "train.toml")
    assert at(found, "model") == {"base": "llama-3-8b", "vocabulary": 256}
    assert parameter_count(build(load(found.tree)).model) == 8_030_261_248 - 2 * (128_256 - 256) * 4096
    assert at(read(TITAN, "train.toml", vocabulary=512), "model.vocabulary") == 512
    assert [fate.kind for fate in found.fates if fate.key.written == "model.norm_type"] == ["no effect"]
    other = read(TITAN.replace('"rmsnorm"', '"layernorm"'), "train.toml")
    assert [fate.kind for fate in other.fates if fate.key.written == "model.norm_type"] == ["not modelled"]


def test_what_a_trainer_notes_is_no_configuration() -> None:
    text = '{"train_batch_size": 2, "max_steps": 96, "num_train_epochs": 20, "log_history": [{"loss": 1.9}]}'
    with pytest.raises(ScenarioError, match="what a Trainer notes at a checkpoint"):
        read(text, "trainer_state.json")


def test_machines_that_nothing_counts_are_asked_for_where_one_holds_no_copy_of_the_model() -> None:
    options = (
        "--vocab-size 50257 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 64"
    )
    found = read(script(options, launch="python"), on=None)
    assert (found.to_fill, found.questions) == (("cluster.topology", "cluster.nodes"), 1)
    assert "tensor 8 x pipeline 4 = 32 GPUs hold the model once" in found.yaml
    assert read(script(options, launch="python"), nodes=4).to_fill == ()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/data/zero-stage3.json", ("zero3", None)),
        ("configs/ds_z3_offload.json", ("zero3", "cpu")),
        ("zero2.json", ("zero2", None)),
    ],
)
def test_a_deepspeed_file_of_accelerate_that_is_not_there_is_taken_as_its_name_says(name: str, expected: tuple[str, str | None]) -> None:
    text = f"distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  deepspeed_config_file: {name}\n"
    found = read(text, "accelerate.yaml")
    assert (at(found, "parallel.data.strategy"), at(found, "training.offload.parameters")) == expected
    assert found.questions == 1
    assert "as its name says, with the types of the training arguments" in found.yaml
    nameless = read(text.replace(name, "ds_config.json"), "accelerate.yaml")
    assert nameless.questions == 2
    third = read(text.replace(name, "ds_config.json") + "  zero3_init_flag: true\n", "accelerate.yaml")  # of no meaning at another stage
    assert (at(third, "parallel.data.strategy"), third.questions) == ("zero3", 1)
    assert "training.precision" in third.to_fill
    for more in ("  zero3_init_flag: true\n  zero_stage: 2\n", "  zero3_init_flag: false\n"):
        assert "parallel.data.strategy" in read(text.replace(name, "ds_config.json") + more, "accelerate.yaml").to_fill

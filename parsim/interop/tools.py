"""The tools whose configurations are recognised: one record each, what its files are known by, who reads and who writes them.

A new tool is one record in `RECORDS`: its reader takes the draft and the parsed file. Where its files hold keys of another tool as
well, that one's name stands under ``has``; a tool without a reader is refused by name instead of being taken for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from parsim.errors import Finding, ScenarioError
from parsim.interop.accelerate import read_accelerate, to_fsdp
from parsim.interop.axolotl import read_axolotl
from parsim.interop.command import invocation
from parsim.interop.deepspeed import read_deepspeed, to_deepspeed
from parsim.interop.flagscale import read_flagscale
from parsim.interop.import_draft import ImportDraft
from parsim.interop.megatron.megatron import read_megatron, to_megatron
from parsim.interop.megatron.megatron_deepspeed import MARKS, read_megatron_deepspeed
from parsim.interop.megatron.recipe import read_recipe
from parsim.interop.megatron.yaml_file import read_yaml
from parsim.interop.nemo import read_nemo
from parsim.interop.neox import read_neox
from parsim.interop.primus import read_primus
from parsim.interop.recognise import Foreign, Tool, claims
from parsim.interop.swift import of_file, read_swift
from parsim.interop.titan_export import to_torchtitan
from parsim.interop.torchtitan import read_torchtitan
from parsim.interop.trainer import read_trainer
from parsim.interop.verl import SUPERVISED, read_verl
from parsim.scenario import files

_OF_DEEPSPEED = (
    "fp16", "bf16", "optimizer.type", "gradient_accumulation_steps", "steps_per_print", "gradient_clipping",
    "zero_allow_untested_optimizer",
)  # fmt: skip
"""what stands beside a batch in a file of DeepSpeed's, and not in one of somebody's own"""
BOTH = ("document", "command")
OWN = "write the scenario: parsim new"
MODEL = "hf-model"
"""the name of models' own configurations, which say nothing of a training"""
WITH_A_MODEL = "parsim new --model {0} --on CLUSTER, or beside a training configuration parsim import TRAINING --model {0}"
"""what to do with one"""


def _megatron(draft: ImportDraft, foreign: Foreign) -> None:
    if foreign.call is not None:
        read_megatron(draft, foreign.call)


def _megatron_yaml(draft: ImportDraft, foreign: Foreign) -> None:
    if foreign.document is not None:
        read_yaml(draft, foreign.document)


def _megatron_recipe(draft: ImportDraft, foreign: Foreign) -> None:
    if foreign.document is not None:
        read_recipe(draft, foreign.document)


def _megatron_deepspeed(draft: ImportDraft, foreign: Foreign) -> None:
    if foreign.call is not None:
        read_megatron_deepspeed(draft, foreign.call)


def _deepspeed(draft: ImportDraft, foreign: Foreign) -> None:
    if not _beside(draft, foreign, "deepspeed") and foreign.document is not None:
        read_deepspeed(draft, foreign.document)


def _accelerate(draft: ImportDraft, foreign: Foreign) -> None:
    if not _beside(draft, foreign, "accelerate") and foreign.document is not None:
        read_accelerate(draft, foreign.document)


def _beside(draft: ImportDraft, foreign: Foreign, tool: str) -> bool:
    """Read the training arguments that go with the file of `tool`; False where there are none."""
    if foreign.arguments is None or foreign.document is None:
        return False
    path = Path(foreign.arguments)
    is_script = path.suffix in (".sh", ".slurm", ".sbatch")
    document = None if is_script else files.read(path)
    call = invocation(files.read_text(path), str(path), dict(draft.given.variables)) if is_script else None
    found = claims(TABLE, Foreign(str(path), document, call))
    factory = any(claim.tool.name == "llama-factory" for claim in found)
    if found and not factory and all(claim.tool.name != "hf" for claim in found):
        text = f"these are no training arguments: they are {found[0].tool.called}'s ({found[0].evidence})"
        raise ScenarioError(Finding(text, "--hf", foreign.arguments, "give the file or script of the Trainer, TRL or LLaMA-Factory"))
    read_trainer(draft, document, call, factory=factory, beside={tool: foreign.document})
    return True


def _trainer(draft: ImportDraft, foreign: Foreign) -> None:
    read_trainer(draft, foreign.document, foreign.call, factory=False)


def _factory(draft: ImportDraft, foreign: Foreign) -> None:
    read_trainer(draft, foreign.document, foreign.call, factory=True)


def _swift(draft: ImportDraft, foreign: Foreign) -> None:
    if foreign.call is not None:
        read_swift(draft, foreign.call)
    elif foreign.document is not None:
        read_swift(draft, of_file(foreign.document))


def _verl(draft: ImportDraft, foreign: Foreign) -> None:
    if foreign.call is None:
        text = "this is YAML of verl, which parsim does not read"
        raise ScenarioError(Finding(text, file=draft.file, line=1, suggestion=f"give the command that starts {SUPERVISED[0]}"))
    read_verl(draft, foreign.call)


RECORDS = (
    Tool(
        "megatron", "Megatron-LM", forms=("command",), enough=1, read=_megatron, target="megatron",
        write=lambda job, _: to_megatron(job),
        programs=("pretrain_gpt.py",),
        shared=("num_layers", "hidden_size", "num_attention_heads", "micro_batch_size", "global_batch_size", "seq_length",
                "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    ),
    Tool(
        "megatron-yaml", "Megatron-LM's YAML (--yaml-cfg)", read=_megatron_yaml,
        own=("language_model.num_layers", "model_parallel.tensor_model_parallel_size"),
    ),
    Tool(
        "deepspeed", "DeepSpeed", read=_deepspeed, target="deepspeed", write=lambda job, _: to_deepspeed(job),
        own=("train_micro_batch_size_per_gpu", "zero_optimization"),
        shared=tuple(f"train_batch_size+{key}" for key in _OF_DEEPSPEED),
    ),
    Tool(
        "megatron-deepspeed", "Megatron-DeepSpeed", forms=("command",), has=("megatron",), read=_megatron_deepspeed,
        own=tuple(f"{mark}+num_layers" for mark in MARKS),
    ),
    Tool(
        "megatron-recipe", "Megatron-LM's arguments in YAML", read=_megatron_recipe,
        own=tuple(f"{section}{name}" for name in ("num_layers", "micro_batch_size") for section in ("ARGS.", "MODEL_ARGS.__")),
    ),
    Tool(
        "accelerate", "accelerate", read=_accelerate, target="fsdp", write=to_fsdp, enough=1,
        own=("distributed_type", "compute_environment", "main_process_ip", "num_processes"),
        shared=("fsdp_config",),
    ),
    Tool(
        "hf", "Hugging Face TrainingArguments", forms=BOTH, read=_trainer, enough=3,
        own=("per_device_train_batch_size", "per_gpu_train_batch_size", "num_train_epochs", "model_name_or_path"),
        shared=("gradient_accumulation_steps", "output_dir", "max_steps", "learning_rate", "micro_batch_size", "fsdp_config"),
        programs=("trl", "run_clm.py"),
    ),
    Tool(
        "llama-factory", "LLaMA-Factory", forms=BOTH, read=_factory, has=("hf", "megatron"),
        own=("finetuning_type", "lora_target", "freeze_trainable_layers",
             *(f"cutoff_len+{key}" for key in ("stage", "template", "dataset_dir", "val_size", "quantization_bit"))),
        shared=("stage", "dataset_dir", "template", "dataset"),
        programs=("llamafactory-cli", "llamafactory"),
    ),
    Tool(
        "axolotl", "axolotl", read=read_axolotl,
        own=("base_model", "sequence_len", "sample_packing", "val_set_size", "lora_target_linear", "dataset_prepared_path"),
        programs=("axolotl",),
    ),
    Tool(
        "torchtitan", "torchtitan", read=read_torchtitan, programs=("torchtitan",), target="torchtitan",
        write=lambda job, _: to_torchtitan(job),
        own=("model.flavor", "training.local_batch_size", "training.seq_len", "activation_checkpoint.mode", "job.dump_folder",
             "experimental.pipeline_parallel_degree", "parallelism.*"),
    ),
    Tool(
        "neox", "GPT-NeoX", read=read_neox, has=("deepspeed",), programs=("deepy.py",), merges=True,
        own=("pipe_parallel_size", "model_parallel_size", "pos_emb", "no_weight_tying", "attention_config", "checkpoint_activations"),
        shared=("num_layers", "hidden_size", "num_attention_heads", "seq_length"),
    ),
    Tool(
        "nemo", "NeMo", forms=BOTH, read=read_nemo,
        programs=("nemo", "megatron_gpt_pretraining.py", "megatron_gpt_continue_training.py"),
        own=("model.tensor_model_parallel_size", "model.micro_batch_size", "model.encoder_seq_length", "model.megatron_amp_O2",
             "exp_manager", "trainer.strategy.tensor_model_parallel_size", "trainer.strategy.ddp", "ddp.use_distributed_optimizer",
             "ddp.grad_reduce_in_fp32", "mixed_precision.bf16"),
        shared=("train.micro_batch_size", "train.global_batch_size", "train.train_iters", "trainer.num_nodes", "model._target_"),
    ),
    Tool(
        "flagscale", "FlagScale", read=read_flagscale, has=("nemo",), merges=True,
        own=("system.tensor_model_parallel_size", "system.no_shared_fs", "experiment.exp_name", "experiment.runner.nnodes"),
    ),
    # known by name only: refused, so that they are not taken for another tool that has some of their keys
    Tool("torchtune", "torchtune", own=("model._component_", "tokenizer._component_", "optimizer._component_", "loss._component_"),
         programs=("tune",), instead=OWN),
    Tool("nanotron", "nanotron", own=("parallelism.dp", "parallelism.tp", "tokens.micro_batch_size", "tokens.sequence_length"),
         has=("torchtitan",), instead=OWN),
    Tool("llm-foundry", "LLM Foundry", own=("device_train_microbatch_size", "global_train_batch_size", "variables.global_train_batch_size"),
         has=("accelerate",), instead=OWN),
    Tool("nemo-automodel", "NeMo AutoModel", own=("step_scheduler.*", "packed_sequence.packed_sequence_size"), has=("nemo",),
         instead=OWN),
    Tool("litgpt", "LitGPT", own=("train.lr_warmup_steps", "train.max_tokens"), instead=OWN),
    Tool("swift", "ms-swift", forms=BOTH, has=("hf", "megatron", "llama-factory"), programs=("swift",), read=_swift,
         own=("tuner_type", "train_type", "sft_type", "rlhf_type", "attn_impl", "split_dataset_ratio"), instead=OWN),
    Tool("primus", "Primus", own=("modules.pre_trainer.*", "modules.post_trainer.*", "work_group"),
         has=("nemo", "torchtitan", "flagscale"), read=read_primus),
    Tool("nemo-rl", "NeMo RL", own=("policy.megatron_cfg.*", "policy.dtensor_cfg.*", "loss_fn.*"), has=("nemo", "nemo-automodel"),
         instead=OWN),
    Tool("trainer-state", "what a Trainer notes at a checkpoint", own=("log_history",), has=("hf", "deepspeed"),
         instead="import the training arguments, or the script that holds them"),
    Tool(MODEL, "a Hugging Face model's configuration", own=("architectures", "transformers_version"), enough=4,
         shared=("model_type", "vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"),
         instead=WITH_A_MODEL.format("FILE")),
    Tool("parsim", "a scenario of parsim", own=("cluster.topology", "training.sequence_length", "parallel.tensor.size"),
         instead="it needs no import: parsim run FILE"),
    Tool("verl", "verl", own=("actor_rollout_ref.*", "algorithm.adv_estimator"), forms=BOTH, programs=("verl",), read=_verl,
         instead=OWN),
)  # fmt: skip
TABLE: Mapping[str, Tool] = {tool.name: tool for tool in RECORDS}
"""by the name after ``--from``"""

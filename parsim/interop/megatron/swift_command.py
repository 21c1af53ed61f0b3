"""Commands of Megatron-SWIFT (``megatron sft``, ``pt`` and ``rlhf``): Megatron-LM's options with ms-swift's model, data and adapters.

modelscope/ms-swift, docs/source_en/Megatron-SWIFT/Command-line-parameters.md and swift/megatron/arguments/megatron_args.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parsim.interop.command import Invocation, read_environment
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import TransformerSizes, has_experts, write_model
from parsim.interop.keys import Key, Source, key_table
from parsim.interop.megatron.parallel import read_parallel
from parsim.interop.megatron.training import read_training
from parsim.interop.nemo_adapters import layers_of
from parsim.interop.objective import write_objective
from parsim.interop.peft import listed, write_adapter_dtype, write_saved
from parsim.interop.policy import PolicyRules, policy_of, write_policy, write_policy_length
from parsim.interop.processes import write_launched
from parsim.interop.towers import FrozenParts, write_frozen_parts
from parsim.interop.training_arguments import write_length

TABLE = "megatron-swift"
TOOL = "Megatron-SWIFT"
"""whose defaults are no keys of a command"""
COMMANDS = ("sft", "pt", "rlhf")
FROZEN = FrozenParts("freeze_vit", "freeze_aligner", "freeze_llm")
POLICIES = PolicyRules(
    TOOL,
    ("max_length",),
    own_pass=True,
    defaults={
        "beta": 0.04, "max_completion_length": 512, "use_vllm": True, "vllm_mode": "server", "vllm_gpu_memory_utilization": 0.9,
    },
)  # fmt: skip
"""swift/megatron/trainers/grpo_trainer.py (_maybe_compute_logps)"""
DEFAULTS = {
    "micro_batch_size": "1", "global_batch_size": "16", "recompute_granularity": "selective", "attention_backend": "flash",
    "use_distributed_optimizer": "true", "moe_permute_fusion": "false", "moe_token_dispatcher_type": "alltoall", "hidden_dropout": "0",
    "attention_dropout": "0",
}  # fmt: skip
"""options that are something else there than in Megatron-LM if they are not given; dropouts are the model's, which has none"""
NEWER = ("tuner_type", "num_train_epochs", "output_dir", "save_steps", "logging_steps", "dataloader_num_workers")
"""options of version 4, which fuses the loss unless told otherwise"""
CONVERTED = "-mcore"
"""ends the name of a folder with a model that was converted for Megatron-LM"""
RANK, DROPOUT = 8, 0.05


def read_megatron_swift(draft: ImportDraft, call: Invocation) -> None:
    """Write the scenario of a command."""
    word = call.positional[0].text if call.positional else ""
    source, launch = (Source(keys, key_table(TABLE)) for keys in (_options(draft, call, word), call.launch))
    draft.take(source, "parallel.tensor.size")
    sizes = _model(draft, source)
    write_launched(draft, launch, call.launcher, call.variables, call.used)
    if "cluster.gpus" not in draft.lines:
        draft.write("cluster.gpus", 1, note="one process without NPROC_PER_NODE")
    told = write_objective(draft, source, call)
    draft.refuse(_placed(source), "processes that Ray places on GPUs (use_ray)", "give the command without it")
    policy = policy_of(source, POLICIES) if told is not None else None
    length = write_length(draft, source, factory=False) if policy is None else write_policy_length(draft, policy)
    _adapters(draft, source)
    write_frozen_parts(draft, source, sizes, FROZEN)
    read_training(draft, source, length)
    read_parallel(draft, source, None if sizes is None else sizes.layers)
    draft.write("software.profile", "megatron-core")
    draft.take(source, "software.gradient_accumulation_fusion")
    if policy is not None and told is not None:
        write_policy(draft, policy, told.key)
    read_environment(draft, call.environment)
    draft.close(source)
    draft.close(launch)


def _placed(source: Source) -> Key | None:
    """What hands the processes to Ray, whose groups of GPUs say what each is for."""
    key = source.get("use_ray")
    return None if key is None or key.off else key


def _options(draft: ImportDraft, call: Invocation, word: str) -> Iterator[Key]:
    """The options, with what is taken where they are not given."""
    given = {key.name: key for key in call.options}
    for key in call.options:
        if key.name == "recompute_granularity" and key.text == "none":
            draft.harmless(key, "nothing is recomputed")
        else:
            yield replace(key, name="stage") if key.name == "rlhf_type" else key
    for name, value in DEFAULTS.items():
        if name not in given:
            yield Key(name, f"--{name} (if not given)", value, TOOL)
    if word == "rlhf" and "rlhf_type" not in given:
        yield Key("stage", "rlhf (dpo if not given)", "dpo", TOOL)
    if "cross_entropy_loss_fusion" not in given and any(name in given for name in NEWER):
        yield Key("cross_entropy_loss_fusion", "--cross_entropy_loss_fusion (if not given, in version 4)", "true", TOOL)
    if not {"bf16", "fp16"} & given.keys():
        yield _half(draft, given.get("torch_dtype"))


def _half(draft: ImportDraft, said: Key | None) -> Key:
    """Weights and products have the model's own type, bfloat16 where nothing is known of it."""
    if said is not None and isinstance(said.value, str):
        name = "fp16" if said.text in ("float16", "float32") else "bf16"
        return replace(said, name=name, value=True, original=said.value)
    draft.remark("a model's weights are taken as bfloat16, as almost all are", "training.precision", "say --torch_dtype")
    return Key("bf16", "--torch_dtype (the model's own if not given)", True, TOOL, original="bfloat16")


def _model(draft: ImportDraft, source: Source) -> TransformerSizes | None:
    """The Hub's model, or the folder with a converted one, whose name says which it is."""
    named, folder = source.get("model"), source.get("mcore_model", "load")
    if named is None and folder is not None and folder.text.rstrip("/").endswith(CONVERTED):
        named = replace(folder, value=folder.text.rstrip("/").removesuffix(CONVERTED), original=folder.value)
    elif named is None:
        named = folder
    elif folder is not None:
        draft.harmless(folder, "where the weights of the model lie")
    sizes, ahead = write_model(draft, named), source.of("model.mtp")
    if sizes is not None and (count := draft.whole(ahead)):
        line = draft.lines.pop("model")
        draft.write("model.base", line.value, *line.keys, note=line.note)
        draft.write("model.mtp", count, ahead)
    return sizes


def _adapters(draft: ImportDraft, source: Source) -> None:
    tuner, task = source.get("tuner_type", "train_type"), source.get("task_type")
    rank, targets, share, saved, kind = (
        source.get(name) for name in ("lora_rank", "target_modules", "lora_dropout", "modules_to_save", "lora_dtype")
    )
    if task is not None and task.text != "causal_lm":
        draft.refuse(task, f"the task {task.text}")
    draft.harmless(task, "next tokens")
    if tuner is None or tuner.text == "full":
        draft.harmless(tuner, "everything is trained, as without training.finetune")
        for key in (rank, targets, share, saved, kind):
            draft.harmless(key, "there are no adapters")
        return
    if tuner.text != "lora":
        draft.refuse(tuner, f"the tuner {tuner.text}", "parsim has lora and full")
        return
    path = "training.finetune"
    draft.write(f"{path}.method", "lora", tuner)
    draft.write(f"{path}.rank", draft.whole(rank, 1) or RANK, rank, note="" if rank else f"{RANK} if not given")
    words = listed(targets.value[0] if isinstance(targets.value, list) and len(targets.value) == 1 else targets) if targets else []
    names = layers_of(words)
    if names is None and words not in ([], ["all-linear"]):
        draft.refuse(
            targets, f"adapters of {', '.join(words)}", "parsim knows all-linear, linear_qkv, linear_proj, linear_fc1 and linear_fc2"
        )
    draft.write(f"{path}.targets", names or "all-linear", targets, note="" if targets else "all-linear if not given")
    draft.remark(
        "one adapter stands beside query, key and value there, and one beside gate and up; here each has its own", f"{path}.targets"
    )
    if has_experts(draft):
        draft.write(f"{path}.experts", "linear", note="experts are linear layers with adapters of their own there; the router has none")
    dropped = DROPOUT if share is None else draft.number(share) or 0.0
    draft.write(f"{path}.dropout", dropped, share, note="" if share else f"{DROPOUT} if not given")
    if saved is not None:
        write_saved(draft, saved)
    if kind is not None:
        write_adapter_dtype(draft, kind, fp32=kind.text == "float32")

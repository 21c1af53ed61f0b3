"""Commands of verl: its supervised fine-tuning as a scenario; trainers that generate answers are refused.

volcengine/verl, verl/trainer/fsdp_sft_trainer.py and verl/trainer/config/sft_trainer.yaml: overrides in Hydra's form, ``key=value``.
"""

from __future__ import annotations

from parsim.interop.command import Invocation, read_environment
from parsim.interop.hydra import overrides
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import write_micro_batch, write_model, write_sequence_length
from parsim.interop.keys import Key, Source, key_table
from parsim.interop.peft import write_targets
from parsim.interop.processes import write_launched

SUPERVISED = ("verl.trainer.fsdp_sft_trainer", "verl.trainer.sft_trainer")
GENERATING = {
    "main_ppo": "PPO and its like (GRPO, RLOO ...): answers are generated between the updates",
    "main_generation": "the generation of answers",
    "main_eval": "an evaluation",
}
"""modules that are not read, by the end of their name"""


def read_verl(draft: ImportDraft, call: Invocation) -> None:
    """Write the scenario of ``verl.trainer.fsdp_sft_trainer``."""
    source = Source((*overrides(draft, call), *call.options), key_table("verl"))
    if call.program not in SUPERVISED:
        line = call.positional[0].line if call.positional else 1
        word = source.get("algorithm.adv_estimator") or Key(call.program, "python -m", call.program, draft.file, line)
        why = GENERATING.get(call.program.rpartition(".")[2], f"the module {call.program}")
        draft.refuse(word, why, f"parsim reads {' and '.join(SUPERVISED)}")
        return
    launch = Source(call.launch, key_table("verl"))
    write_model(draft, source.of("model"))
    write_launched(draft, launch)
    length = source.of("training.sequence_length")
    if length is None and draft.given.sequence_length is None:
        draft.write("training.sequence_length", 1024, note="data.max_length is 1024 if not given")
    else:
        write_sequence_length(draft, length, "shorter samples: add mean_sequence_length")
    _batch(draft, source)
    _types(draft, source)
    _adapters(draft, source)
    draft.write("parallel.data.strategy", "fsdp", note="its trainer shards everything")
    _sharding(draft, source)
    read_environment(draft, call.environment)
    draft.close(source)
    draft.close(launch)


def _batch(draft: ImportDraft, source: Source) -> None:
    total = source.of("training.global_batch")
    samples = draft.whole(total, 1) if total is not None else 256
    if draft.given.gradient_accumulation is None:
        draft.write("training.global_batch", samples, total, note="" if total else "data.train_batch_size is 256 if not given")
    else:
        draft.write("training.gradient_accumulation", draft.given.gradient_accumulation, note="--gradient-accumulation")
        draft.harmless(total, "replaced by --gradient-accumulation")
    write_micro_batch(draft, source.of("training.micro_batch"), 4, "data.micro_batch_size_per_gpu is 4 if not given")
    epochs = source.of("training.epochs")
    if draft.given.examples is not None:
        passes = draft.number(epochs)
        draft.write("training.examples", draft.given.examples, note="--examples")
        draft.write("training.epochs", 4.0 if passes is None else passes, epochs, note="" if epochs else "4 if not given")
    draft.harmless(epochs, "how long the training lasts (--examples: samples of the data set)")


def _types(draft: ImportDraft, source: Source) -> None:
    """Autocast in bf16, on weights of the type that is said; AdamW of PyTorch."""
    kind = source.of("training.precision")
    if kind is None:
        draft.write("training.precision", "amp-bf16", note="model.fsdp_config.model_dtype is fp32 if not given")
    elif draft.take(source, "training.precision") is None:
        draft.errors.append(kind.finding(f"{kind.value} is neither fp32 nor bf16"))
    draft.write("training.optimizer.name", "adamw", note="its trainer's")
    clip = source.of("training.optimizer.clip_gradients")
    limit = draft.number(clip)
    draft.write("training.optimizer.clip_gradients", limit is None or limit > 0, clip, note="" if clip else "optim.clip_grad is 1.0")
    again = source.of("training.recompute")
    if again is None:
        draft.fill("training.recompute", "full or none: what model.enable_gradient_checkpointing is if not given depends on the version")
    elif draft.flag(again):
        draft.write("training.recompute", "full", again)
    else:
        draft.harmless(again, "switched off")


def _adapters(draft: ImportDraft, source: Source) -> None:
    rank, targets = source.of("training.finetune.rank"), source.of("training.finetune.targets")
    if (size := draft.whole(rank)) is not None and size > 0:
        draft.write("training.finetune.method", "lora", rank)
        draft.write("training.finetune.rank", size, rank)
        write_targets(draft, targets)
    for key in (rank, targets):
        draft.harmless(key, "without lora_rank there are no adapters")


def _sharding(draft: ImportDraft, source: Source) -> None:
    version, offload = source.of("parallel.data.fsdp_version"), source.of("training.offload.parameters")
    word = source.table.rows["parallel.data.fsdp_version"].ours(version.value) if version is not None else None
    if version is not None and word is not None:
        draft.write("parallel.data.fsdp_version", int(word), version)
    elif version is not None:
        draft.refuse(version, f"the strategy {version.value}", "parsim reads fsdp and fsdp2")
    if draft.flag(offload):
        for path in ("parameters", "gradients", "optimizer"):
            draft.write(f"training.offload.{path}", "cpu", offload)
    draft.harmless(offload, "switched off")
    ranks = source.of("parallel.context.size")
    if (size := draft.whole(ranks, 1)) is not None and size > 1:
        draft.write("parallel.context.size", size, ranks)
        draft.write("parallel.context.method", "ulysses", ranks)
    draft.harmless(ranks, "every rank has whole samples")
    for name in ("trainer.n_gpus_per_node", "trainer.nnodes"):
        draft.harmless(source.get(name), "the launcher says how many processes there are")

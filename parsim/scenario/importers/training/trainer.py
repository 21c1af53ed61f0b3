"""Arguments of Hugging Face's Trainer (YAML, JSON or a command line) and of LLaMA-Factory, which adds its own, as a scenario.

What is taken where nothing is said: huggingface/transformers, src/transformers/training_args.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parsim.errors import Finding
from parsim.scenario import files
from parsim.scenario.importers.training import accelerate, deepspeed
from parsim.scenario.importers.training.accelerate import PRECISIONS
from parsim.scenario.importers.training.command import Invocation
from parsim.scenario.importers.training.deepspeed_tables import TABLES as DEEPSPEED
from parsim.scenario.importers.training.draft import Draft
from parsim.scenario.importers.training.environment import read_environment
from parsim.scenario.importers.training.factory import write_factory
from parsim.scenario.importers.training.fsdp import write_fsdp
from parsim.scenario.importers.training.keys import Key, Source, of_document
from parsim.scenario.importers.training.machine import write_launched
from parsim.scenario.importers.training.models import (
    Sizes,
    missing_file,
    neighbour,
    write_accumulation,
    write_micro_batch,
    write_model,
    write_sequence_length,
)
from parsim.scenario.importers.training.peft import asks_for_adapters, write_peft
from parsim.scenario.importers.training.trainer_tables import TABLES
from parsim.scenario.placeholder import EXAMPLES

LENGTHS = ("cutoff_len", "block_size", "max_seq_length", "max_length", "model_max_length", "max_source_length")
ATTENTIONS = {
    "flash_attention_2": "flash2",
    "flash_attention_3": "flash3",
    "eager": "eager",
    "fa2": "flash2",
    "fa3": "flash3",
    "disabled": "eager",
}
CHOSEN = ("sdpa", "auto", "None")
"""attention that PyTorch chooses, as parsim's auto"""
OPTIMS: Mapping[str, tuple[str, str]] = {
    "adamw_hf": ("adamw", "loop"), "adamw_torch": ("adamw", "foreach"), "adamw_torch_fused": ("adamw", "fused"),
    "adamw_apex_fused": ("adamw", "fused"), "adamw_bnb_8bit": ("adam-8bit", ""), "adamw_8bit": ("adam-8bit", ""),
    "adafactor": ("adafactor", ""), "sgd": ("sgd", ""), "lion_32bit": ("lion", ""), "lion": ("lion", ""),
    "paged_adamw_32bit": ("adamw", ""), "paged_adamw_8bit": ("adam-8bit", ""), "paged_lion_32bit": ("lion", ""),
}  # fmt: skip
"""``optim`` -> name and implementation; states of paged ones are taken to stay on the device"""
HALF = {"bfloat16": "bf16", "torch.bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "torch.float16": "fp16", "fp16": "fp16"}


@dataclass
class Job:
    """The keys of a training and of the files that it names."""

    source: Source
    deepspeed: Source | None = None
    accelerate: Source | None = None
    launch: Source = field(default_factory=lambda: Source(()))


def read_trainer(
    draft: Draft,
    document: files.Document | None,
    call: Invocation | None,
    *,
    factory: bool,
    beside: Mapping[str, files.Document] | None = None,
) -> None:
    """Write the scenario of training arguments: a file's or a command's. `beside` are configurations that go with them, by tool."""
    job = _job(draft, document, call, beside or {})
    sizes = write_model(draft, job.source.get("model_name_or_path", "model_name", "model"))
    if job.accelerate is not None:
        accelerate.write_processes(draft, job.accelerate)
    else:
        write_launched(draft, job.launch)
    length = _length(draft, job.source, factory=factory)
    _batch(draft, job)
    _strategy(draft, job, sizes)
    _optimizer(draft, job)
    _switches(draft, job.source)
    if factory:
        write_factory(draft, job.source, sizes)
    else:
        write_peft(draft, job.source)
    _liger(draft, job.source, sizes, length)
    if call is not None:
        read_environment(draft, call.environment)
    draft.close(job.source, TABLES)
    draft.close(job.launch, TABLES)
    if job.deepspeed is not None:
        draft.close(job.deepspeed, DEEPSPEED)
    if job.accelerate is not None:
        draft.close(job.accelerate, accelerate.TABLES)


def _job(draft: Draft, document: files.Document | None, call: Invocation | None, beside: Mapping[str, files.Document]) -> Job:
    """Reads what the arguments name: a file of arguments, DeepSpeed's, accelerate's."""
    keys: list[Key] = []
    launch: list[Key] = []
    if document is not None:
        keys += of_document(document).keys
    if call is not None:
        launch += call.launch
        for word in call.positional:
            if word.text.endswith((".json", ".yaml", ".yml")):
                found = neighbour(word.text, draft.file)
                if found is None:
                    text = f"{word.text} is not there: the arguments in it are left out"
                    draft.remarks.append(Finding(text, file=draft.file, line=word.line))
                else:
                    keys += of_document(files.read(Path(found))).keys
        keys += call.options
    job = Job(Source(_with_fsdp_file(draft, keys)), launch=Source(launch))
    config = job.launch.get("config_file") if call is not None and call.launcher == "accelerate" else None
    if "accelerate" in beside:
        job.accelerate = of_document(beside["accelerate"])
    elif call is not None and call.launcher == "accelerate":
        job.accelerate = _accelerate_of(draft, job, config)
    key = job.source.get("deepspeed", "deepspeed_config")
    if "deepspeed" in beside:
        job.deepspeed = of_document(beside["deepspeed"])
        draft.harmless(key, "replaced by the configuration that is read")
    elif key is not None:
        job.deepspeed = _deepspeed_of(draft, key)
    elif any(name.startswith("deepspeed.") for name in (key.name for key in job.source.keys)):
        inner = [key for key in job.source.keys if key.name.startswith("deepspeed.")]
        job.deepspeed = job.source.below("deepspeed.")
        job.source = Source(key for key in job.source.keys if key not in inner)
    elif job.accelerate is not None:
        job.deepspeed = accelerate.deepspeed_of(draft, job.accelerate)
    return job


def _accelerate_of(draft: Draft, job: Job, config: Key | None) -> Source:
    """Keys of the launcher's file, with its options on top."""
    keys: list[Key] = []
    if config is not None:
        found = neighbour(str(config.value), draft.file)
        if found is None:
            draft.remarks.append(missing_file(config))
            draft.fill("parallel.data.strategy", EXAMPLES["parallel.data.strategy"], config)
        else:
            keys += of_document(files.read(Path(found))).keys
            draft.harmless(config, "it is read too")
    for key in job.launch.keys:
        section = next((section for word, section in accelerate.SECTIONS.items() if key.name.startswith(word)), "")
        if key is not config:
            keys.append(replace(key, name=f"{section}.{key.name}" if section else key.name))
    job.launch = Source([config] if config is not None else [])
    return Source(keys)


def _deepspeed_of(draft: Draft, key: Key) -> Source | None:
    found = neighbour(str(key.value), draft.file)
    if found is None:
        draft.remarks.append(missing_file(key))
        draft.fill("parallel.data.strategy", EXAMPLES["parallel.data.strategy"], key)
        draft.write("software.profile", "deepspeed", key)
        return None
    draft.write("software.profile", "deepspeed", key)
    return of_document(files.read(Path(found)))


def _length(draft: Draft, source: Source, *, factory: bool) -> int | None:
    keys = source.all(*LENGTHS)
    packing = source.get("packing")
    stage = source.get("stage")
    packed = draft.flag(packing) if packing is not None else factory and stage is not None and stage.value == "pt"
    note = "" if packed else "shorter samples: add mean_sequence_length"
    if not keys and factory and draft.given.sequence_length is None:
        draft.write("training.sequence_length", 2048, note="cutoff_len is 2048 if not given")
        length: int | None = 2048
    else:
        length = write_sequence_length(draft, keys[0] if keys else None, note if keys else "")
    for key in keys[1:]:
        draft.harmless(key, f"{keys[0].written} counts")
    if packing is not None and packed:
        draft.harmless(packing, "every sample is full, as the scenario has it")
    else:
        draft.harmless(packing, "samples may be shorter: training.mean_sequence_length says how long they are")
    return length


def _batch(draft: Draft, job: Job) -> None:
    source = job.source
    micro, steps = (
        source.get("per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size"),
        source.get("gradient_accumulation_steps"),
    )
    write_micro_batch(draft, micro, 8, "per_device_train_batch_size is 8 if not given")
    write_accumulation(draft, steps, 1, "1 if not given")
    if job.deepspeed is not None:
        arguments = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps, "train_batch_size": None}
        deepspeed.merged_batch(draft, job.deepspeed, arguments)
    if job.accelerate is not None:
        draft.harmless(job.accelerate.get("deepspeed_config.gradient_accumulation_steps"), "the training arguments say it")
    epochs, last = source.get("num_train_epochs"), source.get("max_steps")
    if draft.given.examples is not None and (last is None or str(last.value) == "-1"):
        passes = draft.number(epochs)
        draft.write("training.examples", draft.given.examples, note="--examples")
        draft.write("training.epochs", 3.0 if passes is None else passes, epochs, note="" if epochs else "3 if not given")
    else:
        draft.harmless(epochs, "how long the training lasts (--examples: samples of the data set)")
    draft.harmless(last, "how long the training lasts")


def _half(draft: Draft, source: Source) -> tuple[str, Key] | None:
    """bf16 or fp16 and the key that asks for it."""
    found = None
    for name in ("bf16", "fp16"):
        key = source.get(name)
        if key is None:
            continue
        if key.value != "auto" and draft.flag(key) and found is None:
            found = (name, key)
        else:
            draft.harmless(key, "switched off")
    return found


def _strategy(draft: Draft, job: Job, sizes: Sizes | None) -> None:
    """Types and what is sharded: by DeepSpeed, by FSDP, by accelerate's file, or not at all."""
    source = job.source
    half = _half(draft, source)
    fsdp = source.get("fsdp")
    own = fsdp is not None and str(fsdp.value) not in ("", "False", "[]", "None")
    asked = half
    if half is None and job.accelerate is not None and (mixed := accelerate.precision_of(job.accelerate)) is not None:
        asked = mixed
    elif job.accelerate is not None and (mixed := accelerate.precision_of(job.accelerate)) is not None:
        draft.harmless(mixed[1], "the training arguments say it")
    if job.deepspeed is not None:
        kind = job.accelerate.get("distributed_type") if job.accelerate is not None else None
        type_: tuple[str, Key | None] = ("", None) if asked is None else ({"no": ""}.get(asked[0], asked[0]), asked[1])
        deepspeed.write_precision(draft, job.deepspeed, type_)
        deepspeed.write_states(draft, job.deepspeed, sizes)
        if kind is not None:
            draft.write("software.profile", "deepspeed", kind)
    elif "software.profile" in draft.lines:  # DeepSpeed's file is not there
        draft.write("training.precision", asked[0] if asked else "fp32", asked[1] if asked else None)
    else:
        _autocast(draft, source, asked)
        if "parallel.data.strategy" in draft.lines:  # accelerate's file is not there
            draft.write("software.profile", "pytorch-2")
        elif job.accelerate is not None and not own:
            accelerate.write_strategy(draft, job.accelerate, sizes, None, asked, whole=False)
        elif own:
            write_fsdp(draft, source, "fsdp_config.fsdp_", fsdp)
            draft.write("software.profile", "pytorch-2")
        else:
            for key in source.keys:
                if key.name.startswith("fsdp") and not draft.settled(key) and key.value is not None:
                    draft.harmless(key, "nothing is sharded")
            draft.write("parallel.data.strategy", "ddp", note="neither fsdp nor deepspeed")
            draft.write("software.profile", "pytorch-2")
        accelerate.write_reduction(draft)


def _with_fsdp_file(draft: Draft, keys: list[Key]) -> list[Key]:
    """The keys with those of the file that ``fsdp_config`` names."""
    key = next((key for key in keys if key.name == "fsdp_config" and isinstance(key.value, str)), None)
    if key is None:
        return keys
    found = neighbour(str(key.value), draft.file)
    if found is None:
        draft.remarks.append(missing_file(key))
        draft.unmodelled(key, "the file is not there")
        return keys
    draft.harmless(key, "it is read too")
    return [*keys, *(replace(below, name=f"fsdp_config.{below.name}") for below in of_document(files.read(Path(found))).keys)]


def _autocast(draft: Draft, source: Source, asked: tuple[str, Key] | None) -> None:
    """Autocast on fp32 weights, or weights that were loaded in a half type and are trained in it."""
    loaded, tf32, eight = source.get("torch_dtype", "dtype", "model_dtype"), source.get("tf32"), source.get("fp8")
    pure = source.get("pure_bf16")
    kind = HALF.get(str(loaded.value)) if loaded is not None else None
    used: list[Key | None] = []
    if eight is not None and draft.flag(eight):
        preset, used = "fp8", [eight, asked[1] if asked else None]
    elif (pure is not None and draft.flag(pure)) or (kind == "bf16" and not asks_for_adapters(source)):
        preset, used = "pure-bf16", [pure if pure is not None and draft.flag(pure) else loaded, asked[1] if asked else None]
    elif asked is not None and asked[0] in PRECISIONS:
        preset, used = PRECISIONS[asked[0]], [asked[1]]
    elif tf32 is not None and draft.flag(tf32):
        preset, used = "tf32", [tf32]
    else:
        preset = "fp32"
    draft.write("training.precision", preset, *used, note="" if any(used) else "neither bf16 nor fp16")
    for key in (tf32, eight, pure):
        if key is not None and not draft.settled(key):
            draft.harmless(key, "the other types count")
    if loaded is not None and not draft.settled(loaded) and not asks_for_adapters(source):
        draft.only_if(
            loaded,
            ("float32", "torch.float32", "fp32"),
            "weights are taken as fp32: of half types parsim trains bf16 without a master",
            "fp32",
        )
    elif loaded is not None and not draft.settled(loaded):
        draft.harmless(loaded, "frozen weights are half, adapters fp32, as in parsim")


def _optimizer(draft: Draft, job: Job) -> None:
    source = job.source
    kind, old = source.get("optim"), source.get("adafactor")
    if job.deepspeed is not None and deepspeed.write_optimizer(draft, job.deepspeed, known=True):
        draft.harmless(kind, "DeepSpeed's own optimizer counts")
    elif old is not None and draft.flag(old):
        draft.write("training.optimizer.name", "adafactor", old)
        draft.harmless(kind, "adafactor counts")
    elif kind is None:
        draft.write("training.optimizer.name", "adamw", note="adamw_torch if not given")
    elif str(kind.value) in OPTIMS:
        name, implementation = OPTIMS[str(kind.value)]
        draft.write("training.optimizer.name", name, kind)
        if implementation:
            draft.write("training.optimizer.implementation", implementation, kind)
    else:
        draft.unmodelled(kind, f"adamw stands in for it; parsim has {', '.join(dict.fromkeys(name for name, _ in OPTIMS.values()))}")
    clip = source.get("max_grad_norm")
    limit = draft.number(clip)
    theirs = job.deepspeed.get("gradient_clipping") if job.deepspeed is not None else None
    if theirs is not None and theirs.value != "auto":
        if (value := draft.number(theirs)) is not None:
            draft.write("training.optimizer.clip_gradients", value > 0, theirs)
        draft.harmless(clip, "DeepSpeed's own counts")
        return
    draft.harmless(theirs, deepspeed.FOLLOWS)
    draft.write(
        "training.optimizer.clip_gradients", limit is None or limit > 0, clip, note="" if clip else "max_grad_norm is 1.0 if not given"
    )


def _switches(draft: Draft, source: Source) -> None:
    """Checkpointing, attention, compiler, buckets."""
    again = source.get("gradient_checkpointing")
    if again is not None and draft.flag(again):
        draft.write("training.recompute", "full", again)
    else:
        draft.harmless(again, "switched off")
    attention = source.get("attn_implementation", "flash_attn", "use_flash_attn")
    if attention is not None:
        word = str(attention.value)
        if word in ATTENTIONS:
            draft.write("training.attention", ATTENTIONS[word], attention)
        elif word in ("True", "true"):
            draft.write("training.attention", "flash2", attention)
        else:
            draft.only_if(attention, (*CHOSEN, False), f"parsim knows {', '.join((*ATTENTIONS, *CHOSEN))}", "PyTorch chooses, as in parsim")
    compiled = source.get("torch_compile")
    if compiled is not None and draft.flag(compiled):
        draft.write("software.fusion", "compiled", compiled)
    else:
        draft.harmless(compiled, "switched off")
    bucket = source.get("ddp_bucket_cap_mb")
    if (size := draft.number(bucket)) is not None:
        if draft.value("parallel.data.strategy") == "ddp":
            draft.write("parallel.data.bucket", f"{size:g} MiB", bucket)
        else:
            draft.harmless(bucket, "DDP only")
    tensor = source.get("tp_size")
    if (ranks := draft.whole(tensor, 1)) is not None:
        draft.write("parallel.tensor.size", ranks, tensor)


def _liger(draft: Draft, source: Source, sizes: Sizes | None, length: int | None) -> None:
    """Liger's kernels: norms and MLP in one kernel each, and a loss that makes the logits piece by piece.

    Pieces as in linkedin/Liger-Kernel, ops/fused_linear_cross_entropy.py: next_power_of_2(ceil(tokens / ceil(V / h))) tokens each.
    """
    key = source.get("use_liger_kernel", "enable_liger_kernel")
    if key is None or not draft.flag(key):
        draft.harmless(key, "switched off")
        return
    draft.write("software.fusion", "fused", key)
    draft.write("training.loss.kernel", "fused", key)
    micro: Any = draft.value("training.micro_batch")
    if sizes is None or length is None or not isinstance(micro, int):
        draft.remark("Liger makes the logits in pieces: training.loss.chunks says in how many", "training.loss.chunks")
        return
    tokens = micro * length
    ratio = -(-sizes.vocabulary // sizes.hidden)
    piece = 1 << (-(-tokens // ratio) - 1).bit_length()
    chunks = -(-tokens // piece)
    if chunks > 1:
        draft.write("training.loss.chunks", chunks, key, note=f"{tokens} tokens in pieces of {piece}")

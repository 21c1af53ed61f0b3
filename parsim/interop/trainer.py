"""Training arguments of Hugging Face's Trainer (YAML, JSON or a command line) and of LLaMA-Factory, with the files that they name.

What is taken where nothing is said: huggingface/transformers, src/transformers/training_args.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from parsim.errors import Finding
from parsim.interop import accelerate, deepspeed, deepspeed_zero
from parsim.interop.command import Invocation, read_environment
from parsim.interop.config_option import with_config
from parsim.interop.deepspeed_chat import chat_states, is_chat, with_defaults, write_chat
from parsim.interop.deepspeed_named import brought_tree, deepspeed_of
from parsim.interop.fsdp import write_fsdp
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import (
    TransformerSizes,
    missing_file,
    neighbour,
    write_accumulation,
    write_micro_batch,
    write_model,
)
from parsim.interop.keys import Key, KeyTable, Source, key_table, of_document
from parsim.interop.llama_factory import type_of_the_model, write_factory
from parsim.interop.objective import write_objective
from parsim.interop.peft import asks_for_adapters, write_own_adapters, write_peft
from parsim.interop.policy import (
    TRL,
    PolicyRules,
    policy_of,
    write_policy,
    write_policy_length,
    write_policy_liger,
)
from parsim.interop.processes import write_launched
from parsim.interop.towers import FrozenParts, write_frozen_parts
from parsim.interop.training_arguments import (
    half_name,
    half_type,
    write_autocast,
    write_length,
    write_liger,
    write_optimizer,
    write_switches,
)
from parsim.interop.trl_command import is_trl, shipped, split
from parsim.interop.trl_defaults import ask_for_version, versions_for, with_length, with_trainers_defaults
from parsim.interop.written import document_of, parsed, written_file
from parsim.scenario import files
from parsim.scenario.support import EXAMPLES

Brought = Callable[[str], Mapping[str, object] | None]
"""the DeepSpeed file that a tool brings under a name"""


@dataclass(frozen=True)
class Dialect:
    """What a tool that is built on the Trainer has of its own."""

    table: str = "huggingface"
    """its table of keys"""
    brought: Brought = field(default=lambda _: None)
    frozen: FrozenParts | None = None
    """its keys for parts of models of images"""
    rules: PolicyRules = TRL
    """how it updates a policy on generated answers"""


@dataclass
class Arguments:
    """The keys of a training and of the files that it names."""

    source: Source
    deepspeed: Source | None = None
    accelerate: Source | None = None
    launch: Source = field(default_factory=lambda: Source((), key_table("huggingface")))


def read_trainer(
    draft: ImportDraft,
    document: files.Document | None,
    call: Invocation | None,
    *,
    factory: bool,
    beside: Mapping[str, files.Document] | None = None,
    dialect: Dialect | None = None,
) -> None:
    """Write the scenario of training arguments: a file's or a command's. `beside` are configurations that go with them, by tool."""
    dialect = dialect or Dialect()
    rules = dialect.rules
    job = _job(draft, document, call, beside or {}, key_table(dialect.table), dialect.brought)
    chat = is_chat(call, job.source)
    if chat:
        job.source = with_defaults(job.source)
    if factory:
        job.source = Source((*type_of_the_model(job.source), *job.source.keys), job.source.table)
    sizes = _write_model(draft, job.source)
    if job.accelerate is not None:
        accelerate.write_processes(draft, job.accelerate)
    else:
        write_launched(draft, job.launch)
    told = write_objective(draft, job.source, call, policies=not factory)
    if chat:
        write_chat(draft, job.source)
    policy = policy_of(job.source, rules) if told is not None else None
    if policy is not None and told is not None:
        lengths = job.source.all(*(name for name in job.source.table.rows["training.sequence_length"].names if name not in rules.prompt))
        length = write_policy_length(draft, policy, *lengths)
        versions = policy.versions if rules is TRL else None
        job.source = with_trainers_defaults(job.source, versions) if versions is not None else job.source
        _batch(draft, job)
        write_policy(draft, policy, told.key)
    else:
        plain = dialect.table == "huggingface" and not factory and not chat
        versions = versions_for(job.source, call, draft.value("training.objective")) if plain else None
        job.source = with_length(with_trainers_defaults(job.source, versions)) if versions is not None else job.source
        length = write_length(draft, job.source, factory=factory)
        _batch(draft, job)
    _strategy(draft, job, sizes)
    if policy is None and versions is None and dialect.table == "huggingface" and not (factory or chat):
        _remark_on_types(draft, job.source)
    _optimizer(draft, job)
    write_switches(draft, job.source)
    if factory:
        write_factory(draft, job.source, sizes)
    elif not chat and (dialect.table != "huggingface" or not write_own_adapters(draft, job.source)):
        write_peft(draft, job.source)
    if dialect.frozen is not None:
        write_frozen_parts(draft, job.source, sizes, dialect.frozen)
    if policy is None:
        write_liger(draft, job.source, sizes, length)
    else:
        write_policy_liger(draft, policy)
    if versions is not None:
        ask_for_version(draft, versions, job.source)
    if call is not None:
        read_environment(draft, call.environment)
    draft.close(job.source)
    draft.close(job.launch)
    if job.deepspeed is not None:
        draft.close(job.deepspeed)
    if job.accelerate is not None:
        draft.harmless(job.accelerate.get("distributed_type"), "DeepSpeed's file is not there")
        draft.close(job.accelerate)


TOWERS = ("vision_tower", "image_tower", "mm_vision_tower", "video_tower")
"""options of scripts in which a tower of images stands before the language model that is named (haotian-liu/LLaVA, llava/train/train.py)"""
TUNED = ("tune_mm_mlp_adapter", "unfreeze_mm_vision_tower", "mm_tunable_parts")
"""and those that say which parts are trained"""


def _write_model(draft: ImportDraft, source: Source) -> TransformerSizes | None:
    """The model; a tower of images beside it makes it another one than the name says, which is asked for."""
    overrides = source.get("config_overrides")
    if overrides is not None and draft.given.model is None:
        text = f"{overrides.text} changes sizes of the model: write them, {EXAMPLES['model']} (--model)"
        draft.fill("model", text, source.of("model"), overrides)
        return None
    draft.harmless(overrides, "--model counts")
    named, towers = source.of("model"), [key for key in source.all(*TOWERS) if key.value not in (None, False, "", "None")]
    if not towers:
        return write_model(draft, named)
    parts = [key for key in source.all(*TUNED) if str(key.value).lower() not in ("false", "none", "")]
    text = "which of its parts are trained, training.finetune.freeze says" if parts else "LLaVA trains all but the tower: freeze: [vision]"
    draft.remark(f"the model has a tower of images ({towers[0].text}); {text}", "model")
    for key in (*towers, *parts):
        draft.unmodelled(key, "the model is given as a whole: --model")
    if draft.given.model is not None:
        return write_model(draft, named)
    draft.fill("model", "the name is the language model's alone, and a tower of images stands before it: --model llava-1.5-7b", named)
    return None


def _job(
    draft: ImportDraft,
    document: files.Document | None,
    call: Invocation | None,
    beside: Mapping[str, files.Document],
    table: KeyTable,
    brought: Brought,
) -> Arguments:
    """Reads what the arguments name: a file of arguments, DeepSpeed's, accelerate's."""
    keys: list[Key] = []
    launch: list[Key] = []
    if document is not None:
        keys += of_document(document, "huggingface").keys
    if call is not None:
        launch += call.launch
        for word in call.positional:
            if word.text.endswith((".json", ".yaml", ".yml")):
                below = document_of(draft, call, word.text)
                if below is None and not any(key.name in table.rows["model"].names for key in call.options):
                    text = f"{word.text} is not there, and holds the arguments of this command"
                    hint = f"put it beside this script, or import it: parsim import {word.text}"
                    draft.errors.append(Finding(text, call.program, word.text, hint, draft.file, word.line))
                elif below is None:
                    text = f"{word.text} is not there: the arguments in it are left out"
                    draft.remarks.append(Finding(text, file=draft.file, line=word.line))
                else:
                    keys += of_document(below, "huggingface").keys
        keys += with_config(draft, call).options
    job = Arguments(Source(_with_fsdp_file(draft, keys), table), launch=Source(launch, key_table("huggingface")))
    config = job.launch.get("config_file") if call is not None and call.launcher == "accelerate" else None
    if "accelerate" in beside:
        job.accelerate = of_document(beside["accelerate"], "accelerate")
        draft.harmless(config, "replaced by the configuration that is read")
    elif call is not None and call.launcher == "accelerate":
        job.accelerate = _accelerate_of(draft, job, call, config)
    elif call is not None and is_trl(call):
        config, starting, job.source = split(job.source)
        if config is not None or starting:
            job.launch = Source([*job.launch.keys, *starting], job.launch.table)
            job.accelerate = _accelerate_of(draft, job, call, config)
    key = job.source.get("deepspeed", "deepspeed_config")
    if "deepspeed" in beside:
        job.deepspeed = of_document(beside["deepspeed"], "deepspeed")
        draft.harmless(key, "replaced by the configuration that is read")
    elif is_chat(call, job.source):
        job.deepspeed = chat_states(draft, job.source)
    elif key is not None and (tree := brought(str(key.value))) is not None:
        job.deepspeed = brought_tree(draft, key, tree)
    elif key is not None:
        job.deepspeed = deepspeed_of(draft, key, half_name(job.source), written=written_file(call, str(key.value)))
    elif any(name.startswith("deepspeed.") for name in (key.name for key in job.source.keys)):
        inner = [key for key in job.source.keys if key.name.startswith("deepspeed.")]
        job.deepspeed = job.source.below("deepspeed.", key_table("deepspeed"))
        job.source = Source((key for key in job.source.keys if key not in inner), job.source.table)
    elif job.accelerate is not None:
        job.deepspeed = accelerate.deepspeed_of(draft, job.accelerate, half_name(job.source))
    return job


def _accelerate_of(draft: ImportDraft, job: Arguments, call: Invocation, config: Key | None) -> Source:
    """Keys of the launcher's file, with its options on top."""
    keys: list[Key] = []
    if config is not None:
        document = (shipped(str(config.value)) if is_trl(call) else None) or document_of(draft, call, str(config.value))
        if document is None:
            types = "amp-bf16 under DDP and FSDP, bf16 under DeepSpeed, fp32 where nothing asks for a half type"
            missing_file(draft, config, {"parallel.data.strategy": EXAMPLES["parallel.data.strategy"], "training.precision": types})
        else:
            keys += of_document(document, "accelerate").keys
            draft.harmless(config, "it is read too")
    for key in job.launch.keys:
        section = next((section for word, section in accelerate.SECTIONS.items() if key.name.startswith(word)), "")
        if key is not config:
            keys.append(replace(key, name=f"{section}.{key.name}" if section else key.name))
    job.launch = Source([config] if config is not None else [], job.launch.table)
    return Source(keys, key_table("accelerate"))


def _batch(draft: ImportDraft, job: Arguments) -> None:
    source = job.source
    micro, steps = source.of("training.micro_batch"), source.of("training.gradient_accumulation")
    write_micro_batch(draft, micro, 8, "per_device_train_batch_size is 8 if not given")
    write_accumulation(draft, steps, 1, "1 if not given")
    if job.deepspeed is not None:
        arguments = {"training.micro_batch": micro, "training.gradient_accumulation": steps, "training.global_batch": None}
        deepspeed.merged_batch(draft, job.deepspeed, arguments)
    if job.accelerate is not None:
        draft.harmless(job.accelerate.get("deepspeed_config.gradient_accumulation_steps"), "the training arguments say it")
    epochs, last = source.of("training.epochs"), source.get("max_steps")
    if draft.given.examples is not None and (last is None or str(last.value) == "-1"):
        passes = draft.number(epochs)
        draft.write("training.examples", draft.given.examples, note="--examples")
        draft.write("training.epochs", 3.0 if passes is None else passes, epochs, note="" if epochs else "3 if not given")
    else:
        draft.harmless(epochs, "how long the training lasts (--examples: samples of the data set)")
    draft.harmless(last, "how long the training lasts")


def _strategy(draft: ImportDraft, job: Arguments, sizes: TransformerSizes | None) -> None:
    """Types and what is sharded: by DeepSpeed, by FSDP, by accelerate's file, or not at all."""
    source = job.source
    half = half_type(draft, source)
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
        draft.harmless(source.of("training.precision.tf32"), "products are in DeepSpeed's own type")
        draft.harmless(source.of("training.precision.loaded"), "DeepSpeed's own type counts")
        deepspeed_zero.write_states(draft, job.deepspeed, sizes)
        if kind is not None:
            draft.write("software.profile", "deepspeed", kind)
    elif "software.profile" in draft.lines:  # DeepSpeed's file is not there
        draft.harmless(asked[1] if asked else None, "DeepSpeed's file has the type of its own states")
    else:
        line = draft.lines.get("training.precision")  # left to fill in: accelerate's file is not there
        write_autocast(draft, source, asked)
        if line is not None:
            draft.lines["training.precision"] = line
            draft.write("software.profile", "pytorch-2")
        elif job.accelerate is not None and not own:
            accelerate.write_strategy(draft, job.accelerate, sizes, None, asked, whole=False)
        elif own:
            write_fsdp(draft, source, fsdp, own=True)
            draft.write("software.profile", "pytorch-2")
        else:
            for key in source.keys:
                if key.name.startswith("fsdp") and not draft.settled(key) and key.value is not None:
                    draft.harmless(key, "nothing is sharded")
            draft.write("parallel.data.strategy", "ddp", note="neither fsdp nor deepspeed")
            draft.write("software.profile", "pytorch-2")
        accelerate.write_reduction(draft)


def _remark_on_types(draft: ImportDraft, source: Source) -> None:
    """Weights of a script that says no type: transformers 5 loads what the file holds; FSDP makes fp32 of what is trained (accelerate)."""
    whole = draft.value("parallel.data.strategy") in (None, "ddp")
    said = source.of("training.precision.loaded") is not None or asks_for_adapters(source)
    if draft.value("training.precision") == "amp-bf16" and whole and not said:
        draft.remark(
            "from_pretrained(dtype=None) loads fp32 weights before transformers 5, and since then the type of the file, bf16 of almost all",
            "training.precision",
            "write pure-bf16 where it does: half the memory of weights, gradients and optimizer",
        )


def _with_fsdp_file(draft: ImportDraft, keys: list[Key]) -> list[Key]:
    """The keys with those of the file that ``fsdp_config`` names."""
    key = next((key for key in keys if key.name == "fsdp_config" and isinstance(key.value, str)), None)
    if key is None:
        return keys
    if key.text.lstrip().startswith("{"):
        inside = parsed(draft, key.text.replace('\\"', '"'), key.file, key.line or 1, is_json=True)
        draft.harmless(key, "its keys are read one by one")
        found = of_document(inside, "huggingface").keys if inside is not None else ()
        return [*keys, *(replace(below, name=f"fsdp_config.{below.name}") for below in found)]
    path = neighbour(str(key.value), draft.file)
    if path is None:
        missing_file(draft, key, {})
        draft.unmodelled(key, "the file is not there")
        return keys
    draft.harmless(key, "it is read too")
    return [
        *keys,
        *(replace(below, name=f"fsdp_config.{below.name}") for below in of_document(files.read(Path(path)), "huggingface").keys),
    ]


def _optimizer(draft: ImportDraft, job: Arguments) -> None:
    """DeepSpeed's own optimizer and clipping, where its file says them; else those of the arguments."""
    kind, clip = job.source.of("training.optimizer"), job.source.of("training.optimizer.clip_gradients")
    if job.deepspeed is not None and deepspeed.write_optimizer(draft, job.deepspeed, known=True):
        draft.harmless(kind, "DeepSpeed's own optimizer counts")
    else:
        write_optimizer(draft, job.source)
    theirs = job.deepspeed.of("training.optimizer.clip_gradients") if job.deepspeed is not None else None
    if theirs is not None and theirs.value != deepspeed_zero.AUTO:
        if (value := draft.number(theirs)) is not None:
            draft.write("training.optimizer.clip_gradients", value > 0, theirs)
        draft.harmless(clip, "DeepSpeed's own counts")
        return
    draft.harmless(theirs, deepspeed.FOLLOWS)
    limit, note = draft.number(clip), "" if clip else "max_grad_norm is 1.0 if not given"
    draft.write("training.optimizer.clip_gradients", limit is None or limit > 0, clip, note=note)

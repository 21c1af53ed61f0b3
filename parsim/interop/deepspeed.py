"""DeepSpeed's JSON configuration as a scenario, alone or beside the arguments of a Hugging Face Trainer, and a scenario as such a JSON.

What the keys mean and what is taken where they are left out: DeepSpeed documentation, configuration JSON; deepspeed/runtime/config.py.
What ``auto`` becomes: huggingface/transformers, src/transformers/integrations/deepspeed.py. JSON holds no comments: what it cannot say
is in the notes of an export.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from typing import Any

from parsim.interop.deepspeed_zero import AUTO, checkpointing, model_parallel, pipeline, write_states, zero
from parsim.interop.export_draft import (
    FACTORS,
    ExportDraft,
    Exported,
    ExportJob,
    grid,
    no_muon,
    partial_batch,
    preset_name,
    simulator_only,
    strategy_of_nobody,
    torchrun,
)
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import (
    USUAL_MACHINE,
    Count,
    ask_for_arguments,
    machine_size,
    missing_file,
    write_accumulation,
    write_cluster,
    write_micro_batch,
    write_model,
    write_sequence_length,
)
from parsim.interop.keys import Key, Source, key_table, of_document
from parsim.interop.peft import finetuning
from parsim.interop.training_arguments import model_code
from parsim.scenario import files
from parsim.units import is_digits

STAGES = "zero1, zero2 or zero3: the stage of DeepSpeed's file; and training.offload, where it offloads"
FOLLOWS = "auto: follows the training arguments"
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "tf32": {},
    "amp-bf16": {"autocast": True, "autocast.dtype": "amp-bf16"},
    "amp-fp16": {"autocast": True, "autocast.dtype": "amp-fp16"},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "bf16-fp32grad": {"bf16": True, "gradients": "fp32", "reduce": "fp32"},
    "fp16-fp32grad": {"fp16": True, "gradients": "fp32", "reduce": "fp32"},
    "pure-bf16": {"bf16": True, "master": True, "optimizer": True},
}
"""preset -> rows below training.precision"""
CLIENT = {
    "sgd": "torch.optim.SGD(parameters)",
    "momentum": "torch.optim.SGD(parameters, momentum=0.9)",
    "adam-8bit": "bitsandbytes.optim.AdamW8bit(parameters)",
    "adam-4bit": "torchao.optim.AdamW4bit(parameters)",
    "adam-mini": "adam_mini.Adam_mini(named_parameters)",
    "adafactor": "transformers.Adafactor(parameters)",
}
"""optimizers that are handed to deepspeed.initialize"""


def read_deepspeed(draft: ImportDraft, document: files.Document) -> None:
    """Write the scenario of a configuration that stands alone; ``auto`` is left to fill in."""
    source = of_document(document, "deepspeed")
    sizes = write_model(draft, None)
    ranks = _ranks(draft, source)
    write_cluster(draft, total=ranks)
    _ask_for_ranks(draft, source)
    write_sequence_length(draft, None)
    write_batch(draft, source)
    write_precision(draft, source, None)
    write_optimizer(draft, source, known=False)
    clip = source.of("training.optimizer.clip_gradients")
    if clip is None or clip.value == AUTO:
        note = "DeepSpeed's default" if clip is None else "auto is transformers' max_grad_norm, 1.0 if not given"
        draft.write("training.optimizer.clip_gradients", clip is not None, clip, note=note)
    elif (limit := draft.number(clip)) is not None:
        draft.write("training.optimizer.clip_gradients", limit > 0, clip)
    write_states(draft, source, sizes)
    ask_for_arguments(draft)
    draft.close(source)


def _ranks(draft: ImportDraft, source: Source) -> Count | None:
    """How many GPUs the batch is for: train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks.

    None where one of the three is left open and several counts of ranks fit. Ranks that share a model are not counted in the batch, so
    there is no answer with them.
    """
    known = _of_batch(draft, source)
    if known is None or any(key.name.startswith(("tensor_parallel.", "pipeline", "sequence_parallel")) for key in source.keys):
        return None
    total, said, (whole, rest) = known
    product = " x ".join(f"{key.name}: {key.value}" for key in said)
    if rest:
        text = f"{total.value} is no multiple of {product}: DeepSpeed refuses it on any number of GPUs"
        draft.errors.append(total.finding(text, "correct one of the lines"))
        return None
    if whole == 1:
        return Count(1, total, f"{total.value} / ({product}) = one rank" if said else "one sample")
    return Count(whole, total, f"{total.value} / ({product}) ranks") if len(said) == len(_BATCH) - 1 else None


_BATCH = ("training.global_batch", "training.micro_batch", "training.gradient_accumulation")


def _of_batch(draft: ImportDraft, source: Source) -> tuple[Key, list[Key], tuple[int, int]] | None:
    """The key of the batch, those of its factors that are given as numbers, and the batch divided by them; None where it says nothing."""
    total, *parts = (source.of(path) for path in _BATCH)
    given = draft.given.micro_batch or draft.given.gradient_accumulation
    if given or total is None or not is_digits(str(total.value)) or not int(str(total.value)):
        return None
    said = [key for key in parts if key is not None and is_digits(str(key.value)) and int(str(key.value))]
    return total, said, divmod(int(str(total.value)), prod(int(str(key.value)) for key in said))


def _ask_for_ranks(draft: ImportDraft, source: Source) -> None:
    """Not every count of GPUs divides the batch: where those of one machine do not, it is asked for with the machine."""
    known = _of_batch(draft, source)
    if known is None or draft.given.nodes is not None or {"cluster.gpus", "cluster.nodes"} & set(draft.lines):
        return
    total, said, (whole, rest) = known
    if not rest and whole % (machine_size(draft) or USUAL_MACHINE):
        few = [count for count in range(1, min(whole, _MOST_SHOWN) + 1) if whole % count == 0]
        samples = " / ".join(str(key.value) for key in (total, *said))
        draft.fill("cluster.gpus", f"GPUs that divide {samples}: {', '.join(map(str, few))}{' ...' if whole > _MOST_SHOWN else ''}", total)
        draft.causes["cluster.gpus"] = "cluster.topology"


_MOST_SHOWN = 64
"""GPUs"""


def ask_for_states(draft: ImportDraft, key: Key, half: str = "") -> None:
    """DeepSpeed's file, which `key` names, is not there: strategy and types are asked together.

    `half` is the type that is asked for otherwise. A file can change what is made of it: ``data_types``, an optimizer without an
    fp32 master, autocast of its own.
    """
    usual = f"{half}, unless DeepSpeed's file says otherwise (bf16.enabled, data_types)" if half else "bf16, fp16 or fp32"
    paths = {"parallel.data.strategy": STAGES, "training.precision": usual}
    missing_file(draft, key, paths)
    if draft.given.precision is not None:
        draft.write("training.precision", draft.given.precision, key, note="--precision")
    draft.write("software.profile", "deepspeed", key)


def write_batch(draft: ImportDraft, source: Source) -> None:
    """Two of the three numbers, all three where they are given; auto is what the other two leave, or is left to fill in."""
    micro, steps, total = (source.of(f"training.{name}") for name in ("micro_batch", "gradient_accumulation", "global_batch"))
    said = {key.name: value for key in (micro, steps, total) if key is not None and key.value != AUTO and (value := draft.whole(key, 1))}
    follows = "auto: follows from the other two"
    if len(said) == 3:
        micro_batch, accumulation = said["train_micro_batch_size_per_gpu"], said["gradient_accumulation_steps"]
        ranks = said["train_batch_size"] / (micro_batch * accumulation)
        note = f"{micro_batch} x {accumulation} on {ranks:g} data-parallel ranks"
        draft.write("training.global_batch", said["train_batch_size"], total, note=note)
    elif "train_batch_size" in said:
        draft.write("training.global_batch", said["train_batch_size"], total)
    else:
        draft.harmless(total, follows)
    left = micro is None or micro.value == AUTO
    if left and draft.given.micro_batch is None and {"train_batch_size", "gradient_accumulation_steps"} <= set(said):
        draft.harmless(micro, follows)
        write_accumulation(draft, steps)
        return
    if micro is None and steps is None and draft.given.micro_batch is None and "train_batch_size" in said:
        write_accumulation(draft, None, 1, "DeepSpeed's default; the micro-batch is train_batch_size / data-parallel ranks")
        return
    write_micro_batch(draft, micro)
    known = "train_batch_size" in said and draft.value("training.micro_batch") is not None
    if steps is not None and steps.value == AUTO and known:
        draft.harmless(steps, follows)
    elif steps is not None or not known:
        write_accumulation(draft, steps, 1 if total is None else None, "DeepSpeed's default")


def write_precision(draft: ImportDraft, source: Source, arguments: tuple[str, Key | None] | None) -> None:
    """Types of weights, gradients and master. `arguments` say what auto means."""
    bf16, fp16, autocast = (source.of(f"training.precision.{name}") for name in ("bf16", "fp16", "autocast"))
    autos = [key for key in (bf16, fp16) if key is not None and key.value == AUTO]
    stated = {"bf16": bf16, "fp16": fp16}
    on = next((name for name, key in stated.items() if key is not None and key not in autos and draft.flag(key)), "")
    for key in (bf16, fp16):
        if key is not None and key is not stated.get(on) and key not in autos:
            draft.harmless(key, "switched off")
    used: list[Key | None] = [stated[on]] if on else []
    if not on and arguments is not None:
        on = arguments[0]
        used = [arguments[1]]
    elif not on and autos:
        if draft.given.precision is None:
            draft.fill("training.precision", "bf16, fp16 or fp32: auto follows the training arguments (--precision, --hf)", *autos)
        else:
            draft.write("training.precision", draft.given.precision, *autos, note="--precision")
        return
    elif arguments is not None:
        draft.harmless(arguments[1], "DeepSpeed's own type counts")
    for key in autos:
        draft.harmless(key, FOLLOWS)
    preset: Any = on or "fp32"
    if autocast is not None and draft.flag(autocast):
        kind = source.of("training.precision.autocast.dtype")
        amp = None if kind is None else source.table.rows["training.precision.autocast.dtype"].ours(kind.text)
        preset = amp or "amp-bf16"
        used += [autocast, kind]
    else:
        draft.harmless(autocast, "switched off")
        preset = _types(draft, source, preset, used)
    draft.write("training.precision", preset, *used, note="" if any(used) else "neither bf16 nor fp16")


def _types(draft: ImportDraft, source: Source, preset: str, used: list[Key | None]) -> Any:
    """``data_types.grad_accum_dtype``, ``communication_data_type`` and bf16 without an fp32 master beside a preset."""
    accumulated, sent = source.of("training.precision.gradients"), source.of("training.precision.reduce")
    halves = [source.of(f"training.precision.{name}") for name in ("master", "optimizer")]
    row = source.table.rows["training.precision.reduce"]
    value: Any = preset
    if preset == "bf16" and all(draft.flag(key) for key in halves):
        value = "pure-bf16"
        used += halves
    if accumulated is not None and accumulated.value == "fp32" and preset in ("bf16", "fp16"):
        value = f"{preset}-fp32grad"
        used.append(accumulated)
    elif accumulated is not None:
        draft.only_if(accumulated, (preset, AUTO), "parsim accumulates in the weights' type or in fp32", "that is so anyway")
    reduced = None if sent is None else row.ours(sent.text)
    if reduced is not None:
        value = {"preset": value, "reduce": reduced}
        used.append(sent)
    else:
        draft.unmodelled(sent, f"parsim reduces in {', '.join(row.known)}")
    return value


def write_optimizer(draft: ImportDraft, source: Source, *, known: bool) -> bool:
    """The optimizer of the configuration; whether there is one. `known`: the arguments say it otherwise."""
    kind, row = source.of("training.optimizer.name"), source.table.rows["training.optimizer.name"]
    if kind is None:
        if not known:
            draft.write("training.optimizer.name", "adamw", note="no optimizer here: the training script's is taken for AdamW")
        return False
    spelled = {str(word).lower(): ours for ours, word in row.words.items()} | dict(row.also)
    name = str(kind.value).lower().replace("_", "")
    if name in spelled:
        draft.write("training.optimizer.name", spelled[name], kind)
    else:
        draft.refuse(kind, f"the optimizer {kind.value}", f"parsim has {', '.join(row.known)}")
    torch = source.of("training.optimizer.implementation")
    if draft.flag(torch):
        draft.write("training.optimizer.implementation", "foreach", torch)
    return True


def merged_batch(draft: ImportDraft, source: Source, arguments: dict[str, Key | None]) -> None:
    """Batch keys beside a Trainer's, by our key: they follow (auto), or agree; transformers refuses anything else."""
    for path, other in arguments.items():
        key = source.of(path)
        if key is None:
            continue
        if key.value == AUTO:
            draft.harmless(key, FOLLOWS)
            continue
        value, wanted = draft.number(key), draft.number(other) if other is not None else None
        if value is not None and wanted is not None and value != wanted:
            text = f"{key.value} here and {other.written}: {other.value}" if other else ""
            draft.errors.append(key.finding(text, "transformers refuses this: write auto"))
        else:
            draft.harmless(key, "the training arguments say it")


def to_deepspeed(job: ExportJob) -> Exported:
    """The configuration. Raises `PlanError` with everything that DeepSpeed cannot run as it was simulated."""
    draft = ExportDraft(job, "DeepSpeed's JSON", key_table("deepspeed"))
    simulator_only(draft)
    partial_batch(draft)
    nodes, processes = grid(draft)
    training = job.built.training
    document: dict[str, Any] = {}
    draft.entry(document, "training.global_batch", training.global_batch)
    draft.entry(document, "training.micro_batch", training.micro_batch)
    draft.entry(document, "training.gradient_accumulation", training.micro_batches)
    draft.lacks_below("training.")
    document |= _precision(draft)
    document |= _optimizer(draft)
    if not strategy_of_nobody(draft):
        document |= zero(draft)
    document |= model_parallel(draft) | pipeline(draft) | checkpointing(draft)
    model_code(draft)
    finetuning(draft)
    options = " ".join(torchrun(nodes, processes))
    return draft.exported("deepspeed", json.dumps(document, indent=2) + "\n", f"torchrun {options} SCRIPT.py --deepspeed FILE")


def _precision(draft: ExportDraft) -> dict[str, Any]:
    """The keys of types, or a refusal."""
    job, path = draft.job, "training.precision"
    wanted = job.weights
    usual = preset_name(replace(wanted, reduce=wanted.gradients))
    if usual not in PRECISIONS:
        if usual == "fp8":
            draft.refuses(path, "no key turns fp8 matrix products on", "use bf16-fp32grad, or --to megatron or fsdp")
        else:
            draft.refuses(path, f"no keys store {job.stored}", f"use one of {', '.join(PRECISIONS)}")
        return {}
    rows = dict(PRECISIONS[usual])
    if wanted.reduce != wanted.gradients:
        rows["reduce"] = "fp32" if wanted.reduce == 4 else "bf16" if wanted.matmul == "bf16" else "fp16"
    said: dict[str, Any] = {}
    for row, value in rows.items():
        draft.put(said, f"{path}.{row}", value)
    _without_zero(draft, usual)
    if usual == "tf32":
        draft.script.append("torch.backends.cuda.matmul.allow_tf32 = True")
    if "optimizer" in rows:
        draft.remarks(path, "ZeRO keeps a second bf16 copy of its shard there (2 B/parameter more, sharded)")
    draft.says(path, ", ".join(f"{key}: {value}" for key, value in said.items()) or "the default, fp32")
    return said


def _without_zero(draft: ExportDraft, usual: str) -> None:
    """What stage 0 cannot store: bf16 runs in ``FP16_Optimizer``, which keeps fp32 master weights and accumulates in the weights' type
    (``_do_optimizer_sanity_check`` in runtime/engine.py); the pipeline engine has its own optimizer.
    """
    job, path = draft.job, "training.precision"
    if job.built.parallelism.data.strategy not in ("none", "ddp") or job.built.parallelism.pipeline.size > 1:
        return
    if usual == "pure-bf16":
        draft.refuses(path, "without ZeRO bf16 has fp32 master weights there", "use parallel.zero 1, or precision: bf16")
    elif usual in ("bf16-fp32grad", "fp16-fp32grad"):
        draft.refuses(path, "without ZeRO gradients have the type of the weights there", f"use parallel.zero 1, or precision: {usual[:4]}")


def _muon(draft: ExportDraft) -> dict[str, Any]:
    """DeepSpeed's own: iterations are 5, and tensors are taken as they are stored."""
    optimizer, path, said = draft.job.built.training.optimizer, "training.optimizer", dict[str, Any]()
    if draft.job.built.parallelism.data.strategy not in ("zero1", "zero2"):
        draft.refuses(f"{path}.name", "DeepSpeed's ZeRO-1 and 2 orthogonalise, and parsim simulates no other", "use zero1 or zero2")
    draft.entry(said, f"{path}.name", "muon")
    draft.lacks(f"{path}.implementation", "matrices are stepped one by one")
    if optimizer.newton_schulz_steps != 5:
        draft.refuses(f"{path}.newton_schulz_steps", "DeepSpeed's Muon makes 5 iterations", "use 5")
    if optimizer.split_gate_up:
        draft.refuses(f"{path}.split_gate_up", "DeepSpeed's Muon takes tensors as they are stored", "leave it out")
    for key in ("newton_schulz_steps", "tensor_mode", "split_query_key_value", "split_gate_up", "padded_parts", *FACTORS):
        draft.says(f"{path}.{key}", "as DeepSpeed's Muon does")
    return said


def _optimizer(draft: ExportDraft) -> dict[str, Any]:
    optimizer, offload = draft.job.built.training.optimizer, draft.job.built.training.offload.optimizer
    path, kind = "training.optimizer.name", "training.optimizer.implementation"
    clipping: dict[str, Any] = {}
    draft.entry(clipping, "training.optimizer.clip_gradients", optimizer.clip_gradients)
    if optimizer.name in CLIENT:
        no_muon(draft)
        draft.script.append(draft.scripted(path, f"deepspeed.initialize(optimizer={CLIENT[optimizer.name]})"))
        draft.lacks(kind, "the optimizer is the script's")
        return {**clipping, "zero_allow_untested_optimizer": True}
    said: dict[str, Any] = {}
    if optimizer.name == "muon":
        return _muon(draft) | clipping
    if no_muon(draft):
        return clipping
    draft.entry(said, path, optimizer.name)
    if optimizer.name == "adam":
        said["optimizer"]["params"] = {"adam_w_mode": False}
    if optimizer.name == "lamb":  # not among ZERO_SUPPORTED_OPTIMIZERS (deepspeed/runtime/zero/utils.py)
        said["zero_allow_untested_optimizer"] = True
    if optimizer.implementation == "fused" or offload != "none":
        draft.says(kind, "the default: FusedAdam, on the CPU DeepSpeedCPUAdam")
        if optimizer.implementation != "fused":
            draft.remarks(kind, "on the CPU it is DeepSpeedCPUAdam, whose kernels are its own")
    elif optimizer.name == "lion":
        draft.lacks(kind, "Lion is always FusedLion")
    else:
        draft.entry(said, kind, optimizer.implementation)
        if optimizer.implementation == "loop":
            draft.remarks(kind, "torch.optim takes its foreach kernels unless it is told foreach=False")
    return said | clipping

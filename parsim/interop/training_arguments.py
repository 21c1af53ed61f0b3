"""What Hugging Face's ``TrainingArguments`` say themselves: read from them, and written into the training script of an export.

What is taken where nothing is said: huggingface/transformers, src/transformers/training_args.py.
"""

from __future__ import annotations

from typing import Any

from parsim.interop.export_draft import ExportDraft, no_muon
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import TransformerSizes, write_sequence_length
from parsim.interop.keys import Key, Source, key_table
from parsim.interop.peft import asks_for_adapters

CHOSEN = ("sdpa", "auto", "None")
"""attention that PyTorch chooses, as parsim's auto"""
HALF = ("bfloat16", "float16", "half", "torch.bfloat16", "torch.float16", "bf16", "fp16")
"""words for 16 bits"""
FP8: dict[str, dict[str, str]] = {"delayed": {"fp8_backend": "TE", "fp8_format": "HYBRID"}, "tensorwise": {"fp8_backend": "AO"}}
"""recipe -> accelerate's fp8_config"""


def write_length(draft: ImportDraft, source: Source, *, factory: bool) -> int | None:
    """The sequence length, and whether samples are as long."""
    keys = source.all(*source.table.rows["training.sequence_length"].names)
    packing, neat, stage = source.get("packing"), source.get("neat_packing"), source.get("stage")
    packed = draft.flag(packing) if packing is not None else factory and stage is not None and stage.value == "pt"
    if draft.flag(neat):  # which switches packing on (LLaMA-Factory, src/llamafactory/hparams/data_args.py)
        packed, packing = True, packing if draft.flag(packing) else None
    note = "" if packed else "shorter samples: add mean_sequence_length"
    if not keys and factory and draft.given.sequence_length is None:
        draft.write("training.sequence_length", 2048, note="cutoff_len is 2048 if not given")
        length: int | None = 2048
    else:
        length = write_sequence_length(draft, keys[0] if keys else None, note if keys else "")
    for key in keys[1:]:
        draft.harmless(key, f"{keys[0].written} counts")
    if packed and not (factory and packing is None and neat is None):
        apart = draft.flag(neat) or not factory
        end = (
            "stays within a sample there: training.document_length says how long samples are" if apart else "reaches beyond a sample there"
        )
        draft.remark(f"rows are full, as the scenario has it; attention is taken over whole rows, and {end}", "training.sequence_length")
        draft.harmless(packing, "every sample is full, as the scenario has it")
        draft.unmodelled(neat, "attention within samples: training.document_length says how long they are")
    else:
        draft.harmless(packing, "samples may be shorter: training.mean_sequence_length says how long they are")
    return length


def half_type(draft: ImportDraft, source: Source) -> tuple[str, Key] | None:
    """bf16 or fp16 and the key that asks for it."""
    asked = None
    for name in ("bf16", "fp16"):
        key = source.of(f"training.precision.{name}")
        if key is None:
            continue
        if key.value != "auto" and draft.flag(key) and asked is None:
            asked = (name, key)
        else:
            draft.harmless(key, "switched off")
    return asked


def half_name(source: Source) -> str:
    """The half type that is asked for; '' without one."""
    keys = {name: source.of(f"training.precision.{name}") for name in ("bf16", "fp16")}
    return next((name for name, key in keys.items() if key is not None and str(key.value).lower() == "true"), "")


def write_autocast(draft: ImportDraft, source: Source, asked: tuple[str, Key] | None) -> None:
    """Autocast on fp32 weights, or weights that were loaded in a half type and are trained in it."""
    loaded, tf32, eight, pure = (source.of(f"training.precision.{name}") for name in ("loaded", "tf32", "fp8", "pure-bf16"))
    kind = source.table.rows["training.precision.loaded"].ours(str(loaded.value)) if loaded is not None else None
    mixed = key_table("accelerate").rows["training.precision"].ours(asked[0]) if asked is not None else None
    if loaded is not None and loaded.value == "auto" and (asked is None or asked[0] == "bf16") and not asks_for_adapters(source):
        kind = "bf16"
        draft.remark("a model's weights are taken as bfloat16, as almost all are", "training.precision", f"say {loaded.name}")
    used: list[Key | None] = []
    if eight is not None and draft.flag(eight):
        preset, used = "fp8", [eight, asked[1] if asked else None]
    elif (pure is not None and draft.flag(pure)) or (kind == "bf16" and (asked is None or not asks_for_adapters(source))):
        preset, used = "pure-bf16", [pure if pure is not None and draft.flag(pure) else loaded, asked[1] if asked else None]
        if asked is not None and asked[0] == "fp16":
            draft.refuse(
                asked[1], "parsim has no products in fp16 of weights that are held in bf16", "use bf16, or load the weights in float32"
            )
    elif asked is not None and mixed is not None:
        preset, used = mixed, [asked[1]]
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
    elif loaded is not None and not draft.settled(loaded) and preset != "fp32":
        why = "parsim has frozen weights below adapters in 16 bits, which take half the memory"
        draft.only_if(loaded, (*HALF, "auto", "None"), why, "frozen weights are half, adapters fp32, as in parsim")


def write_optimizer(draft: ImportDraft, source: Source) -> None:
    """``optim``, or the older ``adafactor``."""
    kind, old, row = source.of("training.optimizer"), source.get("adafactor"), source.table.rows["training.optimizer"]
    muon = source.get("use_muon")
    if muon is not None and draft.flag(muon):
        draft.write("training.optimizer.name", "muon", muon)
        draft.harmless(kind, "use_muon counts")
    elif old is not None and draft.flag(old):
        draft.write("training.optimizer.name", "adafactor", old)
        draft.harmless(kind, "adafactor counts")
    elif kind is None:
        note = "adamw_torch_fused if not given (transformers 4.54 with PyTorch 2.8; before that adamw_torch)"
        draft.write("training.optimizer.name", "adamw", note=note)
        draft.write("training.optimizer.implementation", "fused", note=note)
    elif (meant := row.ours(str(kind.value))) is not None:
        name, _, implementation = meant.partition(" ")
        draft.write("training.optimizer.name", name, kind)
        if implementation:
            draft.write("training.optimizer.implementation", implementation, kind)
    else:
        known = dict.fromkeys(name.partition(" ")[0] for name in row.known)
        draft.refuse(kind, f"the optimizer {kind.value}", f"parsim has {', '.join(known)}")
    if kind is not None and str(kind.value).startswith("paged_"):
        draft.remark("paged states may move to host memory there; here they stay on the device", "training.optimizer")


def write_switches(draft: ImportDraft, source: Source) -> None:
    """Checkpointing, attention, compiler, buckets."""
    if draft.switch(source, "training.recompute"):
        draft.write("training.recompute", "full", source.of("training.recompute"))
    attention, row = source.of("training.attention"), source.table.rows["training.attention"]
    if attention is not None:
        word = str(attention.value)
        meant = None if word in CHOSEN else "flash2" if word in ("True", "true") else row.ours(word)
        if meant is not None:
            draft.write("training.attention", meant, attention)
        else:
            named = dict.fromkeys([*(name for name in row.words.values() if name not in CHOSEN), *row.also, *CHOSEN])
            draft.only_if(attention, (*CHOSEN, False), f"parsim knows {', '.join(named)}", "PyTorch chooses, as in parsim")
    if draft.switch(source, "software.fusion"):
        draft.write("software.fusion", "compiled", source.of("software.fusion"))
    bucket = source.of("parallel.data.bucket")
    if (size := draft.number(bucket)) is not None:
        if draft.value("parallel.data.strategy") == "ddp":
            draft.write("parallel.data.bucket", f"{size:g} MiB", bucket)
        else:
            draft.harmless(bucket, "DDP only")
    draft.take(source, "parallel.tensor.size")


def write_liger(draft: ImportDraft, source: Source, sizes: TransformerSizes | None, length: int | None) -> None:
    """Liger's kernels: norms and MLP in one kernel each, and a loss that makes the logits piece by piece.

    Pieces as in linkedin/Liger-Kernel, ops/fused_linear_cross_entropy.py: next_power_of_2(ceil(tokens / ceil(V / h))) tokens each.
    """
    key = source.get("use_liger_kernel", "enable_liger_kernel")
    if key is None or not draft.flag(key):
        draft.harmless(key, "switched off")
        return
    draft.write("software.fusion", "fused", key)
    write_liger_loss(draft, key, sizes, length)


def write_liger_loss(draft: ImportDraft, key: Key, sizes: TransformerSizes | None, length: int | None) -> None:
    """Liger's loss behind the head: as many pieces of the logits as it makes of a micro-batch of samples of `length`."""
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


def precision(draft: ExportDraft) -> dict[str, Any]:
    """``mixed_precision``: weights stay in fp32 there, in shards, and are cast when they are gathered or used."""
    path, name = "training.precision", draft.job.precision
    words = draft.table.rows[path].words
    if name not in words:
        draft.refuses(path, f"mixed_precision cannot store {draft.job.stored}", f"use one of {', '.join(words)}")
        return {}
    said: dict[str, Any] = {}
    draft.entry(said, path, name)
    mixed = words[name]
    if name == "pure-bf16":
        draft.script.append("from_pretrained(dtype=torch.bfloat16)")
    elif name in ("bf16", "fp16", "bf16-fp32grad", "fp16-fp32grad", "fp8"):
        simulated = draft.job.built.bytes_per_parameter
        draft.remarks(path, f"weights and gradients are fp32 there, amp-{mixed if mixed != 'fp8' else 'bf16'}; simulated: {simulated}")
    elif mixed != "no" and draft.job.built.parallelism.data.strategy not in ("none", "ddp"):
        draft.remarks(path, f"FSDP reduces gradients in {mixed} there; simulated: fp32")
    quantisation = draft.job.built.training.precision.quantisation
    if quantisation is None:
        return said
    if quantisation.recipe not in FP8:
        draft.refuses(path, f"accelerate has no {quantisation.recipe} products in fp8", f"use recipe: {' or '.join(FP8)}, or --to megatron")
        return said
    if any(draft.job.built.training.precision.keep_layers):
        draft.refuses(path, "accelerate keeps no first and last layers in bf16", "leave keep_layers out, or use --to megatron")
    if draft.job.built.training.precision.gathers_narrow:
        draft.refuses(path, "gathers in fp8 have no argument here", "leave gather out; it is enable_fsdp_float8_all_gather of torchtitan")
    return said | {"fp8_config": dict(FP8[quantisation.recipe])}


def trainer_arguments(draft: ExportDraft, document: dict[str, Any]) -> list[str]:
    """The script's arguments; accelerate's YAML has no keys for them."""
    job, training = draft.job, draft.job.built.training
    section = job.settings.training
    if no_muon(draft):
        return []
    if training.optimizer.name in ("adam-mini", "lamb"):
        draft.refuses("training.optimizer.name", f"the Trainer's optim has no {training.optimizer.name}", "use adamw, or --to deepspeed")
        return []
    optim = draft.scripted("training.optimizer.name", _argument("training.optimizer", _optim(draft)))
    draft.scripted("training.optimizer.implementation", optim)
    arguments = [
        draft.scripted("training.micro_batch", _argument("training.micro_batch", training.micro_batch)),
        draft.scripted("training.gradient_accumulation", _argument("training.gradient_accumulation", training.micro_batches)),
        optim,
        draft.scripted(
            "training.optimizer.clip_gradients", _argument("training.optimizer.clip_gradients", training.optimizer.clip_gradients)
        ),
    ]
    draft.scripted("training.global_batch", f"it follows: {job.built.batch_arithmetic}")
    if training.optimizer.name == "momentum":
        arguments.append('optim_args="momentum=0.9"')
    epochs = draft.scripted("training.epochs", f"num_train_epochs={section.epochs or 1:g}")
    if section.examples is not None:
        arguments.append(epochs)
    draft.lacks("training.examples", "the data set's")
    if "fsdp_config" not in document:
        full = training.recompute.mode == "full"
        checkpointing = draft.scripted("training.recompute", _argument("training.recompute", full))
        arguments += [checkpointing] if full else []
        arguments += _ddp(draft)
    if training.precision.matmul == "tf32":
        arguments.append(_argument("training.precision.tf32", value=True))
    if job.settings.software.fusion == "compiled":
        arguments.append(draft.scripted("software.fusion", _argument("software.fusion", "compiled")))
    return arguments


def _argument(path: str, value: Any) -> str:
    """A row of the arguments as Python writes it: ``optim="sgd"``."""
    row = key_table("huggingface").rows[path]
    word = row.theirs(value)
    return f'{row.name}="{word}"' if isinstance(word, str) else f"{row.name}={word}"


def _ddp(draft: ExportDraft) -> list[str]:
    bucket = draft.job.built.parallelism.data.bucket
    if bucket is None:
        return []
    amount, unit = bucket
    size = amount if unit == "bytes" else amount * draft.job.built.training.precision.gradients
    name = key_table("huggingface").rows["parallel.data.bucket"].name
    return [draft.scripted("parallel.data.bucket", f"{name}={size / 2**20:g}")]


def _optim(draft: ExportDraft) -> str:
    """The optimizer and its kernels in the words of the table."""
    optimizer = draft.job.built.training.optimizer
    if optimizer.name == "adam":
        draft.remarks("training.optimizer.name", "the Trainer's Adam decouples weight decay (AdamW); states and work are the same")
    if optimizer.name in ("adam", "adamw"):
        return f"adamw {'fused' if optimizer.implementation == 'fused' else 'foreach'}"
    return "sgd" if optimizer.name == "momentum" else optimizer.name


def model_code(draft: ExportDraft) -> None:
    """The sequence length, the loss, dropout and attention: said with the calls of Hugging Face's libraries."""
    training, section = draft.job.built.training, draft.job.settings.training
    if section.sequence_length is not None:
        draft.script.append(draft.scripted("training.sequence_length", f"tokenizer(..., max_length={section.sequence_length})"))
    if training.attention not in key_table("huggingface").rows["training.attention"].words:
        draft.lacks("training.attention", "the model's code decides")
    elif section.attention != "auto":
        text = f"from_pretrained({_argument('training.attention', training.attention)})"
        draft.script.append(draft.scripted("training.attention", text))
    draft.lacks("training.dropout", f"the model's configuration decides; simulated: {training.dropout:g}")
    loss = {"kind": training.loss, "kernel": training.loss_kernel, "chunks": training.loss_chunks, "hold_logits": training.holds_logits}
    for key, value in loss.items():
        draft.lacks(f"training.loss.{key}", f"the model's code decides; simulated: {value}")
    if draft.job.settings.software.fusion == "compiled":
        draft.scripted("software.fusion", "torch.compile(model)")
    elif draft.job.built.runtime.megatron:
        profile = draft.job.built.runtime.profile
        draft.remarks("software.profile", f"simulated with the kernels of {profile}; what this stack would take: pytorch-2 or deepspeed")

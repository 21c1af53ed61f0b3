"""The training recipe as options of Megatron-LM: read from them, and written."""

from __future__ import annotations

from typing import Any

from parsim.interop.export_draft import ExportDraft, partial_batch
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import write_micro_batch
from parsim.interop.keys import Key, Source
from parsim.interop.megatron.precision import precision_arguments, read_precision
from parsim.model.kept_products import MATMULS

DROPOUT = 0.1
"""of hidden states and of attention's probabilities, if nothing is said"""


def read_training(draft: ImportDraft, source: Source, length: int | None) -> None:
    """Batch, precision, optimizer, dropout, attention and recomputation; `length` is that of a sample in tokens."""
    read_batch(draft, source, length)
    read_precision(draft, source)
    read_optimizer(draft, source)
    read_dropout(draft, source)
    read_attention(draft, source)
    read_recompute(draft, source)
    whose = source.of("training.loss.kernel.te")
    if not draft.switch(source, "training.loss.kernel"):
        draft.harmless(whose, "it counts with --cross-entropy-loss-fusion only")
    elif whose is not None and whose.text == "te":
        draft.write("training.loss.kernel", "te", source.of("training.loss.kernel"), whose)
    else:
        draft.write("training.loss.kernel", "vocab-parallel-fused", source.of("training.loss.kernel"), whose)


def read_batch(draft: ImportDraft, source: Source, length: int | None) -> None:
    """Samples per step, and how long the training lasts."""
    total = source.of("training.global_batch")
    whole = draft.whole(total, 1)
    write_micro_batch(draft, source.of("training.micro_batch"))
    if total is None:
        draft.write("training.gradient_accumulation", 1, note="without --global-batch-size: micro-batch x data-parallel size")
    else:
        draft.take(source, "training.global_batch")
    draft.unmodelled(source.get("rampup_batch_size"), "steps of the ramp-up are smaller; the full batch is simulated")
    samples, iterations, tokens = (_duration(draft, source, name) for name in ("train_samples", "train_iters", "train_tokens"))
    count, steps = draft.whole(samples, 1), draft.whole(iterations, 1)
    if count and length:
        draft.write("training.tokens", count * length, samples, note=f"x {length} tokens")
        draft.harmless(iterations, "--train-samples counts")
    elif steps and whole and length:
        draft.write("training.tokens", steps * whole * length, iterations, note=f"x {whole} samples x {length} tokens")
    else:
        for key in (samples, iterations):
            draft.harmless(key, "how long the training lasts")
    if draft.value("training.tokens") is None and tokens is not None:
        draft.take(source, "training.tokens")
    elif draft.whole(tokens, 1) is not None:
        draft.harmless(tokens, "samples or iterations say it")


def _duration(draft: ImportDraft, source: Source, name: str) -> Key | None:
    """The key called `name`; None where it is not given, or where a variable has no value: the step does not depend on it."""
    key = source.get(name)
    if key is not None and key.hint and key.value in (True, ""):
        draft.harmless(key, f"how long the training lasts, which is not known; {key.hint}")
        return None
    return key


def read_optimizer(draft: ImportDraft, source: Source) -> None:
    """The optimizer and the clipping of gradients."""
    row = source.table.rows["training.optimizer.name"]
    kind, momentum = source.of("training.optimizer.name"), source.of("training.optimizer.momentum")
    if kind is None:
        draft.write("training.optimizer.name", "adam", note="--optimizer is adam if not given")
    elif kind.text == "sgd":
        plain = momentum is not None and draft.number(momentum) == 0
        draft.write("training.optimizer.name", "sgd" if plain else "momentum", kind, momentum if plain else None)
    elif draft.take(source, "training.optimizer.name") is None:
        draft.unmodelled(kind, f"adamw stands in for it; parsim has {', '.join(name for name in row.known if name != 'sgd')}")
    _read_muon(draft, source)
    limit, clip = draft.number(key := source.of("training.optimizer.clip_gradients")), "training.optimizer.clip_gradients"
    if limit is not None:
        draft.write(clip, limit > 0, key)


def _read_muon(draft: ImportDraft, source: Source) -> None:
    """How matrices are orthogonalised."""
    rows = ["newton_schulz_steps", "tensor_mode", "split_query_key_value"]
    path = "training.optimizer.name"
    if draft.value(path) == "soap":
        draft.take(source, "training.optimizer.padded_parts")
    else:
        rows.append("padded_parts")
    if draft.value(path) != "muon":
        for key in (*(source.of(f"training.optimizer.{row}") for row in rows), *source.all(*source.table.only)):
            draft.harmless(key, "--optimizer is not muon")
        return
    for row in rows:
        draft.take(source, f"training.optimizer.{row}")
    draft.only_some(source, *source.table.only)
    if (kind := source.of(path)) is not None and kind.text == "dist_muon":
        draft.remark(
            "dist_muon reduces gradients by all-reduce; parsim shards them as --optimizer muon --use-distributed-optimizer does", path
        )


def read_dropout(draft: ImportDraft, source: Source) -> None:
    """Megatron drops hidden states and attention probabilities with 0.1 each if nothing is said."""
    hidden, attention = source.of("training.dropout"), source.of("model.attention_dropout")
    share, weights = draft.number(hidden), draft.number(attention)
    first, second = (DROPOUT if value is None else value for value in (share, weights))
    same = attention if (first > 0) == (second > 0) else None
    draft.write("training.dropout", first, hidden, same, note="" if hidden else f"--hidden-dropout is {DROPOUT} if not given")
    if (first > 0) == (second > 0):
        return
    if first and not second and "model.family" in draft.lines:
        draft.write("model.attention_dropout", False, attention)
    elif attention is not None:
        draft.unmodelled(attention, "parsim has one probability; without --hidden-dropout nothing is dropped")
    else:
        text = f"--attention-dropout is {DROPOUT} if not given; parsim has one probability, and --hidden-dropout is 0"
        draft.remark(text, "training.dropout")


def read_attention(draft: ImportDraft, source: Source) -> None:
    """The attention kernel."""
    flash, backend = source.get("use_flash_attn"), source.of("training.attention")
    if backend is not None:
        value = source.table.rows["training.attention"].ours(str(backend.value).rpartition(".")[2])
        if value is not None:
            draft.write("training.attention", value, backend)
        else:
            draft.only_if(backend, ("auto",), "parsim knows flash, fused, unfused, local and auto", "the stack chooses, as in parsim")
        draft.harmless(flash, f"{backend.written} counts")
    elif draft.flag(flash) and draft.value("training.precision") in ("fp32", "tf32"):
        draft.write(
            "training.attention", "eager", flash, note="flash attention takes 16 bits, and Transformer Engine another kernel in fp32"
        )
    elif draft.flag(flash):
        draft.write("training.attention", "flash2", flash)
    else:
        draft.harmless(flash, "switched off")


def read_recompute(draft: ImportDraft, source: Source) -> None:
    """Recomputation, by its present and its older options."""
    selective, old = source.get("recompute_activations"), source.get("checkpoint_activations")
    granularity, method, number, modules = (source.of(f"training.recompute{side}") for side in ("", ".method", ".layers", ".selective"))
    beside = source.get("checkpoint_activations_granularity")  # of HabanaAI/Model-References, beside --checkpoint-activations
    if not draft.flag(old):
        draft.harmless(beside, "nothing is checkpointed without --checkpoint-activations")
    elif beside is not None and granularity is None:
        granularity = beside
    words = source.table.rows["training.recompute.selective"]
    mixture = source.get("moe_layer_recompute")  # the older way to say --recompute-modules moe
    if number is not None and str(number.value) == "0" and (method is None or method.value in (None, "block")):
        why = "0 layers: nothing is recomputed"
        if granularity is None or granularity.value in (None, "full"):
            for key in (granularity, method, number):
                draft.harmless(key, why)
            return
        draft.harmless(number, "it counts layers of block and uniform")
        number = None
    layers = draft.whole(number, 1) or 1
    full = (
        (old is not None and (beside is None or beside.value != "selective"))
        or (method is not None and granularity is None)
        or (granularity is not None and granularity.value == "full")
    )
    if full and selective is None:
        value: Any = {"blocks": layers} if method is not None and method.value == "block" else "full" if layers == 1 else {"every": layers}
        draft.write("training.recompute", value, granularity, old, method, number)
    elif selective is not None or (granularity is not None and granularity.value == "selective"):
        wanted = ["core_attn"] if modules is None else modules.value if isinstance(modules.value, list) else [str(modules.value)]
        parts = {name: words.ours(name) for name in wanted}
        known = [part for part in parts.values() if part is not None]
        draft.write("training.recompute", {"selective": known or ["attention"]}, granularity, selective, old)
        if modules is not None and known and len(known) == len(wanted):
            draft.write("training.recompute", {"selective": known}, granularity, selective, modules)
        elif modules is not None:
            others = ", ".join(name for name, part in parts.items() if part is None)
            draft.unmodelled(modules, f"parsim recomputes {', '.join(words.words)} selectively, not {others}")
    if draft.flag(mixture) and "training.recompute" not in draft.lines:
        draft.write("training.recompute", {"selective": ["moe"]}, mixture)
    for key in (granularity, method, number, modules, mixture):
        if key is not None and not draft.settled(key):
            draft.unmodelled(key, "of no meaning beside the other options of recomputation")


def training_arguments(draft: ExportDraft) -> list[str]:
    """Batch, precision, optimizer, recomputation and what the layers do."""
    job = draft.job
    training, section = job.built.training, job.settings.training
    partial_batch(draft)
    arguments = [
        draft.option("training.micro_batch", training.micro_batch),
        draft.option("training.global_batch", training.global_batch),
    ]
    draft.says("training.gradient_accumulation", f"follows: {job.built.batch_arithmetic}")
    if job.built.steps_to_train is not None:
        steps = draft.option("training.examples", job.built.steps_to_train)
        draft.says("training.epochs", steps)
        arguments.append(steps)
    if section.finetune is not None:
        text = "pretrain_gpt.py trains all parameters"
        draft.refuses("training.finetune.method", text, "use --to deepspeed or --to fsdp, and PEFT in the script")
        for key in type(section.finetune).model_fields:
            draft.lacks(f"training.finetune.{key}", text)
    return [
        *arguments,
        *precision_arguments(draft),
        *_optimizer(draft),
        *_loss(draft),
        *_attention(draft),
        *_recompute(draft),
        *_offload(draft),
    ]


def _optimizer(draft: ExportDraft) -> list[str]:
    optimizer = draft.job.built.training.optimizer
    path, known = "training.optimizer.name", draft.table.rows["training.optimizer.name"].words
    clip = draft.option("training.optimizer.clip_gradients", optimizer.clip_gradients)
    draft.lacks_below("training.optimizer.")
    if optimizer.name not in known:
        draft.refuses(path, "it is not among Megatron-LM's optimizers", f"use one of {', '.join(known)}, or --to deepspeed or fsdp")
        return [clip]
    if optimizer.name == "adam":
        draft.remarks(path, "Megatron-LM's adam decouples weight decay (AdamW); states and work are the same")
    said = [draft.written(path, optimizer.name)]
    if optimizer.name in draft.table.rows["training.optimizer.momentum"].words:
        said.append(draft.written("training.optimizer.momentum", optimizer.name))
    draft.says(path, " ".join(said))
    return [*said, *_factors(draft), *(_muon(draft) if optimizer.name == "muon" else _no_muon(draft)), clip]


def _factors(draft: ExportDraft) -> list[str]:
    """SOAP renews the eigenvectors of all sides in every step."""
    optimizer = draft.job.built.training.optimizer
    for key, usual in (("precondition_frequency", (0, 1)), ("max_preconditioner_dim", (0,))):
        path = f"training.optimizer.{key}"
        if optimizer.name == "soap" and getattr(optimizer, key) not in usual:
            draft.refuses(path, "its SOAP has factors for all sides and renews their eigenvectors in every step", "leave it out")
        draft.says(path, "as --optimizer soap does" if optimizer.name == "soap" else "--optimizer has no preconditioner")
    return []


def _no_muon(draft: ExportDraft) -> list[str]:
    for key in ("newton_schulz_steps", "tensor_mode", "split_query_key_value"):
        draft.says(f"training.optimizer.{key}", "--optimizer is not muon")
    return _parts(draft)


def _parts(draft: ExportDraft) -> list[str]:
    """How the layer-wise optimizer of Muon and SOAP reduces gradients."""
    path, optimizer = "training.optimizer.padded_parts", draft.job.built.training.optimizer
    if optimizer.padded_parts:
        return [draft.option(path)]
    draft.says(path, "the default, off" if optimizer.name in ("muon", "soap") else "--optimizer is neither muon nor soap")
    return []


def _muon(draft: ExportDraft) -> list[str]:
    """How matrices are orthogonalised."""
    optimizer, path = draft.job.built.training.optimizer, "training.optimizer"
    said = [draft.option(f"{path}.newton_schulz_steps", optimizer.newton_schulz_steps)]
    said.append(draft.option(f"{path}.tensor_mode", optimizer.tensor_mode))
    if optimizer.split_query_key_value:
        draft.says(f"{path}.split_query_key_value", "the default, on")
    else:
        said.append(draft.option(f"{path}.split_query_key_value"))
    return [*said, *_parts(draft)]


def _loss(draft: ExportDraft) -> list[str]:
    training = draft.job.built.training
    draft.says("training.loss.kind", "the cross-entropy of the language-model head")
    if training.loss_chunks > 1:
        text = "the logits of a micro-batch are made at once there"
        draft.refuses("training.loss.chunks", text, "use chunks: 1, or --to deepspeed or fsdp, where the model's code is yours")
    draft.says("training.loss.chunks", "1")
    kernel = "training.loss.kernel"
    draft.lacks("training.loss.hold_logits", "the pipeline's schedule decides what is kept")
    if training.loss_kernel == "te":
        return [draft.option(kernel, "vocab-parallel-fused"), draft.option(f"{kernel}.te", "te")]
    if training.loss_kernel == "vocab-parallel-fused":
        return [draft.option(kernel, "vocab-parallel-fused")]
    if not training.loss_kernel.startswith("vocab-parallel"):
        draft.lacks(kernel, "the cross-entropy is always the vocabulary-parallel one")
    else:
        draft.says(kernel, "always")
    return []


def _attention(draft: ExportDraft) -> list[str]:
    training, config = draft.job.built.training, draft.job.architecture
    probability = f"{training.dropout:g}"
    hidden = draft.option("training.dropout", probability)
    dropped = config is None or config.attention_dropout
    arguments = [draft.written("model.attention_dropout", probability if dropped else "0"), hidden]
    path, kernel = "training.attention", training.attention
    if kernel not in draft.table.rows[path].words:
        hint = "use flash2, cudnn or eager, or --to fsdp or deepspeed, where attention is the model's"
        draft.refuses(path, f"there is no attention backend {kernel}", hint)
        return arguments
    if kernel == "flash3":
        draft.remarks(path, "--attention-backend flash takes FlashAttention 3 where it is installed, on Hopper")
    return [*arguments, draft.option(path, kernel)]


def _recompute(draft: ExportDraft) -> list[str]:
    path, recompute = "training.recompute", draft.job.built.training.recompute
    said: list[str] = []
    if recompute.mode == "one_in" or recompute.selective == (MATMULS,):
        what = "some of the layers of a stage" if recompute.mode == "one_in" else "every second matrix product"
        draft.refuses(path, f"no option recomputes {what}", "use recompute: full, {every: k}, {blocks: n} or {selective: [mlp]}")
        return said
    if recompute.mode != "none":
        said.append(draft.written(path, recompute.mode))
    if recompute.mode in ("full", "every", "blocks"):
        layers = {"full": 1, "every": recompute.every, "blocks": recompute.blocks}[recompute.mode]
        said += [draft.written(f"{path}.method", recompute.mode), draft.written(f"{path}.layers", layers)]
    elif recompute.mode == "selective" and recompute.selective != ("attention",):
        row = draft.table.rows[f"{path}.selective"]
        said.append(f"--recompute-modules {' '.join(str(row.theirs(part)) for part in recompute.selective)}")
    draft.says(path, " ".join(said) or "the default, none")
    return said


def _offload(draft: ExportDraft) -> list[str]:
    offload = draft.job.built.training.offload
    for key in ("parameters", "activations"):
        path = f"training.offload.{key}"
        if getattr(offload, key) != "none":
            draft.refuses(path, f"no option keeps {key} in host memory between their uses there", "use --to deepspeed")
        else:
            draft.says(path, "the default, none")
    path = "training.offload.optimizer"
    draft.says("training.offload.gradients", "they follow the optimizer")
    if offload.optimizer == "none":
        draft.says(path, "the default, none")
        return []
    if offload.optimizer == "nvme":
        draft.refuses(path, "no option keeps optimizer states on drives there", "use --to deepspeed, or cpu")
    elif draft.job.built.parallelism.data.strategy != "zero1":
        text = "--optimizer-cpu-offload needs --use-distributed-optimizer (parallel.data.strategy: zero1)"
        draft.refuses(path, text, "use zero1, or --to deepspeed or --to fsdp")
    else:
        draft.remarks(path, "the CPU steps in torch.optim there, and parsim's times are those of DeepSpeed's kernel")
    return [draft.option(path, "cpu"), "--use-precision-aware-optimizer"]

"""What verl's trainers ask of a worker: types, clipping, adapters, who shares weights and samples, samples of a step and of a micro-batch.

volcengine/verl, verl/workers/fsdp_workers.py, verl/workers/engine and verl/trainer/fsdp_sft_trainer.py.
"""

from __future__ import annotations

from math import prod

from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import write_sequence_length
from parsim.interop.keys import Key, Source
from parsim.interop.peft import write_targets

BATCH, LENGTH, EPOCHS = 256, 1024, 4.0
"""defaults of fine-tuning: samples of a step, tokens of a sample, passes over the data"""


def write_length(draft: ImportDraft, source: Source) -> int | None:
    """Tokens of a sample under fine-tuning."""
    said = source.of("training.sequence_length")
    if said is not None or draft.given.sequence_length is not None:
        return write_sequence_length(draft, said, "shorter samples: add mean_sequence_length")
    draft.write("training.sequence_length", LENGTH, note=f"data.max_length is {LENGTH} if not given")
    return LENGTH


def write_batch(draft: ImportDraft, source: Source) -> int | None:
    """Samples of a step of fine-tuning. Returns how many the trainer asks for."""
    total = source.of("training.global_batch")
    samples = draft.whole(total, 1) if total is not None else BATCH
    if draft.given.gradient_accumulation is None:
        draft.write("training.global_batch", samples, total, note="" if total else f"data.train_batch_size is {BATCH} if not given")
    else:
        draft.write("training.gradient_accumulation", draft.given.gradient_accumulation, note="--gradient-accumulation")
        draft.harmless(total, "replaced by --gradient-accumulation")
    return samples


def write_epochs(draft: ImportDraft, source: Source) -> None:
    """Passes of fine-tuning over the data, where it is known how many samples they have."""
    epochs = source.of("training.epochs")
    if draft.given.examples is not None:
        passes = draft.number(epochs)
        draft.write("training.examples", draft.given.examples, note="--examples")
        draft.write("training.epochs", EPOCHS if passes is None else passes, epochs, note="" if epochs else f"{EPOCHS:g} if not given")
    draft.harmless(epochs, "how long the training lasts (--examples: samples of the data set)")


def write_types(draft: ImportDraft, source: Source) -> None:
    """Products in bf16 on weights of the type that is said; AdamW of PyTorch."""
    kind = source.of("training.precision")
    if kind is None:
        draft.write("training.precision", "amp-bf16", note=f"{source.table.rows['training.precision'].name} is fp32 if not given")
    elif draft.take(source, "training.precision") is None:
        draft.errors.append(kind.finding(f"{kind.value} is neither fp32 nor bf16"))
    draft.write("training.optimizer.name", "adamw", note="its trainer's")
    write_clipping(draft, source)


def write_clipping(draft: ImportDraft, source: Source) -> None:
    """Gradients are clipped to a norm of 1.0 unless another is said."""
    path = "training.optimizer.clip_gradients"
    clip = source.of(path)
    limit = draft.number(clip)
    draft.write(path, limit is None or limit > 0, clip, note="" if clip else f"{source.table.rows[path].name} is 1.0 if not given")


def write_adapters(draft: ImportDraft, source: Source) -> None:
    """Adapters of PEFT on the linear layers that ``target_modules`` names, as both trainers of verl ask for them."""
    rank, targets = source.of("training.finetune.rank"), source.of("training.finetune.targets")
    if (size := draft.whole(rank)) is not None and size > 0:
        draft.write("training.finetune.method", "lora", rank)
        draft.write("training.finetune.rank", size, rank)
        write_targets(draft, targets)
    for key in (rank, targets):
        draft.harmless(key, "without lora_rank there are no adapters")


def write_sequence_ranks(draft: ImportDraft, source: Source) -> int | None:
    """Ulysses: ranks that share a sample. Returns how many."""
    ranks = source.of("parallel.context.size")
    size = draft.whole(ranks, 1) if ranks is not None else 1
    if size is not None and size > 1:
        draft.write("parallel.context.size", size, ranks)
        draft.write("parallel.context.method", "ulysses", ranks)
    draft.harmless(ranks, "every rank has whole samples")
    return size


def sample_ranks(draft: ImportDraft, world: int | None) -> int | None:
    """Ranks with samples of their own: the GPUs of the job over those of one copy of the model; None where they are no numbers."""
    shared = prod(int(draft.value(f"parallel.{axis}.size") or 1) for axis in ("tensor", "pipeline", "context"))
    return None if world is None or world % shared else world // shared


def write_dynamic(
    draft: ImportDraft, dynamic: Key | None, tokens: Key | None, most: int | None, length: int | None, ranks: int | None, what: str
) -> None:
    """Micro-batches that are filled up to `most` tokens of a GPU: as many samples as give all micro-batches of a step one size."""
    if most is None or length is None:
        return
    shared = draft.value("parallel.context.size") or 1
    hold = max(1, most * shared // length)
    held = f"{most} tokens" if shared == 1 else f"{most} tokens of each of {shared} ranks"
    batch, even = draft.value("training.global_batch"), hold
    if isinstance(batch, int) and ranks is not None and batch % ranks == 0:
        even = next(size for size in range(min(hold, batch // ranks), 0, -1) if batch // ranks % size == 0)
    note = f"{held} hold {hold} {what} of {length}; shorter ones: add mean_sequence_length"
    draft.write("training.micro_batch", even, dynamic, tokens, note=note)


def write_sharding(draft: ImportDraft, source: Source, world: int | None, note: str) -> None:
    """FSDP over all GPUs, or over ``fsdp_size`` of them with replicas; its version, and what is kept after forward."""
    size, again, version = (source.of(f"parallel.data.{name}") for name in ("shard_size", "reshard_after_forward", "fsdp_version"))
    ranks = draft.number(size)
    shared = ranks is not None and ranks > 0 and (world is None or ranks < world)
    if shared and ranks is not None:
        draft.write("parallel.data.strategy", "hsdp", size)
        draft.write("parallel.data.shard_size", int(ranks), size)
    else:
        draft.write("parallel.data.strategy", "fsdp", note=note)
    draft.harmless(size, "all GPUs share one copy")
    if version is not None:
        draft.write("parallel.data.fsdp_version", int(source.table.rows["parallel.data.fsdp_version"].ours(version.value) or 1), version)
    if again is not None and not draft.flag(again):
        draft.write("parallel.data.reshard_after_forward", False, again)
    draft.harmless(again, "weights are dropped after forward")


def write_products(draft: ImportDraft, source: Source, section: str, optimizer: str) -> None:
    """Products in bf16 and AdamW: all that parsim reads of FSDP's workers."""
    for products in source.all(f"{section}.dtype", f"{section}.mixed_precision.param_dtype"):
        if str(products.value) not in ("bfloat16", "bf16"):
            draft.refuse(products, f"products in {products.value}", "use bfloat16")
        draft.harmless(products, "products in bf16")
    kind = source.get(optimizer)
    if kind is not None and str(kind.value) != "AdamW":
        draft.refuse(kind, f"the optimizer {kind.value}", "use AdamW")
    draft.harmless(kind, "AdamW of PyTorch")

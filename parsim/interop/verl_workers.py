"""What both trainers of verl ask of a worker under FSDP: types, clipping, adapters.

volcengine/verl, verl/workers/fsdp_workers.py and verl/trainer/fsdp_sft_trainer.py.
"""

from __future__ import annotations

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Source
from parsim.interop.peft import write_targets


def write_types(draft: ImportDraft, source: Source) -> None:
    """Products in bf16 on weights of the type that is said; AdamW of PyTorch, and a gradient norm of 1.0 unless another is said."""
    rows = source.table.rows
    kind = source.of("training.precision")
    if kind is None:
        draft.write("training.precision", "amp-bf16", note=f"{rows['training.precision'].name} is fp32 if not given")
    elif draft.take(source, "training.precision") is None:
        draft.errors.append(kind.finding(f"{kind.value} is neither fp32 nor bf16"))
    draft.write("training.optimizer.name", "adamw", note="its trainer's")
    path = "training.optimizer.clip_gradients"
    clip = source.of(path)
    limit = draft.number(clip)
    draft.write(path, limit is None or limit > 0, clip, note="" if clip else f"{rows[path].name} is 1.0 if not given")


def write_adapters(draft: ImportDraft, source: Source) -> None:
    """Adapters of PEFT on the linear layers that ``target_modules`` names, as both trainers of verl ask for them."""
    rank, targets = source.of("training.finetune.rank"), source.of("training.finetune.targets")
    if (size := draft.whole(rank)) is not None and size > 0:
        draft.write("training.finetune.method", "lora", rank)
        draft.write("training.finetune.rank", size, rank)
        write_targets(draft, targets)
    for key in (rank, targets):
        draft.harmless(key, "without lora_rank there are no adapters")

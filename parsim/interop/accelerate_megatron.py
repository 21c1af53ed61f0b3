"""What accelerate's file says of Megatron-LM (``megatron_lm_config``), which it starts with types and defaults of its own.

huggingface/accelerate, src/accelerate/utils/dataclasses.py (`MegatronLMPlugin`, `set_mixed_precision`).
"""

from __future__ import annotations

from typing import Any

from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import write_experts
from parsim.interop.keys import Key, Source

MEGATRON_TYPES = {None: "fp32", "no": "fp32", "bf16": "bf16-fp32grad", "fp16": "fp16"}


def write_megatron_precision(draft: ImportDraft, half: tuple[str, Key] | None) -> None:
    """Megatron-LM's own types: half-precision weights with fp32 masters, bf16 with gradients in fp32 (`MegatronLMPlugin`)."""
    word = None if half is None else half[0]
    if word in MEGATRON_TYPES:
        note = "Megatron-LM's --bf16: weights in bf16, gradients and masters in fp32" if word == "bf16" else ""
        draft.write("training.precision", MEGATRON_TYPES[word], half[1] if half is not None else None, note=note)
    elif half is not None:
        draft.refuse(half[1], f"mixed_precision {word} with Megatron-LM, to which accelerate hands bf16 and fp16 alone", "write bf16")


def write_megatron(draft: ImportDraft, source: Source, kind: Key | None) -> None:
    """Sizes of the axes, the optimizer and recomputation; the options that have no row here are refused by the table."""
    get = source.get
    prefix = "megatron_lm_config.megatron_lm_"
    for name, path in (
        ("tp_degree", "parallel.tensor.size"),
        ("pp_degree", "parallel.pipeline.size"),
        ("context_parallel_size", "parallel.context.size"),
    ):
        if (value := draft.whole(get(f"{prefix}{name}"), 1)) is not None:
            draft.write(path, value, get(f"{prefix}{name}"))
    sequence = get(f"{prefix}sequence_parallelism")
    if sequence is not None and draft.value("parallel.tensor.size") not in (None, 1):
        draft.write("parallel.tensor.sequence_parallel", draft.flag(sequence), sequence)
    else:
        draft.harmless(sequence, "there is one tensor rank")
    sharded = get(f"{prefix}use_distributed_optimizer")
    draft.write("parallel.data.strategy", "zero1" if draft.flag(sharded) else "ddp", sharded)
    draft.write("software.profile", "megatron-core", kind)
    _read_recompute(draft, source, prefix)
    write_experts(draft, get(f"{prefix}expert_model_parallel_size"), get(f"{prefix}expert_tensor_parallel_size"), None)


def _read_recompute(draft: ImportDraft, source: Source, prefix: str) -> None:
    """``recompute_activations`` of all versions; the granularity of newer ones counts before it."""
    again, how, method, count = (
        source.get(f"{prefix}{name}")
        for name in ("recompute_activations", "recompute_granularity", "recompute_method", "recompute_num_layers")
    )
    layers = draft.whole(count, 1) or 1
    if how is not None and how.text == "full":
        kind: Any = {"blocks": layers} if method is not None and method.text == "block" else {"every": layers} if layers > 1 else "full"
        draft.write("training.recompute", kind, how, method, count)
        draft.harmless(again, f"{how.written} counts")
    elif (how is not None and how.text == "selective") or (again is not None and draft.flag(again)):
        draft.write("training.recompute", {"selective": ["attention"]}, how or again)
    elif how is not None:
        draft.errors.append(how.finding(f"{how.value!r} is neither full nor selective", "write full or selective"))
    else:
        text = (
            "accelerate from 1.13 on recomputes every layer if megatron_lm_recompute_granularity does not say otherwise: training.recompute"
        )
        draft.remark(text, "training.recompute")
    for key in (again, method, count):
        if key is not None and not draft.settled(key):
            draft.harmless(key, "switched off" if key is again else "it counts with recompute_granularity full only")

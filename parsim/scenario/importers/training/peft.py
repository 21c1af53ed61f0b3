"""Adapters as TRL's command line asks for them (``--use_peft --lora_r 16 --load_in_4bit``).

Names and defaults: huggingface/trl, trl/trainer/model_config.py.
"""

from __future__ import annotations

from typing import Any

from parsim.scenario.importers.training.draft import Draft
from parsim.scenario.importers.training.keys import Key, Source

EMBEDDINGS = ("embed_tokens", "lm_head", "wte")
"""what `train_embeddings` trains"""
RANK = 16
DROPOUT = 0.05
"""TRL's defaults"""


def asks_for_adapters(source: Source) -> bool:
    """Whether the arguments ask for adapters."""
    switch = source.get("use_peft")
    return switch is not None and str(switch.value).lower() in ("true", "1")


def write_peft(draft: Draft, source: Source) -> None:
    """Write the adapters of TRL's arguments."""
    get = source.get
    switch, four, eight = get("use_peft"), get("load_in_4bit"), get("load_in_8bit")
    rank, targets, share, saved = get("lora_r"), get("lora_target_modules"), get("lora_dropout"), get("lora_modules_to_save")
    nested, form = get("use_bnb_nested_quantization", "use_bnb_nested_quant", "bnb_4bit_use_double_quant"), get("bnb_4bit_quant_type")
    if not asks_for_adapters(source):
        for key in (switch, rank, targets, share, saved, nested, form):
            draft.harmless(key, "without use_peft there are no adapters")
        for key in (four, eight):
            draft.only_if(key, (False,), "a quantised model is trained with adapters only", "nothing is quantised")
        return
    quantised = draft.flag(four)
    draft.write("training.finetune.method", "qlora" if quantised else "lora", switch, four if quantised else None)
    draft.write("training.finetune.rank", draft.whole(rank, 1) or RANK, rank, note="" if rank else f"{RANK} if not given")
    draft.write("training.finetune.targets", names_or_all(targets), targets)
    value = draft.number(share)
    draft.write("training.finetune.dropout", DROPOUT if value is None else value, share, note="" if share else f"{DROPOUT} if not given")
    write_saved(draft, saved)
    if quantised:
        note = "" if nested else "not nested if not said"
        draft.write("training.finetune.base", "nf4-dq" if draft.flag(nested) else "nf4", nested, note=note)
        draft.only_if(form, ("nf4",), "another code of the same four bits")
    else:
        draft.harmless(four, "switched off")
        for key in (nested, form):
            draft.harmless(key, "nothing is quantised")
    draft.only_if(eight, (False,), "parsim knows four bits; the frozen weights are taken in 16", "switched off")


def write_saved(draft: Draft, key: Key | None) -> None:
    """Whole modules that are trained beside the adapters."""
    names = listed(key)
    if names and set(names) <= set(EMBEDDINGS):
        draft.write("training.finetune.train_embeddings", True, key)
    else:
        draft.unmodelled(key, "parsim trains embedding and head beside adapters, nothing else")


def names_or_all(key: Key | None) -> Any:
    """Linear layers by name, or all of them."""
    names = listed(key)
    return "all-linear" if not names or names in (["all"], ["all-linear"]) else names


def listed(key: Key | None) -> list[str]:
    """A list, or a text with commas."""
    if key is None:
        return []
    value = key.value if isinstance(key.value, list) else str(key.value).split(",")
    return [str(name).strip() for name in value]

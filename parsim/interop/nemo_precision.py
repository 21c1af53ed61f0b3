"""Types of NeMo and Megatron-Bridge: ``trainer.precision`` with megatron_amp_O2, and recipes of mixed precision by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source, key_table
from parsim.parallel.training import KEPT

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "mixed": {},
    "with_fp8_delayed_scaling_mixed": {"fp8_format": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "with_fp8_current_scaling_mixed": {
        "fp8_format": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True, "first_last_layers_bf16": True,
    },
    "with_fp8_subchannel_scaling_mixed": {"fp8_format": "hybrid", "fp8_recipe": "blockwise"},
    "with_mxfp8_mixed": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    "with_nvfp4_mixed": {"fp4_format": "e2m1"},
}  # fmt: skip
"""end of a name of mixed_precision -> options (src/megatron/bridge/training/mixed_precision.py)"""
WORDS = {"16": "fp16", "16-mixed": "fp16", "bf16": "bf16", "bf16-mixed": "bf16", "32": "fp32", "32-true": "fp32", "bf16-true": "bf16"}
"""trainer.precision"""

BF16_MIXED = "recipes of NeMo 2 and Megatron-Bridge take bf16_mixed if nothing is said (mixed_precision)"


def write_precision(draft: ImportDraft, source: Source, keys: list[Key]) -> None:
    """What ``trainer.precision`` and ``mixed_precision`` say, which win over single options."""
    given = {key.name: key for key in keys if key.value is not None}
    mixed: Key | None = given.get("mixed_precision") or given.get("trainer.plugins.precision")
    plain, half = given.get("trainer.precision"), given.get("model.megatron_amp_O2")
    if mixed is not None and isinstance(mixed.value, str):
        _mixed(draft, mixed, source)
    elif plain is not None:
        word = WORDS.get(str(plain.value))
        if word is None:
            draft.errors.append(plain.finding(f"{plain.value!r} is no precision", f"one of {', '.join(WORDS)}"))
            return
        if word == "fp32":
            draft.write("training.precision", "fp32", plain)
        elif half is not None and draft.flag(half):
            sync = source.get("grad_sync_dtype", "grad_reduce_in_bf16")
            low = sync is not None and (str(sync.value) in ("bf16", "fp16") or sync.value is True)
            kind = word if low or word == "fp16" else f"{word}-fp32grad"
            draft.write("training.precision", kind, plain, half, sync if low else None)
        else:
            note = "" if half else "megatron_amp_O2 is false if not given: autocast on fp32 weights"
            draft.write("training.precision", f"amp-{word}", plain, half, note=note)
        for name in ("fp8_format", "fp8_e4m3", "fp8_hybrid"):
            if (narrow := source.get(name)) is not None and narrow.value not in (False, "False", None):
                _eight_bits(draft, source, plain, narrow)
    elif draft.value("training.precision") == "fp32" and not any(name in source for name in ("bf16", "fp16")):
        draft.write(
            "training.precision", draft.given.precision or "bf16-fp32grad", note="--precision" if draft.given.precision else BF16_MIXED
        )
        draft.remark(BF16_MIXED, "training.precision")
    for key in keys:  # those that another one has replaced
        if key.name in ("mixed_precision", "trainer.plugins.precision", "trainer.precision", "model.megatron_amp_O2"):
            twin = next((other for other in source.keys if (other.written, other.line) == (key.written, key.line)), key)
            if not draft.settled(twin):
                draft.harmless(twin, "the same")


def _eight_bits(draft: ImportDraft, source: Source, *used: Key) -> None:
    """fp8 of NeMo 1: products, attention (fp8_dot_product_attention), and frozen weights beside adapters (fp8_params)."""
    attention, stored = source.get("fp8_dot_product_attention"), source.get("fp8_params")
    value: dict[str, Any] = {"preset": "fp8"}
    said: list[Key | None] = [*used]
    if draft.flag(attention):
        value["keep"] = [part for part in KEPT if part != "attention"]
        said.append(attention)
    if draft.flag(stored) and draft.value("training.finetune.method") == "lora":
        draft.write("training.finetune.base", "fp8", stored)
    draft.write("training.precision", value if len(value) > 1 else "fp8", *said)


def _mixed(draft: ImportDraft, key: Key, source: Source) -> None:
    """A recipe by its name: ``bf16_with_fp8_current_scaling_mixed``."""
    word = str(key.value).replace("-", "_")
    half, _, kind = word.partition("_")
    options = RECIPES.get(kind) if half in ("bf16", "fp16") else None
    if options is None:
        draft.errors.append(key.finding(f"not supported yet: the recipe {word}", f"bf16_ or fp16_ and one of {', '.join(RECIPES)}"))
        return
    low = source.get("grad_reduce_in_bf16")
    wide = half == "bf16" and not draft.flag(low)
    used = [key, low if draft.flag(low) else None]
    if not options:
        draft.write("training.precision", f"{half}-fp32grad" if wide else half, *used)
        return
    value: dict[str, Any] = {"preset": "fp8", "recipe": "nvfp4" if "fp4_format" in options else _recipe(str(options["fp8_recipe"]))}
    value |= {} if wide else {"gradients": "bf16"}
    sharded = source.get("use_distributed_optimizer")
    if options.get("fp8_param_gather") and draft.flag(sharded):
        value["gather"] = "fp8"
    if options.get("first_last_layers_bf16"):
        value["keep_layers"] = 1
    draft.write("training.precision", value, *used)


def _recipe(word: str) -> str:
    """Megatron-LM's name of a recipe in parsim's words."""
    return key_table("megatron").rows["training.precision.recipe"].ours(word) or "delayed"

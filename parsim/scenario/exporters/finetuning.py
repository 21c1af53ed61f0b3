"""Adapters and frozen parts: no launcher's file has them, the training script makes them with PEFT and bitsandbytes."""

from __future__ import annotations

from parsim.scenario.exporters.draft import Draft
from parsim.scenario.finetune import FinetuneSection

PATH = "training.finetune"


def finetuning(draft: Draft) -> None:
    """The calls of the script that make what was simulated."""
    section, recipe = draft.job.settings.training.finetune, draft.job.built.training.finetune
    if section is None or recipe is None:
        return
    for key, why in (
        ("base_sharded", "it follows from how the script wraps the base"),
        ("flat_gradients", "it is FSDP1's, not FSDP2's way"),
    ):
        draft.lacks(f"{PATH}.{key}", why)
    if section.method == "freeze":
        parts = section.freeze if isinstance(section.freeze, str) else str(section.freeze)
        calls = [f"requires_grad_(False) on {parts}"]
    else:
        calls = [_adapters(section)]
        if recipe.quantised:
            calls.insert(0, _quantised(section, recipe.base))
        elif recipe.base == "bf16":
            calls.insert(0, "from_pretrained(dtype=torch.bfloat16)")
    for key in ("method", "rank", "targets", "dropout", "train_embeddings", "base", "quantise_head", "freeze"):
        draft.scripted(f"{PATH}.{key}", "; ".join(calls))
    draft.script += calls


def _adapters(section: FinetuneSection) -> str:
    targets = section.targets if isinstance(section.targets, str) else list(section.targets)
    arguments = [f"r={section.rank}", f"target_modules={targets!r}", f"lora_dropout={section.dropout:g}"]
    if section.train_embeddings:
        arguments.append("modules_to_save=['embed_tokens', 'lm_head']")
    return f"LoraConfig({', '.join(arguments)})"


def _quantised(section: FinetuneSection, base: str) -> str:
    arguments = ["load_in_4bit=True", "bnb_4bit_quant_type='nf4'", f"bnb_4bit_use_double_quant={base == 'nf4-dq'}"]
    if section.quantise_head:
        arguments.append("llm_int8_skip_modules=[]")
    return f"BitsAndBytesConfig({', '.join(arguments)})"

"""The DeepSpeed file of a Megatron-DeepSpeed script: beside it, or written by the script itself."""

from __future__ import annotations

import json
import re
from typing import Any

from parsim.interop.command import Invocation, WrittenFile
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source, of_document
from parsim.interop.written import parsed, text_of, written_file

PLACEHOLDERS = {
    "ZERO_STAGE": "zero_optimization.stage",
    "CONFIG_BATCH_SIZE": "train_batch_size",
    "CONFIG_MBSIZE": "train_micro_batch_size_per_gpu",
    "CONFIG_FP16_ENABLED": "fp16.enabled",
    "CONFIG_BF16_ENABLED": "bf16.enabled",
}
"""what scripts replace in the templates ds_config_gpt_*TEMPLATE.json of deepspeedai/Megatron-DeepSpeed, examples_deepspeed -> its key"""
_REPLACED = re.compile(r"s/(\w+)/([\w.]+)/g?")


def deepspeed_file(draft: ImportDraft, call: Invocation, key: Key | None) -> Source | None:
    """The keys of the file that `key` (``--deepspeed_config``) names; None where it cannot be had, which is said."""
    if key is None or not isinstance(key.value, str):
        draft.harmless(key, "it names no file")
        return None
    written = written_file(call, key.value)
    text, file, line = text_of(draft, key.value, written, is_json=True)
    if text is None and written is not None and (text := _said_to_template(written)) is not None:
        told = f"{written.template}, of which {key.value} is made, is not there: what the script writes into it is read, nothing else of it"
        draft.remarks.append(key.finding(told, "put the template beside the script"))
        file, line = draft.file, max(written.line, 1)
    if text is None:
        draft.remarks.append(key.finding(f"{key.value} is not there: what it says is taken from the options, or left to fill in",
                                         "put the file beside the script"))  # fmt: skip
        draft.harmless(key, "the file is not there")
        return None
    document = parsed(draft, text, file, line, is_json=True)
    if document is None:
        draft.harmless(key, "the file cannot be read")
        return None
    draft.harmless(key, "its keys are read one by one")
    return of_document(document, "deepspeed")


def _said_to_template(written: WrittenFile) -> str | None:
    """The keys that the script's replacements say of a template that is not there; None where the stage is not among them."""
    tree: dict[str, Any] = {}
    said = {match[1]: match[2] for part in written.replaced if (match := _REPLACED.fullmatch(part.strip()))}
    if "ZERO_STAGE" not in said:
        return None
    for word, value in said.items():
        if word not in PLACEHOLDERS:
            continue
        *above, last = PLACEHOLDERS[word].split(".")
        holder = tree
        for part in above:
            holder = holder.setdefault(part, {})
        holder[last] = {"true": True, "false": False}.get(value, int(value) if value.isdigit() else value)
    return json.dumps(tree)

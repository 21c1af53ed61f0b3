"""The DeepSpeed file of a Megatron-DeepSpeed script: beside it, or written by the script itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from parsim.errors import InputError
from parsim.interop.command import Invocation, WrittenFile
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import neighbour
from parsim.interop.keys import Key, Source, of_document
from parsim.interop.shell_outputs import substituted
from parsim.interop.shell_values import legible
from parsim.interop.shell_words import UNKNOWN
from parsim.scenario import files
from parsim.scenario.files import read_text

PLACEHOLDERS = {
    "ZERO_STAGE": "zero_optimization.stage",
    "CONFIG_BATCH_SIZE": "train_batch_size",
    "CONFIG_MBSIZE": "train_micro_batch_size_per_gpu",
    "CONFIG_FP16_ENABLED": "fp16.enabled",
    "CONFIG_BF16_ENABLED": "bf16.enabled",
}
"""what scripts replace in the templates ds_config_gpt_*TEMPLATE.json of deepspeedai/Megatron-DeepSpeed, examples_deepspeed -> its key"""
_HOLES = re.compile(rf'"[^"\n]*"|{UNKNOWN[0]}[^{UNKNOWN[1]}]*{UNKNOWN[1]}|:\s*(?=[,}}])')
"""texts in quotes, and outside of them values that a script leaves open, and those of variables that it does not set"""
_REPLACED = re.compile(r"s/(\w+)/([\w.]+)/g?")


def deepspeed_file(draft: ImportDraft, call: Invocation, key: Key | None) -> Source | None:
    """The keys of the file that `key` (``--deepspeed_config``) names; None where it cannot be had, which is said."""
    if key is None or not isinstance(key.value, str):
        draft.harmless(key, "it names no file")
        return None
    written = call.files.get(key.value)
    text, file, line = _text(draft, key, written)
    if text is None and written is not None and (text := _said_to_template(written)) is not None:
        told = f"{written.template}, of which {key.value} is made, is not there: what the script writes into it is read, nothing else of it"
        draft.remarks.append(key.finding(told, "put the template beside the script"))
        file, line = draft.file, max(written.line, 1)
    if text is None:
        draft.remarks.append(key.finding(f"{key.value} is not there: what it says is taken from the options, or left to fill in",
                                         "put the file beside the script"))  # fmt: skip
        draft.harmless(key, "the file is not there")
        return None
    try:
        document = files.parse_text("\n" * (line - 1) + text, file, json=True)
    except InputError as error:
        hint = "values of variables may be missing in it: --set NAME=VALUE"
        draft.errors += [replace(finding, suggestion=finding.suggestion or hint) for finding in error.findings]
        draft.harmless(key, "the file cannot be read")
        return None
    draft.harmless(key, "its keys are read one by one")
    return of_document(document, "deepspeed")


def _text(draft: ImportDraft, key: Key, written: WrittenFile | None) -> tuple[str | None, str, int]:
    """The text of the file, the file that its lines are counted in, and its first line there."""
    if written is not None and written.text is not None:
        return _HOLES.sub(_closed, written.text), draft.file, max(written.line, 1)
    name = written.template if written is not None else str(key.value)
    path = neighbour(name, draft.file) if name and "\0" not in name else None
    if path is None:
        return None, "", 1
    text: str | None = read_text(path)
    if written is not None and text is not None:
        text = substituted(text, written.replaced)
    return text, str(path), 1


def _closed(match: re.Match[str]) -> str:
    """A text, or a value that is not known, as JSON has it: the name of its variable stands for what it holds."""
    text = legible(match[0])
    return f'{text} ""' if text.startswith(":") else text if text.startswith('"') else json.dumps(text)


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

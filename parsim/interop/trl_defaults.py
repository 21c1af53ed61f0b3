"""Types and checkpoints that TRL's trainers take where nothing is said, other than transformers' Trainer: they depend on its version.

huggingface/trl, trl/trainer/*_config.py and base_config.py at the tags from v0.14.0 to v1.9.0 (`parsim.interop.trl_versions`).
"""

from __future__ import annotations

import re

from parsim.interop.command import Invocation
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source
from parsim.interop.trl_command import is_trl
from parsim.interop.trl_versions import VERSION, TrlVersions, versions_of

SWITCHES = {"bf16": ("bf16", "fp16"), "gradient_checkpointing": ("gradient_checkpointing",)}
"""keys with other defaults there, and those with which they do not count"""
MARKS = ("assistant_only_loss", "chat_template_path", "packing_strategy", "completion_only_loss", "precompute_ref_batch_size")
"""keys that no other trainer has"""
LENGTH = 1024
_SCRIPT = re.compile(r"(?:^|/)(?:trl|examples)/scripts/\w+\.py$|^trl\.scripts\.\w+$")


def versions_for(source: Source, call: Invocation | None, objective: str | None) -> TrlVersions | None:
    """The versions that a training of TRL's can be for; None where it is not told to be TRL's."""
    names = [key.name for key in source.keys]
    own = call is not None and (is_trl(call) or any(map(_SCRIPT.search, (call.program, *(word.text for word in call.positional)))))
    if not own and not any(name in MARKS for name in names):
        return None
    return versions_of(names, of="sft" if objective is None else "dpo" if objective == "dpo" else "others")


def with_trainers_defaults(source: Source, versions: TrlVersions) -> Source:
    """The keys with those in which TRL has other defaults than transformers' TrainingArguments."""
    more = []
    for name, others in SWITCHES.items():
        known = versions.default(name)
        if known is not None and known[0] and not source.all(*others):
            more.append(Key(name, f"{name} (true if not given)", True, "TRL"))
    return Source((*source.keys, *more), source.table)


def with_length(source: Source) -> Source:
    """The keys with the length that TRL's trainers take; before 0.14 they took it where the tokenizer had no shorter one."""
    if source.of("training.sequence_length") is not None:
        return source
    return Source((*source.keys, Key("max_length", f"max_length ({LENGTH} if not given)", LENGTH, "TRL")), source.table)


def ask_for_version(draft: ImportDraft, versions: TrlVersions, source: Source) -> None:
    """Ask for the types and the checkpoints that depend on the version of TRL, together with what else does."""
    if versions.default("bf16") is None and not source.all("bf16", "fp16") and draft.value("training.precision") == "fp32":
        if draft.given.precision is not None:
            draft.write("training.precision", draft.given.precision, note="--precision")
        else:
            draft.fill("training.precision", f"fp32, or amp-bf16 (bf16 with DeepSpeed): {versions.said('bf16')} (--precision)")
            draft.causes["training.precision"] = VERSION
    name = "gradient_checkpointing"
    if versions.default(name) is None and source.get(name) is None:
        draft.fill("training.recompute", f"none or full: {versions.said(name)}")
        draft.causes["training.recompute"] = VERSION
    if left := [path for path, cause in draft.causes.items() if cause == VERSION and path in draft.lines]:
        draft.remark(f"what TRL takes where nothing is said depends on its version, which says {', '.join(left)}")

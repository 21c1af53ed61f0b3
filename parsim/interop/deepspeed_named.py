"""A DeepSpeed file that a configuration names: read where it lies beside it, else taken as its tool ships it, or as its name says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from parsim.interop import deepspeed
from parsim.interop.command import WrittenFile
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import neighbour
from parsim.interop.keys import Key, Source, of_document
from parsim.interop.written import parsed, text_of
from parsim.scenario import files


def deepspeed_of(
    draft: ImportDraft, key: Key, half: str = "", initialises: Key | None = None, written: WrittenFile | None = None
) -> Source | None:
    """The DeepSpeed file that `key` names; None, and what it says is left open, where it is not there.

    `half`: the type asked for. `initialises`: accelerate's ``zero3_init_flag``, which it switches off at any stage but 3
    (huggingface/accelerate, utils/dataclasses.py, DeepSpeedPlugin.__post_init__). `written`: what the script writes under that name.
    """
    if written is not None:
        text, file, line = text_of(draft, str(key.value), written, is_json=True)
        if text is not None and (document := parsed(draft, text, file, line, is_json=True)) is not None:
            draft.write("software.profile", "deepspeed", key)
            return of_document(document, "deepspeed")
    path = neighbour(str(key.value), draft.file)
    if path is None and (known := shipped(draft.tool, str(key.value))) is not None:
        tree, source = known
        text = f"{key.value} is not there: it is taken as {source} ships it"
        draft.remarks.append(key.finding(text, "put yours beside this one if it says something else"))
        return brought_tree(draft, key, tree)
    if path is None and (named := by_name(str(key.value))) is not None:
        tree, meaning = named
        text = f"{key.value} is not there: it is taken as {meaning}, as its name says, with the types of the training arguments"
        draft.remarks.append(key.finding(text, "put the file beside this one if it says something else"))
        return brought_tree(draft, key, tree)
    if path is None and initialises is not None and draft.flag(initialises):
        why = f"as {initialises.written}: true says, with the types of the training arguments"
        text = f"{key.value} is not there: it is taken as ZeRO-3, {why}"
        draft.remarks.append(key.finding(text, "put the file beside this one if it says something else"))
        return brought_tree(draft, key, _of_stage(3))
    if path is None:
        deepspeed.ask_for_states(draft, key, half)
        return None
    draft.write("software.profile", "deepspeed", key)
    return of_document(files.read(Path(path)), "deepspeed")


def brought_tree(draft: ImportDraft, key: Key, tree: Mapping[str, object]) -> Source:
    """The DeepSpeed file that a tool brings."""
    draft.write("software.profile", "deepspeed", key)
    name = str(key.value) if str(key.value).endswith(".json") else f"{key.value}.json"
    return of_document(files.parse_text(json.dumps(tree), name, json=True), "deepspeed")


TABLE = Path(__file__).parent / "tables" / "shipped.yaml"
_STAGE = re.compile(r"(?:zero|stage|(?<![a-z])z)[_-]?([0-3])(?![0-9])")


def by_name(path: str) -> tuple[dict[str, object], str] | None:
    """The DeepSpeed file that a name such as ``scripts/zero3_offload.json`` means, and that in words; None where it says no stage."""
    name = path.rpartition("/")[2].lower()
    stages = set(_STAGE.findall(name))
    if len(stages) != 1:
        return None
    stage, away = int(min(stages)), "offload" in name and "no_offload" not in name
    section: dict[str, object] = {"stage": stage}
    for part in ("offload_optimizer", *(("offload_param",) if stage == 3 else ())) if away and stage else ():
        section[part] = {"device": "cpu"}
    return _of_stage(stage, section), f"ZeRO-{stage}{' with states in host memory' if len(section) > 1 else ''}"


def _of_stage(stage: int, section: Mapping[str, object] | None = None) -> dict[str, object]:
    """A DeepSpeed file of this stage, with everything else left to the training arguments."""
    return {**files.read(TABLE).tree["LLaMA-Factory"]["common"], "zero_optimization": section or {"stage": stage}}


def shipped(tool: str, path: str) -> tuple[dict[str, object], str] | None:
    """The DeepSpeed file that `tool` ships under this `path` (``tables/shipped.yaml``), and its version; None where it ships none."""
    tools = files.read(TABLE).tree
    if tool not in tools:
        return None
    folder, _, name = path.rpartition("/")
    known = tools[tool]
    if name not in known["files"] or not f"/{folder}".endswith(f"/{known['folder']}"):
        return None
    return {**known["common"], **known["files"][name]}, str(known["source"])

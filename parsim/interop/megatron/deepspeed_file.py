"""The DeepSpeed file of a Megatron-DeepSpeed script: beside it, or written by the script itself."""

from __future__ import annotations

from dataclasses import replace

from parsim.errors import InputError
from parsim.interop.command import Invocation, Written
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import neighbour
from parsim.interop.keys import Key, Source, of_document
from parsim.interop.shell_outputs import substituted
from parsim.scenario import files
from parsim.scenario.files import read_text


def deepspeed_file(draft: ImportDraft, call: Invocation, key: Key | None) -> Source | None:
    """The keys of the file that `key` (``--deepspeed_config``) names; None where it cannot be had, which is said."""
    if key is None or not isinstance(key.value, str):
        draft.harmless(key, "it names no file")
        return None
    written = call.files.get(key.value)
    text, file, line = _text(draft, key, written)
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


def _text(draft: ImportDraft, key: Key, written: Written | None) -> tuple[str | None, str, int]:
    """The text of the file, the file that its lines are counted in, and its first line there."""
    if written is not None and written.text is not None:
        return written.text, draft.file, max(written.line, 1)
    name = written.template if written is not None else str(key.value)
    path = neighbour(name, draft.file) if name and "\0" not in name else None
    if path is None:
        return None, "", 1
    text: str | None = read_text(path)
    if written is not None and text is not None:
        text = substituted(text, written.replaced)
    return text, str(path), 1

"""Files that a command names: as the script itself writes them (``cat <<EOF > job.yaml``), else as they lie beside it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from posixpath import normpath

from parsim.errors import InputError
from parsim.interop.command import Invocation, WrittenFile
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import neighbour
from parsim.interop.shell_outputs import substituted
from parsim.interop.shell_values import legible
from parsim.interop.shell_words import UNKNOWN
from parsim.scenario import files

_HOLES = re.compile(rf'"[^"\n]*"|{UNKNOWN[0]}[^{UNKNOWN[1]}]*{UNKNOWN[1]}|:\s*(?=[,}}])')
"""texts in quotes, and outside of them values that a script leaves open, and those of variables that it does not set"""


def written_file(call: Invocation | None, name: str) -> WrittenFile | None:
    """What the script says of the file called `name`; None where it writes none."""
    if call is None:
        return None
    return call.files.get(name) or next((file for other, file in call.files.items() if normpath(other) == normpath(name)), None)


def text_of(draft: ImportDraft, name: str, written: WrittenFile | None, *, is_json: bool) -> tuple[str | None, str, int]:
    """The text of the file, the file that its lines are counted in, and its first line there; None where it cannot be had."""
    if written is not None and written.text is not None:
        text = _HOLES.sub(_closed, written.text) if is_json else legible(written.text)
        return text, draft.file, max(written.line, 1)
    name = written.template if written is not None else name
    path = neighbour(name, draft.file) if name and "\0" not in name else None
    if path is None:
        return None, "", 1
    text = files.read_text(path)
    return (text if written is None else substituted(text, written.replaced)), str(path), 1


def document_of(draft: ImportDraft, call: Invocation | None, name: str) -> files.Document | None:
    """The YAML or JSON that a command names; None where it is neither written nor there. What is wrong in it is an error of the draft."""
    written = written_file(call, name)
    if written is None:
        path = neighbour(name, draft.file)
        return files.read(Path(path)) if path is not None else None
    text, file, line = text_of(draft, name, written, is_json=name.endswith(".json"))
    return None if text is None else parsed(draft, text, file, line, is_json=name.endswith(".json"))


def parsed(draft: ImportDraft, text: str, file: str, line: int, *, is_json: bool) -> files.Document | None:
    """The text as a document whose lines are those of `file` from `line` on; None, and the errors noted, where it cannot be read."""
    try:
        return files.parse_text("\n" * (line - 1) + text, file, json=is_json)
    except InputError as error:
        hint = "values of variables may be missing in it: --set NAME=VALUE"
        draft.errors += [replace(finding, suggestion=finding.suggestion or hint) for finding in error.findings]
        return None


def _closed(match: re.Match[str]) -> str:
    """A text, or a value that is not known, as JSON has it: the name of its variable stands for what it holds."""
    text = legible(match[0])
    return f'{text} ""' if text.startswith(":") else text if text.startswith('"') else json.dumps(text)

"""The YAML that ``--config`` names: arguments below those of the command, as the parsers of TRL and of ms-swift read it."""

from __future__ import annotations

from dataclasses import replace

from parsim.interop.command import Invocation
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import of_document
from parsim.interop.written import document_of


def with_config(draft: ImportDraft, call: Invocation, tool: str = "huggingface") -> Invocation:
    """The command with the options of its file in front of its own, so that its own count; one that is not there is an error."""
    key = next((key for key in call.options if key.name == "config" and key.text.endswith((".yaml", ".yml"))), None)
    if key is None:
        return call
    draft.harmless(key, "it is read too")
    document = document_of(draft, call, key.text)
    if document is None:
        text = "it is not there, and holds the arguments of this command"
        draft.errors.append(key.finding(text, "put it beside this script, or import it"))
        return call
    below = of_document(document, tool).keys
    return replace(call, options=(*below, *(other for other in call.options if other is not key)))

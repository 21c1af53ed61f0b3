"""Megatron-LM's YAML (``--yaml-cfg``): the fields of its configurations in place of options (``tables/megatron-yaml.yaml``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from parsim.interop.command import Invocation
from parsim.interop.import_draft import NULL, ImportDraft
from parsim.interop.keys import Key, key_table, of_document
from parsim.interop.megatron.megatron import read_megatron
from parsim.scenario import files

TABLE = Path(__file__).parent.parent / "tables" / "megatron-yaml.yaml"
GATES = ("gated_linear_unit", "swiglu", "squared_relu")
"""flags that ``activation_func`` decides"""


def read_yaml(draft: ImportDraft, document: files.Document) -> None:
    """Write the scenario of a file of pretrain_gpt.py."""
    options = tuple(_options(draft, list(of_document(document, "megatron-yaml").keys)))
    read_megatron(draft, Invocation("pretrain_gpt.py", "", (), options, (), (), (), frozenset()))


def _options(draft: ImportDraft, keys: list[Key]) -> Iterator[Key]:
    """The fields as options; those of other models, and those that say nothing, are left out."""
    table, spelled = key_table("megatron-yaml"), files.read(TABLE).tree
    sections, activations = str(spelled["sections"]).split(), spelled["activations"]
    chosen = any(key.name.endswith("activation_func") and key.value is not None for key in keys)
    for key in keys:
        name = next((key.name.removeprefix(section) for section in sections if key.name.startswith(section)), key.name)
        if key.value is None:
            draft.harmless(key, NULL)
        elif name == "activation_func":
            if (option := activations.get(str(key.value))) is not None:
                yield replace(key, name=option, value=True, original=key.value)
            elif key.value == "gelu":
                draft.harmless(key, "the activation of a GPT")
            else:
                draft.refuse(key, f"an MLP with {key.value}", f"parsim reads gelu, {', '.join(activations)}")
        elif chosen and name in GATES:
            draft.harmless(key, "activation_func says it")
        elif name in spelled["inverted"] and isinstance(key.value, bool):
            yield replace(key, name=spelled["inverted"][name], value=not key.value, original=key.value)
        elif (why := table.reason(spelled["left out"], name)) and not (name == "retro_add_retriever" and key.value is True):
            draft.harmless(key, why)
        else:
            yield replace(key, name=spelled["renamed"].get(name, name))

"""How many rows the word tables of well-known tokenizers have, by the names that scripts give them (``tables/tokenizers.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from parsim.scenario import files

BASES = {"Qwen2Tokenizer": ("Qwen2", 151643), "LLama3Tokenizer": ("Llama 3", 128000)}
"""alibaba/Pai-Megatron-Patch, --patch-tokenizer-type: rows without special tokens, to which --extra-vocab-size is added"""
_LONGEST = 300
"""letters of a path that are looked at"""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer and the rows that its words take."""

    name: str
    rows: int
    source: str
    """repository that it is from"""
    names: tuple[str, ...]
    types: tuple[str, ...]


def rows_of(text: str, *, option: str = "") -> Tokenizer | None:
    """The tokenizer that a name, a path or (`option` tokenizer_type) a word of Megatron-LM means; None where none is known."""
    if option == "patch_tokenizer_type":
        base = BASES.get(text)
        return None if base is None else Tokenizer(base[0], base[1], "alibaba/Pai-Megatron-Patch", (), ())
    if option == "merge_file":
        return known_tokenizers()["GPT-2"]
    if option == "tokenizer_type":
        return next((known for known in known_tokenizers().values() if text in known.types), None)
    plain = re.sub(r"[^a-z0-9]", "", text[-_LONGEST:].lower())
    for known in known_tokenizers().values():
        if plain == re.sub(r"[^a-z0-9]", "", known.name.lower()) or text == known.source:
            return known
    fitting = [(len(name), known) for known in known_tokenizers().values() for name in known.names if name in plain]
    longest = max((length for length, _ in fitting), default=0)
    found = {known.name: known for length, known in fitting if length == longest}
    return next(iter(found.values())) if len(found) == 1 else None


@cache
def known_tokenizers() -> Mapping[str, Tokenizer]:
    """Every tokenizer of the table, by name."""
    tree = files.read(Path(__file__).parent / "tables" / "tokenizers.yaml").tree
    return {
        entry["name"]: Tokenizer(entry["name"], entry["rows"], entry["source"], tuple(entry["names"]), tuple(entry.get("types", ())))
        for entry in tree["tokenizers"]
    }

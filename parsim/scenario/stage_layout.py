"""Pipeline stages as Megatron-LM writes them (--pipeline-model-parallel-layout): ``Et|(tt|)*30mL``.

One letter for what a stage holds: E the embedding, t a layer, m a module of multi-token prediction, L the head with the loss. A bar
ends a stage; ``(...)*n`` and ``x*n`` repeat; commas say nothing. Stages stand in the order in which a micro-batch passes them: with p
ranks, the first p are the first virtual stage of each (megatron/core/transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

import re
from typing import NamedTuple

LETTERS = "EtmL"
PATTERN = rf"^[{LETTERS}|()*0-9, ]*[|][{LETTERS}|()*0-9, ]*$"
"""what such a text looks like, for the JSON Schema"""
LONGEST = 100_000
"""letters of a text once it is written out"""
_GROUP, _SINGLE = re.compile(r"\(([^()]+)\)\*(\d+)"), re.compile(r"(.)\*(\d+)")


class StageLayout(NamedTuple):
    """Stages that a text names."""

    layers: tuple[int, ...]
    """of every stage; the first also holds the embedding, the last the prediction modules and the head"""
    modules: int
    """of multi-token prediction"""


def is_layout(value: object) -> bool:
    """Whether a text is meant as such a layout rather than as a word."""
    return isinstance(value, str) and "|" in value


def stage_layout(text: str) -> StageLayout:
    """The stages that `text` names.

    Raises:
        ValueError: it is no layout, or one that a list of layers per stage cannot express.

    >>> stage_layout("Et|(tt|)*2mL")
    StageLayout(layers=(1, 2, 2, 0), modules=1)
    """
    letters = _written_out(text.replace(",", "").replace(" ", ""))
    if strange := sorted(set(letters) - {*LETTERS, "|"}):
        raise ValueError(f"{text!r} has {strange[0]!r} where a layout has E, t, m, L or a bar (Megatron-LM)")
    stages = letters.split("|")
    flat = "".join(stages)
    for letter, what, first in (("E", "embedding", True), ("L", "head", False)):
        if flat.count(letter) != 1 or not (flat.startswith(letter) if first else flat.endswith(letter)):
            raise ValueError(f"{text!r}: the {what} ({letter}) stands once, {'first' if first else 'last'}, as in Et|(tt|)*30mL")
    if "E" not in stages[0] or "L" not in stages[-1]:
        raise ValueError(f"{text!r}: a stage before the embedding or behind the head is empty")
    if any("m" in stage for stage in stages[:-1]):
        raise ValueError(f"{text!r}: not supported yet: prediction modules (m) on another stage than the head; write mL at the end")
    if "t" in stages[-1].partition("m")[2]:
        raise ValueError(f"{text!r}: layers (t) come before prediction modules (m)")
    if empty := [number for number, stage in enumerate(stages[1:-1], start=1) if "t" not in stage]:
        raise ValueError(f"{text!r}: stage {empty[0]} holds nothing; only the first (E) and the last (L) may be without layers (t)")
    return StageLayout(tuple(stage.count("t") for stage in stages), flat.count("m"))


def _written_out(text: str) -> str:
    """`text` with its repetitions written out, parentheses first."""
    for pattern in (_GROUP, _SINGLE):
        total = len(text) + sum(len(part) * (int(count[:7]) if len(count) < 8 else LONGEST) for part, count in pattern.findall(text))
        if total > LONGEST:
            raise ValueError(f"{text[:40]!r} would be written out to more than {LONGEST:,} letters")
        text = pattern.sub(lambda found: found[1] * int(found[2]), text)
    return text

"""Megatron-LM's ``--pipeline-model-parallel-layout``: which layers every stage has, read and written.

The text is that of `parsim.scenario.stage_layout`; in YAML it may also be a list of lists of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key
from parsim.scenario.stage_layout import stage_layout

_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""the words of a layout that is a list of lists, as YAML has it"""


def text_of(written: Any) -> str:
    """A layout as a text, also where it is a list of lists."""
    if isinstance(written, list) and all(isinstance(stage, list) for stage in written):
        return "|".join("".join(_LETTERS.get(str(word).strip().lower(), str(word)) for word in stage) for stage in written)
    return str(written).strip("'\"")


def read_layout(draft: ImportDraft, key: Key, ranks: int, layers: int | None) -> None:
    """The layers of every stage, and how many stages a rank has; what parsim cannot place so is refused."""
    hint = "for example 'Et*3|(tt|)*14tL'"
    try:
        counts, _ = stage_layout(text_of(key.value))
    except ValueError as error:
        draft.errors.append(key.finding(str(error), key.hint or hint))
        return
    if len(counts) % ranks:
        problem = f"{len(counts)} stages / {ranks} ranks = {len(counts) / ranks:.4g} is not whole"
        draft.errors.append(key.finding(problem, key.hint or "list as many stages for every rank"))
    elif layers is not None and sum(counts) != layers:
        problem = f"{' + '.join(map(str, counts))} = {sum(counts)} layers, and --num-layers is {layers}"
        draft.errors.append(key.finding(problem, key.hint or "list every layer"))
    elif ranks == 1 and len(counts) == 1:
        draft.harmless(key, "there is one stage")
    else:
        draft.write("parallel.pipeline.split", list(counts), key)
        if len(counts) > ranks:
            draft.write("parallel.pipeline.schedule", "interleaved", key)
            draft.write("parallel.pipeline.virtual_stages", len(counts) // ranks, key)


def layout(layers: Sequence[int], predicted: int) -> str:
    """Stages of so many layers behind each other, equal ones as ``(tt|)*3``; the last has the modules of multi-token prediction."""
    stages = ["t" * count for count in layers]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}{'m' * predicted}L"
    runs = [(stage, len(list(run))) for stage, run in groupby(stages[:-1])]
    return "".join(f"({stage}|)*{count}" if count > 1 else f"{stage}|" for stage, count in runs) + stages[-1]

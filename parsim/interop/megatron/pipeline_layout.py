"""Megatron-LM's ``--pipeline-model-parallel-layout``: which layers every stage has, read and written.

How the words are read: NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py (`parse_str_to_list`): E is the
embedding, t a layer, m a module of multi-token prediction, L the loss with the head; ``|`` ends a stage, commas say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key
from parsim.limits import MOST_LAYERS

_REPEATED = (re.compile(r"\(([^()]{1,4000})\)\*([0-9]{1,6})"), re.compile(r"([EtmL|])\*([0-9]{1,6})"))
_EXAMPLE = "for example 'Et*3|(tt|)*14tL'"


_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""the words of a layout that is a list of lists, as YAML has it"""


def stages_of(written: Any) -> list[str]:
    """The letters of every stage; empty where `written` is no layout."""
    if isinstance(written, list) and all(isinstance(stage, list) for stage in written):
        words = [[_LETTERS.get(str(word).strip().lower(), "") for word in stage] for stage in written]
        return ["".join(stage) for stage in words] if all(all(stage) for stage in words) else []
    text = str(written).strip("'\"").replace(",", "").replace(" ", "")
    for pattern in _REPEATED:
        if sum(len(match[1]) * int(match[2]) for match in pattern.finditer(text)) > 4 * MOST_LAYERS:
            return []
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    return text.split("|") if re.fullmatch(r"[EtmL|]+", text) else []


def read_layout(draft: ImportDraft, key: Key, ranks: int, layers: int | None) -> None:
    """The layers of every stage, and how many stages a rank has; what parsim cannot place so is refused."""
    stages = stages_of(key.value)
    counts = [stage.count("t") for stage in stages]
    order = "".join(stages)
    problem, hint = "", _EXAMPLE
    if not stages:
        problem = "it is no layout of stages"
    elif len(stages) % ranks:
        problem, hint = (
            f"{len(stages)} stages / {ranks} ranks = {len(stages) / ranks:.4g} is not whole",
            "list as many stages for every rank",
        )
    elif layers is not None and sum(counts) != layers:
        problem, hint = f"{' + '.join(map(str, counts))} = {sum(counts)} layers, and --num-layers is {layers}", "list every layer"
    elif re.fullmatch(r"Et*m*L", order) is None or "E" not in stages[0] or "L" not in stages[-1]:
        problem, hint = "parsim has the embedding on the first stage and the head on the last", "put E first and L last"
    elif "m" in order and "m" * order.count("m") not in stages[-1]:
        problem, hint = "parsim predicts further tokens on the last stage, with the head", "put m before L on the last stage"
    elif 0 in counts[1:-1]:
        problem, hint = "a stage without a layer between the first and the last is not supported yet", "give every stage a layer"
    if problem:
        draft.errors.append(key.finding(problem, key.hint or hint))
    elif ranks == 1 and len(stages) == 1:
        draft.harmless(key, "there is one stage")
    else:
        draft.write("parallel.pipeline.split", counts, key)
        if len(stages) > ranks:
            draft.write("parallel.pipeline.schedule", "interleaved", key)
            draft.write("parallel.pipeline.virtual_stages", len(stages) // ranks, key)


def layout(layers: Sequence[int], predicted: int) -> str:
    """Stages of so many layers behind each other, equal ones as ``(tt|)*3``; the last has the modules of multi-token prediction."""
    stages = ["t" * count for count in layers]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}{'m' * predicted}L"
    runs = [(stage, len(list(run))) for stage, run in groupby(stages[:-1])]
    return "".join(f"({stage}|)*{count}" if count > 1 else f"{stage}|" for stage, count in runs) + stages[-1]

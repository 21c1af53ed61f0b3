"""Which layers of a model have experts, as Megatron-LM's options say it: a number, or a list of zeros and ones."""

from __future__ import annotations

import re

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key
from parsim.limits import MOST_LAYERS
from parsim.units import is_digits

_REPEATED = re.compile(r"\((.{1,4000})\)\*([0-9]{1,6})")
_RUN = re.compile(r"\[([01](?:,[01]){0,1000},?)\](?:\*([0-9]{1,6}))?")


def listed(text: str) -> list[str]:
    """The zeros and ones of a list, of a sum such as ``([0]*3+[1]*58)``, or of one that is repeated; empty where it is something else."""
    text = text.replace(" ", "").strip("'\"")
    if (repeated := _REPEATED.fullmatch(text)) is not None and ")" not in repeated[1]:
        found = listed(repeated[1]) * min(int(repeated[2]), MOST_LAYERS)
        return found if len(found) <= MOST_LAYERS else []
    runs = [_RUN.fullmatch(piece) for piece in text.strip("()").split("+")]
    if not all(runs):
        return []
    found = []
    for run in runs:
        if run is not None:
            found += run[1].rstrip(",").split(",") * min(int(run[2] or 1), MOST_LAYERS)
    return found if len(found) <= MOST_LAYERS else []


def read_expert_layers(draft: ImportDraft, key: Key | None) -> None:
    """``--moe-layer-freq``: a number, or a list such as ``([0]*3+[1]*58)``."""
    if key is None:
        return
    text = key.text.replace(" ", "").strip("()'\"")
    if is_digits(text):
        draft.write("model.experts.every", int(text), key)
        return
    layers = listed(text)
    dense, every = layers.count("0"), layers.index("1") + 1 if "1" in layers else 0
    count = draft.value("model.layers")
    if layers and isinstance(count, int) and len(layers) != count:
        draft.errors.append(key.finding(f"{len(layers)} layers are listed, and --num-layers is {count}", "list every layer"))
    elif every and layers == ["0"] * dense + ["1"] * (len(layers) - dense):
        draft.write("model.experts.dense_layers", dense, key)
    elif every and layers == ["1" if layer % every == 0 else "0" for layer in range(1, len(layers) + 1)]:
        draft.write("model.experts.every", every, key)
    elif key.value is True or not key.text:
        draft.errors.append(key.finding("it has no value", key.hint or "write a number, or a list such as ([0]*3+[1]*58)"))
    else:
        text = "experts are supported in every n-th layer, or in all but the first n"
        draft.errors.append(key.finding(text, "write a number, or a list such as ([0]*3+[1]*58)"))

"""Which parts of a model of images and text are trained, where a tool freezes them by keys of their own.

Defaults: hiyouga/LLaMA-Factory, src/llamafactory/hparams/finetuning_args.py and model/model_utils/visual.py (`get_forbidden_modules`);
modelscope/ms-swift, the same by other names. Both keep adapters out of parts that are frozen.
"""

from __future__ import annotations

from typing import NamedTuple

from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import TransformerSizes
from parsim.interop.keys import Key, Source

TEXT_PARTS = ("embedding", "layer", "head")
_INSTEAD = "give a model of text with --model, or write the scenario: parsim new"


class FrozenParts(NamedTuple):
    """A tool's names for what it freezes."""

    vision: str
    """the tower; frozen if nothing is said"""
    projector: str
    """frozen if nothing is said"""
    text: str
    """trained if nothing is said"""
    adapted_projector: bool = True
    """adapters stand in a projector that is not frozen (not LLaMA-Factory's: find_all_linear_modules, model/model_utils/misc.py)"""


def write_frozen_parts(draft: ImportDraft, source: Source, sizes: TransformerSizes | None, names: FrozenParts) -> None:
    """Freeze what the tool freezes of a model with a tower; for a model of text alone the keys say nothing."""
    vision, projector, text = (source.get(name) for name in names[:3])
    keys = [key for key in (vision, projector, text) if key is not None]
    method = draft.value("training.finetune.method")
    frozen = {"vision": draft.flag(vision, default=True), "projector": draft.flag(projector, default=True), "text": draft.flag(text)}
    if sizes is None:
        _unknown_model(draft, keys, method)
        return
    if not sizes.towers:
        for key in keys:
            draft.harmless(key, "the model has neither images nor sound")
        return
    if method is None and any(frozen.values()):
        parts = [part for part in ("vision", "projector") if frozen[part]] + list(TEXT_PARTS if frozen["text"] else ())
        left = [name for name, key in zip(names[:2], (vision, projector), strict=False) if key is None]
        note = f"{' and '.join(left)} {'are' if len(left) > 1 else 'is'} true if not given" if left else ""
        draft.write("training.finetune.method", "freeze", *keys, note=note)
        draft.write("training.finetune.freeze", parts, *keys)
    elif method is None or not (frozen["vision"] or frozen["projector"] or frozen["text"]):
        for key in keys:
            draft.harmless(key, "every part is trained")
    elif method != "freeze" and frozen["vision"] and (frozen["projector"] or not names.adapted_projector) and not frozen["text"]:
        given = vision is not None and projector is not None
        note = "adapters in the text alone" + ("" if given else f": {names.vision} and {names.projector} are true if not given")
        draft.write("training.finetune.tower", False, vision, projector, note=note)
        draft.harmless(text, "the text has adapters")
    else:
        what = "adapters in some parts of the model" if method != "freeze" else "the last layers of the text model alone"
        finding = (keys[0] if keys else draft.lines["training.finetune.method"].keys[0]).finding(
            f"not supported yet: {what}, beside a frozen tower of images", _INSTEAD
        )
        draft.errors.append(finding)
        for key in keys:
            draft.unmodelled(key, what)


def _unknown_model(draft: ImportDraft, keys: list[Key], method: object) -> None:
    """Keys that count with some models only, beside a model that is to be filled in."""
    if not keys:
        return
    if method is None:
        how = "{method: freeze, freeze: [vision, projector]} where the model has these parts, else null; or give the model with --model"
        draft.fill("training.finetune", how, *keys)
        draft.causes["training.finetune"] = "model"  # which, once given, says this too
        return
    for key in keys:
        draft.unmodelled(key, "of a model of images adapters stand in the text model alone there; give the model with --model")

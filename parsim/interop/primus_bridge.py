"""Primus's YAML with ``framework: megatron_bridge`` as a scenario: parameters of one of Megatron-Bridge's recipes.

What the keys mean: AMD-AGI/Primus, primus/backends/megatron_bridge (config_utils.py, megatron_bridge_base_trainer.py), and
docs/03-configuration-reference/megatron-bridge-parameters.md. A recipe is a Python function, which is never called: what it has where the
file says nothing stands in the table, with its source. They become keys of Megatron-Bridge, which `parsim.interop.nemo` reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import write_model
from parsim.interop.keys import Key
from parsim.interop.nemo import read_keys
from parsim.scenario import files

MODULES = ("pre_trainer", "post_trainer")
CONFIGS = ("pretrain_trainer.yaml", "sft_trainer.yaml")
_RECIPE = re.compile(r"(\w+)_(pretrain|finetune)_config")
_RECOMPUTED: Mapping[str, Any] = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
"""what ``enable_recompute`` of a recipe means"""
_ALL_WEIGHTS = (None, "none", "None")
"""values of ``peft`` without an adapter"""
_CLEARED = {"virtual_pipeline_model_parallel_size": "virtual_pipeline_model_parallel_size", "comm_overlap_config": "tp_comm_overlap"}
"""parameter that null switches off -> what the recipe would have"""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What one of Megatron-Bridge's functions has where a file says nothing."""

    name: str
    model: str | Mapping[str, Any]
    takes: tuple[str, ...]
    """parameters that decide the job"""
    has: dict[str, Any]


def module_of(keys: list[Key]) -> str:
    """Begin of the keys of the module that trains; an experiment has one of the two."""
    named = [name for name in MODULES if any(key.name.startswith(f"modules.{name}.") for key in keys)]
    return f"modules.{(named or MODULES)[0]}."


def read_bridge(draft: ImportDraft, keys: Iterable[Key]) -> None:
    """Write the scenario of an experiment that trains with Megatron-Bridge; values of `keys` hold no variables."""
    spelled = files.read(Path(__file__).parent / "tables" / "primus-bridge.yaml").tree
    keys = list(keys)
    module = module_of(keys)
    begin = f"{module}overrides."
    given = {key.name.removeprefix(begin): key for key in keys if key.name.startswith(begin)}
    said = {spelled["renamed"].get(name, name): replace(key, name=spelled["renamed"].get(name, name)) for name, key in given.items()}
    beside = [key for key in keys if not key.name.startswith(begin)]
    named = _named(draft, module, said, {key.name.removeprefix(module): key for key in beside})
    recipe = _recipe(draft, said, named, spelled) if named is not None else None
    if named is None or recipe is None:
        return
    read_keys(draft, tuple(_keys(draft, recipe, named, said, beside)), "primus-bridge", {recipe.name: recipe.model})
    path = said.get("hf_path")
    if path is not None and path.value is not None and draft.given.model is None:
        write_model(draft, path)
    _remark(draft, recipe, said, beside, module)


def _named(draft: ImportDraft, module: str, said: Mapping[str, Key], beside: Mapping[str, Key]) -> Key | None:
    """The key that names the recipe; an error where there is none, or where the module is another one."""
    config, preset, flavor = beside.get("config"), beside.get("model"), said.get("flavor")
    if config is not None and config.value not in CONFIGS:
        draft.refuse(config, f"Megatron-Bridge with {config.value}", f"parsim reads {' and '.join(CONFIGS)}")
    named = flavor if flavor is not None and flavor.value is not None else preset
    if named is None:
        key = next(iter(beside.values()))
        draft.errors.append(
            key.finding(f"no recipe: neither {module}model nor {module}overrides.flavor is given", "write model: qwen3_8b.yaml")
        )
    return named


def _recipe(draft: ImportDraft, said: Mapping[str, Key], named: Key, spelled: Mapping[str, Any]) -> _Recipe | None:
    """The recipe that `named` says; None where it is refused."""
    word = str(named.value).removesuffix(".yaml")
    word = spelled["presets"].get(word, word)
    match = _RECIPE.fullmatch(word)
    entry = spelled["recipes"].get(match[1]) if match else None
    why = next((why for begin, why in spelled["unlike"].items() if word.startswith(begin)), None)
    if why is not None or entry is None or match is None:
        known = f"parsim knows {', '.join(spelled['recipes'])}, each with _pretrain_config and _finetune_config"
        draft.refuse(named, why or f"the recipe {word}, whose sizes stand in Python code that parsim does not know", "" if why else known)
        return None
    family, kind = spelled["families"][entry["family"]][match[2]], match[2]
    peft = said.get("peft.peft_scheme")
    if kind == "pretrain" and peft is not None and peft.value not in _ALL_WEIGHTS:
        draft.refuse(peft, "adapters in a recipe of pre-training, which takes none", "name a recipe that ends in _finetune_config")
    method = peft.value if peft is not None else family.get("method", "none")
    packed = said.get("packed_sequence")
    parts = [family["has"], family.get("packed", {}) if packed is not None and packed.value is True else {}]
    if kind == "pretrain":
        parts.append(entry.get("pretrain", {}))
    elif method in _ALL_WEIGHTS:
        parts.append(entry.get("all weights", {}))
    else:
        parts += [family.get("lora", {}), entry.get("lora", {})]
    has = {"mixed_precision": "bf16_mixed", "use_distributed_optimizer": True, "cross_entropy_loss_fusion": True}
    has = {name: value for part in (has, *parts) for name, value in part.items()}
    if has.pop("enable_recompute", False):
        has |= _RECOMPUTED
    if method not in _ALL_WEIGHTS:
        has["peft.peft_scheme"] = method
    return _Recipe(word, entry["model"], tuple(family["takes"].split()), has)


def _keys(draft: ImportDraft, recipe: _Recipe, named: Key, said: Mapping[str, Key], beside: Iterable[Key]) -> Iterable[Key]:
    """The file's parameters, what the recipe has beside them, and sections of Megatron-Bridge behind the modules."""
    off = {theirs for name, theirs in _CLEARED.items() if name in said} | (set(_RECOMPUTED) if "enable_recompute" in said else set())
    sections = [key for key in beside if key.name.startswith(("peft.", "model."))]
    written = {key.name.removeprefix("model.") for key in sections}
    written |= {name for name, key in said.items() if key.value is not None}
    for name, value in recipe.has.items():
        if name not in written | off:
            yield Key(name, f"{name} of {recipe.name}", value, "its recipe")
    for key in said.values():
        if key.name.startswith("peft.") and key.name != "peft.peft_scheme" and "peft.peft_scheme" not in recipe.has:
            draft.harmless(key, "no adapter is chosen")
        elif key.name.startswith("comm_overlap_config") and key.value is not None:
            draft.refuse(key, "an object of Python code", "write null, and tp_comm_overlap in the scenario: parallel.tensor.overlap: full")
        elif key.value is None:
            draft.harmless(key, "the recipe's counts" if key.name not in _CLEARED else "switched off")
        elif key.name == "enable_recompute":
            yield from (
                replace(key, name=name, value=value, original=key.value) for name, value in _RECOMPUTED.items() if key.value is True
            )
            draft.harmless(None if key.value is True else key, "switched off")
        elif key.name == "flavor":
            draft.harmless(key, "names the recipe")
        elif key.name != "hf_path":
            yield key
    yield Key("model._target_", named.written, recipe.name, named.file, named.line, named.column, original=named.value)
    for key in beside:
        if key.name.startswith("peft.") and "peft.peft_scheme" not in recipe.has:
            draft.harmless(key, "no adapter is chosen")
        elif key is not named:
            yield key


def _remark(draft: ImportDraft, recipe: _Recipe, said: Mapping[str, Key], beside: Iterable[Key], module: str) -> None:
    """What Primus may leave out: parameters that the recipe does not take, and sections behind the modules."""
    changed = {fate.key.written for fate in draft.fates.values() if fate.kind == "translated"}
    left = [name for name, key in said.items() if key.written in changed and name not in (*recipe.takes, "hf_path", "flavor")]
    left = [f"{name} (its own: {_own(recipe, name)})" for name in left if said[name].value != _own(recipe, name)]
    if left:
        text = f"{recipe.name} does not take {', '.join(left)}: Primus leaves out what a recipe does not take, and says so in its log"
        draft.remark(text, "parallel", "the file is believed")
    outside = [key.written for key in beside if key.name.startswith(("peft.", "model.")) and key.written in changed]
    if outside:
        text = f"Primus of August 2026 hands on what stands in {module}overrides, and not {', '.join(outside)}"
        draft.remark(text, "training.finetune", "the file is believed: see the configuration in Primus's log")


def _own(recipe: _Recipe, name: str) -> Any:
    """What the recipe has: of axes and switches that it does not name one rank, and nothing."""
    return recipe.has.get(name, 1 if name.endswith("parallel_size") else False)

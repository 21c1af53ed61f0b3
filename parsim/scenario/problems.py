"""From what the schema refuses to findings that a user can act on."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from parsim.errors import MOST_PROBLEMS, Finding
from parsim.scenario import files
from parsim.scenario.schema import known_keys
from parsim.scenario.shortforms import ASSUMPTIONS
from parsim.scenario.values import did_you_mean, shown


def findings_of(error: ValidationError) -> list[Finding]:
    """One finding per problem, without places; the `path` is the dotted key. At most `MOST_PROBLEMS`: suggestions take time."""
    findings: list[Finding] = []
    for problem in error.errors(include_url=False)[:MOST_PROBLEMS]:
        path = ".".join(map(str, problem["loc"]))
        findings.append(_finding(path, problem["type"], problem.get("input"), problem))
    return findings


def _finding(path: str, kind: str, value: Any, problem: Any) -> Finding:
    if kind == "extra_forbidden":
        return unknown_key(path, value)
    if kind == "missing":
        return Finding("required", path, None, _REQUIRED.get(path, ""))
    if kind == "value_error":
        message, _, hint = str(problem["ctx"]["error"]).partition("; ")
        return Finding(message, path, value, hint)
    if kind in ("model_type", "model_attributes_type", "dataclass_type"):
        keys = known_keys().get(path, ())
        example = f"write for example {path.rpartition('.')[2]}: {{{keys[0]}: ...}}" if keys else ""
        if "size" in keys and isinstance(value, int):
            example = f"write {path.rpartition('.')[2]}: {{size: {value}}}"
        return Finding(f"{shown(value)} is not a mapping of {', '.join(keys)}", path, value, example)
    if kind in ("tuple_type", "list_type"):
        return Finding(f"{shown(value)} is not a list", path, value, "write [ ... ]")
    return Finding(str(problem["msg"]), path, value)


_REQUIRED = {
    "model": "write for example model: gpt2",
    "cluster": "write for example cluster: dgx-a100-80gb",
    "cluster.topology": "write for example topology: dgx-a100-80gb",
    "training": "write training: with two of global_batch, micro_batch and gradient_accumulation",
}


def unknown_key(path: str, value: Any) -> Finding:
    """The finding for a key that does not exist where it stands."""
    section, _, key = path.rpartition(".")
    section = ".".join(part for part in section.split(".") if not part.isdigit())
    siblings = known_keys().get(section, ())
    foreign = translation(key)
    elsewhere = [home for home in _homes(key) if home != section]
    hint = did_you_mean(key, siblings)
    if section == "assumptions":
        known = (*ASSUMPTIONS,)
        hint = did_you_mean(key, known) or f"known: {', '.join(known)}; devices and links are changed with cluster.set"
        return Finding("no assumption has this name", path, value, hint)
    if foreign:
        hint = foreign
    elif section and key in known_keys()[""]:
        hint = "it belongs at the top level"
    elif elsewhere and not (hint and key in hint):
        hint = f"it belongs under {' or '.join(elsewhere)}"
    elif not hint:
        near = did_you_mean(key, list(_all_keys()))
        hint = near.replace(near.split("'")[1], _full(near.split("'")[1])) if near else ""
    if not hint:
        hint = f"known here: {', '.join(siblings)}" if siblings else ""
    return Finding("unknown key", path, value, hint)


def _homes(key: str) -> list[str]:
    """Sections in which `key` is a known key."""
    return [section for section, keys in known_keys().items() if section and key in keys]


@cache
def _all_keys() -> dict[str, str]:
    return {key: f"{section}.{key}" if section else key for section, keys in known_keys().items() for key in keys}


def _full(key: str) -> str:
    return _all_keys()[key]


@cache
def foreign_keys() -> dict[str, tuple[str, str, str]]:
    """What other tools call our keys: their key -> whose it is (empty: many tools'), our key, what the value becomes there."""
    tree = files.read(Path(__file__).with_name("spellings.yaml")).tree
    return {
        theirs: ("" if owner == "many tools" else owner, ours.partition(" = ")[0], ours.partition(" = ")[2])
        for owner, keys in tree.items()
        for theirs, ours in keys.items()
    }


def translation(key: str) -> str:
    """``the name in Megatron; write parallel.tensor.size``, or an empty text.

    Hyphens and a leading ``--`` do not matter.
    """
    word = key.lower().lstrip("-").replace("-", "_")
    if word not in foreign_keys():
        return ""
    owner, ours, value = foreign_keys()[word]
    return f"{'the name in ' + owner + '; ' if owner else ''}write {ours}{': ' + value if value else ''}"

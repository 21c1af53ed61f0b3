"""Values of a YAML file that refer to others, as OmegaConf has them: ``${model.hidden_size}``, ``${multiply:4, ${.devices}}``, ``???``.

omry/omegaconf, docs/source/usage.rst (interpolations, mandatory values). The resolvers are those that the tools register.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parsim.interop.hydra import MISSING
from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, key_table
from parsim.scenario import files

DEPTH = 20
"""interpolations that lead to one another"""
LONGEST = 1000
"""letters of a value"""
_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_REFERENCE = re.compile(r"(\.*)([A-Za-z_][\w.]*)")
_CALL = re.compile(r"(\w+):\s*(-?\d+)\s*,\s*(-?\d+)\s*")
_CALLS: Mapping[str, Callable[[int, int], int]] = {
    "multiply": lambda a, b: a * b, "mul": lambda a, b: a * b, "sum": lambda a, b: a + b, "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b, "divide_floor": lambda a, b: a // b, "int_div": lambda a, b: a // b,
    "divide_ceil": lambda a, b: -(-a // b),
}  # fmt: skip
"""resolvers that NeMo, its launcher and NeMo-Aligner register (NVIDIA/NeMo-Framework-Launcher, launcher_scripts/main.py; NVIDIA/NeMo,
nemo/collections/nlp/parts/utils_funcs.py and examples; NVIDIA/NeMo-Aligner, nemo_aligner/utils/train_script_utils.py)"""
ASKED = ("seq_length", "micro_batch_size")
"""options that are asked for where they are not given"""
_UNKNOWN = object()
_MOUNTED = ("training.", "fine_tuning.", "peft.", "adapter_learning.", "prompt_learning.", "steerlm_reg.")
"""where the launcher puts a file of its folder conf"""


def resolved(draft: ImportDraft, keys: tuple[Key, ...], sections: list[str], tool: str) -> Iterator[Key]:
    """Keys with OmegaConf's interpolations followed; one that stays open is an error where the table of `tool` has a row for it."""
    values = {key.name: key.value for key in keys}
    table = key_table(tool)
    renamed = files.read(Path(__file__).parent / "tables" / f"{tool}.yaml").tree.get("renamed", {})
    sizes = {name for row in table.rows.values() for name in row.names}
    for key in keys:
        value, steps = _followed(key, values)
        plain = replace(key, value=value, original=key.value) if steps else key
        name = behind(key.name, sections)
        option = renamed.get(name, name)
        if is_open(value) and option in ASKED:
            draft.harmless(key, "left open, and asked for unless another key says it")
        elif is_open(value) and option in sizes:
            text = f"{value} is open: parsim follows references, and {', '.join(_CALLS)} of whole numbers"
            draft.errors.append(key.finding(text, "write the value itself"))
        elif is_open(value):
            draft.harmless(key, "left open, and no size of a step")
        else:
            if steps and table.reason(table.harmless, name):
                draft.harmless(plain, "given again: it refers to other keys")
            yield plain


def is_open(value: Any) -> bool:
    """Whether a value is to be given, or refers to what is not there."""
    return isinstance(value, str) and ("${" in value or value == MISSING)


def _followed(key: Key, values: Mapping[str, Any]) -> tuple[Any, int]:
    """The value of a key behind its interpolations, as far as they lead, and how many there were."""
    value, steps = key.value, 0
    while isinstance(value, str) and steps < DEPTH and (match := _INNERMOST.search(value)):
        found = _one(match[1].strip(), key.name, values)
        if found is _UNKNOWN or (isinstance(found, str) and match[0] in found):
            break
        value = found if match[0] == value.strip() else value.replace(match[0], str(found))
        steps += 1
        if len(str(value)) > LONGEST:
            break
    return value, steps


def _one(text: str, name: str, values: Mapping[str, Any]) -> Any:
    """What stands between the braces of one interpolation in the key `name`; `_UNKNOWN` where that is not known."""
    if (call := _CALL.fullmatch(text)) is not None and call[1] in _CALLS:
        one, other = int(call[2]), int(call[3])
        return _CALLS[call[1]](one, other) if other or "div" not in call[1] else _UNKNOWN
    if (match := _REFERENCE.fullmatch(text)) is None:
        return _UNKNOWN
    above = name.split(".")
    path = match[2] if not match[1] else ".".join([*above[: len(above) - len(match[1])], match[2]])
    mounted = next((folder for folder in _MOUNTED if path.startswith(folder)), "")
    if path not in values and mounted:
        path = path.removeprefix(mounted)
    if path not in values:
        return _UNKNOWN
    found = values[path]
    return _one_of(found, path) if isinstance(found, str) else found


def _one_of(text: str, path: str) -> str:
    """Relative references of another key, written from the root: they are relative to where they stand."""
    above = path.split(".")

    def absolute(match: re.Match[str]) -> str:
        dots = len(match[1])
        return "${" + ".".join([*above[: len(above) - dots], match[2]]) + "}" if dots else match[0]

    return re.sub(r"\$\{(\.*)([A-Za-z_][\w.]*)\}", absolute, text)


def behind(name: str, sections: list[str]) -> str:
    """The name of a key in its section."""
    return name.removeprefix(next((section for section in sections if name.startswith(section)), ""))

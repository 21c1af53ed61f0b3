"""Scripts whose sizes follow from arguments, or from variables, that nobody has said: what does not hang on them, and what does.

Such a script is read several times, each time with other values in their places: every word that it compares an argument with, and one
that it does not; else numbers. An option that is the same every time is taken. All others, among them those that
stand in the text and were in no reading, are left to the reader, as one question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from parsim.errors import Finding, ScenarioError
from parsim.interop.command import Invocation, argument_names, invocation
from parsim.interop.import_draft import ImportDraft, plain_name
from parsim.interop.keys import Key, KeyTable
from parsim.scenario.support import PLACEHOLDER

NUMBERS = ("1", "8", "4096")
"""so far apart that quotients of them differ"""
MOST_READINGS = 200
MOST_BEHIND = 5
"""variables without a value, one behind the other"""
_OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
_SETTABLE = re.compile(r"--set ([A-Za-z_]\w*)=")
WHOLE = ("training.precision", "training.recompute", "parallel.data.strategy", "parallel.expert.dispatcher", "parallel.pipeline.split")
"""keys of the scenario that several options say together"""
DEEPSPEED_FILE = "deepspeed_config"
NO_STEP = ("training.examples", "training.tokens")
"""how long a training is, which no step depends on"""


def open_invocation(
    text: str, file: str, given: Mapping[str, str], findings: Sequence[Finding]
) -> tuple[Invocation, frozenset[str], str] | None:
    """The command with the options that hang on nothing unknown, the names of the others, and how to say what is unknown.

    `findings` are those with which the script was refused. None where the script takes no arguments that nobody has said and no variable
    without a value stands in its options, or where it does not train without them.
    """
    names = {} if any(word.isdigit() for word in given) else argument_names(text)
    unknown = {str(number): name for number, name in names.items()}
    unknown |= {match[1]: match[1] for finding in findings for match in _SETTABLE.finditer(finding.suggestion) if match[1] not in given}
    if not unknown:
        return None
    words = _with_behind(text, file, given, {place: _alternatives(text, place, name) for place, name in unknown.items()})
    unknown |= {name: name for name in words if name not in unknown}
    first = {place: found[0] for place, found in words.items()}
    readings: list[Invocation] = []
    for values in _readings(first, words):
        try:
            readings.append(invocation(text, file, {**given, **values}))
        except ScenarioError:
            continue
    if len(readings) < 2 or len({_family(reading.program) for reading in readings}) != 1:
        return None
    base = readings[0]
    stable = [key for key in base.options if _is_stable(key, readings)]
    launch = tuple(key for key in base.launch if all(_said(key, reading.launch) for reading in readings))
    kept = {key.name for key in stable}
    seen = {plain_name(word) for word in _OPTION.findall(text)} | {key.name for reading in readings for key in reading.options}
    starting = {key.name for reading in readings for key in reading.launch}
    numbers = {name: key for name, key in base.variables.items() if all(_number(reading, name) == str(key.value) for reading in readings)}
    call = replace(base, options=tuple(stable), launch=launch, variables=numbers, environment=(), open=())
    said = " ".join(names.get(number, f"${number}") for number in range(1, max(names) + 1)) if names else ""
    variables = [place for place in unknown if not place.isdigit()]
    hints = [f'--arguments "{said}"'] * bool(said) + [f"--set {name}=VALUE" for name in variables[: 1 if said else 3]]
    return call, frozenset(seen - kept - starting), " ".join(hints)


def _with_behind(text: str, file: str, given: Mapping[str, str], words: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """`words`, and those of variables that lack a value once the others have one: ``NODES * GPUS``, of which neither is known."""
    found = dict(words)
    for _ in range(MOST_BEHIND):
        try:
            call = invocation(text, file, {**given, **{place: options[0] for place, options in found.items()}})
        except ScenarioError:
            break
        hints = [match[1] for key in (*call.options, *call.launch) for match in _SETTABLE.finditer(key.hint)]
        new = {name: _alternatives(text, name, name) for name in hints if name not in found and name not in given}
        if not new:
            break
        found |= new
    return found


def _family(program: str) -> str:
    """The program; Megatron-LM's GPT was ``pretrain_gpt_core.py`` for the months in which it was two."""
    return program.replace("pretrain_gpt_core.py", "pretrain_gpt.py")


def _alternatives(text: str, place: str, name: str) -> list[str]:
    """What the script compares the argument with, and values that it does not."""
    called = "|".join({re.escape(name), re.escape(place)} if place.isdigit() else {re.escape(name)})
    compared = re.compile(rf"""\$\{{?(?:{called})\b\}}?["']?\s*(?:==?|!=|-eq)\s*["']?([\w.-]+)""")
    cases = re.compile(rf"""case\s+["']?\$\{{?(?:{called})\b\}}?["']?\s+in(.*?)esac""", re.DOTALL)
    found = [match[1] for match in compared.finditer(text)]
    found += [word for match in cases.finditer(text) for word in re.findall(r"""^\s*["']?([\w.-]+)["']?\s*\)""", match[1], re.MULTILINE)]
    return [*dict.fromkeys(found), NUMBERS[1]] if found else list(NUMBERS)


def _readings(first: Mapping[str, str], words: Mapping[str, list[str]]) -> Iterator[dict[str, str]]:
    """The first value of all, the last of all (which no comparison knows), then every other one of each in turn."""
    yield dict(first)
    yield {place: found[-1] for place, found in words.items()}
    count = 2
    for place, found in words.items():
        for word in found[1:]:
            count += 1
            if count > MOST_READINGS:
                return
            yield {**first, place: word}


def _is_stable(key: Key, readings: Sequence[Invocation]) -> bool:
    return all(_said(key, reading.options) for reading in readings)


def _said(key: Key, keys: Sequence[Key]) -> bool:
    last = next((other for other in reversed(keys) if other.name == key.name), None)
    return last is not None and str(last.value) == str(key.value)


def _number(reading: Invocation, name: str) -> str | None:
    key = reading.variables.get(name)
    return None if key is None else str(key.value)


def open_paths(table: KeyTable, names: frozenset[str], of_model: Sequence[str]) -> dict[str, list[str]]:
    """Keys of the scenario that these options of the tool say, with the options; ``model`` as one. `of_model`: further options of it."""
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        paths = [row.path for row in table.rows.values() if name in row.names] or ["model."] * (name in of_model)
        for path in paths:
            of_one = "model" if path.startswith("model.") and path != "model.attention_dropout" else path
            asked = next((whole for whole in WHOLE if of_one == whole or of_one.startswith(f"{whole}.")), of_one)
            if asked not in NO_STEP and asked != "model.attention_dropout":
                found.setdefault(asked, []).append(name)
    if DEEPSPEED_FILE in names:  # what the file says, too
        found.setdefault("parallel.data.strategy", []).append(DEEPSPEED_FILE)
    return found


def leave_open(draft: ImportDraft, paths: Mapping[str, list[str]], how: str) -> None:
    """What hangs on the arguments is to be filled in; the scenario says how to say all of it at once."""
    if "training.global_batch" in paths:  # one of the two is said
        draft.lines.pop("training.gradient_accumulation", None)
    for path, names in paths.items():
        for line in [line for line in draft.lines if line == path or line.startswith(f"{path}.")]:
            del draft.lines[line]
        shown = ", ".join(f"--{name.replace('_', '-')}" for name in names[:3]) + (" ..." if len(names) > 3 else "")
        draft.fill(path, f"it follows from what the script is called with ({shown})")
    for fate in draft.fates.values():
        if PLACEHOLDER in fate.why:
            fate.why = "part of the model, which you are to fill in"
    draft.causes |= dict.fromkeys(paths, how)
    keys = ", ".join(paths)
    text = f"the script's arguments are not known, and these keys depend on them: {keys}; import it with {how}, or fill them in"
    draft.remark(text)

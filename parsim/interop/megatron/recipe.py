"""YAML files that hold Megatron-LM's arguments as a mapping: recipes and functional tests of its repository, and files of that form.

Two forms: ``ARGS`` with names as Python has them (NVIDIA/Megatron-LM, examples/moe_recipes on its branch dev), and ``MODEL_ARGS`` with
options as a command has them (tests/functional_tests/test_cases; yanring/Megatron-MoE-ModelZoo, model_configs). What starts the training
makes options of the pairs: true is an option without a value, false is none, blanks and brackets part several words, and ``${NAME}`` is a
variable of the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parsim.errors import ScenarioError
from parsim.interop.command import Invocation
from parsim.interop.import_draft import ImportDraft, plain_name
from parsim.interop.keys import Key, Source, key_table, of_document
from parsim.interop.megatron.megatron import read_megatron
from parsim.interop.megatron.model import SWITCHES
from parsim.interop.megatron.other_models import NO_STEP
from parsim.interop.open_arguments import leave_open, open_paths
from parsim.scenario import files
from parsim.scenario.support import PLACEHOLDER

ARGUMENTS = ("ARGS.", "MODEL_ARGS.")
ENVIRONMENT = "ENV_VARS."
OPPOSITE = {"overlap_p2p_comm": "no_overlap_p2p_communication"}
"""fields of Megatron-Core's configurations that stand among the arguments -> the option that says the opposite"""
LISTED = ("moe_layer_freq", "linear_attention_freq", "window_attn_skip_freq", "no_rope_freq")
"""options whose value is one word, also where it is a list of layers"""
PER_CHUNK = "num_layers_per_virtual_pipeline_stage"
"""option of the schedule without a row in the table"""
HANGING = {
    "parallel.tensor.size": ("parallel.tensor.sequence_parallel", "sequence_parallel"),
    "parallel.expert.size": ("parallel.expert.dispatcher", "moe_token_dispatcher_type"),
    "parallel.context.size": ("parallel.context.method", "cp_comm_type"),
}
"""number of ranks -> what counts where they are several, and its option"""
OF_A_BERT = ("bert_binary_head", "bert_no_binary_head")
SHOWN = 3
"""variables that the question names"""
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def read_recipe(draft: ImportDraft, document: files.Document) -> None:
    """Write the scenario of a file; what hangs on variables that nobody has set is one question."""
    keys = of_document(document, "megatron-recipe").keys
    given = draft.given
    options = [_option(key, given.variables) for key in keys if key.name.startswith(ARGUMENTS)]
    environment = [_exported(key, given.variables) for key in keys if key.name.startswith(ENVIRONMENT)]
    beside = [key for key in keys if not key.name.startswith((*ARGUMENTS, ENVIRONMENT))]
    _check_mode(draft, next((key for key in beside if key.name == "MODE"), None))
    _unused(draft, keys)
    for key in (key for key in options if key.value is False):
        draft.harmless(key, "it says what is so without it" if key.name in OPPOSITE.values() else "false: the option is not given")
    options = [key for key in options if key.value is not False]
    names = {key.name for key in options}
    program = "pretrain_bert.py" if names & {*OF_A_BERT} else ""
    if not program and "decoder_num_layers" not in names:
        draft.remark("the file does not name its program: the model is that of pretrain_gpt.py", "model")
    paths = _paths(frozenset(key.name for key in options if key.hint))
    left = [key for key in options if key.hint and any(key.name in said for said in paths.values())]
    if "model" in paths and given.model is None:
        draft.given = replace(given, model=PLACEHOLDER)
    said = tuple(key for key in options if key not in left)
    read_megatron(draft, Invocation(program, "", (), said, (), tuple(environment), (), frozenset()))
    draft.given = given
    if given.model is not None:
        paths.pop("model", None)
    if paths:
        _leave(draft, paths, left, options)
    for key in left:
        if not draft.settled(key):
            draft.harmless(key, "left open, and no size of a step" if given.model is None else f"replaced by --model {given.model}")
    draft.close(Source([*environment, *beside], key_table("megatron-recipe")))


def _option(key: Key, variables: Mapping[str, str]) -> Key:
    """One pair as the option that a command would have; what no variable fills keeps a hint."""
    written = key.name.partition(".")[2]
    name, value = plain_name(written), key.value
    value = (
        _filled(str(value).replace(" ", ""), variables) if name in LISTED and isinstance(value, (list, str)) else _words(value, variables)
    )
    if name in OPPOSITE and isinstance(value, bool):
        name, value = OPPOSITE[name], not value
    open_names = _names(value)
    hint = f"set it: --set {open_names[0]}=VALUE" if open_names else ""
    return replace(key, name=name, written=written, value=value, original=key.value, hint=hint)


def _exported(key: Key, variables: Mapping[str, str]) -> Key:
    """A variable of the environment as a script exports it."""
    name = key.name.removeprefix(ENVIRONMENT)
    return replace(key, name=f"${name}", written=name, value=_filled(str(key.value), variables))


def _paths(names: frozenset[str]) -> dict[str, list[str]]:
    """Keys of the scenario that options say whose values are open, with the options."""
    paths = open_paths(key_table("megatron"), names, SWITCHES)
    if PER_CHUNK in names:
        paths.setdefault("parallel.pipeline.virtual_stages", []).append(PER_CHUNK)
    return paths


def _words(value: Any, variables: Mapping[str, str]) -> Any:
    """A value as a command has it: a word, several, or true, false and null; lists of lists (a layout) stay."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list):
        if any(isinstance(item, (list, dict)) for item in value):
            return value
        words = [_filled(str(item), variables) for item in value]
    else:
        text = _filled(str(value), variables).strip()
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        bracketed = _BRACKETS.fullmatch(text)
        words = text.split() if bracketed is None else bracketed[1].replace(",", " ").split()
    return words[0] if len(words) == 1 else words


def _filled(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], match[0]), text)


def _names(value: Any) -> list[str]:
    """Variables without a value, in order."""
    words = value if isinstance(value, list) else [value]
    found = [match for word in words if isinstance(word, str) for match in _VARIABLE.finditer(word)]
    return list(dict.fromkeys(match[1] or match[2] for match in found))


def _check_mode(draft: ImportDraft, mode: Key | None) -> None:
    """Megatron-LM's functional tests also generate texts and train with rewards."""
    if mode is None or mode.value == "pretraining":
        draft.harmless(mode, "it trains")
    elif mode.value == "inference":
        raise ScenarioError(mode.finding(f"with this mode it {NO_STEP}: there is no step to simulate", "give the file of a training"))
    else:
        draft.refuse(mode, f"the mode {mode.value} of Megatron-LM's tests", "parsim reads pretraining")


def _unused(draft: ImportDraft, keys: tuple[Key, ...]) -> None:
    """Say which variables of the user's stand nowhere in the file."""
    values = [value for key in keys for value in (key.value if isinstance(key.value, list) else [key.value])]
    used = set(_names(values))
    for name in sorted(set(draft.given.variables) - used):
        draft.remark(f"--set {name} has no use: the file has no variable of that name")


def _leave(draft: ImportDraft, paths: dict[str, list[str]], left: list[Key], options: list[Key]) -> None:
    """What hangs on variables is to be filled in, together; so is what counts with several ranks only."""
    hanging = [HANGING[path] for path in paths if path in HANGING and HANGING[path][0] not in (*draft.lines, *paths)]
    paths |= {path: [name] for path, name in hanging if any(key.name == name for key in options)}
    names = list(dict.fromkeys(name for key in left for name in _names(key.value)))
    more = " ..." if len(names) > SHOWN else ""
    leave_open(draft, paths, " ".join(f"--set {name}=VALUE" for name in names[:SHOWN]) + more)
    for path, said in paths.items():
        draft.write(path, PLACEHOLDER, *(key for key in options if key.name in said), note=draft.lines[path].note)

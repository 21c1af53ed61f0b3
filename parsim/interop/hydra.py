"""Commands in Hydra's form: a YAML file that ``--config-path`` and ``--config-name`` name, and words that override its keys.

facebookresearch/hydra, website/docs/advanced/override_grammar: ``key=value`` changes a key, ``+key=value`` adds one, ``++key=value`` does
either, ``~key`` removes one. The path is relative to the program; a file that is found beside the script is taken as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from parsim.errors import Finding, InputError
from parsim.interop.command import Invocation
from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import neighbour
from parsim.interop.keys import Key, of_document
from parsim.interop.shell_values import legible, unknown_names
from parsim.scenario import files

PATHS, NAMES = ("config_path", "config_dir", "cp", "cd"), ("config_name", "cn")
"""options that name the file"""
MISSING = "???"
"""of OmegaConf: a value that has to be given"""


def overrides(draft: ImportDraft, call: Invocation) -> Iterator[Key]:
    """``key=value`` with and without ``+``, values as they stand."""
    for word in call.positional:
        name, equals, value = word.text.lstrip("+").partition("=")
        if equals and name.replace(".", "").replace("_", "").isalnum():
            yield Key(name, name, value, draft.file, word.line)


def composed(draft: ImportDraft, call: Invocation, tool: str) -> list[Key] | None:
    """The keys of the file with the overrides of the command; None, and an error, where the file is not there.

    What the command does not override stands in the file alone, so that nothing is taken in its place.
    """
    path, missing = settings_file(draft, call)
    if path is None:
        draft.errors.append(missing)
        return None
    keys = list(of_document(files.read(path), tool).keys)
    for word in call.positional:
        if word.text.startswith("~"):
            keys = _without(keys, word.text[1:].partition("=")[0])
    for key in overrides(draft, call):
        if "." not in key.name and any(other.name.startswith(f"{key.name}.") for other in keys):
            text = f"{key.name}={key.value} chooses another file of settings for a whole section"
            draft.errors.append(key.finding(text, "give the configuration that Hydra makes of them (.hydra/config.yaml of a run)"))
            continue
        value = _value(key)
        if isinstance(value, Mapping):
            draft.errors.append(key.finding(f"{key.name} is given as a whole section", f"write its keys one by one, {key.name}.KEY=VALUE"))
        keys = [*_without(keys, key.name), replace(key, value=value)]
    return keys


def settings_file(draft: ImportDraft, call: Invocation) -> tuple[Path | None, Finding]:
    """The file that the command names, or None and why."""
    said = {key.name: key for key in call.options if key.name in (*PATHS, *NAMES)}
    name = next((said[option] for option in NAMES if option in said), None)
    folder = next((said[option].text for option in PATHS if option in said), "conf")
    if name is None:
        text = "the command does not say which configuration it overrides"
        return None, Finding(text, "--config-name", file=draft.file, line=call.line, suggestion="add --config-path and --config-name")
    called = name.text if name.text.endswith((".yaml", ".yml")) else f"{name.text}.yaml"
    at = PurePosixPath(folder)
    places = (PurePosixPath(call.program).parent / at / called, at / called, PurePosixPath(at.name) / called, PurePosixPath(called))
    found = next((path for place in places if (path := neighbour(str(place), draft.file)) is not None), None)
    text = f"{at / called} is not there, and what the command does not override stands in it"
    return found, name.finding(text, "put the file beside the script, in the same folder or one above")


def _without(keys: list[Key], name: str) -> list[Key]:
    """The keys but `name` and what stands below it."""
    return [key for key in keys if key.name != name and not key.name.startswith(f"{name}.")]


def _value(key: Key) -> Any:
    """The text of an override as YAML has it; a variable without a value as OmegaConf writes what is open."""
    text = str(key.value)
    if not text:
        return MISSING
    if names := unknown_names(text):
        return f"${{{names[0]}}}"
    try:
        return files.parse_text(f"value: {legible(text)}\n", key.file).tree["value"]
    except InputError:
        return text

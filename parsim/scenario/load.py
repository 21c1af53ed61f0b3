"""From files, mappings and command-line arguments to a `Scenario`.

Priority: defaults < extends < file < --override NAME < command line. All problems are collected and raised together.

Mappings merge key by key, lists and single values replace, null deletes what is below (back to the default).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parsim.columns import printable
from parsim.errors import MOST_PROBLEMS, Finding, ScenarioError
from parsim.scenario import files
from parsim.scenario.references import unknown_names
from parsim.scenario.scenario import Scenario, flow
from parsim.scenario.shortforms import LATE_SCALAR, SEARCHED, SettingsSource, box
from parsim.scenario.support import unfilled
from parsim.scenario.trust import code_named, is_trusted, refusal
from parsim.scenario.values import Silent, did_you_mean, shown
from parsim.scenario.yaml_tree import Origin, copied, nearest

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


COMMAND_LINE = "command line: "
_OTHER_TOOLS = (".toml", ".sh", ".slurm", ".sbatch", ".py")
"""endings of configurations that are imported"""


class _Sources:
    """The layers of one scenario in order of priority, and its named overrides."""

    def __init__(self, *, sealed: bool = False) -> None:
        self.sealed = sealed
        """no files are read but those of the catalogue"""
        self.layers: list[SettingsSource] = []
        self.named: dict[str, list[tuple[dict[str, Any], dict[str, Origin]]]] = {}
        self.findings: list[Finding] = []

    def add(self, tree: Mapping[str, Any], origins: Mapping[str, Origin], *, base: bool) -> None:
        tree = dict(tree)
        tree.pop("extends", None)
        if base:
            tree.pop("name", None)
            tree.pop("study", None)
        overrides = tree.pop("overrides", None)
        if isinstance(overrides, Mapping):
            for name, partial in overrides.items():
                place = origins.get(f"overrides.{name}", ("", None, None))
                if not isinstance(partial, Mapping):
                    message = f"{shown(partial)} is not a mapping of changes"
                    self.findings.append(Finding(message, f"overrides.{name}", partial, "write {key: value}", *place))
                    continue
                self.named.setdefault(str(name), []).append((dict(partial), _below(origins, f"overrides.{name}")))
        elif overrides is not None:
            place = origins.get("overrides", ("", None, None))
            self.findings.append(Finding(f"{shown(overrides)} is not a mapping of NAME: changes", "overrides", overrides, "", *place))
        self.layers.append(SettingsSource(tree, origins, self.findings))

    def file(self, path: Path, chain: tuple[Path, ...] = ()) -> None:
        """The layers of `path`, what it extends first."""
        if chain:
            document = files.read_referenced("scenarios", path)
        elif path.suffix in _OTHER_TOOLS:
            raise ScenarioError(Finding("is no scenario, which is YAML", value=path.name, suggestion=_imported(path), file=str(path)))
        else:
            document = files.read(path)
            self.findings += _of_another_tool(document)
        self.document(document, (*chain, path.resolve()))

    def document(self, document: files.Document, chain: tuple[Path, ...]) -> None:
        """The layers of what was read, the last of `chain`; what it extends first."""
        for number, entry in enumerate(_entries(document.tree.get("extends"))):
            where = nearest(document.origins, f"extends.{number}") or (document.path, None, None)
            try:
                self.extended(entry, document.path, chain)
            except ScenarioError as error:
                self.findings += [
                    problem if problem.file else Finding(problem.message, "extends", entry, problem.suggestion, *where)
                    for problem in error.findings
                ]
        self.add(document.tree, document.origins, base=len(chain) > 1)

    def extended(self, entry: Any, beside: str, chain: tuple[Path, ...]) -> None:
        """The layers of one entry of ``extends`` in the file `beside`."""
        if not isinstance(entry, str):
            raise ScenarioError(Finding(f"{shown(entry)} is not the path of a scenario", value=entry))
        target = files.find("scenarios", entry, files.SEALED if self.sealed else beside)
        if target.resolve() in chain:
            names = [step.name for step in (*chain[chain.index(target.resolve()) :], target)]
            raise ScenarioError(Finding(f"extends goes in a circle: {' -> '.join(names)}", value=entry))
        self.file(target, chain)


def _of_another_tool(document: files.Document) -> list[Finding]:
    """What is said once of a file in which no key of a scenario stands, besides that none is known."""
    from parsim.scenario.schema import known_keys

    if len(document.tree) < 2 or any(key in known_keys()[""] for key in document.tree):
        return []
    hint = f"{_imported(document.path)}; a model's config.json goes under model: or into parsim new --model {document.path}"
    return [Finding("no key of a scenario stands in it (model, cluster, training ...)", "", None, hint, document.path)]


def _imported(path: str | Path) -> str:
    return f"another tool's configuration is imported: parsim import {path}"


def load(
    source: str | Path | Mapping[str, Any],
    *overrides: str,
    named: Sequence[str] = (),
    partials: Sequence[tuple[Mapping[str, Any], Mapping[str, Origin]]] = (),
    trust_code: bool = False,
    trusted: bool = True,
) -> Scenario:
    """Read, merge and check a scenario.

    Parameters
    ----------
    source
        A path, the name of a shipped scenario, or a mapping.
    overrides
        Command-line arguments such as ``parallel.tp=4``.
    named
        Which of the file's ``overrides:`` to apply; each may be a comma-separated list.
    partials
        Parts of scenarios from elsewhere, with the places of their keys, laid between the two.
    trust_code
        Let the Python files run that the scenario names (``strategy: FILE.py:CLASS``, ``schedule: FILE.py:function``) when it is
        simulated. They can do whatever you can. ``PARSIM_TRUST_CODE=1`` in the environment does the same.
    trusted
        False for a scenario from a stranger, such as a request to a server: `source` is then the YAML text itself (or a mapping), no
        file is read but those of the catalogue, and no code of the user's runs.

    Raises
    ------
    ScenarioError
        With every problem at once; a key that names code which is not trusted is one.
    ValueError
        For `trust_code` of a scenario that is not `trusted`.
    """
    if trust_code and not trusted:
        raise ValueError("trust_code=True allows a scenario to run code and trusted=False forbids it; leave one of them out")
    sources = _Sources(sealed=not trusted)
    name, path = "scenario", "" if trusted else files.SEALED
    if isinstance(source, Mapping):
        sources.add(source, {}, base=False)
        for entry in _entries(source.get("extends")):
            sources.extended(str(entry), "", (Path(),))
        sources.layers.append(sources.layers.pop(0))
    elif not trusted:
        sources.document(_text(source), (Path(),))
    else:
        found = files.find("scenarios", str(source))
        name, path = printable(found.stem), str(found)
        sources.file(found)
    base: dict[str, Any] = {"name": name}
    origins: dict[str, Origin] = {}
    for layer in sources.layers:
        merge(base, origins, layer)
    chosen = [part.strip() for entry in named for part in entry.split(",") if part.strip()]
    findings = list(sources.findings)
    findings += _unchosen(base, sources, chosen, path)
    for entry in chosen:
        if entry not in sources.named:
            hint = did_you_mean(entry, list(sources.named)) or (
                f"known: {', '.join(sources.named)}" if sources.named else "the file has no overrides"
            )
            findings.append(Finding(f"no override is called {entry!r}", "overrides", entry, hint, f"--override {entry}"))
        for partial, places in sources.named.get(entry, ()):
            merge(base, origins, SettingsSource(partial, places, findings))
    for part, where in partials:
        merge(base, origins, SettingsSource(part, where, findings))
    _arguments(base, origins, overrides, findings)
    changes = [*(f"+{entry}" for entry in chosen), *(f"{key}={flow(value)}" for part, _ in partials for key, value in _leaves(part))]
    return _checked(base, origins, path, findings, (*changes, *overrides), trust_code=trusted and is_trusted(trust_code))


def _text(source: str | Path) -> files.Document:
    """The document of a scenario that is given as text, where no file may be read."""
    if isinstance(source, Path):
        raise ScenarioError(Finding("is a path, and no files are read with trusted=False", value=str(source), suggestion="give the text"))
    if len(source) > files.SIZE_LIMIT:
        message = f"the text has {len(source):,} characters; at most {files.SIZE_LIMIT:,} are read"
        raise ScenarioError(Finding(message, file=files.SEALED))
    return files.parse_text(source, files.SEALED)


def override(scenario: Scenario, arguments: tuple[str, ...]) -> Scenario:
    """`scenario` with command-line arguments on top. Raises `ScenarioError`."""
    base = copy.deepcopy(dict(scenario.written))
    base.setdefault("name", scenario.settings.name)
    origins = dict(scenario.origins)
    findings: list[Finding] = []
    _arguments(base, origins, arguments, findings)
    return _checked(base, origins, scenario.source, findings, (*scenario.changes, *arguments), trust_code=scenario.trust_code)


def _entries(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _below(origins: Mapping[str, Origin], path: str) -> dict[str, Origin]:
    """The origins under `path`, as if it were the top."""
    return {key[len(path) + 1 :]: origin for key, origin in origins.items() if key.startswith(f"{path}.")}


def _arguments(base: dict[str, Any], origins: dict[str, Origin], arguments: Iterable[Any], findings: list[Finding]) -> None:
    """Lay ``a.b=c`` arguments over `base`, in order."""
    for argument in arguments:
        if not isinstance(argument, str):
            findings.append(Finding(f"{argument!r} is not a text key=value", "", str(argument), 'for example "parallel.tensor.size=4"'))
            continue
        place = (COMMAND_LINE + argument, None, None)
        path, equals, text = argument.partition("=")
        path = path.strip()
        keys = path.split(".")
        if not equals or not all(keys):
            hint = "write = instead of the full-width ＝ (U+FF1D)" if "＝" in argument else "for example parallel.tensor.size=4"
            findings.append(Finding(f"{argument!r} is not of the form key.key=value", path, argument, hint, *place))
            continue
        try:
            value = files.parse_value(text)
        except ScenarioError as error:
            findings.append(Finding(error.findings[0].message, path, text, "put the value in quotes", *place))
            continue
        tree: Any = value
        for key in reversed(keys):
            tree = {key: tree}
        places = {".".join(keys[: count + 1]): place for count in range(len(keys))}
        merge(base, origins, SettingsSource(tree, places, findings))


def _unchosen(base: Mapping[str, Any], sources: _Sources, chosen: Sequence[str], path: str) -> list[Finding]:
    """Problems that the overrides nobody chose would bring: a typo must not sleep until it is needed."""
    before = None
    findings: list[Finding] = []
    for name, partials in sources.named.items():
        if name in chosen:
            continue
        if before is None:
            before = {(finding.path, finding.message): None for finding in _problems(base)[0]}
        for partial, places in partials:
            tree: dict[str, Any] = copy.deepcopy(dict(base))
            origins: dict[str, Origin] = {}
            merge(tree, origins, SettingsSource(partial, places, findings))
            fresh = [finding for finding in _problems(tree)[0] if (finding.path, finding.message) not in before]
            findings += [finding.at(*(nearest(origins, finding.path) or (path, None, None))) for finding in fresh]
    return findings


def _problems(tree: Mapping[str, Any]) -> tuple[list[Finding], int]:
    """What the schema refuses and what is not supported yet, without places, and how many more problems there are."""
    # imported here: who only asks where files lie (`parsim list`) needs no schema
    from pydantic import ValidationError

    from parsim.scenario.node_groups import group_findings
    from parsim.scenario.problems import findings_of, unknown_key
    from parsim.scenario.schema import ScenarioSchema
    from parsim.scenario.support import unsupported

    findings: list[Finding] = []
    more = 0
    try:
        ScenarioSchema.model_validate(tree)
    except ValidationError as error:
        findings = findings_of(error)
        more = error.error_count() - len(findings)
    if not any(finding.path in ("cluster", "cluster.nodes") for finding in findings):
        findings += group_findings(tree)
    assumptions = tree.get("assumptions")
    if isinstance(assumptions, Mapping):
        more += max(0, len(assumptions) - MOST_PROBLEMS)
        findings += [unknown_key(f"assumptions.{name}", value) for name, value in islice(assumptions.items(), MOST_PROBLEMS)]
    holes = unfilled(tree)
    left = {finding.path: None for finding in holes}
    findings = holes + [finding for finding in findings if finding.path not in left]
    wrong = {finding.path: None for finding in findings}
    return findings + [finding for finding in unsupported(tree) if finding.path not in wrong], more


def _checked(
    written: dict[str, Any],
    origins: dict[str, Origin],
    source: str,
    findings: list[Finding],
    changes: tuple[str, ...] = (),
    *,
    trust_code: bool,
) -> Scenario:
    """The scenario of a merged tree, or every problem at once."""
    problems, more = _problems(written)
    if not trust_code:
        problems += [refusal(name, path, sealed=source == files.SEALED) for path, name in code_named(written).items()]
    problems += [
        finding for finding in unknown_names(written, origins, source) if all(finding.path != problem.path for problem in problems)
    ]
    findings = findings + [
        problem if problem.file else problem.at(*(nearest(origins, problem.path) or (source, None, None))) for problem in problems
    ]
    if findings:
        unique = dict.fromkeys((finding.file, finding.line, finding.column, finding.path, finding.message) for finding in findings)
        by_key = {(finding.file, finding.line, finding.column, finding.path, finding.message): finding for finding in findings}
        ordered = sorted((by_key[key] for key in unique), key=lambda finding: (finding.file, finding.line or 0, finding.column or 0))
        raise ScenarioError(ordered, more)
    from parsim.scenario.schema import ScenarioSchema

    settings = ScenarioSchema.model_validate(written)
    return Scenario(override, settings, filled(ScenarioSchema, written), written, origins, source, trust_code, changes)


def filled(model: type[BaseModel], written: Mapping[str, Any]) -> dict[str, Any]:
    """`written` with every default, in the order of the schema; a key that is `Silent` only where it says something else."""
    defaults = _defaults(model)
    return {
        name: _value(info, written[name]) if name in written else copied(defaults[name])
        for name, info in model.model_fields.items()
        if name in defaults or (name in written and written[name] != info.default)
    }


@cache
def _defaults(model: type[BaseModel]) -> Mapping[str, Any]:
    """What a section of the schema says where nobody wrote anything, without its `Silent` keys."""
    return {name: _default(info) for name, info in model.model_fields.items() if Silent() not in info.metadata}


def _value(info: FieldInfo, value: Any) -> Any:
    from pydantic import BaseModel

    if isinstance(value, Mapping) and isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
        return filled(info.annotation, value)
    return copy.deepcopy(value)


def _default(info: FieldInfo) -> Any:
    from pydantic import BaseModel

    value = info.default
    if isinstance(value, BaseModel):
        return filled(type(value), {})
    return list(value) if isinstance(value, tuple) else copy.deepcopy(value)


WHOLE = frozenset({"training.recompute"})
"""mappings that replace each other whole: their keys are alternatives"""
_KEEPS_NULL = ("model.", "cluster.set.", "assumptions.")
"""where null is a value, if there is nothing to delete"""


def merge(base: dict[str, Any], base_origins: dict[str, Origin], layer: SettingsSource) -> None:
    """Lay `layer` over `base`, in place."""
    _merge(base, base_origins, layer.tree, layer.origins, "")


def _merge(
    base: dict[str, Any], origins: dict[str, Origin], over: Mapping[str, Any], over_origins: Mapping[str, Origin], prefix: str
) -> None:
    for key, value in over.items():
        path = f"{prefix}{key}"
        if value is None and (key in base or not path.startswith(_KEEPS_NULL)):
            base.pop(key, None)
            _forget(origins, path)
            continue
        below = base.get(key)
        if isinstance(value, Mapping) and isinstance(below, str) and path in LATE_SCALAR:
            below = base[key] = {LATE_SCALAR[path]: below}
            if path in origins:
                origins[f"{path}.{LATE_SCALAR[path]}"] = origins[path]
        if isinstance(value, Mapping) and isinstance(below, str) and path == "cluster.topology" and "node" not in value:
            below = base[key] = box(below) or below
        searched = path == "parallel" and value == SEARCHED
        if isinstance(value, Mapping) and isinstance(below, dict) and path not in WHOLE and not searched:
            _merge(below, origins, value, over_origins, f"{path}.")
            if path in over_origins:
                origins.setdefault(path, over_origins[path])
            continue
        if key in base:
            _forget(origins, path)
        if isinstance(value, Mapping) and path not in WHOLE:
            base[key] = {}
            _merge(base[key], origins, value, over_origins, f"{path}.")
        else:
            base[key] = copy.deepcopy(value)
            if isinstance(value, (list, Mapping)):
                origins.update({name: origin for name, origin in over_origins.items() if name.startswith(f"{path}.")})
        if path in over_origins:
            origins[path] = over_origins[path]


def _forget(origins: dict[str, Origin], path: str) -> None:
    for name in [name for name in origins if name == path or name.startswith(f"{path}.")]:
        del origins[name]


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set a key of a plain tree by its path, making the mappings on the way."""
    *sections, last = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value

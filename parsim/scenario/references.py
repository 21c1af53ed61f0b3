"""What a scenario names instead of writing: models and topologies in other files."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parsim.columns import json_value
from parsim.errors import Finding, ScenarioError
from parsim.scenario import files
from parsim.scenario.files import Document
from parsim.scenario.shortforms import box
from parsim.scenario.sold import oversold
from parsim.scenario.trust import SCHEDULE, text_at
from parsim.scenario.yaml_tree import Origin, copied, nearest

_SLOT = re.compile(r"[FBIW][0-9]+\.[0-9]+|[0-9]+[FBIW][0-9]+")


def folder(origins: Mapping[str, Origin], path: str, source: str) -> str | None:
    """The file beside which relative paths under `path` are meant; None: the working directory (command line)."""
    if source == files.SEALED:
        return source
    origin = nearest(origins, path)
    if origin is not None and origin[1] is None:
        return None
    return (origin[0] if origin is not None else source) or None


def lookup(kind: str, relative_to: str | None, found: dict[str, Document] | None = None) -> Callable[[str], dict[str, Any]]:
    """A function from a name to its tree; a path inside a file that it returned is meant relative to that file.

    What was looked up is kept in `found`, by name.
    """
    beside = relative_to

    def of(name: str) -> dict[str, Any]:
        nonlocal beside
        document = files.read_referenced(kind, files.find(kind, name, beside))
        if relative_to != files.SEALED:
            beside = document.path
        if found is not None:
            found[name] = document
        return document.tree

    return of


def model_tree(model: str | Mapping[str, Any], relative_to: str | None) -> tuple[dict[str, Any], str, str | None]:
    """The model's tree, its name for reports, and the file its own paths are relative to."""
    if isinstance(model, Mapping):
        name = str(model.get("name") or (Path(str(model["base"])).stem if "base" in model else "model"))
        return copy.deepcopy(dict(model)), name, relative_to
    document = files.read_referenced("models", files.find("models", model, relative_to))
    path = Path(document.path)
    folder = path.parent.name.strip(".") or path.parent.resolve().name
    stem = (folder if path.name == "config.json" else "") or path.stem
    return document.tree, str(document.tree.get("name") or stem), document.path


def topology_document(topology: str | Mapping[str, Any], relative_to: str | None, option: str = "--on ") -> Document:
    """The topology's tree: of a file, of a box such as ``4x v100-32gb``, or as written.

    Raises `ScenarioError` where there is no such file, and for a box that is larger than any machine sold with its GPU; `option` is
    what the command line writes before a topology's name.
    """
    if isinstance(topology, Mapping):
        return Document(relative_to or "", copy.deepcopy(dict(topology)), {})
    short = box(topology)
    if short is not None:
        if (problem := oversold(short, relative_to, option)) is not None:
            raise ScenarioError(problem)
        return Document(relative_to or "", short, {})
    return files.read_referenced("topologies", files.find("topologies", topology, relative_to))


def beside(document: Document, relative_to: str | None) -> str | None:
    """The file beside which names are meant that stand in `document`, or change it; for a sealed text there is none."""
    return files.SEALED if relative_to == files.SEALED else document.path or relative_to


def unknown_names(written: Mapping[str, Any], origins: Mapping[str, Origin], source: str) -> list[Finding]:
    """Findings for models and topologies that cannot be found or read."""
    findings: list[Finding] = []
    model = written.get("model")
    cluster = written.get("cluster")
    topology = cluster.get("topology") if isinstance(cluster, Mapping) else None
    base = model.get("base") if isinstance(model, Mapping) else None
    checks = [
        ("model.base" if base is not None else "model", base if base is not None else model, "models"),
        ("cluster.topology", topology, "topologies"),
    ]
    nodes = cluster.get("nodes") if isinstance(cluster, Mapping) else None
    for number, group in enumerate(nodes if isinstance(nodes, list) else ()):
        if isinstance(group, Mapping):
            checks.append((f"cluster.nodes.{number}.use", group.get("use"), "topologies"))
    for path, name, kind in checks:
        if not isinstance(name, str) or not name.strip():
            continue
        short = box(name) if kind == "topologies" else None
        if short is not None:
            findings += [one] if (one := oversold(short, folder(origins, path, source))) is not None else []
            continue
        try:
            target = files.find(kind, name, folder(origins, path, source))
            if not files.is_shipped(target):
                files.read_referenced(kind, target)
        except ScenarioError as error:
            findings += [
                problem if problem.file else Finding(problem.message, path, name, problem.suggestion) for problem in error.findings
            ]
    schedule = text_at(written, SCHEDULE)
    if source == files.SEALED and not is_table(schedule) and re.search(r"[/\\.]", schedule):
        message = f"{schedule!r} names a file, and no files are read for this text"
        findings.append(Finding(message, SCHEDULE, schedule, "write the table itself, or the name of a schedule"))
    return findings


def reference_origins(written: Mapping[str, Any], origins: Mapping[str, Origin], source: str) -> dict[str, Mapping[str, Origin]]:
    """Where the keys of the user's own model and topology files stand, as ``model.*`` and ``cluster.topology.*`` paths."""
    places: dict[str, Mapping[str, Origin]] = {}
    model = written.get("model")
    path = "model"
    if isinstance(model, Mapping) and isinstance(model.get("base"), str):
        model, path = model["base"], "model.base"
    cluster = written.get("cluster")
    topology = cluster.get("topology") if isinstance(cluster, Mapping) else None
    try:
        if isinstance(model, str):
            places["model"] = _own_origins("models", model, folder(origins, path, source), "model")
        if isinstance(topology, str) and box(topology) is None:
            places["cluster"] = _own_origins("topologies", topology, folder(origins, "cluster.topology", source), "cluster.topology")
    except ScenarioError:
        return places
    return places


def _own_origins(kind: str, name: str, relative_to: str | None, prefix: str) -> dict[str, Origin]:
    """Places in the user's own file; a shipped one is not for the user to repair."""
    path = files.find(kind, name, relative_to)
    if files.is_shipped(path):
        return {}
    top: dict[str, Origin] = {prefix: (str(path), 1, 1)}
    return top | {f"{prefix}.{key}": origin for key, origin in files.read_referenced(kind, path).origins.items()}


def inline(tree: Mapping[str, Any], origins: Mapping[str, Origin], source: str) -> dict[str, Any]:
    """A copy of `tree` in which the user's own files are replaced by what they hold."""
    document: dict[str, Any] = copied(dict(tree))
    document["model"] = _inline_model(document["model"], folder(origins, "model", source))
    cluster = document["cluster"]
    if isinstance(cluster["nodes"], list):
        beside = folder(origins, "cluster.nodes", source)
        cluster["nodes"] = [{**group, "use": _inline_topology(group["use"], beside)} for group in cluster["nodes"]]
    else:
        cluster["topology"] = _inline_topology(cluster["topology"], folder(origins, "cluster.topology", source))
    pipeline = document["parallel"]["pipeline"]
    schedule = schedule_file(pipeline["schedule"], folder(origins, "parallel.pipeline.schedule", source))
    if schedule is not None:
        pipeline["schedule"] = str(schedule[0].resolve()) + schedule[1]
    data = document["parallel"]["data"]
    strategy = python_file(data["strategy"], folder(origins, "parallel.data.strategy", source)) if ".py:" in data["strategy"] else None
    if strategy is not None:
        data["strategy"] = str(strategy[0].resolve()) + strategy[1]
    for section in ("model", "cluster"):  # files may hold NaN where nobody reads a number: in remarks
        document[section] = json_value(document[section])
    return document


def python_file(reference: str, relative_to: str | None) -> tuple[Path, str] | None:
    """The file of ``FILE.py:NAME`` and ``:NAME``; None where there is no such file."""
    return schedule_file(reference, relative_to)


def is_table(schedule: str) -> bool:
    """Whether a schedule is written out in the scenario itself (several lines or slots)."""
    return "\n" in schedule.strip() or _SLOT.match(schedule.strip()) is not None


def schedule_file(schedule: str, relative_to: str | None) -> tuple[Path, str] | None:
    """The schedule file that `schedule` names and the ``:function`` behind it; None where it is the name of a schedule."""
    if relative_to == files.SEALED:
        return None
    file, colon, function = schedule.rpartition(":")
    if not colon or not file.endswith(".py"):
        file, colon, function = schedule, "", ""
    bases = [Path()]
    if relative_to is not None:
        bases.insert(0, Path(relative_to).parent)
    for base in bases:
        try:
            path = base / Path(file).expanduser()
            if path.is_file():
                return path, colon + function
        except (OSError, RuntimeError, ValueError):
            continue  # a text that no file can be called, such as a whole schedule
    return None


def _inline_model(model: Any, relative_to: str | None) -> Any:
    """A name for a shipped model, else its tree with every base that is the user's own file merged in."""
    if isinstance(model, str):
        path = files.find("models", model, relative_to)
        if files.is_shipped(path):
            return model
        return _inline_model({"name": model_tree(model, relative_to)[1], **files.read_referenced("models", path).tree}, str(path))
    if not isinstance(model, dict) or not isinstance(model.get("base"), str):
        return model
    path = files.find("models", model["base"], relative_to)
    if files.is_shipped(path):
        return model
    from parsim.model.huggingface import merged

    below = _inline_model(files.read_referenced("models", path).tree, str(path))
    changes = {key: value for key, value in model.items() if key != "base"}
    if "model_type" in below or "architectures" in below:
        return {**below, "changes": [*below.get("changes", ()), changes]}
    return merged(below, changes)


def _inline_topology(topology: Any, relative_to: str | None) -> Any:
    """A name or a box as it is, unless its file or its device is the user's own."""
    if isinstance(topology, dict):
        return _inline_devices(topology, relative_to)
    short = box(topology)
    if short is not None:
        whole = _inline_devices(short, relative_to)
        return whole if "devices" in whole else topology
    path = files.find("topologies", topology, relative_to)
    return topology if files.is_shipped(path) else _inline_devices(files.read_referenced("topologies", path).tree, str(path))


def _inline_devices(tree: dict[str, Any], relative_to: str | None) -> dict[str, Any]:
    """The topology with the user's own device files under ``devices``, where names are looked up first."""
    own = dict(tree.get("devices") or {})
    names: list[str] = []

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            for key, item in node.items():
                if key in ("device", "gpu"):
                    names.extend(name for name in ([item] if isinstance(item, str) else item or ()) if isinstance(name, str))
                else:
                    collect(item)
        elif isinstance(node, list):
            for item in node:
                collect(item)

    collect(tree)
    for name in names:
        if name in own:
            continue
        try:
            path = files.find("devices", name, relative_to)
        except ScenarioError:
            continue  # building the cluster says so
        if not files.is_shipped(path):
            own[name] = files.read_referenced("devices", path).tree
    return {**tree, "devices": own} if own else tree

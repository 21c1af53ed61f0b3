"""What one exporter has decided so far, key by key: said, said approximately, not sayable, refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parsim.errors import Finding, PlanError
from parsim.scenario.exporters.exported import Exported, Fate
from parsim.scenario.exporters.job import Job
from parsim.scenario.problems import sections
from parsim.scenario.scenario import flow
from parsim.scenario.schema import ScenarioSchema

SECTIONS = ("training", "parallel")
"""sections whose every key ends somewhere"""


class Draft:
    """Collects the fates of keys; nothing that the user changed may be left without one."""

    def __init__(self, job: Job, tool: str) -> None:
        self.job = job
        self.tool = tool
        """as its users call it"""
        self.keys: dict[str, Fate] = {}
        self.notes: list[Finding] = []
        self.refused: list[Finding] = []
        self.script: list[str] = []
        """calls of the training script that say what the target's file cannot"""
        self._changed = dict(changed(job))

    def says(self, path: str, text: str) -> str:
        """The target says `path` as `text`, which is handed back."""
        self.keys[path] = Fate("exported", text)
        return text

    def remarks(self, path: str, message: str) -> None:
        """The target says it only approximately: `message` says what differs."""
        self.notes.append(Finding(message, path, self.value(path)))

    def lacks(self, path: str, why: str) -> None:
        """The target's configuration has no such key; worth a note where the user changed it."""
        self.keys[path] = Fate("no counterpart", why)
        if path in self._changed:
            self.notes.append(Finding(f"no counterpart in {self.tool}: {why}", path, self._changed[path]))

    def scripted(self, path: str, text: str) -> str:
        """The training script says `path`, as `text` beside the target's file; `text` is handed back."""
        self.keys[path] = Fate("in the script", text)
        return text

    def refuses(self, path: str, why: str, suggestion: str) -> None:
        """The job cannot be run by this tool as it was simulated."""
        self.keys[path] = Fate("no counterpart", why)
        self.refused.append(Finding(f"{flow(self.value(path))}: {why}", path, self.value(path), suggestion))

    def value(self, path: str) -> Any:
        """The value of a key as the scenario spells it; None where there is none."""
        holder: Any = self.job.scenario.tree
        for key in path.split("."):
            if not isinstance(holder, dict) or key not in holder:
                return None
            holder = holder[key]
        return holder

    def exported(self, target: str, text: str, launch: str) -> Exported:
        """The result. Raises `PlanError` with everything that was refused."""
        if self.refused:
            raise PlanError(self.job.scenario.findings_at(self.refused))
        for path, value in self._changed.items():
            if path not in self.keys:  # a key of a later version: said, never dropped
                self.keys[path] = Fate("no counterpart", "not known to this exporter")
                self.notes.append(Finding(f"no counterpart in {self.tool}: not known to this exporter", path, value))
        return Exported(target, text, tuple(self.job.scenario.findings_at(self.notes)), self.keys, launch, tuple(self.script))


def leaves(*names: str) -> Iterator[str]:
    """Every key of these sections that holds a value, in the schema's order."""
    known = dict(sections(ScenarioSchema, ""))
    for section, kind in known.items():
        if section.partition(".")[0] in names:
            yield from (f"{section}.{key}" for key in kind.model_fields if f"{section}.{key}" not in known)


def changed(job: Job) -> Iterator[tuple[str, Any]]:
    """The keys of `SECTIONS` that are not at their defaults, with their values as the scenario spells them."""
    kinds = dict(sections(ScenarioSchema, ""))
    for path in leaves(*SECTIONS):
        section, _, key = path.rpartition(".")
        holder: Any = job.settings
        tree: Any = job.scenario.tree
        for part in section.split("."):
            holder, tree = getattr(holder, part), (tree or {}).get(part)
            if holder is None:
                break
        if holder is not None and (path == "training.finetune.method" or getattr(holder, key) != getattr(kinds[section](), key)):
            yield path, tree.get(key, getattr(holder, key))

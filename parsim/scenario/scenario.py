"""A scenario: what the user wrote, merged, checked, and with the place of every value."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from parsim.columns import left, printable, width
from parsim.errors import Finding, InputError
from parsim.scenario.files import parse_value, shown
from parsim.scenario.references import folder, inline, python_file, reference_origins
from parsim.scenario.shortforms import long_key
from parsim.scenario.trust import code_named
from parsim.scenario.yaml_tree import Origin, nearest

if TYPE_CHECKING:
    from parsim.scenario.schema import ScenarioSchema

_NAMED, _LONGEST = 4, 48
"""changes that a title names, and letters of one"""


@dataclass(frozen=True)
class Scenario:
    """A checked scenario. Equal scenarios have equal `hash`; two objects are compared by identity."""

    lay_over: Callable[[Scenario, tuple[str, ...]], Scenario] = field(repr=False)
    """what lays command-line arguments over a scenario: whoever made this one knows how it is merged and checked"""
    settings: ScenarioSchema
    """the typed sections, every default filled in, SI units"""
    tree: Mapping[str, Any]
    """canonical long form with every default, texts as written ("80 GiB")"""
    written: Mapping[str, Any]
    """the same, only what the user wrote"""
    origins: Mapping[str, Origin]
    """dotted key -> file (or command-line argument), line, column; keys at their defaults are absent"""
    source: str = ""
    """the scenario's file; empty for a mapping, `files.SEALED` for a text that may name no files"""
    trust_code: bool = False
    """whether the Python files that it names may run"""
    changes: tuple[str, ...] = ()
    """what was laid over the file when it was loaded: ``+OVERRIDE`` and ``key=value``, in order"""
    found: Mapping[str, Any] | None = None
    """the report's `plan`: what a search says of this strategy; None: it was written, not found"""
    _references: dict[str, Mapping[str, Origin]] = field(default_factory=dict, repr=False, compare=False)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def name(self) -> str:
        """What reports call it: its own name, and what was changed, since that may be what the name says."""
        return f"{self.settings.name}{changed(self.changes)}"

    @property
    def trusted_code(self) -> list[str]:
        """The Python files that run with it, as reports print paths."""
        if not self.trust_code:
            return []
        code = (python_file(name, folder(self.origins, path, self.source)) for path, name in code_named(self.tree).items())
        return list(dict.fromkeys(shown(file[0]) for file in code if file is not None))

    def locate(self, path: str) -> Origin:
        """File, line and column of `path`, or of the nearest written key above it."""
        return nearest(self.origins, path) or (self.source, None, None)

    def findings_at(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings with their places filled in; keys of the model or topology file point into that file."""
        return [finding if finding.file else self._placed(finding) for finding in findings]

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Give the findings of rooms that know no files their place in the user's."""
        try:
            yield
        except InputError as error:
            raise type(error)(self.findings_at(error.findings)) from error

    def _placed(self, finding: Finding) -> Finding:
        if not finding.path:
            return finding.at(self.source, None, None)
        if not self._references:
            self._references.update(reference_origins(self.written, self.origins, self.source))
        path = _INDEX.sub(r".\1", finding.path)
        below = nearest(self._references.get(path.partition(".")[0], {}), path)
        if below is not None and path not in self.origins:
            return finding.at(*below)
        return finding.at(*self.locate(path))

    def document(self) -> dict[str, Any]:
        """The resolved scenario as JSON-able data, self-contained: user's own model and topology files are inlined.

        ``load(scenario.document())`` gives the same scenario.
        """
        document = inline(self.tree, self.origins, self.source) | {"name": self.name}
        return {key: value for key, value in document.items() if key not in ("extends", "overrides", "study")}

    def with_overrides(self, *arguments: str) -> Scenario:
        """The scenario with command-line arguments (``parallel.tp=4``) on top. Raises `ScenarioError`."""
        return self.lay_over(self, arguments)

    def show(self, *, defaults: bool = False) -> str:
        """The merged scenario as YAML, each value with where it comes from; with `defaults` also what nobody wrote."""
        lines: list[tuple[str, str]] = []
        _show(self.tree if defaults else self.written, "", 0, self.origins, lines)
        widest = min(60, max((width(text) for text, comment in lines if comment), default=0))
        return "".join(f"{left(text, widest)}  # {comment}\n" if comment else f"{text}\n" for text, comment in lines)

    def hash(self) -> str:
        """SHA-256 of the resolved scenario without its name: equal for equal work."""
        document = {key: value for key, value in self.document().items() if key != "name"}
        return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def changed(changes: Iterable[str]) -> str:
    """`` (pipeline.schedule=1f1b, +large-batch)``: what a title says of changes; nothing where they name the scenario anew.

    Keys lose the section that they need not be told apart by; of many changes the first are named.
    """
    last = {long_key(change.partition("=")[0].strip()): change for change in changes}
    if not last or "name" in last:
        return ""
    words = [_short(change) for change in last.values()]
    more = [f"{len(words) - _NAMED} more"] if len(words) > _NAMED else []
    return f" ({', '.join([*words[:_NAMED], *more])})"


def _short(change: str) -> str:
    word = printable(change.removeprefix("parallel.").removeprefix("training."))
    return word if len(word) <= _LONGEST else f"{word[: _LONGEST - 1]}…"


def place_text(origin: Origin, name: Callable[[str], str] = shown) -> str:
    """``file:line`` or the command-line argument."""
    file, line, _ = origin
    return f"{name(file)}:{line}" if line is not None else file


def place_texts(origins: Mapping[str, Origin]) -> dict[str, str]:
    """The same for many keys of few files."""
    name = cache(shown)
    return {path: place_text(origin, name) for path, origin in origins.items()}


def _show(tree: Mapping[str, Any], prefix: str, depth: int, origins: Mapping[str, Origin], lines: list[tuple[str, str]]) -> None:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        label = "  " * depth + flow(key)
        if isinstance(value, Mapping) and value:
            lines.append((f"{label}:", ""))
            _show(value, f"{path}.", depth + 1, origins, lines)
            continue
        free = path.startswith(("model.", "cluster.topology.", "cluster.set."))
        origin = nearest(origins, path) if free else origins.get(path)
        lines.append((f"{label}: {flow(value)}", place_text(origin) if origin is not None else "default"))


_INDEX = re.compile(r"\[([0-9]+)\]")
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+ ()×%-]*")


def flow(value: Any) -> str:
    """One value in YAML flow style, quoted only where it must be."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) is not None and not value.endswith(" ")
        return value if plain and parse_value(value) == value else _quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return json.dumps(value)


def _quoted(text: str) -> str:
    """A double-quoted YAML scalar; what cannot be printed is escaped."""
    plain = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    return '"' + "".join(plain.get(letter) or (letter if letter.isprintable() else f"\\U{ord(letter):08x}") for letter in text) + '"'

"""Which scenarios a comparison is about, and what each is called (only what differs); and comparisons as files.

A file has a base scenario, named variants of it, and keys that take several values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario import files
from parsim.scenario.files import Document
from parsim.scenario.scenario import Scenario
from parsim.scenario.values import did_you_mean, shown
from parsim.study.axes import AxisValue, Partial, VariedKey, axes_of, combinations, label_of, nested
from parsim.study.variants import Source, Variant

MOST = 48
"""variants of one comparison; more are a sweep, and no table or picture of them can be read"""


@dataclass(frozen=True)
class Variants:
    """All scenarios of a comparison, in order."""

    all: tuple[Variant, ...]
    title: str
    stem: str
    """what its directory is called after"""
    baseline: str | None = None
    """label of the variant that differences are relative to, where a file says so"""


def variants(
    sources: Sequence[Source], arguments: Iterable[str] = (), *, named: Sequence[str] = (), labels: Sequence[str] = ()
) -> Variants:
    """The variants that `sources` and ``key=value`` `arguments` make, at least two and at most `MOST`.

    A source is a scenario (name, path, NAME+OVERRIDE, mapping, `Scenario`) or a comparison file. An argument with several
    values (``key=a,b``) multiplies all of them. `named` overrides hold for every scenario file; `labels` replace the labels.

    Raises:
        ScenarioError: a comparison file that cannot be read, too few or too many variants, labels that do not fit.
    """
    plain, axes = axes_of(arguments)
    groups = [_of_source(source, tuple(named)) for source in sources]
    _check_count(groups, axes)
    many = len(groups) > 1
    bases = _distinct([variant for group in groups for variant in group.all]) if many else list(groups[0].all) if groups else []
    listed = []
    for base in bases:
        for choices in combinations(axes):
            words = [base.label if many or len(bases) > 1 or not axes else "", *(choice.label for choice in choices)]
            extra = tuple(choice.argument for choice in choices)
            listed.append(replace(base, label=", ".join(filter(None, words)), arguments=(*plain, *extra)))
    listed = _numbered(_labelled(listed, labels))
    if len(listed) == 1:
        _refuse_single(listed[0])
    title = groups[0].title if not many else " vs ".join(dict.fromkeys(_shortest(group.title) for group in groups))
    stems = list(dict.fromkeys(group.stem for group in groups))
    stem = "-vs-".join(stems) if len(stems) <= 2 else f"{stems[0]}-and-{len(stems) - 1}-more"
    stem = stem.replace("/", "-").replace("\\", "-")  # names of overrides may have any letters
    return Variants(tuple(listed), title, stem, None if many else groups[0].baseline)


def _of_source(source: Source, named: tuple[str, ...]) -> Variants:
    """The variants of one source without the axes of the command line."""
    if isinstance(source, Scenario):
        return Variants((Variant(source, label=source.name),), source.settings.name, "scenario")
    if isinstance(source, Mapping):
        name = str(source.get("name", "scenario"))
        return Variants((Variant(source, (), named, label=name),), name, "scenario")
    word = str(source)
    if (path := _comparison(word)) is not None:
        return _of_file(read(path), named)
    file, blocks = _overridden(word)
    stem = Path(file).stem
    label = f"{stem}+{'+'.join(blocks)}" if blocks else stem
    return Variants((Variant(file, (), (*blocks, *named), label=label),), _title(file, label), label)


def _of_file(file: ComparisonFile, named: tuple[str, ...]) -> Variants:
    listed = []
    for entry in file.entries:
        source, blocks = _overridden(entry.base)
        for choices in combinations(file.axes):
            label = ", ".join(filter(None, (entry.label, *(choice.label for choice in choices))))
            partials = tuple(choice.partial for choice in choices if choice.partial is not None)
            listed.append(Variant(source or {}, (), (*blocks, *named), (*entry.partials, *partials), label=label))
    labels = [variant.label for variant in listed]
    if file.baseline is not None and file.baseline not in labels:
        place = files.read(file.path).locate("baseline")
        hint = did_you_mean(file.baseline, labels) or f"known: {'; '.join(labels)}"
        raise ScenarioError(Finding(f"no variant is called {file.baseline!r}", "baseline", file.baseline, hint, *place))
    return Variants(tuple(listed), file.name, file.path.stem, file.baseline)


def _comparison(word: str) -> Path | None:
    """The comparison file behind a word, if it is one; names of scenarios win."""
    if word in files.names("scenarios"):
        return None
    path = Path(word).expanduser()
    if path.suffix in (".yaml", ".yml", ".json"):
        return path if path.is_file() and is_comparison(path) else None
    return files.find("comparisons", word) if word in files.names("comparisons") else None


def _overridden(word: str) -> tuple[str, tuple[str, ...]]:
    """``NAME+OVERRIDE`` as NAME and its overrides; a file whose own name has a plus is that file."""
    if "+" not in word or files.exists(word):
        return word, ()
    file, *blocks = word.split("+")
    return file, tuple(blocks)


def _title(file: str, label: str) -> str:
    """What the scenario calls itself, where it can be read."""
    try:
        name = files.read(files.find("scenarios", file)).tree.get("name")
    except ScenarioError:
        name = None
    return name if isinstance(name, str) else label


def _shortest(title: str) -> str:
    return title if len(title) <= 60 else f"{title[:59]}…"


def _check_count(groups: Sequence[Variants], axes: Sequence[VariedKey]) -> None:
    """Refuse nothing at all, and more than `MOST`, with the arithmetic."""
    if not groups:
        message = "no scenario to compare"
        raise ScenarioError(Finding(message, suggestion="parsim compare A.yaml B.yaml, or FILE parallel.data.strategy=ddp,zero1"))
    bases = sum(len(group.all) for group in groups)
    total = bases * prod(len(axis.choices) for axis in axes)
    if total > MOST:
        factors = [f"{bases} scenario{'s' * (bases != 1)}", *(f"{len(axis.choices)} values of {axis.key}" for axis in axes)]
        message = f"{' x '.join(factors)} = {total:,} variants, at most {MOST} can be compared"
        raise ScenarioError(Finding(message, value=total, suggestion="give fewer values, or compare one key at a time"))


def _refuse_single(variant: Variant) -> None:
    """One scenario is no comparison; a name that nothing has is said first."""
    if isinstance(variant.source, str):
        try:
            files.find("scenarios", variant.source)
        except ScenarioError as error:
            known = [*files.names("comparisons"), *files.names("scenarios")]
            hint = did_you_mean(variant.source, known) or f"comparisons: {', '.join(files.names('comparisons'))}; scenarios: parsim list"
            first = error.findings[0]
            raise ScenarioError(Finding(first.message.replace("scenario", "scenario or comparison"), "", first.value, hint)) from None
    hint = "name another file, a comparison (parsim list comparisons), or give a key several values: training.micro_batch=1,2,4"
    raise ScenarioError(Finding("one scenario is no comparison", value=variant.label, suggestion=hint))


def _distinct(bases: list[Variant]) -> list[Variant]:
    """Labels without the words that all file names share at either end: ``llama-7b-ddp-8x-a100`` becomes ``ddp``."""
    if not all(isinstance(base.source, str) and base.label.startswith(Path(base.source).stem) for base in bases):
        return bases
    names = [Path(str(base.source)).stem for base in bases]
    if len(set(names)) < len({str(base.source) for base in bases}):
        names = [str(base.source) for base in bases]
    short = dict(zip(dict.fromkeys(names), _stripped(list(dict.fromkeys(names))), strict=True))
    own = [tuple(base.label.split("+")[1:]) for base in bases]
    renamed = []
    for base, name, blocks in zip(bases, names, own, strict=True):
        words = [short[name] if len(short) > 1 else "", "+".join(blocks)]
        if not blocks and any(other == name and block for other, block in zip(names, own, strict=True)):
            words[1] = "no override" if len(short) == 1 else ""
        renamed.append(replace(base, label="+".join(filter(None, words)) or name))
    return renamed


def _stripped(names: list[str]) -> list[str]:
    words = [name.split("-") for name in names]
    first = last = 0
    while all(len(one) > first and one[first] == words[0][first] for one in words):
        first += 1
    while all(len(one) > first + last and one[-1 - last] == words[0][-1 - last] for one in words):
        last += 1
    short = ["-".join(one[first : len(one) - last]) for one in words]
    return short if all(short) else names


def _labelled(listed: list[Variant], labels: Sequence[str]) -> list[Variant]:
    if not labels:
        return listed
    if len(labels) != len(listed):
        message = f"{len(labels)} labels for {len(listed)} variants"
        order = "; ".join(variant.label for variant in listed)
        raise ScenarioError(Finding(message, "--label", list(labels), f"one for each, in this order: {order}"))
    return [replace(variant, label=label) for variant, label in zip(listed, labels, strict=True)]


def _numbered(listed: Iterable[Variant]) -> list[Variant]:
    """Labels that occur twice get a number."""
    return list(_number(list(listed)))


def _number(listed: list[Variant]) -> Iterator[Variant]:
    seen: dict[str, int] = {}
    labels = [variant.label for variant in listed]
    for variant in listed:
        count = seen[variant.label] = seen.get(variant.label, 0) + 1
        yield replace(variant, label=f"{variant.label} ({count})") if labels.count(variant.label) > 1 else variant


KEYS = ("name", "base", "baseline", "variants", "vary")
MARKS = ("variants", "vary")
"""a file with one of these keys at its top is a comparison"""
_NOT_HERE = ("extends", "overrides")


@dataclass(frozen=True)
class FileVariant:
    """One line of ``variants``: a scenario, and what changes in it."""

    label: str
    base: str
    """name or path, with ``+NAME`` for a named override; empty: all that there is, is in `partials`"""
    partials: tuple[Partial, ...] = ()


@dataclass(frozen=True)
class ComparisonFile:
    """What a comparison file says."""

    path: Path
    name: str
    baseline: str | None
    entries: tuple[FileVariant, ...]
    axes: tuple[VariedKey, ...]


def is_comparison(path: Path) -> bool:
    """Whether the file can be read and is a comparison."""
    try:
        return any(key in files.read(path).tree for key in MARKS)
    except ScenarioError:
        return False


def read(path: Path) -> ComparisonFile:
    """The comparison in a file.

    Raises:
        ScenarioError: all problems of the file's own keys; what the scenarios say is checked when they are loaded.
    """
    document = files.read(path)
    reader = _ComparisonReader(document)
    comparison = reader.comparison()
    if reader.findings:
        raise ScenarioError(reader.findings)
    return comparison


class _ComparisonReader:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.tree = document.tree
        self.findings: list[Finding] = []

    def problem(self, key: str, message: str, value: Any = None, suggestion: str = "") -> None:
        self.findings.append(Finding(message, key, value, suggestion, *self.document.locate(key)))

    def comparison(self) -> ComparisonFile:
        for key, value in self.tree.items():
            if key not in KEYS:
                self.problem(key, "unknown key of a comparison", value, did_you_mean(key, KEYS) or f"known: {', '.join(KEYS)}")
        path = Path(self.document.path)
        name = self.text("name") or path.stem
        variants = self.mapping("variants")
        base, shared = self.base("base") if "base" in self.tree else ("", None)
        entries = [self.entry(str(label), change, base, shared) for label, change in variants.items()]
        if not variants:
            if "base" not in self.tree:
                self.problem("base", "is missing", None, "name a scenario: base: llama-7b-ddp-8x-a100")
            entries = [FileVariant("", base, () if shared is None else (shared,))]
        vary = self.mapping("vary")
        axes = tuple(axis for key, values in vary.items() if (axis := self.axis(str(key), values, list(map(str, vary)))) is not None)
        return ComparisonFile(path, name, self.text("baseline"), tuple(entries), axes)

    def text(self, key: str) -> str | None:
        value = self.tree.get(key)
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        self.problem(key, f"{shown(value)} is not a text", value)
        return None

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.tree.get(key)
        if value is None:
            return {}
        if isinstance(value, Mapping) and value:
            return value
        example = "write LABEL: {key: value}" if key == "variants" else "write parallel.data.strategy: [ddp, zero1]"
        self.problem(key, f"{shown(value)} is not a mapping", value, example)
        return {}

    def base(self, key: str, holder: Mapping[str, Any] | None = None) -> tuple[str, Partial | None]:
        """The scenario under `key`: its name, and what a mapping lays over what it extends (nothing: it is the scenario itself)."""
        value = (self.tree if holder is None else holder)["base"]
        if isinstance(value, Mapping):
            rest = {name: item for name, item in value.items() if name != "extends"}
            name = self.scenario(f"{key}.extends", value["extends"]) if "extends" in value else ""
            return name, (rest, self.below(key))
        return self.scenario(key, value), None

    def scenario(self, key: str, value: Any) -> str:
        """The name of a scenario, or its path from here; with ``+NAME`` for a named override."""
        if not isinstance(value, str) or not value.strip():
            self.problem(key, f"{shown(value)} is no scenario", value, "write a name, a path, NAME+OVERRIDE, or a mapping")
            return ""
        name, plus, block = value.partition("+")
        try:
            path = files.find("scenarios", name, self.document.path)
        except ScenarioError as error:
            self.problem(key, error.findings[0].message, value, error.findings[0].suggestion)
            return ""
        return f"{path.stem if files.is_shipped(path) else path}{plus}{block}"

    def entry(self, label: str, change: Any, base: str, shared: Partial | None) -> FileVariant:
        key = f"variants.{label}"
        if change is None:
            change = {}
        if not isinstance(change, Mapping):
            self.problem(key, f"{shown(change)} is not a mapping of changes", change, "write {key: value}")
            return FileVariant(label, base)
        for word in _NOT_HERE:
            if word in change:
                self.problem(f"{key}.{word}", "has no meaning in a variant", change[word], "write base: NAME or base: NAME+OVERRIDE")
        if "base" in change:
            base, shared = self.base(f"{key}.base", change)
        elif "base" not in self.tree:
            self.problem(key, "has no scenario to change", None, "write base: NAME here or at the top of the file")
        rest = {name: value for name, value in change.items() if name not in ("base", *_NOT_HERE)}
        partials = [] if shared is None else [shared]
        return FileVariant(label, base, (*partials, (rest, self.below(key))))

    def axis(self, key: str, values: Any, keys: list[str]) -> VariedKey | None:
        place = f"vary.{key}"
        if isinstance(values, Mapping) and len(values) > 1:
            return VariedKey(
                key,
                tuple(
                    AxisValue(str(label), partial=nested(key, value, self.document.origins, f"{place}.{label}"))
                    for label, value in values.items()
                ),
            )
        if isinstance(values, list) and len(values) > 1:
            return VariedKey(
                key,
                tuple(
                    AxisValue(label_of(key, value, keys), partial=nested(key, value, self.document.origins, f"{place}.{number}"))
                    for number, value in enumerate(values)
                ),
            )
        self.problem(place, "takes at least two values", values, "write a list, or a mapping LABEL: value")
        return None

    def below(self, key: str) -> dict[str, Any]:
        """The places of the keys under `key`, as if it were the top."""
        return {path[len(key) + 1 :]: place for path, place in self.document.origins.items() if path.startswith(f"{key}.")}

"""Which scenarios a comparison is about, and what each is called: only what differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario import files
from parsim.scenario.load import load
from parsim.scenario.scenario import Scenario
from parsim.scenario.values import did_you_mean
from parsim.study import comparison_file
from parsim.study.axes import Axis, Partial, axes_of, combinations

MOST = 48
"""variants of one comparison; more are a sweep, and no table or picture of them can be read"""

Source = str | Path | Mapping[str, Any] | Scenario


@dataclass(frozen=True)
class Variant:
    """One scenario of a comparison, not loaded yet."""

    label: str
    source: Source
    named: tuple[str, ...] = ()
    partials: tuple[Partial, ...] = ()
    arguments: tuple[str, ...] = ()
    trust_code: bool = False
    """whether the Python files that the scenario names may run, in whatever process"""

    def scenario(self) -> Scenario:
        """Load it.

        Raises:
            ScenarioError: all problems.
        """
        if isinstance(self.source, Scenario):
            source = replace(self.source, trust_code=self.trust_code or self.source.trust_code)
            return source.with_overrides(*self.arguments) if self.arguments else source
        return load(self.source, *self.arguments, named=self.named, partials=self.partials, trust_code=self.trust_code)


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
    found = []
    for base in bases:
        for choices in combinations(axes):
            words = [base.label if many or len(bases) > 1 or not axes else "", *(choice.label for choice in choices)]
            extra = tuple(choice.argument for choice in choices)
            found.append(replace(base, label=", ".join(filter(None, words)), arguments=(*plain, *extra)))
    found = _numbered(_labelled(found, labels))
    if len(found) == 1:
        _refuse_single(found[0])
    title = groups[0].title if not many else " vs ".join(dict.fromkeys(_shortest(group.title) for group in groups))
    stems = list(dict.fromkeys(group.stem for group in groups))
    stem = "-vs-".join(stems) if len(stems) <= 2 else f"{stems[0]}-and-{len(stems) - 1}-more"
    stem = stem.replace("/", "-").replace("\\", "-")  # names of overrides may have any letters
    return Variants(tuple(found), title, stem, None if many else groups[0].baseline)


def _of_source(source: Source, named: tuple[str, ...]) -> Variants:
    """The variants of one source without the axes of the command line."""
    if isinstance(source, Scenario):
        return Variants((Variant(source.name, source),), source.settings.name, "scenario")
    if isinstance(source, Mapping):
        name = str(source.get("name", "scenario"))
        return Variants((Variant(name, source, named),), name, "scenario")
    word = str(source)
    if (path := _comparison(word)) is not None:
        return _of_file(comparison_file.read(path), named)
    file, blocks = _overridden(word)
    stem = Path(file).stem
    label = f"{stem}+{'+'.join(blocks)}" if blocks else stem
    return Variants((Variant(label, file, (*blocks, *named)),), _title(file, label), label)


def _of_file(file: comparison_file.ComparisonFile, named: tuple[str, ...]) -> Variants:
    found = []
    for entry in file.entries:
        source, blocks = _overridden(entry.base)
        for choices in combinations(file.axes):
            label = ", ".join(filter(None, (entry.label, *(choice.label for choice in choices))))
            partials = tuple(choice.partial for choice in choices if choice.partial is not None)
            found.append(Variant(label, source or {}, (*blocks, *named), (*entry.partials, *partials)))
    labels = [variant.label for variant in found]
    if file.baseline is not None and file.baseline not in labels:
        place = files.read(file.path).locate("baseline")
        hint = did_you_mean(file.baseline, labels) or f"known: {'; '.join(labels)}"
        raise ScenarioError(Finding(f"no variant is called {file.baseline!r}", "baseline", file.baseline, hint, *place))
    return Variants(tuple(found), file.name, file.path.stem, file.baseline)


def _comparison(word: str) -> Path | None:
    """The comparison file behind a word, if it is one; names of scenarios win."""
    if word in files.names("scenarios"):
        return None
    path = Path(word).expanduser()
    if path.suffix in (".yaml", ".yml", ".json"):
        return path if path.is_file() and comparison_file.is_comparison(path) else None
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


def _check_count(groups: Sequence[Variants], axes: Sequence[Axis]) -> None:
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
            found = error.findings[0]
            raise ScenarioError(Finding(found.message.replace("scenario", "scenario or comparison"), "", found.value, hint)) from None
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


def _labelled(found: list[Variant], labels: Sequence[str]) -> list[Variant]:
    if not labels:
        return found
    if len(labels) != len(found):
        message = f"{len(labels)} labels for {len(found)} variants"
        order = "; ".join(variant.label for variant in found)
        raise ScenarioError(Finding(message, "--label", list(labels), f"one for each, in this order: {order}"))
    return [replace(variant, label=label) for variant, label in zip(found, labels, strict=True)]


def _numbered(found: Iterable[Variant]) -> list[Variant]:
    """Labels that occur twice get a number."""
    return list(_number(list(found)))


def _number(found: list[Variant]) -> Iterator[Variant]:
    seen: dict[str, int] = {}
    labels = [variant.label for variant in found]
    for variant in found:
        count = seen[variant.label] = seen.get(variant.label, 0) + 1
        yield replace(variant, label=f"{variant.label} ({count})") if labels.count(variant.label) > 1 else variant

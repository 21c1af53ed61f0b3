"""The whole scenario as typed sections: every key, its default and its text; and the keys by their dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import BaseModel, Field

from parsim.scenario.economics import EconomicsSection
from parsim.scenario.machine import ClusterSection, SoftwareSection
from parsim.scenario.parallel import ParallelSection
from parsim.scenario.shortforms import SHORT, SYNONYMS, ZERO, long_key
from parsim.scenario.training import TrainingSection
from parsim.scenario.values import Anything, Choice, Flag, Kind, ListOf, Section, Text, Whole
from parsim.scenario.variability import VariabilitySection

FLOP_CONVENTIONS = ("palm", "llm-foundry", "6n", "6n-non-embedding", "megatron", "megatron-lm", "exact", "exact-full")


class ReportSection(Section):
    """What the report counts and shows."""

    flop_convention: Annotated[str, Choice(FLOP_CONVENTIONS)] = "palm"
    """how model FLOPs are counted for MFU"""
    fold: Annotated[bool, Flag()] = True
    """equal ranks are simulated once"""
    ranks: Annotated[Any, ListOf(Whole(0, 10**7), ("auto",), filled=True)] = "auto"
    """ranks shown in timelines; auto = one per stage"""


class ScenarioSchema(Section):
    """A scenario: a model, a cluster, a training recipe and a parallel strategy."""

    name: Annotated[str, Text("GPT-3 175B on 1,024 A100")]
    """what reports call it; the file name by default"""
    extends: Annotated[Any, ListOf(Text("base.yaml"))] = ()
    """scenario files that this one changes"""
    overrides: Annotated[dict[str, Any], Anything((dict,), "a mapping of NAME: changes")] = Field(default={})
    """named changes, chosen with --override NAME"""
    study: Annotated[dict[str, Any], Anything((dict,), "a mapping of axes, where, minimise, ...")] = Field(default={})
    """a study of this scenario, for parsim sweep; nothing else reads it"""
    model: Annotated[Any, Anything((str, dict), "a model name, a path, or a mapping")]
    """catalogue name, Hub id, path of a model YAML or config.json, or a mapping such as {base: gpt3-175b, layers: 48}"""
    training: TrainingSection
    """the training recipe"""
    parallel: ParallelSection = ParallelSection()
    """the parallel strategy"""
    cluster: ClusterSection
    """the machine"""
    software: SoftwareSection = SoftwareSection()
    """the training stack"""
    variability: VariabilitySection = VariabilitySection()
    """what differs from a perfect machine"""
    economics: EconomicsSection = EconomicsSection()
    """prices, power and failures"""
    report: ReportSection = ReportSection()
    """what the report counts and shows"""
    assumptions: Annotated[dict[str, Any], Anything((dict,), "a mapping of assumption names to values")] = Field(default={})
    """values of named assumptions, by the names the report prints"""


FREE = ("model", "cluster.topology", "cluster.set", "assumptions")
"""keys below these are those of other files"""
_NO_LEAVES = ("name", "extends", "overrides", "study")


@cache
def known_keys() -> dict[str, tuple[str, ...]]:
    """Section path ("" at the top) -> its keys, short forms included."""
    keys: dict[str, tuple[str, ...]] = {}
    for section, model in sections(ScenarioSchema, ""):
        short = tuple(name.rpartition(".")[2] for name in SHORT if name.rpartition(".")[0] == section)
        keys[section] = (*(info.alias or name for name, info in model.model_fields.items()), *short)
    return keys


def sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section of the schema with its path, outermost first; sections in lists are not entered."""
    yield path, model
    for name, info in model.model_fields.items():
        candidates = (info.annotation, *get_args(info.annotation))
        for kind in candidates:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from sections(kind, f"{path}.{name}" if path else name)


@cache
def leaves() -> Mapping[str, Kind]:
    """Long key -> the kind of its values, in the order of the schema; keys of other files are not in it (`FREE`)."""
    kinds: dict[str, Kind] = {}
    for section, model in sections(ScenarioSchema, ""):
        for name, info in model.model_fields.items():
            path = f"{section}.{name}" if section else info.alias or name
            kind = next((item for item in info.metadata if isinstance(item, Kind)), None)
            if kind is not None and path not in _NO_LEAVES:
                kinds[path] = kind
    return kinds


def is_key(key: str) -> bool:
    """Whether a scenario may have a value under `key`: a leaf, a section, or anything below a free part."""
    section, _, last = key.rpartition(".")
    return last in known_keys().get(section, ()) or any(key.startswith(f"{free}.") for free in FREE)


def value_at(tree: Mapping[str, Any], key: str) -> Any:
    """What `tree` has under a dotted key; None where it has nothing."""
    value: Any = tree
    for word in key.split("."):
        if not isinstance(value, Mapping) or word not in value:
            return None
        value = value[word]
    return value


def canonical(key: str, value: Any) -> tuple[str, Any]:
    """Long key and value of what may be written short: ``parallel.zero`` with 3 is ``parallel.data.strategy`` with zero3."""
    if key == "parallel.zero":
        value = ZERO.get(value, value) if isinstance(value, int) and not isinstance(value, bool) else value
    key = long_key(key)
    for word, meant in SYNONYMS.get(key, {}).items():
        if type(word) is type(value) and word == value:
            return key, meant
    return key, value

"""The whole scenario as typed sections; every key, its default and its text."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from parsim.scenario.economics import EconomicsSection
from parsim.scenario.machine import ClusterSection, SoftwareSection, VariabilitySection
from parsim.scenario.parallel import ParallelSection
from parsim.scenario.section import Section
from parsim.scenario.training import TrainingSection
from parsim.scenario.values import Anything, Choice, Flag, ListOf, Text, Whole

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

"""The words of constraints: leaves of the scenario, what follows from it without a simulation, and figures of the report."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Literal

from parsim.errors import InputError
from parsim.report.short_names import named
from parsim.scenario.batch import resolve_batch
from parsim.scenario.build_machine import machine
from parsim.scenario.scenario import Scenario
from parsim.scenario.schema import FREE, is_key, leaves
from parsim.scenario.shortforms import SHORT, long_key
from parsim.scenario.values import Choice, Flag, Kind, Number, Quantity, Text, Whole
from parsim.study.sweep.metrics import ALIASES, NAMED, NUMBER, OF_UNITS, Dimension


class Stage(IntEnum):
    """When a word has a value."""

    WRITTEN = 0
    """it stands in the scenario"""
    KNOWN = 1
    """it follows from the scenario: nothing has to be simulated"""
    SIMULATED = 2
    """the report says it"""


Sort = Dimension | Literal["flag", "text", "any"]
"""what a word or an expression is: a number that measures something, yes or no, a text, or whatever the file says"""


@dataclass(frozen=True)
class Word:
    """A name that a constraint may use."""

    name: str
    sort: Sort
    stage: Stage
    leaf: Kind | None = None
    """how the scenario's value is read"""
    factor: float = 1.0
    """base units in one unit of the report's column"""
    unit: str = ""


class UnknownWord(ValueError):  # noqa: N818 - a word, not an error of ours
    """Nothing, or too much, is called so; the second argument says what to write."""


def find(text: str) -> Word:
    """The word called `text`: a metric, a fact, or a leaf by as many of its last words as tell it from the others.

    Raises:
        UnknownWord: nothing is called so, or several leaves are.
    """
    name = ALIASES.get(text, text)
    if name in FACTS:
        return Word(name, NUMBER, Stage.KNOWN)
    if text not in leaves() and text not in _by_ending():
        name = named(text, NAMED, ALIASES) or name
    if name in NAMED:
        metric = NAMED[name]
        sort: Sort = "flag" if name == "fits" else metric.dimension
        return Word(name, sort, Stage.SIMULATED, None, metric.factor, metric.unit)
    return _leaf(text)


def key_of(text: str) -> str:
    """The full long key that `text` names. Raises `UnknownWord`."""
    return _leaf(text).name


def _leaf(text: str) -> Word:
    known = leaves()
    full = long_key(text)
    if full in known:
        return Word(full, _sort(known[full]), Stage.WRITTEN, known[full])
    if is_key(full) and (full.startswith(tuple(f"{free}." for free in FREE)) or full in FREE):
        return Word(full, "any", Stage.WRITTEN)
    matches = _by_ending().get(text, ())
    if len(matches) == 1:
        return Word(matches[0], _sort(known[matches[0]]), Stage.WRITTEN, known[matches[0]])
    if matches:
        raise UnknownWord(f"{text!r} may be {' or '.join(matches)}", "write the longer name")
    raise UnknownWord(f"unknown word {text!r}", _nearest(text))


@cache
def _by_ending() -> dict[str, tuple[str, ...]]:
    """Every ending of a leaf's key, short forms included -> the keys that end so."""
    keys_by_ending: dict[str, list[str]] = {}
    for key in leaves():
        words = key.split(".")
        for first in range(1, len(words)):
            keys_by_ending.setdefault(".".join(words[first:]), []).append(key)
    for short, long in SHORT.items():
        if long in leaves():
            keys_by_ending.setdefault(short.rpartition(".")[2], []).append(long)
    return {ending: tuple(keys) for ending, keys in keys_by_ending.items()}


def _sort(kind: Kind) -> Sort:
    match kind:
        case Quantity():
            return OF_UNITS[kind.dimension]
        case Whole() | Number():
            return NUMBER
        case Flag():
            return "flag"
        case Choice() | Text():
            return "text"
    return "any"


def _nearest(text: str) -> str:
    known = [*FACTS, *NAMED, *ALIASES, *leaves(), *_by_ending()]
    close = difflib.get_close_matches(text, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known are figures of the report (parsim explain), keys of the scenario, and " + ", ".join(FACTS)


FACTS = {
    "gpus": "GPUs that the job uses",
    "gpus_per_node": "GPUs of a node",
    "nodes": "nodes that hold at least one GPU of the job",
    "data_size": "replicas of the model",
    "micro_batches": "micro-batches of one replica per step",
}
"""name -> what it is"""


class Machines:
    """The sizes of machines, each looked at once."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, float]] = {}

    def facts(self, scenario: Scenario) -> dict[str, float]:
        """What is known of `FACTS`; what cannot be built leaves them out (the simulation says why)."""
        facts = dict(self._machine(scenario))
        if "gpus" in facts and (data := _data_size(scenario, int(facts["gpus"]))):
            facts["data_size"] = data
            if (count := _micro_batches(scenario, data)) is not None:
                facts["micro_batches"] = count
        return facts

    def gpus(self, scenario: Scenario) -> int:
        """GPUs that the job uses. Raises InputError where the machine cannot be built."""
        sizes = self._machine(scenario)
        if "gpus" not in sizes:
            machine(scenario)  # raises what is wrong with it
        return int(sizes["gpus"])

    def _machine(self, scenario: Scenario) -> Mapping[str, float]:
        word = json.dumps(scenario.tree["cluster"], sort_keys=True, default=str)
        if word not in self._known:
            try:
                cluster, gpus = machine(scenario)
            except InputError:
                self._known[word] = {}
            else:
                used = len(dict.fromkeys(cluster.node_of(gpu) for gpu in gpus))
                self._known[word] = {"gpus": len(gpus), "gpus_per_node": cluster.installed_gpus // cluster.nodes, "nodes": used}
        return self._known[word]


def _data_size(scenario: Scenario, gpus: int) -> int | None:
    """Replicas; None where the sizes do not multiply to the GPUs (building the scenario says so)."""
    parallel = scenario.settings.parallel
    model = parallel.tensor.size * parallel.pipeline.size * parallel.context.size
    data = gpus // model if parallel.data.size == "auto" else int(parallel.data.size)
    return data if data and model * data == gpus else None


def _micro_batches(scenario: Scenario, data: int) -> int | None:
    training = scenario.settings.training
    try:
        return resolve_batch(training, data, sequence=training.sequence_length is not None).micro_batches
    except InputError:
        return None

"""``parallel: auto``: the fastest strategy is searched for before the step, and the step is that strategy's.

What the scenario says beside it is kept: a key that a search varies has the one value that is written, every other key holds for all
candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from parsim.errors import Finding, InputError, ScenarioError
from parsim.report.report import Report
from parsim.run import loaded, reported
from parsim.scenario.build import build
from parsim.scenario.scenario import Scenario, flow
from parsim.scenario.schema import value_at
from parsim.study.search.lattice import divisors
from parsim.study.size.question import SizeQuestion
from parsim.study.sweep.vocabulary import Machines

WITHIN = 120.0
"""how long a search for ``parallel: auto`` may take [s]; nearly all end long before, and then the answer does not depend on it"""
VARIED: Mapping[str, str] = {
    "parallel.tensor.size": "tensor",
    "parallel.tensor.sequence_parallel": "sequence_parallel",
    "parallel.pipeline.size": "pipeline",
    "parallel.pipeline.schedule": "schedule",
    "parallel.pipeline.virtual_stages": "virtual_stages",
    "parallel.data.size": "data",
    "parallel.data.strategy": "strategy",
    "parallel.expert.size": "expert",
    "training.micro_batch": "micro_batch",
    "training.recompute": "recompute",
}
"""key that a search varies -> its name in `Ranges`"""
STACK = SizeQuestion.software
"""the software profile of all candidates of a search over a transformer, where the scenario leaves it open; `parsim size` has the same"""
_OTHER_STACKS = ("zero2", "zero3", "none")
"""strategies that are not run with it: one of them is written, so the profile follows the strategy"""
_PLAIN = "parallel.search=null"
_FIRST_BUILDS = 40
"""layouts that are tried until the scenario can be built with one"""


def simulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *overrides: str,
    unfolded: bool = False,
    trust_code: bool = False,
    slow_gpu: float | None = None,
) -> Report:
    """Simulate one training step of a scenario (or of the file or tree it is in, with ``a.b=c`` overrides).

    With ``parallel: auto`` the fastest strategy that fits is searched for first, and the report's ``plan`` says what was found.
    `unfolded` simulates every rank instead of one per class of equal ranks. `trust_code` lets the Python files run that the scenario
    names (a strategy or a schedule of your own); they can do whatever you can. `slow_gpu` asks what one GPU at this share of its speed
    costs. Raises `ParsimError` subclasses: an
    `InputError` with all findings for a scenario that cannot be simulated, `DeadlockError` for a program that stops.
    """
    return reported(decided(loaded(scenario, overrides, trust_code=trust_code)), unfolded=unfolded, slow_gpu=slow_gpu)


def decided(scenario: Scenario, *, within: float = WITHIN, **search: Any) -> Scenario:
    """The scenario with the strategy that a search finds; as it is where it says its own.

    `within` is how long the search may take [s]; `search` are further options of `best_strategy.search`.

    Raises:
        ScenarioError: no strategy fits, or none was found in time, or the scenario cannot be searched.
        KeyboardInterrupt: the user ended the search.
    """
    if scenario.settings.parallel.search == "none":
        return scenario
    from parsim.study.best_strategy import search as best
    from parsim.study.best_strategy_text import record

    found = best(scenario, within=within, **search)
    if found.interrupted:
        raise KeyboardInterrupt
    return replace(found.scenario, changes=scenario.changes, found=record(found))


def question(scenario: Scenario) -> tuple[Scenario, dict[str, Any]]:
    """The scenario without ``parallel: auto``, and the written values of what a search varies, by their names in `Ranges`.

    A scenario that says its own strategy is the question which one is best; then nothing of it is kept.

    Raises:
        ScenarioError: what is written beside ``parallel: auto`` cannot be kept.
    """
    if scenario.settings.parallel.search == "none":
        return _one_stack(scenario, {}), {}
    _refuse(scenario)
    written = {name: value_at(scenario.written, key) for key, name in VARIED.items()}
    kept: dict[str, Any] = {name: (value,) for name, value in written.items() if value not in (None, "auto")}
    stages = kept.get("virtual_stages", ())
    if stages and "schedule" not in kept:
        kept["schedule"] = ("interleaved",) if stages[0] > 1 else ("1f1b", "gpipe")
    asked = scenario.with_overrides(_PLAIN)
    origins = {key: origin for key, origin in asked.origins.items() if not origin[0].endswith(_PLAIN)}
    return _one_stack(replace(asked, changes=scenario.changes, origins=origins), kept), kept


def _one_stack(scenario: Scenario, kept: Mapping[str, Sequence[Any]]) -> Scenario:
    """The scenario with one software profile for all candidates: strategies are compared, not the stacks that usually run them.

    A written profile stays. Where `STACK` does not run the job (offload, fine-tuning, no transformer), ``auto`` stays: the profile follows
    the strategy of each candidate.
    """
    training = scenario.settings.training
    elsewhere = training.offload.optimizer != "none" or training.finetune is not None or set(kept.get("strategy", ())) & {*_OTHER_STACKS}
    if scenario.settings.software.profile != "auto" or elsewhere:
        return scenario
    if not build(starting_point(scenario, kept)).model.heads:
        return scenario
    return replace(scenario.with_overrides(f"software.profile={STACK}"), changes=scenario.changes)


def _refuse(scenario: Scenario) -> None:
    """Raise `ScenarioError` for keys that cannot stand beside ``parallel: auto``."""
    training, parallel = scenario.settings.training, scenario.settings.parallel
    findings = []
    if training.global_batch is None:
        text = "required with parallel: auto: the number of replicas is not known before"
        findings.append(Finding(text, "training.global_batch", None, "write the samples of a step, of the whole job"))
    if training.gradient_accumulation != "auto":
        text = "follows from the strategy that is found"
        hint = "leave it out; training.global_batch and training.micro_batch may be written"
        findings.append(Finding(text, "training.gradient_accumulation", training.gradient_accumulation, hint))
    if parallel.context.size > 1:
        text = "not supported yet: a search with context parallelism"
        findings.append(Finding(text, "parallel.context.size", parallel.context.size, "write the whole strategy, or leave it out"))
    if parallel.data.shard_size != "auto":
        text = "not supported yet: a search with shards of a given size"
        findings.append(Finding(text, "parallel.data.shard_size", parallel.data.shard_size, "write the whole strategy, or leave it out"))
    if findings:
        raise ScenarioError(scenario.findings_at(findings))


def starting_point(scenario: Scenario, kept: Mapping[str, Sequence[Any]]) -> Scenario:
    """The scenario with any strategy with which it can be built: candidates are laid over it.

    Raises:
        InputError: it cannot be built with any; the findings are those of the first.
    """
    first: InputError | None = None
    for overrides in _layouts(scenario, kept):
        one = scenario.with_overrides(*overrides) if overrides else scenario
        try:
            build(one)
        except InputError as error:
            first = first or error
        else:
            return one
    raise first or ScenarioError("the scenario cannot be built with any strategy")


def _layouts(scenario: Scenario, kept: Mapping[str, Sequence[Any]]) -> list[tuple[str, ...]]:
    """The written strategy, then plain ones, those with most replicas first."""
    gpus = Machines().gpus(scenario)
    tensors, pipelines = (kept.get(name) or divisors(gpus) for name in ("tensor", "pipeline"))
    sizes = sorted((t * p, p, t) for t, p in product(tensors, pipelines) if gpus % (t * p) == 0)
    micro_batch = kept.get("micro_batch", (1,))[0]
    plain = []
    for model, pipeline, tensor in sizes[:_FIRST_BUILDS]:
        values = {
            "parallel.tensor.size": tensor,
            "parallel.tensor.sequence_parallel": tensor > 1,
            "parallel.pipeline.size": pipeline,
            "parallel.pipeline.schedule": "1f1b",
            "parallel.pipeline.virtual_stages": 1,
            "parallel.expert.size": 1,
            "parallel.data.size": gpus // model,
            "parallel.data.strategy": "ddp",
            "training.micro_batch": micro_batch,
            "training.gradient_accumulation": "auto",
        }
        plain.append(tuple(f"{key}={flow(value)}" for key, value in values.items()))
    return [(), *plain]

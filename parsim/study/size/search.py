"""The fastest strategy among many, exactly: proven bounds say which need no simulation.

A candidate is simulated only if its bound is below the fastest one found and below the limit; bounds that are lower bounds of
what the simulation finds make the answer the same as if all were simulated (a test tries). A strategy stands for a scenario, which is
built, bounded and simulated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from parsim.errors import InputError, ScenarioError
from parsim.model.flops import flop_per_step
from parsim.report.economics import Economics
from parsim.report.estimate import Confidence
from parsim.run import economics_of, simulate
from parsim.scenario.built import Built
from parsim.scenario.confidence import Features, confidence, features
from parsim.scenario.load import load, put
from parsim.scenario.neighbours import Neighbours
from parsim.study.search.bounds import Bounder
from parsim.study.search.search import Best, Search
from parsim.study.size.disturb import RUNS, disturbed
from parsim.study.size.question import Machine, Recipe, SizeQuestion
from parsim.study.size.strategies import Configuration, Strategy

_OWN_CHECKPOINTS = ("economics.checkpoint_", "economics.checkpoint.stall", "economics.checkpoint.bandwidth", "cluster.storage")
"""keys that say what a checkpoint takes, in the place of the question's own"""


_UNCORRECTED = "no published run was predicted with this variability: nothing is corrected by published runs, and there is no band of them"


@dataclass(frozen=True, slots=True)
class QuickBound:
    """What no simulation is better than."""

    step_time: float
    """[s]"""
    lacks: int = 0
    """bytes that are surely missing; 0: it may fit"""
    refused: str = ""
    """why there is nothing to simulate"""


@dataclass
class Tally:
    """What became of the candidates."""

    considered: int = 0
    refused: int = 0
    """model, machine and strategy do not go together"""
    too_large: int = 0
    """surely do not fit in memory"""
    too_slow: int = 0
    """surely slower than the limit, or than the fastest found"""
    simulated: int = 0
    did_not_fit: int = 0
    """of those simulated"""
    reasons: dict[str, int] = field(default_factory=dict)
    """why candidates were refused -> how many"""

    def add(self, other: Tally) -> None:
        """Count another's in."""
        for name in ("considered", "refused", "too_large", "too_slow", "simulated", "did_not_fit"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count


@dataclass
class Fastest:
    """The fastest that fits, and how it was found."""

    strategy: Strategy | None = None
    found: Configuration | None = None
    tally: Tally = field(default_factory=Tally)
    least_bound: float = inf
    """of the strategies that may fit [s]: none of them is faster"""
    least_lack: int | None = None
    """bytes that the nearest of those that surely do not fit lacks; None: there is none"""


@dataclass
class Candidates:
    """The strategies of one question on one kind of machine; remembers what was asked before."""

    question: SizeQuestion
    machine: Machine
    recipe: Recipe
    probe: Built
    """one GPU of the machine with the model: for what all candidates share"""
    gpus_per_node: int
    has_example: bool
    """the topology has an example price in the question's currency"""
    nodes: int | None = None
    """machines that are there in any case; None: as many as a strategy needs"""
    _bounder: Bounder = field(default_factory=Bounder)
    _around: dict[tuple[int, int | None], Neighbours] = field(default_factory=dict)
    _simulated: dict[tuple[Strategy, int | None], Configuration] = field(default_factory=dict)
    _ratios: dict[Features, float] = field(default_factory=dict)
    _built: dict[tuple[Strategy, int | None], Built | str] = field(default_factory=dict)

    def tree(self, strategy: Strategy) -> dict[str, Any]:
        """The scenario of a strategy, ready for `parsim run`."""
        tree = self._base(strategy.gpus)
        for key, value in strategy.keys().items():
            put(tree, key, value)
        return tree

    def _base(self, gpus: int) -> dict[str, Any]:
        """What the strategies of one number of GPUs have in common."""
        question, machine, recipe = self.question, self.machine, self.recipe
        nodes = self.nodes or -(-gpus // self.gpus_per_node)
        cluster: dict[str, Any] = {"topology": machine.topology, "nodes": nodes}
        if gpus != nodes * self.gpus_per_node:
            cluster["gpus"] = gpus
        training: dict[str, Any] = {
            "sequence_length": recipe.sequence_length, "global_batch": recipe.global_batch, "tokens": question.tokens,
        }  # fmt: skip
        if question.precision is not None:
            training["precision"] = question.precision
        economics = self._economics()
        tree = {
            "name": f"{question.model} on {gpus} GPUs of {machine.label}", "model": question.model, "cluster": cluster,
            "training": training, "parallel": {}, "software": {"profile": question.software}, "economics": economics,
        }  # fmt: skip
        written = {key for key, _ in machine.settings}
        if "economics.failures" in written:
            economics.pop("mtbf_per_gpu", None)
        if any(key.startswith(_OWN_CHECKPOINTS) for key in written):
            economics.pop("checkpoint_time", None)
        for key, value in machine.settings:
            put(tree, key, value)
        return tree

    def _economics(self) -> dict[str, Any]:
        question, machine, recipe = self.question, self.machine, self.recipe
        economics: dict[str, Any] = {"currency": question.currency}
        if machine.purchase is not None:
            economics["purchase"] = {machine.purchase.per: str(machine.purchase.price)}
            if question.years is not None:
                economics["purchase"]["years"] = question.years
        elif machine.gpu_hour is not None:
            economics["gpu_hour"] = str(machine.gpu_hour)
        elif self.has_example:
            economics["gpu_hour"] = "example"
        if question.power_price is not None:
            economics["power_price"] = str(question.power_price)
        if question.pue is not None:
            economics["pue"] = question.pue
        if recipe.mtbf is not None and recipe.checkpoint_time is not None:
            economics |= {"mtbf_per_gpu": f"{recipe.mtbf:.15g} s", "checkpoint_time": f"{recipe.checkpoint_time:.15g} s"}
            if question.restart_time is not None:
                economics["restart_time"] = f"{question.restart_time:.15g} s"
        return economics

    # -- what is asked about a strategy ---------------------------------------------------------------------------------

    def built(self, strategy: Strategy) -> Built | str:
        """The scenario as objects, or why there are none."""
        key = (strategy, self.nodes)
        if key not in self._built:
            try:
                self._built[key] = self._neighbours(strategy.gpus).built(strategy.keys())
            except InputError as error:
                first = error.findings[0]
                self._built[key] = f"{first.message}; {first.suggestion}" if first.suggestion else first.message
        return self._built[key]

    def _neighbours(self, gpus: int) -> Neighbours:
        key = (gpus, self.nodes)
        if key not in self._around:
            self._around[key] = Neighbours(load(self._base(gpus), trust_code=self.question.trust_code))
        return self._around[key]

    def bound(self, strategy: Strategy) -> QuickBound:
        """The quick bound."""
        built = self.built(strategy)
        if isinstance(built, str):
            return QuickBound(0.0, refused=built)
        try:
            bounds = self._bounder.bounds(built)
        except InputError as error:
            return QuickBound(0.0, refused=error.findings[0].message)
        return QuickBound(bounds.step_time * self._ratio(strategy), max(0, bounds.peak_memory - bounds.capacity))

    def _ratio(self, strategy: Strategy) -> float:
        """Estimated over simulated step; known before a simulation, so that a bound of one is a bound of the other."""
        built = self.built(strategy)
        if isinstance(built, str) or self.question.disturbed:
            return 1.0
        alike = features(built)  # all else that confidence depends on is the same for the whole question
        if alike not in self._ratios:
            self._ratios[alike] = Confidence(**confidence(built)).step_ratio
        return self._ratios[alike]

    def tight(self, strategy: Strategy) -> float:
        """The better bound [s]."""
        built = self.built(strategy)
        return 0.0 if isinstance(built, str) else self._bounder.tight(built) * self._ratio(strategy)

    def economics(self, strategy: Strategy) -> Economics | None:
        """Prices, power and failures; None where the scenario cannot be built."""
        built = self.built(strategy)
        return None if isinstance(built, str) else economics_of(built)

    def simulate(self, strategy: Strategy) -> Configuration:
        """What `parsim run` finds, undisturbed. Where anything varies, published runs correct nothing, as in a report."""
        key = (strategy, self.nodes)
        if key not in self._simulated:
            self._simulated[key] = self._simulate(strategy)
        return self._simulated[key]

    def _simulate(self, strategy: Strategy) -> Configuration:
        tree = self.tree(strategy)
        report = simulate(tree, trust_code=self.question.trust_code)
        economics = report.measured.economics
        if economics is None:  # unreachable: tokens are in every tree
            raise ScenarioError("the scenario has no economics")
        sure, estimate = report.measured.confidence, report.estimate
        plain = self.question.disturbed
        if plain:
            sure = replace(sure.disturbed(), basis=_UNCORRECTED)
        peaks = estimate.peak_band_bytes
        return Configuration(
            machine=self.machine.label,
            strategy=strategy,
            nodes=economics.nodes,
            gpus=economics.billed_gpus,
            step_time=report.step_time if plain else estimate.step_time_s,
            simulated_step_time=report.step_time,
            fits=report.fits,
            peak=report.peak_memory,
            headroom=report.headroom,
            mfu=report.mfu if plain else estimate.mfu,
            limiter_kind=report.limiter_kind,
            limiter=report.limiter,
            economics=economics,
            busy=report.busy.times(sure.step_ratio),
            features=sure.features,
            ratio=sure.step_ratio,
            status=sure.status,
            band=None if sure.step is None else (sure.step[0] / sure.step_ratio, sure.step[1] / sure.step_ratio),
            basis=sure.basis,
            tight=report.fits and peaks is not None and peaks[1] > report.peak_memory + report.headroom,
            stretch=1.0 if self.question.goodput is None else 1.0 / self.question.goodput,
            tree=tree,
            warnings=tuple(report.measured.warnings),
        )

    def disturbed(self, one: Configuration) -> Configuration:
        """The same with the median of disturbed steps, where anything varies on this machine."""
        varied = self.machine.variability
        if varied is None:
            return one
        return disturbed(one, varied, self.question.runs or RUNS, trust_code=self.question.trust_code)

    def floor(self, gpus: int) -> float:
        """No step on so many GPUs is shorter: its matrix products at the peak of all of them [s]."""
        probe = self.probe
        peak = probe.cluster.device(probe.gpus[0]).peak[probe.training.precision.matmul]
        return flop_per_step(probe.model, self.recipe.sequence_length, self.recipe.global_batch, "exact") / (peak * gpus)


def fastest(strategies: Iterable[Strategy], candidates: Candidates, limit: float = inf, *, exhaustive: bool = False) -> Fastest:
    """The strategy with the shortest step that fits and is not above `limit` [s]; ties go to the first.

    `exhaustive` simulates everything that is not refused.
    """
    choice = Fastest()
    tally = choice.tally
    search = Search(Best(limit=limit))
    entered: list[Strategy] = []
    for strategy in strategies:
        tally.considered += 1
        bound = candidates.bound(strategy)
        if bound.refused:
            tally.refused += 1
            tally.reasons[bound.refused] = tally.reasons.get(bound.refused, 0) + 1
        elif bound.lacks and not exhaustive:
            tally.too_large += 1
            choice.least_lack = bound.lacks if choice.least_lack is None else min(choice.least_lack, bound.lacks)
        else:
            choice.least_bound = min(choice.least_bound, bound.step_time)
            search.enter(len(entered), (-inf if exhaustive else bound.step_time,))
            entered.append(strategy)
    tight: set[int] = set()
    results: dict[int, Configuration] = {}
    while (number := search.next()) is not None:
        strategy = entered[number]
        if number not in tight and not exhaustive:
            tight.add(number)
            search.raised(number, (candidates.tight(strategy),))
            continue
        configuration = results[number] = candidates.simulate(strategy)
        tally.simulated += 1
        tally.did_not_fit += not configuration.fits
        search.known(number, (configuration.step_time,) if configuration.fits else None)
    tally.too_slow = len(search.left)
    for number in search.answer.kept():
        choice.strategy, choice.found = entered[number], results[number]
    return choice

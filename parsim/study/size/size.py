"""From a question to an answer: walk the numbers of GPUs of each kind of machine, and choose the best strategy at each.

For one number of GPUs the fastest strategy is found exactly (`parsim.study.size.search`): time, energy and cost of a training never
fall when its step takes longer. Numbers of GPUs are those of the grid (`parsim.study.size.strategies`), and are left out only where a
bound says that they cannot meet the deadline or the budget, or cannot beat the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from parsim.errors import Finding, InputError, ScenarioError
from parsim.model.model import OUTER
from parsim.model.parameter_counts import parameter_count
from parsim.report.economics import Busy, Economics, bill
from parsim.report.quantities import number
from parsim.scenario.build import build
from parsim.scenario.built import Built
from parsim.scenario.load import load, put
from parsim.study.size.answer import AnswerData, BetterConfiguration, Looked, Sized, possible_of
from parsim.study.size.asking import Asking
from parsim.study.size.disturb import with_slow_gpu
from parsim.study.size.prices import PriceTag, price_tag
from parsim.study.size.question import Assumed, Machine, Recipe, SizeQuestion, recipe, without_tokens
from parsim.study.size.reading import asked
from parsim.study.size.search import Candidates, Fastest, Tally, fastest
from parsim.study.size.strategies import DAY, Configuration, Strategies, recomputations
from parsim.study.size.telling import Tell, sizes
from parsim.study.size.text import text

MOST_GPUS = 16384
"""looked at where the question names no maximum"""
NEIGHBOURS = 2
"""numbers of GPUs beyond the first that is enough, for the trade between time and cost"""
BEYOND = 2
"""times the first number of GPUs that is enough: up to where anything better is looked for"""
_USUAL_MFU = 0.4
"""of large trainings: where the first look is taken"""
_FEW_STAGES = 2
_TELLING = ("gpu_hour", "power_computing", "power_communicating", "power_waiting", "node_power", "restart_time")

Watch = Callable[[Iterable[Sized], int], Iterable[Sized]]


class Answer(AnswerData):
    """The answer to a question, which prints itself."""

    def __str__(self) -> str:
        return text(self)


def size(
    question: SizeQuestion | str,
    *,
    workers: int | None = None,
    watch: Watch | None = None,
    improved: Callable[[BetterConfiguration], None] | None = None,
    trust_code: bool = False,
    **keys: Any,
) -> Answer:
    """Answer a question: one that was read, the name of a model, or a file; `keys` are those of a file's ``size:``.

    Works on one kind of machine per process, `workers` at a time (None: one per CPU). `improved` hears of every configuration that is
    better than all before it. KeyboardInterrupt ends the search; what was found is kept. `trust_code` lets the Python files run that
    ``set`` names.

    Raises:
        ScenarioError: every mistake in the question; or the model or a machine cannot be used at all.
    """
    if not isinstance(question, SizeQuestion):
        question = asked(question, keys)
    if trust_code:
        question = replace(question, trust_code=True)
    findings: list[Finding] = []
    probes: list[Built] = []
    for machine in question.machines:
        try:
            probes.append(_probe(question, machine))
        except InputError as error:
            if question.sequence_length is None and any(finding.path == "training.sequence_length" for finding in error.findings):
                raise without_tokens(question) from None
            findings += [replace(finding, message=f"{machine.label}: {finding.message}") for finding in error.findings]
    if findings:
        raise ScenarioError(findings)
    model = probes[0].model
    training = recipe(question, model)
    question = replace(question, minimise=question.minimise or _usual(question, probes))
    prices = [_price(question, machine, probe) for machine, probe in zip(question.machines, probes, strict=True)]
    asking = Asking(question, prices, improved or (lambda _: None))
    came = sizes(partial(size_machine, question, training, glance=improved is not None), question.machines, workers, asking.hear)
    try:
        interrupted = asking.take(came if watch is None else watch(came, len(question.machines)))
        came.close()
    except KeyboardInterrupt:
        interrupted = not asking.complete
    finally:
        came.close()
    answer = Answer(question, training, parameter_count(model), asking.machines(), interrupted)
    if interrupted or not (answer.ranked and question.disturbed):
        return answer
    return replace(answer, slow_gpu=with_slow_gpu(answer.ranked[0], trust_code=question.trust_code))


def size_machine(
    question: SizeQuestion, training: Recipe, machine: Machine, tell: Tell = lambda _, __: None, *, glance: bool = False
) -> Sized:
    """What is possible on one kind of machine; `tell` hears of every number of GPUs as it is looked at, with `glance` of a guess first."""
    return _Walk(question, training, machine, tell, glance=glance).sized()


def _price(question: SizeQuestion, machine: Machine, probe: Built) -> PriceTag | None:
    """The price that counts, if it is in the currency of the question."""
    return price_tag(machine, probe.cluster.price if _has_example(probe, question) else None)


def _usual(question: SizeQuestion, probes: list[Built]) -> str:
    """What is minimised where nobody says."""
    if question.deadline is None and question.budget is not None and not any(machine.gpus for machine in question.machines):
        return "time"
    priced = any(
        machine.gpu_hour is not None or machine.purchase is not None or _has_example(probe, question)
        for machine, probe in zip(question.machines, probes, strict=True)
    )
    return "cost" if priced else "gpus"


def _has_example(probe: Built, question: SizeQuestion) -> bool:
    price = probe.cluster.price
    return price is not None and price.currency == question.currency


def _probe(question: SizeQuestion, machine: Machine) -> Built:
    """The model on one GPU of the machine."""
    tree = {
        "model": question.model, "cluster": {"topology": machine.topology, "gpus": 1},
        "training": {"sequence_length": question.sequence_length or 1, "micro_batch": 1, "gradient_accumulation": 1},
        "software": {"profile": question.software},
    }  # fmt: skip
    if question.precision is not None:
        put(tree, "training.precision", question.precision)
    if machine.variability is not None:
        tree["variability"] = {key: value for key, value in machine.variability.items() if key not in ("slow", "faults")}
    for key, value in machine.settings:
        put(tree, key, value)
    return build(load(tree, trust_code=question.trust_code))


class _Walk:
    """The numbers of GPUs of one kind of machine."""

    def __init__(self, question: SizeQuestion, training: Recipe, machine: Machine, tell: Tell, *, glance: bool) -> None:
        self.question, self.machine, self.tell, self.glance = question, machine, tell, glance
        probe = _probe(question, machine)
        model, cluster = probe.model, probe.cluster
        each = cluster.installed_gpus // cluster.nodes
        self.price = _price(question, machine, probe)
        self.candidates = Candidates(question, machine, training, probe, each, _has_example(probe, question))
        layers = sum(block.kind not in OUTER for block in model.blocks)
        self.lattice = Strategies(
            layers, model.heads, training.global_batch, each, question.micro_batches,
            schedules=question.schedules, sharding=question.sharding,
            recompute=recomputations(question.recompute, model),
            experts=int(str(model.facts.get("experts", 0) or 0)),
        )  # fmt: skip
        self.budget = None if question.budget is None else question.budget.amount
        self.looked: dict[int, Looked] = {}
        self.notes: list[str] = []

    # -- the walk -------------------------------------------------------------------------------------------------------

    def sized(self) -> Sized:
        """Walk, and put together."""
        if self.budget is not None and not self._has_price():
            text = f"no price in {self.question.currency} is known, so the budget cannot be checked; add --gpu-hour or --buy"
            return Sized(self.machine.label, (), (), (), text)
        grid = self._fixed() if self.machine.gpus else self._free()
        looked = tuple(self.looked[gpus] for gpus in sorted(self.looked))
        configurations = [one.found for one in looked if one.found is not None]
        possible = possible_of(configurations, self.question)
        reason = "" if possible else self._reason(grid)
        assumed = self._assumed(configurations)
        return Sized(self.machine.label, grid, looked, possible, reason, tuple(self.notes), assumed, self.price)

    def _has_price(self) -> bool:
        machine = self.machine
        return machine.gpu_hour is not None or machine.purchase is not None or self.candidates.has_example

    def _fixed(self) -> tuple[int, ...]:
        """The user's own counts: where none of the strategies uses all GPUs, the next smaller number of the grid."""
        each = self.candidates.gpus_per_node
        for wanted in self.machine.gpus:
            below, above = self.lattice.near(wanted)
            nodes = -(-wanted // each)
            if wanted % each:
                self.notes.append(f"{wanted} GPUs are in {nodes} x {each}: {nodes * each} are paid for")
            if below is None:
                self.looked[wanted] = Looked(wanted, None, Tally(), "no strategy uses so few GPUs")
                continue
            if below != wanted:
                near = " or ".join(str(count) for count in (below, above) if count is not None)
                self.notes.append(f"no strategy uses all of {wanted} GPUs: {below} work, {nodes * each - below} are idle; use {near}")
            self.candidates.nodes = nodes
            self._look(below, self._limit(below), key=wanted)
            self.candidates.nodes = None
        return tuple(sorted(self.looked))

    def _free(self) -> tuple[int, ...]:
        """Numbers of GPUs from the first that could be enough, in the order of what is minimised."""
        most = self.question.max_gpus or MOST_GPUS
        counts = self.lattice.counts(most)  # machines are paid whole: parts of one only where no strategy uses all of it
        whole = [count for count in counts if count >= self.candidates.gpus_per_node] or counts
        grid = tuple(count for count in whole if self._at_peak(count) <= (self.question.deadline or inf))
        first: int | None = None
        if self.question.minimise == "time" or self.question.deadline is None:
            for count in reversed(grid):
                self._look(count, min(self._limit(count), self._better(count)))
            return grid
        if self.glance:
            self._glance(grid)
        for count in grid:
            if first is not None and count > BEYOND * first and self.question.max_gpus is None:
                grid = grid[: grid.index(count)]
                break
            limit = self._limit(count)
            beyond = [one for one in self.looked.values() if first is not None and one.gpus > first and one.found is not None]
            self._look(count, limit if len(beyond) < NEIGHBOURS else min(limit, self._better(count)))
            if first is None and self._is_possible(count):
                first = count
        return grid

    def _glance(self, grid: tuple[int, ...]) -> None:
        """Tell of one probable answer at once: of a few usual strategies on a probable number of GPUs the one with the least bound."""
        count = next((one for one in grid if self._at_peak(one) <= _USUAL_MFU * (self.question.deadline or inf)), None)
        if count is None or self.question.exhaustive:
            return
        widest = max(self.lattice.tensors)
        usual = [one for one in self.lattice.at(count) if one.tensor in (widest, widest // 2) and one.pipeline <= _FEW_STAGES]
        bounds = [(self.candidates.bound(one), one) for one in usual if one.micro_batch == min(self.question.micro_batches)]
        fitting = [(bound.step_time, one) for bound, one in bounds if not bound.refused and not bound.lacks]
        if fitting:
            found = self.candidates.disturbed(self.candidates.simulate(min(fitting)[1]))
            self.tell(self.machine.label, Looked(count, found if found.fits else None, Tally()))

    def _at_peak(self, count: int) -> float:
        """The training at the peak of so many GPUs, nothing failing but what the question says [s]."""
        return self.candidates.floor(count) * self.question.tokens / self.candidates.recipe.tokens_per_step * self.stretch

    def _is_possible(self, count: int) -> bool:
        configuration = self.looked[count].found if count in self.looked else None
        return configuration is not None and configuration.meets(self.question.deadline, self.budget)

    def _look(self, count: int, limit: float, key: int | None = None) -> None:
        floor = self.candidates.floor(count)
        if floor > limit and not self.question.exhaustive:
            return
        exhaustive = self.question.exhaustive
        choice = fastest(self.lattice.at(count), self.candidates, inf if exhaustive else limit, exhaustive=exhaustive)
        found = None if choice.found is None else self.candidates.disturbed(choice.found)
        looked = Looked(count if key is None else key, found, choice.tally, _nothing(choice, limit))
        self.looked[looked.gpus] = looked
        self.tell(self.machine.label, looked)

    # -- limits ---------------------------------------------------------------------------------------------------------

    def _limit(self, count: int) -> float:
        """The longest step that meets the deadline and the budget [s]; fixed counts have none: their answer is shown anyway."""
        if self.machine.gpus:
            return inf
        economics = self._economics(count)
        if economics is None:
            return -inf
        limit = inf
        if self.question.deadline is not None:
            limit = _longest(economics, self.stretch, lambda one: one.time_to_train or 0.0, self.question.deadline)
        if self.budget is not None:
            limit = min(limit, _longest(economics, self.stretch, lambda one: one.cost_to_train or 0.0, self.budget))
        return limit

    def _better(self, count: int) -> float:
        """The longest step that beats the best found so far [s]."""
        name = self.question.minimise
        possible = [one.found for count, one in self.looked.items() if one.found is not None and self._is_possible(count)]
        values = [one.objective(name) for one in possible]
        best = min((value for value in values if value is not None), default=inf)
        economics = self._economics(count)
        if best == inf or economics is None:
            return inf
        if name == "gpus":
            return inf if count < best else -inf
        metrics = {
            "cost": lambda one: one.cost_to_train or 0.0,
            "energy": lambda one: one.energy_to_train or 0.0,
            "time": lambda one: one.time_to_train or 0.0,
        }
        return _longest(economics, self.stretch, metrics[name], best)

    @property
    def stretch(self) -> float:
        """Time over time without failures, where the question fixes the goodput."""
        return 1.0 if self.question.goodput is None else 1.0 / self.question.goodput

    def _economics(self, count: int) -> Economics | None:
        """Prices, power and failures at a number of GPUs: of any strategy, they are the same."""
        for strategy in self.lattice.at(count):
            economics = self.candidates.economics(strategy)
            if economics is not None:
                return economics
        return None

    # -- words ----------------------------------------------------------------------------------------------------------

    def _reason(self, grid: tuple[int, ...]) -> str:
        configurations = [one.found for one in self.looked.values() if one.found is not None]
        question = self.question
        most = question.max_gpus or MOST_GPUS
        if configurations:
            quick = min(configurations, key=lambda one: one.seconds)
            said = [f"the fastest, {quick.gpus} GPUs with {quick.strategy}, takes {quick.days:.1f} days"]
            if quick.cost is not None and self.budget is not None:
                said.append(f"and costs {quick.cost:,.0f} {question.currency}")
            return " ".join(said)
        if not self.looked:
            return self._floor(self.lattice.counts(most), most)
        nearest = [one.reason for one in self.looked.values() if one.reason]
        return f"{nearest[-1]} (searched up to {grid[-1]} GPUs)" if nearest else "nothing was found"

    def _floor(self, counts: tuple[int, ...], most: int) -> str:
        """Why not even the peak of the machines is enough."""
        if not counts:
            return f"no strategy uses any number of GPUs up to {most}"
        question, last = self.question, counts[-1]
        days = self._at_peak(last) / DAY
        if question.deadline is not None and days > question.deadline / DAY:
            needed = days * last / (question.deadline / DAY)
            return (
                f"even at the peak of {last} GPUs it takes {number(days)} days; at least {needed:,.0f} would be needed (--max-gpus {most})"
            )
        bills = [(self._economics(count), self.candidates.floor(count)) for count in counts]
        costs = [bill(one, floor, Busy()).cost_to_train or 0.0 for one, floor in bills if one is not None]
        return f"even at the peak of its GPUs it costs {min(costs, default=0.0) * self.stretch:,.0f} {question.currency}"

    def _assumed(self, found: list[Configuration]) -> tuple[Assumed, ...]:
        """What the scenarios of this machine assume about money, power and failures."""
        if not found:
            return ()
        built = self.candidates.built(found[0].strategy)
        if isinstance(built, str):
            return ()
        return tuple(
            Assumed(f"{one.name} of {self.machine.label}" if one.name in ("gpu_hour", "node_power") else one.name, one.value, one.source)
            for one in built.assumptions
            if one.name in _TELLING
        )


def _longest(economics: Economics, stretch: float, of: Callable[..., float], most: float) -> float:
    """The step time at which something that grows with it reaches `most` [s]: a little too long rather than too short."""

    def value(step: float) -> float:
        return of(bill(economics, step, Busy())) * stretch

    one = value(1.0)
    if one <= 0:
        return inf
    return most / one * (1 + 1e-9)


def _nothing(choice: Fastest, limit: float) -> str:
    """Why a number of GPUs gave nothing."""
    if choice.found is not None:
        return ""
    tally = choice.tally
    if tally.considered == 0:
        return "no strategy uses that many GPUs"
    if tally.too_slow and choice.least_bound > limit:
        return f"no strategy that may fit has a step below {choice.least_bound:.3g} s (a lower bound); {limit:.3g} s is needed"
    if tally.too_slow:
        return f"no strategy that fits has a step of {limit:.3g} s or less"
    if tally.did_not_fit or tally.too_large:
        lack = f": the nearest lacks at least {choice.least_lack / 2**30:.1f} GiB" if choice.least_lack else ""
        return f"no strategy fits in memory{lack}"
    reason = max(tally.reasons, key=lambda one: tally.reasons[one], default="")
    return f"no strategy can be built: {reason}" if reason else "no strategy fits"

"""Which parallel strategy is fastest: a first answer within seconds, better ones as they are found, the best one proved.

A narrow search over usual strategies comes first; then one over all (`parsim.study.search.lattice`), whose bounds rule out most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.scenario.scenario import Scenario, flow
from parsim.study.automatic import question, starting_point
from parsim.study.search.lattice import MLPS, STANDARD, Ranges
from parsim.study.size.question import Assumed, SizeQuestion, recipe
from parsim.study.sweep.definition import StudyDefinition
from parsim.study.sweep.rows import Row
from parsim.study.sweep.space import Place
from parsim.study.sweep.sweep import Study, run
from parsim.study.workers import Crew, crew

USUAL = Ranges(
    micro_batch=(1,),
    schedule=("1f1b",),
    strategy=("zero1", "fsdp"),
    recompute=("none", "selective", MLPS, "full"),
    sequence_parallel=(True,),
)
"""what is looked at first"""
HEADROOM = "4 GiB"
"""of every GPU, left free unless the question says otherwise: peaks of published runs are predicted within 6 % on average"""

_UNIT, _MUCH, _NEARBY = 8, 1.25, 10.0
"""good numbers of GPUs are multiples of the first; on a much better one a GPU does so many times as much; each is tried so long [s]"""
FEW = 300
"""strategies that one process has bounded before others would have started"""

Watch = Callable[[str, Iterable[Any], int | None], Iterable[Any]]
"""is given what is being done, the results as they come, and how many there will be; passes them on"""


@dataclass(frozen=True)
class StrategyQuestion:
    """What `parsim plan` is asked of a model; fields are the command line's options."""

    model: str
    on: str
    """a topology, or a box such as ``8x h100-sxm``"""
    gpus: int | None = None
    """None: those of `nodes` machines"""
    nodes: int | None = None
    sequence_length: int | None = None
    """None: the model's, as `parsim size` takes it"""
    global_batch: int | None = None
    """samples per step; None: a published batch, or a rule"""
    precision: str | None = None
    tokens: float | None = None
    """of the whole training; None: the step alone is asked for"""
    headroom: str = HEADROOM
    software: str = "auto"
    """software profile of all candidates; auto: see `parsim.study.automatic`"""


@dataclass(frozen=True)
class FasterStrategy:
    """A strategy that is faster than all before it."""

    after: float
    """since the search began [s]"""
    place: Place
    row: Row

    @property
    def strategy(self) -> str:
        """Its settings in a line."""
        return described(self.place.settings, self.row)


@dataclass
class BestStrategy:
    """What a search has found."""

    base: Scenario
    improvements: list[FasterStrategy] = field(default_factory=list)
    """the last is the best"""
    study: Study | None = None
    """of all strategies; None: the search was ended before"""
    wall: float = 0.0
    """how long it took [s]"""
    runner_up: FasterStrategy | None = None
    """None where only one strategy fits, or the search was ended"""
    winner: FasterStrategy | None = None
    """the fastest of all; None: the search was ended, or nothing fits"""
    interrupted: bool = False
    """the user ended it"""
    nearby: tuple[tuple[int, FasterStrategy], ...] = ()
    """other numbers of GPUs on which a GPU does much more, with the fastest usual strategy"""

    @property
    def proven(self) -> bool:
        """Whether no other strategy is faster."""
        return self.study is not None

    @property
    def best(self) -> FasterStrategy | None:
        """The fastest; None: nothing fits. Of equals it is, once all are known, the first of the range."""
        return self.winner or (self.improvements[-1] if self.improvements else None)

    @property
    def scenario(self) -> Scenario:
        """The scenario with the best strategy. Raises ScenarioError where nothing fits."""
        if self.best is None:
            hint = "more GPUs, a shorter sequence, or offload (`parsim fit` looks for what would help)"
            text = "no strategy fits into memory" if self.proven else f"no strategy that fits was found within {self.wall:.0f} s"
            raise ScenarioError(self.base.findings_at([Finding(text, "parallel", None, hint)]))
        return self.with_strategy(self.best)

    def with_strategy(self, one: FasterStrategy) -> Scenario:
        """The base with a strategy that was found."""
        overrides = () if one.place.candidate is None else one.place.candidate.overrides
        return self.base.with_overrides(*overrides)

    def tree(self) -> dict[str, Any]:
        """The best strategy as a scenario file says it: what the base says, and what was found as far as the defaults do not say it."""
        found = _beside(self.scenario.written, self.base.tree, self.base.written)
        return {"name": self.base.settings.name, **{key: value for key, value in found.items() if key not in ("name", "study")}}


class _Over(Exception):  # noqa: N818 - no error
    """The time that the search may take is over."""


def scenario_of(question: StrategyQuestion) -> tuple[Scenario, tuple[Assumed, ...]]:
    """The scenario, without a strategy, that a question stands for, and what had to be assumed.

    Raises:
        ScenarioError: the machines do not give so many GPUs, or the scenario is wrong.
    """
    cluster: dict[str, Any] = {"topology": question.on, "memory_reserve": question.headroom}
    probe: dict[str, Any] = {"model": question.model, "cluster": cluster, "training": {"sequence_length": 1, "micro_batch": 1}}
    probe["training"]["gradient_accumulation"] = 1
    built = build(load(probe))
    nodes, each = question.nodes or 1, built.cluster.gpus_per_node
    if question.gpus is not None and question.nodes is None:
        nodes = -(-question.gpus // each)
    gpus = question.gpus or nodes * each
    if gpus > nodes * each:
        text = f"{nodes} x {question.on} = {nodes * each} GPUs, not {gpus}"
        raise ScenarioError(Finding(text, "--gpus", gpus, f"write --nodes {-(-gpus // each)}"))
    if nodes > 1:
        cluster["nodes"] = nodes
    if gpus < nodes * each:
        cluster["gpus"] = gpus
    sized = SizeQuestion(question.model, 0.0, (), question.sequence_length, question.global_batch)
    chosen = recipe(sized, built.model)
    training: dict[str, Any] = {"sequence_length": chosen.sequence_length, "global_batch": chosen.global_batch, "micro_batch": 1}
    if question.precision is not None:
        training["precision"] = question.precision
    if question.tokens is not None:
        training["tokens"] = question.tokens
    tree = {"name": f"{question.model} on {gpus} GPUs", "model": question.model, "cluster": cluster, "training": training}
    if question.software != "auto":
        tree["software"] = {"profile": question.software}
    batches = tuple(one for one in chosen.assumed if one.name in ("sequence length", "global batch"))
    return load(tree), batches


def search(
    base: Scenario,
    *,
    within: float | None = None,
    workers: int | None = 1,
    watch: Watch = lambda _, results, __: results,
    improved: Callable[[FasterStrategy], None] = lambda _: None,
    usual_only: bool = False,
) -> BestStrategy:
    """The fastest strategy for a scenario, whose own strategy is ignored, or with ``parallel: auto`` for what is written beside that.

    `within` is how long the search may take [s]; what was found by then is kept, and is not proved. `improved` hears of every strategy
    that is faster than those before. KeyboardInterrupt ends the search, too. With `usual_only` the first, narrow search is all.

    Raises:
        ScenarioError: the scenario is wrong, or cannot be searched.
    """
    asked, kept = question(base)
    plan, began = BestStrategy(asked), monotonic()
    start = starting_point(asked, kept)
    rows: dict[str, Row] = {}

    def hear(place: Place, row: Row, _: str) -> None:
        rows[row["key"]] = row
        one = FasterStrategy(monotonic() - began, place, row)
        if plan.best is None or row["step_time_s"] < plan.best.row["step_time_s"]:
            plan.improvements.append(one)
            improved(one)

    def timed(doing: str, results: Iterable[Any], total: int | None, _: object) -> Iterator[Any]:
        for result in watch(doing, results, total):
            yield result
            if within is not None and monotonic() - began > within:
                raise _Over

    def hands(work: int) -> Crew:
        return crew(workers if work > FEW else 1, None, None, work)

    usual = StudyDefinition(start, base.name, "plan", strategies=True, ranges=replace(USUAL, **kept), top=1)
    everything = replace(usual, ranges=replace(STANDARD, **kept), top=2)
    try:
        run(usual, hands=hands, watch=timed, improved=hear)
        study = None if usual_only else run(everything, hands=hands, watch=timed, known=rows, improved=hear)
    except (_Over, KeyboardInterrupt) as ended:
        plan.interrupted = isinstance(ended, KeyboardInterrupt)
    else:
        plan.study = study
        ranked = [] if study is None else [FasterStrategy(plan.wall, entry.place, entry.rows[0]) for entry in study.entries[:2]]
        plan.winner, plan.runner_up = (*ranked, None, None)[:2]
    plan.wall = monotonic() - began
    return plan


def nearby(question: StrategyQuestion, plan: BestStrategy, *, workers: int | None = 1) -> tuple[tuple[int, FasterStrategy], ...]:
    """The multiples of eight around a number of GPUs that divides badly, those on which each GPU does much more; empty for other numbers.

    Only usual strategies are looked at, for a few seconds.
    """
    gpus = question.gpus
    if gpus is None or gpus < _UNIT or _largest_prime(gpus) < _UNIT:
        return ()
    own = 0.0 if plan.best is None else 1.0 / (plan.best.row["step_time_s"] * gpus)
    found = []
    for count in (gpus // _UNIT * _UNIT, -(-gpus // _UNIT) * _UNIT):
        base, _ = scenario_of(replace(question, gpus=count, nodes=None))
        other = search(base, within=_NEARBY, workers=workers, usual_only=True).best
        if other is not None and 1.0 / (other.row["step_time_s"] * count) > _MUCH * own:
            found.append((count, other))
    return tuple(found)


def _largest_prime(number: int) -> int:
    """The largest prime factor.

    >>> _largest_prime(61), _largest_prime(96)
    (61, 3)
    """
    largest, divisor = 1, 2
    while divisor <= number:
        if number % divisor:
            divisor += 1
        else:
            number, largest = number // divisor, divisor
    return largest


def described(settings: Mapping[str, Any], row: Row) -> str:
    """Everything in which the strategies of a search differ, in a line: no two of them have the same."""
    words = []
    for axis, name in (("tensor", "tensor"), ("pipeline", "pipeline"), ("expert", "expert")):
        if (size := settings.get(f"parallel.{axis}.size", 1)) > 1:
            sequence = axis == "tensor" and settings.get("parallel.tensor.sequence_parallel")
            words.append(f"{name} {size}{' with sequence parallelism' if sequence else ''}")
    words.append(f"data {row['data_size']:g}")
    if settings.get("parallel.pipeline.size", 1) > 1:
        virtual = settings["parallel.pipeline.virtual_stages"]
        words.append(settings["parallel.pipeline.schedule"] + (f" x {virtual}" if virtual > 1 else ""))
    words.append(settings["parallel.data.strategy"])
    words.append(f"micro-batches of {settings['training.micro_batch']}")
    recompute = settings["training.recompute"]
    words.append("no recomputation" if recompute == "none" else f"recompute {flow(recompute)}")
    for key, name in (("parallel.pipeline.split", "layers"), ("parallel.data.batch_split", "samples")):
        words += [f"{settings[key]} {name}"] if key in settings else []
    return ", ".join(words)


def _beside(written: Mapping[str, Any], defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What of `written` is in `own`, or differs from `defaults`."""
    kept: dict[str, Any] = {}
    for key, value in written.items():
        default, mine = defaults.get(key), own.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            if inner := _beside(value, default, mine if isinstance(mine, Mapping) else {}):
                kept[key] = inner
        elif key in own or value != default:
            kept[key] = value
    return kept

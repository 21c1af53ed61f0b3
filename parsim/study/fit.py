"""Does it fit? A question without a file: build the scenario, run the ledger, look for changes that help.

The answer is that of `simulate` on the scenario that `--save` writes: same ledger, same peaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parsim.errors import Finding, InputError, ScenarioError
from parsim.report.measured import MemoryFacts
from parsim.report.report import Report
from parsim.run import StepResult, simulate, step_of
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.built import Built
from parsim.scenario.files import find, names, parse_value, read, read_text
from parsim.scenario.neighbours import Neighbours
from parsim.scenario.shortforms import box
from parsim.scenario.sold import oversold
from parsim.study.fit_finetune import METHODS, finetune_candidates
from parsim.study.offload import offload_candidates, offload_settings
from parsim.study.search.bounds import Bounder

Tree = dict[str, Any]
Candidate = tuple[str, str, tuple[str, ...]]
"""(family, change in words, overrides); once enough of a family fit, the rest of it is not tried"""
MAXIMA = ("micro_batch", "sequence_length", "parameters")
_LONGEST = 4_194_304
_SEQUENCE = 2048
_DEVICES = ("a100-sxm-40gb", "l40s", "a100-sxm-80gb", "h100-sxm", "h200", "b200", "mi300x")


@dataclass(frozen=True)
class Question:
    """What the user asks; fields are the command line's options."""

    model: str
    on: str
    """a cluster: ``4x v100-32gb``, a topology's name or path"""
    train: str = "full"
    """full | lora | qlora | freeze"""
    zero: int | None = None
    """None: ZeRO-3 on several GPUs (what needs least memory without changing the mathematics), nothing on one"""
    tensor: int = 1
    pipeline: int = 1
    nodes: int = 1
    sequence_length: int | None = None
    """None: 2048 tokens, or as many as the model has positions for"""
    micro_batch: int = 1
    precision: str | None = None
    optimizer: str | None = None
    recompute: str | None = None
    offload: str | None = None
    """what goes to the host (see `parsim.study.offload`); None: nothing"""
    host_memory: str | None = None
    """of a machine; None: what the topology says"""


@dataclass(frozen=True)
class Alternative:
    """A change that does fit, and what it costs."""

    change: str
    overrides: tuple[str, ...]
    gpus: int
    step_time: float
    """[s]"""
    memory: MemoryFacts
    slowdown: float | None
    """samples per second of the original over those of the change (> 1: slower); None where that means nothing"""


@dataclass(frozen=True)
class Maximum:
    """The largest value that fits, found by simulating it and the next one."""

    what: str
    value: int
    step: int
    fits: Report
    exceeds: Report | None
    """one step more; None where the model itself allows no more"""
    limit: str = ""
    """why there is no next step"""


@dataclass(frozen=True)
class Answer:
    """The verdict on one question."""

    question: Question
    tree: Tree
    report: Report
    alternatives: tuple[Alternative, ...] = ()
    maximum: Maximum | None = None
    refused: tuple[str, ...] = field(default=())
    """candidates that cannot be simulated, with the reason"""
    complete: bool = True
    """whether the search for alternatives ran to its end"""

    @property
    def fits(self) -> bool:
        """Whether the question's own configuration fits."""
        return self.report.fits


def scenario_of(question: Question) -> Tree:
    """The scenario a question stands for, as `--save` writes it."""
    parallel: Tree = {}
    if question.tensor > 1:
        parallel["tensor"] = {"size": question.tensor}
    if question.pipeline > 1:
        parallel["pipeline"] = {"size": question.pipeline}
    training: Tree = {"micro_batch": question.micro_batch, "gradient_accumulation": 1}
    if question.sequence_length is not None:
        training["sequence_length"] = question.sequence_length
    if question.pipeline > 1:
        training["gradient_accumulation"] = question.pipeline
    for key in ("precision", "optimizer", "recompute"):
        if (value := getattr(question, key)) is not None:
            training[key] = value
    if question.offload is not None:
        training |= offload_settings(question.offload, question.recompute)
    if question.train not in ("full", *METHODS):
        text = f"cannot train {question.train!r}"
        raise ScenarioError(Finding(text, "--train", question.train, f"one of full, {', '.join(METHODS)}"))
    if question.train != "full":
        training["finetune"] = {"method": question.train}
    cluster: Tree = {"topology": question.on}
    if question.nodes > 1:
        cluster["nodes"] = question.nodes
    if question.host_memory is not None:
        cluster["set"] = {"node": {"host_memory": question.host_memory}}
    tree: Tree = {"model": question.model, "training": training, "parallel": parallel, "cluster": cluster}
    if question.zero not in (None, 0, 1, 2, 3):
        raise ScenarioError(Finding(f"ZeRO has stages 0 to 3, not {question.zero}", "--zero", question.zero, "0 is plain DDP"))
    plain = {key: value for key, value in training.items() if key != "offload"}
    probe = {**tree, "training": {"sequence_length": 1, **plain}, "parallel": {**parallel, "data": {"strategy": "ddp"}}}
    built = build(load(probe))
    if built.model.sequence and question.sequence_length is None:
        training["sequence_length"] = min(_SEQUENCE, built.model.maximum_sequence or _SEQUENCE)
    several = built.parallelism.data.size > 1
    wants_three = training.get("offload", {}).get("parameters", "none") != "none"
    strategy = f"zero{3 if question.zero is None else question.zero}" if several or wants_three else "none"
    parallel["data"] = {"strategy": "ddp" if strategy == "zero0" else strategy}
    return tree


def fit(question: Question, *, maximum: str | None = None, alternatives: bool = True) -> Answer:
    """Simulate the question's configuration; if it does not fit, look for changes that do.

    `maximum` (micro_batch, sequence_length or parameters) also solves the inverse. Raises `InputError`.
    """
    answer = verdict(question)
    refused: list[str] = []
    found = tuple(find_alternatives(answer, refused)) if alternatives else ()
    largest = None if maximum is None else find_maximum(answer.tree, maximum)
    return replace(answer, alternatives=found, maximum=largest, refused=tuple(refused))


def verdict(question: Question) -> Answer:
    """Simulate the question's configuration, and nothing else. Raises `InputError`."""
    tree = scenario_of(question)
    return Answer(question, tree, simulate(load(tree)))


# -- changes that help --------------------------------------------------------------------------------------------


def find_alternatives(answer: Answer, refused: list[str], most: int = 5) -> Iterator[Alternative]:
    """Changes that fit, as they are found, cheapest first: same hardware before more of it before other hardware, then by speed.

    Nothing where the question's own configuration fits. What cannot be simulated is added to `refused`, with the reason.
    """
    if answer.fits:
        return
    question, tree, report = answer.question, answer.tree, answer.report
    again = () if question.recompute in ("full", "true") else ("training.recompute=full",)
    rounds: tuple[tuple[Callable[[], list[Candidate]], int], ...] = (
        (lambda: _same_hardware(question, tree), most),
        (lambda: finetune_candidates(question.train, again), 1),
        (lambda: _more_gpus(question, report.measured.ranks.total), 1),
        (lambda: _other_devices(report), 3),
    )
    around = _Around(tree)
    for candidates, enough in rounds:
        found: list[Alternative] = []
        satisfied: dict[str, int] = {}
        for family, change, overrides in candidates():
            if satisfied.get(family, 0) >= enough:
                continue
            try:
                tried = around.tried(overrides)
            except InputError as error:
                refused.append(f"{change}: {error.findings[0].message}")
                continue
            if tried is not None:
                satisfied[family] = satisfied.get(family, 0) + 1
                gpus = tried.plan.mesh.ranks
                found.append(Alternative(change, overrides, gpus, tried.step_time, tried.memory, _slowdown(report, tried)))
        found.sort(key=lambda alternative: (alternative.gpus, alternative.slowdown or 1.0))
        yield from found[:most]


class _Around:
    """The scenarios around a question's; what they have in common is found once."""

    def __init__(self, tree: Tree) -> None:
        self._base = load(tree)
        self._neighbours = Neighbours(self._base)
        self._bounder = Bounder()

    def tried(self, overrides: tuple[str, ...]) -> StepResult | None:
        """The step of a change that fits; None where it does not. What surely does not fit is not simulated. Raises `InputError`."""
        built = self._built(overrides)
        # a bound looks at every block of a partly frozen model, which takes longer than to simulate it
        if built.training.finetune is None and self._bounder.surely_full(built):
            return None
        step = step_of(built)
        return step if step.fits else None

    def _built(self, overrides: tuple[str, ...]) -> Built:
        if any(override.startswith("cluster.") for override in overrides):
            return build(self._base.with_overrides(*overrides))
        changes = (override.partition("=") for override in overrides)
        return self._neighbours.built({key: parse_value(value) for key, _, value in changes})


def _slowdown(before: Report, after: StepResult) -> float | None:
    old = before.samples_per_s
    new = after.plan.training.global_batch / after.step_time if after.step_time > 0 else None
    return old / new if old and new else None


def _same_hardware(question: Question, tree: Tree) -> list[Candidate]:
    """Changes of recipe and strategy on the GPUs at hand."""
    recompute = () if question.recompute in ("full", "true") else ("training.recompute=full",)
    eight_bit = ("training.optimizer=adam-8bit",)
    candidates: list[Candidate] = []
    if recompute:
        candidates.append(("recipe", "full recomputation", recompute))
    if question.micro_batch > 1:
        candidates.append(("recipe", "micro-batch 1", ("training.micro_batch=1",)))
        candidates.append(("recipe", "micro-batch 1 + full recomputation", ("training.micro_batch=1", *recompute)))
    if question.zero is not None and question.zero < 3:
        candidates += [("recipe", f"ZeRO-{stage}", (f"parallel.data.strategy=zero{stage}",)) for stage in range(question.zero + 1, 4)]
        candidates.append(("recipe", "ZeRO-3 + full recomputation", ("parallel.data.strategy=zero3", *recompute)))
    if question.optimizer is None:
        candidates.append(("recipe", "8-bit Adam", eight_bit))
        candidates.append(("recipe", "8-bit Adam + full recomputation", (*eight_bit, *recompute)))
        candidates.append(("recipe", "Adafactor + full recomputation", ("training.optimizer=adafactor", *recompute)))
    if question.precision is None:
        candidates.append(
            ("recipe", "pure bf16 states (2+2+4 B/parameter) + full recomputation", ("training.precision=pure-bf16", *recompute))
        )
    candidates += offload_candidates(tree, recompute)
    half = tree["training"].get("sequence_length", 0) // 2
    if half >= 128:
        candidates.append(("recipe", f"sequence length {half} + full recomputation", (f"training.sequence_length={half}", *recompute)))
    return candidates


def _more_gpus(question: Question, present: int) -> list[Candidate]:
    """More GPUs of the same kind than the `present` ones: a larger box, or a shipped machine with this device, in growing numbers."""
    count, device = _box(question.on)
    machines = _machines(device) if device else {}
    candidates: list[Candidate] = []
    for label, extra in (("", ()), (" + full recomputation", ("training.recompute=full",))):
        for factor in (2, 4, 8):
            if not device:
                nodes = question.nodes * factor
                candidates.append((f"nodes{label}", f"{nodes} nodes of {question.on}{label}", (f"cluster.nodes={nodes}", *extra)))
            elif count * factor <= 8 and oversold({"gpu": device, "count": count * factor}, None) is None:
                box = f"{count * factor}x {device}"
                candidates.append((f"box{label}", f"{box}{label}", (f"cluster.topology={box}", *extra)))
        for name, gpus in machines.items():
            for nodes in (1, 2, 4):
                if nodes * gpus > present:
                    overrides = (f"cluster.topology={name}", f"cluster.nodes={nodes}", *extra)
                    candidates.append((f"{name}{label}", f"{nodes} x {name}{label}", overrides))
    return candidates


def _machines(device: str) -> dict[str, int]:
    """Shipped topologies whose machines hold the device, several GPUs each, with their number."""
    stem = find("devices", device).stem
    paths = {name: find("topologies", name) for name in names("topologies")}
    trees = {name: read(path).tree.get("node", {}) for name, path in paths.items() if stem in read_text(path)}
    return {name: node["gpus"] for name, node in trees.items() if node.get("device") == stem and node.get("gpus", 1) > 1}


def _other_devices(report: Report) -> list[Candidate]:
    """As many GPUs of kinds with more memory, the smallest first."""
    total = report.measured.ranks.total
    return [
        ("device", f"{total}x {name}", (f"cluster.topology={total}x {name}",))
        for name in _DEVICES
        if total <= 16 and oversold({"gpu": name, "count": total}, None) is None
    ]


def _box(on: str) -> tuple[int, str]:
    """``4x v100-32gb`` -> (4, "v100-32gb"); a topology's name -> (0, "")."""
    machine = box(on)
    return (machine["count"], machine["gpu"]) if machine is not None else (0, "")


# -- the inverse --------------------------------------------------------------------------------------------------


def check_maximum(what: str) -> None:
    """Raise a `ScenarioError` unless `what` is one of `MAXIMA`."""
    if what not in MAXIMA:
        raise ScenarioError(Finding(f"cannot maximise {what!r}", "--max", what, f"one of {', '.join(MAXIMA)}"))


def find_maximum(tree: Tree, what: str) -> Maximum:
    """The largest micro_batch, sequence_length or parameters (by layers, at the model's width) that still fits."""
    check_maximum(what)
    change: Callable[[int], Mapping[str, Any]]
    if what == "parameters":
        change = lambda value: {"model": {"base": tree["model"], "layers": value}}  # noqa: E731
    else:
        change = lambda value: {"training": {**tree["training"], what: value}}  # noqa: E731
    known: dict[int, Report | str] = {}

    def attempt(value: int) -> Report | str:
        if value not in known:
            try:
                known[value] = simulate(load({**tree, **change(value)}))
            except InputError as error:
                known[value] = error.findings[0].message
        return known[value]

    def fitting(value: int) -> bool:
        outcome = attempt(value)
        return isinstance(outcome, Report) and outcome.fits

    low = _first_fitting(fitting, attempt)
    high = low
    while high < _LONGEST and fitting(high * 2):
        high *= 2
    low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle)
    largest, beyond = attempt(low), attempt(low + 1)
    if isinstance(largest, str):  # not reached: low fits
        raise ScenarioError(Finding(largest, what, low))
    if isinstance(beyond, str):
        return Maximum(what, low, 1, largest, None, beyond)
    return Maximum(what, low, 1, largest, beyond)


def _first_fitting(fitting: Callable[[int], bool], attempt: Callable[[int], Report | str]) -> int:
    if fitting(1):
        return 1
    outcome = attempt(1)
    text = outcome if isinstance(outcome, str) else f"not even 1 fits: {outcome.verdict}"
    raise ScenarioError(Finding(text, "--max", 1, "shard more, recompute, or use more GPUs"))


# -- formulas -----------------------------------------------------------------------------------------------------


def formulas(report: Report) -> Sequence[tuple[str, str]]:
    """(category, formula with this question's numbers) for every part of the peak of the fullest device."""
    measured = report.measured
    device = max(measured.memory.devices, key=lambda d: d.device_used_bytes)
    peak, resident = device.at_peak, device.resident_bytes
    ranks = measured.ranks
    return [
        (
            "parameters",
            f"{measured.model.parameters:,} parameters; {measured.memory.bytes_per_parameter} (weight + gradient + master + moments)",
        ),
        ("split", f"over tensor {ranks.tensor} x pipeline {ranks.pipeline} x data {ranks.data} ranks, as the strategy shards them"),
        ("resident", " + ".join(f"{name} {_gib(size)}" for name, size in resident.items() if size) + f" = {_gib(sum(resident.values()))}"),
        (
            "peak",
            f"at {device.peak_op or 'the start'}, {device.peak_time_s or 0.0:.4g} s into the step: live tensors, each rounded up to 512 B",
        ),
        ("allocated", f"{_gib(device.allocated_bytes)} = the sum of live tensors as the caching allocator counts them"),
        ("reserved", f"{_gib(device.reserved_bytes)} = segments of the caching allocator (2 MiB, 20 MiB, or the size rounded to 2 MiB)"),
        (
            "device used",
            f"reserved + context {_gib(peak['context'])} + communicators {_gib(peak['communicators'])} = {_gib(device.device_used_bytes)}",
        ),
        ("fits", f"device used <= capacity {_gib(measured.memory.capacity_bytes)} - reserve {_gib(measured.memory.reserve_bytes)}"),
    ]


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"

"""Which published runs are like a scenario, and how far predictions that did not know their family were off there.

`catalogue/published_runs.csv` is written by validation/runs/predict.py: every scored row with the error of its prediction, by the effects
of training that come with parsim and by effects that were fitted without the row's family. Every scenario gets a band from it: its middle
from the former, its width from the latter. Rows count by how like they are (GPU, stack, type of matrix products, kind of strategy, size),
families by their most alike row, so that a source of 300 rows weighs no more than one of 30; the fewer the families, the wider the band.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from statistics import fmean
from typing import TYPE_CHECKING, Any

from parsim.model.parameter_counts import parameter_count
from parsim.scenario.files import home, read_text

if TYPE_CHECKING:
    from parsim.scenario.built import Built

SHARE = 0.8
"""of measured runs that the band should cover"""
APART = {"gpu": 0.5, "architecture": 1.0, "stack": 0.7, "precision": 0.7, "strategy": 0.7, "octave": 0.12}
"""how much farther apart two runs are for each thing that differs, and for each octave in GPUs and in parameters; a run counts
exp(-distance)"""
VALIDATED_ROWS, VALIDATED_ERROR = 5, 0.10
"""rows of one family with the same GPU, type of products and kind of strategy, and their mean error, from which a scenario is validated"""
_WORDS = {
    "data": "replicated states", "sharded": "sharded states", "model": "tensor or pipeline parallelism",
    "both": "sharded states and tensor or pipeline parallelism", "own": "a strategy of one's own", "expert": "expert parallelism",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Features:
    """What makes runs alike."""

    gpu: str
    """name of the device"""
    architecture: str
    """`Device.architecture`"""
    stack: str
    """software profile"""
    precision: str
    """type of matrix products"""
    strategy: str
    """data | sharded | model | both: replicas, sharded states (ZeRO-3, FSDP), tensor or pipeline parallelism, the last two together"""
    gpus: int
    parameters: float

    def distance(self, other: Features) -> float:
        """How unlike two runs are, by `APART`."""
        octaves = abs(math.log2(self.gpus / other.gpus)) + abs(math.log2(self.parameters / other.parameters))
        named = ("gpu", "architecture", "stack", "precision", "strategy")
        return math.fsum([*(APART[name] for name in named if getattr(self, name) != getattr(other, name)), APART["octave"] * octaves])

    def same_kind(self, other: Features) -> bool:
        """The same GPU, type of products and kind of strategy."""
        return (self.gpu, self.precision, self.strategy) == (other.gpu, other.precision, other.strategy)


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A published run and its errors; predicted / measured - 1."""

    id: str
    source: str
    family: str
    features: Features
    step_error: float | None
    """with effects fitted without the family"""
    calibrated_error: float | None
    """with the effects that come with parsim"""
    memory_error: float | None


@dataclass(frozen=True, slots=True)
class Band:
    """Measured / predicted of runs like a scenario: quantiles 10 and 90, and the median."""

    low: float
    middle: float
    high: float


def features(built: Built) -> Features:
    """Those of a scenario."""
    split = built.parallelism
    strategy = "data"
    if split.data.strategy in ("zero3", "fsdp", "hsdp"):
        strategy = "sharded"
    if split.data.custom is not None:
        strategy = "own"
    elif split.exchanges_tokens:
        strategy = "expert"
    elif split.tensor.size > 1 or split.pipeline.size > 1:
        strategy = "both" if strategy == "sharded" else "model"
    device = built.cluster.device(built.gpus[0])
    name = " + ".join(kind.name for kind in built.kinds) if built.effects_of_kinds else device.name  # no published run has such a mix
    parameters = float(max(1, parameter_count(built.model)))
    names = (name, device.architecture, built.runtime.profile, built.training.precision.matmul, strategy)
    return Features(*names, built.used_gpus, parameters)


@cache
def known_runs() -> tuple[KnownRun, ...]:
    """The published runs that come with parsim."""
    path = home("devices").parent / "published_runs.csv"
    if not path.exists():
        return ()
    rows = csv.DictReader(io.StringIO(read_text(path)))
    return tuple(_known(row) for row in rows)


def _known(row: Mapping[str, str]) -> KnownRun:
    features_of = Features(
        row["gpu"], row["architecture"], row["stack"], row["precision"], row["strategy"], int(row["gpus"]), float(row["parameters"])
    )
    errors = (_number(row[name]) for name in ("step_error", "calibrated_error", "memory_error"))
    return KnownRun(row["id"], row["source"], row["family"], features_of, *errors)


def _number(text: str) -> float | None:
    return float(text) if text else None


def weights(wanted: Features, runs: Sequence[KnownRun]) -> list[float]:
    """How much each run says about a scenario: a family counts by its most alike run, and its rows share that by how like they are."""
    alike = [math.exp(-wanted.distance(run.features)) for run in runs]
    nearest: dict[str, float] = {}
    total: dict[str, float] = {}
    for run, share in zip(runs, alike, strict=True):
        nearest[run.family] = max(nearest.get(run.family, 0.0), share)
        total[run.family] = total.get(run.family, 0.0) + share
    return [share * nearest[run.family] / total[run.family] for run, share in zip(runs, alike, strict=True)]


def band(wanted: Features, runs: Sequence[KnownRun], errors: Sequence[float], middles: Sequence[float]) -> Band | None:
    """The band of a scenario from the errors of runs; None without any.

    The middle is the weighted median of log(measured / predicted) by `middles`, errors of the predictions that a user gets. The
    weighted quantiles of `errors`, of predictions that did not know the run's family, say how far from their own median the truth may
    be, times 1 + 1/n with n = (sum of the families' weights)^2 / sum of their squares (Kish's effective number): with one family alone
    its spread says half of what another family will show.
    """
    if not runs:
        return None
    share = weights(wanted, runs)
    family: dict[str, float] = {}
    for run, one in zip(runs, share, strict=True):
        family[run.family] = family.get(run.family, 0.0) + one
    wider = 1.0 + math.fsum(one * one for one in family.values()) / math.fsum(family.values()) ** 2
    (middle,) = _quantiles(middles, share, [0.5])
    low, median, high = _quantiles(errors, share, [(1 - SHARE) / 2, 0.5, (1 + SHARE) / 2])
    below, above = min(0.0, wider * (low - median)), max(0.0, wider * (high - median))  # rounding may put the median beyond a quantile
    return Band(math.exp(middle + below), math.exp(middle), math.exp(middle + above))


def _quantiles(errors: Sequence[float], share: Sequence[float], places: Sequence[float]) -> list[float]:
    """The log(measured / predicted) below which `places` of the weight lie, half of each value's own on either side; linear between."""
    ordered = sorted((-math.log1p(error), one) for error, one in zip(errors, share, strict=True))
    total = math.fsum(share)
    return [_quantile(ordered, total, place) for place in places]


def _quantile(ordered: Sequence[tuple[float, float]], total: float, place: float) -> float:
    """The same of values and their weights, ascending, which sum to `total`."""
    passed, before = 0.0, None
    for value, weight in ordered:
        middle = (passed + weight / 2) / total
        if middle >= place:
            if before is None:
                return value
            return before[1] + (place - before[0]) / (middle - before[0]) * (value - before[1])
        before = (middle, value)
        passed += weight
    return ordered[-1][0]


_NEW_FACTS = {
    "mixer": "linear attention",
    "chosen_keys": "attention to chosen keys",
    "encoder": "an encoder-decoder",
    "vision": "a vision tower beside a text",
    "per_layer_inputs": "per-layer inputs",
    "shared_key_values": "layers that share keys and values",
}
"""fact of a model -> what it is, of those that no published run has"""
_PUBLISHED = ("mamba2",)
"""values of them that some have (Nemotron 3 Nano)"""


def confidence(built: Built) -> dict[str, Any]:
    """The fields of `parsim.report.estimate.Confidence` for a scenario; without a band where the times of its stages are given."""
    wanted = features(built)
    given = built.model.facts.get("family") == "stages"
    answer = {} if given else dict(_among_known_runs(wanted))
    for what in _new(built) if answer else ():
        answer |= {"status": "unvalidated", "basis": f"no published run has {what}; {answer['basis']}"}
    return {**answer, "features": asdict(wanted)}


def _new(built: Built) -> Iterator[str]:
    """What the job has and no published run has."""
    facts, training = built.model.facts, built.training
    yield from (what for fact, what in _NEW_FACTS.items() if facts.get(fact) and facts[fact] not in _PUBLISHED)
    if built.parallelism.data.outer.size > 1:
        yield "local steps"
    if training.finetune is not None and training.finetune.base == "int8":
        yield "frozen weights in int8"
    if training.objective.unsaved:
        yield "forward passes without gradients beside the step"


@lru_cache(maxsize=1024)
def _among_known_runs(wanted: Features) -> Mapping[str, Any]:
    """`confidence_of` among the published runs. Its distances cost as much as a small step; variants of a study share their features."""
    return confidence_of(wanted, known_runs())


def confidence_of(wanted: Features, runs: Sequence[KnownRun]) -> dict[str, Any]:
    """The same for features and runs; empty without runs."""
    timed = [run for run in runs if run.step_error is not None]
    if not timed:
        return {}
    filled = [run for run in runs if run.memory_error is not None]
    step = band(wanted, timed, [run.step_error or 0.0 for run in timed], [run.calibrated_error or 0.0 for run in timed])
    peaks = [run.memory_error or 0.0 for run in filled]
    memory = band(wanted, filled, peaks, peaks)
    kind = [run for run in timed if wanted.same_kind(run.features)]
    errors = {
        name: [abs(run.step_error or 0.0) for run in kind if run.family == name] for name in dict.fromkeys(run.family for run in kind)
    }
    stood = [name for name, found in errors.items() if len(found) >= VALIDATED_ROWS and fmean(found) <= VALIDATED_ERROR]
    near = sorted(timed, key=lambda run: (wanted.distance(run.features), run.id))
    return {
        "status": _status(wanted, timed, bool(stood)),
        "step": None if step is None else (step.low, step.high),
        "memory": None if memory is None else (memory.low, memory.high),
        "step_ratio": 1.0 if step is None else step.middle,
        "memory_ratio": 1.0 if memory is None else memory.middle,
        "rows": len(kind),
        "sources": tuple(dict.fromkeys(run.source for run in kind)),
        "left_out_error": fmean(fmean(found) for found in errors.values()) if errors else None,
        "basis": _basis(wanted, kind, errors),
        "nearest": tuple(_near(wanted, run) for run in near[:5]),
    }


def _status(wanted: Features, runs: Sequence[KnownRun], stood: bool) -> str:
    """Nobody has published runs of a strategy of the user's own; runs without expert parallelism say little about runs with it."""
    near = [run for run in runs if run.features.gpu == wanted.gpu and (wanted.strategy != "expert" or run.features.strategy == "expert")]
    return "validated" if stood else "interpolated" if near and wanted.strategy != "own" else "unvalidated"


def _basis(wanted: Features, kind: Sequence[KnownRun], errors: Mapping[str, Sequence[float]]) -> str:
    words = f"on {wanted.gpu} with {_WORDS[wanted.strategy]} and {wanted.precision} products"
    if not kind:
        return f"no published run {words}; the band comes from less similar ones"
    off = 100 * fmean(fmean(found) for found in errors.values())
    many = f"{len(kind)} published run{'s' if len(kind) > 1 else ''}"
    return f"{many} {words}, off by {off:.1f} % when nothing was fitted to their publishers; the band weights all runs by similarity"


def _near(wanted: Features, run: KnownRun) -> dict[str, Any]:
    differs: dict[str, Any] = {}
    for name in ("gpu", "stack", "precision", "strategy", "gpus", "parameters"):
        if getattr(run.features, name) != getattr(wanted, name):
            differs[name] = getattr(run.features, name)
    return {"id": run.id, "source": run.source, "step_error": run.step_error, "memory_error": run.memory_error, "differs": differs}

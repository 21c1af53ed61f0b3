"""Which published runs are like a scenario, and how far predictions were off there.

`catalogue/published_runs.csv` is written by validation/runs/predict.py: every counted row with the error of its a priori prediction,
and whether a parameter of that prediction came from the row's source. Runs of the same GPU and kind of strategy count; the nearest in
number of GPUs and size of model count most.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

from parsim.model.model import parameter_count
from parsim.scenario.files import home, read_text

if TYPE_CHECKING:
    from parsim.scenario.built import Built

CLOSE = 1.0
"""octaves in GPUs or parameters up to which a run is validated by the nearest one"""
_FAR = 4.0
"""octaves beyond which measured runs say nothing"""
_COUNT = 24
_LEAST = 8
SHARE = 0.8
"""of measured runs that the band should cover"""
_WORDS = {
    "data": "replicated states", "sharded": "sharded states", "model": "tensor or pipeline parallelism",
    "both": "sharded states and tensor or pipeline parallelism",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Features:
    """What makes runs alike."""

    gpu: str
    """name of the device"""
    family: str
    """data | sharded | model | both: replicas, sharded states (ZeRO-3, FSDP), tensor or pipeline parallelism, the last two together"""
    gpus: int
    parameters: float

    def distance(self, other: Features) -> float:
        """Octaves between two runs: the larger of those in GPUs and in parameters."""
        return max(abs(math.log2(self.gpus / other.gpus)), abs(math.log2(self.parameters / other.parameters)))


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A published run and its errors; predicted / measured - 1."""

    id: str
    source: str
    features: Features
    step_error: float | None
    memory_error: float | None
    fitted: bool = False
    """a parameter of the prediction was fitted to, or chosen by, runs of the same source"""


def features(built: Built) -> Features:
    """Those of a scenario."""
    split = built.parallelism
    family = "data"
    if split.data.strategy in ("zero3", "fsdp", "hsdp"):
        family = "sharded"
    if split.data.custom is not None:
        family = "own"
    elif split.tensor.size > 1 or split.pipeline.size > 1:
        family = "both" if family == "sharded" else "model"
    return Features(built.cluster.device(built.gpus[0]).name, family, built.used_gpus, float(max(1, parameter_count(built.model))))


@cache
def known_runs() -> tuple[KnownRun, ...]:
    """The published runs that come with parsim."""
    path = home("devices").parent / "published_runs.csv"
    if not path.exists():
        return ()
    rows = csv.DictReader(io.StringIO(read_text(path)))
    return tuple(
        KnownRun(
            row["id"], row["source"], Features(row["gpu"], row["family"], int(row["gpus"]), float(row["parameters"])),
            _number(row["step_error"]), _number(row["memory_error"]),
            bool(row["fitted"]),
        )
        for row in rows
    )  # fmt: skip


def _number(text: str) -> float | None:
    return float(text) if text else None


def _alike(wanted: Features, run: KnownRun) -> bool:
    return (run.features.gpu, run.features.family) == (wanted.gpu, wanted.family)


def like(wanted: Features, runs: Sequence[KnownRun]) -> list[tuple[float, KnownRun]]:
    """(distance, run) of the runs on the same GPU with the same kind of strategy, the nearest first."""
    same = [(wanted.distance(run.features), run) for run in runs if _alike(wanted, run)]
    return sorted((entry for entry in same if entry[0] <= _FAR), key=lambda entry: (entry[0], entry[1].id))


def band(errors: Sequence[float]) -> tuple[float, float] | None:
    """Factors of a prediction between which `SHARE` of the measurements lay; None for too few.

    Ranks (n + 1) q of the ratios measured / predicted, as a prediction interval for one more run has it (Hahn and Meeker,
    "Statistical Intervals", section 5.2).
    """
    if len(errors) < _LEAST:
        return None
    ratios = sorted(1.0 / (1.0 + error) for error in errors)
    low, high = ((len(ratios) + 1) * quantile - 1 for quantile in ((1 - SHARE) / 2, (1 + SHARE) / 2))
    return _between(ratios, low), _between(ratios, high)


def middle(errors: Sequence[float]) -> float:
    """The median of measured / predicted, by which an estimate multiplies a prediction; 1 where there is no `band`."""
    return 1.0 if band(errors) is None else median(1.0 / (1.0 + error) for error in errors)


def _between(ordered: Sequence[float], place: float) -> float:
    place = min(max(place, 0.0), len(ordered) - 1.0)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def confidence(built: Built) -> dict[str, Any]:
    """The fields of `parsim.report.estimate.Confidence` for a scenario."""
    return confidence_of(features(built), known_runs())


def confidence_of(wanted: Features, runs: Sequence[KnownRun]) -> dict[str, Any]:
    """The same for features and runs."""
    near = like(wanted, runs)
    steps = [run.step_error for _, run in near if run.step_error is not None][:_COUNT]
    peaks = [run.memory_error for _, run in near if run.memory_error is not None][:_COUNT]
    step, memory = band(steps), band(peaks)
    if step is None:
        return _apart(wanted, runs) if wanted.family == "both" else {}
    words = _WORDS[wanted.family]
    used = [run for _, run in near if run.step_error is not None][:_COUNT]
    count = sum(run.fitted for run in used)
    free = "nothing was fitted to them" if not count else f"parameters of the prediction were fitted to the sources of {count} of them"
    return {
        "status": "validated" if near[0][0] <= CLOSE else "interpolated",
        "step": step,
        "memory": memory,
        "step_ratio": middle(steps),
        "memory_ratio": middle(peaks),
        "basis": f"{100 * SHARE:.0f} % of the {len(steps)} nearest published runs on {wanted.gpu} with {words}; {free}",
        "nearest": tuple(_near(wanted, run) for _, run in near[:5]),
    }


def _apart(wanted: Features, runs: Sequence[KnownRun]) -> dict[str, Any]:
    """What runs with one half of such a strategy say, in words: neither is a band for both halves together."""
    parts = []
    for family in ("sharded", "model"):
        half = replace(wanted, family=family)
        same = sorted((half.distance(run.features), run.id, run) for run in runs if _alike(half, run) and run.step_error is not None)
        near = [run for *_, run in same[:_COUNT]]
        if factors := band([run.step_error for run in near if run.step_error is not None]):
            gpus = [run.features.gpus for run in near]
            where = f"{len(near)} runs on {min(gpus)} to {max(gpus)} GPUs"
            parts.append(f"{factors[0]:.2f} to {factors[1]:.2f} with {_WORDS[family]} alone ({where})")
    if not parts:
        return {}
    taken = f"measured over predicted, {100 * SHARE:.0f} % of runs: {', '.join(parts)}"
    return {"basis": f"no published run on {wanted.gpu} has {_WORDS['both']}; {taken}"}


def _near(wanted: Features, run: KnownRun) -> dict[str, Any]:
    differs: dict[str, float] = {}
    if run.features.gpus != wanted.gpus:
        differs["gpus"] = run.features.gpus
    if run.features.parameters != wanted.parameters:
        differs["parameters"] = run.features.parameters
    return {"id": run.id, "source": run.source, "step_error": run.step_error, "memory_error": run.memory_error, "differs": differs}

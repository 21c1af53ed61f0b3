"""What bounds say of a candidate, and of the figures that a study looks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import NamedTuple

from parsim.study.sweep.candidates import Place
from parsim.study.sweep.objective import Objective

SLACK = 1e-9
"""relative; a bound must be worse by more than rounding"""


class Least(NamedTuple):
    """What no simulation of a candidate falls below."""

    step_time: float
    """[s]"""
    memory: float = 0.0
    """of the fullest device [B]"""
    full: str = ""
    """why it surely does not fit"""
    samples: float | None = None
    """exactly, per step"""
    tokens: float | None = None
    """the same"""
    gpus: float | None = None
    """the same"""
    bill: Mapping[str, float] = {}
    """time to train, GPU-hours, money and energy, by the names of `parsim.report.economics.METRICS`"""
    exact: bool = False
    """the step was simulated: its time is no bound"""


Bound = Callable[[Place], Least | None]
"""proven lower bounds of a candidate; None where there are none"""

BILLED = (
    "time_to_train_s", "gpu_hours", "gpu_hours_billed", "cost_to_train", "cost_per_step", "cost_per_million_tokens",
    "cost_per_million_samples", "energy_J", "energy_per_step_J", "energy_per_token_J", "co2_kg",
)  # fmt: skip
"""metrics of the bill that never fall where the step takes longer"""


def _billed(name: str, least: Least) -> float | None:
    return least.bill.get(name)


_OF_BOUNDS: dict[str, Callable[[Least], float | None]] = {
    "step_time_s": lambda least: least.step_time,
    "samples_per_s": lambda least: _over(least.samples, least.step_time),
    "tokens_per_s": lambda least: _over(least.tokens, least.step_time),
    "tokens_per_s_per_gpu": lambda least: None if least.gpus is None else _over(least.tokens, least.step_time * least.gpus),
    "gpu_hours_per_million_tokens": lambda least: (
        None if least.gpus is None else _over(least.gpus * least.step_time * 1e6 / 3600.0, least.tokens or 0.0)
    ),
    "peak_bytes": lambda least: least.memory,
    "gpus": lambda least: least.gpus,
    **{name: partial(_billed, name) for name in BILLED},
}
"""metric -> what bounds say of it: the least it can be, or the most where more is better"""
UNTIMED = ("peak_bytes", "gpus")
"""those of them that say nothing of the step's time"""


def bounds_help(objective: Objective) -> bool:
    """Whether bounds say anything of an objective, in the direction asked for."""
    return objective.metric.name in _OF_BOUNDS and objective.most == (objective.metric.better == "higher")


def least_of(objective: Objective, least: Least) -> float:
    """What the score of an objective cannot fall below; minus infinity where nothing is known."""
    name = objective.metric.name
    found = _OF_BOUNDS[name](least)
    slack = 0.0 if name in UNTIMED or (least.exact and name == "step_time_s") else SLACK  # the others are put together otherwise
    return -inf if found is None else -found * (1.0 + slack) if objective.most else found * (1.0 - slack)


def _over(one: float | None, other: float) -> float | None:
    return None if one is None or other <= 0 else one / other

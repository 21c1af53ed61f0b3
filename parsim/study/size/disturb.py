"""A configuration where machines and steps differ: the median of a few runs in the place of its step, and what one slow GPU costs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parsim.execution.disturbed import DisturbedStep
from parsim.execution.prepared import prepare
from parsim.execution.slow_gpu import slow_gpu
from parsim.report.order_statistics import quantile
from parsim.report.slow_gpu import SPEED, SlowGpu
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.study.size.strategies import Configuration, Runs

RUNS = 11
"""of each configuration unless the question says otherwise: few, since those of 512 GPUs take one to two seconds; odd, so that one of them
is the median"""


def disturbed(one: Configuration, variability: Mapping[str, Any], runs: int, *, trust_code: bool = False) -> Configuration:
    """The same configuration with the median of `runs` disturbed steps as its step, every run another cluster and another step.

    With ``slow`` ranks and nothing drawn there is one run. Large steps are longest paths instead of events (`parsim.execution.disturbed`).

    Raises:
        InputError: the variability is wrong, or not supported with this strategy.
    """
    tree = {**one.tree, "variability": {**variability, "runs": runs}}
    step = DisturbedStep(prepare(build(load(tree, trust_code=trust_code))))
    times = sorted(sample.step_time for sample in step.samples(range(runs))) if step.causes else [step.nominal]
    middle = quantile(times, 0.5)
    if not step.causes:
        tree["variability"] = dict(variability)
    return replace(
        one,
        step_time=middle,
        mfu=None if one.mfu is None else one.mfu * one.simulated_step_time / middle,
        runs=Runs(len(times), times[0] / middle, times[-1] / middle, "" if not step.causes else step.method),
        tree=tree,
    )


def with_slow_gpu(one: Configuration, *, trust_code: bool = False) -> SlowGpu | None:
    """What one slow GPU costs the undisturbed step of a configuration."""
    prepared = prepare(build(load(one.tree, trust_code=trust_code)))
    return slow_gpu(prepared, prepared.run().step_time, SPEED)

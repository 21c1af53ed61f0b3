"""What one slow GPU costs: the step is lowered again with one rank slower, everything else as planned, at every place where it matters."""

from __future__ import annotations

from parsim.errors import Finding, PlanError
from parsim.execution.prepared import Prepared, prepare
from parsim.execution.short_steps import ShortStep, short_steps
from parsim.parallel.groups import PIPELINE
from parsim.report.measured import compress_ranges
from parsim.report.slow_gpu import SlowGpu, SlowPlace, slow_gpu_of
from parsim.simulation.engine import collector_paused

MOST_PLACES = 32
"""classes of ranks that are tried, those of different stages first; a step takes as long as the undisturbed one to simulate, or twice"""


def slow_gpu(prepared: Prepared, nominal: float, speed: float) -> SlowGpu | None:
    """One more GPU at `speed` of what it does in a step that takes `nominal` seconds; ranks that do the same are tried once.

    Its kernels take 1 / `speed` as long, as with ``variability.slow``; layers and batch stay split as they are. None: all ranks are slow
    already. Raises PlanError for a speed that is none.
    """
    speed = checked(speed)
    plan, classes = prepared.plan, prepared.classes
    stage_of = plan.mesh.coordinates(PIPELINE)
    there = [rank for rank in classes.representatives if rank not in plan.slow]
    firsts = {stage_of[rank]: rank for rank in reversed(there)}
    tried = [*firsts.values(), *(rank for rank in there if firsts[stage_of[rank]] != rank)][:MOST_PLACES]
    with collector_paused():
        short = _short(prepared)
        places = [
            SlowPlace(rank, compress_ranges(classes.members(rank)), stage_of[rank], _step_time(prepared, short, rank, speed))
            for rank in tried
        ]
    return slow_gpu_of(places, speed, nominal, plan.mesh.ranks, left_out=len(there) - len(tried))


def checked(speed: float) -> float:
    """The speed. Raises PlanError for one that is none."""
    if not 0 < speed < 1:
        raise PlanError(Finding("the speed of a slow GPU is a share of its own, between 0 and 1", "--slow-gpu", speed, "for example 0.8"))
    return speed


def _short(prepared: Prepared) -> tuple[ShortStep, Prepared] | None:
    """The short step that answers for the step as planned, if there is one."""
    for short in short_steps(prepared.built):
        brief = prepare(short.built, unfolded=not prepared.folded, clock=prepared.clock)
        if short.makespan(brief.run()) is not None:
            return short, brief
    return None


def _step_time(prepared: Prepared, short: tuple[ShortStep, Prepared] | None, rank: int, speed: float) -> float:
    """One step with the rank at this speed [s]: from the short one, if it repeats itself then too."""
    if short is not None:
        end = short[0].makespan(short[1].slower(rank, speed).run())
        if end is not None:
            return end
    return prepared.slower(rank, speed).run().step_time

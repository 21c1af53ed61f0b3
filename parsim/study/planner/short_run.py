"""A step from its first micro-batches: provisional, and quicker than the whole.

Where the trace of a short step repeats itself (`parsim.run.step_from_periods`) the step time of the long one follows exactly, and its
memory is that of the short one but for what the allocator's history may still do. Where it does not (schedules that keep every
micro-batch, or never flush; replicas with different numbers of micro-batches; code of the user's) there is no short run.
"""

from __future__ import annotations

from parsim.run import StepResult, step_from_periods
from parsim.scenario.built import Built

MARGIN = 0.01
"""of the capacity; a peak of a short run that is nearer to it decides nothing"""


def short_run(built: Built) -> StepResult | None:
    """The begin of a step; None where it says nothing about the whole. Raises as `simulate`."""
    return None if built.faults else step_from_periods(built)


def surely_fits(short: StepResult) -> bool | None:
    """Whether it fits; None where the peak is too near to the capacity to say so from a short run."""
    memory = short.simulated_memory
    if abs(memory.headroom) <= MARGIN * memory.capacity_bytes:
        return None
    return memory.headroom > 0 and (memory.host is None or memory.host.lacks == 0)

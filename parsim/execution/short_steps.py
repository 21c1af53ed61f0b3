"""Steps of fewer micro-batches that answer for a long one, if their traces prove that it repeats itself (`parsim.simulation.periods`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from parsim.parallel.groups import PIPELINE
from parsim.parallel.schedules import CUSTOM, ENDLESS, grows, schedule
from parsim.parallel.schedules.repetition import Repetition, repetitions, shorter
from parsim.report.simulated import SimulatedStep
from parsim.scenario.built import Built
from parsim.simulation.periods import period_of


@dataclass(frozen=True)
class ShortStep:
    """One that may repeat itself."""

    built: Built
    """the job with fewer micro-batches"""
    left_out: int
    """micro-batches that the whole step has more"""
    cycles: Mapping[int, tuple[Repetition, ...]]
    """micro-batches of a period -> where the schedule of each stage repeats itself so"""

    def makespan(self, run: SimulatedStep) -> float | None:
        """End of the last op of the whole step, when `run` is one of the short step [s]; None if it does not repeat itself."""
        for cycle, found in self.cycles.items():
            repeating = {rank: found[run.plan.mesh.coordinate(rank, PIPELINE)] for rank in run.trace.program.begins}
            if (period := period_of(run.trace, repeating, cycle)) is not None:
                return period.makespan(run.trace, self.left_out)
        return None


def short_steps(built: Built) -> Iterator[ShortStep]:
    """Those that are worth running instead of the whole, fewest micro-batches first; none where nothing can repeat itself."""
    pipeline, micro_batches = built.parallelism.pipeline, built.training.micro_batches
    own = pipeline.schedule == CUSTOM or built.parallelism.data.custom is not None  # code of the user's may count micro-batches
    blocking = pipeline.size > 1 and not pipeline.overlap_sends  # where such sends stand depends on all that comes before and after
    flushes = pipeline.schedule not in ENDLESS and not pipeline.post_validation  # else a step is a stretch of a longer run already
    if not grows(pipeline.schedule, pipeline.size, micro_batches):
        return
    together = built.parallelism.data.outer.size == 1
    if built.training.shares or own or blocking or not flushes or not together or not all(stream.steady for stream in built.background):
        return
    for count in shorter(pipeline.size, micro_batches, pipeline.virtual_stages):
        # schedules of a name grow by whole periods: where two more groups of p go in, any number does
        rows, longer = (schedule(pipeline.schedule, pipeline.size, m, pipeline.virtual_stages) for m in (count, count + 2 * pipeline.size))
        cycles = {cycle: found for cycle, found in repetitions(rows, longer).items() if (micro_batches - count) % cycle == 0}
        if cycles:
            yield ShortStep(replace(built, training=replace(built.training, micro_batches=count)), micro_batches - count, cycles)

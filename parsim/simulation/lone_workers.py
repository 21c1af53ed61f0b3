"""Steps in which one worker alone is disturbed: the ranks of one pipeline stage in one replica.

What each worker costs is what the step takes with its times as they are and those of all others as planned (the question of Lin et al.,
arXiv 2505.05713, section 5). Asked one by one that would be stages x replicas steps for each run. But while one replica is
disturbed all others are equal: next to each column stands one that stands for all of them, and a stage is one longest path.
Where replicas differ as planned (some cross machines), the others of a quick replica are taken as quick until the step ends, which no
worker makes earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from parsim.parallel.groups import PIPELINE
from parsim.simulation.draws import Floats
from parsim.simulation.longest_path import Replicas, ends
from parsim.simulation.op_factors import Disturbance, Kernels, OpFactors
from parsim.simulation.slowest_rank import SlowestRank
from parsim.simulation.step_arrays import MOST_NUMBERS, StepArrays
from parsim.simulation.trace import Trace

_ROUNDING = 1e-12
"""relative: sums of floats in another order"""


class LoneWorkers(StepArrays):
    """The arrays of a step with two columns per replica: itself, and one that stands for all others."""

    def __init__(self, factors: OpFactors, columns: int, trace: Trace) -> None:
        super().__init__(factors, columns, trace)
        self._columns = columns
        self._stage_of = factors.plan.mesh.coordinates(PIPELINE)
        self.stages = factors.plan.mesh.size(PIPELINE)
        known = self._replicas
        self._pairs = Replicas(
            [np.concatenate([some, some + columns]) for some in known.sets],
            known.of,
            {node: np.tile(np.arange(len(of)), 2) for node, of in known.groups.items()},  # each waits for all others
        )
        self.numbers = 2 * int(np.dot(self._rows, [len(some) for some in known.sets]))
        """of the arrays of one step"""

    def slowdowns(self, disturbances: Sequence[Disturbance]) -> Floats:
        """The step with one worker alone over that with none, less one, shape (runs, stages, columns); 0 where it changes nothing.

        Ranks that are slow all the time are part of a worker's disturbance.
        """
        base = self._planned()
        whole = float(self._latest([array.copy() for array in base]).max())
        found = np.zeros((self.stages, len(disturbances), self._columns))
        pairs = list(product(range(self.stages), range(len(disturbances)))) if whole > 0 else []
        each = max(1, MOST_NUMBERS // max(1, self.numbers))
        for first in range(0, len(pairs), each):
            some = pairs[first : first + each]
            latest = self._latest(self._disturbed(base, some, disturbances))
            for place, (stage, run) in enumerate(some):
                found[stage, run] = np.maximum(latest[place], whole) / whole - 1.0
        found[np.abs(found) < _ROUNDING] = 0.0
        return np.moveaxis(found, 0, 1)

    def _planned(self) -> list[Floats]:
        """What nodes take without any disturbance, by set an array (rows, 1, columns) [s]."""
        arrays = [np.zeros((rows, 1, len(some))) for rows, some in zip(self._rows, self._pairs.sets, strict=True)]
        for kernels in self._factors.kernels:
            self._add(arrays, kernels.ops[self._segments(kernels)], self._plain(kernels)[None, None])
        for transfer in self._factors.transfers:
            self._add(arrays, transfer.ops, self._took[transfer.ops][None, None])
        return arrays

    def _plain(self, some: Kernels) -> Floats:
        """What the segments of a lane take on a rank that is not slow [s]."""
        seconds: Floats = np.add.reduceat(self._took[some.ops], self._segments(some))
        return seconds * self._factors.plan.slow.get(some.rank, 1.0)

    def _disturbed(self, base: Sequence[Floats], some: Sequence[tuple[int, int]], disturbances: Sequence[Disturbance]) -> list[Floats]:
        """What nodes take where, for each (stage, run), the workers of that stage have the times of that run."""
        arrays = [np.repeat(array, len(some), axis=1) for array in base]
        for kernels in self._factors.kernels:
            stage = self._stage_of[kernels.rank]
            places = [place for place, (of, _) in enumerate(some) if of == stage]
            if not places:
                continue
            runs = [disturbances[some[place][1]] for place in places]
            nobody = [SlowestRank(self._factors.plan.mesh.ranks) for _ in runs]
            more = np.zeros((len(some), len(self._factors.columns[kernels.rank]), len(self._segments(kernels))))
            more[places] = self._of_kernels(kernels, runs, nobody) - self._plain(kernels)
            self._add(arrays, kernels.ops[self._segments(kernels)], np.concatenate([more, np.zeros_like(more)], axis=1))
        return arrays

    def _latest(self, seconds: list[Floats]) -> Floats:
        """When the last op of each replica or of all others ends, shape (steps, replicas) [s]."""
        of, row = self._pairs.of, self._row.tolist()
        ends(self._order, [seconds[number][place] for number, place in zip(of, row, strict=True)], self._pairs)
        found = np.zeros((seconds[0].shape[1], 2 * self._columns))
        for some, array in zip(self._pairs.sets, seconds, strict=True):
            if len(array):
                found[:, some] = np.maximum(found[:, some], array.max(axis=0))
        latest: Floats = np.maximum(found[:, : self._columns], found[:, self._columns :])
        return latest

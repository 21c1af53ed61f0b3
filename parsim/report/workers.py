"""What each worker costs: the ranks of one pipeline stage in one replica, alone as they are while all others run as planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WorkerSlowdowns:
    """The step with one worker alone over the step with none, less one."""

    slowdown: tuple[tuple[float, ...], ...]
    """by stage, by replica; means over the runs"""
    ranks: tuple[tuple[str, ...], ...] = ()
    """of every worker, as compressed ranges; empty where nobody knows"""
    runs: int = 0
    """with random draws; 0: nothing is drawn, ranks are known to be slow"""

    @property
    def stages(self) -> int:
        """Of the pipeline."""
        return len(self.slowdown)

    @property
    def replicas(self) -> int:
        """Of each stage."""
        return len(self.slowdown[0])

    @property
    def most(self) -> float:
        """The slowdown by the worst worker; 0 where none makes the step longer."""
        return max(0.0, *(max(row) for row in self.slowdown))

    @property
    def worst(self) -> tuple[int, int] | None:
        """(stage, replica) of the worker that costs most; None where none costs anything."""
        most = self.most
        if most <= 0:
            return None
        return next((stage, row.index(most)) for stage, row in enumerate(self.slowdown) if most in row)

    def name(self, stage: int, replica: int) -> str:
        """``stage 2 of replica 3 (rank 19)``."""
        ranks = self.ranks[stage][replica] if self.ranks else ""
        of = f" (rank{'s' * (not ranks.isdigit())} {ranks})" if ranks else ""
        where = f"replica {replica}" if self.stages == 1 else f"stage {stage}"
        return f"{where}{f' of replica {replica}' if self.stages > 1 and self.replicas > 1 else ''}{of}"

    def sentence(self) -> str:
        """The worst worker, for a terminal."""
        count = f"{self.stages * self.replicas:,} workers"
        over = ("", " in the first run")[self.runs] if self.runs < 2 else f" in the mean of the first {self.runs} runs"
        if (worst := self.worst) is None:
            return f"Stragglers: none of {count} alone makes the step longer{over}."
        slow = sum(value > 0 for row in self.slowdown for value in row)
        others = "; the others nothing" if slow == 1 else f", the most of {count}"
        return f"Stragglers: {self.name(*worst)} alone makes the step {100 * self.most:.3g} % longer{over}{others}."

    def notes(self) -> Iterator[str]:
        """What to know of these numbers."""
        yield (
            "A worker is the ranks of one pipeline stage in one replica. Its slowdown: the step in which its kernels alone take as long as"
            " they do, over the step in which none is disturbed, less one (Lin et al., arXiv:2505.05713)."
        )
        if self.runs:
            yield "What is common to all workers (jitter.step, aligned pauses) and jitter of collectives are left out."

    def document(self) -> dict[str, Any]:
        """The mapping that stands under ``variability`` in the report's JSON document."""
        worst = self.worst
        return {
            "stages": self.stages,
            "replicas": self.replicas,
            "runs": self.runs,
            "slowdown": [list(row) for row in self.slowdown],
            "worst": None
            if worst is None
            else {"stage": worst[0], "replica": worst[1], "ranks": self.ranks[worst[0]][worst[1]], "slowdown": self.most},
        }

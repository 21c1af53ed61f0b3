"""What failures leave of the time: expected values in closed form, for every bill, search and comparison.

`parsim.simulation.training` plays the same weeks through with its events; tests hold the two against each other and against
`parsim.theory`, which neither asks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, expm1, fsum, lgamma, log, sqrt
from typing import Any

SHORTEST = 1.0
"""checkpoints that take no time are still not written more often [s]"""
_NEWTON = 60
"""steps at most; a handful suffice"""


@dataclass(frozen=True)
class Failures:
    """Failures at a constant rate, each of which stops the whole job; all times in seconds.

    After a failure the job restarts (`restart`), does again what came after the last checkpoint, and goes on. Failures may
    strike while a checkpoint is written and while the job restarts. Source: Daly, A higher order estimate of the optimum
    checkpoint interval for restart dumps, 2006, equation 20; with restarts of several lengths e^(R/M) is 1/E[e^(-R/M)], and of
    asynchronous checkpoints the share e^(-L/M) is durable when a failure strikes.
    """

    mtbf: float
    """mean time between failures of the whole job"""
    checkpoint: float
    """training stands still for this long to write one"""
    restart: float
    """on average; from a failure until training goes on"""
    interval: float
    """training time between two checkpoints"""
    lag: float = 0.0
    """from the end of that until the checkpoint is durable"""
    in_memory: float = 0.0
    """share of the failures that a copy in memory survives, whatever the lag"""
    restarts: tuple[tuple[float, float], ...] = ()
    """share of the failures and their restart, where they differ"""
    policy: str = "restart"
    """restart | hot_spare | elastic | replica"""
    replicas: int = 1
    exchanged: float = 1.0
    """share of the failures after which a machine is away"""
    repair: float = 0.0
    """for how long, on average over those"""
    spares: int = 0

    @classmethod
    def at_best(cls, mtbf: float, checkpoint: float, restart: float, interval: float = 0.0, **other: Any) -> Failures:
        """With the interval that wastes least where none is given, and none so short that checkpoints overtake each other."""
        chosen = interval or max(best_interval(checkpoint, mtbf), other.get("lag", 0.0) - checkpoint)
        return cls(mtbf, checkpoint, restart, chosen, **other)

    def rarer(self, factor: float) -> Failures:
        """The same with `factor` times the time between failures, and the best interval for it."""
        other = replace(self, mtbf=self.mtbf * factor)
        return replace(other, interval=max(best_interval(self.checkpoint, other.mtbf), self.lag - self.checkpoint))

    def every(self, interval: float) -> Failures:
        """The same with another interval between checkpoints."""
        return replace(self, interval=interval)

    @property
    def capacity(self) -> float:
        """Mean share of the replicas that train; 1 where all stop together.

        Without spares replicas fail and come back by themselves (alternating renewal); with spares as many are away as there are
        machines in repair beyond the spares, of a Poisson number (Palm).
        """
        if self.policy not in ("elastic", "replica") or self.exchanged == 0.0:
            return 1.0
        away = self.exchanged * self.repair / self.mtbf
        if self.spares == 0:
            return 1.0 / (1.0 + away / self.replicas)
        return max(1.0 / self.replicas, 1.0 - _beyond(self.spares, away) / self.replicas)

    @property
    def wall_per_useful(self) -> float:
        """Expected time per time of training, at least 1: M e^(R/M) (e^((tau + C)/M) - 1) / tau where all stop."""
        capacity = self.capacity
        mtbf = self.mtbf / capacity  # what is away cannot fail
        if self.policy == "replica":
            return self._restarting(mtbf) * (self.interval + self.checkpoint) / self.interval / capacity
        wall = mtbf * self._restarting(mtbf) * expm1((self.interval + self.checkpoint) / mtbf) / self.interval
        if self.lag:
            wall /= self.in_memory + (1.0 - self.in_memory) * exp(-self.lag / mtbf)
        if self.policy == "elastic" and self.spares == 0:
            wall *= 1.0 + self.exchanged * self.restart / mtbf  # the planned stop in which the replica comes back
        return wall / capacity

    def wall_sd(self, useful: float) -> float:
        """Standard deviation of the time that so much training takes [s], of a job that stops and restarts as a whole.

        An interval is tried until none of its tries fails: of a geometric number n of failures, each loses a time to failure x below
        tau + C and a restart, which failures begin anew in the same way, so Var = E[n] Var[x + r] + Var[n] E[x + r]^2. Intervals are
        independent; the lag of asynchronous saves and the spread of restarts are left out.
        """
        tries, scatter = _geometric(self.interval + self.checkpoint, self.mtbf)
        lost, lost_variance = _before(self.interval + self.checkpoint, self.mtbf)
        again, again_scatter = _geometric(self.restart, self.mtbf)
        short, short_variance = _before(self.restart, self.mtbf)
        each = lost + self.restart + again * short
        variance = lost_variance + again * short_variance + again_scatter * short**2
        return sqrt(useful / self.interval * (tries * variance + scatter * each**2))

    def _restarting(self, mtbf: float) -> float:
        """e^(R/M), or 1/E[e^(-R/M)]."""
        if not self.restarts:
            return exp(self.restart / mtbf)
        return 1.0 / fsum(share * exp(-restart / mtbf) for share, restart in self.restarts)

    @property
    def goodput(self) -> float:
        """Useful time over all time, in (0, 1]."""
        return 1.0 / self.wall_per_useful

    @property
    def optimum(self) -> float | None:
        """The interval of the best goodput [s], exactly: M (1 + W(-e^(-s/M - 1))), W Lambert's; None where no work is ever lost."""
        return None if self.policy == "replica" else exact_interval(self.checkpoint, self.mtbf / self.capacity)

    @property
    def in_repair(self) -> float:
        """Machines in repair at a time, on average."""
        return self.exchanged * self.repair / self.mtbf

    def spares_for(self, probability: float) -> int:
        """Fewest spare machines that suffice with this probability at any time; the number in repair is Poisson (Palm)."""
        mean, spares = self.in_repair, 0
        while mean > 0.0 and _at_most(spares, mean) < probability:
            spares += 1
        return spares

    def document(self, wall: float | None) -> dict[str, Any]:
        """The report's numbers; `wall`: the whole training [s], None if its length is unknown."""
        writing = self.goodput * self.checkpoint / self.interval
        return {
            "job_mtbf_s": self.mtbf,
            "checkpoint_time_s": self.checkpoint,
            "checkpoint_interval_s": self.interval,
            "restart_time_s": self.restart,
            "checkpoint_share": writing,
            "lost_share": max(0.0, 1.0 - self.goodput - writing),
            "expected_failures": None if wall is None else wall / self.mtbf,
        }


def best_interval(checkpoint: float, mtbf: float) -> float:
    """Training time between checkpoints that wastes least [s]: Daly's estimate for C < 2M, else M.

    sqrt(2CM) (1 + sqrt(C/2M)/3 + C/18M) - C; Young's sqrt(2CM) is its first term. Within 0.2 % of the best goodput (tests).
    """
    if checkpoint >= 2 * mtbf:
        return mtbf
    ratio = checkpoint / (2 * mtbf)
    return max(SHORTEST, sqrt(2 * checkpoint * mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint)


def exact_interval(checkpoint: float, mtbf: float) -> float:
    """The best interval without an estimate [s]; it depends neither on the restart nor on the lag.

    The derivative of tau / (e^((tau + s)/M) - 1) is zero where x - 1 + e^(-s/M - x) = 0 for x = tau/M: convex, so that Newton's steps
    from above never miss.
    """
    at = exp(-checkpoint / mtbf)
    x = min(1.0, sqrt(2.0 * checkpoint / mtbf)) if checkpoint else 0.0
    for _ in range(_NEWTON):
        if x == 0.0:
            break
        step = (x + expm1(-x) * at - (1.0 - at)) / (1.0 - at * exp(-x))
        x -= step
        if abs(step) <= 1e-15 * x:
            break
    return max(SHORTEST, x * mtbf)


def _at_most(most: int, mean: float) -> float:
    """Probability that a Poisson number is at most so large."""
    return fsum(exp(count * log(mean) - mean - lgamma(count + 1)) for count in range(most + 1))


def _beyond(spares: int, mean: float) -> float:
    """Expected excess of a Poisson number over `spares`: E[X] - s + E[(s - X)+]."""
    if mean <= 0.0:
        return 0.0
    short = fsum((spares - count) * exp(count * log(mean) - mean - lgamma(count + 1)) for count in range(spares))
    return max(0.0, mean - spares + short)


def _geometric(time: float, mtbf: float) -> tuple[float, float]:
    """Mean and variance of the number of failures before `time` passes without one."""
    fails = expm1(time / mtbf)
    return fails, fails * (1.0 + fails)


def _before(time: float, mtbf: float) -> tuple[float, float]:
    """Mean and variance of the time to a failure that comes before `time` [s, s^2]."""
    if time <= 0.0:
        return 0.0, 0.0
    weight = time / expm1(time / mtbf)
    mean = mtbf - weight
    return mean, 2.0 * mtbf**2 - weight * (time + 2.0 * mtbf) - mean**2

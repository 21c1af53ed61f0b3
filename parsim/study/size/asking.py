"""What is known of an answer while machines are sized, and what is left of it where the user ends that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from parsim.study.size.answer import BetterConfiguration, Looked, Sized, possible_of, ranking
from parsim.study.size.prices import PriceTag
from parsim.study.size.question import SizeQuestion
from parsim.study.size.strategies import Configuration

UNFINISHED = "not finished (interrupted)"
"""what is said of a machine that was not searched to its end"""


class Asking:
    """What is known while machines are sized."""

    def __init__(self, question: SizeQuestion, prices: Sequence[PriceTag | None], improved: Callable[[BetterConfiguration], None]) -> None:
        self._question, self._prices, self._improved = question, prices, improved
        self._began = monotonic()
        self._best: Configuration | None = None
        self._heard: dict[str, dict[int, Looked]] = {}
        self._done: list[Sized] = []

    def hear(self, machine: str, looked: Looked) -> None:
        """Of one number of GPUs."""
        self._keep(machine, looked)
        found = looked.found
        if found is None or not possible_of([found], self._question):
            return
        before = self._best
        if before is None or ranking([before, found], self._question.minimise)[0] is found:
            self._best = found
            self._improved(BetterConfiguration(monotonic() - self._began, found))

    def _keep(self, machine: str, looked: Looked) -> None:
        """Of a number of GPUs that was looked at twice, the faster strategy."""
        kept = self._heard.setdefault(machine, {})
        before = kept.get(looked.gpus)
        known = None if before is None else before.found
        if known is None or (looked.found is not None and looked.found.seconds <= known.seconds):
            kept[looked.gpus] = looked

    @property
    def complete(self) -> bool:
        """Whether every machine is done."""
        return len(self._done) == len(self._question.machines)

    def take(self, came: Iterable[Sized]) -> bool:
        """Wait for all machines; whether the user ended it before."""
        try:
            for one in came:
                self._done.append(one)
        except KeyboardInterrupt:
            return not self.complete
        return False

    def machines(self) -> tuple[Sized, ...]:
        """All of them; of those that were not done, what was heard."""
        rest = zip(self._question.machines[len(self._done) :], self._prices[len(self._done) :], strict=True)
        return (*self._done, *(self._partly(machine.label, price) for machine, price in rest))

    def _partly(self, machine: str, price: PriceTag | None) -> Sized:
        looked = tuple(sorted(self._heard.get(machine, {}).values(), key=lambda one: one.gpus))
        possible = possible_of([one.found for one in looked if one.found is not None], self._question)
        reason = "" if possible else UNFINISHED
        notes = (UNFINISHED,) if possible else ()
        return Sized(machine, tuple(one.gpus for one in looked), looked, possible, reason, notes, (), price)

"""What stands beside the ops of a run: the hardware that carries them, and processes that disturb them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from parsim.hardware.flows import CollectiveCost
from parsim.program.program import Collective

if TYPE_CHECKING:
    from parsim.simulation.engine import EngineRun

Process = Callable[["EngineRun"], Generator[Any, Any, Any]]
"""makes a SimPy process beside the ops; it may use the run's `env` and what stands under `EngineRun`: what processes may do"""


@dataclass(frozen=True)
class BoundedProcess:
    """A process that changes no links but these: transfers elsewhere need not be watched."""

    process: Process
    links: frozenset[int] = frozenset()

    def __call__(self, run: EngineRun) -> Generator[Any, Any, Any]:
        """The process itself."""
        return self.process(run)


class CollectiveCosts(Protocol):
    """What the engine asks of the hardware."""

    def cost(self, collective: Collective) -> CollectiveCost:
        """Latency and flows of a collective on an idle fabric."""

    def capacity(self, link: int) -> float:
        """Capacity of a link by id [B/s]."""

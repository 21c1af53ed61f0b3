"""The one clock of a run: SimPy's environment, in whose queue the ends of ops stand as plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

import simpy
from simpy.events import NORMAL

NUMBER = NORMAL
"""priority of numbers"""


class Clock(simpy.Environment):
    """A SimPy environment whose queue also holds numbers.

    An event object with a callback per op costs more than all the rest of an op, so `parsim.simulation.engine` puts numbers in the
    queue and says itself what they mean. Whatever contends, waits or changes over time is an ordinary event or process beside them.
    Numbers at one time come before SimPy's events of normal priority, in the order of `rank`, which must be negative.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[float, Any, int, Any]] = self._queue
        """SimPy's queue: (time [s], priority, rank, event or number), the next first"""
        self.push: Callable[[tuple[float, Any, int, int]], None] = partial(heappush, self.entries)
        """have a number come up: (time [s], `NUMBER`, rank, number)"""

    def pop(self) -> tuple[float, int]:
        """The next entry, which must be a number: its time, which is now, and the number."""
        now, _, _, number = heappop(self.entries)
        self._now = now
        return now, number

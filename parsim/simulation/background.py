"""Traffic of other jobs on the network of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import simpy

from parsim.errors import ParsimError
from parsim.hardware.transfers import SHORTEST_PERIOD, Background
from parsim.simulation.network import Network

_TURNS = -(10**15)
"""links of the streams that flow in turns, far below those of the lanes"""


class BackgroundTraffic:
    """Starts streams and repeated transfers, and stops a run that only they would keep going."""

    def __init__(self, streams: Sequence[Background], network: Network, env: simpy.Environment) -> None:
        self.streams = streams
        self.network = network
        self.env = env
        self.links = frozenset(link for stream in streams for link, _ in stream.path)
        self._ticks = 0
        self._look_at = 1
        for stream in streams:
            lasting = stream.every == 0 or SHORTEST_PERIOD <= stream.every < inf
            if not (stream.duty == 1 or (stream.every and 0 < stream.duty < 1 and stream.volume == inf)):
                raise ParsimError(
                    f"background: duty (={stream.duty}) must be > 0 and < 1, of a stream with every (={stream.every}) > 0 [s]"
                )
            if not (stream.volume > 0 and 0 <= stream.begin < inf and lasting):
                text = f"volume (={stream.volume}) must be > 0 [B], begin (={stream.begin}) >= 0 [s], every (={stream.every})"
                raise ParsimError(f"background: {text} 0 or at least {SHORTEST_PERIOD:g} [s]")

    def begin(self) -> None:
        """Start what begins at time 0, and have the rest started."""
        for number, stream in enumerate(self.streams):
            if stream.duty < 1:
                self._in_turns(stream, _TURNS - number)
            elif stream.volume == inf:
                self._start(stream, _nobody)
            else:
                self.env.timeout(stream.begin, stream).callbacks.append(self._transfer)

    def due(self) -> bool:
        """Whether it is time to look for a program that is stuck: after 1, 2, 4, 8 ... transfers."""
        due = self._ticks >= self._look_at and self.env.peek() > self.env.now  # rates are settled
        if due:
            self._look_at = 2 * self._ticks
        return due

    def _transfer(self, event: Any) -> None:
        stream = event.value
        self._ticks += 1
        self._start(stream, self._again)

    def _again(self, begun: tuple[Background, float]) -> None:
        """A transfer has ended: begin the next in its time, or at once if that has passed.

        Were transfers to pile up that ask for more than a link has, they would starve the job.
        """
        stream, begin = begun
        if stream.every:
            self.env.timeout(max(0.0, begin + stream.every - self.env.now), stream).callbacks.append(self._transfer)

    def _in_turns(self, stream: Background, switch: int) -> None:
        """A stream over one link more, which carries it in its turns only."""
        self.network.start(self.network.bundle((*stream.path, (switch, 1.0)), stream.cap), inf, _nobody, (stream, self.env.now))
        self.network.set_capacity(switch, 0.0)

        def turn(event: Any) -> None:
            self._ticks += 1
            on = bool(event.value)
            self.network.set_capacity(switch, stream.cap if on else 0.0)
            share = stream.duty if on else 1 - stream.duty
            self.env.timeout(share * stream.every, not on).callbacks.append(turn)

        self.env.timeout(stream.begin, True).callbacks.append(turn)

    def _start(self, stream: Background, then: Callable[[Any], None]) -> None:
        self.network.start(self.network.bundle(stream.path, stream.cap), stream.volume, then, (stream, self.env.now))


def _nobody(_: object) -> None:
    """A stream never ends."""

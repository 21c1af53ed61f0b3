"""How long flows take that begin together on links that nobody else uses: a checkpoint on its way to the storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parsim.hardware.flows import Flow
from parsim.simulation.clock import Clock
from parsim.simulation.network import Network


def time_of(flows: Sequence[Flow], capacity: Callable[[int], float]) -> float:
    """When the last of them ends [s]; `capacity` of a link [B/s].

    >>> round(time_of([Flow(((0, 1.0),), 10.0, 5.0), Flow(((0, 1.0),), 20.0, 5.0)], lambda link: 6.0), 9)  # 20/6 s together, then 10/5 s
    5.333333333
    """
    clock, ends = Clock(), [0.0]
    network = Network(clock, capacity)
    for flow in flows:
        network.start(network.bundle(flow.path, flow.cap, flow.weight), flow.volume, lambda _: ends.append(float(clock.now)))
    clock.run()
    return max(ends)

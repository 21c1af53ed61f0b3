"""Which transfers the network carries: those that could fill a link together, from the moment at which they could until they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import simpy

from parsim.hardware.flows import CollectiveCost
from parsim.program.program import Collective
from parsim.simulation.contention import Transfer
from parsim.simulation.network import Network
from parsim.simulation.sharing import TOLERANCE, Bundle

_CARRIED, _ARRIVED, _GONE = range(3)
"""what has become of a transfer that the network was given"""


class CarriedTransfers:
    """Takes note of every transfer of a run, and gives the network those that contend.

    `transfer_of` is the transfer of an op by its index, `starts` when ops began [s], `arrived` is told the op whose transfer the
    network has carried.
    """

    def __init__(
        self,
        env: simpy.Environment,
        network: Network,
        cost: Callable[[Collective], CollectiveCost],
        transfer_of: Callable[[int], Transfer],
        starts: Sequence[float],
        arrived: Callable[[int], None],
    ) -> None:
        self._env = env
        self._network = network
        self._cost = cost
        self._transfer_of = transfer_of
        self._starts = starts
        self._arrived = arrived
        self._states: dict[int, int] = {}
        """op index of a transfer that the network was given -> what has become of it"""
        self._flows_left: dict[int, int] = {}
        """op index of such a transfer -> flows still under way"""
        self.before: dict[int, tuple[float, float]] = {}
        """link -> bytes [B] and saturated time [s] of such transfers from before they were given"""

    def begin(self, index: int, transfer: Transfer, now: float) -> bool:
        """A transfer begins; whether the network carries it."""
        met = transfer.free is None
        for link in transfer.contentions:
            if link or link.given:
                met = True
            link[index] = transfer
        return met and self._contends(index, transfer, now)

    def end(self, index: int, transfer: Transfer) -> bool:
        """Whether a transfer whose end is due ends now; no if the network has been given it since, and has not carried it yet."""
        if (state := self._states.get(index)) is None:
            for link in transfer.contentions:
                del link[index]
        elif state != _ARRIVED:
            return False
        else:
            self._states[index] = _GONE
            for link in transfer.contentions:
                link.leave(transfer)
        return True

    def _contends(self, index: int, transfer: Transfer, now: float) -> bool:
        """Whether the network carries a transfer that begins; others on links that may be full are given to it, too."""
        full = [link for link in transfer.contentions if link.full()]
        if over := {i for link in full for i in link if self._over_by(i, now * (1 + TOLERANCE))}:
            full = [link for link in full if link.full(over)]  # the end of these is due, and has only not come up yet
        if not full and transfer.free is not None:
            return False
        for i in dict.fromkeys(i for link in full for i in link if i not in over):
            if i != index:
                other = self._transfer_of(i)
                self._give(i, other, now)
                other.runs -= 1
        self._give(index, transfer, now)
        return True

    def _over_by(self, index: int, time: float) -> bool:
        """Whether a transfer ends until then without the network."""
        return self._starts[index] + self._transfer_of(index).seconds <= time

    def _give(self, index: int, transfer: Transfer, now: float) -> None:
        """Have the network carry what is left of a transfer."""
        self._states[index] = _CARRIED
        for link in transfer.contentions:
            link.give(index)
        moving = now - (self._starts[index] + transfer.waits + transfer.latency)
        if moving <= 0:
            self._env.timeout(-moving, (index, transfer)).callbacks.append(self._send)
            return
        flows = self._flows(transfer)
        self._flows_left[index] = len(flows)
        for number, _, full in transfer.free.loads if transfer.free is not None else ():
            self._add_before(number, 0.0, min(full, moving))
        for bundle, volume, members in flows:
            done = min(volume, moving * bundle.cap)
            for crossed, coefficient in bundle.path:
                self._add_before(crossed.identity, coefficient * done * members, 0.0)
            self._network.start(bundle, volume - done, self._flow_ended, index, members=members)

    def _add_before(self, link: int, size: float, saturated: float) -> None:
        before = self.before.get(link, (0.0, 0.0))
        self.before[link] = before[0] + size, before[1] + saturated

    def _send(self, event: Any) -> None:
        """Its latency is over."""
        index, transfer = event.value
        flows = self._flows(transfer)
        self._flows_left[index] = len(flows) or 1
        for bundle, volume, members in flows:
            self._network.start(bundle, volume, self._flow_ended, index, members=members)
        if not flows:
            self._flow_ended(index)

    def _flows(self, transfer: Transfer) -> tuple[tuple[Bundle, float, int], ...]:
        """The flows of a transfer, equal ones counted; flows without bytes are left out.

        A transfer that kernels slow crosses one private link per device, which all its flows together fill at their caps.
        """
        if transfer.flows is None:
            moving = [flow for flow in self._cost(transfer.collective).flows if flow.volume]
            equal: Counter[tuple[Bundle, float]] = Counter()
            for flow in moving:
                wires = [(wire, 1.0 / (flow.cap * len(moving))) for _, _, wire in transfer.sides if wire]
                equal[self._network.bundle((*flow.path, *wires), flow.cap, flow.weight), flow.volume * transfer.scale] += 1
            transfer.flows = tuple((bundle, volume, members) for (bundle, volume), members in equal.items())
        return transfer.flows

    def _flow_ended(self, index: int) -> None:
        """One of the flows of a transfer has ended; with the last, the transfer."""
        self._flows_left[index] -= 1
        if not self._flows_left[index]:
            del self._flows_left[index]
            self._states[index] = _ARRIVED
            self._arrived(index)

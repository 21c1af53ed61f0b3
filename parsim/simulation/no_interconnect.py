"""The wires of a program without collectives."""

from __future__ import annotations

from parsim.hardware.flows import CollectiveCost
from parsim.program.program import Collective


class NoInterconnect:
    """Programs of the schedule laboratory have no collectives, so nobody asks."""

    def cost(self, collective: Collective) -> CollectiveCost:
        """Nothing: raises `RuntimeError`."""
        raise RuntimeError(f"a schedule without a cluster asks for the time of {collective}")

    def capacity(self, link: int) -> float:
        """Nothing: raises `RuntimeError`."""
        raise RuntimeError(f"a schedule without a cluster asks for link {link}")

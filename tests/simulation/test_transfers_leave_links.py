"""Transfers that shared a full link are forgotten once they have ended: what comes later is alone again."""

from __future__ import annotations

import pytest

from parsim.hardware.flows import CollectiveCost, Flow
from parsim.program.program import Collective, Lane, Program
from parsim.simulation.engine import Engine
from parsim.simulation.network import Network


class OneLink:
    """A link of 10 B/s; every transfer asks for 7 B/s and moves 21 B."""

    def cost(self, collective: Collective) -> CollectiveCost:
        return CollectiveCost(0.0, (Flow(((0, 1.0),), 21.0, 7.0),))

    def capacity(self, link: int) -> float:
        return 10.0


def sent_at(*begins: float) -> Program:
    """Transfers that each wait for a kernel of a rank of their own [s]."""
    program = Program()
    for rank, begin in enumerate(begins):
        kernel = program.add("kernel", "compute", (Lane(rank, "compute"),), duration=begin)
        program.add("send", "pipeline_comm", (Lane(rank, "send"),), (kernel,), 0.0, Collective("send", "pipeline", (rank, 9), 21))
    return program


@pytest.mark.parametrize(
    ("begins", "ends", "shared"),
    [
        ((0.0, 10.0, 20.0), (3.0, 13.0, 23.0), 0),  # nobody meets anybody
        ((0.0, 0.0, 10.0), (4.2, 4.2, 13.0), 2),  # two share 10 B/s for 42 B; the third is alone
        ((0.0, 0.0, 10.0, 10.0, 20.0), (4.2, 4.2, 14.2, 14.2, 23.0), 4),
    ],
)
def test_the_network_carries_only_transfers_that_meet(
    begins: tuple[float, ...], ends: tuple[float, ...], shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = []
    start = Network.start
    monkeypatch.setattr(Network, "start", lambda self, *given, **more: (carried.append(given), start(self, *given, **more)))
    trace = Engine(sent_at(*begins), OneLink()).run()
    assert [trace.end[op.index] for op in trace.program.ops if op.name == "send"] == pytest.approx(list(ends), rel=1e-12)
    assert len(carried) == shared

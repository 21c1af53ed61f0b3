"""A checkpoint that is written while training goes on: both share the NICs and the switches above them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from parsim.execution.prepared import Prepared
from parsim.hardware.fabric.storage import Storage, storage_link, writing, written_links
from parsim.hardware.flows import Flow
from parsim.simulation.engine import EngineRun, collector_paused
from parsim.simulation.interrupted import InterruptedTraining
from parsim.simulation.processes import BoundedProcess
from parsim.simulation.sharing import Bundle, fair_rates

_ALIKE = 1e-9
"""relative: a step this close to the undisturbed one is one"""


def with_saves(prepared: Prepared, nominal: float, training: InterruptedTraining) -> InterruptedTraining:
    """The training, slower while a checkpoint is written in the background, and with the lag that it then has.

    The step is simulated with the flows of all machines to the storage, which last from its begin to its end. `nominal`: the step
    without them [s].
    """
    storage = prepared.built.cluster.storage
    taken = training.lag - (0.0 if storage is None else storage.latency)
    if taken <= 0.0 or not training.bytes:
        return training
    step = _Saves(prepared, Storage(training.bytes / taken), training.bytes)
    time, share = step.run()
    if abs(time - nominal) <= _ALIKE * nominal and share > 1.0 - _ALIKE:
        return training
    return replace(training, writing_speed=min(1.0, nominal / time), lag=training.lag + taken * (1.0 / share - 1.0))


class _Saves:
    """The step with a checkpoint on its way."""

    def __init__(self, prepared: Prepared, storage: Storage, size: float) -> None:
        cluster = prepared.built.cluster
        ranks = Counter(map(cluster.node_of, prepared.built.gpus))
        volumes = {node: size * count / len(prepared.built.gpus) for node, count in ranks.items()}
        flows, into = writing(cluster, storage, volumes).flows, storage_link(cluster)
        rates = fair_rates(flows, lambda link: storage.bandwidth if link == into else cluster.capacity(link))
        if prepared.folded:
            alike = {link: ("saves", ways) for link, ways in written_links(cluster, volumes).items()}
            prepared = prepared.apart([0] * prepared.plan.mesh.ranks, alike)
        self._prepared = prepared
        self._flows = list(dict.fromkeys(one for flow, rate in zip(flows, rates, strict=True) if (one := self._seen(flow, rate)).path))
        self._moving: list[Bundle] = []

    def _seen(self, flow: Flow, rate: float) -> Flow:
        """What the ranks that are simulated see of a flow; of links that training uses."""
        known = self._prepared.classes.links
        return Flow(tuple((known[link], coefficient) for link, coefficient in flow.path if link in known), 0.0, rate)

    def run(self) -> tuple[float, float]:
        """The step [s], and the least share of what it alone would move that any flow moves meanwhile."""
        links = frozenset(link for flow in self._flows for link, _ in flow.path)
        with collector_paused():
            end = self._prepared.trace(processes=[BoundedProcess(self._write, links)] if self._flows else []).makespan
        moved = [(bundle.served + bundle.rate * (end - bundle.since)) / (bundle.cap * end) for bundle in self._moving]
        return end, min([1.0, *moved])

    def _write(self, run: EngineRun) -> Generator[Any, Any, Any]:
        for flow in self._flows:
            bundle = run.network.bundle(flow.path, flow.cap)
            run.network.start(bundle, float("inf"), _nobody)
            self._moving.append(bundle)
        yield run.env.timeout(0.0)


def _nobody(_: object) -> None:
    """It never ends."""

"""What follows from a scenario without simulating it: GPUs, nodes, micro-batches."""

from __future__ import annotations

import json
from collections.abc import Mapping

from parsim.errors import InputError
from parsim.scenario.batch import resolve_batch
from parsim.scenario.build import machine
from parsim.scenario.scenario import Scenario

FACTS = {
    "gpus": "GPUs that the job uses",
    "gpus_per_node": "GPUs of a node",
    "nodes": "nodes that hold at least one GPU of the job",
    "data_size": "replicas of the model",
    "micro_batches": "micro-batches of one replica per step",
}
"""name -> what it is"""


class Machines:
    """The sizes of machines, each looked at once."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, float]] = {}

    def facts(self, scenario: Scenario) -> dict[str, float]:
        """What is known of `FACTS`; what cannot be built leaves them out (the simulation says why)."""
        found = dict(self._machine(scenario))
        if "gpus" in found and (data := _data_size(scenario, int(found["gpus"]))):
            found["data_size"] = data
            if (count := _micro_batches(scenario, data)) is not None:
                found["micro_batches"] = count
        return found

    def gpus(self, scenario: Scenario) -> int:
        """GPUs that the job uses. Raises InputError where the machine cannot be built."""
        found = self._machine(scenario)
        if "gpus" not in found:
            machine(scenario)  # raises what is wrong with it
        return int(found["gpus"])

    def _machine(self, scenario: Scenario) -> Mapping[str, float]:
        word = json.dumps(scenario.tree["cluster"], sort_keys=True, default=str)
        if word not in self._known:
            try:
                cluster, gpus = machine(scenario)
            except InputError:
                self._known[word] = {}
            else:
                used = len(dict.fromkeys(cluster.node_of(gpu) for gpu in gpus))
                self._known[word] = {"gpus": len(gpus), "gpus_per_node": cluster.installed_gpus // cluster.nodes, "nodes": used}
        return self._known[word]


def _data_size(scenario: Scenario, gpus: int) -> int | None:
    """Replicas; None where the sizes do not multiply to the GPUs (building the scenario says so)."""
    parallel = scenario.settings.parallel
    model = parallel.tensor.size * parallel.pipeline.size * parallel.context.size
    data = gpus // model if parallel.data.size == "auto" else int(parallel.data.size)
    return data if data and model * data == gpus else None


def _micro_batches(scenario: Scenario, data: int) -> int | None:
    training = scenario.settings.training
    try:
        return resolve_batch(training, data, sequence=training.sequence_length is not None).micro_batches
    except InputError:
        return None

"""The facts that every exporter needs: the scenario with every auto resolved, and what was cut where."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from parsim.errors import InputError
from parsim.hardware.kernels import kernel_time
from parsim.model.catalogue import read_architecture
from parsim.model.families import FAMILIES
from parsim.model.transformer import TransformerConfig
from parsim.parallel.plan import plan
from parsim.parallel.settings import KEPT, Precision
from parsim.scenario.build import build
from parsim.scenario.built import Built
from parsim.scenario.precision import PRESETS
from parsim.scenario.references import folder, lookup, model_tree
from parsim.scenario.schema import ScenarioSchema

if TYPE_CHECKING:
    from parsim.scenario.scenario import Scenario


@dataclass(frozen=True)
class Job:
    """One training job as another tool's launcher sees it."""

    scenario: Scenario
    built: Built
    architecture: TransformerConfig | None
    """None: not a transformer"""
    layers: tuple[int, ...]
    """transformer layers of every stage (p x v of them), in forward order"""
    gpus_per_node: tuple[int, ...]
    """GPUs in use on each node"""
    elements_per_layer: int
    """parameters of the largest transformer layer on one tensor-parallel rank"""
    elements: int
    """parameters of the model"""

    @property
    def settings(self) -> ScenarioSchema:
        """The sections as written, autos unresolved."""
        return self.scenario.settings

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters, or share them: data x context."""
        return self.built.parallelism.data.size * self.built.parallelism.context.size

    @property
    def precision(self) -> str:
        """The preset with these bytes and types; an empty text where there is none."""
        return preset_name(self.built.training.precision)

    @property
    def stored(self) -> str:
        """Bytes per parameter in words, and what runs in fp8 beyond what stacks do by themselves."""
        precision = self.built.training.precision
        beyond = [part for part in KEPT if precision.matmul == "fp8" and part not in precision.keep]
        return self.built.bytes_per_parameter + (f" with {' and '.join(beyond)} in fp8" if beyond else "")

    @property
    def family(self) -> str:
        """The model's family; an empty text for models layer by layer."""
        return self.architecture.family if self.architecture is not None else ""


def preset_name(precision: Precision) -> str:
    """The preset that `precision` is, whatever it is called."""
    return next((name for name, preset in PRESETS.items() if replace(precision, name=name) == preset), "")


def job_of(scenario: Scenario) -> Job:
    """The job that `scenario` describes. Raises an `InputError` with every finding where it cannot be planned."""
    built = build(scenario)
    clock = partial(kernel_time, built.cluster.device(built.gpus[0]))
    try:
        planned = plan(built.model, built.cluster, built.training, built.parallelism, built.runtime, clock, built.gpus, dict(built.slow))
    except InputError as error:
        raise type(error)(scenario.findings_at(error.findings)) from None
    blocks = planned.model.blocks  # a profiled stage stands for all of them in built.model
    layers = [[block for block in chunk.blocks if blocks[block].kind not in ("embedding", "head")] for chunk in planned.chunks]
    nodes = Counter(built.cluster.node_of(gpu) for gpu in built.gpus)
    tensor = built.parallelism.tensor.size
    repeated = {id(blocks[block]): blocks[block] for chunk in layers for block in chunk}
    return Job(
        scenario=scenario,
        built=built,
        architecture=_architecture(scenario) if built.model.facts.get("family") in FAMILIES else None,
        layers=tuple(map(len, layers)),
        gpus_per_node=tuple(nodes[node] for node in sorted(nodes)),
        elements_per_layer=max(sum(p.local_count(tensor) for p in block.parameters() if not p.buffer) for block in repeated.values()),
        elements=sum(p.count for block in blocks for p in block.parameters() if not p.buffer and not p.tied),
    )


def _architecture(scenario: Scenario) -> TransformerConfig:
    relative = folder(scenario.origins, "model", scenario.source)
    tree, _, beside = model_tree(scenario.settings.model, relative)
    return read_architecture(tree, base_lookup=lookup("models", beside)).resolved()

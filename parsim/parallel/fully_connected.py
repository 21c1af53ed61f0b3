"""Messages of fully connected layers whose outputs replicas share (Krizhevsky 2014, 1404.5997; `parsim.model.fully_connected`).

Inputs of all replicas are gathered, outputs go back to the replica of their sample; backward the reverse. Compute waits for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsim.errors import Finding
from parsim.model.fully_connected import SharedLinear
from parsim.model.model import Model, Operator
from parsim.model.tape import Step
from parsim.model.workload import Workload
from parsim.parallel.groups import EXPERT_TENSOR, Mesh
from parsim.parallel.hooks import Emitter, SilentHooks
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Training

PATH = "parallel.fully_connected"
_STRATEGIES = ("none", "ddp", "zero1", "zero2")


@dataclass
class FullyConnectedHooks(SilentHooks):
    """Runs the shared layers of one rank, with the messages around their products."""

    workload: Workload

    def runs(self, operator: Operator) -> bool:
        """Whether replicas share the operator's outputs."""
        return isinstance(operator, SharedLinear)

    def run(self, step: Step, kind: str, at: Emitter, allocates: Sequence[str], frees: Sequence[str]) -> None:
        """A forward, recompute or input step."""
        layer = step.operator
        if not isinstance(layer, SharedLinear):
            message = f"{layer.name} is not shared"
            raise TypeError(message)
        sample = self.workload.tokens * self.workload.element
        inputs, outputs = sample * self.workload.expert_width * layer.in_features, sample * sum(layer.out_features)
        at.compute("", kind, (), allocates=allocates)
        if step.phase == "input":
            at.collective("all_to_all", EXPERT_TENSOR, outputs, f"{layer.name} grad", blocking=True)
            at.compute("", kind, step.kernels)
            at.collective("reduce_scatter", EXPERT_TENSOR, inputs, f"{layer.name} grad", blocking=True)
        else:
            at.collective("all_gather", EXPERT_TENSOR, inputs, layer.name, blocking=True)
            at.compute("", kind, step.kernels)
            at.collective("all_to_all", EXPERT_TENSOR, outputs, layer.name, blocking=True)
        at.compute("", kind, (), frees=frees)


def shared_layers(model: Model) -> list[SharedLinear]:
    """The fully connected layers of a model that replicas share."""
    return [operator for operator in model.distinct_operators if isinstance(operator, SharedLinear)]


def fully_connected_findings(
    layers: Sequence[SharedLinear], model: Model, training: Training, split: Parallelism, mesh: Mesh
) -> list[Finding]:
    """Why replicas cannot share the outputs of these layers."""
    ranks = split.expert_width
    findings = []
    if isinstance(model.blocks[0].operators[0], SharedLinear):
        text = "not supported yet: a network that begins with a fully connected layer; fully_connected is for layers after convolutions"
        findings.append(Finding(text, PATH, ranks, "leave it out"))
    if mesh.replicas % ranks:
        text = f"{mesh.replicas} replicas / {ranks} that share fully connected layers = {mesh.replicas / ranks:.4g} is not whole"
        findings.append(Finding(text, PATH, ranks, "use a divisor of the replicas"))
    uneven = [layer for layer in layers if sum(layer.out_features) % ranks]
    for layer in uneven[:1]:
        out = sum(layer.out_features)
        text = f"{layer.name}: {out} outputs / {ranks} ranks = {out / ranks:.4g} is not whole"
        findings.append(Finding(text, PATH, ranks, "use a divisor of the outputs of every fully connected layer"))
    if split.data.strategy not in _STRATEGIES:
        text = f"not supported yet: shared fully connected layers with {split.data.strategy}"
        findings.append(Finding(text, "parallel.data.strategy", split.data.strategy, f"use {' or '.join(_STRATEGIES[1:])}"))
    if split.pipeline.size > 1:
        text = "not supported yet: shared fully connected layers with pipeline stages"
        findings.append(Finding(text, "parallel.pipeline.size", split.pipeline.size, "use pipeline.size 1"))
    if training.offload.states or training.finetune is not None:
        findings.append(
            Finding("not supported yet: shared fully connected layers with offloaded or frozen states", PATH, ranks, "leave it out")
        )
    return findings

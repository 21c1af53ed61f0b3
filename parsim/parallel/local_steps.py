"""Groups of replicas that take steps of their own and then exchange what they learned (local SGD, DiLoCo): what it keeps, what it forbids.

The outer optimizer steps with the difference between the parameters of the last exchange and those of now, averaged over the groups: SGD
with Nesterov momentum (Douillard et al., arXiv 2311.08105). Parts of the parameters may be exchanged in turn, and be needed some steps
later (arXiv 2501.18512). Every rank exchanges what it holds itself with the ranks at the same place in the other groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parsim.errors import Finding
from parsim.parallel.groups import CONTEXT, DATA, Mesh
from parsim.parallel.schedules import ENDLESS
from parsim.parallel.settings import OuterLoop, Parallelism
from parsim.parallel.training import Training

if TYPE_CHECKING:
    from parsim.parallel.plan import Plan

PATH = "parallel.data.outer"
STRATEGIES = ("none", "ddp", "zero1", "zero2", "zero3", "fsdp")
"""whose ranks hold all parameters, or equal parts of them"""


def fragment_elements(plan: Plan, trained: int) -> int:
    """Elements of one exchange, of the `trained` ones that a rank holds."""
    return -(-trained // plan.parallelism.data.outer.fragments)


def outer_tensors(plan: Plan, trained: int) -> list[tuple[str, int, str]]:
    """Name, bytes and category of what a rank keeps for the outer optimizer, of the `trained` elements that it holds.

    The parameters of the last exchange and the momentum are fp32; the differences of one part are in the type of the wire.
    """
    outer = plan.parallelism.data.outer
    if outer.size == 1:
        return []
    sent = outer.bytes * fragment_elements(plan, trained)
    return [
        ("outer parameters", 4 * trained, "optimizer"),
        ("outer momentum", 4 * trained, "optimizer"),
        ("outer differences", sent, "buffers"),
    ]


def outer_findings(training: Training, parallelism: Parallelism, mesh: Mesh) -> list[Finding]:
    """Counts that do not come out whole, and what groups that step alone do not go with yet."""
    data = parallelism.data
    outer = data.outer
    if outer.size == 1:
        return _alone(outer)
    findings = []
    if data.size % outer.size:
        legal = [str(n) for n in range(2, data.size + 1) if data.size % n == 0]
        text = f"{data.size} replicas / {outer.size} groups = {data.size / outer.size:.4g} is not whole"
        findings.append(Finding(text, f"{PATH}.size", outer.size, f"use {' or '.join(legal)}" if legal else "use more replicas"))
    if outer.local_steps % outer.fragments:
        text = f"{outer.local_steps} local steps / {outer.fragments} fragments = {outer.local_steps / outer.fragments:.4g} is not whole"
        findings.append(Finding(text, f"{PATH}.fragments", outer.fragments, "a part is exchanged every local_steps / fragments steps"))
    elif outer.overlap_steps > (most := outer.local_steps // outer.fragments):
        text = f"an exchange begins every {outer.local_steps} / {outer.fragments} = {most} steps, but each may take {outer.overlap_steps}"
        findings.append(Finding(text, f"{PATH}.overlap_steps", outer.overlap_steps, f"use at most {most}"))
    return findings + [
        Finding(f"not supported yet: local steps with {what}", PATH, outer.size, f"use {path} {repair}")
        for wrong, what, path, repair in _not_yet(training, parallelism, mesh)
        if wrong
    ]


def _alone(outer: OuterLoop) -> list[Finding]:
    """One group has nobody to exchange with."""
    return [
        Finding(f"{name} {value} are of groups of replicas that step alone, and there is one", f"{PATH}.{name}", value, f"give {PATH}.size")
        for name, value, default in (
            ("local_steps", outer.local_steps, 1), ("fragments", outer.fragments, 1), ("overlap_steps", outer.overlap_steps, 0),
        )
        if value != default
    ]  # fmt: skip


def _not_yet(training: Training, parallelism: Parallelism, mesh: Mesh) -> list[tuple[bool, str, str, str]]:
    """(whether it is asked for, what, key, what to use instead)"""
    data, pipeline = parallelism.data, parallelism.pipeline
    known = data.custom is None and data.strategy in STRATEGIES
    endless = pipeline.schedule in ENDLESS or pipeline.post_validation
    mixed = parallelism.context.size > 1 and mesh.stride(CONTEXT) > mesh.stride(DATA)
    return [
        (not known, data.strategy, "parallel.data.strategy", "ddp, zero1, zero2, zero3 or fsdp"),
        (parallelism.exchanges_tokens, "experts spread over ranks", "parallel.expert.size", "1"),
        (data.optimizer_instances > 1, "instances of the optimizer", "parallel.data.optimizer_instances", "1"),
        (data.secondary_partition > 1, "a second copy of the weights", "parallel.data.secondary_partition", "1"),
        (data.quantised_weights or data.quantised_gradients, "ZeRO++", "parallel.data.quantised_weights", "false"),
        (training.offload.states, "offloaded model states", "training.offload.optimizer", "none"),
        (endless, "ranks that update without waiting", "parallel.pipeline.schedule", "1f1b"),
        (not (training.backward and training.step), "steps that train nothing", "training.step", "true"),
        (mixed, "data parallelism inside context parallelism", "parallel.order", "[tensor, context, data, pipeline]"),
    ]  # fmt: skip

"""Several instances of Megatron-LM's distributed optimizer (--num-distributed-optimizer-instances): which jobs cannot have them."""

from __future__ import annotations

from parsim.errors import Finding
from parsim.parallel.experts import expert_mesh
from parsim.parallel.groups import Mesh
from parsim.parallel.runtime import Runtime
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Training

_PATH = "parallel.data.optimizer_instances"


def instance_findings(training: Training, parallelism: Parallelism, runtime: Runtime, mesh: Mesh) -> list[Finding]:
    """What instances of the optimizer do not go with, and numbers that are not whole.

    Megatron-LM divides the ranks with the same parameters, and those with the same experts, by the number of instances
    (megatron/core/parallel_state.py, initialize_model_parallel); it knows them with its distributed optimizer only
    (megatron/core/distributed/distributed_data_parallel.py: "Partial DistOpt cannot be used without DistOpt").
    """
    instances, strategy = parallelism.data.optimizer_instances, parallelism.data.strategy
    if instances == 1:
        return []
    if strategy != "zero1":
        text = f"optimizer_instances needs a sharded optimizer, and {strategy} is no optimizer that is sharded alone"
        return [Finding(text, _PATH, instances, "use parallel.data.strategy zero1, or hsdp with shard_size")]
    findings = []
    if not runtime.transformer_engine:
        text = f"only Megatron-Core's distributed optimizer has instances, and the stack is {runtime.profile}"
        findings.append(Finding(text, _PATH, instances, "use software.profile megatron-core"))
    if training.offload.states:
        findings.append(Finding("not supported yet: offloaded states with instances of the optimizer", _PATH, instances, "use 1"))
    divided = [(mesh.replicas, f"{mesh.replicas} replicas (data x context)")]
    if parallelism.exchanges_tokens:
        copies = expert_mesh(parallelism)[2]
        divided.append((copies, f"{copies} copies of every expert"))
    legal = [str(n) for n in range(1, mesh.replicas + 1) if all(ranks % n == 0 for ranks, _ in divided)]
    for ranks, what in divided:
        if ranks % instances:
            text = f"{what} / {instances} instances = {ranks / instances:.4g} is not whole"
            findings.append(Finding(text, _PATH, instances, f"use {' or '.join(legal)}"))
    return findings

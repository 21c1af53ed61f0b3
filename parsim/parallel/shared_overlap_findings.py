"""What a shared expert beside dispatch and combine does not go with."""

from __future__ import annotations

from parsim.errors import Finding
from parsim.model.model import Model
from parsim.model.shared_overlap import SHARED, has_shared_expert
from parsim.parallel.schedules import OVERLAPPING
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Training

PATH = "parallel.expert.shared_overlap"


def shared_overlap_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """Why the shared experts of this model cannot run beside the messages of the others (Megatron-LM: transformer_config.py)."""
    expert, pipeline, recompute = parallelism.expert, parallelism.pipeline, training.recompute
    reasons = []
    if not has_shared_expert(model):
        reasons.append((f"{model.name} has no shared expert", "leave it out"))
    elif not parallelism.exchanges_tokens:
        text = "every rank holds all experts, so there is no exchange that the shared expert could hide"
        reasons.append((text, "leave it out, or use expert parallelism (parallel.expert.size)"))
    if expert.dispatcher == "allgather":
        text = "the allgather dispatcher cannot overlap the shared expert with its messages (Megatron-LM: alltoall or flex only)"
        reasons.append((text, "use dispatcher alltoall, deepep or hybridep"))
    if expert.batch_overlap or pipeline.overlapped or pipeline.schedule in OVERLAPPING:
        text = "exchanges already overlap with another micro-batch (Megatron-LM refuses the combination)"
        reasons.append((text, "leave it out, or use a schedule of single passes without batch_overlap"))
    if recompute.mode == "selective" and SHARED in recompute.selective:
        text = f"{SHARED} are made again in one piece, and run in two beside the messages (Megatron-LM refuses both)"
        reasons.append((text, f"leave it out, or {SHARED} out of training.recompute"))
    if training.finetune is not None and training.finetune.method != "freeze":
        reasons.append(("not supported yet: shared_overlap with adapters on shared experts", "leave it out"))
    return [Finding(text, PATH, True, hint) for text, hint in reasons]

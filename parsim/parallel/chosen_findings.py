"""What attention to chosen keys (DeepSeek-V3.2, GLM-5.2) does not go with."""

from __future__ import annotations

from parsim.errors import Finding
from parsim.model.model import Model
from parsim.parallel.settings import Parallelism
from parsim.parallel.training import Training


def chosen_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """What attention to chosen keys (DeepSeek-V3.2) does not go with."""
    chosen = model.facts.get("chosen_keys")
    if not chosen:
        return []
    what = f"attention to {chosen} chosen keys"
    findings = []
    if parallelism.tensor.size > 1 and not parallelism.tensor.sequence_parallel:
        text = f"{what} over tensor ranks needs sequence parallelism (as Megatron-LM's AbsorbedMLA states)"
        findings.append(Finding(text, "parallel.tensor.sequence_parallel", False, "use true"))
    if parallelism.context.size > 1 and (method := parallelism.context.method) != "all-gather":
        text = f"{what} over context ranks: a query may choose any key, so that all are gathered (Megatron-LM takes no other cp_comm_type)"
        findings.append(Finding(text, "parallel.context.method", method, "use all-gather"))
    if training.attention == "eager":
        text = f"{what} has its own kernels; eager attention with masked scores of all keys is not supported yet"
        findings.append(Finding(text, "training.attention", "eager", "leave it out"))
    return findings + (_shared_findings(training, parallelism) if model.facts.get("shares_indexers") else [])


def _shared_findings(training: Training, parallelism: Parallelism) -> list[Finding]:
    """What layers that read the keys which an earlier one chose do not go with: those numbers leave their layer.

    A checkpointed layer would have to be given them again, a stage to be sent them; no public stack says how.
    """
    findings = []
    if parallelism.pipeline.size > 1:
        text = "not supported yet: pipeline stages of layers that share an indexer, whose choice would have to be sent"
        findings.append(Finding(text, "parallel.pipeline.size", parallelism.pipeline.size, "use tensor, expert or data parallelism"))
    if training.recompute.mode not in ("none", "selective"):
        text = "not supported yet: layers that are recomputed as a whole and share an indexer, whose choice would have to be kept"
        findings.append(Finding(text, "training.recompute", training.recompute.mode, "use selective, or none"))
    return findings

"""What attention to chosen keys (DeepSeek-V3.2, GLM-5.2) does not go with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parsim.errors import Finding
from parsim.model.model import Model
from parsim.model.sparse_attention import LightningIndexer, SparseCore
from parsim.parallel.settings import Parallelism
from parsim.parallel.stages import CheckpointGroup, checkpoint_groups
from parsim.parallel.training import Training

if TYPE_CHECKING:
    from parsim.parallel.plan import Plan


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
    return findings


def shared_findings(plan: Plan) -> list[Finding]:
    """Layers that would read keys which a layer of another stage, or outside of their checkpoint, chose.

    A stage would have to be sent that choice, a checkpoint to keep it; no public stack says how (sgl-project/sglang refuses such stages).
    """
    if not plan.model.facts.get("chosen_keys"):
        return []
    findings = []
    if not all(_chooses(plan.model, chunk.blocks) for chunk in plan.chunks):
        text = "not supported yet: a pipeline stage that begins with a layer without an indexer, which an earlier stage has"
        hint = "cut before layers that have one (pipeline.split), or use tensor, expert or data parallelism"
        findings.append(Finding(text, "parallel.pipeline.size", plan.parallelism.pipeline.size, hint))
    recompute = plan.training.recompute
    if not findings and any(_leaves(plan.model, checkpoint_groups(recompute, plan.model, chunk.blocks)) for chunk in plan.chunks):
        text = "not supported yet: recomputation that parts a layer without an indexer from the one that has it, whose choice would be kept"
        findings.append(Finding(text, "training.recompute", recompute.mode, "use selective, or none"))
    return findings


def _leaves(model: Model, groups: Sequence[CheckpointGroup]) -> bool:
    """Whether a choice leaves a group that is recomputed, or comes into one."""
    chosen_in: CheckpointGroup | None = None
    for group in groups:
        for number in group.blocks:
            if not _chooses(model, (number,)):
                parted = chosen_in is not group and (group.checkpoint or (chosen_in is not None and chosen_in.checkpoint))
                if parted:
                    return True
            elif any(isinstance(one, SparseCore) for one in model.blocks[number].operators):
                chosen_in = group
    return False


def _chooses(model: Model, blocks: Sequence[int]) -> bool:
    """Whether the first of `blocks` with attention to chosen keys, if there is any, chooses them by itself."""
    rows = [model.blocks[number].operators for number in blocks]
    first = next((row for row in rows if any(isinstance(one, SparseCore) for one in row)), None)
    return first is None or any(isinstance(one, LightningIndexer) for one in first)

"""What a step trains for, as work: sequences per sample, and forward passes whose gradients nobody wants.

================================  =========  ====================================================================
objective                         sequences  forward passes without gradients, behind that of the policy
================================  =========  ====================================================================
language-modelling                1          none
dpo                               2          the reference model's, on both answers (Rafailov et al. 2023,
                                             2305.18290)
orpo                              2          none: no reference model (Hong et al. 2024, 2403.07691; SimPO, CPO
                                             alike)
reward                            2          none; the head is a linear layer with one output
kto                               1          the policy's on answers to other prompts, the reference model's on
                                             both (Ethayarajh et al. 2024, 2402.01306)
grpo                              1          before that of the policy: the policy's and the reference model's on
                                             the answer (Shao et al. 2024, 2402.03300)
grpo-without-reference            1          before that of the policy: the policy's; no KL term (DAPO, Yu et al.
                                             2025, 2503.14476)
grpo-on-policy                    1          before that of the policy: the reference model's. The policy that
                                             is updated has generated the answers itself, and needs no pass to
                                             say how likely they were
grpo-on-policy-without-reference  1          none: the step of language-modelling with another loss
================================  =========  ====================================================================

As huggingface/trl runs them (trl/trainer/dpo_trainer.py, get_batch_loss_metrics: both answers are one batch of twice the samples, the
reference model's forward follows; kto_trainer.py). Of GRPO a step is one update on answers that are there, as verl
runs it (verl/trainer/ppo/ray_trainer.py: the log-probabilities of all answers are computed before the updates on them); generating the
answers and scoring them is no part of it. TRL leaves the policy's own pass out where every answer is trained on once, in the update
that follows its generation (grpo_trainer.py, _generate_and_score_completions). The reference model is the policy before training: where
only adapters are trained, it is the policy with its adapters switched off, and needs no memory. Otherwise it is a second model, sharded
by ZeRO-3 and FSDP as the policy is and whole on every rank elsewhere (trl/models/utils.py, prepare_deepspeed: stage 3, or 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from parsim.errors import Finding
from parsim.parallel.schedules import BIDIRECTIONAL, ENDLESS, OVERLAPPING

if TYPE_CHECKING:
    from parsim.model.finetune import Finetune
    from parsim.model.model import Model
    from parsim.parallel.settings import Parallelism
    from parsim.parallel.training import Training

PATH = "training.objective"
Whose = Literal["policy", "reference"]
_STRATEGIES = ("none", "ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp")


@dataclass(frozen=True, slots=True)
class Objective:
    """One row of the module's table."""

    name: str = "language-modelling"
    sequences: int = 1
    """sequences of a sample"""
    unsaved: tuple[Whose, ...] = ()
    """whose forward passes run behind the policy's without gradients, each on as many sequences"""
    before: bool = False
    """they run before the policy's instead, whose activations are not there yet: an update on answers that have been generated"""

    def separate(self, recipe: Finetune | None) -> bool:
        """The reference model has weights of its own."""
        return "reference" in self.unsaved and (recipe is None or recipe.method == "freeze")


OBJECTIVES = {
    made.name: made
    for made in (
        Objective(),
        Objective("dpo", 2, ("reference",)),
        Objective("orpo", 2),
        Objective("reward", 2),
        Objective("kto", 1, ("policy", "reference", "reference")),
        Objective("grpo", 1, ("policy", "reference"), before=True),
        Objective("grpo-without-reference", 1, ("policy",), before=True),
        Objective("grpo-on-policy", 1, ("reference",), before=True),
        Objective("grpo-on-policy-without-reference", 1, before=True),
    )
}
"""by name"""


def objective_findings(model: Model, training: Training, parallelism: Parallelism) -> list[Finding]:
    """What an objective does not go with: a model without a language-model head, and what its further forward passes do not know."""
    objective = training.objective
    if objective == Objective():
        return []
    name, findings = objective.name, []
    if model.facts.get("task") != "causal-lm":
        findings.append(
            Finding(f"{model.name} does not generate text: {name} compares answers of language models", PATH, name, "leave it out")
        )
    if training.loss_chunks > 1 and (objective.unsaved or objective.sequences > 1):
        text = f"not supported yet: the loss of {name} in parts"
        findings.append(Finding(text, "training.loss.chunks", training.loss_chunks, "use 1"))
    recipe = training.finetune
    if "reference" in objective.unsaved and recipe is not None and recipe.inserted:
        text = f"not supported yet: {name} with a reference model from which learned modules are taken"
        findings.append(Finding(text, "training.finetune.method", recipe.method, "use method: lora"))
    if objective.unsaved:
        findings += _axes(name, parallelism)
        findings += _states(name, training, parallelism)
    return findings


def _axes(name: str, parallelism: Parallelism) -> list[Finding]:
    """A slot of the schedule runs all forward passes of a micro-batch, one behind the other."""
    pipeline = parallelism.pipeline
    unlike = (*ENDLESS, *OVERLAPPING, *BIDIRECTIONAL)
    if pipeline.size == 1 or not (pipeline.schedule in unlike or pipeline.post_validation or pipeline.overlapped):
        return []
    text = f"not supported yet: {name}, whose forward passes without gradients are in slots of their own there"
    return [Finding(text, "parallel.pipeline.schedule", pipeline.schedule, "use 1f1b or interleaved")]


def _states(name: str, training: Training, parallelism: Parallelism) -> list[Finding]:
    data, offload = parallelism.data, training.offload
    findings = []
    if data.custom is not None or data.strategy not in _STRATEGIES or data.secondary_partition > 1:
        text = (
            f"not supported yet: forward passes without gradients under {data.strategy if data.custom is None else 'a strategy of yours'}"
        )
        findings.append(Finding(text, "parallel.data.strategy", data.strategy, f"use {', '.join(_STRATEGIES[1:])}"))
    if offload.parameters != "none":
        text = f"not supported yet: {name} with offloaded weights"
        findings.append(
            Finding(text, "training.offload.parameters", offload.parameters, "leave it out; only the optimizer can be offloaded")
        )
    if training.precision.narrow:
        text = f"not supported yet: {name} with matrix products of less than 16 bits"
        findings.append(Finding(text, "training.precision", training.precision.matmul, "use bf16"))
    return findings

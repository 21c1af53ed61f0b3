"""What the report is to count of a training: its FLOP, its tokens or examples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from parsim.errors import Finding

if TYPE_CHECKING:
    from parsim.model.model import Model
    from parsim.parallel.settings import Training
    from parsim.scenario.schema import ScenarioSchema


def counting_findings(settings: ScenarioSchema, model: Model) -> list[Finding]:
    """What the report is to count must be there to be counted, and once."""
    from parsim.model.flops import CONVENTIONS, COUNTED

    found = []
    convention, training = settings.report.flop_convention, settings.training
    if convention != "palm" and not CONVENTIONS[convention].applies(model):
        text = f"{CONVENTIONS[convention].meaning} does not describe {model.name}"
        hint = "use palm or exact" if model.sequence else "use exact"
        found.append(Finding(text, "report.flop_convention", convention, hint))
    elif training.finetune is not None and convention not in COUNTED:
        text = f"{CONVENTIONS[convention].meaning} counts full training, and a part of {model.name} is frozen"
        found.append(Finding(text, "report.flop_convention", convention, f"use {' or '.join(COUNTED)}"))
    if training.tokens is not None and not model.sequence:
        hint = "leave it out; samples_per_s gives the time"
        found.append(Finding(f"{model.name} has samples without tokens", "training.tokens", training.tokens, hint))
    if training.tokens is not None and training.examples is not None:
        text = f"the training is {training.examples:,} examples long; its tokens say how long it is a second time"
        found.append(Finding(text, "training.tokens", training.tokens, "leave out tokens, or examples and epochs"))
    return found


def steps_to_train(settings: ScenarioSchema, training: Training) -> int | None:
    """Optimizer steps of the whole training, where the scenario counts examples."""
    section = settings.training
    if section.examples is None:
        return None
    return math.ceil(section.examples * (1.0 if section.epochs is None else section.epochs) / training.global_batch)

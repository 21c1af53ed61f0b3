"""The optimizer of a recipe, with its kernels resolved."""

from __future__ import annotations

from typing import Literal, cast

from parsim.parallel.settings import Optimizer
from parsim.scenario.software import Assumption, Profile
from parsim.scenario.training import OptimizerSection


def optimizer_settings(section: OptimizerSection, profile: Profile, assumptions: list[Assumption]) -> Optimizer:
    """The optimizer that `section` means; what the profile decides is added to `assumptions`."""
    implementation = section.implementation
    if implementation == "auto":
        implementation = profile.optimizer
        assumptions.append(profile.assumption("optimizer_kernels", implementation, "kernels.optimizer"))
    return Optimizer(section.name, cast(Literal["fused", "foreach", "loop"], implementation), section.clip_gradients)

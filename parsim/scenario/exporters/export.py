"""The front door of the exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from parsim.errors import Finding, ScenarioError
from parsim.scenario.exporters.accelerate import to_fsdp
from parsim.scenario.exporters.deepspeed import to_deepspeed
from parsim.scenario.exporters.exported import Exported
from parsim.scenario.exporters.job import job_of
from parsim.scenario.exporters.megatron import to_megatron
from parsim.scenario.values import did_you_mean

if TYPE_CHECKING:
    from parsim.scenario.exporters.job import Job
    from parsim.scenario.scenario import Scenario

TARGETS = ("megatron", "deepspeed", "fsdp")
"""tools that a scenario can be exported to"""
FSDP_VERSIONS = (1, 2)


def export(scenario: Scenario, to: str, *, fsdp_version: int = 2) -> Exported:
    """The scenario as Megatron-LM arguments (megatron), a DeepSpeed JSON (deepspeed) or an accelerate YAML (fsdp).

    `fsdp_version` is PyTorch's: 1 (FullyShardedDataParallel) or 2 (fully_shard). Every key of the scenario's training and parallel
    sections ends in `Exported.keys`. Raises an `InputError` with every finding: the scenario cannot be planned, or the tool cannot
    run it as it was simulated.
    """
    if fsdp_version not in FSDP_VERSIONS:
        raise ScenarioError(Finding("there is no such version of FSDP", "--fsdp-version", fsdp_version, "write 1 or 2"))
    writers: Mapping[str, Callable[[Job], Exported]] = {
        "megatron": to_megatron,
        "deepspeed": to_deepspeed,
        "fsdp": lambda job: to_fsdp(job, fsdp_version),
    }
    if to not in writers:
        hint = did_you_mean(to, list(TARGETS)) or f"write {', '.join(TARGETS)}"
        raise ScenarioError(Finding(f"cannot export to {to!r}", "--to", to, hint))
    return writers[to](job_of(scenario))

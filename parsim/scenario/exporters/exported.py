"""What an exporter hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from parsim.errors import Finding


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one key of the scenario."""

    kind: Literal["exported", "in the script", "no counterpart"]
    text: str
    """where it went (``--tensor-model-parallel-size 8``), or why nowhere"""


@dataclass(frozen=True, slots=True)
class Exported:
    """A scenario as a configuration of another tool."""

    target: str
    """megatron | deepspeed | fsdp"""
    text: str
    """the file"""
    notes: tuple[Finding, ...]
    """what the target says only approximately, and what it cannot say here, by key"""
    keys: Mapping[str, Fate]
    """every key of the scenario that has been decided on"""
    launch: str
    """the command that starts the job"""
    script: tuple[str, ...]
    """calls of the training script that say what the file cannot"""

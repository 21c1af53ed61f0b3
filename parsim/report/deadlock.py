"""The document of a step that never ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import parsim
from parsim.report.economics import METRICS

CONTRACT_VERSION = 1
UNDEFINED_IN_A_DEADLOCK = (
    "ranks", "model", "step_time_s", "makespan_s", "period_s", "samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu",
    "model_tflops_per_gpu", "hardware_tflops_per_gpu", "mfu", "hfu", "bubble_fraction", "bubble_over_ideal",
    "bubble_fraction_theory", "estimate", "breakdown_rank", "bottleneck_rank", "breakdown_s", "critical_path_s", "limiter_kind", "limiter",
    "memory", "schedule", "collectives", "links", "unused_links", "confidence", "cost", *METRICS, "economics",
    "assumptions", "warnings", "simulation",
)  # fmt: skip
"""keys of the document that a step which never ends has no value for"""


def deadlock_document(scenario: Mapping[str, Any], text: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a program that stopped: every key of the contract, most of them null, and ``deadlock``."""
    known = {
        "parsim": CONTRACT_VERSION,
        "version": parsim.__version__,
        "provenance": dict(provenance),
        "scenario": dict(scenario),
    }
    return {**known, **dict.fromkeys(UNDEFINED_IN_A_DEADLOCK), "deadlock": text}

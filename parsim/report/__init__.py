"""What came out: metrics, tables, figures, traces and the page that explains them."""

from parsim.report.measured import (
    Assumption,
    DeviceMemory,
    Measured,
    MemoryCurve,
    MemoryFacts,
    ModelFacts,
    RankClass,
    Ranks,
    ScheduleFacts,
)
from parsim.report.report import Report

__all__ = [
    "Assumption",
    "DeviceMemory",
    "Measured",
    "MemoryCurve",
    "MemoryFacts",
    "ModelFacts",
    "RankClass",
    "Ranks",
    "Report",
    "ScheduleFacts",
]

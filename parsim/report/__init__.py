"""What came out: metrics, tables, figures, traces and the page that explains them.

The names are imported on first use: who asks what a metric means needs no numpy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parsim.report.measured import (
        DeviceMemory,
        Measured,
        MemoryCurve,
        MemoryFacts,
        ModelFacts,
        RankClass,
        Ranks,
        ReportedAssumption,
        ScheduleFacts,
    )
    from parsim.report.report import Report

__all__ = [
    "DeviceMemory",
    "Measured",
    "MemoryCurve",
    "MemoryFacts",
    "ModelFacts",
    "RankClass",
    "Ranks",
    "Report",
    "ReportedAssumption",
    "ScheduleFacts",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("parsim.report.report" if name == "Report" else "parsim.report.measured"), name)
    message = f"module 'parsim.report' has no attribute {name!r}"
    raise AttributeError(message)

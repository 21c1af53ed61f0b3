"""Exporters: a scenario as the configuration of a training tool. Pure: text out, no files touched."""

from parsim.scenario.exporters.export import TARGETS, export
from parsim.scenario.exporters.exported import Exported

__all__ = ["TARGETS", "Exported", "export"]

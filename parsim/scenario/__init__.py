"""What the user wrote: reading, merging, checking, and building the objects of the other rooms."""

from parsim.scenario.load import load
from parsim.scenario.scenario import Scenario

__all__ = ["Scenario", "load"]

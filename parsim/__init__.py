"""parsim: does it fit, how fast is it, and why?

Simulates one training step of a neural network on a cluster that you may not own yet.
The public names are imported on first use, so that ``parsim --help`` stays quick.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["ParsimError", "Report", "Scenario", "compare", "load", "simulate"]

if TYPE_CHECKING:
    from parsim.errors import ParsimError
    from parsim.report import Report
    from parsim.run import simulate
    from parsim.scenario import Scenario
    from parsim.scenario.load import load
    from parsim.study.compare import compare

_HOMES = {
    "ParsimError": "parsim.errors",
    "Report": "parsim.report",
    "Scenario": "parsim.scenario",
    "compare": "parsim.study.compare",
    "load": "parsim.scenario",
    "simulate": "parsim.run",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    message = f"module 'parsim' has no attribute {name!r}"
    raise AttributeError(message)

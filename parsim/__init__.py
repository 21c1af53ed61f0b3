"""parsim: does it fit, how fast is it, and why?

Simulates one training step of a neural network on a cluster that you may not own yet.

    from parsim import compare, load, schedule, simulate, size, sweep

    report = simulate("gpt2-ddp-4x-a100", "training.micro_batch=8")   # a name or a file, and what to change in it
    report.step_time, report.peak_memory, report.fits                 # s, B
    report.plot.timeline().savefig("step.pdf")
    compare("llama-7b-zero1-8x-a100", "parallel.data.strategy=zero1,zero2,zero3")
    sweep("llama-7b-zero1-8x-a100", "training.micro_batch=1,2,4", minimise="step_time")          # many, ranked
    size("llama-2-70b", tokens="2T", days=60, on="hgx-h100,hgx-b200")                           # what to rent or buy
    schedule("1f1b", "gpipe", p=4, m=8)                               # pipeline schedules without a model

Numbers are SI (s, B, FLOP/s). Whatever a user can get wrong raises a `ParsimError` that names everything at once.
The public names are imported on first use, so that ``parsim --help`` stays quick.
"""

from typing import TYPE_CHECKING, Any

from parsim.version import __version__ as __version__

__all__ = ["ParsimError", "Report", "Scenario", "compare", "load", "schedule", "simulate", "size", "sweep"]

if TYPE_CHECKING:
    from parsim.errors import ParsimError
    from parsim.report import Report
    from parsim.scenario import Scenario
    from parsim.scenario.load import load
    from parsim.study.automatic import simulate
    from parsim.study.compare import compare
    from parsim.study.laboratory import schedule
    from parsim.study.size.size import size
    from parsim.study.sweep.sweep import sweep

_HOMES = {
    "ParsimError": "parsim.errors",
    "Report": "parsim.report",
    "Scenario": "parsim.scenario",
    "compare": "parsim.study.compare",
    "load": "parsim.scenario",
    "schedule": "parsim.study.laboratory",
    "simulate": "parsim.study.automatic",
    "size": "parsim.study.size.size",
    "sweep": "parsim.study.sweep.sweep",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    message = f"module 'parsim' has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

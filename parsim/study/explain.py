"""Why a step takes as long as it does, and what would change that: one report asked from all sides."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from parsim.report import Report
from parsim.report.causes import Cause, causes
from parsim.report.quantities import gib, percent, seconds
from parsim.report.verdict import step_text
from parsim.run import simulate
from parsim.scenario.build import build
from parsim.scenario.scenario import Scenario
from parsim.study.assumptions import with_effects
from parsim.study.roofline import Roofline, roofline
from parsim.study.what_if import Watch, WhatIf, by_name, what_ifs

_SAID = ("a network", "NVLink", "GPUs that reach")
"""beginnings of changes that have a sentence of their own"""
SMALL = 0.005
"""changes of less than this share are no help"""


@dataclass(frozen=True)
class Explanation:
    """A report, its causes, and what changes of the machine, the recipe and the assumptions do to it."""

    scenario: Scenario
    report: Report
    """assumptions sorted by effect"""
    causes: list[Cause]
    what_ifs: list[WhatIf]
    """the most time saved first; refused ones last"""
    roofline: Roofline | None
    """None for stages of measured times"""

    @property
    def summary(self) -> str:
        """One paragraph in plain words."""
        return " ".join(_sentences(self))


def explain(scenario: Scenario, *, jobs: int | None = None, watch: Watch | None = None) -> Explanation:
    """Simulate a scenario, then again with each change. Raises what `simulate` raises."""
    report = simulate(scenario)
    built = build(scenario)
    profiled = isinstance(scenario.tree["model"], dict) and "stages" in scenario.tree["model"]
    return Explanation(
        scenario=scenario,
        report=with_effects(scenario, report, jobs=jobs, watch=watch),
        causes=causes(report),
        what_ifs=what_ifs(scenario, report, jobs=jobs, watch=watch),
        roofline=None if profiled else roofline(built),
    )


def document(found: Explanation) -> dict[str, Any]:
    """The explanation as JSON; s, B, FLOP/s; `report` is the document of the run."""
    return {
        "parsim": 1,
        "summary": found.summary,
        "critical_path": [{"kind": row.kind, "name": row.name, "s": row.seconds, "ops": row.count} for row in found.causes],
        "what_if": [_what_if(one) for one in found.what_ifs],
        "roofline": None if found.roofline is None else _roofline(found.roofline),
        "assumptions": [asdict(assumption) for assumption in found.report.measured.assumptions],
        "report": found.report.document(),
    }


def _what_if(one: WhatIf) -> dict[str, Any]:
    came = one.outcome.answer
    done = came is not None
    return {
        "name": one.change.name, "overrides": list(one.change.overrides), "step_time_s": came.step_time if came is not None else None,
        "step_time_of_same_samples_s": one.step_time if done else None, "effect": one.effect if done else None,
        "peak_bytes": came.peak if came is not None else None, "fits": one.fits if done else None,
        "refused": one.refused or None,
    }  # fmt: skip


def _roofline(found: Roofline) -> dict[str, Any]:
    return {
        "device": found.device, "dtype": found.dtype, "peak_flops": found.peak, "bandwidth_Bps": found.bandwidth, "ridge": found.ridge,
        "parts": [
            {**asdict(point), "intensity": point.intensity, "flops": point.rate, "limit_flops": found.limit(point),
             "bandwidth_used_Bps": point.bandwidth, "bound": found.bound(point)}
            for point in found.points
        ],
    }  # fmt: skip


def _sentences(found: Explanation) -> list[str]:
    report, step = found.report, found.report.step_time
    fits = "" if not report.measured.memory.devices else f" and {'fits' if report.fits else 'does not fit'}"
    known = " What follows is simulated." if report.estimate.of == "bands" else ""
    said = [f"One step takes {step_text(step, report.estimate)}{fits}.{known} {_capital(report.limiter)}."]
    first = found.causes[0]
    said.append(f"The longest part of the critical path is {first.name} ({seconds(first.seconds)}, {percent(first.seconds / step)}).")
    free = by_name(found.what_ifs, "a network that costs nothing")
    if free is not None:
        if free.effect > -SMALL:
            said.append("The network is not the problem: even one that costs nothing would save less than 0.5 %.")
        else:
            said.append(f"With a network that costs nothing it would take {seconds(free.step_time)} ({_signed(free)}).")
    for start, words in (("NVLink", "NVLink between these GPUs"), ("GPUs that reach", "Peer-to-peer transfers over PCIe")):
        wires = by_name(found.what_ifs, start)
        if wires is not None and wires.effect < -SMALL:
            said.append(f"{words} would make it {seconds(wires.step_time)} ({_signed(wires)}).")
    best = [one for one in found.what_ifs if one.fits and one.effect < -SMALL and not one.change.name.startswith(("a network", "NVLink"))]
    if best:
        names = "; ".join(f"{one.change.name}, {seconds(one.step_time)} ({_signed(one)})" for one in best[:3])
        said.append(f"What helps most: {names}.")
    else:
        said.append("None of the changes tried makes it faster by 0.5 %.")
    sure = next((one for one in report.measured.assumptions if one.effect is not None), None)
    if sure is not None and sure.effect is not None:
        low, high = sure.effect.step_time_s
        less, more = sure.effect.peak_bytes
        said.append(
            f"The assumption that matters most is {sure.name} = {sure.value}: with what else it might be, the step takes {seconds(low)} to"
            f" {seconds(high)} and the peak is {gib(less)} to {gib(more)} GiB."
        )
    return said


def _signed(one: WhatIf) -> str:
    return f"{100 * one.effect:+.0f} %"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

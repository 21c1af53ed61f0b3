"""Why a step takes as long as it does, and what would change that: one report asked from all sides, as text, JSON and figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from shlex import quote
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, Literal

from parsim.errors import ParsimError, PlanError
from parsim.execution.slow_gpu import checked
from parsim.report import Report
from parsim.report.critical_path import CriticalCause
from parsim.report.measured import ReportedAssumption
from parsim.report.quantities import gib, percent, points, seconds, time_unit
from parsim.report.slow_gpu import SPEED, SlowGpu
from parsim.report.statement import money
from parsim.report.table import Column, Table
from parsim.report.variability_text import left_out
from parsim.report.verdict import recipe, step_text
from parsim.run import simulate
from parsim.scenario.build import build
from parsim.scenario.scenario import Scenario
from parsim.study.assumptions import alternatives, sorted_by_effect
from parsim.study.roofline import Roofline, roofline
from parsim.study.variants import Figures, Outcome, Variant, answered, figures, slowed
from parsim.study.what_if import Change, Watch, WhatIf, by_name, changes, levelled, ranked, slow_rank, tried, variants_with
from parsim.units import snapped

DAY = 86_400.0
"""[s]"""
SMALL = 0.005
"""changes of less than this share are no help"""
_ROWS = 12
_BAR = 16
_NOTHING = 5e-4
"""changes of less than this share are named in one line, and not drawn"""
_MOST = 10
"""parts drawn in a roofline"""


Slowest = tuple[SlowGpu | None, list[Change], list[Outcome[Figures]]]
"""what one slow GPU costs, the change that makes the worst one slow, and what came of it"""


@dataclass(frozen=True)
class Explanation:
    """A report, its causes, and what changes of the machine, the recipe and the assumptions do to it."""

    scenario: Scenario
    report: Report
    """assumptions sorted by effect"""
    causes: list[CriticalCause]
    what_ifs: list[WhatIf]
    """the most time saved first; refused ones last"""
    roofline: Roofline | None
    """None for stages of measured times"""

    @property
    def summary(self) -> str:
        """One paragraph in plain words."""
        return " ".join([*_causes_in_words(self), *_changes_in_words(self)])


def explain(scenario: Scenario, *, slow_gpu: float = SPEED, jobs: int | None = None, watch: Watch | None = None) -> Explanation:
    """Simulate a scenario, then again with each change, one GPU at `slow_gpu` of its speed among them. Raises what `simulate` raises."""
    report = simulate(scenario)
    built = build(scenario)
    profiled = isinstance(scenario.tree["model"], dict) and "stages" in scenario.tree["model"]
    assumed, asked = alternatives(scenario, report), list(changes(scenario, report))
    variants = variants_with(scenario, [(), *(one.overrides for one in assumed), *(one.overrides for one in asked)])
    look = partial(_slowest, nominal=report.step_time, speed=checked(slow_gpu), waited_for=report.bottleneck_rank)
    came = answered([(Variant(scenario), look), *((variant, figures) for variant in variants)], jobs=jobs)  # the longest first
    slow, *figured = came if watch is None else watch(came, 1 + len(variants))
    if slow.answer is None:
        raise PlanError(slow.findings) if slow.status == "refused" else ParsimError(slow.reason)
    costs, slowest, at_worst = slow.answer
    report = Report(replace(report.measured, slow_gpu=costs))
    others = levelled(report, figured)
    return Explanation(
        scenario=scenario,
        report=sorted_by_effect(report, assumed, others[: len(assumed)]),
        causes=report.causes,
        what_ifs=ranked(report, [*asked, *slowest], [*others[len(assumed) :], *at_worst]),
        roofline=None if profiled else roofline(built),
    )


def _slowest(scenario: Scenario, *, nominal: float, speed: float, waited_for: int) -> tuple[Slowest, str]:
    """Look at a scenario: what one slow GPU costs, and the change that makes the worst one slow; where all are slow already, the rank
    that is `waited_for`, at the usual speed.
    """
    slow, _ = slowed(scenario, nominal=nominal, speed=speed)
    found = list(slow_rank(scenario, waited_for, SPEED) if slow is None else slow_rank(scenario, slow.worst.rank, slow.speed))
    return (slow, found, tried(scenario, [one.overrides for one in found], jobs=1)), ""


def document(explanation: Explanation) -> dict[str, Any]:
    """The explanation as JSON; s, B, FLOP/s; `report` is the document of the run."""
    return {
        "parsim": 1,
        "summary": explanation.summary,
        "critical_path": [{"kind": row.kind, "name": row.name, "s": row.seconds, "ops": row.count} for row in explanation.causes],
        "what_if": [_what_if(one) for one in explanation.what_ifs],
        "roofline": None if explanation.roofline is None else _roofline_document(explanation.roofline),
        "assumptions": [asdict(assumption) for assumption in explanation.report.measured.assumptions],
        "report": explanation.report.document(),
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


def _roofline_document(roof: Roofline) -> dict[str, Any]:
    return {
        "device": roof.device, "dtype": roof.dtype, "peak_flops": roof.peak, "bandwidth_Bps": roof.bandwidth, "ridge": roof.ridge,
        "parts": [
            {**asdict(point), "intensity": point.intensity, "flops": point.rate, "limit_flops": roof.limit(point),
             "bandwidth_used_Bps": point.bandwidth, "bound": roof.bound(point)}
            for point in roof.points
        ],
    }  # fmt: skip


def _causes_in_words(explanation: Explanation) -> list[str]:
    """What the step waits for, and what a faster network would save."""
    report, step = explanation.report, explanation.report.step_time
    fits = "" if not report.measured.memory.devices else f" and {'fits' if report.fits else 'does not fit'}"
    known = " Times below are simulated." if report.estimate.of == "bands" else ""
    said = [f"One step takes {step_text(step, report.estimate, report.measured.variability)}{fits}.{known} {_capital(report.limiter)}."]
    first = explanation.causes[0]
    said.append(f"The longest part of the critical path is {first.name} ({seconds(first.seconds)}, {percent(first.seconds / step)}).")
    free = by_name(explanation.what_ifs, "an ideal network")
    if free is not None:
        if free.effect > -SMALL:
            said.append("The network is not the problem: an infinitely fast one would save less than 0.5 %.")
        else:
            said.append(f"With an infinitely fast network the step would take {seconds(free.step_time)} ({_signed(free)}).")
    for start, words in (("NVLink", "NVLink between these GPUs"), ("peer-to-peer", "peer-to-peer transfers over PCIe")):
        wires = by_name(explanation.what_ifs, start)
        if wires is not None and wires.effect < -SMALL:
            said.append(f"With {words} it would take {seconds(wires.step_time)} ({_signed(wires)}).")
    return said


def _changes_in_words(explanation: Explanation) -> list[str]:
    """The other changes that help, what one slow GPU costs, and the assumption that matters most."""
    report, said = explanation.report, []
    helpful = (one for one in explanation.what_ifs if one.fits and one.effect < -SMALL)
    best = [one for one in helpful if not one.change.name.startswith(("an ideal network", "NVLink", "peer-to-peer"))]
    if best:
        names = "; ".join(f"{one.change.name}, {seconds(one.step_time)} ({_signed(one)})" for one in best[:3])
        said.append(f"Other changes that help: {names}.")
    else:
        said.append("No other change tried saves 0.5 % or more.")
    if straggler := _straggler(explanation):
        said.append(straggler)
    sure = next((one for one in report.measured.assumptions if one.effect is not None), None)
    if sure is not None and sure.effect is not None:
        low, high = sure.effect.step_time_s
        less, more = sure.effect.peak_bytes
        said.append(
            f"The assumption that matters most is {sure.name} = {sure.value}: over its plausible values the step takes {seconds(low)} to"
            f" {seconds(high)} and the memory peak ranges from {gib(less)} to {gib(more)} GiB."
        )
    return said


def _straggler(explanation: Explanation) -> str:
    """What one slow GPU costs: the step waits for it, and so do all others."""
    report = explanation.report
    slow = report.measured.slow_gpu
    if slow is None or slow.slowdown(slow.worst) <= SMALL:
        return ""
    said = slow.sentence()
    if report.bill is not None and report.bill.cost_per_step is not None and report.bill.time_per_step:
        a_day = report.bill.cost_per_step / report.bill.time_per_step * DAY
        said += f" That is {money(slow.lost(slow.worst) * a_day, report.bill.economics.currency)} a day."
    return said


def _signed(one: WhatIf) -> str:
    return f"{100 * one.effect:+.0f} %"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def text(explanation: Explanation, file: str) -> str:
    """Everything, in tables with their units; `file` is how the user called the scenario."""
    return "\n".join(_lines(explanation, file))


def _lines(explanation: Explanation, file: str) -> Iterator[str]:
    width = min(100, get_terminal_size((80, 24)).columns)
    report = explanation.report
    yield report.measured.name
    yield recipe(report.measured)
    yield ""
    yield fill(" ".join(_causes_in_words(explanation)), width)
    yield ""
    yield fill(" ".join(_changes_in_words(explanation)), width)
    yield from left_out(report.measured)
    yield from _causes(explanation)
    yield from _what_ifs(explanation, file, width)
    if explanation.roofline is not None and explanation.roofline.points:
        yield from _roofline(explanation.roofline)
    yield from assumptions(report)


def _causes(explanation: Explanation) -> Iterator[str]:
    step = explanation.report.step_time
    unit = time_unit(explanation.causes[0].seconds)
    shown = explanation.causes[:_ROWS]
    rows = [[row.name, unit.cell(row.seconds), points(row.seconds / step), f"{row.count:,}"] for row in shown]
    if rest := explanation.causes[_ROWS:]:
        left = math.fsum(row.seconds for row in rest)
        rows.append([f"{len(rest)} others", unit.cell(left), points(left / step), f"{sum(row.count for row in rest):,}"])
    yield ""
    yield "Critical path: what the step waits for, by cause"
    yield Table([Column("Cause", align="left"), Column("", unit.name), Column("[%]"), Column("Ops")], rows).text()


def _what_ifs(explanation: Explanation, file: str, width: int) -> Iterator[str]:
    done = [one for one in explanation.what_ifs if not one.refused]
    notable = [one for one in done if abs(one.effect) >= _NOTHING]
    yield ""
    yield "What if: each change simulated; time for the same number of samples"
    if notable:
        unit = time_unit(max(one.step_time for one in notable))
        rows = [
            [one.change.name, unit.cell(one.step_time), f"{100 * one.effect:+.1f}", gib(one.peak), _bar(one, notable)] for one in notable
        ]
        columns = [Column("Change", align="left"), Column("Step", unit.name), Column("[%]"), Column("Peak [GiB]"), Column("", align="left")]
        yield Table(columns, rows).text()
    still = [one.change.name for one in done if abs(one.effect) < _NOTHING]
    if still:
        yield fill(f"No effect: {'; '.join(still)}.", width)
    for one in explanation.what_ifs:
        if one.refused:
            yield fill(f"{one.change.name}: not possible, {one.refused}", width)
        elif not one.fits and explanation.report.fits:
            yield f"{one.change.name}: would not fit."
    best = next((one for one in notable if one.effect < 0 and not one.change.name.startswith("an ideal network")), None)
    if best is not None:
        yield f"For the full report of {best.change.name!r}: parsim run {quote(file)} {' '.join(map(quote, best.change.overrides))}"


def _bar(one: WhatIf, among: Sequence[WhatIf]) -> str:
    """Faster to the left, slower to the right of the middle."""
    most = max(abs(other.effect) for other in among)
    count = round(_BAR * abs(one.effect) / most) if most else 0
    return f" {'█' * count:>{_BAR}}│" if one.effect < 0 else f" {'':{_BAR}}│{'█' * count}"


def _roofline(roof: Roofline) -> Iterator[str]:
    total = math.fsum(point.seconds for point in roof.points)
    unit = time_unit(roof.points[0].seconds)
    rows = [
        [f"{point.group}: {point.name}", unit.cell(point.seconds), points(point.seconds / total), f"{point.intensity:,.1f}",
         f"{point.rate / 1e12:,.1f}", f"{roof.limit(point) / 1e12:,.1f}", f"{point.bandwidth / 1e9:,.0f}", roof.bound(point)]
        for point in roof.points[:_ROWS]
    ]  # fmt: skip
    yield ""
    yield (
        f"Roofline of one micro-batch on one {roof.device}: {roof.peak / 1e12:,.0f} TFLOP/s {roof.dtype},"
        f" {roof.bandwidth / 1e9:,.0f} GB/s, ridge at {roof.ridge:,.0f} FLOP/B"
    )
    numbers = [Column("", unit.name), *map(Column, ("[%]", "FLOP/B", "TFLOP/s", "of at most", "GB/s"))]
    first, last = Column("Part, forward and backward", align="left"), Column("Bound by", align="left", margin=1)
    yield Table([first, *numbers, last], rows).text()


def assumptions(report: Report) -> Iterator[str]:
    """The assumptions by what they can do to the answer, the largest first."""
    known = [assumption for assumption in report.measured.assumptions if assumption.effect is not None]
    if not known:
        return
    step, peak = report.step_time, report.peak_memory
    rows = []
    for one in known:
        effect = one.effect
        if effect is not None:
            times = [f"{100 * (snapped(time / step) - 1):+.1f}" for time in effect.step_time_s]
            peaks = [f"{(volume - peak) / 2**30:+.2f}" for volume in effect.peak_bytes]
            tried = ", ".join(effect.tried[:4]) + (", …" if len(effect.tried) > 4 else "")
            rows.append([_name(one), one.value[:20], *times, *peaks, tried])
    yield ""
    yield "Assumptions by their effect: the range of the step and of the peak over each one's plausible values"
    words = [Column("Assumption", align="left"), Column("Value", align="left")]
    numbers = [Column("Step [%] from"), Column("to"), Column("Peak [GiB] from"), Column("to")]
    yield Table([*words, *numbers, Column("Alternatives tried", align="left", margin=1)], rows).text()
    unknown = len(report.measured.assumptions) - len(known)
    yield "Set a name without a dot as assumptions.NAME=VALUE." + (
        f" {unknown} others have no plausible alternative to try." if unknown else ""
    )


def _name(assumption: ReportedAssumption) -> str:
    return assumption.name.removeprefix("cluster.set.")


def pictures(explanation: Explanation, kind: Literal["svg", "png"] = "svg") -> dict[str, bytes]:
    """File name -> picture: what-if, assumptions, roofline."""
    from parsim.report.plots.explanation import ChangeBar, RooflinePart, roofline_figure, tornado_figure
    from parsim.report.plots.figure import save

    name, step = explanation.report.measured.name, explanation.report.step_time
    files = {}
    changes = [
        ChangeBar(one.change.name + ("" if one.fits else " (does not fit)"), min(0.0, one.effect), max(0.0, one.effect))
        for one in explanation.what_ifs
        if not one.refused and abs(one.effect) >= _NOTHING
    ]
    if changes:
        files[f"what-if.{kind}"] = save(tornado_figure(f"{name}: what if", changes, "time of the same samples"), kind)
    guesses = [
        ChangeBar(
            f"{one.name.removeprefix('cluster.set.')} = {one.value[:20]}",
            one.effect.step_time_s[0] / step - 1.0,
            one.effect.step_time_s[1] / step - 1.0,
        )
        for one in explanation.report.measured.assumptions
        if one.effect is not None
    ]
    guesses = [bar for bar in guesses if max(-bar.low, bar.high) >= _NOTHING]
    if guesses:
        files[f"assumptions.{kind}"] = save(tornado_figure(f"{name}: assumptions", guesses, "step time"), kind)
    if explanation.roofline is not None and explanation.roofline.points:
        roof = explanation.roofline
        total = math.fsum(point.seconds for point in roof.points)
        parts = roof.points[:_MOST]
        dots = [RooflinePart(f"{part.group}: {part.name}", part.intensity, part.rate, part.seconds / total) for part in parts]
        files[f"roofline.{kind}"] = save(roofline_figure(f"{name} on {roof.device}", dots, roof.peak, roof.bandwidth), kind)
    return files

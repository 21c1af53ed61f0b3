"""An explanation on a terminal, and its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from shlex import quote
from shutil import get_terminal_size
from textwrap import fill
from typing import Literal

from parsim.report import Report
from parsim.report.measured import Assumption
from parsim.report.quantities import gib, points, time_unit
from parsim.report.table import Column, Table
from parsim.report.verdict import recipe
from parsim.study.explain import Explanation
from parsim.study.roofline import Roofline
from parsim.study.what_if import WhatIf

_ROWS = 12
_BAR = 16
_NOTHING = 5e-4
"""changes of less than this share are named in one line"""


def text(found: Explanation, file: str) -> str:
    """Everything, in tables with their units; `file` is how the user called the scenario."""
    return "\n".join(_lines(found, file))


def _lines(found: Explanation, file: str) -> Iterator[str]:
    width = min(100, get_terminal_size((80, 24)).columns)
    report = found.report
    yield report.measured.name
    yield recipe(report.measured)
    yield ""
    yield fill(found.summary, width)
    yield from _causes(found)
    yield from _what_ifs(found, file, width)
    if found.roofline is not None and found.roofline.points:
        yield from _roofline(found.roofline)
    yield from assumptions(report)


def _causes(found: Explanation) -> Iterator[str]:
    step = found.report.step_time
    unit = time_unit(found.causes[0].seconds)
    shown = found.causes[:_ROWS]
    rows = [[row.name, unit.cell(row.seconds), points(row.seconds / step), f"{row.count:,}"] for row in shown]
    if rest := found.causes[_ROWS:]:
        left = math.fsum(row.seconds for row in rest)
        rows.append([f"{len(rest)} more", unit.cell(left), points(left / step), f"{sum(row.count for row in rest):,}"])
    yield ""
    yield "Critical path: what the step waits for, one after the other"
    yield Table([Column("Cause", align="left"), Column("", unit.name), Column("[%]"), Column("Ops")], rows).text()


def _what_ifs(found: Explanation, file: str, width: int) -> Iterator[str]:
    done = [one for one in found.what_ifs if not one.refused]
    notable = [one for one in done if abs(one.effect) >= _NOTHING]
    yield ""
    yield "What if: each simulated anew; time of the same samples"
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
    for one in found.what_ifs:
        if one.refused:
            yield fill(f"{one.change.name}: not possible, {one.refused}", width)
        elif not one.fits and found.report.fits:
            yield f"{one.change.name}: would not fit."
    best = next((one for one in notable if one.effect < 0 and not one.change.name.startswith("a network that costs nothing")), None)
    if best is not None:
        yield f"To see more of {best.change.name!r}: parsim run {quote(file)} {' '.join(map(quote, best.change.overrides))}"


def _bar(one: WhatIf, among: Sequence[WhatIf]) -> str:
    """Faster to the left, slower to the right of the middle."""
    most = max(abs(other.effect) for other in among)
    count = round(_BAR * abs(one.effect) / most) if most else 0
    return f" {'█' * count:>{_BAR}}│" if one.effect < 0 else f" {'':{_BAR}}│{'█' * count}"


def _roofline(found: Roofline) -> Iterator[str]:
    total = math.fsum(point.seconds for point in found.points)
    unit = time_unit(found.points[0].seconds)
    rows = [
        [f"{point.group}: {point.name}", unit.cell(point.seconds), points(point.seconds / total), f"{point.intensity:,.1f}",
         f"{point.rate / 1e12:,.1f}", f"{found.limit(point) / 1e12:,.1f}", f"{point.bandwidth / 1e9:,.0f}", found.bound(point)]
        for point in found.points[:_ROWS]
    ]  # fmt: skip
    yield ""
    yield (
        f"Roofline of one micro-batch on one {found.device}: {found.peak / 1e12:,.0f} TFLOP/s {found.dtype},"
        f" {found.bandwidth / 1e9:,.0f} GB/s, ridge at {found.ridge:,.0f} FLOP/B"
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
            times = [f"{100 * (time / step - 1):+.1f}" for time in effect.step_time_s]
            peaks = [f"{(volume - peak) / 2**30:+.2f}" for volume in effect.peak_bytes]
            tried = ", ".join(effect.tried[:4]) + (", …" if len(effect.tried) > 4 else "")
            rows.append([_name(one), one.value[:20], *times, *peaks, tried])
    yield ""
    yield "Assumptions by their effect on this answer: what the step and the peak become with what else they might be"
    words = [Column("Assumption", align="left"), Column("Value", align="left")]
    numbers = [Column("Step [%] from"), Column("to"), Column("Peak [GiB] from"), Column("to")]
    yield Table([*words, *numbers, Column("Tried instead", align="left", margin=1)], rows).text()
    unknown = len(report.measured.assumptions) - len(known)
    yield "Names without a dot are set with assumptions.NAME=VALUE." + (f" {unknown} more have no alternative." if unknown else "")


def _name(assumption: Assumption) -> str:
    return assumption.name.removeprefix("cluster.set.")


_LEAST = 5e-4
"""effects below this share are not drawn"""
_MOST = 10
"""parts drawn in a roofline"""


def pictures(found: Explanation, kind: Literal["svg", "png"] = "svg") -> dict[str, bytes]:
    """File name -> picture: what-if, assumptions, roofline."""
    from parsim.report.plots.figure import save
    from parsim.report.plots.roofline import Dot, roofline_figure
    from parsim.report.plots.tornado import Bar, tornado_figure

    name, step = found.report.measured.name, found.report.step_time
    files = {}
    changes = [
        Bar(one.change.name + ("" if one.fits else " (does not fit)"), min(0.0, one.effect), max(0.0, one.effect))
        for one in found.what_ifs
        if not one.refused and abs(one.effect) >= _LEAST
    ]
    if changes:
        files[f"what-if.{kind}"] = save(tornado_figure(f"{name}: what if", changes, "time of the same samples"), kind)
    guesses = [
        Bar(
            f"{one.name.removeprefix('cluster.set.')} = {one.value[:20]}",
            one.effect.step_time_s[0] / step - 1.0,
            one.effect.step_time_s[1] / step - 1.0,
        )
        for one in found.report.measured.assumptions
        if one.effect is not None
    ]
    guesses = [bar for bar in guesses if max(-bar.low, bar.high) >= _LEAST]
    if guesses:
        files[f"assumptions.{kind}"] = save(tornado_figure(f"{name}: assumptions", guesses, "step time"), kind)
    if found.roofline is not None and found.roofline.points:
        roof = found.roofline
        total = math.fsum(point.seconds for point in roof.points)
        dots = [Dot(f"{point.group}: {point.name}", point.intensity, point.rate, point.seconds / total) for point in roof.points[:_MOST]]
        files[f"roofline.{kind}"] = save(roofline_figure(f"{name} on {roof.device}", dots, roof.peak, roof.bandwidth), kind)
    return files

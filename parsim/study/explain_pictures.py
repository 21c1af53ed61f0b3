"""The figures of an explanation."""

from __future__ import annotations

import math
from typing import Literal

from parsim.report.plots.figure import save
from parsim.report.plots.roofline import Dot, roofline_figure
from parsim.report.plots.tornado import Bar, tornado_figure
from parsim.study.explain import Explanation

_LEAST = 5e-4
"""effects below this share are not drawn"""
_MOST = 10
"""parts drawn in a roofline"""


def pictures(found: Explanation, kind: Literal["svg", "png"] = "svg") -> dict[str, bytes]:
    """File name -> picture: what-if, assumptions, roofline."""
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

"""Pipeline schedules as the papers draw them: PDF, SVG or PNG with their fonts in them, at the width of a column."""

from __future__ import annotations

from io import BytesIO
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from parsim.report.plots import style
from parsim.report.plots.figure import Picture, fonts
from parsim.report.schedule_scene import Scene

Kind = Literal["pdf", "svg", "png"]
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": "parsim", "Producer": "matplotlib"},
    "svg": {"Date": None, "Creator": "parsim"},
    "png": {"Software": "parsim"},
}


def schedule_figure(scene: Scene) -> Picture:
    """`scene` on one axes whose data are inches; every slot is a `Rectangle` with the slot's name as its gid."""
    figure = Picture(figsize=(scene.width, scene.height), dpi=100)
    figure.patch.set_facecolor(style.PAPER)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    ax.set_xlim(0, scene.width)
    ax.set_ylim(0, scene.height)
    for rect in scene.rects:
        hatch = style.BUBBLE_LINES * 2 if rect.hatch else None
        patch = Rectangle(
            (rect.x, rect.y), rect.width, rect.height, facecolor=rect.fill, edgecolor=rect.edge, hatch=hatch,
            linewidth=0.0 if rect.hatch else 0.4,
        )  # fmt: skip
        if rect.name:
            patch.set_gid(rect.name)
        ax.add_artist(patch)  # add_patch would look for data limits, which are set
    for line in scene.lines:
        ax.add_artist(Line2D((line.x0, line.x1), (line.y0, line.y1), color=line.colour, linewidth=line.width, solid_capstyle="butt"))
    with fonts("".join(text.text for text in scene.texts)):
        for text in scene.texts:
            ax.text(
                text.x, text.y, text.text, fontsize=text.size, ha=text.align, va="center_baseline", color=text.colour,
                fontweight="bold" if text.bold else "normal",
            )  # fmt: skip
    return figure


def save_schedule(scene: Scene, kind: Kind) -> bytes:
    """The figure as a file; equal scenes give equal bytes. PDF embeds TrueType fonts, SVG has its letters as outlines."""
    out = BytesIO()
    settings: dict[Any, Any] = {"pdf.fonttype": 42, "svg.hashsalt": "parsim", "svg.fonttype": "path", "hatch.linewidth": 0.4}
    with fonts("".join(text.text for text in scene.texts)), mpl.rc_context(settings):
        Figure.savefig(schedule_figure(scene), out, format=kind, dpi=300, metadata=_METADATA[kind])
    return out.getvalue()

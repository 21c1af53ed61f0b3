"""Pipeline schedules as the papers draw them: PDF, SVG or PNG with their fonts in them, or TikZ in the fonts of a document.

No LaTeX is needed to make the latter.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from parsim.report.plots import style
from parsim.report.plots.figure import Picture, fonts, latex
from parsim.report.schedule_scene import Lettering, Rect, Scene

Kind = Literal["pdf", "svg", "png"]
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": "parsim", "Producer": "matplotlib"},
    "svg": {"Date": None, "Creator": "parsim"},
    "png": {"Software": "parsim"},
}


_ANCHORS = {"left": "west", "center": "center", "right": "east"}


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


def pgf(scene: Scene) -> str:
    r"""The scene as a ``tikzpicture`` in inches, to be read with ``\input``; it needs tikz and its library patterns."""
    colours = {colour: f"parsim{number}" for number, colour in enumerate(_colours(scene))}
    lines = [
        "% Pipeline schedules drawn by parsim.",
        r"% In the preamble: \usepackage{tikz} \usetikzlibrary{patterns}",
        r"\begingroup",
        *(rf"\definecolor{{{name}}}{{HTML}}{{{colour[1:].upper()}}}" for colour, name in colours.items()),
        r"\begin{tikzpicture}[x=1in,y=1in,inner sep=0pt,outer sep=0pt]",
        rf"\useasboundingbox (0,0) rectangle ({scene.width:.4f},{scene.height:.4f});",
        *(line for rect in scene.rects for line in _rect(rect, colours)),
        *(
            rf"\draw[{colours[line.colour]},line width={line.width:g}pt] ({line.x0:.4f},{line.y0:.4f}) -- ({line.x1:.4f},{line.y1:.4f});"
            for line in scene.lines
        ),
        *(_text(text, colours) for text in scene.texts),
        r"\end{tikzpicture}",
        r"\endgroup",
    ]
    return "\n".join(lines) + "\n"


def _colours(scene: Scene) -> dict[str, None]:
    used = [colour for rect in scene.rects for colour in (rect.fill, rect.edge)]
    return dict.fromkeys(colour for colour in (*used, *(one.colour for one in scene.lines), *(one.colour for one in scene.texts)) if colour)


def _rect(rect: Rect, colours: dict[str, str]) -> Iterator[str]:
    corners = f"({rect.x:.4f},{rect.y:.4f}) rectangle ({rect.x + rect.width:.4f},{rect.y + rect.height:.4f})"
    fill, edge = colours[rect.fill], colours.get(rect.edge, "none")
    if rect.hatch:
        yield rf"\fill[{fill}] {corners};"
        yield rf"\fill[pattern=north east lines,pattern color={edge}] {corners};"
    else:
        yield rf"\draw[fill={fill},draw={edge},line width=0.4pt] {corners};" + (f" % {rect.name}" if rect.name else "")


def _text(text: Lettering, colours: dict[str, str]) -> str:
    font = rf"\fontsize{{{text.size:.2f}}}{{{text.size:.2f}}}\selectfont" + (r"\bfseries" if text.bold else "")
    options = f"anchor={_ANCHORS[text.align]},text={colours[text.colour]},font={{{font}}}"
    return rf"\node[{options}] at ({text.x:.4f},{text.y:.4f}) {{{latex(text.text)}}};"

"""Figures without global state: no pyplot, the same bytes for the same data, names in any script."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from parsim.report.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans",
    "Malgun Gothic",
    "Arial Unicode MS",
)
"""Tried in this order for what DejaVu Sans lacks."""


Drawing = Figure
"""a figure's type, for rooms that draw nothing themselves"""

_METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": "parsim"},
    "png": {"Software": "parsim"},
    "pdf": {"CreationDate": None, "Creator": "parsim"},
}
"""no dates: equal figures give equal files"""


def new_figure(width: float, height: float) -> Figure:
    """An empty figure [inch] that lays itself out."""
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08), dpi=100)
    figure.patch.set_facecolor(style.PAPER)
    return figure


def dress(ax: Axes) -> None:
    """Ink, no box, and the figure's paper."""
    ax.patch.set_visible(False)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(style.INK)
    ax.tick_params(colors=style.INK, labelsize="small")
    for text in (ax.xaxis.label, ax.yaxis.label):
        text.set_color(style.INK)


@contextmanager
def fonts(text: str = "") -> Iterator[None]:
    """Add a font with wide characters if `text` needs one and the machine has one; else missing glyphs are boxes."""
    family = ["DejaVu Sans"]
    if not re.fullmatch(r"[\u0000-\u052f\u2000-\u2bff]*", text):
        family += _installed_wide_fonts()
    with mpl.rc_context({"font.family": family, "text.usetex": False, "text.parse_math": False}), _boxes():
        yield


@contextmanager
def _boxes() -> Iterator[None]:
    """No font on the machine may have a character; a box in its place is all that can be done, and no news."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font", category=UserWarning)
        yield


@cache
def _installed_wide_fonts() -> list[str]:
    installed = set(font_manager.get_font_names())
    return [name for name in _WIDE_FONTS if name in installed][:1]


def save(figure: Figure, kind: Literal["svg", "png", "pdf"] = "svg", *, inline: bool = False, dpi: float = 150.0) -> bytes:
    """The figure as a file; equal figures give equal bytes. `inline`: text stays text (smaller, selectable)."""
    out = BytesIO()
    settings: dict[Any, Any] = {
        "svg.hashsalt": "parsim",
        "svg.fonttype": "none" if inline else "path",
        "pdf.fonttype": 42,
        "hatch.linewidth": 0.5,
    }
    metadata = _METADATA[kind]
    with mpl.rc_context(settings), _boxes():
        figure.savefig(out, format=kind, dpi=dpi, metadata=metadata)
    return out.getvalue()

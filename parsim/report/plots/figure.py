"""Figures without global state: no pyplot, the same bytes for the same data, names in any script."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from parsim.columns import visible
from parsim.report.plots import style
from parsim.report.quantities import number

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

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


COLUMN = 3.5
"""width of a column of a paper [inch]; up to half more, figures are drawn for it"""
PRINT_SIZE = 7.5
"""of letters in journals [pt]"""
_LEGEND_ROW = 0.17
"""[inch]"""

Drawing = Figure
"""a figure's type, for rooms that draw nothing themselves"""

Kind = Literal["svg", "png", "pdf", "pgf"]
KINDS: tuple[Kind, ...] = ("pdf", "svg", "png", "pgf")
"""of files"""

_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "parsim",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "pgf.rcfonts": False,
    "hatch.linewidth": 0.5,
}
"""Glyphs in SVG are outlines, fonts in PDF are embedded TrueType: both look the same everywhere."""
_METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": "parsim"},
    "png": {"Software": "parsim"},
    "pdf": {"Creator": "parsim", "Producer": None, "CreationDate": None},
    "pgf": {},
}
"""No dates, no versions."""


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "µ": r"\ensuremath{\mu}",
    "\N{MINUS SIGN}": r"\ensuremath{-}",
    **{character: f"\\{character}" for character in "{}%&#_$"},
}


def latex(text: str) -> str:
    r"""`text` as LaTeX prints it: a name is no command.

    >>> print(latex(r"100 % \input{x} $a_1$"))
    100 \% \textbackslash{}input\{x\} \$a\_1\$
    """
    return "".join(_LATEX.get(character, character) for character in visible(text))


class Picture(Figure):
    """A figure without global state that shows itself in a notebook and saves the same bytes every time."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """As matplotlib's, with embedded fonts and without a date."""
        kind = str(options.get("format") or Path(str(fname)).suffix.removeprefix(".").lower() or "png")
        if kind in _METADATA:
            options.setdefault("metadata", _METADATA[kind])
        options.setdefault("dpi", 200.0)
        plain = names_in_latex() if kind == "pgf" else nullcontext()
        with mpl.rc_context(_SETTINGS), _boxes(), plain:
            super().savefig(fname, **options)

    def draw(self, renderer: Any) -> None:
        """As matplotlib's, for what it draws text with: control characters are shown in letters, no SVG may hold them."""
        before, plain = vars(renderer).get("draw_text"), renderer.draw_text
        renderer.draw_text = lambda gc, x, y, text, *rest, **named: plain(gc, x, y, visible(text), *rest, **named)
        try:
            super().draw(renderer)
        finally:  # figures are measured by drawing them with the same renderer
            del renderer.draw_text
            if before is not None:
                renderer.draw_text = before

    def _repr_png_(self) -> bytes:
        return save(self, "png", dpi=144.0)


def new_figure(width: float, height: float, *, layout: bool = True) -> Picture:
    """An empty figure [inch] that lays itself out unless told not to."""
    engine = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08) if layout else None
    figure = Picture(figsize=(width, height), layout=engine, dpi=100)
    figure.patch.set_facecolor(style.PAPER)
    return figure


def font_size(width: float) -> float:
    """The size of a figure's text [pt] for a width [in]: 8 in a column, 9 on a page, 10 on a screen."""
    return 8.0 if width < 5.0 else 9.0 if width < 9.0 else 10.0


def extent(text: str, size: float) -> float:
    """How wide a text is [in] in the current font at `size` [pt]."""
    if not text:
        return 0.0
    return (
        max(text_to_path.get_text_width_height_descent(line, FontProperties(size=size), ismath=False)[0] for line in text.split("\n"))
        / 72.0
    )


def heading(figure: Figure, text: str, size: float) -> None:
    """The title of a whole figure, in as many lines as its width needs."""
    if text:
        width = float(figure.get_size_inches()[0]) - 0.2
        lines = wrap(text, max(20, int(0.96 * width * len(text) / extent(text, 1.1 * size))))
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=1.1 * size, color=style.INK)


def dress(ax: Axes, size: float = 10.0) -> None:
    """Ink, no box, and the figure's paper; `size` of the text [pt]."""
    ax.patch.set_visible(False)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(style.INK)
    ax.tick_params(colors=style.INK, labelsize=0.833 * size)
    for text in (ax.xaxis.label, ax.yaxis.label):
        text.set_color(style.INK)


def grid(ax: Axes, axis: Literal["both", "x", "y"] = "both", width: float = 0.5) -> None:
    """Lines behind what is drawn; `width` [pt]."""
    ax.grid(axis=axis, color=style.GRID, linewidth=width)
    ax.set_axisbelow(True)


def plane(ax: Axes, across: str, up: str) -> None:
    """Dress axes on which two numbers stand against each other, named so."""
    ax.set_xlabel(across)
    ax.set_ylabel(up)
    dress(ax)
    ax.spines["left"].set_visible(True)
    ax.spines["left"].set_color(style.INK)
    grid(ax)


def round_ticks(axis: Axis, most: int) -> None:
    """At most `most` ticks at round numbers."""
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))


def log_ticks(axis: Axis, *, few: bool, most: int | None = None) -> None:
    """Plain numbers at powers of ten, where `few` decades are shown also at 2 and 5."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), **({} if most is None else {"numticks": most})))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_formatter(NullFormatter())


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str] | None = None, *, columns: int) -> None:
    """One legend under the whole figure, if there is anything to say; without `labels` the handles have their own."""
    if handles:
        names = [str(handle.get_label()) for handle in handles] if labels is None else labels
        look: dict[str, Any] = {"frameon": False, "fontsize": "small", "labelcolor": style.INK}
        figure.legend(handles, names, loc="outside lower center", ncols=columns, **look)


@contextmanager
def fonts(text: str = "", size: float = 10.0) -> Iterator[None]:
    """Text of `size` [pt]. Add a font with wide characters if `text` needs one and the machine has one; else missing glyphs are boxes."""
    family = ["DejaVu Sans"]
    if not re.fullmatch(r"[\u0000-\u052f\u2000-\u2bff]*", text):
        family += _installed_wide_fonts()
    with (
        mpl.rc_context({"font.family": family, "font.size": size, "hatch.linewidth": 0.5, "text.usetex": False, "text.parse_math": False}),
        _boxes(),
    ):
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


@contextmanager
def names_in_latex() -> Iterator[None]:
    """Let matplotlib write texts into a .pgf figure as they are: it takes them for LaTeX, which does what a name says."""
    from matplotlib.backends import backend_pgf

    module: Any = backend_pgf
    before = module._tex_escape  # noqa: SLF001 - there is no public way
    module._tex_escape = latex  # noqa: SLF001
    try:
        yield
    finally:
        module._tex_escape = before  # noqa: SLF001


@contextmanager
def printed(text: str) -> Iterator[None]:
    """Draw with letters of the size that journals print."""
    with fonts(text), mpl.rc_context({"font.size": PRINT_SIZE, "hatch.linewidth": 0.4}):
        yield


def is_narrow(width: float) -> bool:
    """Whether a figure is as wide as a column."""
    return width < 1.5 * COLUMN


def legend(figure: Figure, handles: Mapping[str, Any], width: float, above: float) -> None:
    """One legend, label -> handle, under `above` inches of figure, which becomes as high as both need."""
    lines = -(-len(handles) // legend_columns(list(handles), width)) if handles else 0
    figure.set_figheight(above + _LEGEND_ROW * lines)
    if handles:
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower left", ncols=legend_columns(list(handles), width), frameon=False,
            fontsize="small", labelcolor=style.INK, handlelength=1.6, columnspacing=1.2,
        )  # fmt: skip


def legend_columns(labels: Sequence[str], width: float) -> int:
    """How many entries stand beside each other."""
    widest = max(map(len, labels), default=1)
    return max(1, min(len(labels), int(width / (0.062 * widest + 0.42))))


def entries_of(ax: Axes) -> dict[str, Any]:
    """Label -> handle, each once."""
    handles: dict[str, Any] = {}
    for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
        handles.setdefault(label, handle)
    return handles


def save(figure: Figure, kind: Kind = "svg", *, inline: bool = False, dpi: float = 150.0) -> bytes:
    """The figure as a file; equal figures give equal bytes. `inline`: text of an SVG stays text (smaller, selectable)."""
    out = BytesIO()
    plain = names_in_latex() if kind == "pgf" else nullcontext()
    with mpl.rc_context({**_SETTINGS, "svg.fonttype": "none" if inline else "path"}), _boxes(), plain:
        Figure.savefig(figure, out, format=kind, dpi=dpi, metadata=_METADATA[kind])
    return rounded(out.getvalue()) if kind == "svg" else out.getvalue()


_PATH = re.compile(rb'(<path(?: id="[^"]*")?) d="([^"]*)"')
_ALIKE = re.compile(rb'<path d="[^"]*"((?: clip-path="[^"]*")? style="[^"]*")/>(?:\s*<path d="[^"]*"\1/>)+')
_DIGITS = re.compile(rb"-?\d+\.\d+")


def rounded(svg: bytes) -> bytes:
    """An SVG with coordinates to a hundredth of a point, which nobody can see, and with neighbours that are drawn alike as one path:
    a quarter as large.
    """
    short = _PATH.sub(lambda path: b'%s d="%s"' % (path[1], _drawn(_DIGITS.sub(_shorter, path[2]))), svg)
    return _ALIKE.sub(lambda run: b'<path d="%s"%s/>' % (b"".join(drawn for _, drawn in _PATH.findall(run[0])), run[1]), short)


def _drawn(path: bytes) -> bytes:
    """A path of straight lines, with those along an axis by one coordinate."""
    words = path.split()
    if not words or words[0] != b"M" or set(words).intersection((b"C", b"Q", b"S", b"T", b"A")):
        return b" ".join(words)
    parts, x, y, place = [], b"", b"", 0
    while place < len(words):
        kind = words[place]
        if kind not in (b"M", b"L"):
            parts.append(kind)
            place += 1
            continue
        before, (x, y) = (x, y), words[place + 1 : place + 3]
        if kind == b"M" or (x != before[0] and y != before[1]):
            parts.append(b"%s%s %s" % (kind, x, y))
        elif (x, y) != before:
            parts.append(b"V%s" % y if x == before[0] else b"H%s" % x)
        place += 3
    return b"".join(parts)


def _shorter(number: re.Match[bytes]) -> bytes:
    return (b"%.2f" % float(number[0])).rstrip(b"0").rstrip(b".")

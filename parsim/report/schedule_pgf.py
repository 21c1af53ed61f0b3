"""A drawing of schedules for LaTeX, in the fonts of the document; no LaTeX is needed to make it."""

from __future__ import annotations

from collections.abc import Iterator

from parsim.columns import visible
from parsim.report.schedule_scene import Rect, Scene, Text

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "µ": r"\ensuremath{\mu}",
    "\N{MINUS SIGN}": r"\ensuremath{-}",
    **{character: f"\\{character}" for character in "{}%&#_$"},
}
_ANCHORS = {"left": "west", "center": "center", "right": "east"}


def latex(text: str) -> str:
    r"""`text` as LaTeX prints it: a name is no command.

    >>> print(latex(r"100 % \input{x} $a_1$"))
    100 \% \textbackslash{}input\{x\} \$a\_1\$
    """
    return "".join(_SPECIAL.get(character, character) for character in visible(text))


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


def _text(text: Text, colours: dict[str, str]) -> str:
    font = rf"\fontsize{{{text.size:.2f}}}{{{text.size:.2f}}}\selectfont" + (r"\bfseries" if text.bold else "")
    options = f"anchor={_ANCHORS[text.align]},text={colours[text.colour]},font={{{font}}}"
    return rf"\node[{options}] at ({text.x:.4f},{text.y:.4f}) {{{latex(text.text)}}};"

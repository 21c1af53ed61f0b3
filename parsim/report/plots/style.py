"""One meaning, one colour: in the terminal, in figures and on the page.

The palette is Okabe and Ito's (Color Universal Design, 2008), legible with every kind of colour vision. Hue is never
alone: hatches, heights and letters repeat it in print. This file imports nothing, so tables may use it too.
"""

from __future__ import annotations

from typing import NamedTuple

INK = "#1b1f24"
"""Text and axes; the page replaces it by the colour of its own text."""
PAPER = "#ffffff"
BUBBLE = "#e6e9ed"
"""Never white: white is no data."""
BUBBLE_HATCH = "#c9ced6"
BUBBLE_LINES = "///"
WAITING = "#eceef1"
"""The compute row while only communication or a copy runs; dotted, which tells it from a bubble."""
GRID = "#d4d9df"
CAPACITY = "#D55E00"

BLUE, ORANGE, YELLOW, SKY = "#0072B2", "#E69F00", "#F0E442", "#56B4E9"
GREEN, VERMILION, PURPLE, GREY = "#009E73", "#D55E00", "#CC79A7", "#8a929c"


class Style(NamedTuple):
    """How a kind of span is drawn."""

    colour: str
    label: str
    text: str = "#ffffff"
    """colour of a number inside the box"""
    hatch: str = ""
    line: str = ""
    """of edges and hatch; empty: the colour x 0.6"""

    @property
    def stroke(self) -> str:
        """Colour of edges and hatch."""
        return self.line or darker(self.colour)


ROLES = {
    "forward": Style(BLUE, "forward"),
    "backward": Style(ORANGE, "backward", "#111111"),
    "weight": Style(YELLOW, "weight gradient", "#111111"),
    "recompute": Style(SKY, "recompute", "#111111", hatch=r"\\\\\\"),
    "optimizer": Style(GREEN, "optimizer"),
    "other": Style(GREY, "other compute", hatch=".."),
    "communication": Style(VERMILION, "communication"),
    "pipeline": Style(PURPLE, "point-to-point"),
    "offload": Style("#000000", "offload copy"),
    "launch": Style(GREY, "waits for the host", hatch="----"),
}
"""Spans of the timeline."""

COMMUNICATION = {"pipeline_comm": "pipeline", "offload": "offload", "optimizer": "optimizer"}
"""Classes of time beside compute that do not look like `communication`."""

HIDDEN = 0.45
"""opacity of communication that runs under compute; it is hatched besides"""
HIDDEN_HATCH = "////"

KEYS = {
    "compute": BLUE,
    "recompute": SKY,
    "tensor_comm": VERMILION,
    "data_comm": VERMILION,
    "pipeline_comm": PURPLE,
    "context_comm": VERMILION,
    "expert_comm": VERMILION,
    "optimizer": GREEN,
    "offload": "#5b636d",
    "launch": GREY,
    "bubble": "#b4bbc4",
    "other": GREY,
}
"""Classes of the breakdown."""

KEY_HATCHES = {
    "recompute": ROLES["recompute"].hatch,
    "data_comm": "----",
    "context_comm": "\\\\\\\\",
    "expert_comm": "xxxx",
    "launch": ROLES["launch"].hatch,
    "bubble": BUBBLE_LINES,
    "other": ROLES["other"].hatch,
}
"""Hatches of those: they repeat what the timeline shows, and tell classes of one colour apart in a stack."""

CATEGORIES = {
    "context": Style("#5b636d", "context"),
    "communicators": Style("#7d8590", "communicators"),
    "parameters": Style(BLUE, "parameters"),
    "gradients": Style(SKY, "gradients"),
    "optimizer": Style(GREEN, "optimizer states"),
    "activations": Style(ORANGE, "activations"),
    "temporaries": Style(YELLOW, "temporaries"),
    "buffers": Style(PURPLE, "buffers"),
    "workspace": Style("#a4abb5", "workspace", hatch="||||"),
    "fragmentation": Style("#d4d9df", "fragmentation", hatch="xxxx"),
}
"""Memory, from the flat base of a stack to its top."""


def role(kind: str, name: str) -> str:
    """The role of an op: its class, and for compute the letter its name begins with (F, B, I, W, R and a stage)."""
    if kind == "compute":
        letter, rest = name[:1], name[1:2]
        if rest and not (rest.isdigit() or rest == " "):
            return "other"
        return {"F": "forward", "B": "backward", "I": "backward", "W": "weight", "R": "recompute"}.get(letter, "other")
    if kind == "pipeline_comm":
        return "pipeline"
    if kind.endswith("_comm"):
        return "communication"
    return kind if kind in ("recompute", "optimizer", "offload") else "other"


def darker(colour: str) -> str:
    """The same hue x 0.6: edges and hatches."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"#{int(red * 0.6):02x}{int(green * 0.6):02x}{int(blue * 0.6):02x}"


def luminance(colour: str) -> float:
    """Relative luminance of a six-digit colour, 0 (black) to 1 (white) (WCAG 2.2)."""
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def grey(colour: str) -> float:
    """Lightness as grey-scale print shows it, 0 (black) to 100 (white): L* of CIE 1976."""
    y = luminance(colour)
    return float(116.0 * y ** (1.0 / 3.0) - 16.0) if y > 216.0 / 24389.0 else y * 24389.0 / 27.0


def beside(key: str) -> Style:
    """How a class of time beside compute is drawn."""
    return ROLES[COMMUNICATION.get(key, "communication")]


def memory_style(category: str) -> Style:
    """How a memory category is drawn; unknown ones are grey."""
    return CATEGORIES.get(category, Style(GREY, category))

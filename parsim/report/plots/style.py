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


ROLES = {
    "forward": Style(BLUE, "forward"),
    "backward": Style(ORANGE, "backward", "#111111"),
    "weight": Style(YELLOW, "weight gradient", "#111111"),
    "recompute": Style(SKY, "recompute", "#111111"),
    "optimizer": Style(GREEN, "optimizer"),
    "other": Style(GREY, "other compute"),
    "communication": Style(VERMILION, "communication"),
    "pipeline": Style(PURPLE, "point-to-point"),
    "offload": Style("#000000", "offload copy"),
}
"""Spans of the timeline."""

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
    "recompute": "....",
    "data_comm": "////",
    "context_comm": "\\\\\\\\",
    "expert_comm": "xxxx",
    "launch": "||||",
    "bubble": "///",
    "other": "++++",
}
"""What tells classes of one colour, or of one grey in print, apart in a stack."""

CATEGORIES = {
    "context": Style("#5b636d", "context"),
    "communicators": Style("#7d8590", "communicators"),
    "parameters": Style(BLUE, "parameters"),
    "gradients": Style(SKY, "gradients"),
    "optimizer": Style(GREEN, "optimizer states"),
    "activations": Style(ORANGE, "activations"),
    "temporaries": Style(YELLOW, "temporaries"),
    "buffers": Style(PURPLE, "buffers"),
    "workspace": Style("#a4abb5", "workspace", hatch="...."),
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


def memory_style(category: str) -> Style:
    """How a memory category is drawn; unknown ones are grey."""
    return CATEGORIES.get(category, Style(GREY, category))

"""SVG figures inside pages and notebooks."""

from __future__ import annotations

import re
from html import escape

from parsim.report.plots import style

_THEMED = ((style.BUBBLE, "var(--bubble)"), (style.BUBBLE_HATCH, "var(--hatch)"), (style.GRID, "var(--line)"))
"""Colours of a figure that follow the page's theme; the palette itself never changes."""


def inline(svg: bytes, prefix: str, label: str) -> str:
    """An SVG file made part of a page: own ids, the page's text colour, no header and no foreign addresses."""
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    for colour, variable in ((style.INK, "currentColor"), *_THEMED):
        text = text.replace(colour, variable)
    # The paper is the page's.
    text = re.sub(rf"fill: {style.PAPER}", "fill: none", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)

"""The files of a comparison, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from parsim.errors import Finding, InputError
from parsim.report.plots.figure import save
from parsim.report.write import Content, write_together
from parsim.study.compare_figures import names
from parsim.study.compare_text import csv_text, markdown

if TYPE_CHECKING:
    from parsim.study.compare import Comparison

FORMATS = ("svg", "png", "pdf", "html")
"""of figures, and html: one interactive page"""
_DPI = 300.0
"""of png, as print asks for"""


def write(comparison: Comparison, directory: str | Path, formats: Iterable[str], width: float) -> list[Path]:
    """Write the tables, the figures and the page into `directory` (made if needed) and return their paths."""
    chosen = list(dict.fromkeys(formats))
    if unknown := [one for one in chosen if one not in FORMATS]:
        raise InputError(Finding("unknown format of figures", "--format", unknown[0], f"known: {', '.join(FORMATS)}"))
    contents: dict[str, Content] = {
        f"comparison.{suffix}": partial(_written, comparison, form)
        for suffix, form in (("json", _json), ("md", markdown), ("csv", csv_text))
    }
    for name in names(comparison):
        for kind in (one for one in chosen if one != "html"):
            contents[f"{name}.{kind}"] = partial(_drawn, comparison, name, cast("Literal['svg', 'png', 'pdf']", kind), width)
    if "html" in chosen and comparison.simulated:
        contents["report.html"] = partial(_written, comparison, _page)
    return write_together(Path(directory), contents)


def _written(comparison: Comparison, form: Callable[[Comparison], str], out: BinaryIO) -> None:
    out.write(form(comparison).encode())


def _json(comparison: Comparison) -> str:
    return json.dumps(comparison.document(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _page(comparison: Comparison) -> str:
    """The baseline first: the page compares the others with it."""
    from parsim.report.page.page import page

    base = comparison.baseline
    ordered = [comparison.runs[base], *(run for place, run in enumerate(comparison.runs) if place != base)]
    entries = [(run.label, run.report) for run in ordered]
    return page(
        [(label, report) for label, report in entries if report is not None],
        [(run.label, run.reason) for run in ordered if run.report is None],
        comparison.title,
    )


def _drawn(comparison: Comparison, name: str, kind: Literal["svg", "png", "pdf"], width: float, out: BinaryIO) -> None:
    out.write(save(comparison.figure(name, width=width), kind, dpi=_DPI))

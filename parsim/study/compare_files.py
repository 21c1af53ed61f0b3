"""The files of a comparison, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from parsim.errors import Finding, InputError
from parsim.report.plots.figure import save
from parsim.report.write import replacing
from parsim.study.compare_figures import names
from parsim.study.compare_text import csv_text, markdown

if TYPE_CHECKING:
    from parsim.study.compare import Comparison

FORMATS = ("svg", "png", "pdf")
_DPI = 300.0
"""of png, as print asks for"""


def write(comparison: Comparison, directory: str | Path, formats: Iterable[str], width: float) -> list[Path]:
    """Write the tables and the figures into `directory` (made if needed) and return their paths."""
    chosen = list(dict.fromkeys(formats))
    if unknown := [one for one in chosen if one not in FORMATS]:
        raise InputError(Finding("unknown format of figures", "--format", unknown[0], f"known: {', '.join(FORMATS)}"))
    contents: dict[str, Callable[[], bytes]] = {
        f"comparison.{suffix}": partial(_written, comparison, form)
        for suffix, form in (("json", _json), ("md", markdown), ("csv", csv_text))
    }
    for name in names(comparison):
        for kind in chosen:
            contents[f"{name}.{kind}"] = partial(_drawn, comparison, name, cast("Literal['svg', 'png', 'pdf']", kind), width)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        with replacing(folder / name) as out:
            out.write(content())
    return [folder / name for name in contents]


def _written(comparison: Comparison, form: Callable[[Comparison], str]) -> bytes:
    return form(comparison).encode()


def _json(comparison: Comparison) -> str:
    return json.dumps(comparison.document(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _drawn(comparison: Comparison, name: str, kind: Literal["svg", "png", "pdf"], width: float) -> bytes:
    return save(comparison.figure(name, width=width), kind, dpi=_DPI)

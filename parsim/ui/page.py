"""The page as one document: its own style and script, the style of reports, the texts in every language."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from parsim.study.planner.style import page_style

LANGUAGES = {"en": "English", "zh": "中文"}
_SCRIPTS = ("format.js", "view.js", "page.js")


@cache
def read(name: str) -> str:
    """A file beside this one."""
    return files("parsim.ui").joinpath(name).read_text("utf-8")


@cache
def texts() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Section -> name -> language -> text."""
    return tomllib.loads(read("texts.toml"))


def page(nonce: str, token: str) -> str:
    """The document; `token` is empty for whoever has not shown the key."""
    boot = json.dumps({"texts": texts(), "languages": LANGUAGES}, ensure_ascii=False).replace("<", "\\u003c")
    return Template(read("page.html")).substitute(
        nonce=escape(nonce),
        token=escape(token),
        style=page_style() + read("page.css"),
        boot=boot,
        script="\n".join(read(name) for name in _SCRIPTS),
    )

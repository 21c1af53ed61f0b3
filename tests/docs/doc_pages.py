"""Pages of docs/ as things to execute: files, commands and outputs in the order of the page.

Conventions, as comments that a reader does not see: ``<!-- file: NAME -->`` before a code block writes it beside the commands;
``<!-- output: COMMAND -->`` before one says that it is the whole output; ``<!-- shows: COMMAND -->`` that its lines stand in it.
Lines of ``console`` blocks and code spans that begin with ``parsim`` are commands. A comment behind one may say its exit code:
``# exit 3``. A span without arguments, with a word in capitals (FILE, NAME ...) or with an ellipsis describes a command and is
not executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = (
    "README", "reading-a-report", "glossary", "adding", "formats", "write-a-strategy", "export", "economics",
    "coming-from-megatron", "coming-from-deepspeed", "coming-from-torchtitan", "coming-from-hugging-face", "size",
    "sweep", "import", "import-module", "experts", "optimizers", "linear-attention", "variability", "goodput", "faults", "local-sgd",
    "mixed-clusters", "fit", "plan",
)  # fmt: skip
_BLOCK = re.compile(r"(?:^<!-- (file|output|shows): (.+?) -->\n)?^```([\w-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(parsim [^`\n]+)`")
_DESCRIBES = re.compile(r"(?<![\w.=/-])[A-Z]{3,}\b|\.\.\.|…")


@dataclass(frozen=True)
class Step:
    """What a test does: write a file, run a command, or run one and compare its output."""

    what: str
    """file | run | output | shows | python"""
    name: str
    """of the file, or the command"""
    text: str = ""


def text_of(page: str) -> str:
    """The Markdown of a page."""
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def _is_description(command: str) -> bool:
    """A command without arguments is only named (all but ``parsim schema`` and ``parsim list``)."""
    return (len(command.split()) < 3 and command not in ("parsim schema", "parsim list")) or bool(_DESCRIBES.search(command))


def steps(page: str) -> Iterator[Step]:
    """Everything on a page that can be done, top to bottom."""
    text = text_of(page)
    last = 0
    for block in _BLOCK.finditer(text):
        yield from _spans(text[last : block.start()])
        last = block.end()
        directive, name, language, body = block.groups()
        if directive:
            yield Step(directive, name, body)
        elif language == "console":
            yield from (Step("run", line) for line in body.splitlines() if line.startswith("parsim "))
        elif language == "python":
            yield Step("python", page, body)
    yield from _spans(text[last:])


def _spans(text: str) -> Iterator[Step]:
    for command in _SPAN.findall(text):
        if not _is_description(command):
            yield Step("run", command)


def described(page: str) -> list[str]:
    """The commands that a page names without running them."""
    return [command for command in _SPAN.findall(text_of(page)) if _is_description(command)]


def split(command: str) -> tuple[list[str], int]:
    """Arguments after ``parsim``, and the expected exit code."""
    import shlex

    words, _, comment = command.partition("  #")
    code = re.search(r"exit (\d)", comment)
    return shlex.split(words)[1:], int(code[1]) if code else 0

"""Punctuation of Chinese input methods where YAML needs ASCII: it looks right, and means something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from unicodedata import name as unicode_name
from unicodedata import normalize

from parsim.errors import Finding

_WORD = r"[A-Za-z_][\w.-]*"
_WIDE_SPACE = "\u3000\u00a0"
_KEY = re.compile(rf"[\s{_WIDE_SPACE}]*(?P<key>{_WORD})\s*(?P<mark>[：＝])\s*(?P<value>.*)", re.DOTALL)
"""a key that swallowed its value: ``micro_batch：16``"""
_AT_START = re.compile(rf"[ -]*(?P<key>{_WORD})\s*(?P<mark>[：＝])\s*(?P<value>[^#]*)")
_INSIDE = re.compile(r"[：，；｛｝［］“”‘’]")
_INDENT = re.compile(rf"^[ \t-]*(?P<mark>[{_WIDE_SPACE}])")
_FLOW = re.compile(r"[\[{｛［]")
_TEXT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|(?:^|\s)#.*")
_ASCII = {"“": '"', "”": '"', "‘": "'", "’": "'"}


def wide_key(key: str) -> Finding | None:
    """What is wrong with a key that was read as ``micro_batch：16``, or that begins with an ideographic space."""
    if match := _KEY.fullmatch(key):
        return _finding(match["mark"], f"write {match['key']}: {_narrow(match['value'])}".rstrip())
    if key[:1] in tuple(_WIDE_SPACE) or key[-1:] in tuple(_WIDE_SPACE):
        return _finding(key[0] if key[0] in _WIDE_SPACE else key[-1], f"write {key.strip(_WIDE_SPACE + ' ')} with ASCII spaces")
    return None


def wide_marks(text: str, file: str) -> list[Finding]:
    """Full-width punctuation of a file that is no YAML, where it is likely to be why; texts in quotes and comments are left out."""
    return [
        found.at(file, number, column)
        for number, line in enumerate(text.splitlines(), 1)
        for column, found in _of_line(_TEXT.sub(lambda part: " " * len(part[0]), line))
    ]


def _of_line(line: str) -> Iterator[tuple[int, Finding]]:
    """Columns from 1, and what stands there."""
    if match := _INDENT.match(line):
        yield match.start("mark") + 1, _finding(match["mark"], "indent with ASCII spaces")
    if match := _AT_START.match(line):
        yield match.start("mark") + 1, _finding(match["mark"], f"write {match['key']}: {_narrow(match['value'])}".rstrip())
        return
    opened = _FLOW.search(line)
    if opened is not None:
        for mark in _INSIDE.finditer(line, opened.start()):
            yield mark.start() + 1, _finding(mark[0], f"write {_narrow(mark[0])!r}")


def _finding(mark: str, suggestion: str) -> Finding:
    what = unicode_name(mark).lower()
    shown = "" if mark in _WIDE_SPACE else f" {mark!r}"
    return Finding(f"{what}{shown} (U+{ord(mark):04X}) where YAML needs ASCII", value=mark, suggestion=suggestion)


def _narrow(text: str) -> str:
    return "".join(_ASCII.get(letter) or normalize("NFKC", letter) for letter in text).strip()

"""``${NAME//a/b}``, ``${NAME%.*}``, ``${NAME,,}``: what the shell's patterns make of a value."""

from __future__ import annotations

import fnmatch

PATTERNS = ("//", "/", "##", "#", "%%", "%", ",,", "^^")
_LONGEST = 2000
"""letters of a value in which a pattern is looked for"""


def patterned(text: str, kind: str, pattern: str, replacement: str) -> str | None:
    """`text` after one of `PATTERNS`; None where the pattern is more than letters, ``*`` and ``?`` can say."""
    if len(text) > _LONGEST or len(pattern) > _LONGEST:
        return None
    if kind in (",,", "^^"):
        return None if pattern else text.lower() if kind == ",," else text.upper()
    if kind[0] == "/":
        if not pattern or pattern[0] in "#%" or any(letter in pattern for letter in "*?["):
            return None
        return text.replace(pattern, replacement, -1 if kind == "//" else 1)
    ends = range(len(text) + 1) if kind[0] == "#" else range(len(text), -1, -1)
    places = ends if len(kind) == 1 else reversed(ends)
    for place in places:
        part = text[:place] if kind[0] == "#" else text[place:]
        if fnmatch.fnmatchcase(part, pattern):
            return text[place:] if kind[0] == "#" else text[:place]
    return text

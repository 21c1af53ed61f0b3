"""Text on a terminal: what it does not do to it, how many columns it takes, and what a stream cannot show."""

from __future__ import annotations

import json
import re
from typing import Any
from unicodedata import category, east_asian_width

_PLAIN = str.maketrans("█→–…µ·─×≤≥│²", "#>-~u|-x<>|2")
"""what tables are drawn with, for streams without it"""
_SURROGATES = re.compile("[\ud800-\udfff]")
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufffe\uffff]")
"""Control characters (escape sequences begin with one) but line feed and tab; separators of lines; marks that turn the direction
of writing round; and what no XML may hold."""


def width(text: str) -> int:
    r"""Columns that `text` takes: two for wide and full-width characters, none for combining ones (Unicode Annex 11).

    >>> width("GPT"), width("显存"), width("e\u0301")
    (3, 4, 1)
    """
    return sum(0 if category(letter) in ("Mn", "Me", "Cf") else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def left(text: str, columns: int) -> str:
    """`text` at the left of a cell of `columns`."""
    return text + " " * (columns - width(text))


def right(text: str, columns: int) -> str:
    """`text` at the right of a cell of `columns`."""
    return " " * (columns - width(text)) + text


def is_unicode(encoding: str | None) -> bool:
    """Whether a stream of this encoding can show every character; one that does not say (a buffer in memory) can."""
    return encoding is None or encoding.lower().replace("-", "").replace("_", "").startswith("utf")


def visible(text: str) -> str:
    r"""`text` with what would act on a terminal instead of being seen, in letters: whatever came from a file is shown through this.

    >>> print(visible("a\x1b[31mb\u202ec"))
    a\x1b[31mb\u202ec
    """
    if text.isprintable():  # none of them is, and most texts are
        return text
    return _UNSEEN.sub(lambda match: _code(match[0], "\\x{:02x}"), text)


def visible_json(text: str) -> str:
    r"""The same for a JSON text, which it leaves the same document: `json.dumps` escapes only a part of these characters.

    >>> print(visible_json('{"a": "\u202e\x9b"}'))
    {"a": "\u202e\u009b"}
    """
    return _UNSEEN.sub(lambda match: _code(match[0], "\\u{:04x}"), text)


def json_value(value: Any) -> Any:
    """What a user wrote, as JSON can hold it: a path, NaN or infinity becomes a text.

    >>> json_value({"source": float("nan"), "layers": 2})
    {'source': 'NaN', 'layers': 2}
    """
    return json.loads(json.dumps(value, default=str), parse_constant=str)


def _code(letter: str, short: str) -> str:
    return short.format(ord(letter)) if ord(letter) < 256 else f"\\u{ord(letter):04x}"


def printable(text: str) -> str:
    r"""`text` without surrogates, which no UTF-8 file can hold.

    They come from file names that are not UTF-8 (or were decoded under ``LANG=C``) and from JSON's ``\ud83d\ude00``: pairs become
    the character they stand for, bytes become text where they are UTF-8, the rest becomes U+FFFD.

    >>> printable("\udce5\udcae\udc9e"), printable("\ud83d\ude00"), ascii(printable("\udcca"))
    ('实', '😀', "'\\ufffd'")
    """
    if _SURROGATES.search(text) is None:
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def plainly(text: str, encoding: str | None, *, escapes: bool = False) -> str:
    r"""`text` as a stream of `encoding` can show it, as wide as before: bars and dashes in plain letters, others as ``?``.

    `escapes`: ``\u663e`` instead of ``?``, for text that is read again (a double-quoted YAML scalar understands it).

    >>> plainly("显存 █ 80 µs", "ascii"), plainly("显存", "cp1252", escapes=True)
    ('???? # 80 us', '\\u663e\\u5b58')
    """
    text = printable(text)
    if encoding is None or is_unicode(encoding):
        return text
    shown = []
    for letter in text:
        if _encodable(letter, encoding):
            shown.append(letter)
        elif escapes:
            shown.append(letter.encode("ascii", "backslashreplace").decode("ascii"))
        else:
            plain = letter.translate(_PLAIN)
            shown.append(plain if plain != letter else "?" * width(letter))
    return "".join(shown)


def _encodable(letter: str, encoding: str) -> bool:
    try:
        letter.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True

"""Notes as comments of a file that can hold some."""

from __future__ import annotations

import textwrap


def comments(text: str, width: int = 120) -> list[str]:
    """`text` as comment lines; whatever it holds, nothing of it gets out of the comment."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return [f"# {line}" for line in textwrap.wrap(plain, width - 2)]

"""``[ ... ]`` and ``[[ ... ]]``: texts and numbers are compared, files are taken to exist."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from parsim.interop.shell_values import unknown_names

_COMPARISONS = {"-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__}
_NUMBER = re.compile(r"-?[0-9]{1,30}")


def tested(words: Sequence[str]) -> bool:
    """Whether a test holds; one that hangs on a value that is not known does not."""
    if list(words[:1]) == ["!"]:
        return not tested(words[1:])
    for joint in ("||", "-o", "&&", "-a"):
        if joint in words[1:]:
            middle = list(words).index(joint, 1)
            sides = tested(words[:middle]), tested(words[middle + 1 :])
            return any(sides) if joint in ("||", "-o") else all(sides)
    return _one(list(words))


def undecided(words: Sequence[str]) -> str:
    """The name of a value that a test needs and that is not known; empty where there is none."""
    if "-f" in words or "-d" in words or "-e" in words:
        return ""
    return next((name for word in words for name in unknown_names(word)), "")


def _one(words: list[str]) -> bool:
    match words:
        case ["-z"] | ["-n"]:
            return words[0] == "-z"
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [left, "=" | "==", right]:
            return left == right or fnmatch.fnmatchcase(left, right)
        case [left, "!=", right]:
            return not (left == right or fnmatch.fnmatchcase(left, right))
        case ["=" | "==", _]:
            return False
        case [comparison, _] if comparison in _COMPARISONS:
            return False
        case ["!=", _]:
            return True
        case [left, comparison, right] if comparison in _COMPARISONS:
            if _NUMBER.fullmatch(left) and _NUMBER.fullmatch(right):
                return bool(_COMPARISONS[comparison](int(left), int(right)))
            return False
        case [text]:
            return bool(text)
    return True

"""Names of models that are typos of known ones."""

from __future__ import annotations

import re

ANY_MODEL = "`parsim list models` has the catalogue; of any other model give the path of its config.json (Hugging Face's file)"
_PARTS = re.compile(r"[a-z]+|\d+(?:\.\d+)*")
MOST_TYPOS = 2
"""letters in which a name may differ from the one that is meant"""


def misspelt_model(name: str, known: list[str]) -> str:
    """Models that `name` is a typo of, as a question: the same numbers and words but for a letter or two.

    Another size or another word (VL, H1) is another model, however alike the names are.
    """
    wanted = _parts(name)
    found = [candidate for candidate in known if _typos(wanted, _parts(candidate)) <= MOST_TYPOS]
    found.sort(key=lambda candidate: (_typos(wanted, _parts(candidate)), ("/" in candidate) != ("/" in name)))
    return f"did you mean {' or '.join(map(repr, found[:3]))}?" if found else ""


def _parts(name: str) -> list[str]:
    """Words and numbers of a model's name without its owner: ``qwen 2.5 7 b``."""
    return _PARTS.findall(name.rpartition("/")[2].casefold().removesuffix(".yaml"))


def _typos(wanted: list[str], known: list[str]) -> int:
    """Letters in which words differ; more than `MOST_TYPOS` where numbers do, or the count of words."""
    if len(wanted) != len(known):
        return MOST_TYPOS + 1
    count = 0
    for mine, theirs in zip(wanted, known, strict=True):
        if mine != theirs:
            short = min(len(mine), len(theirs)) < 3
            count += MOST_TYPOS + 1 if short or not (mine.isalpha() and theirs.isalpha()) else _edits(mine, theirs)
    return count


def _edits(one: str, other: str) -> int:
    """Letters to insert, remove or replace, or neighbours to swap, until the words are equal."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, against in enumerate(other, 1):
            least = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != against))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == against:
                least = min(least, rows[-2][j - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]

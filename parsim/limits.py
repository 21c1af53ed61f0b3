"""How much is expanded: counts beyond these are refused before anything of that size is made.

Sizes are legal far beyond (a vocabulary of a billion is a number like any other); these are about lists that would be built, item by item.
"""

from __future__ import annotations

from parsim.errors import Finding

MOST_PASSES = 1_000_000
"""micro-batches x pipeline stages: each is a forward and a backward of its own"""
MOST_LAYERS = 100_000
"""layers of a model, repetitions included"""
MOST_EXPERTS = 100_000
"""experts of a layer"""
MOST_GPUS = 1_000_000
"""GPUs of a cluster that is looked at, by `topology show` or `collective`"""
MOST_USED_GPUS = 131_072
"""GPUs of a cluster that trains: each is a rank of the job"""
MOST_CHARACTERS = 1_000_000
"""characters of a YAML text, which is kept with the place of every key"""
MOST_VALUES = 30_000
"""values of a YAML text, by its commas, colons and lines"""
MOST_TEXT = 10_000
"""characters of one text or key in it, but for a schedule that is written out"""
MOST_TABLE = 5_000_000
"""characters of a table of slots"""
MOST_BOX = 1_024
"""GPUs of one machine, each of which is a vertex of its graph"""
LARGEST_SIZE = 10**9
"""of a size of a model, such as its width"""


def beyond(count: int, most: int, what: str, path: str, arithmetic: str = "") -> list[Finding]:
    """The finding that `count` of something are too many to expand; none up to `most`.

    `arithmetic` says how the count comes about, such as ``4 stages x 10 micro-batches``.
    """
    if count <= most:
        return []
    shown = f"{count:,}" if count < 10**15 else f"{float(count):.3g}" if count < 10**300 else f"a number of {len(str(count))} digits"
    how = f" ({arithmetic})" if arithmetic and count < 10**15 else ""
    return [Finding(f"{shown} {what}{how}: at most {most:,} are simulated", path, count if count < 10**15 else None)]

"""How much work something is, counted in calls of functions: the same on a busy machine and on a slow one."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def calls(do: Callable[[], Any]) -> int:
    """Calls of functions, written in Python or in C, while `do` runs."""
    found = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    before, collected = sys.getprofile(), gc.isenabled()
    gc.disable()  # hypothesis has the collector call functions of its own
    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(before)
        if collected:
            gc.enable()
    return found

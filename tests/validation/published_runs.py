"""The published runs, read once for all tests that look at them, and by nobody who only collects tests: a thousand rows take seconds."""

from __future__ import annotations

from functools import cache

from parsim.validation import published_runs
from parsim.validation.published_runs import RunSource


@cache
def published() -> tuple[RunSource, ...]:
    return published_runs.published()

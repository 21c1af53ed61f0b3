"""What all tests share: random cases that are the same everywhere and never fail for being slow."""

from __future__ import annotations

import gc

from hypothesis import settings

settings.register_profile("parsim", deadline=None, derandomize=True, database=None)
settings.load_profile("parsim")

# plugins of pytest, not modules to look for doctests in
collect_ignore_glob = ["conftest.py", "*/conftest.py"]


def pytest_collection_finish() -> None:
    """Thousands of collected tests live to the end: the garbage collector need not walk them again and again."""
    gc.collect()
    gc.freeze()

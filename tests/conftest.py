"""What all tests share: random cases that are the same everywhere and never fail for being slow."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from parsim.errors import ScenarioError
from parsim.scenario import files, yaml_tree

settings.register_profile("parsim", deadline=None, derandomize=True, database=None)
settings.load_profile("parsim")

# NOTE: Hypothesis draws from the constants of all modules that happen to be loaded, and looks through thousands of them for each new
# range of numbers. Without them a law takes a fraction of the time, and its cases do not depend on which files are collected with it.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants

# NOTE: The samples that a file of tests changes key by key are parsed over and over, by a parser written in Python. Trees are only read;
# texts that cannot be parsed are tried again, with the name that stands in the message.
_parsed = lru_cache(maxsize=256)(lambda text, repeated: yaml_tree.load(text, "", repeated=repeated))


def _load(text: str, name: str, *, repeated: bool = False) -> Any:
    try:
        return _parsed(text, repeated)
    except ScenarioError:
        return yaml_tree.load(text, name, repeated=repeated)


files.load = _load

# plugins of pytest, not modules to look for doctests in
collect_ignore_glob = ["conftest.py", "*/conftest.py"]


def pytest_collection() -> None:
    """Nothing that is collected goes away again: the garbage collector need not look for it."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Thousands of collected tests live to the end, as does what caches hold: the garbage collector need not walk them again and again."""
    gc.enable()
    gc.set_threshold(1_000, 20, 50)
    gc.collect()
    gc.freeze()
    frozen = gc.get_freeze_count()
    # NOTE: every simulation asks whether anything is frozen, and the real function counts a million objects one by one.
    gc.get_freeze_count = lambda: frozen


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay in one process, which makes the reports that they share once."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], AbstractContextManager[None]]:
    """``with full_disk(1000):`` no file grows beyond so many bytes meanwhile, as on a disk that is full."""
    resource = pytest.importorskip("resource")
    # Python 3.11 keeps what it could write of a compiled module, and no later process can import it
    monkeypatch.setattr("sys.dont_write_bytecode", True)

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited

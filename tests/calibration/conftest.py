"""Tests that need PyTorch are skipped without it, unless PARSIM_REQUIRE_TORCH=1 says that it must be there."""

from __future__ import annotations

import importlib
import os

import pytest


@pytest.fixture(scope="session")
def torch():
    """PyTorch, computing on one thread: two on a busy machine wait for each other."""
    if os.environ.get("PARSIM_REQUIRE_TORCH") == "1":
        module = importlib.import_module("torch")
    else:
        module = pytest.importorskip("torch", reason="needs PyTorch (PARSIM_REQUIRE_TORCH=1 makes that a failure)")
    module.set_num_threads(1)
    return module

"""Real PyTorch modules against parsim's model.

Without PyTorch and transformers these tests are skipped; with PARSIM_REQUIRE_TORCH=1 (as in CI) their absence is an error.
"""

from __future__ import annotations

import os
import warnings

import pytest

if os.environ.get("PARSIM_REQUIRE_TORCH"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers

    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of PyTorch and transformers are theirs."""
    for item in items:
        if "crosscheck" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore"))

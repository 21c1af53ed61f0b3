"""Peak memory under activation checkpointing, found by simulation, against ceil(L/k) A_in + k A_full (Chen et al., 1604.06174)."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

from parsim.run import simulate
from parsim.scenario import load

LAYERS, H, TOKENS = 8, 1024, 4 * 1024
A_IN = 2 * TOKENS * H
BASE: dict[str, Any] = {
    "name": "recomputation",
    "model": {"family": "gpt2", "hidden": H, "layers": LAYERS, "heads": 16, "vocabulary": 128, "maximum_sequence": 1024},
    "cluster": {"topology": "dgx-a100-80gb", "gpus": 1},
    "training": {"sequence_length": 1024, "micro_batch": 4, "gradient_accumulation": 2, "optimizer": "sgd", "step": False},
    "software": {"fusion": "fused", "memory": {"allocator": "exact"}},
}
# 34h, log-sum-exp 4a, two norms' statistics 16, random state; LayerNorm's input is the layer's
A_FULL = TOKENS * (34 * H + 4 * 16 + 16) + 24


def peak(recompute: Any) -> int:
    training = {**BASE["training"], "recompute": recompute}
    return int(simulate(load({**BASE, "training": training})).document()["memory"]["peak_allocated_bytes"])


@pytest.mark.parametrize("every", [2, 3, 4, 8])
def test_every_k_layers(every: int) -> None:
    difference = held(every) - held(1)
    assert peak({"every": every}) - peak("full") == pytest.approx(difference, abs=64 * 1024)
    assert held(every) <= ceil(LAYERS / every) * A_IN + every * A_FULL


def held(every: int) -> int:
    """The inputs of groups not yet gone through backward and one group recomputed: most at the last group, or, where that is
    a smaller one, at the one before.
    """
    sizes = [min(every, LAYERS - first) for first in range(0, LAYERS, every)]
    return max((index + 1) * A_IN + size * A_FULL for index, size in enumerate(sizes))


@pytest.mark.parametrize("count", [2, 5, 8])
def test_the_first_n_blocks(count: int) -> None:
    """Each checkpointed layer keeps 2sbh in place of all of it; with all of them, one is recomputed at a time."""
    kept = LAYERS - count
    recomputed = 1 if not kept else 0
    difference = (kept + recomputed - LAYERS) * A_FULL + (count - recomputed) * A_IN
    assert peak({"blocks": count}) - peak("none") == pytest.approx(difference, abs=64 * 1024)

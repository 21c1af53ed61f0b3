"""A block's input that the block before saves, too (ResNet's ReLU): recomputed groups free it once, and read only what is there."""

from __future__ import annotations

import pytest
from jobs import job

from parsim.parallel.training import Recompute


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("pipeline", [1, 2])
def test_groups_of_a_resnet_begin_and_end_at_saved_activations(every: int, pipeline: int) -> None:
    run = job("resnet18", pipeline=pipeline, micro_batches=2, recompute=Recompute("every", every=every))
    for rank, resident in run.program.resident.items():
        memory = run.memory(rank)
        kept = {memory.tensors[number].name for number, _ in memory.final if "workspace" not in memory.tensors[number].name}
        assert kept <= {memory.tensors[number].name for number in resident}
        assert all(levels.min() >= 0 for levels in memory.levels.values())

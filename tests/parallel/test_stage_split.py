"""Layers of the pipeline's stages: even counts, with the extra layers first; embedding and head join the ends."""

from __future__ import annotations

import pytest
from jobs import model_of, roofline

from parsim.model.workload import Workload
from parsim.parallel.stages import split_blocks


@pytest.mark.parametrize(
    ("ranks", "virtual", "layers"),
    [(1, 1, [12]), (4, 1, [3, 3, 3, 3]), (5, 1, [3, 3, 2, 2, 2]), (7, 1, [2, 2, 2, 2, 2, 1, 1]), (4, 2, [2, 2, 2, 2, 1, 1, 1, 1])],
)
def test_extra_layers_go_to_the_earliest_stages(ranks: int, virtual: int, layers: list[int]) -> None:
    gpt2 = model_of("gpt2")
    stages = split_blocks(gpt2, Workload(1, 128), ranks, virtual, "even", roofline)
    assert [sum(gpt2.blocks[i].kind == "layer" for i in stage) for stage in stages] == layers
    assert [i for stage in stages for i in stage] == list(range(len(gpt2.blocks)))
    assert (gpt2.blocks[stages[0][0]].kind, gpt2.blocks[stages[-1][-1]].kind) == ("embedding", "head")

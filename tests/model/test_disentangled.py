"""DeBERTa's attention: parameters and products counted by hand, and what of its configurations is refused."""

from __future__ import annotations

from math import fsum
from typing import Any

import pytest
from structures import look_up, shipped

from parsim.errors import InputError, ModelError
from parsim.model.activations import saved_bytes
from parsim.model.catalogue import build_model
from parsim.model.disentangled import DisentangledCore
from parsim.model.liveness import tape
from parsim.model.model import Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.workload import Workload
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.built import plan_of

NAME, HIDDEN, MLP, LAYERS, HEADS, WORDS, ROWS = "deberta-v3-base", 768, 3072, 12, 12, 128100, 512
BATCH, TOKENS = 2, 128
AT = Workload(BATCH, TOKENS, element=2, dtype="bf16", weight_element=2, attention="flash2")


def changed(**changes: Any) -> Model:
    return build_model({**look_up(NAME), **changes}, name=NAME, base_lookup=look_up)


def flop(model: Model, kind: str) -> tuple[float, float]:
    """FLOP of one block of this kind, forward and backward."""
    steps = tape(next(block for block in model.blocks if block.kind == kind), AT, (), True)
    forward, backward = (fsum(kernel.flop for step in way for kernel in step.kernels) for way in (steps.forward, steps.backward))
    return forward, backward


def test_parameters_counted_by_hand() -> None:
    layer = 4 * (HIDDEN**2 + HIDDEN) + 2 * HIDDEN * MLP + MLP + HIDDEN + 2 * 2 * HIDDEN
    around = WORDS * HIDDEN + 2 * HIDDEN + ROWS * HIDDEN + 2 * HIDDEN
    head = HIDDEN**2 + HIDDEN + 2 * HIDDEN + WORDS
    assert parameter_count(shipped(NAME)) == LAYERS * layer + around + head == 184_551_780


def test_projections_of_positions_are_two_more_in_every_layer() -> None:
    more = parameter_count(changed(share_att_key=False)) - parameter_count(shipped(NAME))
    assert more == LAYERS * 2 * (HIDDEN**2 + HIDDEN)
    assert parameter_count(shipped(NAME)) - parameter_count(changed(norm_rel_ebd="none")) == 2 * HIDDEN
    assert parameter_count(changed(position_biased_input=True)) - parameter_count(shipped(NAME)) == 512 * HIDDEN


@pytest.mark.parametrize("shared", [True, False])
def test_products_of_a_layer(shared: bool) -> None:
    """Of words as in BERT; of the table with both projections, and of queries and keys with its rows. Backward twice as many."""
    words = 2 * BATCH * TOKENS * (4 * HIDDEN**2 + 2 * HIDDEN * MLP) + 2 * 2 * BATCH * TOKENS**2 * HIDDEN
    table = 2 * 2 * ROWS * HIDDEN**2
    distances = 2 * 2 * BATCH * TOKENS * ROWS * HIDDEN
    forward, backward = flop(changed(share_att_key=shared), "layer")
    assert (forward, backward) == (words + table + distances, 2 * (words + table + distances))


def test_tensor_ranks_share_heads_and_projections() -> None:
    core = next(one for block in shipped(NAME).blocks for one in block.operators if isinstance(one, DisentangledCore))
    whole, half = (core.work(Workload(BATCH, TOKENS, attention="eager", tensor=ranks)) for ranks in (1, 2))
    for way in ("forward", "backward_input", "backward_weight"):
        products = [fsum(kernel.flop for kernel in getattr(work, way)) for work in (whole, half)]
        assert products[0] == 2 * products[1]


def test_every_layer_keeps_the_products_that_pairs_pick_from() -> None:
    """Two of [b, a, s, 2k] beside the scores, whatever attention was asked for."""
    few, many = (saved_bytes(changed(position_buckets=count), AT) for count in (128, 256))
    width = BATCH * HEADS * TOKENS * 256 * 2
    rows = 2 * BATCH * 256 * HIDDEN * 2
    assert many - few == LAYERS * (2 * width + rows) + 256 * HIDDEN * 2 + 8 * 256


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pos_att_type": "c2p"}, "attention without products of words with positions and of positions with words is not supported yet"),
        ({"relative_attention": False}, "attention without products of words"),
        ({"conv_kernel_size": 3}, "conv_kernel_size"),
        ({"legacy": False}, "legacy"),
        ({"position_buckets": "many"}, "position_buckets"),
    ],
)
def test_other_structures_are_refused_by_their_key(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        changed(**changes)


JOB: dict[str, Any] = {
    "model": NAME,
    "cluster": {"topology": "8x a100-80gb"},
    "training": {"sequence_length": 512, "micro_batch": 8, "gradient_accumulation": 1, "precision": "amp-bf16"},
    "parallel": {"data": {"strategy": "ddp"}},
}


def test_no_fused_kernel_has_these_scores() -> None:
    assert build(load(JOB)).training.attention == "eager"
    wanted = {**JOB, "training": {**JOB["training"], "attention": "flash2"}}
    with pytest.raises(InputError, match="flash2 does not pick a score for the distance of every pair, which deberta-v3-base adds"):
        build(load(wanted))


def test_a_pipeline_is_refused() -> None:
    job = {
        "model": NAME,
        "cluster": {"topology": "dgx-a100-80gb", "gpus": 2},
        "training": {"sequence_length": 128, "global_batch": 4, "micro_batch": 2},
        "parallel": {"pp": 2},
    }
    with pytest.raises(InputError, match="one table of relative positions"):
        plan_of(build(load(job)), lambda _: 0.0)

"""ZeRO-3 through lists of tensors: how many lists a step makes, and when they matter."""

from __future__ import annotations

import pytest

from parsim.errors import PlanError
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.validation.predicted_runs import step_time

LAYERS, RANKS = 3, 8


def scenario(entry, hidden=768, recompute="full", profile="deepspeed-2021", **training):
    return {
        "model": {"family": "megatron-gpt", "layers": LAYERS, "hidden": hidden, "heads": 12, "vocabulary": 51200, "tied_embeddings": True},
        "cluster": {"topology": "dgx-a100-80gb", "gpus": RANKS},
        "training": {"sequence_length": 1024, "micro_batch": 1, "global_batch": RANKS, "recompute": recompute, **training},
        "parallel": {"data": {"strategy": "zero3"}},
        "software": {"profile": profile, "effects": "none", "host": {"per_list_entry": entry}},
    }


def lists(**changes):
    """Lists of a step: with entries of seconds nothing else is ever seen."""
    two, one = (step_time(scenario(entry, **changes)) for entry in ("1 s", "0.5 s"))
    return (two - one) / (0.5 * RANKS)


def test_every_weight_has_lists_of_its_own():
    """A layer has four matrices of more than 1e5 elements, gathered for forward and for recomputation, and twelve gradients.

    Around the layers: two tables, gathered once; a final norm of two small weights; four gradients. Behind the step one list for the
    gather of the small weights, and one for each of them to copy it out.
    """
    small = 8 * LAYERS + 2
    assert lists() == pytest.approx((4 + 4 + 12) * LAYERS + 2 + 4 + 1 + small, rel=1e-9)


def test_without_recomputation_backward_gathers_once():
    small = 8 * LAYERS + 2
    assert lists(recompute="none") == pytest.approx((4 + 4 + 12) * LAYERS + 2 + 4 + 1 + small, rel=1e-9)


def test_weights_that_are_used_far_apart_are_gathered_three_times():
    """At 12,288 hidden a layer has 1.8e9 weights: all but its last matrix are let go between recomputation and backward."""
    small = 8 * LAYERS + 2
    assert lists(hidden=12288) == pytest.approx((4 + 4 + 3 + 12) * LAYERS + 2 + 4 + 1 + small, rel=1e-9)


def test_micro_batches_repeat_all_but_the_step():
    small = 8 * LAYERS + 2
    both = lists(global_batch=2 * RANKS)
    assert both == pytest.approx(2 * ((4 + 4 + 12) * LAYERS + 2 + 4) + 1 + small, rel=1e-9)


def test_the_time_grows_with_the_ranks_and_not_with_the_weights():
    """12 us an entry by default; DeepSpeed since v0.5.9 makes no lists."""
    assert build(load(scenario("auto"))).runtime.host.per_list_entry == pytest.approx(12e-6)
    modern = scenario("auto", profile="deepspeed")
    assert build(load(modern)).runtime.host.per_list_entry == 0.0
    assert step_time(modern) < step_time(scenario("auto"))


def test_without_prefetching_compute_waits_for_every_gather():
    """The same lists; and never faster."""
    tree = scenario("auto")
    for key, value in (("prefetch", 0), ("limit_gathers", 1)):
        alone = {**tree, "parallel": {"data": {"strategy": "zero3", key: value}}}
        assert step_time(alone) > step_time(tree), key


@pytest.mark.parametrize("training", [{"offload": {"optimizer": "cpu"}}, {"finetune": {"method": "lora"}}])
def test_what_is_not_known_is_refused(training):
    with pytest.raises(PlanError, match="not supported yet with the lists of tensors"):
        step_time(scenario("auto", **training))

"""Attention to chosen keys (DeepSeek-V3.2): work, parameters, what is kept, kernel rates; and what it does not go with."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import job

from parsim import load, simulate
from parsim.errors import ModelError, ParsimError
from parsim.hardware.device import device_from_tree
from parsim.hardware.kernels import kernel_time
from parsim.kernel import Gemm, SparseAttention
from parsim.model.catalogue import build_model
from parsim.model.flops import CONVENTIONS, flop_per_token, forward_flop
from parsim.model.model import Model, Operator
from parsim.model.parameter_counts import parameter_count, trainable_parameter_count
from parsim.model.sparse_attention import busiest_pairs, chosen_pairs
from parsim.model.workload import Workload
from parsim.program.check import check
from parsim.scenario import files
from parsim.scenario.build import build
from parsim.study.search.bounds import Bounder

INDEXER = 1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64
"""parameters of one layer's"""


def look_up(name: str) -> dict[str, Any]:
    return files.read(files.find("models", name)).tree


@cache
def model(name: str = "deepseek-v3.2") -> Model:
    return build_model(look_up(name), name=name, base_lookup=look_up)


def operator(name: str) -> Operator:
    return next(one for one in model().blocks[1].operators if one.name == name)


def cores(sequence: int) -> float:
    """FLOP of one token in one layer's indexer scores and core."""
    at = Workload(batch=1, sequence=sequence)
    kernels = [kernel for one in model().blocks[1].operators for kernel in one.work(at).forward]
    return sum(kernel.flop for kernel in kernels if isinstance(kernel, SparseAttention)) / sequence


@pytest.mark.parametrize(("sequence", "flop"), [(8192, 566_274_048), (16384, 669_017_088), (131072, 1_639_721_088)])
def test_scores_and_core_of_one_token(sequence: int, flop: int) -> None:
    """16,384 FLOP for every key before a token and 278,528 for those that it reads, against 81,920 for all decompressed ones."""
    chosen = sum(min(place, 2048) for place in range(1, sequence + 1)) / sequence
    assert cores(sequence) == flop == 2 * 64 * 128 * (sequence + 1) / 2 + 2 * 128 * (576 + 512) * chosen
    dense = 2 * 128 * (192 + 128) * (sequence + 1) / 2
    assert (dense > flop) == (sequence >= 16384)
    if sequence == 131072:
        assert dense == 5_368_750_080


@given(st.integers(1, 300), st.integers(1, 300))
def test_chosen_pairs(sequence: int, chosen: int) -> None:
    assert chosen_pairs(sequence, chosen) == sum(min(place, chosen) for place in range(1, sequence + 1))


def test_absorbed_products_cost_what_decompressing_costs() -> None:
    """Beside scores and core, a layer has the indexer's projections more than DeepSeek-V3's."""
    difference = forward_flop(model(), 4096) - forward_flop(model("deepseek-v3"), 4096)
    projections = 2 * (INDEXER - 2 * 128)
    halved = 2 * 128 * (192 + 128) * 4096 / 2
    assert difference == pytest.approx(61 * (cores(4096) - halved + projections), rel=1e-9)


def test_only_the_indexer_is_not_trained() -> None:
    counts = parameter_count(model()), trainable_parameter_count(model())
    assert counts == (671_877_929_216, 671_026_404_352)
    assert counts[0] - counts[1] == 61 * INDEXER
    assert operator("indexer").work(Workload(batch=1, sequence=4096)).backward_input == ()
    once = 61 * (2 * (INDEXER - 2 * 128) + 2 * 64 * 128 * 4097 / 2)
    assert flop_per_token(model(), 4096) == pytest.approx(3 * forward_flop(model(), 4096) - 2 * once, rel=1e-12)


def test_what_the_core_keeps() -> None:
    """Queries of 576 and outputs of 512 elements per head, keys of 576 for all heads, numbers of the keys, log-sum-exp."""
    work = operator("attention").work(Workload(batch=1, sequence=4096))
    kept = {save.tensor: save.bytes // 4096 for save in work.saves}
    assert list(kept.values()) == [128 * 576 * 2, 576 * 2, 2048 * 4, 128 * 512 * 2, 128 * 4]


def test_scores_are_narrow_under_a_recipe_of_narrow_products() -> None:
    narrow = operator("indexer").work(Workload(batch=1, sequence=4096, dtype="fp8")).forward
    assert [k.dtype for k in narrow if isinstance(k, SparseAttention)] == ["fp8"]
    assert {k.dtype for k in narrow if isinstance(k, Gemm)} == {"bf16"}


@pytest.mark.parametrize(("device", "published"), [("h800-sxm-80gb", 640e12), ("b200-sxm-180gb", 1450e12)])
def test_rate_of_the_core(device: str, published: float) -> None:
    """deepseek-ai/FlashMLA, README: "up to" so many FLOP/s forward."""
    kernel = operator("attention").work(Workload(batch=1, sequence=131072)).forward[0]
    assert isinstance(kernel, SparseAttention)
    time = kernel_time(device_from_tree(files.read(files.find("devices", device)).tree), kernel)
    assert kernel.flop / time == pytest.approx(published, rel=0.08)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent": {"query_rank": 0}}, "reads the compressed query"),
        ({"latent": {"index_heads": 0}}, "index_heads and index_dim"),
        ({"latent": {"index_dim": 32}}, "narrower than its rotary part"),
        ({"attention_window": 128}, "all before a token"),
    ],
)
def test_contradictions(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_model({"base": "deepseek-v3.2", **changes}, name="changed", base_lookup=look_up)


JOB = {
    "model": {
        "base": "deepseek-v3.2", "hidden": 512, "layers": 2, "heads": 8, "mlp": 1024, "vocabulary": 1024,
        "experts": {"count": 8, "top_k": 2, "mlp": 256, "shared": 256, "dense_layers": 1, "groups": 0, "groups_kept": 0},
        "latent": {"query_rank": 128, "key_rank": 64, "plain_dim": 32, "rotary_dim": 16, "value_dim": 32, "chosen": 256, "index_dim": 32},
    },
    "cluster": {"topology": "dgx-h100", "gpus": 8},
    "training": {"micro_batch": 1, "global_batch": 8, "sequence_length": 1024},
    "parallel": {"data": {"size": 8, "strategy": "zero1"}},
}  # fmt: skip


def test_a_step_and_what_is_refused() -> None:
    folded, whole = (simulate(load(JOB), unfolded=unfolded) for unfolded in (False, True))
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    bounder, built = Bounder(), build(load(JOB))
    assert bounder.tight(built) <= bounder.chained(built) <= folded.step_time * (1 + 1e-9)
    for override, message in (
        ({"tensor": {"size": 2}, "data": {"size": 4, "strategy": "zero1"}}, "over tensor ranks needs sequence parallelism"),
        ({"context": {"size": 2}, "data": {"size": 4, "strategy": "zero1"}}, "Megatron-LM takes no other cp_comm_type.; use all-gather"),
        ({"context": {"size": 2, "method": "ulysses"}, "data": {"size": 4, "strategy": "zero1"}}, "a query may choose any key"),
    ):
        with pytest.raises(ParsimError, match=message):
            simulate(load({**JOB, "parallel": override}))
    with pytest.raises(ParsimError, match="has its own kernels"):
        simulate(load({**JOB, "training": {**JOB["training"], "attention": "eager"}}))


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 300))
def test_zig_zag_shares_of_context_ranks(context: int, chunk: int, chosen: int) -> None:
    """Rank r has chunks r and 2 c - 1 - r: as many scores as any other, and of the core's pairs most in the middle."""
    sequence = 2 * context * chunk
    places = [[*range(r * chunk, (r + 1) * chunk), *range(sequence - (r + 1) * chunk, sequence - r * chunk)] for r in range(context)]
    assert {sum(place + 1 for place in mine) for mine in places} == {sequence // context * (sequence + 1) // 2}
    pairs = [sum(min(place + 1, chosen) for place in mine) for mine in places]
    assert sum(pairs) == chosen_pairs(sequence, chosen)
    assert max(pairs) == busiest_pairs(sequence, chosen, context)


def test_work_of_tensor_and_context_ranks() -> None:
    """Every tensor rank computes the whole indexer and its heads of the core; context ranks share the scores and keep all keys."""
    alone = Workload(batch=1, sequence=8192)
    both = Workload(batch=1, sequence=2048, tensor=8, sequence_parallel=True, context=4, context_method="all-gather")
    flop = {at: [sum(k.flop for k in operator(name).work(at).forward) for name in ("indexer", "attention")] for at in (alone, both)}
    assert flop[both][0] == flop[alone][0] / 4
    assert flop[both][1] == 2 * 16 * (576 + 512) * 2048 * 2048  # the first 2048 keys are all chosen, by rank 0 alone
    work = operator("attention").work(both)
    assert [save.bytes // 2048 for save in work.saves] == [16 * 576 * 2, 4 * 576 * 2, 2048 * 4, 16 * 512 * 2, 16 * 4]
    assert work.input_gradients == (2048 * 16 * 576 * 2, 2048 // 8 * 576 * 2, -1)


def test_messages_of_tensor_and_context_ranks() -> None:
    """Per layer: the indexer's inputs and its keys, the core's keys in both directions; beside what latent attention sends ever."""
    settings = {"data_settings": {"strategy": "zero1"}, "sequence_length": 1024, "expert_settings": {"size": 1}}
    split = {"tensor": 2, "tensor_settings": {"sequence_parallel": True}, "context": 2, "context_settings": {"method": "all-gather"}}
    run = job(build(load(JOB)).model, **split, **settings)
    assert check(run.program) == []

    def sent(axis: str) -> Counter[tuple[str, int]]:
        found = run.collectives(0, axis)
        return Counter((op.name, op.collective.bytes) for op in found if op.name.split()[1] in ("indexer", "attention"))

    rows, layers = 512, 2
    assert sent("tensor") == {
        ("all_gather indexer input", 2 * rows * 512): layers,
        ("all_gather indexer queries", 2 * rows * 128): layers,
        ("all_gather attention rotary keys", 2 * rows * 16): layers,
        ("all_gather attention keys", 2 * rows * 64): layers,
        ("reduce_scatter attention rotary keys grad", 2 * rows * 16): layers,
        ("reduce_scatter attention keys grad", 2 * rows * 64): layers,
    }
    assert sent("context") == {
        ("all_gather indexer keys", 2 * 1024 * 32): layers,
        ("all_gather attention keys", 2 * 1024 * 80): layers,
        ("reduce_scatter attention keys", 2 * 1024 * 80): layers,
    }


@pytest.mark.parametrize(
    "split",
    [
        {"tensor": {"size": 2, "sequence_parallel": True}},
        {"context": {"size": 2, "method": "all-gather"}},
        {"tensor": {"size": 2, "sequence_parallel": True}, "context": {"size": 2, "method": "all-gather"}, "expert": {"size": 2}},
    ],
)
def test_steps_of_split_attention(split: dict[str, Any]) -> None:
    tree = {**JOB, "parallel": {**split, "data": {"strategy": "zero1"}}, "training": {**JOB["training"], "recompute": "full"}}
    folded, whole = (simulate(load(tree), unfolded=unfolded) for unfolded in (False, True))
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    bounder, built = Bounder(), build(load(tree))
    assert bounder.tight(built) <= bounder.chained(built) <= folded.step_time * (1 + 1e-9)


def test_palm_does_not_count_keys_that_are_not_read() -> None:
    """At 131,072 tokens its formula would be more than four times what is computed; the report counts exactly instead."""
    assert not CONVENTIONS["palm"].applies(model())
    assert CONVENTIONS["palm"].applies(model("deepseek-v3"))
    assert flop_per_token(model("deepseek-v3"), 131072, "palm") > 4 * flop_per_token(model(), 131072)
    with pytest.raises(ModelError, match="palm formula does not describe"):
        flop_per_token(model(), 4096, "palm")
    document = simulate(load(JOB)).document()
    assert document["model"]["flop_convention"] == "exact"
    assert document["mfu"] < 1

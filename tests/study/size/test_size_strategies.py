"""The lattice: which strategies use which numbers of GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import model_of

from parsim.study.size.strategies import Strategies, Strategy, recomputations

LLAMA = Strategies(80, 64, 1024, 8)


def test_axes_of_llama_2_70b_on_machines_of_eight() -> None:
    assert LLAMA.tensors == (1, 2, 4, 8)
    assert LLAMA.pipelines == (1, 2, 4, 5, 8, 10, 16)
    assert LLAMA.counts(1300) == (1, 2, 4, 8, 16, 32, 40, 64, 80, 128, 160, 256, 320, 512, 640, 1024, 1280)


def test_nearest_numbers_of_gpus() -> None:
    assert LLAMA.near(1000) == (640, 1024)
    assert LLAMA.near(1024) == (1024, 1280)
    assert LLAMA.near(3) == (2, 4)


def test_strategies_of_sixteen_gpus() -> None:
    found = list(Strategies(4, 4, 8, 8, (1, 2)).at(16))
    assert Strategy(4, 4, 1, 2) in found
    assert Strategy(2, 1, 8, 1) in found
    assert Strategy(2, 1, 8, 2) not in found  # 8 samples / (8 x 2)
    assert not [one for one in found if one.sharding == "fsdp"]  # data 16 does not divide 8
    assert len(found) == len(set(found))
    fsdp = Strategy(1, 1, 8, 1, sharding="fsdp")
    assert fsdp in Strategies(4, 4, 8, 8, (1,)).at(8)


def test_interleaving_needs_whole_rounds() -> None:
    lattice = Strategies(8, 4, 8, 8, (1,), schedules=("1f1b", "interleaved"))
    assert [one.chunks for one in lattice.at(8) if (one.tensor, one.pipeline) == (2, 4)] == [1, 2]
    assert [one.chunks for one in lattice.at(8) if (one.tensor, one.pipeline) == (1, 8)] == [1]  # one layer a stage
    assert [one.chunks for one in lattice.at(16) if (one.tensor, one.pipeline) == (1, 4)] == [1]  # 2 micro-batches, 4 stages


def test_machines_of_72_may_be_left_with_idle_gpus() -> None:
    lattice = Strategies(80, 64, 1024, 72)
    assert lattice.tensors == (1, 2, 4, 8)
    assert 128 in lattice.counts(200)


@given(
    st.integers(1, 24), st.sampled_from([0, 4, 12, 64]), st.integers(1, 96), st.sampled_from([1, 2, 4, 8]), st.integers(1, 12),
)  # fmt: skip
def test_every_strategy_is_whole(layers: int, heads: int, batch: int, each: int, nodes: int) -> None:
    lattice = Strategies(layers, heads, batch, each, (1, 2), ("none", "full"), ("1f1b", "interleaved"), ("auto",))
    for one in lattice.at(each * nodes):
        assert one.gpus == each * nodes
        assert batch % (one.data * one.micro_batch) == 0
        assert layers % (one.pipeline * one.chunks) == 0
        assert one.tensor == 1 or heads % one.tensor == 0
        assert one.tensor <= each
        assert one.sharding == "zero1" or (one.pipeline == one.tensor == 1)


def test_words_and_keys() -> None:
    one = Strategy(8, 4, 32, 1, chunks=2, recompute="full")
    assert str(one) == "tp8 pp4 dp32 mbs1 vp2 zero1 recompute"
    assert one.keys() == {
        "training.micro_batch": 1, "parallel.data.strategy": "zero1", "training.recompute": "full", "parallel.tensor.size": 8,
        "parallel.tensor.sequence_parallel": True, "parallel.pipeline.size": 4, "parallel.pipeline.schedule": "interleaved",
        "parallel.pipeline.virtual_stages": 2,
    }  # fmt: skip


def test_the_mlps_alone_are_recomputed_where_every_layer_has_one() -> None:
    dense, mixture, state_space = (model_of(name) for name in ("llama-2-70b", "mixtral-8x7b", "mamba2-2.7b"))
    assert recomputations(("auto",), dense) == ("none", "mlp", "full")
    assert recomputations(("auto",), mixture) == recomputations(("auto",), state_space) == ("none", "full")
    assert recomputations(("full", "auto", "mlp"), mixture) == ("full", "none", "mlp")
    one = Strategy(1, 1, 1, 1, recompute="mlp")
    assert str(one).endswith("recompute-mlp")
    assert one.keys()["training.recompute"] == {"selective": ["mlp"]}


@pytest.mark.parametrize(
    ("sharding", "words"), [(("zero1",), {"zero1"}), (("fsdp",), {"fsdp"}), (("auto",), {"zero1"}), (("zero1", "fsdp"), {"zero1", "fsdp"})]
)
def test_sharding_with_tensor_parallelism(sharding: tuple[str, ...], words: set[str]) -> None:
    lattice = Strategies(4, 4, 8, 8, (1,), sharding=sharding)
    assert {one.sharding for one in lattice.at(8) if one.tensor == 2 and one.pipeline == 1} == words

"""Copies of what experts keep, beside other work; bytes by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.kernel import Memory
from parsim.model.low_precision import TRANSFORMER_ENGINE, Quantisation
from parsim.model.mixture import GroupedLinear
from parsim.model.paged_stash import copies, kept
from parsim.model.workload import Workload
from parsim.program.check import check
from parsim.run import execute
from parsim.scenario.build import build

MXFP8 = Quantisation("mxfp8", TRANSFORMER_ENGINE, tn_only=False, caches_weights=True)
AT = Workload(
    1, 1024, dtype="fp8", quantisation=MXFP8, fused=True, expert=4, expert_tensor=1, dispatcher="hybridep",
    fused_experts=True, paged_stash=True,
)  # fmt: skip
H, F, TOP = 256, 64, 2
FIRST = GroupedLinear("up", ("x",), "y", H, 2 * F, 8, TOP)
SECOND = GroupedLinear("down", ("y",), "z", F, H, 8, TOP, "row")
ROWS = 1024 * TOP


class TestBytes:
    def test_of_the_first_product(self) -> None:
        """2,048 rows: 256 B in fp8, a scale of 1 B for 32 rows and column, 128 results of 2 B, a weight of 4 B."""
        assert kept(FIRST, AT) == (524_288, 16_384, 524_288, 8_192)

    def test_of_the_second(self) -> None:
        assert kept(SECOND, AT) == (131_072, 4_096)

    def test_each_is_read_and_written(self) -> None:
        assert copies(SECOND, AT) == (Memory(262_144), Memory(8_192))

    def test_frozen_experts_keep_no_inputs(self) -> None:
        frozen = [kept(replace(product, trainable=False), AT) for product in (FIRST, SECOND)]
        assert frozen == [(524_288, 8_192), ()]

    def test_the_busiest_rank_has_more_rows(self) -> None:
        assert kept(SECOND, replace(AT, expert_imbalance=1.5)) == (196_608, 6_144)


class TestMemory:
    def test_pages_have_a_tenth_more_room(self) -> None:
        for product, expected in ((FIRST, 107_315), (SECOND, 13_517)):
            with_pages, without = product.work(AT), product.work(replace(AT, paged_stash=False))
            added = [save for save in with_pages.saves if save not in without.saves]
            assert [(save.tensor, save.bytes) for save in added] == [(f"{product.name}.pages", expected)]
            assert expected == round(0.1 * sum(kept(product, AT)))

    def test_a_copy_stands_beside_them(self) -> None:
        work = FIRST.work(AT)
        assert work.forward_temporary == work.backward_temporary == 1_073_152


JOB = {
    "model": {"base": "qwen3-30b-a3b", "layers": 3},
    "cluster": {"topology": "hgx-b200"},
    "training": {"sequence_length": 4096, "micro_batch": 1, "global_batch": 16, "precision": {"preset": "fp8", "recipe": "mxfp8"}},
    "parallel": {
        "expert": {"size": 8, "tensor": 1, "dispatcher": "hybridep", "fused_mlp": True, "paged_stash": True},
        "data": {"strategy": "zero1"},
    },
    "software": {"profile": "megatron-core", "host": {"graphs": True}},
}


class TestStep:
    @pytest.mark.parametrize("overlap", ["false", "true"])
    def test_every_layer_is_packed_once_and_taken_out_once(self, overlap: str) -> None:
        """Of three layers and two micro-batches, on a lane of their own; 32,768 rows of 2,048 and 768 an iteration of a layer."""
        program = execute(build(load(JOB, f"parallel.expert.batch_overlap={overlap}"))).trace.program
        assert check(program) == []
        rank = [op for op in program.ops if op.lanes and op.lanes[0].rank == 0 and op.name in ("pack", "unpack")]
        assert sorted(op.name for op in rank) == ["pack"] * 6 + ["unpack"] * 6
        assert {lane.name for op in rank for lane in op.lanes} == {"stream pages"}

    def test_it_takes_time_and_less_than_one_behind_the_other(self) -> None:
        """Six copies each way of 32,768 rows: 2 x (33/32 (2,048 + 768) + 4 x 768 + 4) bytes a row."""
        without, with_pages = (simulate(load(JOB, f"parallel.expert.paged_stash={word}")).step_time for word in ("false", "true"))
        moved = 12 * 32_768 * 2 * (33 * (2048 + 768) // 32 + 4 * 768 + 4)
        assert 0 < with_pages - without < moved / 6e12


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("parallel.expert.fused_mlp=false", "only the fused experts of Transformer Engine mark what they keep"),
        ("parallel.expert.dispatcher=alltoall", "with HybridEP alone"),
        ("training.recompute=full", "experts that run again keep nothing meanwhile"),
        ("training.recompute={selective: [moe]}", "experts that run again keep nothing meanwhile"),
        ("training.offload.activations=cpu", "activations go to the host"),
    ],
)
def test_what_cannot_be_packed_is_refused(override: str, text: str) -> None:
    with pytest.raises(ParsimError) as caught:
        simulate(load(JOB, override))
    assert text in str(caught.value)

"""Steps in which PyTorch's operations put tokens in order, and the host's waits for them."""

from __future__ import annotations

import copy

import pytest

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.parallel.hooks import COUNTS
from parsim.parallel.runtime import COPY_TO_HOST

MIXTURE = {
    "base": "llama-3.2-1b", "layers": 2, "hidden": 1024, "heads": 8, "kv_heads": 8, "mlp": 4096, "vocabulary": 32000,
    "experts": {"count": 16, "top_k": 4, "mlp": 512},
}  # fmt: skip
JOB = {
    "model": MIXTURE,
    "cluster": {"topology": "hgx-h200", "nodes": 1},
    "training": {"sequence_length": 4096, "micro_batch": 1, "gradient_accumulation": 2, "precision": "bf16-fp32grad"},
    "parallel": {"expert": {"size": 8, "tensor": 1}, "data": {"strategy": "zero1"}},
    "software": {"profile": "megatron-core", "effects": "none"},
}


def waits(report):
    """Of one rank [s]."""
    return [op.duration for op in report.measured.trace.program.ops if op.name == COUNTS and op.lanes[0].rank == 0]


class TestSteps:
    def times(self, *overrides):
        return [simulate(load(JOB, *overrides, f"parallel.expert.permute_fusion={word}")).step_time for word in ("auto", "true", "false")]

    @pytest.mark.parametrize(
        "overrides",
        [
            ("parallel.expert={size: 8, tensor: 1}",),
            ("parallel.expert={size: 8, tensor: 1, dispatcher: allgather}",),
            ("parallel.expert={size: 8, tensor: 1, dispatcher: deepep}",),
            ("parallel.expert={size: 8, tensor: 1, batch_overlap: true}",),
            ("model.experts.shared=512", "parallel.expert={size: 8, tensor: 1, shared_overlap: true}"),
            ("training.recompute=full",),
            ("parallel.expert={size: 1}",),
            ("parallel.expert={size: 1}", "parallel.tensor={size: 2, sequence_parallel: true}"),
        ],
    )
    def test_a_step_takes_longer(self, overrides):
        auto, fused, plain = self.times(*overrides)
        assert auto == fused < plain

    def test_beside_a_shared_expert(self):
        """Its half starts with the messages, behind the waits."""
        overrides = ("model.experts.shared=512", "parallel.expert={size: 8, tensor: 1, shared_overlap: true, permute_fusion: false}")
        assert waits(simulate(load(JOB, *overrides))) == pytest.approx([2 * (COPY_TO_HOST + 12e-6)] * 4)

    def test_sums_wait_where_every_rank_holds_all_experts(self):
        """Dispatch for the rows, combine for the weights."""
        report = simulate(load(JOB, "parallel.expert={size: 1, permute_fusion: false}"))
        assert waits(report) == pytest.approx([COPY_TO_HOST + 12e-6] * 8)

    def test_a_sort_needs_no_count(self):
        """Padded experts: nobody waits."""
        padded = "parallel.expert={size: 8, tensor: 1, capacity_factor: 1.0, pad_to_capacity: true}"
        report = simulate(load(JOB, padded, "parallel.expert.permute_fusion=false"))
        assert waits(report) == []

    def test_the_host_waits_twice_in_dispatch(self):
        """Once for the rows and once for their weights; the counts of the exchange have come meanwhile."""
        report = simulate(load(JOB, "parallel.expert.permute_fusion=false"))
        assert waits(report) == pytest.approx([2 * (COPY_TO_HOST + 12e-6)] * 4)

    @pytest.mark.parametrize("size", [1, 8])
    def test_folded_is_unfolded(self, size):
        tree = copy.deepcopy(JOB)
        tree["parallel"]["expert"] = {"size": size, "permute_fusion": False}
        folded, whole = simulate(tree), simulate(tree, unfolded=True)
        assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)

    @pytest.mark.parametrize(
        ("override", "text"),
        [
            ("model=llama-3.2-1b", "has no experts"),
            ("software.profile=pytorch-2", "only Megatron-LM has the choice"),
            ("parallel.expert.dispatcher=hybridep", "HybridEP puts tokens in order by kernels of its own"),
        ],
    )
    def test_refused(self, override, text):
        tree = copy.deepcopy(JOB)
        if override.startswith("model"):
            tree["parallel"]["expert"] = {}
        with pytest.raises(ParsimError) as caught:
            simulate(load(tree, override, "parallel.expert.permute_fusion=false"))
        assert text in str(caught.value)

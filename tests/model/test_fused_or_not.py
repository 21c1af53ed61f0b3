"""What Megatron-LM and Transformer Engine fuse and what they do not, in steps that published runs took; bytes by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.kernel import Gemm, Memory
from parsim.model.attention import Rotary
from parsim.model.catalogue import build_model
from parsim.model.elementwise import GatedActivation
from parsim.model.loss import Loss
from parsim.model.low_precision import TRANSFORMER_ENGINE, Quantisation
from parsim.model.mixture import GroupedLinear
from parsim.model.model import Work
from parsim.model.workload import Workload
from parsim.scenario import files
from parsim.scenario.build import build

T, TOP, EXPERTS, K, N = 1000, 2, 8, 256, 512
COPIES = T * TOP
MXFP8 = Quantisation("mxfp8", TRANSFORMER_ENGINE, tn_only=False, caches_weights=True)
PLAIN = Workload(1, T, dtype="fp8", quantisation=MXFP8, fused=True, expert_tensor=1)
FUSED = replace(PLAIN, fused_experts=True)


def memory(*kernels: object) -> float:
    return sum(kernel.bytes for kernel in kernels if isinstance(kernel, Memory))


class TestClamp:
    ACTIVATION = GatedActivation("act", ("gate_up",), "product", N, "silu", copies=TOP, clamp=True)
    COUNT = COPIES * N

    def test_bounds_are_kernels_of_their_own(self) -> None:
        """Elements of the product, 16 bit: 2 + 2 + 4 sizes more forward. Backward: comparisons (3 x 3 B) and masks (2 x 5 B), bound by what
        is issued, comparisons joined (3 B), gradients joined (8 B).
        """
        work, size, count = self.ACTIVATION.work(Workload(1, T, fused=True)), 2 * self.COUNT, self.COUNT
        assert work.forward == (Memory(4 * size, launches=2, vector=370 * count), Memory(4 * size), Memory(3 * size))
        assert work.backward_input == (
            Memory(5 * size, vector=257 * count),
            Memory(19 * count, launches=5, vector=856 * count),
            Memory(11 * count, launches=2),
        )
        assert {save.tensor: save.bytes for save in work.saves} == {"gate_up": 2 * size, "act.clamped": 2 * size}

    def test_46_bytes_an_element_more(self) -> None:
        with_clamp, without = (one.work(Workload(1, T, fused=True)) for one in (self.ACTIVATION, replace(self.ACTIVATION, clamp=False)))
        moved = [memory(*work.forward, *work.backward_input) for work in (with_clamp, without)]
        assert moved[0] - moved[1] == 46 * self.COUNT

    def test_gpt_oss_has_it(self) -> None:
        model = build_model({"base": "gpt-oss-120b"}, name="x", base_lookup=lambda name: dict(files.read(files.find("models", name)).tree))
        one = next(operator for block in model.blocks for operator in block.operators if isinstance(operator, GatedActivation))
        assert one.clamp
        assert next(operator for block in model.blocks for operator in block.operators if isinstance(operator, Rotary)).scaled


def test_the_router_weights_the_activation_of_experts_that_are_spread() -> None:
    """torch.compile: gate, up and gradient read, two gradients written, bound by issue; all three read again for the weight's gradient."""
    activation, size = GatedActivation("act", ("gate_up",), "product", N, "silu", copies=TOP), 2 * COPIES * N
    spread, whole = (activation.work(Workload(1, T, fused=True, expert=ranks)) for ranks in (4, 1))
    assert spread.backward_input == (Memory(5 * size, vector=288 * COPIES * N), Memory(3 * size))
    assert whole.backward_input == (Memory(5 * size, vector=257 * COPIES * N),)
    assert spread.forward == whole.forward == (Memory(3 * size),)


def test_rotary_positions_with_a_factor_are_spelt_out() -> None:
    """Queries and keys of 6 heads of 16, 32 tokens, 16 bit: 12 passes over them forward, 14 backward. One read and one write,
    bound by issue, in Transformer Engine's kernel, by bytes in that of latent attention and of torch.compile.
    """
    rotary, size = Rotary("r", ("q", "k", "v"), "rotated", 4, 2, 16), 32 * 6 * 16 * 2
    at = Workload(1, 32, fused=True)
    work = replace(rotary, scaled=True).work(at)
    issued = Memory(7 * size, launches=8, vector=730 * size / 2)
    assert work.forward == (issued, Memory(5 * size, launches=16))
    assert work.backward_input == (issued, Memory(7 * size, launches=6))
    assert rotary.work(at).forward == rotary.work(at).backward_input == (Memory(2 * size, vector=160 * size / 2),)
    for other in (replace(rotary, latent=True).work(at), rotary.work(replace(at, compiled=True))):
        assert other.forward == other.backward_input == (Memory(2 * size),)
    eager = Workload(1, 32)
    assert replace(rotary, scaled=True).work(eager) == rotary.work(eager)


def test_the_loss_of_transformer_engine_overwrites_the_logits() -> None:
    """32 rows of 1,000 logits, 16 bit: read twice and written forward, read and written backward."""
    work, size = Loss("l", ("logits",), "output", 1000).work(Workload(2, 16, loss_kernel="te")), 2 * 16 * 1000 * 2
    assert (work.forward, work.backward_input) == ((Memory(3 * size, launches=2),), (Memory(2 * size),))
    assert {save.tensor: save.bytes for save in work.saves if save.tensor != "output"} == {
        "logits": size, "l.row_sums": 12 * 32, "l.targets": 8 * 32,
    }  # fmt: skip


class TestFusedExperts:
    @staticmethod
    def work(at: Workload, split: str) -> Work:
        return GroupedLinear("experts", ("x",), "y", K, N, EXPERTS, TOP, split, bias=True).work(at)  # type: ignore[arg-type]

    @pytest.mark.parametrize("split", ["column", "row"])
    def test_one_product_for_all_experts(self, split: str) -> None:
        for at, launches in ((PLAIN, EXPERTS), (FUSED, 1)):
            work = self.work(at, split)
            kernels = (*work.forward, *work.backward_input, *work.backward_weight)
            assert [one.launches for one in kernels if isinstance(one, Gemm)] == [launches] * 3

    @pytest.mark.parametrize("split", ["column", "row"])
    def test_one_kernel_under_every_stack(self, split: str) -> None:
        """As many bytes and operations as the kernels of every expert, in fewer launches; casts and biases alike."""
        plain, single = (self.work(replace(PLAIN, single_grouped=one), split) for one in (False, True))
        for part in ("forward", "backward_input", "backward_weight"):
            several, one = getattr(plain, part), getattr(single, part)
            assert [replace(kernel, launches=1) for kernel in several] == [replace(kernel, launches=1) for kernel in one]
            assert all(kernel.launches < EXPERTS for kernel in one)
            assert all(kernel.launches >= EXPERTS for kernel in several if isinstance(kernel, Gemm))

    def test_nothing_between_the_products(self) -> None:
        """The first casts tokens, the second the gradient of its result; the product before them has done the others."""
        assert not any(isinstance(kernel, Memory) for kernel in self.work(FUSED, "row").forward)
        assert not any(isinstance(kernel, Memory) for kernel in self.work(FUSED, "column").backward_input)
        assert memory(*self.work(FUSED, "column").forward) > 0
        bias = 2 * COPIES * N
        assert memory(*self.work(FUSED, "row").backward_input) > bias
        activation = GatedActivation("act", ("up",), "product", N, "silu", copies=TOP, clamp=True)
        work = activation.work(FUSED)
        assert work.forward == work.backward_input == ()
        assert [save.tensor for save in work.saves] == ["up"]

    def test_hybridep_fills_up_the_rows_itself(self) -> None:
        at = replace(PLAIN, expert=4, dispatcher="hybridep")
        copy = Memory(2 * COPIES * K * 2)
        assert copy in self.work(replace(at, dispatcher="alltoall"), "column").forward
        assert copy not in self.work(at, "column").forward


JOB = {
    "model": {"base": "qwen3-30b-a3b", "layers": 2},
    "cluster": {"topology": "hgx-b200"},
    "training": {"sequence_length": 4096, "micro_batch": 1, "global_batch": 8, "precision": {"preset": "fp8", "recipe": "mxfp8"}},
    "parallel": {"expert": {"size": 8, "tensor": 1}, "data": {"strategy": "zero1"}},
    "software": {"profile": "megatron-core"},
}


def test_a_step_with_fused_experts_is_shorter() -> None:
    plain, fused = (simulate(load(JOB, f"parallel.expert.fused_mlp={flag}")).step_time for flag in ("false", "true"))
    assert fused < plain


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("training.precision=bf16", "only Transformer Engine's mxfp8 products have such kernels"),
        ("parallel.expert={size: 4, tensor: 2, fused_mlp: true}", "2 ranks share the width of every expert"),
        ("training.recompute={selective: [moe_act]}", "there is no activation to make again"),
        ("training.finetune={method: lora, rank: 16}", "not supported yet: fused_mlp with adapters"),
        ("model=llama-3-8b", "has no experts"),
    ],
)
def test_what_cannot_be_fused_is_refused(override: str, text: str) -> None:
    with pytest.raises(ParsimError) as caught:
        simulate(load(JOB, "parallel.expert.fused_mlp=true", override))
    assert text in str(caught.value)


class TestHost:
    def test_grace_is_slower_and_transformer_engine_counts_more(self) -> None:
        """12 us a kernel is what a torch product takes on an x86 host; 37.1 us on Grace, backward at 9 / 12 of it; a product is 2.7."""
        apriori = [load(JOB, f"cluster.topology={one}", "cluster.gpus=8", "software.effects=none") for one in ("hgx-b200", "gb200-nvl72")]
        hosts = [build(one).runtime.host for one in apriori]
        assert [(one.per_kernel_forward, one.per_kernel_backward) for one in hosts] == [
            pytest.approx((12e-6, 9e-6)), pytest.approx((37.1e-6, 27.825e-6)),
        ]  # fmt: skip
        assert [one.launches_per_product for one in hosts] == [2.7, 2.7]
        assert 2.7 == pytest.approx(99.7 / 37.1, rel=0.01) == pytest.approx(90.5 / 33.2, rel=0.015)

    def test_stated_and_other_stacks(self) -> None:
        assert build(load(JOB, "software.host.launches_per_product=1")).runtime.host.launches_per_product == 1
        assert build(load(JOB, "software.profile=pytorch-2")).runtime.host.launches_per_product == 1
        names = {one.name for one in build(load(JOB)).assumptions}
        assert "launches_per_product" in names

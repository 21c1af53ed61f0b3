"""SOAP and Shampoo: states, work, who steps what, what travels, and what is refused."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import job
from small_llama import tree

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.hardware.device import device_from_tree
from parsim.hardware.kernels import kernel_time
from parsim.kernel import Factorisation, Gemm
from parsim.parallel.kronecker import Preconditioned, Preconditioner, dealt, merged
from parsim.parallel.training import Optimizer
from parsim.program.check import check
from parsim.scenario import files
from parsim.scenario.build import build
from parsim.scenario.precision import PRESETS
from parsim.study.search.cost_cache import CostCache

SHAPES = [(256, 256), (128, 256), (128, 256), (256, 256), (512, 256), (512, 256), (256, 512)]
"""matrices of one of its layers; the rest are two tables of 1024 x 256 and 5 norms of 256"""
JOINED = [(512, 256), (256, 256), (1024, 256), (256, 512)]
"""as Transformer Engine stores them"""
REST = 2 * 1024 * 256 + 5 * 256
AMP, MIXED = PRESETS["amp-bf16"], PRESETS["bf16-fp32grad"]
MEGATRON = {"profile": "megatron-core"}


def small():
    return build(load(tree("ddp", "adamw"))).model


def kept(run, rank=0):
    """Bytes of the optimizer's states."""
    tensors = [run.program.tensors[rank][number] for number in run.program.resident[rank]]
    return sum(tensor.bytes for tensor in tensors if tensor.category == "optimizer")


def squares(shapes, longest=10**9):
    return sum(side * side for shape in shapes for side in shape if side <= longest)


class Flops:
    """Counts the operations of the products that numpy makes."""

    def __init__(self):
        self.total = 0

    def __call__(self, a, b):
        self.total += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b


class TestWork:
    @given(st.integers(2, 24), st.integers(2, 24))
    def test_soap(self, m, n):
        """The step of nikhilvyas/SOAP, counted: gradient there, update back, first moment back and forth, factors; then QR of L Q."""
        g, left, right, times = np.ones((m, n)), np.eye(m), np.eye(n), Flops()
        there = times(times(left.T, g), right)
        back = times(times(left, there), right.T)
        moment = times(times(left, back), right.T)
        moment = times(times(left.T, moment), right)
        factors = times(g, g.T), times(g.T, g)
        one = Preconditioned((m, n), 1, (m, n))
        assert times.total == Preconditioner("soap").step_flop([one]) == 10 * m * n * (m + n)
        times.total = 0
        for factor, basis in zip(factors, (left, right), strict=True):
            times(times(basis.T, factor), basis)  # estimates of the eigenvalues
            times(factor, basis)
        qr = 8 / 3 * (m**3 + n**3)  # geqrf and orgqr of a square matrix, 4/3 each
        assert Preconditioner("soap").renewal_flop([one]) == pytest.approx(times.total + qr, rel=1e-12)

    @given(st.integers(2, 24), st.integers(2, 24))
    def test_shampoo(self, m, n):
        """G G' and G' G, then the inverse root of one times G times that of the other."""
        g, times = np.ones((m, n)), Flops()
        times(g, g.T), times(g.T, g)
        times(times(np.eye(m), g), np.eye(n))
        assert times.total == Preconditioner("shampoo", 1024).step_flop([Preconditioned((m, n), 1, (m, n))])

    @pytest.mark.parametrize("name", ["soap", "shampoo"])
    @pytest.mark.parametrize("frequency", [1, 10, 300])
    def test_kernels_are_what_is_counted(self, name, frequency):
        method = Preconditioner(name, 0 if name == "soap" else 512, frequency)
        tensors = [Preconditioned((512, 256), 3, (512, 256)), Preconditioned((128,), 2, (128,))]
        kernels = method.kernels(tensors)
        assert sum(k.flop for k in kernels if isinstance(k, Gemm)) == method.step_flop(tensors)
        renewals = sum(k.flop for k in kernels if isinstance(k, Factorisation))
        assert renewals == pytest.approx(method.renewal_flop(tensors) / frequency, rel=1e-12)

    def test_qr_on_an_a100(self):
        """6.3 ms of 2000 x 2000 (ml-explore/mlx, pull request 975), with the device's fixed time of a kernel and rate of fp32 products."""
        device = device_from_tree(files.read(files.find("devices", "a100-sxm-80gb")).tree)
        assert kernel_time(device, Factorisation(0.0, 8 / 3 * 2000**3, 2000)) == pytest.approx(6.3e-3, rel=0.2)

    @pytest.mark.parametrize(("optimizer", "megatron", "expected"), [
        (Optimizer("soap"), False, ("soap", 10_000, 10, False)),
        (Optimizer("soap"), True, ("soap", 0, 1, True)),
        (Optimizer("soap", precondition_frequency=5, max_preconditioner_dim=300), True, ("soap", 300, 5, True)),
        (Optimizer("shampoo"), False, ("shampoo", 1024, 1, False)),
    ])  # fmt: skip
    def test_what_stacks_do(self, optimizer, megatron, expected):
        found = Preconditioner.of(optimizer, megatron=megatron)
        assert (found.name, found.longest, found.frequency, found.divergence) == expected


class TestStates:
    @pytest.mark.parametrize("longest", [0, 300])
    def test_soap_on_replicas(self, longest):
        """Two moments of everything; 2 x 4 d^2 B for each side of a matrix that is short enough, of separate tensors."""
        optimizer = Optimizer("soap", max_preconditioner_dim=longest)
        run = job(small(), data=2, data_settings={"strategy": "ddp"}, optimizer=optimizer, precision=AMP, attention="flash2")
        count = 2 * sum(prod(shape) for shape in SHAPES) + REST
        assert kept(run) == 8 * count + 2 * 8 * squares(SHAPES, longest or 10**9)

    def test_megatrons_soap(self):
        """Masters, joined tensors, factors for all sides, eigenvalues; on one rank."""
        run = job(small(), optimizer=Optimizer("soap"), precision=MIXED, runtime=MEGATRON, attention="flash2")
        count = 2 * sum(map(prod, JOINED)) + REST
        eigenvalues = 4 * sum(map(sum, JOINED))
        assert kept(run) == 12 * count + 2 * (8 * squares(JOINED) + eigenvalues)

    def test_whole_matrices_over_ranks(self):
        """The layer-wise optimizer: the fullest rank's, and AdamW's share of the rest; over all ranks what one has alone."""
        settings = {"data_settings": {"strategy": "zero1"}, "optimizer": Optimizer("soap"), "precision": MIXED, "runtime": MEGATRON}
        run = job(small(), data=4, attention="flash2", **settings)
        _, soap = run.plan.sharding(run.plan.chunks[0], "").parts
        method = Preconditioner("soap", 0, 1, divergence=True)
        per_rank = [4 * own.count + method.state_bytes(MIXED, method.matrices(own.matrices)) for own in soap._owned]
        assert sum(per_rank) == sum(12 * prod(shape) + 8 * squares([shape]) + 4 * sum(shape) for shape in JOINED * 2)
        assert kept(run) == max(per_rank) + 12 * -(-REST // 4)

    def test_shampoo_deals_blocks(self):
        """All weights, the norms too, in blocks of 128; over the ranks what one has alone, and the fullest has at most a block more."""
        optimizer = Optimizer("shampoo", max_preconditioner_dim=128)
        settings = {"optimizer": optimizer, "precision": AMP, "attention": "flash2"}
        alone = job(small(), **settings)
        count = 2 * sum(prod(shape) for shape in SHAPES) + REST
        blocks = (count - 5 * 256) // 128**2
        assert kept(alone) == 8 * count + 8 * (2 * blocks + 5 * 2) * 128**2
        spread = job(small(), data=4, data_settings={"strategy": "ddp"}, **settings)
        block = 8 * 128**2 + 2 * 8 * 128**2
        assert kept(alone) / 4 <= kept(spread) <= kept(alone) / 4 + block

    def test_shampoo_on_rows(self):
        """Of 1024 rows a rank of eight has 128; their factor is smaller, that of the columns is not."""
        optimizer = Optimizer("shampoo", max_preconditioner_dim=512)
        run = job(small(), data=8, data_settings={"strategy": "fsdp"}, optimizer=optimizer, precision=AMP, attention="flash2")
        rows = [(m // 8, n) for m, n in SHAPES] * 2 + [(128, 256)] * 2
        assert kept(run) == 8 * (sum(map(prod, rows)) + 5 * 32) + 8 * (squares(rows) + 5 * 32**2)


class TestBlocks:
    @given(st.lists(st.integers(1, 200), min_size=1, max_size=3), st.integers(8, 64))
    def test_blocks_cover_a_tensor(self, shape, longest):
        blocks = Preconditioner("shampoo", longest).blocks(shape)
        assert sum(block.count for block in blocks) == prod(shape) == prod(merged(shape, longest))
        assert all(side <= longest for block in blocks for side in block.sides)

    @given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.integers(1, 8))
    def test_blocks_are_dealt_once(self, sizes, ranks):
        tensors = [Preconditioned((size, 4), size % 3 + 1, (size, 4)) for size in sizes]
        owned = dealt(tensors, ranks)
        seen = Counter({})
        for own in owned:
            for one in own:
                seen[one.shape] += one.number
        assert seen == sum((Counter({one.shape: one.number}) for one in tensors), Counter())
        loads = [sum(one.count for one in own) for own in owned]
        assert max(loads) - min(loads) <= max(prod(one.shape) for one in tensors)


class TestMessages:
    def test_directions_are_gathered(self):
        """Gradients as under AdamW; then fp32 directions, as many for every rank as the fullest has."""
        settings = {"data": 4, "data_settings": {"strategy": "ddp"}, "precision": AMP, "attention": "flash2"}
        runs = [
            job(small(), optimizer=Optimizer(name, max_preconditioner_dim=d), **settings) for name, d in (("shampoo", 128), ("adamw", 0))
        ]
        assert all(check(run.program) == [] for run in runs)
        first, second = (Counter((op.name, op.collective.bytes) for op in run.collectives(0)) for run in runs)
        ((name, size),) = (first - second).elements()
        assert name == "all_gather search directions"
        count = 2 * sum(prod(shape) for shape in SHAPES) + REST
        assert 4 * count <= size <= 4 * (count + 4 * 128**2)

    def test_rows_stay(self):
        settings = {"data": 4, "data_settings": {"strategy": "fsdp"}, "precision": AMP}
        first, second = (
            [(op.name, op.collective) for op in job(small(), optimizer=Optimizer(name), **settings).collectives(0)]
            for name in ("shampoo", "adamw")
        )
        assert first == second

    def test_ranks_with_the_same_rows_share_their_blocks(self):
        """Hybrid sharding over 2 x 4: rows of a fourth, blocks of 128 dealt to two ranks, and directions gathered between them."""
        optimizer = Optimizer("shampoo", max_preconditioner_dim=128)
        settings = {"optimizer": optimizer, "precision": AMP, "attention": "flash2"}
        sharded = job(small(), data=4, data_settings={"strategy": "fsdp"}, **settings)
        hybrid = job(small(), data=8, data_settings={"strategy": "hsdp", "shard_size": 4}, **settings)
        assert check(hybrid.program) == []
        block = 8 * 128**2 + 2 * 8 * 128**2
        assert kept(sharded) / 2 <= kept(hybrid) <= kept(sharded) / 2 + block
        (found,) = [op.collective for op in hybrid.collectives(0) if op.name == "all_gather search directions"]
        count = (2 * sum(prod(shape) for shape in SHAPES) + REST) // 4
        assert 4 * count <= found.bytes <= 4 * (count + 2 * 128**2)

    def test_layer_wise_as_muon(self):
        """Who owns whole matrices reduces and gathers them in the same way."""
        settings = {"data": 4, "data_settings": {"strategy": "zero1"}, "precision": MIXED, "runtime": MEGATRON}
        first, second = (
            [(op.name, op.collective) for op in job(small(), optimizer=Optimizer(name), **settings).collectives(0)]
            for name in ("soap", "muon")
        )
        assert first == second


@pytest.mark.parametrize(
    ("strategy", "optimizer", "more"),
    [
        ("ddp", "soap", {"pipeline": {"size": 2}}),
        ("zero1", {"name": "soap", "padded_parts": True}, {}),
        ("zero1", "soap", {"tensor": {"size": 2}}),
        ("ddp", {"name": "shampoo", "precondition_frequency": 50}, {}),
        ("fsdp", "shampoo", {}),
        ("hsdp", "shampoo", {"data": {"strategy": "hsdp", "shard_size": 4}}),
    ],
)
def test_folded_is_unfolded(strategy, optimizer, more):
    folded, whole = (simulate(tree(strategy, optimizer, **more), unfolded=unfolded) for unfolded in (False, True))
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)


def test_a_mean_step_has_its_share_of_a_renewal():
    """T(f) = a + b / f."""
    seconds = {}
    for frequency in (1, 2, 4):
        made = tree("ddp", {"name": "soap", "precondition_frequency": frequency})
        seconds[frequency] = simulate(made).document()["breakdown_s"]["optimizer"]
    assert seconds[1] - seconds[2] == pytest.approx(2 * (seconds[2] - seconds[4]), rel=1e-6)
    assert seconds[1] > seconds[4] > 0


@pytest.mark.parametrize(
    ("job_tree", "message"),
    [
        (tree("fsdp", "soap"), "no public SOAP steps matrices that fsdp shards"),
        (tree("zero1", "soap", software="deepspeed"), "only Megatron-Core's layer-wise optimizer shards so, and the stack is deepspeed"),
        (tree("zero2", "shampoo"), "shampoo with zero2 .facebookresearch/optimizers runs DDP, fully_shard and hybrids"),
        (tree("ddp", "shampoo", software="deepspeed"), "deepspeed has no Shampoo"),
        (tree("ddp", "shampoo", software="pytorch-2", tensor={"size": 2}), "no distributor for weights that tensor or expert ranks share"),
        (tree("ddp", {"name": "shampoo", "newton_schulz_steps": 6}), "shampoo orthogonalises nothing"),
        (tree("ddp", {"name": "adamw", "precondition_frequency": 6}), "adamw has no preconditioner"),
        (tree("ddp", {"name": "muon", "max_preconditioner_dim": 6}), "muon has no preconditioner"),
        (tree("ddp", {"name": "soap", "padded_parts": True}), "ddp does not assign parts of buckets to ranks"),
    ],
)
def test_what_does_not_go_is_said(job_tree, message):
    with pytest.raises(ParsimError, match=message):
        simulate(job_tree)


@pytest.mark.parametrize("name", ["soap", "shampoo"])
def test_a_search_refuses_it(name):
    with pytest.raises(ParsimError, match="a search over strategies with S"):
        CostCache().costs(build(load(tree("ddp", name))))


def test_the_size_of_a_checkpoint_is_asked_for():
    asked = tree("ddp", "soap") | {"economics": {"mtbf_per_gpu": "50000 h", "checkpoint": {"bandwidth": "10 GB/s"}}}
    with pytest.raises(ParsimError, match="how large a checkpoint with the factors of soap is; write its size"):
        simulate(asked)
    asked["economics"]["checkpoint"]["bytes"] = "2 GiB"
    assert simulate(asked).step_time > 0

"""Muon: work and states of Newton-Schulz iterations, who owns which matrix, what travels."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import job
from small_llama import tree

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.kernel import Gemm
from parsim.parallel.layer_wise import PADDING_FLOOR, LayerWiseOptimizer, longest_first, ping_pong
from parsim.parallel.muon import (
    Matrix,
    MatrixLayout,
    MatrixTensor,
    NewtonSchulz,
    flop_of,
    gram_flop,
    gram_iteration,
    iteration,
    newton_schulz_flop,
    tensors_of,
)
from parsim.parallel.training import Optimizer
from parsim.parallel.zero_muon import parts
from parsim.program.check import check
from parsim.scenario.build import build
from parsim.scenario.precision import PRESETS
from parsim.study.search.cost_cache import CostCache

MUON, SPLIT, PADDED = Optimizer("muon"), Optimizer("muon", split_gate_up=True), Optimizer("muon", padded_parts=True)
MEGATRON = {"profile": "megatron-core"}
MIXTURE = {"base": "mixtral-8x7b", "layers": 2, "hidden": 256, "heads": 8, "kv_heads": 4, "mlp": 512, "vocabulary": 1024}


def matrices_of(model, optimizer=MUON, layout=None, **sizes):
    plan = job(model, attention="flash2", **sizes).plan
    weights = [weight for chunk in plan.chunks for weight in plan.weights(chunk)]
    return [m for tensor in tensors_of(weights, optimizer, layout or MatrixLayout(gated=True)) for m in tensor.matrices]


OLD = tree("ddp") | {"cluster": {"topology": "dgx-1-v100"}}
OLD["training"] = OLD["training"] | {"precision": "fp32"}


class Recorder:
    """An emitter that remembers kernels and collectives."""

    def __init__(self):
        self.kernels, self.messages = [], []

    def compute(self, name, kind, kernels, allocates=(), frees=()):
        self.kernels += kernels

    def collective(self, kind, axis, size, name, **options):
        self.messages.append((kind, axis, size))
        return len(self.messages)

    def tensor(self, name, size, category):
        return name

    def wait(self, handle):
        assert handle

    def wait_for_lane(self, lane):
        pass

    @property
    def flop(self):
        return sum(kernel.flop for kernel in self.kernels if isinstance(kernel, Gemm))


class TestWork:
    def test_published_shapes(self):
        """5 (4 m^2 n + 2 m^3): square matrices, Llama's, its query, key and value in one or one by one."""
        assert newton_schulz_flop(4096, 4096) == 2_061_584_302_080
        assert newton_schulz_flop(4096, 14336) == newton_schulz_flop(14336, 4096) == 5_497_558_138_880
        assert newton_schulz_flop(6144, 4096) == 2_748_779_069_440
        assert newton_schulz_flop(4096, 4096) + 2 * newton_schulz_flop(1024, 4096) == 2_254_857_830_400

    def test_llama_3_8b(self):
        """All of its layers' matrices: a third of a percent of 6 P D at 4 million tokens."""
        matrices = matrices_of("llama-3-8b")
        assert sum(m.count for m in matrices) == 6_979_321_856
        assert flop_of(matrices) == 665_891_729_571_840
        assert flop_of(matrices) / (6 * 8_030_261_248 * 4_194_304) == pytest.approx(0.003295, abs=5e-7)

    def test_routed_experts_of_deepseek_v3(self):
        """58 layers of 256 experts of three matrices of 2,048 x 7,168, each by itself."""
        of_experts = [m for m in matrices_of("deepseek-v3", SPLIT) if m.number == 256]
        assert sum(m.number for m in of_experts) == 58 * 256 * 3
        assert flop_of(of_experts) == pytest.approx(3.0610403717e16, rel=1e-10)

    def test_tensors_as_megatron_stores_them(self):
        """Gate and up are one matrix there; query, key and value are split unless --muon-no-split-qkv."""
        joined = MatrixLayout(gated=True, joined=True, heads=32, kv_heads=8)
        rows = Counter((m.rows, m.columns) for m in matrices_of("llama-3-8b", MUON, joined))
        assert rows == {(4096, 4096): 64, (1024, 4096): 64, (28672, 4096): 32, (4096, 14336): 32}
        whole = Counter((m.rows, m.columns) for m in matrices_of("llama-3-8b", Optimizer("muon", split_query_key_value=False), joined))
        assert whole[6144, 4096] == 32

    def test_a_fused_weight_is_split_by_heads(self):
        """GPT-2's query_key_value is 2304 x 768: three squares, or one matrix."""
        assert Counter((m.rows, m.columns) for m in matrices_of("gpt2"))[768, 768] == 4 * 12

    @given(st.integers(1, 40), st.integers(1, 40))
    def test_kernels_are_the_products_of_the_iteration(self, m, n):
        """A = X X', b A + c A A, a X + B X: their shapes multiply, and their operations are the formula's."""
        short, long = sorted((m, n))
        x = np.ones((short, long))
        gram = x @ x.T
        assert (gram @ gram @ x).shape == x.shape
        gemms = iteration(short, long)
        assert [(g.m, g.n, g.k) for g in gemms] == [(short, short, long), (short, short, short), (short, long, short)]
        assert sum(g.flop for g in gemms) * 5 == newton_schulz_flop(m, n)

    @given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([0, 1, None]), st.sampled_from(["blockwise", "duplicated", "distributed"]))
    def test_every_mode_does_what_is_counted(self, ranks, split, mode):
        whole = (64, 256)
        rows, columns = (size // ranks if place == split else size for place, size in enumerate(whole))
        part = Matrix(rows, columns, 3, split if ranks > 1 else None)
        seen = Recorder()
        NewtonSchulz(5, mode, MatrixLayout(ranks=ranks)).run([part], seen)
        assert seen.flop == flop_of([part], 5, mode, ranks)
        shared = part.split is not None
        side = columns if split == 0 else rows
        expected = {
            "blockwise": [],
            "duplicated": [("all_gather", "tensor", 4 * 64 * 256)] * 3,
            "distributed": [("all_reduce", "tensor", 4), *[("all_reduce", "tensor", 2 * side * side)] * 5] * 3,
        }
        assert seen.messages == (expected[mode] if shared else [])


class TestStates:
    def test_a_matrix_keeps_one_moment(self):
        """14 B for each of 6,979,321,856 elements of matrices and 18 for the rest: 116.627 GB; AdamW keeps 144.545."""
        found = {}
        for name in ("muon", "adamw"):
            run = job("llama-3-8b", attention="flash2", optimizer=Optimizer(name), precision=PRESETS["bf16-fp32grad"], runtime=MEGATRON)
            tensors = [run.program.tensors[0][number] for number in run.program.resident[0]]
            found[name] = sum(t.bytes for t in tensors if t.category in ("parameters", "gradients", "optimizer"))
        assert found["adamw"] == 18 * 8_030_261_248
        assert found["muon"] == 14 * 6_979_321_856 + 18 * (8_030_261_248 - 6_979_321_856)
        assert {name: round(size / 1e9, 3) for name, size in found.items()} == {"muon": 116.627, "adamw": 144.545}

    def test_fsdp_shards_them(self):
        """12 + 8 B of a matrix, 12 + 12 of another weight over N ranks: fp32 shards without a copy."""
        run = job("gpt2", data=4, data_settings={"strategy": "fsdp"}, optimizer=MUON, precision=PRESETS["amp-bf16"])
        tensors = [run.program.tensors[0][number] for number in run.program.resident[0]]
        states = sum(t.bytes for t in tensors if t.category == "optimizer")
        matrices = 12 * (4 * 768 * 768 + 8 * 768 * 768)
        assert states == pytest.approx((4 * matrices + 8 * (124_439_808 - matrices)) / 4, abs=200)


class TestOwners:
    @given(st.lists(st.sampled_from([(64, 64), (64, 256), (16, 64), (128, 256)]), min_size=1, max_size=30), st.integers(1, 8))
    def test_longest_first(self, shapes, ranks):
        """Everything is owned once, and no rank has more than 4/3 - 1/(3N) of what the best split gives the fullest (Graham 1969)."""
        owned = longest_first([MatrixTensor((), (Matrix(*shape),)) for shape in shapes], ranks)
        assert sorted((m.rows, m.columns) for own in owned for m in own.matrices) == sorted(shapes)
        total, largest = sum(r * c for r, c in shapes), max(r * c for r, c in shapes)
        fullest = max(own.count for own in owned)
        assert max(total / ranks, largest) <= fullest <= max(largest, (total - largest) / ranks + largest)

    @pytest.mark.parametrize("data", [2, 8])
    def test_buckets_of_whole_matrices(self, data):
        """Llama 3 8B's: closed at max(40e6, 0.9 N x the largest), every part as long as the longest."""
        settings = {"data": data, "data_settings": {"strategy": "zero1"}, "optimizer": PADDED, "runtime": MEGATRON, "attention": "flash2"}
        plan = job("llama-3-8b", precision=PRESETS["bf16-fp32grad"], **settings).plan
        adamw, muon = plan.sharding(plan.chunks[0], "").parts
        assert isinstance(muon, LayerWiseOptimizer)
        assert adamw.training.optimizer.name == "adamw"
        assert sum(w.count for w in muon.trainable) == 6_979_321_856
        assert sum(w.count for w in adamw.trainable) == 8_030_261_248 - 6_979_321_856
        assert all(bucket.count % (64 * data) == 0 for bucket in muon.buckets)
        assert muon.count >= 6_979_321_856
        assert muon.count / 6_979_321_856 <= 1 / PADDING_FLOOR + 0.2
        assert muon.shard * data >= 6_979_321_856
        one = max(data * 0.9 * 28672 * 4096, 40e6)
        assert all(sum(w.count for w in bucket.weights) >= int(one) for bucket in muon.buckets[:-1])

    def test_compact_buckets_are_megatrons(self):
        """Gradients of matrices are all-reduced as they are, 4 B each, and 2 B each gathered; what is AdamW's is reduce-scattered."""
        more = {"optimizer": MUON, "runtime": MEGATRON, "precision": PRESETS["bf16-fp32grad"]}
        run = job("gpt2", data=4, data_settings={"strategy": "zero1"}, **more)
        assert check(run.program) == []
        matrices = 12 * 12 * 768 * 768
        assert run.bytes(0, "data", "all_reduce") == 4 * matrices + 4  # the gradient norm
        others = 124_439_808 - matrices
        assert run.bytes(0, "data", "all_gather") == pytest.approx(2 * 124_439_808, abs=100)
        assert run.bytes(0, "data", "reduce_scatter") == pytest.approx(4 * others, abs=100)

    def test_ping_pong(self):
        """The example of Megatron's comment: ten parameters on four ranks, the smallest first."""
        shapes = [(2 + place, 8) for place in range(10)]
        owned = ping_pong([MatrixTensor((), (Matrix(*shape),)) for shape in reversed(shapes)], 4)
        names = [[shapes.index((m.rows, m.columns)) for m in own.matrices] for own in owned]
        assert names == [[0, 7, 8], [1, 6, 9], [2, 5], [3, 4]]

    def test_experts_are_owned_one_by_one(self):
        layer = MatrixTensor((), (Matrix(64, 32, 8),))
        assert [len(own.matrices) for own in longest_first([layer], 4)] == [2, 2, 2, 2]


class TestMessages:
    def test_sharded_matrices_travel_in_batches(self):
        """Four layers of seven matrices over eight ranks, one shape at a time: 2 m n bytes to whole ones and 2 m n back."""
        run = job(build(load(tree("fsdp"))).model, data=8, data_settings={"strategy": "fsdp"}, optimizer=MUON, attention="flash2")
        assert check(run.program) == []
        sent = Counter(op.collective.bytes for op in run.collectives(0, "data", "all_to_all"))
        square, narrow, wide = 2 * 256 * 256, 2 * 128 * 256, 2 * 512 * 256
        assert sent == {square: 2, narrow: 2, wide: 4}

    def test_experts_stay_where_they_are(self):
        """Tensors of experts are sharded expert by expert: eight ranks have one each, and only the other matrices travel."""
        run = job(build(load(tree("fsdp", model=MIXTURE))).model, data=8, data_settings={"strategy": "fsdp"}, optimizer=MUON)
        sent = Counter(op.collective.bytes for op in run.collectives(0, "data", "all_to_all"))
        assert sent == {2 * 256 * 256: 2, 2 * 128 * 256: 2, 2 * 8 * 256: 2}  # attention, and the routers

    @pytest.mark.parametrize(("data", "experts", "cut"), [(8, 4, False), (8, 2, False), (16, 4, True), (16, 8, True)])
    @pytest.mark.parametrize("profile", ["pytorch-2", "torchtitan"])
    def test_experts_over_ranks(self, data, experts, cut, profile):
        """Eight experts over ep ranks, data/ep of which share a part: they are cut, and travel, where these are more than its experts.

        A rank orthogonalises one expert of each of the six tensors then, and else its equal part of them. torchtitan sends fp32 weights'
        type, microsoft/dion bf16.
        """
        settings = {"data": data, "expert_settings": {"size": experts}, "data_settings": {"strategy": "fsdp"}, "optimizer": SPLIT}
        model = build(load(tree("fsdp", model=MIXTURE))).model
        plan = job(model, runtime={"profile": profile}, precision=PRESETS["amp-bf16"], **settings).plan
        seen = Recorder()
        for part in plan.sharding(plan.chunks[0], "").parts:
            part._orthogonalise(seen)
        element = 4 if profile == "torchtitan" else 2
        assert [m[2] for m in seen.messages if m[1] == "expert-shard"] == [element * 512 * 256] * (12 if cut else 0)
        attention = {256 * 256: 2, 128 * 256: 2, 8 * 256: 2}
        assert Counter(size for _, group, size in seen.messages if group == "shard") == {
            element * n: count for n, count in attention.items()
        }
        rest = newton_schulz_flop(256, 256) + newton_schulz_flop(128, 256) + newton_schulz_flop(8, 256)
        assert seen.flop == 6 * newton_schulz_flop(512, 256) + rest

    def test_hybrid_sharding_is_that_of_a_shard_group(self):
        """Copies of the states orthogonalise what they have: as many messages over two ranks as without copies."""
        plain = job("gpt2", data=2, data_settings={"strategy": "fsdp"}, optimizer=MUON)
        hybrid = job("gpt2", data=4, data_settings={"strategy": "hsdp", "shard_size": 2}, optimizer=MUON)
        sent = [Counter((op.name, op.collective.bytes) for op in run.collectives(0, "data", "all_to_all")) for run in (plain, hybrid)]
        assert sent[0] == sent[1]
        assert sent[0]

    def test_the_next_batch_travels_under_the_iteration(self):
        kinds = [
            op.name for op in job("gpt2", data=2, data_settings={"strategy": "fsdp"}, optimizer=MUON).collectives(0, "data", "all_to_all")
        ]
        assert kinds[:4] == ["all_to_all updates", "all_to_all updates", "all_to_all orthogonal updates", "all_to_all updates"]

    def test_ddp_sends_what_it_sent(self):
        runs = [job("gpt2", data=4, data_settings={"strategy": "ddp"}, optimizer=Optimizer(name)) for name in ("muon", "adamw")]
        first, second = ([(op.name, op.collective) for op in run.collectives(0)] for run in runs)
        assert first == second


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("zero1", {}),
        ("zero1", {"tensor": {"size": 2}, "optimizer": {"name": "muon", "tensor_mode": "distributed", "padded_parts": True}}),
        ("zero1", {"pipeline": {"size": 2}}),
        ("fsdp", {}),
        ("zero1", {"model": MIXTURE, "expert": {"size": 4}}),
        ("zero2", {"software": "deepspeed"}),
        ("hsdp", {"data": {"strategy": "hsdp", "shard_size": 4}}),
        ("fsdp", {"model": MIXTURE, "expert": {"size": 2}}),
    ],
)
def test_folded_is_unfolded(strategy, more):
    folded, whole = (simulate(tree(strategy, **more), unfolded=unfolded) for unfolded in (False, True))
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)


def test_the_optimizer_takes_longer_and_less_with_more_ranks():
    """The same matrices over one and over eight ranks of Megatron's layer-wise optimizer."""
    seconds = {}
    for ranks in (1, 8):
        job_tree = tree("zero1", software="megatron-core", model={"base": "llama-3-8b", "layers": 8})
        job_tree["cluster"]["gpus"] = ranks
        seconds[ranks] = simulate(job_tree).document()["breakdown_s"]["optimizer"]
    assert seconds[8] < seconds[1] / 4


@pytest.mark.parametrize(
    ("job_tree", "message"),
    [
        (tree("zero2", software="megatron-core"), "Megatron-Core's layer-wise optimizer shards states only"),
        (tree("zero3"), "not supported yet: Muon with zero3: DeepSpeed orthogonalises in every reduction"),
        (tree("zero1", software="pytorch-2"), "pytorch-2 shards no states of Muon"),
        (
            tree("zero1", {"name": "muon", "tensor_mode": "duplicated"}, software="deepspeed"),
            "DeepSpeed's Muon knows nothing of tensor ranks",
        ),
        (
            tree("zero1", {"name": "muon", "padded_parts": True}, software="deepspeed"),
            "zero1 of deepspeed does not assign parts",
        ),
        (tree("fsdp", tensor={"size": 2}), r"torchtitan's DistMuon rejects their layout \(_StridedShard\)"),
        (tree("fsdp", {"name": "muon", "padded_parts": True}), "fsdp of pytorch-2 does not assign parts of buckets to ranks"),
        (OLD, "Muon's iterations need bf16 products, which V100 SXM2 32GB does not have"),
        (tree("ddp", {"name": "adamw", "newton_schulz_steps": 6}), "adamw orthogonalises nothing"),
        (tree("ddp", {"name": "muon", "padded_parts": True}), "does not assign parts of buckets to ranks"),
        (tree("ddp", {"name": "lion", "tensor_mode": "duplicated"}), "lion orthogonalises nothing"),
        (
            {**tree("zero1"), "parallel": {"data": {"strategy": "zero1", "optimizer_instances": 2}}},
            "the layer-wise optimizer does not support instances",
        ),
    ],
)
def test_what_does_not_go_is_said(job_tree, message):
    with pytest.raises(ParsimError, match=message):
        simulate(job_tree)


def test_a_search_refuses_it():
    with pytest.raises(ParsimError, match="a search over strategies with Muon"):
        CostCache().costs(build(load(tree("ddp"))))


def gram_newton_schulz(x, steps, times):
    """X goes to a X + b X X' X + c (X X')^2 X in every step, by way of R = X X' and the product Q of all factors."""
    a, b, c = 3.4445, -4.7750, 2.0315
    r, q = times(x, x.T), None
    for step in range(steps):
        if step == 2:
            x = times(q, x)
            r, q = times(x, x.T), None
        z = b * r + c * times(r, r)
        q = z + a * np.eye(len(z)) if q is None else a * q + times(z, q)
        if step < steps - 1 and step != 1:
            zr = a * r + times(z, r)
            r = a * zr + times(z, zr)
    return times(q, x)


class TestDeepSpeed:
    @pytest.mark.parametrize("steps", [3, 5, 6])
    def test_an_iteration_on_gram_matrices(self, steps):
        """It ends where the plain one ends, and its products are those that are counted."""
        total = 0

        def times(a, b):
            nonlocal total
            total += 2 * a.shape[0] * a.shape[1] * b.shape[1]
            return a @ b

        x = np.random.default_rng(0).normal(size=(6, 20))
        x /= np.linalg.norm(x)
        found, plain = gram_newton_schulz(x, steps, times), x
        for _ in range(steps):
            gram = plain @ plain.T
            plain = 3.4445 * plain + (-4.7750 * gram + 2.0315 * gram @ gram) @ plain
        assert np.allclose(found, plain, rtol=1e-9, atol=1e-9)
        assert total == gram_flop(20, 6, steps) == sum(k.flop for k in gram_iteration(6, 20, steps))

    @given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 8))
    def test_parts(self, sizes, ranks):
        """A rank has the tensors of which it has an element."""
        tensors = [MatrixTensor((), (Matrix(size, 1),)) for size in sizes]
        share = -(-sum(sizes) // ranks)
        owner = [[*range(sum(sizes[:place]), sum(sizes[: place + 1]))] for place in range(len(sizes))]
        expected = [[tensors[p] for p, own in enumerate(owner) if any(r * share <= e < (r + 1) * share for e in own)] for r in range(ranks)]
        assert parts(tensors, ranks) == expected

    @pytest.mark.parametrize("stage", [1, 2])
    def test_states_and_messages(self, stage):
        """GPT-2 over four ranks: three of 48 matrices lie on a border. fp32 masters, momenta of whole matrices in bf16, AdamW's rest."""
        more = {"optimizer": MUON, "runtime": {"profile": "deepspeed"}, "precision": PRESETS["bf16"], "attention": "flash2"}
        run = job("gpt2", data=4, data_settings={"strategy": f"zero{stage}"}, **more)
        assert check(run.program) == []
        sizes = [count * 768 * 768 for _ in range(12) for count in (3, 1, 4, 4)]
        share, ends = sum(sizes) // 4, [sum(sizes[: place + 1]) for place in range(48)]
        borders = [size for size, end in zip(sizes, ends, strict=True) if any(end - size < r * share < end for r in (1, 2, 3))]
        assert sum(sizes) % 4 == 0
        assert run.bytes(0, "data", "all_reduce") - 4 == 2 * sum(borders)  # beside the gradient norm
        assert run.bytes(0, "data", "reduce_scatter") == pytest.approx(2 * (124_439_808 - sum(borders)), abs=100)
        assert run.bytes(0, "data", "all_gather") == pytest.approx(2 * 124_439_808, abs=100)
        tensors = [run.program.tensors[0][number] for number in run.program.resident[0]]
        held = max(
            sum(size for size, end in zip(sizes, ends, strict=True) if end > r * share and end - size < (r + 1) * share) for r in range(4)
        )
        rest = -(-(124_439_808 - sum(sizes)) // 4)
        assert sum(t.bytes for t in tensors if t.category == "optimizer") == 4 * share + 2 * held + 12 * rest

"""Expert parallelism: who meets whom, what travels, what a rank holds, by Megatron-LM's arithmetic."""

import copy
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import load, simulate, sweep
from parsim.errors import ParsimError
from parsim.model.parameter_counts import parameter_count
from parsim.parallel.expert_load import capacity
from parsim.parallel.experts import expert_mesh
from parsim.parallel.groups import EXPERT, EXPERT_DATA, EXPERT_TENSOR, Groups, Mesh
from parsim.parallel.settings import ContextParallel, DataParallel, ExpertParallel, Parallelism, TensorParallel
from parsim.scenario.build import build
from parsim.study.fit_question import FitQuestion, scenario_of
from parsim.study.size.size import size as answer

ORDER = ("tensor", "context", "data", "pipeline")
SMALL = {
    "model": {"base": "mixtral-8x7b", "layers": 2, "hidden": 256, "heads": 8, "kv_heads": 4, "mlp": 512, "vocabulary": 1024},
    "cluster": {"topology": "hgx-h100", "nodes": 2},
    "training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 2, "precision": "bf16-fp32grad"},
    "software": {"profile": "megatron-core", "effects": "none"},
    "parallel": {"data": {"strategy": "zero1"}},
}


def scenario(cluster=None, **parallel):
    tree = copy.deepcopy(SMALL)
    tree["cluster"].update(cluster or {})
    tree["parallel"].update(parallel)
    return tree


def groups(sizes, ep, etp):
    mesh = Mesh.of(ORDER, dict(zip(ORDER, sizes, strict=True)))
    t, c, n, _ = sizes
    split = Parallelism(tensor=TensorParallel(t), context=ContextParallel(c), data=DataParallel(n), expert=ExpertParallel(ep, etp))
    return Groups(mesh, mesh.replicas, expert_mesh(split))


def all_groups(found, name):
    return sorted({found.members(name, rank) for rank in range(found.mesh.ranks)})


class TestGroups:
    def test_sixteen_ranks(self):
        """t = 2, p = 2, ep = 4, etp = 1: two copies of each expert, on ranks that are four apart."""
        found = groups((2, 1, 4, 2), 4, 1)
        assert found.expert == (4, 1, 2)
        assert all_groups(found, EXPERT) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]
        assert all_groups(found, EXPERT_DATA) == [(0, 4), (1, 5), (2, 6), (3, 7), (8, 12), (9, 13), (10, 14), (11, 15)]
        assert all_groups(found, EXPERT_TENSOR) == [(rank,) for rank in range(16)]
        assert all_groups(found, "data") == [(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15)]

    def test_experts_folded_over_tensor_context_and_data(self):
        """256 ranks, t = 4, c = 2, N = 8, p = 4: with ep = 64 and etp = 1 all ranks of a stage hold all experts once."""
        found = groups((4, 2, 8, 4), 64, 1)
        assert found.expert == (64, 1, 1)
        assert all_groups(found, EXPERT)[0] == tuple(range(64))
        assert found.members("context", 0) == (0, 4)
        assert found.members("data", 0) == tuple(range(0, 64, 4))
        assert all_groups(found, EXPERT_DATA) == [(rank,) for rank in range(256)]

    def test_width_over_the_ranks_of_tensor(self):
        found = groups((2, 1, 8, 1), 4, 0)
        assert all_groups(found, EXPERT_TENSOR) == all_groups(found, "tensor")
        assert all_groups(found, EXPERT) == [(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15)]
        assert all_groups(found, EXPERT_DATA)[0] == (0, 8)

    @given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4, 6]), st.sampled_from([1, 2, 3]), st.data())
    def test_every_kind_of_group_covers_all_ranks_once(self, t, c, n, p, data):
        stage = t * c * n
        etp = data.draw(st.sampled_from([size for size in range(1, stage + 1) if stage % size == 0]))
        ep = data.draw(st.sampled_from([size for size in range(1, stage + 1) if stage % (size * etp) == 0]))
        found = groups((t, c, n, p), ep, etp)
        for name, size in ((EXPERT, ep), (EXPERT_TENSOR, etp), (EXPERT_DATA, stage // ep // etp)):
            members = all_groups(found, name)
            assert sorted(itertools.chain.from_iterable(members)) == list(range(stage * p))
            assert {len(group) for group in members} == {size}
            assert all(len({found.mesh.coordinate(rank, "pipeline") for rank in group}) == 1 for group in members)


def state_bytes(report):
    """Weights, gradients and optimizer states that stay on a rank [B]."""
    (held,) = [dict(one) for one in {tuple(sorted(device.resident_bytes.items())) for device in report.measured.memory.devices}]
    return held["parameters"] + held["gradients"] + held["optimizer"]


ROUNDED = 4 * 2**21
"""what PyTorch's allocator adds to the buffers of gradients and the shards of states: up to 2 MiB each"""


DEEPSEEK = (17_117_633_536, 653_908_770_816)
"""its parameters outside experts, and in them"""


class TestStates:
    """6 B of weight and gradient, and 12 B of optimizer states over the ranks with the same weights: N c for others, edp for experts."""

    @pytest.mark.parametrize(("model", "gpus", "ep", "expected"), [("qwen3-30b-a3b", 8, 8, 71.5144), ("mixtral-8x7b", 64, 8, 48.6276)])
    def test_published_models(self, model, gpus, ep, expected):
        tree = scenario({"nodes": gpus // 8}, expert={"size": ep})
        tree["model"] = model
        assert state_bytes(simulate(tree)) / 2**30 == pytest.approx(expected, abs=ROUNDED / 2**30)

    @pytest.mark.parametrize(
        ("t", "ep", "etp", "moments"), [*itertools.product((1, 2), (1, 2, 4), (1, 2), (4,)), (1, 4, 1, 2), (2, 2, 2, 2)]
    )
    def test_any_grid(self, t, ep, etp, moments):
        """Master and two moments: 12 B, with moments in bf16 8 B."""
        tree = scenario(tensor={"size": t, "sequence_parallel": t > 1}, expert={"size": ep, "tensor": etp})
        tree["model"] |= {"hidden": 1024, "mlp": 4096}
        if moments != 4:
            tree["training"]["precision"] = {"preset": "bf16-fp32grad", "optimizer": "bf16"}
        built = build(load(tree))
        experts = sum(p.count for block in built.model.blocks for p in block.parameters() if p.expert)
        norms = sum(p.count for block in built.model.blocks for p in block.parameters() if p.split is None and not p.expert)
        others = parameter_count(built.model) - experts - norms
        replicas, copies, states = 16 // t, 16 // (ep * etp), 4 + 2 * moments
        local, own = others / t + norms, experts / (ep * etp)
        report = simulate(tree)
        assert state_bytes(report) == pytest.approx(local * (6 + states / replicas) + own * (6 + states / copies), abs=ROUNDED)
        sent = copies_of(built) * 1024 * 2  # token copies of a rank, in bf16
        exchanged = {(row.kind, row.bytes) for row in report.collectives if row.axis == "expert"}
        expected = {("all_to_all", sent), ("all_to_all", 4 * copies_of(built))} if ep > 1 else set()
        if etp > 1 and (ep > 1 or etp != t):
            expected |= {("all_gather", etp * sent), ("reduce_scatter", etp * sent)}
        assert exchanged == expected

    @pytest.mark.parametrize(
        ("others", "experts", "ranks", "ep", "stages", "moments", "expected"),
        [
            # bytes by hand, evenly split over stages; DeepSeek-V3's 17,117,633,536 parameters besides 653,908,770,816 of experts
            (1e9, 8e9, 16, 8, 1, 4, 18_750_000_000),
            (*DEEPSEEK, 256, 64, 4, 4, 67.4807 * 2**30),
            (*DEEPSEEK, 256, 8, 8, 4, 98.3444 * 2**30),
            (*DEEPSEEK, 256, 32, 2, 4, 134.2140 * 2**30),
            (*DEEPSEEK, 256, 8, 16, 4, 63.8193 * 2**30),
            (*DEEPSEEK, 256, 64, 4, 2, 57.7159 * 2**30),
        ],
    )
    def test_by_hand(self, others, experts, ranks, ep, stages, moments, expected):
        """What ranks hold whose experts have edp = ranks / (ep p) copies, under the laws above."""
        stage, states = ranks // stages, 4 + 2 * moments
        held = others / stages * (6 + states / stage) + experts / ep / stages * (6 + states / (stage // ep))
        assert held == pytest.approx(expected, abs=1e-4 * 2**30)

    def test_parameters_of_deepseek_v3(self):
        model = build(load({**scenario(), "model": "deepseek-v3"})).model
        experts = sum(p.count for block in model.blocks for p in block.parameters() if p.expert)
        assert (parameter_count(model) - experts, experts) == DEEPSEEK


def copies_of(built):
    """Token copies of a rank in a micro-batch."""
    training, tensor = built.training, built.parallelism.tensor.size
    return training.micro_batch * training.sequence_length // tensor * int(built.model.facts["top_k"])


def test_capacity_and_what_leaves_a_rank():
    assert (capacity(4096, 8, 256, 1.0), capacity(4096, 2, 8, 1.25)) == (128, 1280)
    copies = 4096 * 8 * 7168 * 2
    assert [copies * (ep - 1) // ep for ep in (8, 16, 32, 64)] == [411_041_792, 440_401_920, 455_081_984, 462_422_016]
    rows = {}
    for ep in (8, 64):
        tree = scenario({"nodes": ep // 8}, expert={"size": ep})
        tree["model"] = {"base": "deepseek-v3", "layers": 1, "experts": {"dense_layers": 0}}
        tree["training"]["sequence_length"] = 4096
        links = simulate(tree).measured.trace.program
        rows[ep] = {op.collective.bytes for op in links.ops if op.collective is not None and op.name == "all_to_all mixture.dispatch"}
    assert rows == {8: {copies}, 64: {copies}}


def peak(report):
    return max(device.allocated_bytes for device in report.measured.memory.devices)


def test_buckets_of_experts_are_as_large_as_the_others():
    """Megatron-LM: max(40e6, 1e6 x replicas) elements, however few copies of an expert there are."""
    tree = scenario({"nodes": 8}, expert={"size": 8})
    tree["model"] = {"base": "mixtral-8x7b", "layers": 2}
    of_experts = {row.bytes for row in simulate(tree).collectives if row.kind == "reduce_scatter" and row.group_size == 8}
    assert of_experts == {4 * (117_440_512 + 58_720_256)}  # 58.7 million elements do not fill 64 million; 40 million they would


def exchanged(report):
    """(collective, ranks, bytes) -> how often, of the exchanges of one step."""
    return {(row.kind, row.group_size, row.bytes): row.count for row in report.collectives if row.axis == "expert"}


class TestMessages:
    """4,096 tokens of hidden size 4,096 on two tensor ranks, two experts per token, 16 bit."""

    def of(self, ep, etp, layers=2):
        tree = scenario(tensor={"size": 2, "sequence_parallel": True}, expert={"size": ep, "tensor": etp})
        tree["model"] = {"base": "mixtral-8x7b", "layers": layers}
        tree["training"] |= {"sequence_length": 4096, "gradient_accumulation": 1}
        return exchanged(simulate(tree))

    def test_whole_experts(self):
        """Each rank sends its 2,048 tokens twice: 32 MiB a way, four ways a layer; the router's weights go along on two of them."""
        assert self.of(8, 1) == {("all_to_all", 8, 2**25): 4 * 2, ("all_to_all", 8, 4 * 2 * 2048): 2 * 2}

    def test_experts_over_two_ranks(self):
        """Half as many ranks to send to, and every pair that shares an expert gathers the other's tokens: twice the bytes in all."""
        assert self.of(4, 2) == {
            ("all_to_all", 4, 2**25): 4 * 2,
            ("all_to_all", 4, 4 * 2 * 2048): 2 * 2,
            ("all_gather", 2, 2**26): 2 * 2,
            ("reduce_scatter", 2, 2**26): 2 * 2,
        }
        leaves = [2**25 * 7 // 8, 2**25 * 3 // 4 + 2**26 // 2]
        assert leaves == [29_360_128, 25_165_824 + 33_554_432]
        assert leaves[1] == 2 * leaves[0]

    def test_recomputed_layers_exchange_again(self):
        tree = scenario(expert={"size": 8})
        tree["training"] |= {"recompute": "full", "gradient_accumulation": 1}
        tokens = ("all_to_all", 8, 128 * 2 * 256 * 2)
        assert exchanged(simulate(tree))[tokens] == 6 * 2

    def test_the_busiest_rank_takes_longest(self):
        graphs = {"software": {"profile": "megatron-core", "host": {"graphs": True}}}  # no rank waits for its host
        even, uneven = (simulate(scenario(expert={"size": 8, "imbalance": load}) | graphs) for load in (1.0, 1.5))
        assert set(exchanged(uneven)) == {(kind, ranks, round(1.5 * size)) for kind, ranks, size in exchanged(even)}
        assert uneven.breakdown["expert_comm"] > even.breakdown["expert_comm"]
        assert uneven.step_time > even.step_time
        assert peak(uneven) > peak(even)

    def test_twice_the_tokens_are_twice_the_bytes(self):
        tree = scenario(expert={"size": 4, "tensor": 2})
        once = exchanged(simulate(tree))
        tree["training"]["micro_batch"] = 2
        assert exchanged(simulate(tree)) == {(kind, ranks, 2 * size): count for (kind, ranks, size), count in once.items()}

    @pytest.mark.parametrize(("placement", "crosses"), [("packed", False), ("scattered", True)])
    def test_slower_nics_slow_exchanges_that_cross_nodes_only(self, placement, crosses):
        """Eight expert ranks are the GPUs of a node, or half of those of each."""
        fast = scenario({"placement": placement}, expert={"size": 8}, data={"strategy": "ddp", "overlap_reduce": False})
        fast["training"]["sequence_length"] = 2048
        slow = copy.deepcopy(fast)
        slow["cluster"]["set"] = {"links": {"ib-ndr": {"line_rate": "200 Gb/s"}}}
        before, after = (simulate(tree).breakdown["expert_comm"] for tree in (fast, slow))
        assert before > 0
        assert after > 1.2 * before if crosses else after == pytest.approx(before, rel=1e-9)


class TestStudies:
    def test_a_sweep_over_expert_sizes_finds_what_simulations_find(self):
        found = sweep(scenario(), "parallel.expert.size=1,2,4,8")
        steps = {entry.place.settings["parallel.expert.size"]: entry.scores[0] for entry in found.entries}
        expected = {size: simulate(scenario(expert={"size": size})).step_time for size in (1, 2, 4, 8)}
        assert steps == expected

    def test_a_search_over_strategies_spreads_experts(self):
        """Whole experts of Mixtral do not fit on 16 GPUs without recomputation, spread ones do."""
        found = answer(
            "mixtral-8x7b", tokens="1B", hours=100, on="hgx-h100", gpus=16, sequence_length=4096, global_batch=16, micro_batch=1,
            recompute="none", workers=1,
        )  # fmt: skip
        (row,) = found.ranked
        assert row.strategy.expert > 1
        assert simulate(row.tree).step_time == pytest.approx(row.simulated_step_time)
        assert f"ep{row.strategy.expert}" in str(found)

    def test_a_question_of_memory_spreads_them_too(self):
        tree = scenario_of(FitQuestion("mixtral-8x7b", "hgx-h100", tensor=2, expert=8))
        assert tree["parallel"] == {
            "tensor": {"size": 2, "sequence_parallel": True}, "expert": {"size": 8}, "data": {"strategy": "fsdp"},
        }  # fmt: skip
        wide = scenario_of(FitQuestion("mixtral-8x7b", "hgx-h100", tensor=2, zero=1, expert=4, expert_tensor=2))
        assert wide["parallel"]["expert"] == {"size": 4, "tensor": 2}
        assert wide["parallel"]["data"] == {"strategy": "zero1"}


class TestCapacity:
    """Two experts of eight per token: without a capacity 256 rows leave a rank with 128 tokens."""

    def rows(self, **expert):
        tree = scenario(expert={"size": 8, **expert})
        return {row.bytes // 512 for row in simulate(tree).collectives if row.axis == "expert" and row.bytes > 4 * 2 * 256}

    def test_evenly_loaded_experts_keep_all_tokens(self):
        assert self.rows() == self.rows(capacity_factor=1.0) == self.rows(capacity_factor=1.5) == {256}

    def test_what_is_beyond_it_is_dropped(self):
        assert self.rows(imbalance=1.5) == self.rows(imbalance=1.5, capacity_factor=2.0) == {384}
        assert self.rows(imbalance=1.5, capacity_factor=1.25) == {320}
        assert self.rows(capacity_factor=0.5) == {128}

    def test_padded_experts_always_get_it(self):
        """Whole rows per expert: of 128 tokens each expert gets ceil(128 x 2 / 8 x 1.01) = 33 instead of 32."""
        assert self.rows(capacity_factor=1.25, pad_to_capacity=True) == {320}
        assert self.rows(capacity_factor=1.25, pad_to_capacity=True, imbalance=1.1) == {320}
        assert self.rows(capacity_factor=1.01, pad_to_capacity=True) == {33 * 8}

    def test_without_exchange_too(self):
        full, half = (simulate(scenario(expert={"capacity_factor": factor})) for factor in (1.0, 0.5))
        assert half.breakdown["compute"] < full.breakdown["compute"]


@pytest.mark.parametrize(
    ("profile", "ep", "width"),
    [("megatron-core", 4, 2), ("nemo", 4, 2), ("torchtitan", 4, 1), ("deepspeed", 4, 1), ("pytorch-2", 4, 1), ("torchtitan", 1, 2)],
)
def test_the_stack_says_who_shares_the_width_of_an_expert(profile, ep, width):
    """Megatron-LM's tensor ranks, unless told otherwise; elsewhere nobody. Experts that every rank holds are split like other layers."""
    tree = scenario(tensor={"size": 2, "sequence_parallel": True}, expert={"size": ep})
    tree["software"] = {"profile": profile}
    built = build(load(tree))
    assert built.parallelism.expert_width == width
    assert built.parallelism.exchanges_tokens == (ep > 1)
    said = {item.name: item.value for item in built.assumptions}
    assert said.get("expert_tensor") == (str(width) if ep > 1 else None)


class TestSteps:
    def test_one_rank_per_expert_group_is_no_expert_parallelism(self):
        tensor = {"size": 2, "sequence_parallel": True}
        plain, one = simulate(scenario(tensor=tensor)), simulate(scenario(tensor=tensor, expert={"size": 1, "tensor": 2}))
        assert one.step_time == plain.step_time
        assert one.breakdown == plain.breakdown
        assert [device.at_peak for device in one.measured.memory.devices] == [device.at_peak for device in plain.measured.memory.devices]

    @pytest.mark.parametrize(
        ("t", "p", "c", "ep", "etp", "strategy"),
        [
            (1, 1, 1, 8, 1, "ddp"), (1, 1, 1, 4, 2, "zero1"), (2, 1, 1, 8, 1, "zero2"), (2, 2, 1, 4, 1, "zero1"),
            (2, 1, 2, 4, 2, "ddp"), (1, 2, 2, 8, 1, "zero1"), (2, 1, 1, 4, 0, "ddp"),
        ],
    )  # fmt: skip
    def test_folded_is_unfolded(self, t, p, c, ep, etp, strategy):
        tree = scenario(
            tensor={"size": t, "sequence_parallel": t > 1}, pipeline={"size": p}, context={"size": c},
            expert={"size": ep, "tensor": etp or "auto"}, data={"strategy": strategy},
        )  # fmt: skip
        folded, whole = simulate(tree), simulate(tree, unfolded=True)
        assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
        assert folded.breakdown == pytest.approx(whole.breakdown, rel=1e-6, abs=1e-12)
        assert peak(folded) == peak(whole)

    def test_a_slow_rank_delays_the_ranks_that_it_exchanges_with(self):
        tree = scenario(expert={"size": 8})
        tree["variability"] = {"slow": [{"rank": 3, "speed": 0.5}]}
        assert simulate(tree).step_time > 1.05 * simulate(scenario(expert={"size": 8})).step_time


@pytest.mark.parametrize(
    ("change", "text", "path"),
    [
        ({"expert": {"size": 16}}, "8 experts / expert size 16 = 0.5 is not whole; use 1 or 2 or 4 or 8", "parallel.expert.size"),
        ({"expert": {"size": 3}}, "(expert 3 x expert tensor 1) = 5.333 is not whole; use 1 or 2 or 4 or 8", "parallel.expert.size"),
        ({"expert": {"size": 2, "tensor": 3}}, "= 2.667 is not whole", "parallel.expert.size"),
        ({"expert": {"size": 8, "tensor": 3}}, "expert width 512 / expert tensor size 3", "parallel.expert.tensor"),
        ({"expert": {"size": 8}, "data": {"strategy": "zero3"}}, "MoE not supported with Stage 3", "parallel.data.strategy"),
        ({"expert": {"size": 4}, "tensor": {"size": 2}}, "sequence parallelism", "parallel.tensor.sequence_parallel"),
        ({"expert": {"size": 4}, "tensor": {"size": 2, "sequence_parallel": True}, "order": ["data", "tensor", "context", "pipeline"]},
         "put tensor first", "parallel.order"),
        ({"expert": {"size": 8, "pad_to_capacity": True}}, "but none is given", "parallel.expert.pad_to_capacity"),
        ({"expert": {"imbalance": 1.5}}, "every rank holds all experts", "parallel.expert.imbalance"),
        ({"expert": {"routing": "round-robin"}}, "tokens visit no other ranks", "parallel.expert.routing"),
        ({"expert": {"size": 8, "routing": "round-robin"}}, "use dispatcher deepep or hybridep", "parallel.expert.routing"),
        ({"expert": {"size": 8, "dispatcher": "deepep", "routing": "round-robin", "imbalance": 1.5}},
         "get as many tokens each; leave parallel.expert.imbalance out", "parallel.expert.routing"),
    ],
)  # fmt: skip
def test_what_does_not_go(change, text, path):
    with pytest.raises(ParsimError) as caught:
        simulate(scenario(**change))
    found = [one for one in caught.value.findings if one.path == path]
    assert found
    assert text in f"{found[0].message}; {found[0].suggestion}"


def test_a_number_of_experts_has_a_suggestion_where_the_width_is_wrong_too():
    with pytest.raises(ParsimError) as caught:
        simulate(scenario(expert={"size": 6, "tensor": 3}))
    assert "8 experts / expert size 6 = 1.333 is not whole; use 1 or 2 or 4 or 8" in [
        f"{one.message}; {one.suggestion}" for one in caught.value.findings
    ]


def test_a_model_without_experts_cannot_spread_them():
    tree = scenario(expert={"size": 2})
    tree["model"] = "gpt2"
    with pytest.raises(ParsimError, match="has no experts"):
        simulate(tree)

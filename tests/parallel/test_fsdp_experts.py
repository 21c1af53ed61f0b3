"""FSDP with spread experts, as torchtitan wraps them: whose shares, which messages in which order, what a rank holds."""

import copy
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.kernel import Memory
from parsim.model.parameter_counts import parameter_count
from parsim.parallel.experts import expert_mesh
from parsim.parallel.groups import EXPERT_REPLICA, EXPERT_SHARD, Groups, Mesh
from parsim.parallel.settings import ContextParallel, DataParallel, ExpertParallel, Parallelism, TensorParallel
from parsim.program.check import check
from parsim.program.stage_passes import StagePasses
from parsim.run import execute
from parsim.scenario.build import build
from parsim.scenario.built import clock_of, plan_of

SMALL = {
    "model": {"base": "mixtral-8x7b", "layers": 3, "hidden": 256, "heads": 8, "kv_heads": 4, "mlp": 512, "vocabulary": 1024},
    "cluster": {"topology": "hgx-h100", "nodes": 2},
    "training": {"sequence_length": 128, "micro_batch": 1, "gradient_accumulation": 1},
    "software": {"profile": "torchtitan"},
}
EXPERTS = 3 * 256 * 512 * 8
"""parameters of the experts of a layer"""


def scenario(ep, *, t=1, etp=1, strategy="fsdp", shard=0, training=None, model=None, **parallel):
    tree = copy.deepcopy(SMALL)
    data = {"strategy": strategy} | ({"shard_size": shard} if shard else {})
    tree["parallel"] = {"tensor": {"size": t, "sequence_parallel": t > 1}, "expert": {"size": ep, "tensor": etp}, "data": data} | parallel
    tree["training"] |= training or {}
    tree["model"] |= model or {}
    return tree


def groups(t, c, n, shard, ep, etp=1):
    split = Parallelism(
        tensor=TensorParallel(t), context=ContextParallel(c), data=DataParallel(n, shard_size=shard), expert=ExpertParallel(ep, etp)
    )
    return Groups(Mesh.of(split.order, split.sizes), shard or n * c, expert_mesh(split))


class TestGroups:
    """World 16, dp_shard 8, tp 2, ep 4: efsdp is 8 x 2 / 4 = 4; with dp_replicate 2 and dp_shard 4 it is 2."""

    def test_one_shard_group(self):
        found = groups(2, 1, 8, 0, 4)
        assert [found.members(EXPERT_SHARD, rank) for rank in (0, 5, 15)] == [(0, 4, 8, 12), (1, 5, 9, 13), (3, 7, 11, 15)]
        assert found.members(EXPERT_REPLICA, 5) == (5,)
        assert found.members("shard", 0) == (0, 2, 4, 6, 8, 10, 12, 14)

    def test_two(self):
        found = groups(2, 1, 8, 4, 4)
        assert [found.members(EXPERT_SHARD, rank) for rank in (0, 5, 15)] == [(0, 4), (1, 5), (11, 15)]
        assert [found.members(EXPERT_REPLICA, rank) for rank in (0, 5, 15)] == [(0, 8), (5, 13), (7, 15)]

    @given(st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4, 6]), st.data())
    def test_copies_lie_in_the_shard_groups_of_everything_else(self, t, c, n, data):
        shard = data.draw(st.sampled_from([size for size in range(1, n * c + 1) if n * c % size == 0]))
        ep = data.draw(st.sampled_from([size for size in range(1, shard * t + 1) if shard * t % size == 0]))
        found = groups(t, c, n, shard, ep)
        for rank in range(t * c * n):
            own = found.members(EXPERT_SHARD, rank)
            assert len(own) == shard * t // ep
            assert len(found.members(EXPERT_REPLICA, rank)) == n * c // shard
            holders = {other for tensor in found.members("tensor", rank) for other in found.members("shard", tensor)}
            assert set(own) <= holders


def resident(report):
    (held,) = [dict(one) for one in {tuple(sorted(device.resident_bytes.items())) for device in report.measured.memory.devices}]
    return held["parameters"] + held["gradients"] + held["optimizer"]


@pytest.mark.parametrize(
    ("t", "ep", "etp", "shard"), [(2, 4, 1, 0), (2, 4, 1, 4), (1, 8, 1, 8), (1, 2, 1, 0), (2, 2, 2, 0), (2, 8, 1, 4), (1, 4, 2, 8)]
)
def test_states_of_a_rank(t, ep, etp, shard):
    """fp32 weights and Adam are 12 B: over the shard group, or over those of its ranks x t with the same experts."""
    tree = scenario(ep, t=t, etp=etp, strategy="hsdp" if shard else "fsdp", shard=shard)
    model = build(load(tree)).model
    experts = sum(p.count for block in model.blocks for p in block.parameters() if p.expert)
    norms = sum(p.count for block in model.blocks for p in block.parameters() if p.split is None and not p.expert)
    others, ranks = parameter_count(model) - experts, shard or 16 // t
    assert experts == 3 * EXPERTS
    copies = ranks * t // (ep * etp)
    expected = 12 * (((others - norms) / t + norms) / ranks + experts / (ep * etp) / copies)
    assert resident(simulate(tree)) == pytest.approx(expected, rel=2e-3)  # flat shares are rounded up to whole elements and 512 B


def moved(report):
    """(collective, ranks, bytes) -> how often, of weights and gradients in one step; experts' only."""
    rows = {(row.kind, row.group_size, row.bytes): row.count for row in report.collectives if row.axis == "data"}
    return {key: count for key, count in rows.items() if not key[2] % (EXPERTS // 16)}


class TestMessages:
    def test_sixteen_ranks(self):
        """ep 4 on dp_shard 8 x tp 2: P_e / 4 in bf16 is gathered by 4 ranks twice a layer, in fp32 reduced once."""
        quarter = EXPERTS // 4
        assert moved(simulate(scenario(4, t=2))) == {("all_gather", 4, 2 * quarter): 2 * 3, ("reduce_scatter", 4, 4 * quarter): 3}

    def test_replicas_sum_their_shares(self):
        quarter = EXPERTS // 4
        assert moved(simulate(scenario(4, t=2, strategy="hsdp", shard=4))) == {
            ("all_gather", 2, 2 * quarter): 2 * 3,
            ("reduce_scatter", 2, 4 * quarter): 3,
            ("all_reduce", 2, 4 * quarter // 2): 3,
        }

    def test_who_has_experts_alone_gathers_nothing(self):
        assert moved(simulate(scenario(8, strategy="hsdp", shard=8))) == {("all_reduce", 2, 4 * EXPERTS // 8): 3}

    @pytest.mark.parametrize("t", [1, 2])
    def test_more_expert_ranks_receive_less(self, t):
        """2 P_e / ep x (efsdp - 1) / efsdp for each gather."""
        received = []
        for ep in (2, 4, 8):
            ((_, ranks, size),) = [key for key in moved(simulate(scenario(ep, t=t))) if key[0] == "all_gather"]
            assert ranks == 16 // ep
            received.append(size * (ranks - 1) // ranks)
            assert received[-1] == 2 * EXPERTS // ep * (16 // ep - 1) // (16 // ep)
        assert received == sorted(received, reverse=True)

    def test_gradients_are_kept_whole_for_one_reduction(self):
        every, once = (moved(simulate(scenario(4, training={"gradient_accumulation": 3}, **more))) for more in ({}, NO_SYNC))
        size = ("reduce_scatter", 4, 4 * EXPERTS // 4)
        assert (every[size], once[size]) == (9, 3)


NO_SYNC = {"data": {"strategy": "fsdp", "accumulate": "no_sync"}}


def passes(tree):
    built = build(load(tree))
    clock = clock_of(built)
    return StagePasses(plan_of(built, clock), 0, "", clock)


def queue(items):
    """Names of what weights and gradients wait in, in its order."""
    names = [item.name.replace("layer ", "") for item in items if item.lanes[0] == "data"]
    return [name.replace("all_gather ", "").replace("reduce_scatter ", "").replace(" weights", "") for name in names]


class TestOrder:
    """torchtitan: a layer prefetches the next one and its experts; nobody prefetches the experts of the first."""

    def test_forward(self):
        items = passes(scenario(4)).template("F", 0, True, True)
        assert queue(items) == ["root", "0", "1", "1 experts", "0 experts", "2", "2 experts"]

    def test_backward(self):
        made = passes(scenario(4))
        made.template("F", 0, True, True)
        items = made.template("B", 0, True, True)
        assert queue(items) == [
            "2", "1", "1 experts", "2 experts", "2 experts grads",
            "2 grads", "0", "0 experts", "1 experts grads", "1 grads", "0 experts grads", "0 grads", "root grads",
        ]  # fmt: skip

    def test_experts_are_reduced_beside_the_rest_of_their_layer(self):
        """The reduction is issued between the experts' products and attention's."""
        made = passes(scenario(4))
        made.template("F", 0, True, True)
        items = made.template("B", 0, True, True)
        places = {item.name: place for place, item in enumerate(items) if item.collective is not None}
        begun, ended = places["reduce_scatter layer 2 experts grads"], places["reduce_scatter layer 2 grads"]
        between = [item for item in items[begun:ended] if item.lanes[0] == "compute" and item.name == "B0 layer 2"]
        assert sum(item.flop for item in between) > 0
        assert all(begun not in item.needs for item in between[:-1])


class Recorder:
    """An emitter that keeps kernels and what is allocated."""

    def __init__(self):
        self.bytes, self.sizes, self.allocated = [], {}, []

    def tensor(self, name, size, category, **_):
        self.sizes[name] = size
        return name

    def compute(self, name, kind, kernels, allocates=(), frees=()):
        self.bytes += [kernel.bytes for kernel in kernels if isinstance(kernel, Memory)]
        self.allocated += list(allocates)


def test_copies_of_experts_that_nobody_else_has():
    """fp32 shares are cast to bf16 (4 + 2 B read and written) and copied to where products read them (2 + 2 B)."""
    made = passes(scenario(8, strategy="hsdp", shard=8))
    experts = made.sharding[0].parts[1]
    unit, at = experts.units[0], Recorder()
    experts.use(unit, at, backward=False)
    count = EXPERTS // 8
    assert at.bytes == [6 * count, 4 * count]
    assert [at.sizes[name] for name in at.allocated] == [2 * count]
    experts.use(unit, at, backward=False)
    assert len(at.bytes) == 2  # they are there already


@pytest.mark.parametrize(
    ("t", "ep", "more"),
    [
        (1, 8, {}), (2, 4, {}), (2, 4, {"strategy": "hsdp", "shard": 4}), (1, 8, {"strategy": "hsdp", "shard": 8}),
        (1, 4, {"pipeline": {"size": 2}, "training": {"gradient_accumulation": 3}}), (1, 4, {"context": {"size": 2}}),
        (1, 4, {"training": {"offload": {"parameters": "cpu", "gradients": "cpu", "optimizer": "cpu"}}}),
        (2, 4, {"training": {"finetune": {"method": "lora"}}}), (1, 8, {"strategy": "zero1", "training": {"finetune": {"method": "lora"}}}),
    ],
)  # fmt: skip
def test_folded_is_unfolded(t, ep, more):
    tree = scenario(ep, t=t, **more)
    folded, whole = simulate(tree), simulate(tree, unfolded=True)
    assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    assert folded.breakdown == pytest.approx(whole.breakdown, rel=1e-6, abs=1e-12)
    peaks = [max(device.allocated_bytes for device in report.measured.memory.devices) for report in (folded, whole)]
    assert peaks[0] == peaks[1]


def test_one_rank_per_group_of_experts_is_fsdp_to_the_last_bit():
    plain = scenario(1, t=2, etp=2)
    one = copy.deepcopy(plain)
    del plain["parallel"]["expert"]
    before, after = simulate(plain), simulate(one)
    assert (before.step_time, before.breakdown) == (after.step_time, after.breakdown)
    assert [d.at_peak for d in before.measured.memory.devices] == [d.at_peak for d in after.measured.memory.devices]


ON_CPU = {"offload": {"parameters": "cpu", "gradients": "cpu", "optimizer": "cpu"}}


def kept(tree):
    """Category -> bytes that stay with a rank, in its device's memory or in that of its host."""
    made, found = passes(tree), Counter()
    for number in made.resident:
        row = made.table.rows[number]
        found[row.category] += row.bytes
    return found


@pytest.mark.parametrize(("ep", "more", "ranks"), [(4, {}, 16), (8, {"strategy": "hsdp", "shard": 8}, 8)])
def test_offloaded_states(ep, more, ranks):
    """fp32 weights, gradients and Adam of the own shares, 16 B each, are on the host; of each share of experts, too."""
    tree = scenario(ep, training=ON_CPU, **more)
    found = kept(tree)
    assert not found["parameters"] + found["gradients"] + found["optimizer"]
    others = parameter_count(build(load(tree)).model) - 3 * EXPERTS
    shares = (others + 3 * EXPERTS) / ranks  # P_e / ep over ranks / ep copies
    host = {word: found[f"host {word}"] for word in ("parameters", "gradients", "optimizer")}
    assert host == pytest.approx({"parameters": 4 * shares, "gradients": 4 * shares, "optimizer": 8 * shares}, rel=2e-3)
    moved_out = sum(row.bytes * row.count for row in simulate(tree).collectives if row.kind == "d2h")
    assert moved_out == pytest.approx(4 * shares, rel=2e-3)


@pytest.mark.parametrize(("strategy", "ep", "copies"), [("zero1", 4, 4), ("zero2", 8, 2)])
def test_zero_offload(strategy, ep, copies):
    """DeepSpeed's ZeRO-Offload: bf16 weights stay; fp32 gradients, masters and Adam are on the host, 16 B of each share."""
    tree = scenario(ep, strategy=strategy, training={"offload": {"optimizer": "cpu"}, "precision": "bf16"})
    tree["software"] = {"profile": "deepspeed"}
    found = kept(tree)
    others = parameter_count(build(load(tree)).model) - 3 * EXPERTS
    own = others / 16 + 3 * EXPERTS / ep / copies
    assert found["parameters"] == pytest.approx(2 * (others + 3 * EXPERTS / ep), rel=1e-3)
    assert found["host gradients"] + found["host optimizer"] == pytest.approx(16 * own, rel=2e-3)


LORA = {"finetune": {"method": "lora"}}


class TestFinetuning:
    """Adapters beside attention; experts are frozen."""

    def test_frozen_experts_are_gathered_and_not_reduced(self):
        """In bf16 by four ranks: P_e / 4, three layers, twice."""
        assert moved(simulate(scenario(4, training=LORA))) == {("all_gather", 4, 2 * EXPERTS // 4): 6}

    def test_what_stays(self):
        """2 B of a frozen weight: whole where the strategy keeps it whole, a share of it under FSDP."""
        trees = [scenario(4, strategy=strategy, training=LORA) for strategy in ("ddp", "fsdp")]
        whole, shared = (kept(tree)["parameters"] for tree in trees)
        model = build(load(trees[0])).model
        frozen = sum(p.count for block in model.blocks for p in block.parameters() if not p.trainable) - 3 * EXPERTS
        trained = parameter_count(model) - frozen - 3 * EXPERTS
        assert whole == pytest.approx(2 * (frozen + 3 * EXPERTS / 4) + 6 * trained, rel=1e-2)  # fp32 adapters and their bf16 casts
        assert shared == pytest.approx(2 * (frozen + 3 * EXPERTS) / 16 + 4 * trained / 16, rel=1e-2)

    def test_layers_that_train_reduce_their_experts(self):
        report = simulate(scenario(4, training={"finetune": {"method": "freeze", "freeze": {"layers": 2}}}))
        assert moved(report)["reduce_scatter", 4, 4 * EXPERTS // 4] == 1


@pytest.mark.parametrize("resharded", [True, False])
@pytest.mark.parametrize(("ep", "strategy", "shard"), [(4, {"strategy": "fsdp"}, {}), (8, {"strategy": "hsdp"}, {"shard_size": 8})])
def test_the_program_is_legal(ep, strategy, shard, resharded):
    """Nothing is allocated twice or freed twice, and between steps a rank holds what it held before."""
    plain = itertools.product(("none", "full"), (1, 2), ({},))
    for recompute, stages, more in (*plain, ("none", 1, ON_CPU | {"gradient_accumulation": 1}), ("full", 1, LORA)):
        training = {"recompute": recompute, "gradient_accumulation": 2} | more
        tree = scenario(ep, training=training, pipeline={"size": stages})
        tree["parallel"]["data"] = {**strategy, **shard, "reshard_after_forward": resharded}
        program = execute(build(load(tree))).lowering.program
        assert check(program) == []
        left = Counter()
        for op in program.ops:
            for rank, effects in op.effects:
                for effect in effects:
                    left[rank, effect.tensor] += 1 if effect.allocate else -1
        assert not any(left.values())


@pytest.mark.parametrize(
    ("change", "path", "text"),
    [
        ({"strategy": "hsdp", "shard": 4}, "parallel.data.shard_size", "= 0.5 is not whole; use a shard group of 8"),
        ({"data": {"strategy": "zero3"}}, "parallel.data.strategy", "MoE not supported with Stage 3"),
        ({"data": {"strategy": "fsdp", "fsdp_version": 1}}, "parallel.data.fsdp_version", "flat parameters; use 2"),
        ({"data": {"strategy": "fsdp", "unit": "model"}}, "parallel.data.unit", "with all layers in one unit; use layer or block"),
    ],
)  # fmt: skip
def test_what_does_not_go(change, path, text):
    with pytest.raises(ParsimError) as caught:
        simulate(scenario(8, **change))
    assert [text in f"{one.message}; {one.suggestion}" for one in caught.value.findings if one.path == path] == [True]

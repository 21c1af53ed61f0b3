"""A shared expert beside dispatch and combine: what hides behind what, in which order, what is kept, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from jobs import job, roofline
from jobs import tree as look_up

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.kernel import Memory
from parsim.model.catalogue import build_model
from parsim.model.flops import flop_per_token
from parsim.model.liveness import tape
from parsim.model.model import Block, Model
from parsim.model.parameter_counts import parameter_count
from parsim.model.shared_overlap import overlap_shared_experts
from parsim.model.workload import Workload
from parsim.program.check import check
from parsim.run import execute, step_of
from parsim.scenario.build import build
from parsim.study.search.bounds import Bounder

LAYERS, MICRO_BATCHES, TOKENS, HIDDEN = 2, 3, 512, 256
MODEL: dict[str, Any] = {
    "base": "deepseek-v3", "layers": LAYERS, "hidden": HIDDEN, "heads": 4, "mlp": 512, "vocabulary": 1024,
    "experts": {"count": 8, "groups": 0, "groups_kept": 0, "mlp": 128, "shared": 128, "dense_layers": 0},
}  # fmt: skip


def model(base: str = "deepseek-v3", **changes: Any) -> Model:
    return build_model({**MODEL, "base": base, **changes}, name="small", base_lookup=look_up)


def tree(on: bool = True, *, tensor: int = 1, **expert: Any) -> dict[str, Any]:
    return {
        "model": copy.deepcopy(MODEL) | {"hidden": 1024, "layers": 2},
        "cluster": {"topology": "hgx-h100"},
        "training": {"sequence_length": 4096, "micro_batch": 1, "gradient_accumulation": 2, "precision": "bf16-fp32grad"},
        "software": {"profile": "megatron-core", "effects": "none"},
        "parallel": {
            "data": {"strategy": "zero1"},
            "tensor": {"size": tensor, "sequence_parallel": tensor > 1},
            "expert": {"size": 4, "tensor": 1, "shared_overlap": on, **expert},
        },
    }


def seconds(block: Block, *names: str, backward: bool = False) -> float:
    """What the operators of the shared expert take alone, without waiting [s]."""
    taped = tape(block, Workload(batch=1, sequence=TOKENS, expert=4, expert_tensor=1))
    steps = taped.backward if backward else taped.forward
    return sum(roofline(kernel) for step in steps if step.operator.name.removeprefix("mixture.shared_") in names for kernel in step.kernels)


@pytest.mark.parametrize("exchange", [0.0, 1e-6, 3e-6, 5e-6, 1e-5, 1e-3])
def test_of_an_exchange_shows_what_its_half_of_the_shared_expert_leaves(exchange: float) -> None:
    """Exposed is max(0, exchange - half): two messages (tokens, weights) beside the first half, one beside the second, both ways."""
    settings = {"micro_batches": MICRO_BATCHES, "sequence_length": TOKENS, "data": 4, "wires": {("all_to_all", "expert"): exchange}}
    on, off = (job(model(), expert_settings={"size": 4, "tensor": 1, "shared_overlap": flag}, **settings) for flag in (True, False))
    block = model().blocks[1]
    first, second = ("up_projection", "activation"), ("down_projection",)
    hidden = sum(
        min(count * exchange, seconds(block, *names, backward=backward))
        for backward in (False, True)
        for count, names in ((2, first), (1, second))
    )
    assert off.makespan - on.makespan == pytest.approx(LAYERS * MICRO_BATCHES * hidden, rel=1e-9, abs=1e-15)
    assert check(on.program) == []
    assert [op.collective for op in on.collectives(axis="expert")] == [op.collective for op in off.collectives(axis="expert")]


def test_messages_start_before_the_shared_expert_and_end_before_what_reads_them() -> None:
    """Forward and backward, in the order of Megatron-LM's token dispatchers."""
    result = job(model(), data=4, expert_settings={"size": 4, "tensor": 1, "shared_overlap": True}, wires={"expert": 1e-3}, micro_batches=1)
    program, trace = result.program, result.trace
    own = [op for op in program.ops if op.lanes[0].rank == 0 or (op.collective and op.collective.axis == "expert")]
    beside = [op for op in own if op.collective is not None and op.collective.axis == "expert" and 0 in {lane.rank for lane in op.lanes}]
    kernels = [op for op in own if op.collective is None and op.duration > 0 and op.lanes[0].name == "compute"]
    for message in beside:
        covers = [op for op in kernels if trace.start[message.index] <= trace.start[op.index] < trace.end[message.index] - 1e-12]
        assert len(covers) == ("weights" not in message.name)  # those of the weights follow the tokens' when the half is done
    names = [message.name for message in sorted(beside, key=lambda op: trace.start[op.index])]
    layer = ["dispatch", "dispatch weights", "combine"]
    assert names == [f"all_to_all mixture.{name}" for name in (layer * LAYERS + ["combine", "dispatch", "dispatch weights"] * LAYERS)]


@pytest.mark.parametrize("base", ["deepseek-v3", "qwen2-57b-a14b", "qwen3-next-80b-a3b"])
def test_the_model_is_the_same(base: str) -> None:
    """Parameters in their order, work, and what backward keeps; over tensor ranks the gathered tokens besides."""
    plain = build_model(look_up(base), name=base, base_lookup=look_up)
    beside = overlap_shared_experts(plain)
    assert [p.name for p in plain.blocks[-2].parameters()] == [p.name for p in beside.blocks[-2].parameters()]
    assert parameter_count(plain) == parameter_count(beside)
    assert flop_per_token(plain, 4096, "exact") == flop_per_token(beside, 4096, "exact")
    assert all((a is b) == (c is d) for a, b, c, d in zip(plain.blocks, plain.blocks[1:], beside.blocks, beside.blocks[1:], strict=False))
    for tensor, more in ((1, 0), (2, 4096 * plain.hidden * 2)):
        at = Workload(1, 4096, tensor, tensor > 1, expert=4, expert_tensor=1, fused=True)
        one, other = (tape(one.blocks[-2], at) for one in (plain, beside))
        kept = [sum(taped.tensors[name].bytes for name in taped.saved) for taped in (one, other)]
        assert kept[1] - kept[0] == more
        kernels = [
            sorted(repr(k) for step in taped.forward for k in step.kernels if k != Memory(0.0, launches=0)) for taped in (one, other)
        ]
        assert kernels[0] == kernels[1]


@pytest.mark.parametrize(("tensor", "dispatcher"), [(1, "alltoall"), (1, "deepep"), (2, "alltoall"), (2, "hybridep")])
def test_on_a_machine(tensor: int, dispatcher: str) -> None:
    """Messages slow the products beside them, and less of them shows; folded is unfolded, and the same is sent."""
    off, on = (simulate(tree(flag, tensor=tensor, dispatcher=dispatcher)) for flag in (False, True))
    assert on.step_time < off.step_time
    assert on.breakdown["expert_comm"] < off.breakdown["expert_comm"]
    assert on.breakdown["compute"] > off.breakdown["compute"]
    sent = [sorted((row.kind, row.bytes, row.count) for row in one.collectives if row.axis.startswith("expert")) for one in (off, on)]
    assert sent[0] == sent[1]
    whole = simulate(tree(tensor=tensor, dispatcher=dispatcher), unfolded=True)
    assert whole.step_time == pytest.approx(on.step_time, rel=1e-9)
    assert whole.peak_memory == on.peak_memory
    assert check(execute(build(load(tree(tensor=tensor, dispatcher=dispatcher)))).trace.program) == []


@pytest.mark.parametrize("dispatcher", ["alltoall", "deepep", "hybridep"])
def test_bounds_know_what_shows(dispatcher: str) -> None:
    """One search asks for both: no bound beats its simulation, and that of the overlapped step is the smaller one."""
    bounder, found = Bounder(), []
    for flag in (False, True):
        built = build(load(tree(flag, dispatcher=dispatcher)))
        step, bound = step_of(built), bounder.bounds(built)
        assert 0.95 * step.step_time < bound.step_time <= step.step_time * (1 + 1e-9)
        assert 0 < bound.peak_memory <= max(step.peaks.values())
        found.append(bound.step_time)
    assert found[1] < found[0]


def test_over_tensor_ranks_tokens_are_gathered_once_and_scattered_behind_both_gradients() -> None:
    """SharedExpertMLP keeps what it gathered: two collectives of the shared expert forward, two backward, instead of five."""

    def rows(on: bool) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in simulate(tree(on, tensor=2)).collectives:
            if row.axis == "tensor" and row.bytes == 4096 * 1024 * 2:
                found[row.kind] = found.get(row.kind, 0) + row.count
        return found

    off, on = rows(False), rows(True)
    assert off["all_gather"] - on["all_gather"] == 2 * 2  # layers x micro-batches
    assert off["reduce_scatter"] == on["reduce_scatter"]


@pytest.mark.parametrize(
    ("expert", "changes", "message"),
    [
        ({"dispatcher": "allgather"}, {}, "cannot overlap the shared expert with its messages"),
        ({"size": 1}, {}, "there is no exchange that the shared expert could hide"),
        ({}, {"model": "mixtral-8x7b"}, "mixtral-8x7b has no shared expert"),
        ({"batch_overlap": True}, {}, "exchanges already overlap with another micro-batch"),
        ({}, {"training.recompute": {"selective": ["shared_experts"]}}, "shared_experts are made again in one piece"),
        ({}, {"training.finetune": {"method": "lora", "rank": 8}}, "not supported yet: shared_overlap with adapters on shared experts"),
    ],
)
def test_refused(expert: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    asked = tree(**expert)
    for path, value in changes.items():
        section, _, key = path.partition(".")
        if key:
            asked[section][key] = value
        else:
            asked[section] = value
    with pytest.raises(ParsimError, match=message):
        simulate(asked)

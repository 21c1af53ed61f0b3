"""Slots that run a forward and a backward at once: what hides behind what, and that the programs are legal."""

from __future__ import annotations

import pytest
from test_folding import H100, scenario

from parsim.errors import PlanError
from parsim.parallel.hooks import COUNTS
from parsim.program.check import check
from parsim.program.pass_builder import Item
from parsim.program.program import COMPUTE
from parsim.program.side_by_side import side_by_side
from parsim.run import execute, simulate
from parsim.scenario import load
from parsim.scenario.build import build

MIXTURE = {"base": "mixtral-8x7b", "layers": 8, "hidden": 512, "mlp": 1024, "heads": 8, "kv_heads": 4, "vocabulary": 4096}


FEW = {"sequence_length": 2048, "micro_batch": 1, "gradient_accumulation": 4}


def run(items):
    """Ends of the items on an idle machine: lanes are queues."""
    lanes, ends = {}, []
    for item in items:
        begin = max([lanes.get(lane, 0.0) for lane in item.lanes] + [ends[need] for need in item.needs], default=0.0)
        ends.append(begin + item.duration)
        lanes |= dict.fromkeys(item.lanes, ends[-1])
    return ends


def mixture_passes(count, exchange):
    """`count` layers: attention 1 forward and 2 backward; experts 2 in all three passes; two exchanges each way."""

    def message(name):
        return Item(name, "expert_comm", (COMPUTE, "expert"), exchange, collective=("all_to_all", "expert", 1))

    def compute(name, seconds, **more):
        return Item(name, COMPUTE, (COMPUTE,), seconds, **more)

    forward, backward = [], []
    for layer in range(count):
        forward += [compute(f"F0 layer {layer}", 1.0), message("dispatch"), compute(f"F0 layer {layer}", 2.0), message("combine")]
        forward += [compute(f"F0 layer {layer}", 0.0)]
        own = f"B0 layer {count - 1 - layer}"
        backward += [compute(own, 0.0), message("combine"), compute(own, 2.0), compute(own, 2.0, aside=True), message("dispatch")]
        backward += [compute(own, 2.0)]
    return forward, backward


@pytest.mark.parametrize(("exchange", "seconds"), [(1, 9), (1.5, 9.5), (2, 10), (3.5, 14)])
@pytest.mark.parametrize("count", [1, 10])
def test_a_layer_beside_another(count, exchange, seconds):
    """max(C, A_F) + max(2C, M_B + M_W + M_F) + max(C, A_B), in the order of Megatron-LM's model_chunk_schedule_plan.py."""
    forward, backward = mixture_passes(count, exchange)
    both = side_by_side(forward, backward)
    assert seconds == max(exchange, 1) + max(2 * exchange, 6) + max(exchange, 2)
    assert max(run(both)) == pytest.approx(seconds * count)
    assert max(run([*forward, *backward])) == pytest.approx((9 + 4 * exchange) * count)
    assert [item.name for item in both if item.turn == 1 and item.collective] == [i.name for i in backward if i.collective]
    assert sum(item.duration for item in both) == sum(item.duration for item in (*forward, *backward))


@pytest.mark.parametrize(("exchange", "seconds"), [(1, 9.5), (1.5, 9.5), (2, 10), (3.5, 14)])
@pytest.mark.parametrize("count", [1, 10])
def test_the_wait_for_counts_is_part_of_its_layer(count, exchange, seconds):
    """max(C, A_F + 0.5) + max(2C, M_B + M_W + M_F) + max(C, A_B): it does not part a layer's attention from its experts."""
    forward, backward = mixture_passes(count, exchange)
    waiting = []
    for item in forward:
        waiting += [Item(COUNTS, "launch", (COMPUTE,), 0.5), item] if item.name == "dispatch" else [item]
    assert max(run(side_by_side(waiting, backward))) == pytest.approx(seconds * count)


@pytest.mark.parametrize(("exchange", "seconds"), [(1, 9.5), (1.5, 9.5), (2, 10), (3.5, 14)])
def test_collectives_of_tensor_ranks_are_part_of_their_layer(exchange, seconds):
    """Half a second behind attention forward: max(C, A_F + 0.5) + max(2C, M_B + M_W + M_F) + max(C, A_B); the other pass waits, too."""
    forward, backward = mixture_passes(10, exchange)
    tensor = Item("reduce_scatter", "tensor_comm", (COMPUTE, "tensor"), 0.5, collective=("reduce_scatter", "tensor", 1))
    gathering = []
    for item in forward:
        gathering += [tensor, item] if item.name == "dispatch" else [item]
    both = side_by_side(gathering, backward)
    assert max(run(both)) == pytest.approx(seconds * 10)
    assert all(COMPUTE in item.lanes for item in both if item.name == "reduce_scatter")
    assert not any(COMPUTE in item.lanes for item in both if item.name in ("dispatch", "combine"))


def test_each_pass_keeps_its_order():
    """Whatever stands between, an item comes behind all that it came behind in its own pass, but for gradients of weights."""
    both = side_by_side(*mixture_passes(3, 1.0))
    ends = run(both)
    for turn in (0, 1):
        own = [place for place, item in enumerate(both) if item.turn == turn and not item.aside]
        begins = [ends[place] - both[place].duration for place in own]
        assert all(begin >= ends[before] - 1e-12 for before, begin in zip(own, begins[1:], strict=False))
    assert {ends[0], both[-1].duration} == {0.0}
    assert ends[-1] == max(ends)


@pytest.mark.parametrize(
    ("strategy", "recompute", "sequence_parallel"),
    [
        ("ddp", "none", False),
        ("ddp", "full", True),
        ("zero1", {"selective": ["attention"]}, True),
        ("fsdp", "none", True),
        ("fsdp", "full", False),
    ],
)
def test_programs_are_legal(strategy, recompute, sequence_parallel):
    """No op waits for itself, and every tensor is made once and freed once."""
    parallel = {"tp": 2, "pp": 2, "tensor": {"sequence_parallel": sequence_parallel}, "pipeline": {"schedule": "dualpipev"}}
    model = {"base": "gpt2", "tied_embeddings": False, "layers": 4}
    tree = scenario(H100, 1, parallel | {"strategy": strategy}, model=model, recompute=recompute)
    result = execute(build(load(tree)))
    assert check(result.trace.program) == []
    assert len(result.plan.overlapped) == 6


def simulated(tree):
    return simulate(tree).document()


def experts(schedule, **more):
    parallel = {"pp": 2, "pipeline": {"schedule": schedule, "virtual_stages": 2}, "expert": {"size": 4, **more}, "strategy": "zero1"}
    tree = scenario(H100, 1, parallel, model=MIXTURE, gradient_accumulation=8, sequence_length=2048)
    return {**tree, "software": {"host": {"graphs": True}}}  # a host that waits for counts holds up both micro-batches


def test_exchanges_hide_behind_the_other_pass():
    plain, combined = (simulated(experts("interleaved", batch_overlap=overlap)) for overlap in (False, True))
    assert combined["breakdown_s"]["expert_comm"] < 0.6 * plain["breakdown_s"]["expert_comm"]
    assert combined["step_time_s"] < plain["step_time_s"]
    assert combined["model"] == plain["model"]
    sent = [sum(row["count"] * row["bytes"] for row in one["collectives"] if row["axis"] == "expert") for one in (plain, combined)]
    assert sent[0] == sent[1]


def test_one_rank_without_a_pipeline():
    """F0, (F1 & B0), ..., B7: two micro-batches are held."""
    tree = experts("1f1b", batch_overlap=True)
    tree["parallel"]["pipeline"] = {"size": 1}
    built = build(load(tree))
    program = execute(built).trace.program
    assert check(program) == []
    assert " ".join(map(str, program.slots[0][:5])) == "F0.0 F0.1 B0.0 F0.2 B0.1"
    assert len(execute(built).plan.overlapped) == 7


def test_a_table_with_overlapped_slots_in_a_scenario():
    """The table of a named schedule is that schedule."""
    rows = (
        "F0.0 F0.1 F0.2 F3.0 F0.3&B3.0 F3.1&B0.0 F3.2&B3.1 F3.3&B0.1 B3.2 B0.2 B3.3 B0.3\nF1.0 F2.0 F1.1 F2.1 F1.2 F2.2 F1.3 F2.3 B2.0 B1.0"
    )
    table = rows + " B2.1 B1.1 B2.2 B1.2 B2.3 B1.3"
    document, apart = (simulated(experts(rows) | {"training": FEW}) for rows in (table, table.replace("&", " ")))
    assert document["breakdown_s"]["expert_comm"] < apart["breakdown_s"]["expert_comm"]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (
            experts("dualpipev") | {"x": {"overlap_sends": False}},
            "not supported yet: blocking messages with slots that overlap a forward and a backward",
        ),
        (experts("combined-1f1b"), "write schedule: interleaved and parallel.expert.batch_overlap: true"),
        (experts("zb-v", batch_overlap=True), "runs the passes of schedule interleaved side by side, not those of zb-v"),
        (experts("interleaved", size=1, batch_overlap=True), "every rank holds all experts"),
        (experts("interleaved", batch_overlap=True) | {"y": "full"}, "cannot be combined with recomputed layers"),
        (experts("dualpipev") | {"z": 3}, "m >= 2 p), but 3 < 2 x 2"),
    ],
)
def test_what_is_refused(tree, words):
    tree = dict(tree)
    tree["parallel"]["pipeline"] |= tree.pop("x", {})
    if recompute := tree.pop("y", None):
        tree["training"] = tree["training"] | {"recompute": recompute}
    if count := tree.pop("z", None):
        tree["training"] = tree["training"] | {"gradient_accumulation": count}
    with pytest.raises(PlanError, match=words.replace("(", r"\(").replace(")", r"\)")):
        simulate(tree)

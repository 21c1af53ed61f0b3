"""Blocks: where passes are cut, what a block does under changing loads, and that a run of blocks is the run of its ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parsim.errors import ParsimError
from parsim.hardware.interference import MODELS, Full
from parsim.program.blocks import Row, Segment, layout
from parsim.program.shared import RankPasses, SharedPasses
from parsim.program.stage import StagePasses
from parsim.run import clock_of, execute, plan_of, simulate, step_of
from parsim.scenario import files, load
from parsim.scenario.build import build
from parsim.simulation.blocks import Course, Inside, Progress, expand

C, T = ("compute",), ("tensor",)
BOTH = ("compute", "tensor")


def row(lanes, *needs, tails=(), fixed=True):
    return Row(lanes, needs, tails, fixed)


def cut(*rows, opened=()):
    """(first, last) of every block, with the (first, last) of its segments, and what is left open."""
    found = layout(rows, frozenset(opened))
    return [(a, b, [(s.first, s.last) for s in segments]) for a, b, segments in found.blocks], set(found.left_open)


def test_a_chain_is_one_block():
    assert cut(row(C), row(BOTH), row(C)) == ([(0, 3, [(0, 1), (1, 2), (2, 3)])], set())


def test_what_overlaps_is_one_segment():
    """A gather beside a kernel that is waited for: 1 begins with 2, and 3 waits for it."""
    assert cut(row(C), row(T, 0), row(C), row(C, 1)) == ([(0, 4, [(0, 1), (1, 3), (3, 4)])], set())


def test_a_transfer_that_nobody_waits_for_leaves_its_lane_open():
    assert cut(row(C), row(C), row(T, 1)) == ([(0, 2, [(0, 1), (1, 2)])], {"tensor"})


def test_a_lane_that_is_open_is_outside():
    """The blocking transfer may wait for what the pass before left behind."""
    assert cut(row(C), row(BOTH), row(C), row(C), opened=["tensor"])[0] == [(2, 4, [(0, 1), (1, 2)])]


def test_a_transfer_on_shared_links_stays_an_op_and_cuts():
    assert cut(row(C), row(C), row(BOTH, fixed=False), row(C), row(C))[0] == [(0, 2, [(0, 1), (1, 2)]), (3, 5, [(0, 1), (1, 2)])]


def test_an_edge_to_outside_ends_a_block():
    """A bucket is reduced from the end of 1 on, and nobody of this pass waits for it."""
    found, opened = cut(row(C), row(C), row(("data",), 1, fixed=False), row(C), row(C))
    assert found == [(0, 2, [(0, 1), (1, 2)]), (3, 5, [(0, 1), (1, 2)])]
    assert opened == {"data"}


def test_an_edge_to_outside_from_the_middle_of_an_overlap_leaves_ops():
    """2 is over before its neighbour 1: the reduction begins then, not at the cut point."""
    found, _ = cut(row(C), row(T, 0), row(C), row(("data",), 2, fixed=False), row(C, 1), row(C))
    assert found == [(4, 6, [(0, 1), (1, 2)])]


def test_a_wait_for_outside_begins_a_block():
    found, _ = cut(row(C), row(C), row(C, tails=("data",)), row(C))
    assert found == [(0, 2, [(0, 1), (1, 2)]), (2, 4, [(0, 1), (1, 2)])]


# -- progress --------------------------------------------------------------------------------------------------------------


def slower(loads, memory_bound):
    """Every load halves the rate of kernels."""
    return 0.5 ** len(loads)


def kernel(seconds):
    return Inside(kernel=True, seconds=seconds, memory_bound=0.0, load=None)


def beside(seconds, load=None):
    return Inside(kernel=False, seconds=seconds, memory_bound=0.0, load=load)


CHAIN = Course(
    [kernel(2.0), beside(1.0), kernel(4.0)], [Segment(i, i + 1, ((),), (0,)) for i in range(3)], slower
)  # fmt: skip
OVERLAP = Course([beside(3.0, "inner"), kernel(4.0)], [Segment(0, 2, ((), ()), (0, 0))], slower)


def test_the_course_of_a_chain():
    """2 + 1 + 4 s alone; kernels take twice as long beside one load, the transfer does not."""
    assert CHAIN.cuts() == [0, 2, 3, 7]
    assert CHAIN.cuts(("a",)) == [0, 4, 5, 13]


def test_the_course_of_an_overlap():
    """Alone: 3 s at half speed leave 2.5 s. Beside another load: 3 s at a quarter leave 3.25 s at half speed, 6.5 s."""
    assert OVERLAP.cuts() == [0, 5.5]
    assert OVERLAP.cuts(("a",)) == [0, 9.5]


def test_a_change_in_the_first_kernel_and_one_in_the_last():
    """Load from 1 to 6 s: the first kernel ends at 1 + 2 = 3, the transfer at 4; 2 s at half speed leave 3 s: 9 s."""
    progress = Progress(CHAIN, 10.0, ())
    assert progress.end == 17
    progress.log.append((11.0, ("a",)))
    progress.advance(11.0, ("a",))
    assert (progress.at, progress.end) == (13, 22)
    progress.log.append((16.0, ()))
    progress.advance(16.0, ())
    assert progress.end == 19
    assert expand(CHAIN, 10.0, 19.0, progress.log) == ([10, 13, 14], [13, 14, 19])


def test_changes_within_one_overlap():
    """Load from 1 to 2 s: 0.5 + 0.25 s done at 2, 0.5 more at 3, when the inner transfer ends: 2.75 s left, 5.75 s."""
    progress = Progress(OVERLAP, 0.0, ())
    for time, loads in ((1.0, ("a",)), (2.0, ())):
        progress.log.append((time, loads))
        progress.advance(time, loads)
    assert progress.end == 5.75
    assert expand(OVERLAP, 0.0, 5.75, progress.log) == ([0, 0], [3, 5.75])


CHANGES = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([(), ("a",), ("a", "b")])), max_size=8)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), CHANGES)
def test_any_changes_of_a_chain_of_kernels(lengths, changes):
    """The work done under each load adds up to the work there is, and the ops are one behind the other."""
    course = Course([kernel(s / 2) for s in lengths], [Segment(i, i + 1, ((),), (0,)) for i in range(len(lengths))], slower)
    progress = Progress(course, 0.0, ())
    done, at, loads = 0.0, 0.0, ()
    for quarter, after in sorted(changes, key=lambda change: change[0]):
        if quarter / 4 >= progress.end or after == loads:
            continue
        done, at, loads = done + (quarter / 4 - at) * slower(loads, 0), quarter / 4, after
        progress.log.append((at, loads))
        progress.advance(at, loads)
    done += (progress.end - at) * slower(loads, 0)
    assert done == pytest.approx(sum(lengths) / 2, rel=1e-12)
    starts, ends = expand(course, 0.0, progress.end, progress.log)
    assert starts[1:] == pytest.approx(ends[:-1], abs=1e-12)
    assert (starts[0], ends[-1]) == (0, progress.end)


# -- whole runs ------------------------------------------------------------------------------------------------------------


def same(built):
    """Run in blocks and op by op; returns the run in blocks after every figure of the traces has been compared."""
    run, every = execute(built), execute(built, blocks=False)
    found, wanted = run.trace, every.trace
    assert [op.name for op in found.program.ops] == [op.name for op in wanted.program.ops]
    scale = wanted.makespan
    np.testing.assert_allclose(found.starts, wanted.starts, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(found.ends, wanted.ends, rtol=0, atol=1e-11 * scale)
    assert found.links.keys() == wanted.links.keys()
    for link, use in wanted.links.items():
        assert found.links[link].bytes == pytest.approx(use.bytes, rel=1e-9)
        assert found.links[link].saturated == pytest.approx(use.saturated, rel=1e-9, abs=1e-9 * scale)
    assert len(wanted.program.ops) <= found.events
    return run


SMALL = (
    "bert-ddp-8x-v100-nvlink", "gpt2-ddp-4x-a100", "gpt2-xl-gpipe-4x-v100", "gpt3-22b-8x-a100", "llama-13b-fsdp-16x-a100",
    "llama-65b-qlora-8x-a100", "llama-7b-zero1-8x-a100", "llama-7b-zero2-8x-a100", "llama-7b-zero3-8x-a100",
    "llama-7b-zero3-offload-2x-rtx-3090", "mlp-1x-a100", "pipeline-unit-pipedream", "resnet50-ddp-8x-v100",
)  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_shipped_scenarios(name):
    same(build(load(files.home("scenarios") / f"{name}.yaml")))


def scenario(**parallel):
    """Four layers of GPT on up to two nodes of eight."""
    chosen = dict(parallel)
    training = {"sequence_length": 512, "micro_batch": 1, "global_batch": 16, "precision": "bf16"} | chosen.pop("training", {})
    cluster = {"topology": "dgx-a100-80gb", "nodes": 2} | chosen.pop("cluster", {})
    tied = chosen.get("pipeline", {}).get("schedule") != "zb-v"  # embedding and head are two chunks of one rank
    return {
        "model": {"base": "gpt3-1.3b", "layers": 4, "tied_embeddings": tied},
        "training": training, "parallel": chosen, "cluster": cluster,
    }  # fmt: skip


PIPELINES = [
    {"size": 1},
    {"size": 2},
    {"size": 4, "schedule": "gpipe"},
    {"size": 2, "schedule": "interleaved", "virtual_stages": 2},
    {"size": 2, "overlap_sends": False},
    {"size": 4, "schedule": "zb-h1"},
    {"size": 2, "schedule": "zb-v"},
]
WAYS = st.fixed_dictionaries(
    {
        "tensor": st.fixed_dictionaries(
            {"size": st.sampled_from([1, 2, 4]), "sequence_parallel": st.booleans(), "overlap": st.sampled_from(["none", "backward"])}
        ),
        "pipeline": st.sampled_from(PIPELINES),
        "data": st.fixed_dictionaries({"strategy": st.sampled_from(["ddp", "zero1", "zero2", "zero3", "fsdp"])}),
        "context": st.fixed_dictionaries({"size": st.sampled_from([1, 1, 2])}),
        "training": st.fixed_dictionaries({"recompute": st.sampled_from(["none", "full", {"selective": ["attention"]}])}),
        "cluster": st.fixed_dictionaries({"interference": st.sampled_from(["off", "simple", "full"])}),
    }
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(WAYS)
def test_any_small_job(ways):
    if ways["tensor"]["size"] == 1:
        ways = ways | {"tensor": {"size": 1}}
    try:
        built = build(load(scenario(**ways)))
        plan_of(built, clock_of(built))
    except ParsimError:
        return
    same(built)


def test_a_first_iteration_with_several_chunks_per_rank():
    """The first chunk of a rank allocates the workspaces, its other chunks do not: they are not written alike."""
    pipeline = {"size": 4, "schedule": "interleaved", "virtual_stages": 2, "split": [2, 1, 1, 2, 1, 1, 1, 1], "overlap_sends": False}
    context, training = {"size": 2, "method": "ulysses"}, {"iteration": "first", "sequence_length": 2, "global_batch": 4}
    tree = scenario(tensor={"size": 2}, context=context, pipeline=pipeline, training=training)
    tree["model"] = {"base": "gpt2", "layers": 10}
    same(build(load(tree)))


@pytest.mark.parametrize("interference", ["off", "simple"])
@pytest.mark.parametrize("overlap", ["none", "backward"])
def test_a_pipeline_of_whole_nodes_is_mostly_blocks(interference, overlap):
    """Tensor parallelism inside nodes: a pass is one block, whatever runs beside its kernels."""
    tree = scenario(
        tensor={"size": 8, "sequence_parallel": True, "overlap": overlap},
        pipeline={"size": 4},
        cluster={"nodes": 4, "interference": interference},
    )
    run = same(build(load(tree)))
    assert len(run.trace.program.ops) == 2218
    assert len(run.lowering.program.ops) == 16 * (2 * 4 + 2 * 3) + 10  # passes and messages; what ends the step


@dataclass(frozen=True, slots=True)
class OneWay(Full):
    """Loads add up, so a load from outside matters also beside one from inside; transfers are not slowed."""

    def communication_rate(self, memory_bound):
        return 1.0


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PIPELINES[1:]), st.sampled_from(["ddp", "zero2", "fsdp"]), st.sampled_from([4, 8]), st.booleans())
def test_loads_that_add_up(pipeline, strategy, tensor, recompute):
    tree = scenario(
        tensor={"size": tensor, "sequence_parallel": True, "overlap": "backward"},
        pipeline=pipeline,
        data={"strategy": strategy},
        training={"recompute": "full" if recompute else "none"},
        cluster={"interference": "simple", "nodes": 4},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "simple", OneWay())
        same(build(load(tree)))


def test_a_slow_rank():
    tree = scenario(tensor={"size": 8}, pipeline={"size": 2}) | {"variability": {"slow": [{"rank": 3, "speed": 0.5}]}}
    run = same(build(load(tree)))
    assert run.plan.slow == {3: 0.5}


def test_neighbours_in_one_node_share_its_links():
    """Messages between the stages of a node meet its collectives: those stay ops, here nearly all there is."""
    run = same(build(load(scenario(tensor={"size": 4}, pipeline={"size": 4}))))
    assert len(run.lowering.program.ops) == len(run.trace.program.ops)


@pytest.mark.parametrize("name", ["gpt3-22b-8x-a100", "gpt2-xl-gpipe-4x-v100", "pipeline-unit-pipedream", "llama-7b-zero3-8x-a100"])
def test_a_quick_result_is_what_the_report_says(name):
    path = files.home("scenarios") / f"{name}.yaml"
    quick, report = step_of(build(load(path))), simulate(path)
    assert quick.step_time == report.step_time
    assert quick.makespan == report.timeline.makespan
    assert quick.peaks == {device.rank: device.device_used_bytes for device in report.measured.memory.devices}


def blocks_of(micro_batches, data=1):
    """Ops of a program in blocks, all in blocks but messages and the end of the step."""
    built = build(
        load(
            scenario(
                tensor={"size": 8},
                pipeline={"size": 4},
                data={"strategy": "ddp"} if data > 1 else {},
                training={"global_batch": micro_batches * data},
                cluster={"nodes": 4 * data},
            )
        )
    )
    return len(execute(built).lowering.program.ops)


def test_ops_grow_with_micro_batches_and_not_with_replicas_or_layers():
    """4 stages: 2 x 4 passes and 2 x 3 messages for every further micro-batch."""
    assert blocks_of(16) - blocks_of(8) == 8 * (2 * 4 + 2 * 3)
    assert blocks_of(8, data=2) == blocks_of(8, data=4)


# -- shared passes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", [{"size": 4}, {"size": 2, "schedule": "interleaved", "virtual_stages": 4}])
@pytest.mark.parametrize("training", [{}, {"recompute": "full"}, {"recompute": {"selective": ["attention"]}}])
def test_chunks_of_one_kind_have_equal_passes(pipeline, training):
    """Twelve layers: what is written for the first chunk of a kind is what each of them would write for itself."""
    tree = scenario(tensor={"size": 4, "sequence_parallel": True}, pipeline=pipeline, data={"strategy": "ddp"}, training=training)
    tree["model"]["layers"] = 24 if pipeline["size"] == 2 else 12
    built = build(load(tree))
    clock = clock_of(built)
    plan = plan_of(built, clock)
    shared = SharedPasses(plan, clock)
    ranks = [shared.of(p, "") for p in range(pipeline["size"])]
    assert all(isinstance(passes, RankPasses) for passes in ranks)
    own = [StagePasses(plan, p, "", clock) for p in range(pipeline["size"])]
    kinds = {slot.kind for slot in plan.slots[0]}
    for p, passes in enumerate(ranks):
        for stage in own[p].chunks:
            for kind in sorted(kinds):
                for first, last in ((True, False), (False, False), (False, True)):
                    assert plain(passes.template(kind, stage, first, last)) == plain(own[p].template(kind, stage, first, last))
        assert plain(passes.begin()) == plain(own[p].begin())
        assert plain(passes.end()) == plain(own[p].end())
    written = {id(passes.template("F", stage, False, False)) for p, passes in enumerate(ranks) for stage in own[p].chunks}
    assert len(written) == 3  # with the embedding, with the head, and all others


def plain(items):
    """Items without names and memory."""
    return [(i.kind, i.lanes, i.duration, i.memory_time, i.collective, i.needs, i.tails) for i in items]

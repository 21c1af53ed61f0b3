"""Pipelines through the real lowering: makespans, weight versions and deadlocks of the published schedules.

Makespans for tF = 1, tB = 2 follow from GPipe (arXiv 1811.06965), PipeDream (1806.03377), Megatron-LM's interleaved schedule
(2104.04473) and zero bubble (2401.10241); with latency 1F1B is limited by its window of p micro-batches.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import job, layers, measured, stages

from parsim.errors import DeadlockError, PlanError
from parsim.model.stages import build_stages
from parsim.parallel.schedules import SPLIT, Slot, peak_in_flight, schedule
from parsim.parallel.training import Recompute
from parsim.program.check import check
from parsim.program.text import from_text, to_text
from parsim.program.unit_times import unit_program
from parsim.simulation.engine import Engine

FLUSHING = ("naive", "gpipe", "1f1b", "interleaved")


def pipeline(name, p=4, m=8, v=1, c=0.0, rows=((1.0, 2.0),), *, overlap=True, slots=(), parameters=0, **options):
    """A pipeline of profiled stages; a stage's times are divided among its v chunks."""
    model = stages(*(tuple(t / v for t in row) for row in rows), send=c, parameters=parameters)
    chosen = {"schedule": name, "virtual_stages": v, "overlap_sends": overlap, "slots": slots}
    return job(model, pipeline=p, clock=measured, micro_batches=m, pipeline_settings=chosen, step=False, **options)


def compute(run, rank):
    """The slots of a rank that took time, with their times: [("F0", micro-batch, start, end)]."""
    ops = [op for op in run.trace.lane(rank, "compute") if op.duration]
    return [(op.name.split()[0], op.instance, run.trace.start[op.index], run.trace.end[op.index]) for op in ops]


# -- makespans --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "v", "expected"),
    [
        ("naive", 1, (96, 48, 192, 384, 768, 24)),
        ("gpipe", 1, (33, 21, 57, 69, 117, 15)),
        ("1f1b", 1, (33, 21, 57, 69, 117, 15)),
        ("interleaved", 2, (28.5, 16.5, 52.5, 58.5, 106.5, 13.5)),
        ("interleaved", 4, (26.25, 14.25, 50.25, 53.25, 101.25, 12.75)),
        ("zb-h1", 1, (27, 15, 51, 55, 103, 13)),
        ("zb-h2", 1, (27, 16, 51, 55, 103, 13)),
        ("zb-v", 2, (25.5, 15, 49.5, 51.5, 99.5, 12.5)),
        ("v-half", 2, (26.5, 17, 50.5, 56.5, 104.5, 12.5)),
        ("v-min", 2, (29.5, 17.5, 53.5, 61.5, 109.5, 13.5)),
        ("interleaved-zb", 2, (25.5, 13.5, 49.5, 51.5, 99.5, 12.5)),
        ("interleaved-zb", 4, (24.75, 12.75, 48.75, 49.75, 97.75, 12.25)),
    ],
)
def test_makespans(name, v, expected):
    sizes = [(4, 8), (4, 4), (4, 16), (8, 16), (8, 32), (2, 4)]
    times = ((1.0, 1.0, 1.0),) if name in SPLIT else ((1.0, 2.0),)
    assert tuple(pipeline(name, p, m, v, rows=times).makespan for p, m in sizes) == expected


@pytest.mark.parametrize(
    ("name", "v", "times", "expected"),
    [
        ("v-half", 2, (1.0, 1.2, 0.8), 27.9),
        ("v-half", 2, (1.0, 1.4, 0.6), 29.6),
        ("v-min", 2, (1.0, 1.2, 0.8), 34.4),
        ("v-min", 2, (1.0, 1.4, 0.6), 39.3),
        ("interleaved-zb", 2, (1.0, 1.2, 0.8), 26.1),
        ("dualpipev", 2, (1.0, 1.0, 1.0), 27),
        ("dualpipev", 2, (1.0, 1.2, 0.8), 27.6),
        ("dualpipev", 2, (1.0, 1.4, 0.6), 28.3),
        ("combined-1f1b", 2, (1.0, 1.0, 1.0), 28.5),
        ("dualpipe", 1, (1.0, 1.0, 1.0), 26),
        ("interleaved-zb", 2, (1.0, 1.4, 0.6), 26.7),
    ],
)
def test_makespans_where_passes_differ(name, v, times, expected):
    assert pipeline(name, 4, 8, v, rows=(times,)).makespan == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("p", "makespan"), [(4, 16), (6, 26), (8, 36)])
def test_chimera_makespans(p, makespan):
    assert pipeline("chimera", p, p, 1, rows=((1.0, 2.0),)).makespan == makespan


@pytest.mark.parametrize(("name", "v", "expected"), [("zb-h1", 1, (28.2, 30, 33)), ("zb-h2", 1, (27.3, 27.75, 28.5))])
def test_zero_bubble_makespans_with_messages_that_take_time(name, v, expected):
    assert tuple(pipeline(name, 4, 8, v, c=c, rows=((1.0, 1.0, 1.0),)).makespan for c in (0.1, 0.25, 0.5)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "v", "ends"),
    [("gpipe", 1, [33, 31, 29, 27]), ("1f1b", 1, [33, 31, 29, 27]), ("interleaved", 2, [28.5, 27.5, 26.5, 25.5])],
)
def test_ends_of_the_devices(name, v, ends):
    run = pipeline(name, v=v)
    assert [compute(run, rank)[-1][3] for rank in range(4)] == ends


def test_the_1f1b_time_line():
    run = pipeline("1f1b")
    first, last = ([f"{name[0]}{m}@{start:g}-{end:g}" for name, m, start, end in compute(run, rank)] for rank in (0, 3))
    assert first[:7] == ["F0@0-1", "F1@1-2", "F2@2-3", "F3@3-4", "B0@10-12", "F4@12-13", "B1@13-15"]
    assert last[:3] == ["F0@3-4", "B0@4-6", "F1@6-7"]
    assert (first[-1], last[-1]) == ("B7@31-33", "B7@25-27")


@pytest.mark.parametrize(
    ("name", "v", "expected"),
    [("gpipe", 1, (33.6, 34.5, 36)), ("1f1b", 1, (34.6, 37, 41)), ("interleaved", 2, (29.9, 32, 35.5))],
)
def test_latency(name, v, expected):
    assert [pipeline(name, v=v, c=c).makespan for c in (0.1, 0.25, 0.5)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("m", "expected"), [(8, 41), (16, 71), (32, 131)])
def test_1f1b_with_latency_is_limited_by_its_window(m, expected):
    """Stage 0 holds p micro-batches, so a period is tF + tB + 2 (p-1) c / p: 3.75 here, T = 3.75 m + 11."""
    assert pipeline("1f1b", m=m, c=0.5).makespan == expected


def test_two_stages_with_latency():
    assert pipeline("1f1b", p=2, m=4, c=0.5).makespan == 17


@pytest.mark.parametrize(("forward", "one_f_one_b", "gpipe"), [((1, 1, 2, 1), 55, 57), ((1, 1, 1, 1.5), 45, 45), ((1, 1, 1, 1), 33, 33)])
def test_unequal_stages(forward, one_f_one_b, gpipe):
    rows = [(float(t), 2.0 * t) for t in forward]
    assert (pipeline("1f1b", rows=rows).makespan, pipeline("gpipe", rows=rows).makespan) == (one_f_one_b, gpipe)


def test_a_slow_rank_delays_by_its_own_stage():
    assert pipeline("1f1b", slow={2: 1 / 1.2}).makespan == pytest.approx(37.2, rel=1e-12)


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_full_recomputation(name):
    """tB = tF + 2 tF: 11 x 4."""
    run = pipeline(name, recompute=Recompute("full"))
    assert run.makespan == 44
    assert sum(run.trace.duration(op) for op in run.program.ops if op.kind == "recompute") == 4 * 8
    assert not check(run.program)


@pytest.mark.parametrize("name", FLUSHING)
def test_one_stage_has_no_bubble(name):
    assert pipeline(name, p=1, m=5).makespan == 15


def test_replicas_are_as_fast_as_one():
    assert pipeline("1f1b", data=3).makespan == 33


# -- a second way to compute: the schedule laboratory -------------------------------------------------------------------------

times = st.integers(1, 40).map(lambda tenths: tenths / 8)


@settings(max_examples=60)
@given(st.data())
def test_lowering_agrees_with_the_laboratory(data):
    name = data.draw(st.sampled_from(FLUSHING))
    p = data.draw(st.integers(1, 5))
    v = data.draw(st.integers(1, 3)) if name == "interleaved" and p > 1 else 1
    m = data.draw(st.integers(1, 3)) * p
    overlap = data.draw(st.booleans())
    send = data.draw(st.sampled_from([0.0, 0.125, 0.5, 3.0])) if overlap else 0.0
    rows = data.draw(st.lists(st.tuples(times, times), min_size=p * v, max_size=p * v))
    model = stages(*rows, send=send)
    chosen = {"schedule": name, "virtual_stages": v, "overlap_sends": overlap}
    run = job(model, pipeline=p, clock=measured, micro_batches=m, pipeline_settings=chosen, step=False)
    forward, backward = zip(*rows, strict=True)
    laboratory = unit_program(schedule(name, p, m, v), forward, backward, latency=send, overlap_sends=overlap)
    if p * v > 1:  # a list of one stage stands for any number
        assert run.makespan == pytest.approx(Engine(laboratory, run.wires).run().makespan, rel=1e-12)
    assert not check(run.program)


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(1, 12), times, times)
def test_interleaved_with_one_chunk_is_1f1b(p, rounds, forward, backward):
    one, interleaved = (pipeline(name, p, p * rounds, rows=[(forward, backward)]) for name in ("1f1b", "interleaved"))
    assert to_text(one.program) == to_text(interleaved.program)


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 12), times, times)
def test_gpipe_and_1f1b_take_the_same_time(p, m, forward, backward):
    """(m + p - 1)(tF + tB), equal stages, free messages."""
    found = [pipeline(name, p, m, rows=[(forward, backward)]).makespan for name in ("gpipe", "1f1b")]
    assert found == pytest.approx([(m + p - 1) * (forward + backward)] * 2, rel=1e-12)


# -- blocking sends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FLUSHING, "pipedream"])
@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("c", [0.0, 0.25, 3.0])
def test_blocking_sends_do_not_deadlock(name, p, c):
    v = 2 if name == "interleaved" else 1
    blocking, overlapped = (pipeline(name, p, 2 * p, v, c, overlap=overlap).makespan for overlap in (False, True))
    assert blocking >= overlapped
    if c == 0:
        assert blocking == overlapped


def test_blocking_sends_hold_both_ends():
    run = pipeline("gpipe", p=2, m=1, c=0.5, overlap=False, data=2)
    sends = [op for op in run.program.ops if op.kind == "pipeline_comm"]
    assert run.makespan == 1 + 0.5 + 1 + 2 + 0.5 + 2
    assert len(sends) == 2 * 2
    for op in sends:
        assert len({lane.rank for lane in op.lanes}) == 2


# -- PipeDream ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "expected"), [(8, 33), (9, 36), (16, 57), (100, 309), (200, 609)])
def test_pipedream_takes_a_period_per_mini_batch(m, expected):
    assert pipeline("pipedream", m=m).makespan == expected


def test_pipedream_stashes_a_weight_version_per_micro_batch_in_flight():
    run = pipeline("pipedream", m=16, parameters=512_000)
    assert [run.lowering.passes_of(stage).weight_versions() for stage in range(4)] == [4, 3, 2, 1]
    assert [max(run.memory(stage).levels["parameters"]) for stage in range(4)] == [2 * 512_000 * n for n in (4, 3, 2, 1)]
    assert [len(run.memory(stage).final) for stage in range(4)] == [len(run.program.resident[stage]) for stage in range(4)]


def test_pipedream_staleness():
    """Updates between a micro-batch's forward and its backward: 3, 2, 1, 0 from the time that the pipeline is full."""
    run = pipeline("pipedream", m=16)
    for stage in range(4):
        order = [name[0] for name, *_ in compute(run, stage)]
        rows = compute(run, stage)
        found = []
        for micro_batch in range(4, 16):
            begin = next(i for i, row in enumerate(rows) if row[0][0] == "F" and row[1] == micro_batch)
            end = next(i for i, row in enumerate(rows) if row[0][0] == "B" and row[1] == micro_batch)
            found.append(order[begin:end].count("B"))
        assert found == [3 - stage] * 12


def test_pipedream_has_no_first_iteration():
    """Its step is measured once the pipeline is full; what the first micro-batch allocates is long there."""
    with pytest.raises(PlanError, match=r"training\.iteration .*use steady"):
        pipeline("pipedream", iteration="first")


def test_pipedream_steps_after_every_backward():
    run = job(layers(4, 1.0, 2.0, 0.0), pipeline=4, clock=measured, micro_batches=6, pipeline_settings={"schedule": "pipedream"})
    steps = [op for op in run.trace.lane(0, "compute") if op.kind == "optimizer"]
    assert len({op.instance for op in steps}) == 6


# -- schedules of the user's own --------------------------------------------------------------------------------------------------


def split_1f1b(p, m, delay):
    """1F1B with each B as I, and W(j) right after I(j + delay(stage)); what is left at the end."""
    rows = []
    for stage, row in enumerate(schedule("1f1b", p, m)):
        wait, slots = [], []
        for slot in row:
            if slot.kind == "F":
                slots.append(slot)
                continue
            slots.append(Slot("I", slot.stage, slot.micro_batch))
            wait.append(Slot("W", slot.stage, slot.micro_batch))
            if len(wait) > delay(stage):
                slots.append(wait.pop(0))
        rows.append((*slots, *wait))
    return tuple(rows)


def custom(rows, m, *, times=((1.0, 1.0, 1.0),), **options):
    return pipeline("custom", len(rows), m, rows=times, slots=rows, **options)


def test_zero_bubble_h1_written_by_hand():
    """ZB-H1 of arXiv 2401.10241: m (tF+tI+tW) + (p-1)(tF+tI-tW) = 27."""
    rows = split_1f1b(4, 8, lambda stage: stage)
    assert " ".join(f"{s.kind}{s.micro_batch}" for s in rows[0]).startswith("F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2")
    assert " ".join(f"{s.kind}{s.micro_batch}" for s in rows[3]).startswith("F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1")
    assert custom(rows, 8).makespan == 27
    assert custom(rows, 8, times=((1.0, 1.2, 0.8),)).makespan == pytest.approx(28.2, rel=1e-12)
    assert custom(rows, 8, times=((1.0, 1.4, 0.6),)).makespan == pytest.approx(29.4, rel=1e-12)


def test_a_v_of_stages_hands_over_on_its_own_rank():
    """Of 2 p - 1 boundaries, p - 1 and p - 1 are crossed by messages; the one in the middle lies on the last rank."""
    run = pipeline("zb-v", 4, 8, 2, c=0.5, rows=((1.0, 1.0, 1.0),))
    sent = [op.name for op in run.program.ops if op.name.startswith("send")]
    assert len(sent) == 2 * 6 * 8
    assert {"send F3", "send I4"}.isdisjoint(sent)
    held = job("llama-2-7b", micro_batches=8, pipeline=4, pipeline_settings={"schedule": "zb-v", "virtual_stages": 2})
    names = [[tensor.name for tensor in held.program.tensors[rank]] for rank in (2, 3)]
    assert [name for name in names[1] if name in ("x17", "dx17")] == ["x17", "dx17"]
    assert not [name for name in names[0] if name in ("x17", "dx17")]


def test_a_table_of_zb_v_is_zb_v():
    named = pipeline("zb-v", 4, 8, 2, c=0.25, rows=((1.0, 1.2, 0.8),))
    written = pipeline("custom", 4, 8, 2, c=0.25, rows=((1.0, 1.2, 0.8),), slots=schedule("zb-v", 4, 8, 2))
    assert written.makespan == named.makespan


def test_without_weight_time_a_split_schedule_is_1f1b():
    rows = split_1f1b(4, 8, lambda stage: stage)
    assert custom(rows, 8, times=((1.0, 2.0, 0.0),)).makespan == 33


def test_on_one_rank_i_then_w_is_b():
    """The same duration; the same tensors before and after; whole gradients wait for W, so no lower peak."""
    rows = split_1f1b(1, 3, lambda stage: 0)
    whole = job("gpt2", micro_batches=3)
    halves = job("gpt2", micro_batches=3, pipeline_settings={"schedule": "custom", "slots": rows})
    assert halves.makespan == pytest.approx(whole.makespan, rel=1e-12)
    assert halves.memory().resident == whole.memory().resident
    assert sorted(halves.memory().final) == sorted(whole.memory().final)
    assert halves.memory().peak >= whole.memory().peak


def test_a_split_backward_keeps_activations_until_w():
    run = job("gpt2", micro_batches=4, pipeline=2, pipeline_settings={"schedule": "custom", "slots": split_1f1b(2, 4, lambda s: 3)})
    whole = job("gpt2", micro_batches=4, pipeline=2)
    assert run.memory(0).levels["activations"].max() > whole.memory(0).levels["activations"].max()
    for rank in range(2):
        assert sorted(run.memory(rank).final) == sorted((n, -1) for n in run.program.resident[rank])


DEADLOCK = (
    (Slot("F", 0, 0), Slot("B", 0, 0), Slot("F", 0, 1), Slot("B", 0, 1)),
    (Slot("F", 1, 1), Slot("B", 1, 1), Slot("F", 1, 0), Slot("B", 1, 0)),
)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("data", [1, 2])
def test_an_illegal_schedule_deadlocks(overlap, data):
    run = custom(DEADLOCK, 2, overlap=overlap, data=data)
    with pytest.raises(DeadlockError, match="F1"):
        Engine(run.program, run.wires).run()


def test_a_backward_before_its_forward_deadlocks():
    run = custom(((Slot("B", 0, 0), Slot("F", 0, 0)), (Slot("F", 1, 0), Slot("B", 1, 0))), 1)
    with pytest.raises(DeadlockError):
        Engine(run.program, run.wires).run()


# -- the program itself -------------------------------------------------------------------------------------------------------------

MIXED = [
    {"model": "gpt2", "pipeline": 2, "data": 2, "micro_batches": 2},
    {"model": "gpt2", "tensor": 2, "pipeline": 2, "micro_batches": 4, "tensor_settings": {"sequence_parallel": True}},
    {"model": "gpt2", "pipeline": 2, "data": 2, "micro_batches": 2, "data_settings": {"strategy": "fsdp"}},
    {"model": "gpt2", "tensor": 2, "data": 2, "data_settings": {"strategy": "zero1", "overlap_gather": True}},
    {"model": "gpt2", "pipeline": 2, "micro_batches": 2, "pipeline_settings": {"overlap_sends": False}},
    {"model": "resnet50", "pipeline": 2, "data": 2, "micro_batches": 2},
]


@pytest.mark.parametrize("settings", MIXED, ids=str)
def test_a_plan_gives_the_same_program_every_time(settings):
    first, second = (job(**settings) for _ in range(2))
    text = to_text(first.program)
    assert text == to_text(second.program)
    assert to_text(from_text(text)) == text
    assert not check(first.program)


def test_a_program_runs_twice_alike():
    run = job(**MIXED[1])
    again = Engine(run.program, run.wires).run()
    assert (list(again.start), list(again.end)) == (list(run.trace.start), list(run.trace.end))


def test_slots_are_the_schedules():
    run = pipeline("interleaved", v=2)
    assert tuple(tuple(run.program.slots[rank]) for rank in range(4)) == schedule("interleaved", 4, 8, 2)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_activations_in_flight(name):
    """Each stage holds as many micro-batches as its schedule says: 8, 8, 8, 8 or 4, 3, 2, 1."""
    entry = {"forward": "1 s", "backward": "2 s", "activation": "512000 B"}
    model = build_stages({"stages": [entry]}, name="stages")
    run = job(model, pipeline=4, clock=measured, micro_batches=8, step=False, pipeline_settings={"schedule": name})
    found = [round(max(run.memory(rank).levels["activations"]) / 512_000) for rank in range(4)]
    assert found == peak_in_flight(schedule(name, 4, 8))


def test_tied_embeddings_meet_across_stages():
    run = job("gpt2", pipeline=4, data=2, micro_batches=4)
    found = [op for op in run.program.ops if op.name == "all_reduce tied embedding"]
    mesh = run.plan.mesh
    assert [op.collective.group for op in found] == [(mesh.move(r, "pipeline", 0), mesh.move(r, "pipeline", 3)) for r in (0, 1)]
    assert all(op.collective.bytes == 2 * 50_257 * 768 for op in found)
    assert {lane.rank for op in found for lane in op.lanes} == {0, 1, 6, 7}


def test_the_gradient_norm_meets_all_stages_of_a_replica():
    run = job("gpt2", tensor=2, pipeline=2, data=2, micro_batches=2)
    found = [op for op in run.program.ops if op.name == "all_reduce gradient norm"]
    assert [op.collective.group for op in found] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    for op in found:
        assert sorted({lane.rank for lane in op.lanes}) == list(op.collective.group)


def test_messages():
    """b s h e per boundary, each way, per micro-batch; a tensor-parallel rank sends its part of it (Megatron's scatter)."""
    plain = job("gpt2", pipeline=2, micro_batches=3)
    assert [op.collective.bytes for op in plain.collectives(kind="send")] == [128 * 768 * 2] * 6
    scattered = job("gpt2", tensor=2, pipeline=2, micro_batches=3)
    assert [op.collective.bytes for op in scattered.collectives(kind="send")] == [128 * 768] * 6
    assert [op.collective.bytes for op in scattered.collectives(4, kind="all_gather")] == []
    received = [op for op in scattered.collectives(2, kind="all_gather") if "received" in op.name]
    assert [op.collective.bytes for op in received] == [128 * 768 * 2] * 3
    whole = job("gpt2", tensor=2, pipeline=2, micro_batches=3, pipeline_settings={"scatter_sends": False})
    assert [op.collective.bytes for op in whole.collectives(kind="send")] == [128 * 768 * 2] * 6
    sequence = job("gpt2", tensor=2, pipeline=2, micro_batches=3, tensor_settings={"sequence_parallel": True})
    assert [op.collective.bytes for op in sequence.collectives(kind="send")] == [128 * 768] * 6
    assert not [op for op in sequence.collectives(2) if "received" in op.name]

"""Long steps answered from short ones: what the whole step takes, and never where a step does not repeat itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.parallel.schedules import BIDIRECTIONAL, INTERLEAVED, NAMES, OVERLAPPING, chunks, schedule
from parsim.parallel.schedules.repetition import Repetition, repetitions, shorter
from parsim.parallel.schedules.slot import Slot
from parsim.program.program import COMPUTE, Lane, Program
from parsim.report.memory_facts import memory_of
from parsim.run import execute, step_of
from parsim.scenario.build import build
from parsim.scenario.load import load
from parsim.simulation.engine import Engine
from parsim.simulation.periods import period_of

MICRO_BATCHES = 64

PLAIN = [name for name in NAMES if name not in (*OVERLAPPING, *BIDIRECTIONAL)]
"""schedules of any size, without passes side by side"""


def job(training=None, cluster=(), variability=None, **parallel):
    batch = training or {"micro_batch": 1, "gradient_accumulation": MICRO_BATCHES}
    tree = {
        "model": {"base": "gpt3-1.3b", "layers": 4},
        "training": {"sequence_length": 512, **batch},
        "cluster": {"topology": "dgx-a100-80gb", **dict(cluster)},
        "parallel": parallel,
    }
    return build(load(tree | ({"variability": variability} if variability else {})))


@given(
    st.sampled_from([name for name in PLAIN if name not in ("gpipe", "looped-bfs", "pipedream")]),
    st.integers(1, 6),
    st.integers(0, 40),
    st.data(),
)
def test_periods_put_in_anywhere_make_the_longer_schedule(name, stages, more, data):
    virtual = data.draw(st.integers(2, 3)) if name in INTERLEAVED else chunks(name)
    group = stages if name in INTERLEAVED else 1
    micro_batches = (5 * stages + more) // group * group
    longer = micro_batches + group * data.draw(st.integers(1, 30))
    short, whole = (schedule(name, stages, count, virtual) for count in (micro_batches, longer))
    found = repetitions(short, whole)
    assert min(found) == group
    for cycle, rows in found.items():
        for brief, long, (begin, end, slots) in zip(short, whole, rows, strict=True):
            cut = data.draw(st.integers(begin, end))
            periods, added = (len(long) - len(brief)) // slots, longer - micro_batches
            put_in = [later(long[cut : cut + slots], number * cycle) for number in range(periods)]
            assert [*brief[:cut], *(slot for block in put_in for slot in block), *later(brief[cut:], added)] == list(long)


def later(slots, micro_batches):
    return [Slot(kind, stage, micro_batch + micro_batches) for kind, stage, micro_batch in slots]


def test_blocking_sends_have_places_of_their_own_in_every_schedule():
    assert step_of(job(pipeline={"size": 4, "overlap_sends": False})).method == "whole"


@pytest.mark.parametrize("name", ["gpipe", "pipedream"])
def test_a_schedule_that_keeps_every_micro_batch_in_flight_has_no_periods(name):
    if name == "gpipe":
        assert repetitions(schedule(name, 4, 16), schedule(name, 4, 64)) == {}
    for size in (2, 4):
        assert step_of(job(pipeline={"size": size, "schedule": name})).method == "whole"


def test_only_long_steps_are_worth_it():
    assert shorter(4, 16) == ()
    assert shorter(1, 4096) == (9, 5)


@pytest.mark.parametrize(
    "parallel",
    [
        {"data": {"strategy": "ddp"}},
        {"data": {"strategy": "zero3"}},
        {"tensor": {"size": 2}, "data": {"strategy": "fsdp"}},
        {"pipeline": {"size": 4}, "data": {"strategy": "zero1"}},
        {"pipeline": {"size": 2, "schedule": "interleaved", "virtual_stages": 2}},
        {"pipeline": {"size": 4, "schedule": "zb-h1"}},
        {"pipeline": {"size": 4, "schedule": "zb-h2"}},
        {"pipeline": {"size": 2, "schedule": "v-half"}},
        {"pipeline": {"size": 2, "schedule": "v-min"}},
        {"pipeline": {"size": 2, "schedule": "interleaved-zb", "virtual_stages": 2}},
    ],
    ids=str,
)
def test_a_step_from_periods_takes_what_the_whole_takes(parallel):
    built = job(**parallel)
    step, run = step_of(built), execute(built)
    assert (step.method, step.built.training.micro_batches) == ("periods", MICRO_BATCHES)
    assert step.micro_batches_simulated <= 2 * MICRO_BATCHES / 3
    assert step.makespan == step.step_time == pytest.approx(run.makespan, rel=1e-11)


def test_a_smaller_last_micro_batch_stays_the_last():
    built = job(training={"micro_batch": 4, "global_batch": 1000, "partial_micro_batch": True}, data={"strategy": "ddp"})
    assert (built.training.last_micro_batch, step_of(built).method) == (1, "periods")
    assert step_of(built).makespan == pytest.approx(execute(built).makespan, rel=1e-11)


def test_ranks_that_drift_apart_are_simulated_to_the_end():
    """A slow rank of DDP falls behind with every micro-batch until the gradients are reduced: no state comes back."""
    built = job(data={"strategy": "ddp"}, variability={"slow": [{"rank": 3, "speed": 0.8}]})
    step = step_of(built)
    assert step.method == "whole"
    assert step.makespan == execute(built).makespan


def test_traffic_that_comes_and_goes_is_not_left_out():
    stream = {"from": "gpu0", "to": "gpu1"}
    method = {}
    for name, traffic in (
        ("stream", {"rate": "1 GB/s"}),
        ("once", {"bytes": "10 MB", "at": "1 s"}),
        ("repeated", {"bytes": "10 MB", "every": "3 ms"}),
    ):
        method[name] = step_of(job(cluster={"background": [stream | traffic]}, data={"strategy": "zero1"})).method
    assert method == {"stream": "periods", "once": "whole", "repeated": "whole"}


def test_close_to_the_capacity_memory_is_that_of_the_whole_step():
    roomy = step_of(job(pipeline={"size": 4})).memory
    spare = roomy.capacity_bytes - max(device.device_used_bytes for device in roomy.devices)
    built = replace(job(pipeline={"size": 4}), memory_reserve=spare)
    whole = memory_of(execute(built), built.cluster, reserve=spare, bytes_per_parameter=built.bytes_per_parameter)
    tight = step_of(built)
    assert (tight.method, tight.micro_batches_simulated) == ("periods", 14)
    assert [replace(device, drawn=None) for device in tight.memory.devices] == [replace(device, drawn=None) for device in whole.devices]


class NoWires:
    def capacity(self, link):
        raise AssertionError(link)


def alternating(seconds):
    """A program of one rank whose micro-batches take `seconds`, forward and backward alike."""
    program = Program(begins={0: []})
    for micro_batch, duration in enumerate(seconds):
        for name in ("F", "B"):
            op = program.add(name, "compute", (Lane(0, COMPUTE),), duration=duration, instance=micro_batch)
            program.begins[0].append(op.index)
    return Engine(program, NoWires()).run()


def test_a_period_is_two_equal_stretches():
    everywhere = {0: Repetition(0, 20, 2)}
    period = period_of(alternating([1.0] * 10), everywhere, 1)
    assert (period.micro_batches, period.seconds) == (1, 2.0)
    assert period.makespan(alternating([1.0] * 10), 90) == 200.0
    assert period_of(alternating([1.0, 2.0] * 5), everywhere, 1) is None
    assert period_of(alternating([1.0, 2.0] * 5), {0: Repetition(0, 20, 4)}, 2).seconds == 6.0
    hidden = alternating([1.0] * 10)
    hidden.program.begins[0][3] = -1
    assert period_of(hidden, everywhere, 1) is None
    # only in what the schedule repeats
    assert period_of(alternating([1.0] * 10), {0: Repetition(0, 5, 2)}, 1) is None

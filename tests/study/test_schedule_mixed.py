"""Tables in which some backwards are whole (B) and others split (I, W), and slots that overlap a forward with a backward."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsim import load
from parsim import simulate as simulate_scenario
from parsim.cli import execute
from parsim.parallel.schedules import Schedule, Slot, check
from parsim.parallel.schedules.custom import SlotTable, read_table
from parsim.parallel.schedules.slot import APART, Overlapped
from parsim.study.schedule import LabResult, ScheduleDeadlockError, simulate
from parsim.study.schedule_inputs import LabSchedule, times
from parsim.study.schedule_text import table_text

# -- DualPipeV, as torch.distributed.pipelining orders it ---------------------------------------------------------------


def dualpipev(p: int, m: int) -> str:
    """The order of ScheduleDualPipeV, which follows github.com/deepseek-ai/DualPipe (dualpipev.py).

    Written from the eight steps that both name; rank r holds stages r and 2p - 1 - r.
    """
    return "\n".join(" ".join(_dualpipev_rank(rank, p, m)) for rank in range(p))


def _dualpipev_rank(rank: int, p: int, m: int) -> Iterable[str]:
    outer, inner = rank, 2 * p - 1 - rank
    forwards, backwards = dict.fromkeys((outer, inner), 0), dict.fromkeys((outer, inner), 0)
    split: deque[str] = deque()

    def forward(stage: int) -> str:
        forwards[stage] += 1
        return f"{stage}F{forwards[stage] - 1}"

    def backward(stage: int, kind: str = "B") -> str:
        backwards[stage] += 1
        if kind == "I":
            split.append(f"{stage}W{backwards[stage] - 1}")
        return f"{stage}{kind}{backwards[stage] - 1}"

    behind = p - 1 - rank
    for _ in range(2 * behind):  # 1: F0
        yield forward(outer)
    for _ in range(rank + 1):  # 2: F0 F1
        yield from (forward(outer), forward(inner))
    for _ in range(behind):  # 3: I1 W1 F1
        yield from (backward(inner, "I"), split.popleft(), forward(inner))
    for number in range(m - 2 * p + rank + 1):  # 4: F0&B1 F1&B0; the very first pair of the last rank runs apart
        first, second = forward(outer), backward(inner)
        yield from (first, second) if number == 0 and rank == p - 1 else (f"({first};{second})OVERLAP_F_B",)
        yield f"({forward(inner)};{backward(outer)})OVERLAP_F_B"
    for _ in range(behind):  # 5: B1 F1&B0
        yield from (backward(inner), f"({forward(inner)};{backward(outer)})OVERLAP_F_B")
    for number in range(2 * (rank + 1)):  # 6: B1 B0, the second half of them split
        yield backward((inner, outer)[number % 2], "BI"[number > rank])
    for _ in range(behind):  # 7: W I0
        yield from (split.popleft(), backward(outer, "I"))
    while split:  # 8: W
        yield split.popleft()


# what ScheduleDualPipeV of PyTorch 2.10 makes for 4 ranks and 8 micro-batches, (F&B) for OVERLAP_F_B
DUALPIPEV = """
0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 (0F7&7B3) (7F4&0B0) 7B4 (7F5&0B1) 7B5 (7F6&0B2) 7B6 (7F7&0B3) 7B7 \
0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7
1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 (1F6&6B2) (6F4&1B0) (1F7&6B3) (6F5&1B1) 6B4 (6F6&1B2) 6B5 (6F7&1B3) 6B6 1B4 6I7 \
1I5 6W7 1I6 1W5 1I7 1W6 1W7
2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 (2F5&5B1) (5F4&2B0) (2F6&5B2) (5F5&2B1) (2F7&5B3) (5F6&2B2) 5B4 (5F7&2B3) 5B5 2B4 5B6 2I5 \
5I7 2I6 2W5 2I7 5W7 2W6 2W7
3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 3F4 4B0 (4F4&3B0) (3F5&4B1) (4F5&3B1) (3F6&4B2) (4F6&3B2) (3F7&4B3) (4F7&3B3) 4B4 3B4 4B5 3B5 4I6 3I6 \
4I7 3I7 4W6 3W6 4W7 3W7
"""


def entry(table: SlotTable, *, overlap: bool = True) -> LabSchedule:
    count = 1 + max(slot.micro_batch for row in table.rows for slot in row)
    return LabSchedule("custom", "own", table.rows, count, overlapped=table.overlapped if overlap else APART)


def split_all(rows: Schedule) -> Schedule:
    """`rows` with I W in place of every B."""
    return tuple(
        tuple(
            part
            for slot in row
            for part in ((Slot("I", *slot[1:]), Slot("W", *slot[1:])) if slot.kind == "B" else (slot,))
        )
        for row in rows
    )  # fmt: skip


def run(own: LabSchedule, passes: str | None = None, **options: object) -> LabResult:
    (result,) = simulate([own], times(passes, **options))
    return result


def test_the_generator_writes_torchs_table():
    assert read_table(dualpipev(4, 8))[::2] == read_table(DUALPIPEV)[::2]


@pytest.mark.parametrize(("p", "m", "one_by_one", "overlapped"), [(4, 8, 25.5, 27), (4, 16, 49.5, 51), (8, 16, 51.5, 55)])
def test_dualpipev(p, m, one_by_one, overlapped):
    """F = I = W = 1 per rank, so that a pass of one of its two stages takes half; B takes I + W."""
    table = read_table(dualpipev(p, m))
    assert check(table.rows, overlapped=table.overlapped) == []
    assert run(entry(table, overlap=False)).makespan == one_by_one
    assert run(entry(SlotTable(split_all(table.rows)))).makespan == one_by_one
    result = run(entry(table))
    assert (result.makespan, result.makespan_one_by_one) == (overlapped, one_by_one)
    assert {rank.in_flight_chunks for rank in result.ranks} == {2 * p + 1}  # DeepSeek's table: 2p + 1 half-chunks


def test_both_passes_of_an_overlapped_slot_begin_and_end_together():
    result = run(entry(read_table(dualpipev(4, 8))))
    boxes = {box.slot: box for box in result.boxes}
    pairs = [(box, boxes[box.overlaps]) for box in result.boxes if box.overlaps is not None]
    assert len(pairs) == 50
    for one, other in pairs:
        assert (one.start, one.end, one.rank) == (other.start, other.end, other.rank)
        assert {one.slot.kind, other.slot.kind} == {"F", "B"}
    messages = {(one.slot, one.start) for one in run(entry(read_table(dualpipev(4, 8))), communication="0.25").messages}
    ends = {box.slot: box.end for box in run(entry(read_table(dualpipev(4, 8))), communication="0.25").boxes}
    assert all(start >= ends[slot] for slot, start in messages)


def test_the_convention_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text(dualpipev(4, 8).replace(" ", ","))
    assert execute(["schedule", "own.csv", "--csv", "again.csv", "--figure", "figure.svg", "--draw"]) == 0
    out = capsys.readouterr().out
    assert "own.csv: 25 overlapped slots (F&B): each begins when the inputs of both are there, takes F + B," in out
    assert "ends both passes at its end. As single passes, F before B, the makespan would be 25.5 units of time." in out
    assert execute(["schedule", "again.csv", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["schedules"]
    assert (document["overlapped_slots"], document["makespan"], document["makespan_one_by_one"]) == (25, 27, 25.5)
    slots = {one["slot"]: one for one in document["slots"]}
    assert slots["F7.4"]["overlaps"] == "B0.0"
    assert (slots["F7.4"]["start"], slots["F7.4"]["end"]) == (slots["B0.0"]["start"], slots["B0.0"]["end"])
    (tmp_path / "apart.csv").write_text("F0.0 B0.0")
    assert execute(["schedule", "apart.csv"]) == 0
    assert "apart.csv: single passes, each rank's one after the other in the order of its row" in capsys.readouterr().out


def test_blocking_messages_refuse_overlapped_slots(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text(dualpipev(4, 8))
    assert execute(["schedule", "own.csv", "--sends", "blocking"]) == 2
    assert "not supported yet with blocking messages" in capsys.readouterr().err


def test_an_overlap_can_deadlock_where_single_passes_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text("F0.0, F0.1&B0.0, B0.1\nF1.0, F1.1, B1.0, B1.1\n")
    assert run(entry(read_table((tmp_path / "own.csv").read_text()), overlap=False)).makespan > 0
    assert execute(["schedule", "own.csv"]) == 4
    err = capsys.readouterr().err
    assert "own.csv:1:7  rank 0 position 1, F0.1&B0.0: deadlock: waits for B1.0, which is at rank 1 position 2" in err
    assert "F0.1&B0.0 (rank 0 position 1, own.csv:1:7) waits for B1.0 (rank 1 position 2, own.csv:2:13), which comes after F1.1" in err


# -- any legal table ----------------------------------------------------------------------------------------------------


@st.composite
def tables(draw: Callable[[st.SearchStrategy[int]], int], overlap: bool = False, even: bool = False) -> SlotTable:
    """A table that can run: slots in an order in which each has its inputs, on the ranks of their stages, some B and some I and W.

    `even`: two ranks with as many stages each.
    """
    stages, count = draw(st.sampled_from([2, 4]) if even else st.integers(1, 5)), draw(st.integers(1, 4))
    chance = Random(draw(st.integers(0, 2**32)))
    homes = [chance.randrange(stages) for _ in range(stages)]
    if even:
        homes = chance.sample([0, 1] * (stages // 2), stages)
    kinds = {(s, i): chance.choice(["FB", "FIW"]) for s in range(stages) for i in range(count)}
    rows: list[list[Slot]] = [[] for _ in range(stages)]
    done: set[tuple[str, int, int]] = set()
    pairs: set[tuple[Slot, Slot]] = set()
    left = [Slot(kind, *key) for key, letters in kinds.items() for kind in letters]
    while left:
        ready = [slot for slot in left if _inputs(slot, stages) <= done]
        slot = chance.choice(ready)
        chosen = [slot]
        mates = [other for other in ready if other.kind in "BI" and homes[other.stage] == homes[slot.stage] and other[1:] != slot[1:]]
        if overlap and slot.kind == "F" and mates and chance.random() < 0.5:
            chosen.append(chance.choice(mates))
            pairs.add((slot, chosen[1]))
        for one in chosen:
            left.remove(one)
            rows[homes[one.stage]].append(one)
            done.add(("G" if one.kind in "BI" else one.kind, *one[1:]))
    used = [tuple(row) for row in rows if row]
    return SlotTable(tuple(used), overlapped=frozenset(pairs))


def _inputs(slot: Slot, stages: int) -> set[tuple[str, int, int]]:
    """What must be done before a slot begins; G is the gradient of a stage's input, which B and I make."""
    kind, stage, i = slot
    if kind == "F":
        return {("F", stage - 1, i)} if stage else set()
    if kind == "W":
        return {("G", stage, i)}
    return {("F", stage, i)} | ({("G", stage + 1, i)} if stage + 1 < stages else set())


def by_hand(rows: Schedule, overlapped: Overlapped, duration: dict[str, float], delay: float) -> float:
    """The makespan, by going through the rows again and again until every slot has its time."""
    stages = 1 + max(slot.stage for row in rows for slot in row)
    homes = {slot.stage: rank for rank, row in enumerate(rows) for slot in row}
    mates = dict(overlapped)
    ready: dict[tuple[str, int, int], float] = {}
    free, at = [0.0] * len(rows), [0] * len(rows)
    while any(at[rank] < len(row) for rank, row in enumerate(rows)):
        before = list(at)
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                slot = row[at[rank]]
                together = [slot, mates[slot]] if slot in mates else [slot]
                needs = [key for one in together for key in _inputs(one, stages)]
                if any(key not in ready for key in needs):
                    break
                arrivals = [ready[key] + (delay if homes[key[1]] != rank else 0.0) for key in needs]
                free[rank] = max(free[rank], *arrivals, 0.0) + sum(
                    duration[one.kind] / sum(home == rank for home in homes.values()) for one in together
                )
                for one in together:
                    ready["G" if one.kind in "BI" else one.kind, one.stage, one.micro_batch] = free[rank]
                at[rank] += len(together)
        assert at != before, "deadlock"
    return max(free)


@settings(max_examples=40)
@given(tables(), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.0, 0.5]))
def test_a_legal_mixture_never_deadlocks(table, forward, inputs, weights, delay):
    assert check(table.rows) == []
    found = run(entry(table), f"F={forward},I={inputs},W={weights}", communication=str(delay)).makespan
    duration = {"F": forward, "I": inputs, "W": weights, "B": inputs + weights}
    assert found == pytest.approx(by_hand(table.rows, APART, duration, delay), rel=1e-12)
    run(entry(table), f"F={forward},I={inputs},W={weights}", communication=str(delay), overlap=False)


@settings(max_examples=25)
@given(tables(), st.integers(0, 3), st.sampled_from(["0", "0.5"]))
def test_whole_backwards_are_split_ones_that_hand_on_late(table, weights, delay):
    """B hands its gradient on when W has ended too: equal to I W where W takes no time, and never shorter."""
    apart = entry(SlotTable(split_all(table.rows)))
    whole, parts = (run(own, f"F=1,I=2,W={weights}", communication=delay).makespan for own in (entry(table), apart))
    assert whole == parts if weights == 0 else whole >= parts


@settings(max_examples=40)
@given(tables(overlap=True))
def test_overlapped_slots_take_the_time_of_both(table):
    own = entry(table)
    assert read_table(table_text(own))[::2] == table[::2]
    try:
        result = run(own, "F=1,I=2,W=1")
    except ScheduleDeadlockError:
        with pytest.raises(AssertionError, match="deadlock"):
            by_hand(table.rows, table.overlapped, {"F": 1, "I": 2, "W": 1, "B": 3}, 0.0)
    else:
        assert result.makespan == pytest.approx(by_hand(table.rows, table.overlapped, {"F": 1, "I": 2, "W": 1, "B": 3}, 0.0), rel=1e-12)
        assert sum(rank.busy for rank in result.ranks) == pytest.approx(sum(end - start for start, end in (b.share for b in result.boxes)))


# -- in a scenario ------------------------------------------------------------------------------------------------------

SCENARIO = {
    "model": {"base": "gpt2", "layers": 8, "tied_embeddings": False},
    "cluster": "4x a100-80gb",
    "training": {"global_batch": 4, "micro_batch": 1, "sequence_length": 128},
}


@settings(max_examples=8)
@given(tables(even=True), st.booleans(), st.sampled_from(["ddp", "zero1", "zero2"]))
def test_a_scenario_runs_what_is_legal(table, blocking, strategy):
    """Gradients of a stage are made by its first B or W and complete with its last."""
    count = 1 + max(slot.micro_batch for row in table.rows for slot in row)
    pipeline = {
        "size": 2,
        "virtual_stages": len({slot.stage for slot in table.rows[0]}),
        "overlap_sends": not blocking,
        "schedule": "".join(" ".join(map(str, row)) + "\n" for row in table.rows),
    }
    changed = {
        "training": {**SCENARIO["training"], "global_batch": 2 * count},
        "parallel": {"data": {"size": 2, "strategy": strategy}, "pipeline": pipeline},
    }
    report = simulate_scenario(load({**SCENARIO, **changed}))
    assert report.document()["step_time_s"] > 0


def test_a_scenario_takes_overlapped_slots(tmp_path):
    table = tmp_path / "own.csv"
    table.write_text(dualpipev(2, 4))
    file = tmp_path / "scenario.yaml"
    file.write_text(
        json.dumps(
            {**SCENARIO, "cluster": "2x a100-80gb", "parallel": {"pipeline": {"size": 2, "virtual_stages": 2, "schedule": str(table)}}}
        )
    )
    assert execute(["check", str(file)]) == 0

"""Schedules that users write: tables and Python functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import PlanError
from parsim.parallel.schedules import Slot, check, overlapped, schedule, to_text
from parsim.parallel.schedules.custom import from_function, from_text, load_function, read_table
from parsim.parallel.schedules.torch_csv import torch_text

slots = st.builds(Slot, st.sampled_from("FBIW"), st.integers(0, 999), st.integers(0, 9999))


@given(slots)
def test_slot_text_both_ways(slot):
    assert Slot.parse(str(slot)) == slot
    assert Slot.parse(f"{slot.stage}{slot.kind}{slot.micro_batch}") == slot


@given(st.lists(st.lists(slots, min_size=1), min_size=1))
def test_table_both_ways(rows):
    expected = tuple(map(tuple, rows))
    assert from_text(to_text(expected)) == expected
    assert from_text("\n".join(",".join(map(str, row)) for row in rows)) == expected


def test_torch_csv():
    """The shape of torch.distributed.pipelining's `_dump_csv`: idle steps are empty cells."""
    text = "0F0,0F1,,,0B0,,0B1\r\n,1F0,1B0,1F1,1B1,,\r\n"
    assert from_text(text) == schedule("1f1b", 2, 2)
    assert from_text("0F0,0I0,0W0") == ((Slot("F", 0, 0), Slot("I", 0, 0), Slot("W", 0, 0)),)


def test_labels_comments_and_separators():
    text = "# two ranks\nrank 0 compute | F0.0; F0.1\tB0.0 B0.1\n\nrank 1: F1.0 B1.0, F1.1 B1.1  # last\n"
    assert from_text(text) == schedule("1f1b", 2, 2)


def test_every_bad_cell_is_reported_with_its_place():
    with pytest.raises(PlanError) as caught:
        from_text("F0.0 X0.1\nF1.0 B1", file="order.csv")
    first, second = caught.value.findings
    assert (first.file, first.line, first.column, first.value) == ("order.csv", 1, 6, "X0.1")
    assert (second.line, second.value) == (2, "B1")


LOWERED = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1UNSHARD,1RECV_F0,1F0,1I0,1SEND_B0,1W0,1RESHARD\n"
"""what torch's `_dump_csv` writes by default (compute_comms): one whole backward, one split"""


def test_a_lowered_table_of_torch_keeps_its_passes():
    table = read_table(LOWERED)
    assert table.rows == from_text("0F0,0B0\n1F0,1I0,1W0")
    assert table.left_out == 9
    assert not check(table.rows)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0SEND_F0,0F0,0B0", "comes before the pass whose result it sends"),
        ("0F0,0RECV_F0,0B0", "comes after the pass that needs it"),
        ("0F0,0B0,0SEND_B1", "has no such pass of stage 0 and micro-batch 1"),
        ("0F0,0B0,3UNSHARD", "the row has no pass of stage 3"),
        ("0F0,0B0,0SEND_B", "of which micro-batch"),
    ],
)
def test_a_message_that_no_pass_needs_is_refused(row, words):
    with pytest.raises(PlanError, match=words):
        from_text(row)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "dualpipev"])
def test_tables_go_to_torch_and_back(name):
    chunks = 2 if name.endswith("v") else 1
    rows = schedule(name, 4, 8, chunks)
    pairs = overlapped(name, 4, 8, chunks)
    table = read_table(torch_text(rows, pairs))
    assert (table.rows, table.overlapped) == (rows, pairs)


def test_a_mixed_table_goes_to_torch_and_back():
    mixed = from_text("0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1I1,1W1")
    assert not check(mixed)
    assert torch_text(mixed) == "0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1I1,1W1\n"


OVERLAPS = ["F0.1&B1.0", "B1.0&F0.1", "0F1&1B0", "(0F1&1B0)", "(F0.1 & B1.0)", "(0F1;1B0)OVERLAP_F_B"]


@pytest.mark.parametrize("cell", OVERLAPS)
def test_an_overlapped_slot_is_read_in_every_spelling(cell):
    table = read_table(f"F0.0 {cell},B0.1")
    pair = (Slot("F", 0, 1), Slot("B", 1, 0))
    assert table.rows == ((Slot("F", 0, 0), *pair, Slot("B", 0, 1)),)
    assert table.overlapped == {pair}
    assert table.places[0][1] == table.places[0][2] == (1, 6)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("F0.1&B1.0&W1.0", "overlaps 3 passes"),
        ("(0F1)OVERLAP_F_B", "overlaps 1 passes"),
        ("(0F1;1SEND_B0)OVERLAP_F_B", "not supported yet"),
        ("F0.1&", "'' is not a slot"),
        ("&", "'' is not a slot"),
        ("()OVERLAP_F_B", "overlaps 1 passes"),
    ],
)
def test_an_overlapped_slot_that_is_none(cell, words):
    with pytest.raises(PlanError, match=words):
        read_table(cell)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("F0.0 F0.1&F0.2", "F0.1&F0.2: an overlapped slot is one forward and one backward"),
        ("F0.0&W0.1", "F0.0&W0.1: an overlapped slot is one forward and one backward"),
        ("F0.0 F0.1&B0.1 B0.0", "rank 0 position 1, F0.1&B0.1: B0.1 needs what F0.1 makes"),
        ("F0.0&B0.1 F0.1 B0.0", "rank 0 position 1, B0.1: comes before F0.1 at position 2"),
    ],
)
def test_passes_that_cannot_overlap(text, words):
    table = read_table(text)
    assert any(words in finding.message for finding in check(table.rows, overlapped=table.overlapped))


def test_a_function_may_overlap_passes():
    table = from_function(lambda p, m, v: [["F0.0", "F0.1&B0.0", "B0.1"]], 1, 2)
    assert table.overlapped == {(Slot("F", 0, 1), Slot("B", 0, 0))}
    assert check(table.rows, overlapped=table.overlapped) == []


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing", ",,,\n"])
def test_an_empty_table_is_refused(text):
    with pytest.raises(PlanError, match="no rows"):
        from_text(text)


SOURCE = """
def as_text(stages, micro_batches, virtual_stages):
    for stage in range(stages):
        yield " ".join(f"{kind}{stage}.{i}" for kind in "FB" for i in range(micro_batches))

def as_tuples(stages, micro_batches, virtual_stages):
    return [[(kind, stage, i) for kind in "FB" for i in range(micro_batches)] for stage in range(stages)]

def fails(stages, micro_batches, virtual_stages):
    yield "F0.0"
    raise RuntimeError("no more")

def strange(stages, micro_batches, virtual_stages):
    return [[("F", 0)]]

def nothing(stages, micro_batches, virtual_stages):
    return []

constant = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("name", ["as_text", "as_tuples"])
def test_a_function_makes_a_schedule(file, name):
    rows = from_function(load_function(f"{file}:{name}"), 3, 4).rows
    assert rows == schedule("gpipe", 3, 4)
    assert check(rows) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", r"fails\(2, 3, 1\) failed with RuntimeError: no more"),
        ("strange", r"strange\(2, 3, 1\), row 0: \('F', 0\) is not a slot"),
        ("nothing", "gave no rows"),
    ],
)
def test_a_function_that_fails_is_reported(file, name, words):
    with pytest.raises(PlanError, match=words):
        from_function(load_function(f"{file}:{name}"), 2, 3)


def test_a_function_that_is_not_there(file, tmp_path):
    with pytest.raises(PlanError, match=r"has no function 'constant'.*as_text"):
        load_function(f"{file}:constant")
    with pytest.raises(PlanError, match="there is no file"):
        load_function("missing.py:make")
    with pytest.raises(PlanError, match="does not name a Python function"):
        load_function("missing.py")
    broken = tmp_path / "broken.py"
    broken.write_text("import nowhere_to_be_found")
    with pytest.raises(PlanError, match="failed with ModuleNotFoundError"):
        load_function(f"{broken}:make")


def test_every_slot_has_its_place():
    table = read_table("# two ranks\nrank 0: F0.10, F0.1,, B0.0\n\nF1.0 B1.0  # last\n")
    assert table.places == (((2, 9), (2, 16), (2, 23)), ((4, 1), (4, 6)))


def test_a_bad_cell_that_another_begins_with_has_its_own_column():
    with pytest.raises(PlanError) as caught:
        from_text("F0.1x F0.1 F0.1x")
    assert [finding.column for finding in caught.value.findings] == [1, 12]

"""Tables that go to torch.distributed.pipelining, as it reads and checks them, and its lowered ones back."""

from __future__ import annotations

import pytest

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

from parsim.parallel.schedules import overlapped, schedule  # noqa: E402
from parsim.parallel.schedules.custom import from_text, read_table  # noqa: E402
from parsim.parallel.schedules.torch_csv import torch_text  # noqa: E402

MIXED = "0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1I1,1W1\n"


@pytest.mark.parametrize(
    ("name", "ranks", "micro_batches"), [("1f1b", 4, 8), ("zb-h1", 4, 8), ("zb-v", 4, 8), ("dualpipev", 4, 8), ("", 2, 2)]
)
def test_torch_reads_what_is_written_and_lowers_it(name: str, ranks: int, micro_batches: int) -> None:
    chunks = 2 if name.endswith("v") else 1
    rows = schedule(name, ranks, micro_batches, chunks) if name else from_text(MIXED)
    pairs = overlapped(name, ranks, micro_batches, chunks) if name else frozenset()
    text = torch_text(rows, pairs)
    order = {rank: [schedules._Action.from_str(cell) for cell in line.split(",")] for rank, line in enumerate(text.splitlines())}
    stages = 1 + max(slot.stage for row in rows for slot in row)
    homes = schedules._validate_schedule(order, ranks, stages, micro_batches)
    lowered = schedules._add_send_recv(schedules_with(order), lambda stage: homes[stage], stages)
    table = read_table("\n".join(",".join(map(str, lowered[rank])) for rank in range(ranks)))
    assert (table.rows, table.overlapped) == (rows, pairs)
    assert table.left_out > 0


def schedules_with(order: dict) -> dict:
    return {rank: schedules._add_unshard_reshard(row) for rank, row in order.items()}

"""Logs of nccl-tests as they are printed, and tables of times."""

import pytest

from parsim.errors import ScenarioError
from parsim.interop.nccl_logs import parse_log, read_log

LOG = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  52741 on   node-17 device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid  52741 on   node-17 device  1 [0x0f] NVIDIA A100-SXM4-80GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    44.22   23.71   23.71      0    43.80   23.94   23.94    N/A
     2097152        524288     float     sum      -1    53.40   39.27   39.27      0    53.11   39.49   39.49    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 31.6
"""
OLD_GATHER = """\
#                                             out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     8388608        262144   float    88.71   94.56   82.74  0e+00    88.50   94.79   82.94  0e+00
"""


def test_both_halves_of_a_line():
    log = parse_log(LOG)
    assert [(s.bytes, s.time, s.in_place) for s in log.samples] == [
        (1048576, pytest.approx(44.22e-6), False), (1048576, pytest.approx(43.80e-6), True),
        (2097152, pytest.approx(53.40e-6), False), (2097152, pytest.approx(53.11e-6), True),
    ]  # fmt: skip
    assert [s.busbw for s in log.of(in_place=True)] == [pytest.approx(23.94e9), pytest.approx(39.49e9)]
    assert (log.ranks, log.nodes, log.device, log.kind) == (2, 1, "NVIDIA A100-SXM4-80GB", None)
    assert log.bus_factor == 1.0


def test_old_columns_are_found_by_the_heading():
    log = parse_log(OLD_GATHER)
    assert [(s.bytes, s.time) for s in log.samples] == [(8388608, pytest.approx(88.71e-6)), (8388608, pytest.approx(88.50e-6))]
    assert log.bus_factor == pytest.approx(7 / 8, rel=1e-3)


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: "])
def test_labels_of_mpi_and_slurm_are_no_columns(prefix):
    marked = "".join(prefix + line + "\n" for line in LOG.splitlines())
    assert parse_log(marked) == parse_log(LOG)


def test_the_program_tells_the_collective():
    assert parse_log("# Collective test starting: all_reduce_perf\n" + LOG).kind == "all_reduce"
    assert parse_log("mpirun -np 2 ./build/sendrecv_perf -b 1M\n" + LOG).kind == "sendrecv"
    assert parse_log("./all_reduce_perf\n./all_gather_perf\n" + LOG).kind is None


def test_machines_are_counted():
    lines = "".join(
        f"#  Rank {rank:2} Group  0 Pid  1 on   node-{rank // 8} device  0 [0x07] NVIDIA H100 80GB HBM3\n" for rank in range(16)
    )
    log = parse_log(lines + OLD_GATHER)
    assert (log.ranks, log.nodes, log.device) == (16, 2, "NVIDIA H100 80GB HBM3")
    assert parse_log(lines + LOG).device is None  # two kinds of cards


def test_a_table(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("# mine\nbytes,time_us,in_place,comment\n1024,12.5,,\n2048,13,true,x\n", encoding="utf-8")
    samples = read_log(path).samples
    assert [(s.bytes, s.time, s.in_place) for s in samples] == [(1024, pytest.approx(12.5e-6), False), (2048, pytest.approx(13e-6), True)]


def test_what_cannot_be_read_is_said_with_its_line():
    with pytest.raises(ScenarioError, match="no measurement"):
        parse_log("hello\n")
    with pytest.raises(ScenarioError, match="no column time_us"):
        parse_log("bytes,ms\n1,2\n")
    with pytest.raises(ScenarioError) as error:
        parse_log("bytes,time_us\n1024,12\n1.5,3\n2048,fast\n", "t.csv")
    assert [(finding.file, finding.line) for finding in error.value.findings] == [("t.csv", 3), ("t.csv", 4)]


def test_lines_that_are_cut_off_are_no_samples():
    assert len(parse_log(LOG + "     4194304       1048576     float     sum      -1    61.18   68.56\n").samples) == 4

"""`parsim diagnose` from the command line: answers, files, logs of NCCL, and what it refuses."""

import json

import pytest

from parsim import load, simulate
from parsim.cli import execute
from parsim.hardware.nccl.cost import collective_cost
from parsim.interop.nccl_logs import parse_debug
from parsim.scenario.build import build
from parsim.study.diagnose_files import saved

SCENARIO = """\
model: {base: gpt2, layers: 1}
cluster: {topology: dgx-a100-80gb, nodes: 2, gpus: 2, placement: scattered}
training: {sequence_length: 256, micro_batch: 1, gradient_accumulation: 1}
parallel: {data: {strategy: ddp}}
"""
DEBUG = """\
node-1:52:60 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
node-1:52:60 [0] NCCL INFO NCCL_ALGO set by environment to Ring.
node-1:52:60 [0] NCCL INFO Using network Socket
node-1:52:61 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/Socket/0
node-1:52:61 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node-1:52:61 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM
node-1:52:60 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels
"""


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(SCENARIO)
    return "job.yaml"


def answer(capsys, *arguments):
    """Exit code, and the document on stdout."""
    code = execute(["diagnose", *arguments, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out)


def test_a_time_alone_says_that_it_cannot_decide(scenario, capsys):
    step = simulate(load(scenario)).step_time
    assert execute(["diagnose", scenario, "--step-time", f"{1.2 * step!r} s"]) == 0
    out = capsys.readouterr().out
    assert "A step time alone cannot distinguish these causes" in " ".join(out.split())
    assert "GEMM efficiency" in out
    assert "NIC bandwidth (ib-hdr)" in out
    assert max(map(len, out.splitlines())) < 140


@pytest.mark.slow
def test_saved_blocks_reproduce_the_measured_step(scenario, capsys, tmp_path):
    measured = 1.2 * simulate(load(scenario)).step_time
    code, document = answer(capsys, scenario, "--step-time", f"{measured!r} s", "--save", "found.yaml")
    assert (code, document["decided"], document["measured"]["step_time_s"]) == (0, False, measured)
    explaining = [row["cause"] for row in document["causes"] if row["explains_alone"] and "unit" in row]
    assert {"gemm", "memory", "clock", "network", "launch", "step_constant", "data_loading"} <= set(explaining)
    for name in explaining:
        assert simulate(load("found.yaml", named=[name])).step_time == pytest.approx(measured, rel=1e-4), name
    assert execute(["diagnose", scenario, "--step-time", "1 s", "--save", "found.yaml"]) == 2
    assert "exists and is not overwritten" in capsys.readouterr().err


def test_what_the_user_gave_stands_in_the_saved_file(tmp_path):
    text = saved("job.yaml", ["training.micro_batch=2"], ["big"], {"gemm": ["cluster.set.device.gemm.efficiency=0.5"]}, "out.yaml")
    assert text.splitlines() == [
        "# One block per explanation; for example: parsim run out.yaml --override big,gemm",
        "extends: job.yaml",
        "training: {micro_batch: 2}",
        "overrides:",
        "  gemm:",
        "    cluster: {set: {device: {gemm: {efficiency: 0.5}}}}",
    ]


def test_a_trace_decides_and_is_shown_beside_the_prediction(scenario, capsys, tmp_path):
    changed = simulate(load(scenario, "software.step_constant=3 ms"))
    with (tmp_path / "trace.json").open("w") as out:
        from parsim.report.chrome_trace import write_chrome_trace

        write_chrome_trace(changed, out)
    code, document = answer(capsys, scenario, "--profile", "trace.json", "--perfetto", "both.json", "--save", "found.yaml")
    assert (code, document["decided"], document["note"]) == (0, True, None)
    assert document["measured"]["step_time_s"] == pytest.approx(changed.step_time, rel=1e-6)
    assert document["trace"]["ranking"][0]["cause"] == "step_constant"
    assert document["trace"]["ranking"][0]["value"] == pytest.approx(3e-3, rel=0.02)
    both = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in both if event["name"] == "process_name"}
    assert {"rank 0: recorded", "rank 0: predicted", "rank 0: predicted with step_constant"} <= names
    assert simulate(load("found.yaml", named=["calibrated"])).step_time == pytest.approx(changed.step_time, rel=0.01)


def nccl_tests(path, slower):
    """What all_reduce_perf prints on the scenario's GPUs if the wires are `slower` times as slow as predicted."""
    built = build(load(path))
    rows = []
    for size in (2**26, 2**28, 2**30):
        micro = collective_cost(built.cluster, built.gpus, "all_reduce", size, built.collectives).time * slower * 1e6
        algbw = size / micro / 1e3
        rows.append(f"{size} {size // 4} float sum -1 {micro:.2f} {algbw:.2f} {algbw:.2f} 0 {micro:.2f} {algbw:.2f} {algbw:.2f} 0")
    ranks = [f"#  Rank {rank:2d} Group 0 Pid 1 on node-{rank} device 0 [0x07] NVIDIA A100-SXM4-80GB" for rank in range(2)]
    head = ["# Collective test starting: all_reduce_perf", *ranks]
    return "\n".join([*head, "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong", *rows]) + "\n"


def test_measured_wires_give_the_step_or_are_ruled_out(scenario, capsys, tmp_path):
    slow = simulate(load(scenario, "cluster.set.links.ib-hdr.bandwidth=x0.5")).step_time
    (tmp_path / "slow.log").write_text(nccl_tests(scenario, 2.0))
    code, document = answer(capsys, scenario, "--step-time", f"{slow!r} s", "--nccl-log", "slow.log")
    wire = document["nccl"]["collective"]
    assert (code, wire["cause"], wire["ranks"], wire["nodes"], wire["sizes"]) == (0, "network", 2, 2, 3)
    assert wire["factor"] == pytest.approx(0.5, rel=1e-3)
    assert wire["step_time_s"] == pytest.approx(slow, rel=0.02)
    assert document["causes"][0]["cause"] == "network"
    (tmp_path / "fine.log").write_text(nccl_tests(scenario, 1.02))
    _, document = answer(capsys, scenario, "--step-time", f"{slow!r} s", "--nccl-log", "fine.log")
    assert document["nccl"]["collective"]["as_assumed"] is True
    assert document["causes"][-1]["cause"] == "network"


def test_paths_in_a_log_of_nccl():
    paths = parse_debug(DEBUG)
    assert (paths.network, paths.channels, paths.version) == ("Socket", 2, "2.21.5")
    assert paths.transports == (("P2P", 2), ("NET/Socket", 1))
    assert paths.environment == (("NCCL_ALGO", "Ring"),)
    assert parse_debug("hello") is None
    direct = "a NCCL INFO Channel 03/0 : 7[3] -> 3[3] [receive] via NET/IBext_v8/3/GDRDMA\n"
    assert parse_debug(direct).transports == (("NET/IB/GDRDMA", 1),)


def test_sockets_where_the_scenario_has_infiniband(scenario, capsys, tmp_path):
    (tmp_path / "debug.log").write_text(DEBUG)
    code, document = answer(capsys, scenario, "--step-time", "1 s", "--nccl-log", "debug.log")
    assert code == 0
    remarks = document["nccl"]["remarks"]
    assert [remark["cause"] for remark in remarks] == ["network", "network"]
    assert "TCP sockets, the scenario has ib-hdr" in remarks[0]["text"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing that was measured was given"),
        (["--step-time", "5 GB"], "expected a time"),
        (["--step-time", "0 s"], "0 s is not above zero"),
        (["--step-time", "-3 s"], "--step-time"),
        (["--peak-memory", "18 s"], "--peak-memory"),
        (["--profile", "none.json"], "none.json  no such file"),
        (["--profile", "job.yaml"], "not JSON"),
        (["--step-time", "1 s", "--perfetto", "x.json"], "--perfetto goes with --profile"),
        (["--step-time", "1 s", "--steps", "3"], "--steps goes with --profile"),
        (["--step-time", "1 s", "--nccl-log", "job.yaml"], "has no information about collectives"),
        (["--step-time", "1 s", "training.micro_batch=0"], "micro_batch"),
    ],
)
def test_what_cannot_be_used_is_said(scenario, capsys, arguments, words):
    assert execute(["diagnose", scenario, *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_every_problem_at_once(scenario, capsys):
    assert execute(["diagnose", scenario, "--step-time", "1 GB", "--peak-memory", "x", "--profile", "none.json"]) == 2
    assert "3 problems." in capsys.readouterr().err

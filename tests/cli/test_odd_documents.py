"""Documents with one odd value or a broken line: a finding, a remark or an answer, never an internal error, and at once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from parsim.cli import execute
from parsim.scenario import files
from parsim.scenario.files import parse_text

DATA = Path(__file__).resolve().parents[1] / "data"
DEVICE: dict[str, Any] = {
    "name": "mine",
    "memory": {"size": "32 GiB", "bandwidth": "900 GB/s"},
    "compute": {"sms": 80, "peak": {"fp32": "15 TFLOP/s", "fp16": "125 TFLOP/s"}},
    "attention": {"mem-efficient": {"forward": 0.4, "backward": 0.3}},
    "features": ["p2p", "mem-efficient"],
}
JOB = {
    "model": {"family": "gpt2", "hidden": 64, "layers": 2, "heads": 2, "vocabulary": 100, "maximum_sequence": 128},
    "cluster": {"topology": {"gpu": "mine.yaml", "count": 2}},
    "training": {"sequence_length": 64, "global_batch": 4, "micro_batch": 1, "precision": "fp16"},
}
SYSTEMS = """\
sizes: [1 MiB, 128 MiB, 512 MiB]
bands: {nvlink: {low: [-0.4, -0.25, -0.25, -0.05], high: [0.4, 0.25, 0.25, 0.05], what: one machine}}
wire: {nvlink3: {rate: 25 GB/s}, pcie4-x16: {rate: 31.5 GB/s}}
systems: {mine: {title: DGX A100, class: nvlink, topology: dgx-a100-80gb, driven_from: nccl-tests}}
"""
MEASURED = "system,collective,gpus,nodes,bytes,time_us,busbw_GBps,algorithm,source,note\n"
SOURCES = "rules: {}\nsources: {mine: {title: runs, source: me, family: mine, settings: {model: gpt2, cluster: dgx-a100-80gb}}}\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_model_with_many_problems_is_read_no_more_often_than_with_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file was read once more for every problem: 20 s for 300 of them."""
    parsed: list[str] = []
    monkeypatch.setattr(files, "parse_text", lambda text, name, **how: parsed.append(name) or parse_text(text, name, **how))
    reads = []
    for problems in (1, 300):
        keys = "".join(f"unknown_{number}: {number}\n" for number in range(problems))
        Path("mine.yaml").write_text(f"base: gpt2\nlayers: 2\n{keys}")
        parsed.clear()
        assert execute(["flops", "mine.yaml", "--sequence", "64"]) == 2
        assert "mine.yaml:3:1  model.unknown_0" in capsys.readouterr().err
        reads.append(parsed.count("mine.yaml"))
    assert 0 < reads[1] <= reads[0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("mine,all_gather,8,10,1048576,70,,auto,me,", "8 GPUs on 10 machines"),
        ("mine,all_gather,1000000000,1,1048576,70,,auto,me,", "1,000,000,000 GPUs on 1 of its machines with 8"),
        ("mine,all_gather,16,1,1048576,70,,auto,me,", "16 GPUs on 1 of its machines with 8"),
        ("mine,all_gather,8,1,1048576,0,,auto,me,", "a time is positive, not 0 s"),
        ("mine,all_gather,8,1,1048576,70\r,,auto,me,", "measurements.csv:2  is no valid CSV: a carriage return"),
    ],
)
def test_measured_collectives(row: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("systems.yaml").write_text(SYSTEMS)
    Path("measurements.csv").write_bytes((MEASURED + row).encode())
    assert execute(["validate", "nccl", "--data", "."]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("topology: 9223372036854775808", "topology is a name or a mapping, not 9223372036854775808"),
        ("topology: dgx-a100-80gb, fabric: 7", "fabric is a mapping, not 7"),
        ("topology: dgx-a100-80gb, set: [x]", "set is a mapping, not ['x']"),
    ],
)
def test_measured_machines(change: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("systems.yaml").write_text(SYSTEMS.replace("topology: dgx-a100-80gb", change))
    Path("measurements.csv").write_text(MEASURED)
    assert execute(["validate", "nccl", "--data", "."]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("", "no source has a row"),
        ("a,1.5,16\r,2\n", "is no valid CSV"),
        ("a,0,16,2\n", "step_time_s is positive, not 0"),
    ],
)
def test_published_runs(rows: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("sources.yaml").write_text(SOURCES)
    Path("mine.csv").write_bytes(f"id,step_time_s,training.global_batch,training.micro_batch\n{rows}".encode())
    assert execute(["validate", "--data", ".", "--grade", "a-priori", "--workers", "1", "--json"]) == 2
    assert said in capsys.readouterr().err


def test_what_nobody_reads_as_a_number_may_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text(json.dumps({**DEVICE, "gemm": {"source": "INF"}}).replace('"INF"', ".inf"))
    Path("job.json").write_text(json.dumps(JOB))
    assert execute(["run", "job.json", "--json", "--no-pictures"]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert next(iter(document["scenario"]["cluster"]["topology"]["devices"].values()))["gemm"]["source"] == "Infinity"


def test_a_refused_value_that_json_has_no_word_for(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text(json.dumps(DEVICE))
    Path("job.yaml").write_text(json.dumps(JOB))
    Path("two.yaml").write_text("base: {extends: job.yaml}\nvary: {parallel.data.strategy: {DDP: ddp, odd: -.inf}}\n")
    assert execute(["compare", "two.yaml", "--json", "--format", "none"]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert document["variants"][1]["errors"][0]["value"] == "-Infinity"


def test_an_imported_value_that_json_has_no_word_for(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("fsdp_config: {fsdp_version: 2}\ndistributed_type: FSDP\nlearning: .inf\nmade: [2026-01-01]\n")
    assert execute(["import", "mine.yaml", "--json"]) == 0
    keys = {key["key"]: key["value"] for key in json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["keys"]}
    assert keys["learning"] == "Infinity"
    assert keys["made"] == ["2026-01-01"]


def test_a_warning_about_a_device_is_a_remark(capsys: pytest.CaptureFixture[str]) -> None:
    sparse = {**DEVICE, "compute": {"sms": 80, "peak": {"fp32": "15 TFLOP/s", "fp16": "624 TFLOP/s"}}}
    Path("mine.yaml").write_text(json.dumps(sparse))
    assert execute(["flops", "gpt2", "--gpu", "mine.yaml"]) == 0
    said = capsys.readouterr().err
    assert re.match(r"warning: .*compute\.peak\.fp16: .*sparsity", said)
    assert said.count("sparsity") == 1


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        ("llama-3.2-1b", {"model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"]}, 2),
        ("mpt-7b", {"expansion_ratio": None}, 0),
    ],
)
def test_configs_without_a_size(name: str, changes: dict[str, Any], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((DATA / "hf" / f"{name}.json").read_text())
    Path("config.json").write_text(json.dumps({**config, **changes}))
    assert execute(["flops", "config.json", "--sequence", "64"]) == code
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize("key", ["ts", "dur"])
def test_an_event_without_a_time_is_not_left_out_silently(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace = json.loads(min((DATA / "kineto").glob("*.json")).read_text())
    number, event = next((number, event) for number, event in enumerate(trace["traceEvents"]) if event.get("ph") == "X")
    event[key] = float("nan")
    Path("trace.json").write_text(json.dumps(trace))
    assert execute(["import", "profile", "trace.json"]) == 2
    assert f"trace.json  event {number} ({event['name']}): {key} is nan, no time" in capsys.readouterr().err

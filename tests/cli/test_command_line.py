"""The command line as a script sees it: exit codes, streams, files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import parsim
from parsim.cli import execute
from parsim.commands.catalogue import LISTED
from parsim.commands.new import EXAMPLE
from parsim.errors import DeadlockError

SCENARIO = """\
model: gpt2
cluster: {topology: dgx-a100-80gb, gpus: 2}
training: {sequence_length: 128, global_batch: 8, micro_batch: 4}
parallel: {data: {strategy: ddp}}
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small valid scenario, alone in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(parsim.__file__).parent.parent)}


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    process = [sys.executable, "-m", "parsim", *arguments]
    return subprocess.run(process, capture_output=True, text=True, check=False, env=ENVIRONMENT | environment)


def imported(*arguments: str) -> set[str]:
    """Top-level names of the modules that an interpreter started with `arguments` imports."""
    process = [sys.executable, "-X", "importtime", *arguments]
    result = subprocess.run(process, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in result.stderr.splitlines() if line.startswith("import time:")}


HEAVY = {"matplotlib", "networkx", "numpy", "pydantic", "ruamel", "simpy"}


def test_help_imports_nothing_heavy() -> None:
    names = imported("-m", "parsim", "--help")
    assert "typer" in names
    assert not names & HEAVY


@pytest.mark.parametrize("arguments", [("run", "--help"), ("--version",), ("list", "models")])
def test_small_questions_import_little(arguments: tuple[str, ...]) -> None:
    # typer itself reads arguments with pydantic
    assert not imported("-m", "parsim", *arguments) & (HEAVY - {"pydantic"})


@pytest.mark.parametrize("module", ["parsim", "parsim.errors", "parsim.kernel", "parsim.model", "parsim.theory", "parsim.units"])
def test_light_rooms_stay_light(module: str) -> None:
    assert not imported("-c", f"import {module}") & HEAVY


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"parsim {parsim.__version__}\n"


def test_no_arguments_is_a_question_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([]) == 0
    out = capsys.readouterr().out
    for verb in ("run", "check", "show", "list", "new", "schema", "explain"):
        assert re.search(rf"^  {verb} ", out, re.MULTILINE)


def test_run_prints_tables_and_writes_files(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "small.yaml"]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("\nWrote parsim-out/small/: report.json, report.html, timeline.svg, memory.svg\n")
    assert captured.err == ""
    written = {path.name for path in (scenario.parent / "parsim-out" / "small").iterdir()}
    assert written == {"report.json", "timeline.svg", "memory.svg", "report.html"}
    document = json.loads((scenario.parent / "parsim-out" / "small" / "report.json").read_text(encoding="utf-8"))
    assert document["parsim"] == 1
    assert document["ranks"]["total"] == 2
    assert document["provenance"]["command"] == "parsim run small.yaml"


def test_run_without_pictures(scenario: Path) -> None:
    assert execute(["run", "small.yaml", "--no-pictures", "--out", "here", "--quiet"]) == 0
    names = sorted(path.suffix for path in (scenario.parent / "here").iterdir())
    assert names
    assert ".svg" not in names


def test_quiet_says_nothing(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "small.yaml", "--quiet", "--no-pictures"]) == 0
    assert capsys.readouterr() == ("", "")


def test_json_is_one_document_and_writes_nothing(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "small.yaml", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["parsim"] == 1
    assert document["version"] == parsim.__version__
    assert document["memory"]["fits"] is True
    assert captured.err == ""
    assert list(scenario.parent.iterdir()) == [scenario]


def test_json_with_out_writes_too(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "small.yaml", "--json", "--out", "here", "--no-pictures"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((scenario.parent / "here" / "report.json").read_text(encoding="utf-8")) == printed


def test_overrides_win_over_the_file(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "small.yaml", "training.micro_batch=2", "cluster.gpus=4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"]["total"] == 4


def test_named_overrides(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario.write_text(SCENARIO + "overrides: {wide: {cluster: {gpus: 4}}, thin: {training: {micro_batch: 2}}}\n", encoding="utf-8")
    assert execute(["run", "small.yaml", "--override", "wide,thin", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ranks"]["total"], document["ranks"]["micro_batches"]) == (4, 1)


def test_unfolded_says_the_same(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = []
    for options in ([], ["--unfolded"]):
        assert execute(["run", "small.yaml", "--json", *options]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    folded, unfolded = documents
    assert unfolded["simulation"]["folded"] is False
    assert unfolded["step_time_s"] == pytest.approx(folded["step_time_s"], rel=1e-9)


MISTAKES = """\
model: gpt2
cluster: {topology: dgx-a100-80gb, gpus: 2}
training: {sequence_length: 128, global_batch: 8, micro_batch: 4}
parallel:
  ppp: 2
  data: {strategy: dpp}
"""


def test_every_mistake_is_one_line_with_its_place(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario.write_text(MISTAKES, encoding="utf-8")
    assert execute(["run", "small.yaml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[-1] == "2 problems. Nothing was simulated."
    assert len(lines) == 3
    assert re.fullmatch(r"small\.yaml:5:3  parallel\.ppp  .*; .*'pp'.*", lines[0])
    assert re.fullmatch(r"small\.yaml:6:\d+  parallel\.data\.strategy  .*ddp.*", lines[1])
    assert list(scenario.parent.iterdir()) == [scenario]


@pytest.mark.parametrize("verb", ["run", "check", "show"])
def test_mistakes_as_json(verb: str, scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario.write_text(MISTAKES, encoding="utf-8")
    assert execute([verb, "small.yaml", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["parsim"] == 1
    assert [error["path"] for error in document["errors"]] == ["parallel.ppp", "parallel.data.strategy"]
    assert document["errors"][0].keys() == {"file", "line", "column", "path", "value", "message", "suggestion"}
    assert (document["errors"][0]["line"], document["errors"][0]["column"]) == (5, 3)


@pytest.mark.parametrize(
    "arguments", [["rnu"], ["run"], ["run", "small.yaml", "--jsn"], ["run", "missing.yaml"], ["run", "small.yaml", "training.micro_bach=1"]]
)
def test_bad_usage(arguments: list[str], scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err
    assert execute([*arguments, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["parsim"] == 1
    assert document["errors"][0]["message"]
    assert list(scenario.parent.iterdir()) == [scenario]


@pytest.mark.parametrize("out", [("--out", ""), ("--out=",)])
def test_an_empty_path_is_not_the_current_folder(out: tuple[str, ...], scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "small.yaml", *out]) == 2
    assert "command line  --out  the path is empty; name a path" in capsys.readouterr().err
    assert [path.name for path in scenario.parent.iterdir()] == ["small.yaml"]


def test_does_not_fit(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "small.yaml", "model=gpt3-13b", "--json"]
    assert execute(arguments) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["memory"]["fits"] is False
    assert document["memory"]["headroom_bytes"] < 0
    assert execute([*arguments, "--allow-oom"]) == 0
    capsys.readouterr()


def raising(error: BaseException):
    def simulate(*arguments: object, **options: object) -> None:
        raise error

    return simulate


def test_deadlock(scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("parsim.run.simulate", raising(DeadlockError("rank 0 | F0.0 >B0.0")))
    assert execute(["run", "small.yaml", "--json"]) == 4
    captured = capsys.readouterr()
    assert json.loads(captured.out)["deadlock"] == "rank 0 | F0.0 >B0.0"
    assert "rank 0 | F0.0 >B0.0" in captured.err


def test_internal_error(scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("parsim.run.simulate", raising(KeyError("lane")))
    assert execute(["run", "small.yaml"]) == 1
    assert capsys.readouterr() == ("", "internal error: KeyError: 'lane'; run with --debug for the traceback\n")
    assert execute(["run", "small.yaml", "--debug"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert execute(["run", "small.yaml", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["errors"][0]["message"] == "internal error: KeyError: 'lane'"
    assert list(scenario.parent.iterdir()) == [scenario]


def test_interrupt(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parsim.run.simulate", raising(KeyboardInterrupt()))
    assert execute(["run", "small.yaml"]) == 130


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_reader_who_leaves_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    listing = [sys.executable, "-m", "parsim", "list"]
    process = subprocess.run(listing, stdout=write, stderr=subprocess.PIPE, text=True, check=False, env=ENVIRONMENT)
    os.close(write)
    assert (process.returncode, process.stderr) == (141, "")


def test_no_color(scenario: Path) -> None:
    result = command("run", "small.yaml", "--no-pictures", FORCE_COLOR="1", NO_COLOR="1")
    assert result.returncode == 0, result.stderr
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", result.stdout)


def test_plain_text_where_there_is_no_terminal(scenario: Path) -> None:
    result = command("run", "small.yaml", "--no-pictures")
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout


def test_check(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["check", "small.yaml"]) == 0
    assert capsys.readouterr().out.startswith("small.yaml: valid\n")
    assert execute(["check", "small.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"parsim": 1, "valid": True, "file": "small.yaml", "warnings": [], "plan": None}
    assert list(scenario.parent.iterdir()) == [scenario]


def test_check_finds_what_only_the_plan_knows(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SCENARIO.replace("gpus: 2", "gpus: 8").replace("{data: {strategy: ddp}}", "{tensor: {size: 8}}")
    scenario.write_text(text, encoding="utf-8")
    assert execute(["check", "small.yaml"]) == 2
    assert re.match(r"small\.yaml:4:\d+  parallel\.tensor\.size  12 heads / tensor size 8 = 1\.5", capsys.readouterr().err)


def test_show_names_origins(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["show", "small.yaml", "training.micro_batch=2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"global_batch: 8\s+# small\.yaml:3", out)
    assert re.search(r"micro_batch: 2\s+# .*command line", out)


def test_show_json_can_be_run_again(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["show", "small.yaml", "--json"]) == 0
    resolved = json.loads(capsys.readouterr().out)["scenario"]
    again = scenario.parent / "again.json"
    again.write_text(json.dumps(resolved), encoding="utf-8")
    times = []
    for file in ("small.yaml", "again.json"):
        assert execute(["run", file, "--json"]) == 0
        times.append(json.loads(capsys.readouterr().out)["step_time_s"])
    assert times[0] == times[1]


def test_show_program(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["show", "small.yaml", "--program"]) == 0
    assert "rank 0 | F0.0 B0.0\n" in capsys.readouterr().out
    assert execute(["show", "small.yaml", "--program", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["program"].startswith("parsim program 1\n")


@pytest.mark.parametrize("kind", LISTED)
def test_list(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["list", kind]) == 0
    names = capsys.readouterr().out.split()
    assert names
    assert execute(["list", kind, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"parsim": 1, kind: names}


def test_list_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["parsim", *LISTED]
    assert "gpt2" in document["models"]
    assert execute(["list"]) == 0
    assert f"models ({len(document['models'])})\n" in capsys.readouterr().out


def test_list_of_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["list", "modles"]) == 2
    assert capsys.readouterr().err.endswith("1 problem.\n")


def test_new_runs_and_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(["new", "demo"]) == 0
    assert capsys.readouterr().out == "Wrote demo.yaml. Next: parsim run demo.yaml\n"
    text = Path("demo.yaml").read_text(encoding="utf-8")
    assert "#" in text
    assert execute(["run", "demo.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["fits"] is True
    assert execute(["new", "demo.yaml"]) == 2
    assert "demo.yaml" in capsys.readouterr().err
    assert Path("demo.yaml").read_text(encoding="utf-8") == text


def test_new_where_nothing_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["new", str(tmp_path / "missing" / "demo")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_new_from_an_unknown_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["new", str(tmp_path / "demo"), "--from", "nothing"]) == 2
    assert EXAMPLE in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["schema"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"model", "cluster", "training", "parallel"} <= document["properties"].keys()


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", "bubble_fraction"]) == 0
    assert "(p - 1) / (m + p - 1)" in capsys.readouterr().out
    assert execute(["explain", "mfu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"parsim", "name", "unit", "text", "formula", "source"}
    assert execute(["explain"]) == 0
    assert "step_time_s" in capsys.readouterr().out.split()


def test_explain_suggests(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", "bubblee"]) == 2
    assert "did you mean 'bubble'" in capsys.readouterr().err


DEADLOCK = """
model: {stages: [{forward: 1 s, backward: 2 s}]}
training: {micro_batch: 1, global_batch: 2}
parallel:
  pipeline:
    size: 2
    schedule: |
      F0.0 B0.0 F0.1 B0.1
      F1.0 F1.1 B1.0 B1.1
cluster: 2x a100-80gb
"""


def test_a_deadlock_has_a_document_and_its_own_exit_code(tmp_path, capsys):
    scenario = tmp_path / "dead.yaml"
    scenario.write_text(DEADLOCK)
    assert execute(["run", str(scenario), "--json"]) == 4
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["step_time_s"] is None
    assert document["deadlock"].startswith("deadlock: 9 of 12 ops never ended")
    assert "circle of waiting" in captured.err
    assert execute(["run", "gpt2-ddp-4x-a100", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(document) - {"deadlock"}
    assert execute(["run", str(scenario), "--out", str(tmp_path / "out")]) == 4
    assert not (tmp_path / "out").exists()


def test_import_topo_writes_a_topology_that_runs(tmp_path, capsys):
    sample = Path(__file__).parent.parent / "data" / "topo-m" / "06-hgx-h100-8gpu-8nic.txt"
    out = tmp_path / "mine.yaml"
    assert execute(["import", "topo", str(sample), "--gpu", "h100", "--nic", "ib-ndr", "--out", str(out)]) == 0
    capsys.readouterr()
    assert execute(["run", EXAMPLE, f"cluster.topology={out}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"]["total"] == 4
    assert execute(["import", "topo", str(sample), "--out", str(out)]) == 2
    (tmp_path / "nonsense.txt").write_text("no matrix here")
    assert execute(["import", "topo", str(tmp_path / "nonsense.txt")]) == 2
    assert "nonsense.txt" in capsys.readouterr().err

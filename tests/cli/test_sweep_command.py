"""parsim sweep as a script sees it: exit codes, streams, files."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from parsim.cli import execute
from parsim.scenario import files
from parsim.study.sweep.study_file import schema

TINY = """\
name: Four unit stages
model: {stages: [{forward: 1 s, backward: 2 s, activation: 1 GiB}]}
cluster: {topology: dgx-a100-80gb, gpus: 4}
training: {micro_batch: 1, global_batch: 8}
parallel: {pipeline: {size: 4, schedule: gpipe}}
"""
WORDS = ("gbs=4,8,128", "schedule=gpipe,1f1b")


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY, encoding="utf-8")


def sweep(*arguments: str) -> int:
    return execute(["sweep", "tiny.yaml", *WORDS, "--workers", "1", "--exhaustive", *arguments])


def test_the_table_and_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("--where", "step_time < 1 min", "--top", "3") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[:9] == [
        "Four unit stages",
        "Minimise step time, where fits; step_time < 1 min",
        "6 points: 6 simulated; 4 keep all constraints.",
        "",
        "#  gbs  schedule  step time [s]  peak memory [GiB]",
        "1    4     gpipe             21               4.52",
        "2    4      1f1b             21               4.52",
        "3    8     gpipe             33               8.52",
        "",
    ]
    assert "1 more; --top shows them." in out
    assert "Best: tensor 1, pipeline 4, data 1, schedule gpipe, ddp, 4 micro-batches, no recomputation on 4 GPUs." in out
    assert "Run it: parsim run tiny.yaml training.global_batch=4 parallel.pipeline.schedule=gpipe" in out
    assert "Steps are of 4 to 8 samples: --maximise samples_per_s ranks by what is done per second." in out
    folder = Path("parsim-out/sweep-tiny")
    assert sorted(path.name for path in folder.iterdir()) == ["best.json", "results.jsonl", "study.json"]
    assert execute(["run", str(folder / "best.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == 21.0


def test_reports_of_the_best_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """What `parsim run` writes, for every row of the table; those of an earlier table go."""
    assert sweep("--top", "2", "--reports") == 0
    folder = Path("parsim-out/sweep-tiny/reports")
    first = sorted(folder.iterdir())
    assert [path.name.partition("-")[0] for path in first] == ["1", "2"]
    for path in first:
        assert sorted(file.name for file in path.iterdir()) == ["memory.svg", "report.html", "report.json", "timeline.svg"]
        assert json.loads((path / "report.json").read_text(encoding="utf-8"))["step_time_s"] == 21.0
    assert sweep("--top", "1", "--reports", "--where", "gbs == 8", "--where", "schedule == '1f1b'") == 0
    (only,) = folder.iterdir()
    assert f"reports/{only.name}/" in capsys.readouterr().out
    assert only not in first
    assert json.loads((only / "report.json").read_text(encoding="utf-8"))["step_time_s"] == 33.0
    assert sweep("--reports", "--json") == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["suggestion"] == "say where: --out DIR"


def test_one_json_document_and_no_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("--json", "--maximise", "samples_per_s", "--minimise", "peak_memory") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    assert document["objectives"] == [
        {"word": "minimise", "metric": "peak_bytes", "unit": "B"}, {"word": "maximise", "metric": "samples_per_s", "unit": "samples/s"},
    ]  # fmt: skip
    assert [row["layer"] for row in document["ranking"]] == [1, 2, 3, 3, 3]
    assert document["best"] == document["ranking"][0]["key"]
    assert len(document["results"]) == 6
    assert document["varied"] == ["training.global_batch", "parallel.pipeline.schedule"]
    assert document["provenance"]["command"] == (
        "parsim sweep tiny.yaml gbs=4,8,128 schedule=gpipe,1f1b --minimise peak_memory --maximise samples_per_s"
    )
    assert not Path("parsim-out").exists()


def test_two_objectives_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("--maximise", "samples_per_s", "--minimise", "peak_memory", "--out", "mine") == 0
    assert "front" in capsys.readouterr().out
    text = Path("mine/pareto.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")


def test_it_goes_on_and_begins_anew(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep("--quiet") == 0
    assert capsys.readouterr().out == ""
    rows = Path("parsim-out/sweep-tiny/results.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("parsim.run.simulate", lambda *_, **__: pytest.fail("simulated again"))
        assert sweep("--where", "bubble < 20 %") == 0
        said = capsys.readouterr().out
    assert "6 points: 6 simulated (6 rows from an earlier run); 1 keep all constraints." in said
    assert execute(["sweep", "tiny.yaml", "gbs=4,16", "--workers", "1"]) == 2
    assert "holds another study: its range is different; start over with --restart" in capsys.readouterr().err
    assert Path("parsim-out/sweep-tiny/results.jsonl").read_bytes() == rows
    assert execute(["sweep", "tiny.yaml", "gbs=4,16", "--workers", "1", "--restart", "--quiet"]) == 0
    assert Path("parsim-out/sweep-tiny/results.jsonl").read_bytes().count(b"\n") == 2


def test_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("--why-not", "all", "--where", "gbs <= 8") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[10:] for line in lines if "schedule=" in line and "Run it" not in line] == [
        "gbs=4 schedule=gpipe    the best",
        "gbs=4 schedule=1f1b     number 2: step time 21 s, as good as the best",
        "gbs=8 schedule=gpipe    number 3: step time 33 s, +57.1 % against the best",
        "gbs=8 schedule=1f1b     number 4: step time 33 s, +57.1 % against the best",
        "gbs=128 schedule=gpipe  not simulated: breaks gbs <= 8: training.global_batch is 128",
        "gbs=128 schedule=1f1b   not simulated: breaks gbs <= 8: training.global_batch is 128",
    ]
    assert sweep("--why-not", "gbs=4,schedule=1f1b", "--json") == 0
    assert [one["reason"] for one in json.loads(capsys.readouterr().out)["why_not"]] == ["number 2: step time 21 s, as good as the best"]
    assert sweep("--why-not", "gbs=64") == 2
    assert "no point of the study is called 'gbs=64'" in capsys.readouterr().err


def test_nothing_keeps_the_constraints(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("--where", "step_time < 1 s") == 3
    out = capsys.readouterr().out
    assert "No row keeps all constraints." in out
    assert "5 x breaks step_time < 1 s" in out
    assert "1 x does not fit" in out


def test_mistakes_are_said_at_once_and_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "tiny.yaml", "gbss=4,8", "--where", "step_time < 2 GiB", "--minimise", "sped"]
    assert execute(words) == 2
    err = capsys.readouterr().err
    assert "unknown key 'gbss'; did you mean 'gbs'?" in err
    assert "'step_time < 2 GiB' compares a time with an amount of memory" in err
    assert "there is no figure 'sped' to minimise" in err
    assert "3 problems." in err
    assert execute([*words, "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["errors"]) == 3
    assert not Path("parsim-out").exists()


def test_a_null_objective_says_which_key_turns_it_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("--minimise", "time_to_train") == 2
    assert "it needs training.tokens (or training.examples and training.epochs)" in capsys.readouterr().err


def test_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["sweep", "tiny.yaml", "gbs=4,8", "--seeds", "2", "--workers", "1"]) == 0
    assert "seeds  spread" in capsys.readouterr().out


def test_studies_are_listed_and_run_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["list", "studies"]) == 0
    assert capsys.readouterr().out.split() == files.names("studies")
    assert execute(["sweep", "bubble-of-unit-stages", "--json", "--workers", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["study"] == "Bubble of four stages, unit times"


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["schema", "--study"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()

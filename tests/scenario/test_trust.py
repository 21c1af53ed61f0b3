"""What a scenario may not do without being asked to: run code, read files for a stranger, show what is in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parsim import ParsimError, compare, load, schedule, simulate, size, sweep
from parsim.cli import execute
from parsim.scenario.json_schema import schema
from parsim.study.sweep.space import evaluate_all

STRATEGY = """\
from pathlib import Path
from parsim.parallel.ddp import DistributedDataParallel

Path(__file__).with_name("ran").touch()

class Mine(DistributedDataParallel):
    pass

def rows(p, m, v):
    return [[(k, s, i) for k in "FB" for i in range(m)] for s in range(p)]
"""
BASE = """\
model: {stages: [{forward: 1 s, backward: 2 s}]}
cluster: {topology: dgx-a100-80gb, gpus: 2}
training: {micro_batch: 1, global_batch: 2}
"""
OWN_STRATEGY = "parallel: {data: {strategy: 'mine.py:Mine'}}\n"
OWN_SCHEDULE = "parallel: {pipeline: {size: 2, schedule: 'mine.py:rows'}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARSIM_TRUST_CODE", raising=False)
    (tmp_path / "mine.py").write_text(STRATEGY)
    (tmp_path / "job.yaml").write_text(BASE + OWN_STRATEGY)
    (tmp_path / "piped.yaml").write_text(BASE + OWN_SCHEDULE)
    (tmp_path / "plain.yaml").write_text(BASE)
    (tmp_path / "study.yaml").write_text("scenario: plain.yaml\naxes: {parallel.data.strategy: [ddp, 'mine.py:Mine']}\n")
    (tmp_path / "pair.yaml").write_text(
        "base: plain.yaml\n"
        "variants:\n  one: {parallel: {data: {strategy: 'mine.py:Mine'}}}\n"
        "  two: {parallel: {data: {strategy: 'mine.py:Mine'}}}\n"
    )
    return tmp_path


COMMANDS = [
    "run {job} --no-pictures --quiet", "check {job}", "show {job} --program",
    "explain {job} --workers 1 --quiet", "timeline {job} --figure t.svg",
    "trace {job} --save t.json", "diagnose {job} --step-time 3s",
    "compare {job} training.global_batch=2,4 --workers 1 --strict --format none",
    "sweep {job} training.global_batch=2,4 --workers 1",
]  # fmt: skip


@pytest.mark.parametrize(("command", "job"), [*((command, "job.yaml") for command in COMMANDS), (COMMANDS[1], "piped.yaml")])
def test_no_command_runs_code_unless_told_to(folder: Path, capsys: pytest.CaptureFixture[str], command: str, job: str) -> None:
    words = command.format(job=job).split()
    assert execute(words) == 2
    _, error = capsys.readouterr()
    assert not (folder / "ran").exists()
    assert f"{job}:4:" in error or words[0] == "compare"
    assert (
        "refers to Python code in mine.py; parsim does not run it without --trust-code; if you trust the file, "
        "add --trust-code or set PARSIM_TRUST_CODE=1" in error
    )
    assert execute([*words, "--trust-code"]) in (0, 3), capsys.readouterr().err
    assert (folder / "ran").exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("export job.yaml --to megatron", "not run"),
        ("schedule mine.py:rows -p 2 -m 2", "not run"),
        ("schedule gpipe mine.py:rows -p 2 -m 2", "not run"),
        ("size llama-2-70b --tokens 1B --on hgx-h100 --days 9 --gpus 8 --workers 1 --set parallel.data.strategy=mine.py:Mine", "not run"),
        ("run plain.yaml parallel.data.strategy=mine.py:Mine", "not run"),
        ("run plain.yaml parallel.data.strategy=missing.py:Mine", "in missing.py; parsim does not run it"),
        ("run plain.yaml parallel.pipeline.schedule=mine.py", "not run"),
        ("compare pair.yaml --workers 1 --strict --format none", "not run"),
    ],
)
def test_nor_does_any_other_way_in(folder: Path, capsys: pytest.CaptureFixture[str], command: str, said: str) -> None:
    assert execute(command.split()) == 2
    out, error = capsys.readouterr()
    assert said in out + error
    assert not (folder / "ran").exists()


def test_a_study_marks_the_candidates_whose_code_it_may_not_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statuses = {row["parallel.data.strategy"]: row["status"] for row in sweep("study.yaml")}
    assert statuses == {"ddp": "fits", f"{folder}/mine.py:Mine": "refused"}
    assert not (folder / "ran").exists()
    assert execute(["sweep", "study.yaml", "--workers", "2", "--trust-code", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["ranking"]) == 2
    assert document["provenance"]["trusted_code"] == ["mine.py"]
    assert document["provenance"]["command"].endswith("--trust-code")


def test_python_asks_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[bool], object]] = [
        lambda trust: simulate("job.yaml", trust_code=trust),
        lambda trust: load("job.yaml", trust_code=trust),
        lambda trust: simulate(load("plain.yaml"), "parallel.data.strategy=mine.py:Mine", trust_code=trust),
        lambda trust: schedule("mine.py:rows", p=2, m=2, trust_code=trust),
        lambda trust: sweep("job.yaml", "training.global_batch=2,4", trust_code=trust),
    ]
    for question in asked:
        with pytest.raises(ParsimError, match="not run"):
            question(False)
        question(True)
    assert [run.status for run in compare("job.yaml", "plain.yaml")] == ["refused", "fits"]
    assert [run.status for run in compare("job.yaml", "plain.yaml", workers=2, trust_code=True)] == ["fits", "fits"]
    own = {"set": {"parallel.data.strategy": ["mine.py:Mine"]}}
    with pytest.raises(ParsimError, match="not run"):
        size("llama-2-70b", tokens="1B", days=9, on="hgx-h100", workers=1, **own)
    monkeypatch.setenv("PARSIM_TRUST_CODE", "1")
    assert simulate("job.yaml").document()["provenance"]["trusted_code"] == ["mine.py"]
    monkeypatch.setenv("PARSIM_TRUST_CODE", "0")
    with pytest.raises(ParsimError, match="not run"):
        load("job.yaml")


def test_trust_travels_with_a_candidate_and_not_with_a_scenario_file(folder: Path) -> None:
    """What a worker gets says itself whether it may run code; a resolved scenario does not."""
    study = sweep("job.yaml", "training.global_batch=2,4", trust_code=True)
    candidate = next(place.candidate for place in study.places if place.candidate is not None)
    assert [row["status"] for row in evaluate_all([(candidate, {}), (candidate._replace(trust_code=False), {})])] == [
        "fits",
        "refused",
    ]
    report = simulate("job.yaml", trust_code=True).document()
    with pytest.raises(ParsimError, match="not run"):
        simulate(report["scenario"])


def test_a_report_says_what_ran(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "job.yaml", "--json", "--trust-code"]) == 0
    origin = json.loads(capsys.readouterr().out)["provenance"]
    assert origin["trusted_code"] == ["mine.py"]
    assert origin["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert origin["command"] == "parsim run job.yaml --trust-code"
    assert execute(["run", "plain.yaml", "--json", "--trust-code"]) == 0
    origin = json.loads(capsys.readouterr().out)["provenance"]
    assert (origin["trusted_code"], origin["command"]) == ([], "parsim run plain.yaml")


# -- a text from a stranger --------------------------------------------------------------------------------------------

STRANGE = "model: gpt2\ncluster: {topology: dgx-a100-80gb, gpus: 2}\ntraining: {micro_batch: 1, global_batch: 2, sequence_length: 64}\n"
PROBE = """
import json, sys
import parsim.report.plots.figure
from parsim import ParsimError, load, simulate
opened, said = [], []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
for text, *overrides in json.load(sys.stdin):
    try:
        simulate(load(text, *overrides, trusted=False)).document()
        said.append("simulated")
    except ParsimError as error:
        said.append(str(error))
read = [path for path in opened if "secret." in path]
print(json.dumps({"said": said, "read": read}))
"""
PLACES = [
    ("model: gpt2", "model: SECRET"),
    ("model: gpt2", "model: {base: SECRET}"),
    ("model: gpt2", "extends: SECRET\nmodel: gpt2"),
    ("topology: dgx-a100-80gb", "topology: SECRET"),
    ("topology: dgx-a100-80gb", "topology: 4x SECRET"),
    ("topology: dgx-a100-80gb", "topology: {gpu: SECRET, count: 4}"),
    ("topology: dgx-a100-80gb", "topology: {node: {gpus: 2, device: [a100-80gb, SECRET]}, links: {}}"),
    ("training:", "software: {profile: SECRET}\ntraining:"),
    ("training:", "parallel: {pipeline: {size: 2, schedule: SECRET}}\ntraining:"),
    ("training:", "parallel: {data: {strategy: 'CODE:Mine'}}\ntraining:"),
    ("training:", "parallel: {pipeline: {size: 2, schedule: 'CODE:rows'}}\ntraining:"),
    ("model: gpt2", "extends: [SECRET]\nmodel: gpt2"),
    ("topology: dgx-a100-80gb, gpus: 2", "nodes: [{use: SECRET, count: 1}, {use: dgx-a100-80gb, count: 1}]"),
    ("gpus: 2}", "gpus: 2, set: {node: {device: SECRET}}}"),
    ("training:", "parallel: {expert: {imbalance: {histogram: SECRET}}}\ntraining:"),
    ("training:", "variability: SECRET\ntraining:"),
    ("training:", "variability: {profile: SECRET}\ntraining:"),
    ("training:", "economics: {gpu_hour: 2 USD, failures: SECRET}\ntraining:"),
]


def test_nothing_is_read_for_a_stranger(folder: Path) -> None:
    """Not relative to the working directory, not by a whole path, not from the command line, not beside a file of the catalogue."""
    (folder / "secret.yaml").write_text("name: password-123\nfamily: gpt2\nmodel: gpt2\n")
    (folder / "secret.py").write_text(STRATEGY)
    texts = [
        [STRANGE.replace(before, after).replace("SECRET", f"{at}/secret.yaml").replace("CODE", f"{at}/secret.py")]
        for before, after in PLACES
        for at in (".", folder)
    ]
    texts += [[STRANGE, f"model={folder}/secret.yaml"], [STRANGE, f"parallel.data.strategy={folder}/secret.py:Mine"]]
    environment = {**os.environ, "PARSIM_TRUST_CODE": "1"}
    command = [sys.executable, "-c", PROBE]
    asked = subprocess.run(command, input=json.dumps([*texts, [STRANGE]]), capture_output=True, text=True, env=environment, check=True)
    answer = json.loads(asked.stdout)
    assert answer["read"] == []
    assert [said for said in answer["said"][:-1] if "password" in said or said == "simulated"] == []
    assert answer["said"][-1] == "simulated"
    assert not (folder / "ran").exists()


def _leaves(schema: dict[str, Any], node: dict[str, Any], path: str = "") -> Iterator[str]:
    """The dotted keys of the JSON schema that hold no further keys."""
    for one in (*node.get("allOf", ()), *node.get("anyOf", ())):
        yield from _leaves(schema, one, path)
    if node.get("$ref", "").startswith("#/definitions/"):
        yield from _leaves(schema, schema["definitions"][node["$ref"].rpartition("/")[2]], path)
    for key, below in node.get("properties", {}).items():
        if key not in ("extends", "overrides", "study"):
            yield f"{path}{key}"
            yield from _leaves(schema, below, f"{path}{key}.")


def test_no_key_at_all_reads_a_file_for_a_stranger(folder: Path) -> None:
    """Whatever keys the schema may get: each is given a path, and nothing there is opened or run."""
    (folder / "secret.yaml").write_text("name: password-123\nfamily: gpt2\nmodel: gpt2\n")
    whole = schema()
    keys = sorted(set(_leaves(whole, whole)) - {"name"})
    assert {"model", "cluster.topology", "software.profile", "variability.profile", "economics.failures"} < set(keys)
    command = [sys.executable, "-c", PROBE]
    texts = [[STRANGE, f"{key}=./secret.yaml"] for key in keys]
    asked = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    answer = json.loads(asked.stdout)
    assert answer["read"] == []
    accepted = [key for key, said in zip(keys, answer["said"], strict=True) if said == "simulated"]
    assert accepted == ["cluster.fabric.link"]  # a name in the topology's own list, which one machine never looks up


def test_a_stranger_may_name_what_the_catalogue_has(folder: Path) -> None:
    plain = load(STRANGE, trusted=False)
    assert plain.with_overrides("training.micro_batch=2").settings.training.micro_batch == 2
    assert load({"extends": "gpt2-ddp-4x-a100", "name": "mine"}, trusted=False).hash() == load("gpt2-ddp-4x-a100").hash()
    assert load(STRANGE.replace("gpt2", "openai-community/gpt2"), trusted=False).name == "scenario"
    with pytest.raises(ParsimError, match="<text>:1:1  model  '/etc/hostname' names a file, and no files are read for this text"):
        load(STRANGE.replace("gpt2", "/etc/hostname"), trusted=False)
    with pytest.raises(ParsimError, match="is a path, and no files are read"):
        load(folder / "plain.yaml", trusted=False)
    with pytest.raises(ParsimError, match="expected a mapping of keys"):
        load("plain.yaml", trusted=False)
    with pytest.raises(ValueError, match="leave one of them out"):
        load(STRANGE, trusted=False, trust_code=True)


# -- files that are not what they are named as -------------------------------------------------------------------------

LEAKS = {
    "one line": "s3cret-host\n",
    "lines": "root:x:0:0:s3cret:/root:/bin/bash\nuser: s3cret: more\n",
    "other keys": "github.com: {oauth_token: s3cret}\nother: s3cret\n",
    "twice": "s3cret: 1\ns3cret: 2\n",
    "alias": "a: *s3cret\n",
    "cycle": "a: &s3cret [*s3cret]\n",
    "tag": "a: !s3cret {b: 1}\n",
    "quoted": "a: 's3cret\n",
    "list": "- s3cret\n",
    "wide": "s3cret：1\ns3cret, more: 1\n",
    "key": "{s3cret: 1}: 2\n",
}
REFERENCES = (
    "model=F", "model.base=F", "cluster.topology=F", "cluster.topology={node: {gpus: 2, device: F}, links: {}, name: x}",
    "software.profile=F", "parallel.pipeline.schedule=F", "extends",
)  # fmt: skip


@pytest.mark.parametrize("content", LEAKS)
@pytest.mark.parametrize("key", REFERENCES)
def test_no_error_quotes_a_file_that_is_something_else(folder: Path, capsys: pytest.CaptureFixture[str], key: str, content: str) -> None:
    (folder / "notes.yaml").write_text(LEAKS[content], encoding="utf-8")
    extends = "extends: ./notes.yaml\n" if key == "extends" else ""
    (folder / "job.yaml").write_text(extends + BASE.replace("model: {stages: [{forward: 1 s, backward: 2 s}]}", "model: gpt2"))
    arguments = [] if key == "extends" else [key.replace("F", "./notes.yaml")]
    assert execute(["check", "job.yaml", "training.sequence_length=64", *arguments, "--json"]) == 2
    out, error = capsys.readouterr()
    assert "s3cret" not in out + error
    assert "notes.yaml" in out + error


def test_looking_at_a_scenario_runs_nothing(folder: Path) -> None:
    assert execute(["show", "job.yaml", "--trust-code"]) == 0
    assert not (folder / "ran").exists()

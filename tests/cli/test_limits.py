"""Counts that nobody can simulate are refused before anything of that size is made: 2 s of CPU, 300 MB, a short message."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from parsim.cli import execute
from parsim.errors import MOST_PROBLEMS, InputError
from parsim.limits import MOST_PASSES, MOST_VALUES, beyond
from parsim.parallel.schedules import check, schedule
from parsim.parallel.schedules.custom import from_text
from parsim.scenario.files import exists
from parsim.scenario.load import load

BASE = {
    "model": "gpt2",
    "cluster": "8x a100-80gb",
    "training": {"micro_batch": 1, "gradient_accumulation": 1, "sequence_length": 128},
    "parallel": {"data": {"strategy": "ddp"}},
}
MLP = {"shape": [8], "dtype": "fp32"}


def with_(**sections):
    merged = dict(BASE)
    for key, value in sections.items():
        both = key in ("training", "parallel") and isinstance(value, dict)
        merged[key] = {**BASE[key], **value} if both else value
    return json.dumps(merged)


TEXTS = {
    "layers": with_(model={"base": "gpt2", "layers": 10**9}),
    "hidden": with_(model={"base": "gpt2", "hidden": 10**18}),
    "vocabulary": with_(model={"base": "gpt2", "vocabulary": 10**18}),
    "experts": with_(model={"base": "mixtral-8x7b", "experts": {"count": 10**9}}),
    "repeat": with_(
        model={"input": MLP, "layers": [{"repeat": {"times": 10**5, "layers": [{"repeat": {"times": 10**5, "layers": [{"linear": 8}]}}]}}]}
    ),
    "list of layers": with_(model={"input": MLP, "layers": ["relu"] * 10**6}),
    "list of stages": with_(model={"stages": [{"forward": "1 ms", "backward": "1 ms"}] * 10**5}),
    "unknown keys": "model: gpt2\n" + "".join(f"key{i}: 1\n" for i in range(5000)),
    "unknown keys of a section": with_(training={f"key{i}": 1 for i in range(5000)}),
    "long text": "model: '" + "x" * 9_000_000 + "'\n",
    "long key": json.dumps({"x" * 900_000: 1}),
    "long name": with_(cluster="x" * 900_000),
    "virtual stages": with_(parallel={"pipeline": {"size": 4, "schedule": "interleaved", "virtual_stages": 10**9}}),
    "pipeline": with_(parallel={"pipeline": {"size": 10**9}}),
    "nodes": with_(cluster={"topology": "hgx-h100", "nodes": 10**9}),
    "nodes within the keys' range": with_(cluster={"topology": "hgx-h100", "nodes": 10**6}),
    "box": with_(cluster={"topology": {"gpu": "h100", "count": 10**9}}),
    "short box": with_(cluster="1000000000x h100"),
    "accumulation": with_(training={"gradient_accumulation": 10**12}),
    "micro-batches": with_(training={"gradient_accumulation": None, "global_batch": 8 * 10**7}),
    "micro-batches x stages": with_(training={"gradient_accumulation": 10**6}, parallel={"pipeline": {"size": 8}}),
}
SWEPT = ("micro_batch", "gradient_accumulation", "sequence_length", "global_batch")
LINES = {
    "fit": 'fit layers.yaml --on "8x a100-80gb"',
    "fit nodes": "fit gpt2 --on hgx-h100 --nodes 1000000000",
    "lab micro-batches": "schedule 1f1b -p 4 -m 10000000",
    "lab ranks": "schedule 1f1b -p 1000000000 -m 8",
    "lab chunks": "schedule interleaved -p 4 -m 8 -v 1000000000",
    "30 digits": "schedule digits.csv",
    "holes": "schedule holes.csv",
    "long table": "schedule long.csv",
    "bad cells": "schedule bad.csv",
    "collective": "collective all_reduce --on hgx-h100 --nodes 1000000000",
    "sweep": "sweep base.yaml " + " ".join(f"'training.{key}={{from: 1, to: 10000, step: 1}}'" for key in SWEPT),
    "compare": "compare base.yaml training.micro_batch=" + ",".join(map(str, range(1, 5001))),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("large")
    for name, text in TEXTS.items():
        (path / f"{name}.yaml").write_text(text)
    (path / "base.yaml").write_text(json.dumps(BASE))
    (path / "layers.yaml").write_text("{base: gpt2, layers: 1000000000}")
    (path / "digits.csv").write_text("F0.0 F0." + "9" * 30 + " B0.0\n")
    (path / "holes.csv").write_text("F0.0 F0.999998 B0.0\n")
    (path / "long.csv").write_text("F0.0 " * 1_800_000)
    (path / "bad.csv").write_text("X0.0 " * 100_000)
    return path


FORKED = """
import json, os, signal, sys, tempfile
import parsim.run, parsim.scenario.load, parsim.scenario.build, parsim.terminal  # what nearly every command imports
from parsim.cli import execute
for line in sys.stdin:
    with tempfile.TemporaryFile() as out:
        if (child := os.fork()) == 0:
            signal.alarm(120)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            code = execute(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status, used = os.wait4(child, 0)
        out.seek(0)
        said = out.read().decode(errors="replace")[:20_000]
    code = os.waitstatus_to_exitcode(status)
    print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, said]), flush=True)
"""
"""a process that has imported parsim and forks one for every command: each has its own time and memory"""


@pytest.fixture(scope="module")
def measured(folder):
    """``measured(arguments)``: (exit code, CPU beside imports [s], memory [MiB], what was said) of a command in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", FORKED], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask(arguments):
            process.stdin.write(json.dumps(arguments) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


@pytest.mark.parametrize("name", [*TEXTS, *LINES])
def test_refused_at_once(name, measured):
    arguments = shlex.split(LINES[name]) if name in LINES else ["run", f"{name}.yaml", "--no-pictures"]
    code, seconds, mebibytes, said = measured(arguments)
    assert code == 2, said
    assert len(said) < 16_000
    assert "Traceback" not in said
    assert mebibytes < 300
    assert seconds < 30  # at most 1 on a machine of its own; CPU seconds are several times longer on a busy one


def test_the_rule_is_shown():
    (finding,) = beyond(40_000_000, MOST_PASSES, "forward passes", "-m", "10,000,000 micro-batches x 4 stages")
    assert finding.message == "40,000,000 forward passes (10,000,000 micro-batches x 4 stages): at most 1,000,000 are simulated"
    assert beyond(MOST_PASSES, MOST_PASSES, "forward passes", "-m") == []
    assert "4e+30" in beyond(4 * 10**30, 5, "x", "")[0].message
    assert "a number of 401 digits" in beyond(10**400, 5, "x", "")[0].message


def test_unknown_keys_are_counted():
    with pytest.raises(InputError) as caught:
        load({**BASE, **{f"key{i}": 1 for i in range(5000)}})
    *listed, last = str(caught.value).splitlines()
    assert len(listed) == 30
    assert last == "and 4,970 more"


@pytest.mark.parametrize("command", ["schedule table.csv", "check job.yaml"])
def test_as_many_problems_are_listed_everywhere(command, tmp_path, monkeypatch, capsys):
    """In text and as JSON, of a table as of a scenario: 40 forward passes without a backward are 40 problems."""
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("\n".join(" ".join(f"F{stage}.{batch}" for batch in range(20)) for stage in range(2)))
    stages = {"stages": [{"forward": "1 s", "backward": "2 s"}]}
    job = {"model": stages, "cluster": {"topology": "dgx-a100-80gb", "gpus": 2}, "training": {"micro_batch": 1, "global_batch": 20}}
    Path("job.yaml").write_text(json.dumps({**job, "parallel": {"pipeline": {"size": 2, "schedule": "table.csv"}}}))
    assert execute([*command.split(), "--json"]) == 2
    out, err = capsys.readouterr()
    *listed, more, count = err.splitlines()
    assert (len(listed), more, count.partition(".")[0]) == (MOST_PROBLEMS, "and 10 more", "40 problems")
    document = json.loads(out)
    assert (len(document["errors"]), document["more_errors"]) == (MOST_PROBLEMS, 10)


def test_missing_slots_of_a_hole_are_counted():
    (finding,) = check(from_text("F0.0 F0.999998 B0.0"))
    assert finding.message.startswith("at least 1,999,995 slots are missing of 1 stages and 999,999 micro-batches")


@pytest.mark.slow
def test_large_jobs_stay_legal():
    assert len(schedule("1f1b", 64, 4096)) == 64
    assert len(schedule("interleaved", 16, 2048, 8)) == 16
    assert MOST_VALUES >= 30_000


def test_no_file_has_such_a_name():
    assert not exists("x" * 100_000)
    assert not exists("\0")

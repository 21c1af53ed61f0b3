"""One word for one thing: every option of every command stands in a table, and a former spelling still works, with a note."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from parsim.cli import COMMANDS, application, execute
from parsim.command_help import EXAMPLES, GROUPS
from parsim.vocabulary import FORMER, PANELS, modern

SHARED: dict[str, tuple[str, ...]] = {
    "--allow-oom": ("flag",), "--basis": (), "--dask": ("ADDRESS",), "--data": ("DIR",), "--debug": ("flag",), "--dtype": (),
    "--exhaustive": ("flag",), "--figure": ("FILE",), "--from": ("SCENARIO", "TOOL"), "--global-batch": (), "--gpu": ("NAME",),
    "--gpus": ("[NAME=]N,N...",), "--json": ("flag",), "--micro-batch": ("N,N...",), "--minimise": ("NUMBER",), "--minimize": ("NUMBER",),
    "--model": (), "--name": (), "--nccl-log": ("FILE",), "--nodes": (), "--on": ("CLUSTER", "CLUSTER,CLUSTER..."), "--out": ("DIR",),
    "--override": ("NAME",), "--precision": (), "--quiet": ("flag",), "--ranks": ("0,8-11", "LIST", "P"), "--recompute": (),
    "--runs": ("N",), "--save": ("DIR", "FILE"), "--sequence": (), "--set": ("KEY=VALUE,VALUE...", "NAME=VALUE"), "--slow-gpu": ("SPEED",),
    "--software": ("PROFILE",), "--source": ("NAME",), "--step-time": ("TIME",), "--strategy": (),
    "--summary": ("flag",), "--title": ("TEXT",), "--tokens": (), "--top": (), "--trust-code": ("flag",),
    "--unfolded": ("flag",), "--variability": ("[NAME=]PROFILE", "PROFILE"), "--width": ("LENGTH",), "--workers": ("N",),
}  # fmt: skip
"""words of several commands -> what their values may be called (or nothing)"""
OWN = {
    "run": "--no-pictures --sensitivity --trace --until",
    "fit": "--batch --beams --context-length --ep --etp --explain --host-memory --inference --kv-dtype --max --offload --optimizer "
    "--paged-block --pp --prefill-tokens --tp --train",
    "show": "--program --written", "schema": "--study", "timeline": "--memory --no-memory --stages --window",
    "compare": "--baseline --format --label --strict", "sweep": "--maximise --maximize --reports --restart --resume --seeds --where "
    "--why-not",
    "collective": "--algorithm --factor --kernels --nccl --protocol --size", "export": "--fsdp-version --to",
    "flops": "--convention --depth --forward --fused --mfu --training --tree",
    "mfu": "--claimed --paper-mfu --paper-tokens-per-s --samples-per-s --tflops --tokens-per-s", "calibrate": "--device --quick --threads",
    "schedule": "--activation --comm --count-from --csv --csv-format --draw --labels --micro-batches --no-captions --sends --stage-times "
    "--times --virtual",
    "size": "--budget --buy --checkpoint-time --days --goodput --gpu-hour --hours --max-gpus --mtbf --power-price --pue --restart-time "
    "--schedule --years",
    "plan": "--headroom --within", "ui": "--no-browser --port", "trace": "--memory-snapshot --merge --most-slices --per-rank --rank",
    "diagnose": "--peak-memory --perfetto --profile --steps", "validate": "--grade", "validate memory": "--every",
    "import config": "--arguments --examples --gradient-accumulation --hf --tokenizer --vocabulary", "import module": "--inputs",
    "import topo": "--cpu --nic --pcie",
}  # fmt: skip
"""words of one command alone: look in `SHARED` first, a second command with the same question takes the same word"""
SECOND = (
    "--jobs", "--processes", "--procs", "--seq", "--seq-len", "--sequence-length", "--mbs", "--batch-size", "--cluster", "--topology",
    "--machine", "--hosts", "--output", "--output-dir", "--directory", "--plot", "--picture", "--chart", "--svg", "--pdf", "--silent",
    "--verbose", "--as-json", "--number-of-gpus", "--num-gpus", "--num-nodes",
)  # fmt: skip
"""other words for things that have one"""


@cache
def commands() -> dict[str, Any]:
    """Every command by its name, groups included."""

    def below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        if name:
            yield name, command
        for word, one in getattr(command, "commands", {}).items():
            yield from below(one, f"{name} {word}".strip())

    return dict(below(typer.main.get_command(application(list(COMMANDS))), ""))


def options(command: Any) -> dict[str, str]:
    """Long options with what their value is called."""
    found = {}
    for one in command.params:
        if one.param_type_name == "option":
            kind = "flag" if one.is_flag else one.metavar or ""
            found |= {word: kind for word in (*one.opts, *one.secondary_opts) if word.startswith("--")}
    return found


def test_every_option_stands_in_the_table() -> None:
    unknown = []
    for name, command in commands().items():
        own = OWN.get(name, "").split()
        for word, kind in options(command).items():
            if word in own:
                assert word not in SHARED, (name, word)
            elif word not in SHARED or (kind and kind not in SHARED[word]):
                unknown.append((name, word, kind))
    assert unknown == []


def test_no_word_belongs_to_two_commands_and_none_has_a_second() -> None:
    words = [word for row in OWN.values() for word in row.split()]
    assert len(words) == len(set(words))
    used = {word for command in commands().values() for word in options(command)}
    assert not used & set(SECOND)
    assert {word for words in PANELS.values() for word in words} <= used | {"--help", "--version"}


def test_former_words_are_gone_and_lead_to_one_that_is_there() -> None:
    known = commands()
    for name, words in FORMER.items():
        here = {word for one, command in known.items() if one.split()[0] == name for word in options(command)}
        assert not here & set(words), name
        assert set(words.values()) <= here, name


@pytest.mark.parametrize(
    ("given", "now", "note"),
    [
        ("compare a --jobs 4", "compare a --workers 4", "--jobs is now called --workers"),
        ("fit m --on c --seq=512 --mbs 2", "fit m --on c --sequence=512 --micro-batch 2", "--seq is now called --sequence"),
        ("fit m --on c --zero 3", "fit m --on c --strategy 3", "--zero is now called --strategy"),
        ("size m --sharding zero1,fsdp", "size m --strategy zero1,fsdp", "--sharding is now called --strategy"),
        ("diagnose a --trace t.json", "diagnose a --profile t.json", "--trace is now called --profile"),
        ("timeline a --out b.svg", "timeline a --figure b.svg", "--out names a folder; the file is now called --figure"),
        ("topology plot a --out=b.png", "topology plot a --figure=b.png", "--out names a folder; the file is now called --figure"),
        ("trace a --out t.json.gz", "trace a --save t.json.gz", "--out names a folder; the file is now called --save"),
        ("schedule gpipe --pdf a.pdf", "schedule gpipe --figure a.pdf", "--pdf is now called --figure"),
        ("import a --out b.yaml", "import a --save b.yaml", "--out is now called --save"),
    ],
)
def test_former_spellings_are_replaced_with_a_note(given: str, now: str, note: str) -> None:
    words, notes = modern(given.split())
    assert words == now.split()
    assert notes[0] == f"note: {note}"


@pytest.mark.parametrize("line", ["timeline a --out dir", "trace a --per-rank --out dir", "run a --trace --out b.svg", "run a -- --jobs"])
def test_what_is_no_former_spelling_stays(line: str) -> None:
    assert modern(line.split()) == (line.split(), [])


def test_the_note_is_on_stderr_and_the_document_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["flops", "gpt2", "--seq", "64", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == "note: --seq is now called --sequence\n"
    assert said.out.startswith("{")


def test_every_command_has_an_example_that_is_one() -> None:
    known = commands()
    assert set(EXAMPLES) == set(known)
    assert {name.split()[0] for name in known} == set(COMMANDS)
    for name, example in EXAMPLES.items():
        words = shlex.split(example)[1:]
        assert modern(words) == (words, []), example
        leaf = known[" ".join(words[:2])] if " ".join(words[:2]) in known else known[words[0]]
        rest = words[len(" ".join(words[:2]).split()) :] if " ".join(words[:2]) in known else words[1:]
        if name != "import":
            leaf.make_context(name, rest)  # raises for an option that is none


def test_help_has_headings_and_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["fit", "--help"]) == 0
    said = capsys.readouterr().out
    for heading in ("Arguments:", "The job:", "The strategy:", "Inference:", "What comes out:", "Example:"):
        assert f"\n{heading}\n" in said
    assert execute(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"{heading}:" in said for heading in GROUPS)
    assert {name for names in GROUPS.values() for name in names} == set(COMMANDS)


def test_nothing_is_written_beside_parsim_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for line in ("run mlp-1x-a100 --no-pictures", "timeline mlp-1x-a100", "trace mlp-1x-a100", "topology plot single-a100"):
        assert execute(line.split()) == 0
    assert [one.name for one in tmp_path.iterdir()] == ["parsim-out"]
    written = {one.name for one in (tmp_path / "parsim-out" / "mlp-1x-a100").iterdir()}
    assert written == {"report.json", "timeline.pdf", "trace.json.gz"}
    capsys.readouterr()

"""Names from files are seen as they are: no escape sequence, no turned direction, no markup reaches a terminal, a page or a script."""

from __future__ import annotations

import io
import json
import subprocess
import xml.dom.minidom
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends import backend_pgf
from matplotlib.font_manager import FontProperties
from rich.console import Console

from parsim import ParsimError, load, simulate
from parsim.cli import execute
from parsim.report.plots.figure import names_in_latex
from parsim.report.tables import print_report

EVIL = "a\x1b[31mred\x1b]0;title\x07\x9b1m\u202egnp\u2066.[bold]b[/bold] $(touch ran)`touch ran` $x_1$ </script><b>'\"; touch ran #\r\0"
SHOWN = "a\\x1b[31mred\\x1b]0;title\\x07\\x9b1m\\u202egnp\\u2066.[bold]b[/bold]"
RAW = "\x1b\x07\x9b\u202e\u2066\r\0"


def job(folder: Path, name: str = EVIL) -> Path:
    tree = {
        "name": name,
        "model": {"name": name, "family": "gpt2", "hidden": 256, "layers": 2, "heads": 4, "vocabulary": 1024, "maximum_sequence": 512},
        "cluster": {"topology": "dgx-a100-80gb", "gpus": 2},
        "training": {"sequence_length": 64, "micro_batch": 1, "global_batch": 2, "precision": "amp-bf16"},
    }
    (folder / "job.yaml").write_text(json.dumps(tree), encoding="utf-8")
    return folder / "job.yaml"


def unseen(text: str) -> set[str]:
    return set(text) & set(RAW)


COMMANDS = [
    "run job.yaml", "check job.yaml", "show job.yaml", "compare job.yaml training.global_batch=2,4 --workers 1 --format svg,html",
    "explain job.yaml --workers 1 --quiet", "timeline job.yaml --out t.svg", "sweep job.yaml training.global_batch=2,4 --workers 1",
    "export job.yaml --to megatron", "diagnose job.yaml --step-time 3s", "check job.yaml model.hidden=\x1b[31m", "check \x1b[31m.yaml",
    "run job.yaml --json", "check job.yaml \x9b=\u202e --json",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str) -> None:
    monkeypatch.chdir(tmp_path)
    job(tmp_path)
    assert execute(command.split(" ")) in (0, 2)
    out, error = capsys.readouterr()
    assert unseen(out + error) == set()
    if command.endswith("--json"):
        json.loads(out)
    if command.startswith(("run", "compare", "sweep")) and not command.endswith("--json"):
        assert SHOWN in "".join(out.splitlines()).replace("  ", " ") or "\\x1b[31mred" in out
    for path in tmp_path.rglob("*.svg"):
        xml.dom.minidom.parseString(path.read_bytes())
    for path in tmp_path.rglob("*.html"):
        assert unseen(path.read_text(encoding="utf-8")) == set()
        assert "</script><b>" not in path.read_text(encoding="utf-8")


def test_the_name_in_a_json_document_is_the_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["show", str(job(tmp_path)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scenario"]["name"] == EVIL


def test_our_own_colours_stay(tmp_path: Path) -> None:
    out = io.StringIO()
    print_report(simulate(job(tmp_path)), Console(file=out, force_terminal=True, width=200, color_system="standard", legacy_windows=False))
    text = out.getvalue()
    assert f"\x1b[1m{SHOWN}" in text, "bold, and what looks like markup or an escape sequence as it is written"
    assert unseen(text) == {"\x1b"}
    assert "\x1b[31mred" not in text


def test_exceptions_too(tmp_path: Path) -> None:
    with pytest.raises(ParsimError) as error:
        simulate({"model": "\x1b[31m", "cluster": "\u202e"})
    assert unseen(str(error.value)) == set()


def test_a_name_is_no_latex() -> None:
    with names_in_latex():
        written = backend_pgf._escape_and_apply_props(r"\input{/etc/hostname} $x$ 50 % a_b^c", FontProperties())
    assert r"\input" not in written.replace(r"\textbackslash{}input", "")
    assert r"\{/etc/hostname\} \$x\$ 50 \% a\_b\textasciicircum{}c" in written


def test_a_file_name_with_a_line_break_ends_no_comment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job(tmp_path).rename(tmp_path / "a\ntraining: {}\x1b.yaml")
    assert execute(["show", str(path)]) == 0
    (tmp_path / "again.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert load(tmp_path / "again.yaml").hash() == load(path).hash()
    path.write_text("model: nothing\n", encoding="utf-8")
    assert execute(["check", str(path)]) == 2
    assert not any(line.startswith("training:") for line in capsys.readouterr().err.splitlines())


@pytest.mark.parametrize("target", ["megatron", "deepspeed", "fsdp"])
def test_a_name_is_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Nor with a line break, which ends a comment."""
    monkeypatch.chdir(tmp_path)
    suffix: dict[str, Any] = {"megatron": "sh", "deepspeed": "json", "fsdp": "yaml"}
    path = job(tmp_path, f"{EVIL}\ntouch ran\u2028touch ran\u0085touch ran")
    written = tmp_path / f"out.{suffix[target]}"
    precision = "bf16-fp32grad" if target == "megatron" else "amp-bf16"
    words = [f"training.precision={precision}", *(["parallel.data.strategy=zero1"] if target != "fsdp" else [])]
    assert execute(["export", str(path), *words, "--to", target, "--out", str(written)]) == 0
    text = written.read_text(encoding="utf-8")
    assert unseen(text) == set()
    if target == "megatron":
        (tmp_path / "torchrun").write_text("#!/bin/bash\nexit 0\n")
        (tmp_path / "torchrun").chmod(0o755)
        subprocess.run(["bash", str(written)], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True, cwd=tmp_path)
        assert not (tmp_path / "ran").exists()
    if target == "deepspeed":
        json.loads(text)


def test_names_of_files_stay_in_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of overrides and scenarios are no paths."""
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    tree = json.loads(job(tmp_path / "in", "../../escaped").read_text(encoding="utf-8"))
    (tmp_path / "in" / "job.yaml").write_text(json.dumps({**tree, "overrides": {"../../../x": {"training": {"global_batch": 4}}}}))
    assert execute(["run", "job.yaml", "--no-pictures", "--quiet"]) == 0
    assert execute(["compare", "job.yaml", "job.yaml+../../../x", "--workers", "1", "--quiet", "--format", "none"]) == 0
    assert execute(["sweep", "job.yaml+../../../x", "training.micro_batch=1,2", "--workers", "1", "--quiet"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["in"]

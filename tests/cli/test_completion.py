"""What TAB offers: in bash itself, and what the scripts of zsh and fish are answered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parsim.cli import COMMANDS, _run, application
from parsim.commands.completion import OFFERED, commands, parameters

OFFERS = {
    "parsim sched": ["schedule"],
    "parsim run gpt2-ddp-4x": ["gpt2-ddp-4x-a100"],
    "parsim run mine": ["mine.yaml"],
    "parsim run fol": ["folder/"],
    "parsim run folder/": ["folder/inner.yml"],
    "parsim run ./mi": ["./mine.yaml"],
    "parsim fit llama-2-70": ["llama-2-70b"],
    "parsim fit llama-2-7b --on hgx-h200": ["hgx-h200"],
    "parsim size llama-2-7b --on hgx-h200,hgx-b20": ["hgx-h200,hgx-b200"],
    "parsim flops gpt2 --gpu rtx-409": ["rtx-4090-24gb"],
    "parsim topology show hgx-h200": ["hgx-h200"],
    "parsim schedule gpipe zb-h": ["zb-h1", "zb-h2"],
    "parsim explain busbw": ["busbw_Bps"],
    "parsim compare zero-nv": ["zero-nvlink"],
    "parsim sweep bubble-of": ["bubble-of-unit-stages"],
    "parsim collective all-g": ["all-gather"],
    "parsim export gpt2-ddp-4x-a100 --to mega": ["megatron"],
    "parsim new mine --from gpt2-ddp-4x": ["gpt2-ddp-4x-a100"],
    "parsim list dev": ["devices"],
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "mine.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner.yml").touch()
    monkeypatch.chdir(tmp_path)


def offered(typed: str, shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What typer's script for a shell is answered."""
    monkeypatch.setenv("_PARSIM_COMPLETE", f"complete_{shell}")
    if shell == "bash":
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    else:
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", typed)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert _run([]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("typed", OFFERS)
def test_what_is_offered(typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert offered(typed, "bash", monkeypatch, capsys).split() == OFFERS[typed]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_the_same(shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = offered("parsim run gpt2-ddp-4x", shell, monkeypatch, capsys)
    assert "gpt2-ddp-4x-a100" in said
    assert "gpt2-xl" not in said


def test_bash_itself_completes(tmp_path: Path) -> None:
    """Its script, as ``parsim --show-completion`` prints it, sourced in a shell that then asks as TAB does."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    program = tmp_path / "parsim"
    program.write_text(f'#!{bash}\nexec {sys.executable} -m parsim "$@"\n')
    program.chmod(0o755)
    from typer.completion import get_completion_script

    script = get_completion_script(prog_name="parsim", complete_var="_PARSIM_COMPLETE", shell="bash")
    asks = 'COMP_WORDS=(parsim run gpt2-ddp-4x); COMP_CWORD=2; _parsim_completion parsim; echo "${COMPREPLY[@]}"'
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    said = subprocess.run([bash, "--norc", "-c", f"{script}\n{asks}"], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["gpt2-ddp-4x-a100"], said.stderr


def test_every_entry_names_a_parameter() -> None:
    assert set(OFFERED) <= set().union(*map(parameters, commands(application(COMMANDS))))

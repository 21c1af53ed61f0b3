"""`parsim import module` where it cannot begin."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parsim.cli import execute


def test_code_runs_only_where_the_user_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file, mark = tmp_path / "model.py", tmp_path / "ran"
    file.write_text(f"open({str(mark)!r}, 'w')\ndef make_model(): ...\n")
    assert execute(["import", "module", f"{file}:make_model"]) == 2
    assert "runs the code of its file: if you trust it, add --trust-code" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch", None)
    assert execute(["import", "module", f"{file}:make_model", "--trust-code"]) == 2
    assert "needs PyTorch, which is not installed; pip install" in capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.parametrize(
    ("words", "message"), [(["model.py"], "names no function"), (["m.py:f", "--dtype", "fp9"], "write fp32, fp16 or bf16")]
)
def test_what_a_user_can_do_wrong(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["import", "module", *words]) == 2
    assert message in capsys.readouterr().err

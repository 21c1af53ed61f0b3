"""Streams that are closed, full or not read: the documented exit code, no traceback, and nothing on the wrong one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a shell and /dev/full")
NO_SPACE = "standard output  cannot be written: No space left on device"
CLOSED = "standard output  cannot be written: Bad file descriptor"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("list models >/dev/full", 2, NO_SPACE),
        ("list models --json >/dev/full", 2, NO_SPACE),
        ("list models >&-", 2, CLOSED),
        ("list models --json >&- <&-", 2, CLOSED),
        ("list models 2>&-", 0, "gpt2-xl"),
        ("check nothing 2>&-", 2, ""),
        ("check nothing --json 2>/dev/full", 2, '"errors": ['),
        ("check nothing --json >/dev/full", 2, "unknown scenario 'nothing'"),
        ("--help >&-", 2, CLOSED),
        ("run --help >/dev/full", 2, NO_SPACE),
        ("run 2>&-", 2, ""),
        ("--version >&- 2>&-", 2, ""),
        ("import - <&-", 2, "standard input  cannot be read: Bad file descriptor"),
        ("list scenarios | true", 141, ""),
        ("--help | true", 141, ""),
        ("list | head -1", 0, "models ("),
    ],
)
def test_streams(line: str, code: int, said: str) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    pipe = "| true" in line
    # the reader has gone before anything is written
    shell = (
        f'set -o pipefail; {{ sleep 0.2; "$PYTHON" -m parsim {line.replace("| true", "")}; }} | true'
        if pipe
        else f'"$PYTHON" -m parsim {line}'
    )
    run = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert run.returncode == code
    printed = run.stdout + run.stderr
    assert said in printed
    assert "Traceback" not in printed
    assert "Exception ignored" not in printed
    assert said or not printed


def test_what_is_written_to_files_does_not_get_what_is_printed(tmp_path: Path) -> None:
    """With stdout closed, the first file that is opened would get its number, and the tables would go into it."""
    environment = {**os.environ, "PYTHON": sys.executable}
    line = '"$PYTHON" -m parsim run gpt2-ddp-4x-a100 --no-pictures --out out >&- 2>&- <&-'
    run = subprocess.run(["bash", "-c", line], capture_output=True, env=environment, timeout=60, check=False, cwd=tmp_path)
    assert run.returncode == 2, "the tables were asked for"
    assert b"Step time" not in b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())

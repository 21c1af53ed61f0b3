"""A thousand mutants of what parsim reads, in processes of their own; CONTRIBUTING.md says how to run many more."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def fuzz(*options: str) -> tuple[int, str]:
    """Exit code and output of the fuzzer."""
    command = [sys.executable, str(Path(__file__).parent), *options]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=1200, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_every_seed_is_a_valid_document() -> None:
    code, said = fuzz("--seeds", "--quick")
    assert code == 0, said


@pytest.mark.slow
def test_no_mutant_of_a_thousand_fails() -> None:
    code, said = fuzz("--mutants", "1000", "--jobs", "2", "--quick")
    assert code == 0, said
    share = re.search(r"passed the reader \((\d+)%\)", said)
    assert share is not None, said
    assert int(share[1]) >= 30, said


def test_a_mutant_is_the_same_again() -> None:
    first, again = (fuzz("--only", "7", "--kind", "topology as a graph") for _ in range(2))
    assert first[0] == again[0]
    assert re.sub(r"[\d.]+ s\n", "", first[1]) == re.sub(r"[\d.]+ s\n", "", again[1])

"""CPU time and memory of whole commands, start of the interpreter included; figures are printed (run with -m benchmark)."""

import os
import shlex
import subprocess
import sys
from statistics import median

import pytest

RUNS = 5
COMMANDS = {
    "--help": 0,
    "fit --help": 0,
    "list": 0,
    "explain mfu": 0,
    "flops llama-2-7b": 0,
    "mfu llama-2-7b --gpu a100-80gb --tokens-per-s 4000": 0,
    "schedule 1f1b -p 4 -m 8": 0,
    "show gpt3-175b-64x-a100": 0,
    "check gpt2-ddp-4x-a100": 0,
    "check gpt3-175b-1024x-a100": 0,
    "run gpt2-ddp-4x-a100 --json": 0,
    "run gpt2-ddp-4x-a100 --out {tmp} --quiet": 0,
    "fit gpt2-xl --on '4x a100-80gb'": 0,
    "fit llama-2-7b --on '4x v100-32gb'": 3,
    "fit llama-2-70b --on '8x a100-80gb' --tp 8": 3,
}
"""command -> exit code"""


@pytest.mark.benchmark
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(command, capsys, tmp_path):
    words = [word.format(tmp=tmp_path / "out") for word in shlex.split(command)]
    seconds, mebibytes = [], []
    for _ in range(RUNS):
        process = subprocess.Popen([sys.executable, "-m", "parsim", *words], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == COMMANDS[command]
        seconds.append(used.ru_utime + used.ru_stime)
        mebibytes.append(used.ru_maxrss / 1024)
    with capsys.disabled():
        print(f"\n{command}: {min(seconds):.2f} s, median {median(seconds):.2f} s, {max(mebibytes):.0f} MiB")

"""Draw the figures of the documentation again: ``python docs/figures/make.py [NAME ...]``.

Each is what one command writes, from scenarios that come with parsim; nothing is edited afterwards. The same version of
matplotlib gives the same bytes.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from shlex import split
from tempfile import TemporaryDirectory

from parsim.cli import execute

MATPLOTLIB = "3.11.2"
"""its version that drew them"""
HERE = Path(__file__).resolve().parent
_STAGES = "parsim timeline gpt2-xl-gpipe-4x-v100 --no-memory"
_ONE_F = "parallel.pipeline.schedule=1f1b training.global_batch=6 --title 'GPT-2 XL on four V100, 1F1B'"
FIGURES = {
    "timeline-1f1b.svg": (
        f"{_STAGES} {_ONE_F} --figure timeline-1f1b.svg",
        "timeline-1f1b.svg",
    ),
    "schedules.svg": ("parsim schedule gpipe 1f1b zb-h1 -p 4 -m 8 --count-from 1 --figure schedules.svg", "schedules.svg"),
    "zero-nvlink.svg": ("parsim compare zero-nvlink --out compared --quiet", "compared/breakdown.svg"),
    "what-if.svg": ("parsim explain llama-7b-zero3-8x-rtx-4090 --out explained --quiet", "explained/what-if.svg"),
    "roofline.svg": ("parsim explain llama-7b-zero3-8x-rtx-4090 --out explained --quiet", "explained/roofline.svg"),
    "training-weeks.svg": ("parsim run llama-3-405b-54-days --out weeks --quiet", "weeks/training.svg"),
}
"""figure -> (the command, the file that it writes)"""


def make(names: list[str], folder: Path) -> None:
    """Write figures into `folder`; each command runs once. Raises `SystemExit` for one that fails."""
    before = Path.cwd()
    with TemporaryDirectory() as work:
        os.chdir(work)
        try:
            for command in dict.fromkeys(FIGURES[name][0] for name in names):
                if code := execute(split(command)[1:]):
                    raise SystemExit(f"{command}: exit code {code}")
            for name in names:
                shutil.copyfile(FIGURES[name][1], folder / name)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    make(sys.argv[1:] or list(FIGURES), HERE)

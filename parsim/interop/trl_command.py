"""What the command ``trl`` hands to accelerate: a file by its path or by the name under which TRL ships it, and options of the launcher.

huggingface/trl, trl/cli/accelerate_config.py and trl/cli/commands/training.py: both may stand in the command and in the YAML of
``--config``.
"""

from __future__ import annotations

import json
from pathlib import Path

from parsim.interop.command import Invocation
from parsim.interop.keys import Key, Source
from parsim.scenario import files

_TABLE = Path(__file__).parent / "tables" / "trl-accelerate.yaml"


def is_trl(call: Invocation | None) -> bool:
    """Whether it is TRL's own command, which starts accelerate itself."""
    return call is not None and call.program.rpartition("/")[2] == "trl"


def split(source: Source) -> tuple[Key | None, list[Key], Source]:
    """The key that names accelerate's file, those of its launcher, and the training's."""
    names = str(files.read(_TABLE).tree["launch"]).split()
    config = source.get("accelerate_config")
    launch = [key for key in source.keys if key.name in names]
    return config, launch, Source((key for key in source.keys if key is not config and key not in launch), source.table)


def shipped(name: str) -> files.Document | None:
    """The file that TRL ships under this name."""
    table = files.read(_TABLE).tree
    if name not in table["files"]:
        return None
    return files.parse_text(json.dumps({**table["common"], **table["files"][name]}), f"{name}.yaml", json=True)

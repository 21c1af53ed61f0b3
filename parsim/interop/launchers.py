"""The words before a training program: which launchers they start, and what each of them calls the number of processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from parsim.interop.import_draft import plain_name
from parsim.interop.keys import Key
from parsim.interop.shell_values import Field

LAUNCHERS = (
    "torchrun",
    "deepspeed",
    "accelerate",
    "srun",
    "python",
    "python3",
    "mpirun",
    "mpiexec",
    "torchx",
    "pdsh",
    "ds",
    "ds_ssh",
    "jsrun",
)
STARTING_MODULES = ("torch.", "accelerate.", "deepspeed.")
_SHELLS = ("sh", "bash", "zsh", "dash", "env", "nohup", "time", "exec", "sudo", "numactl", "singularity", "apptainer", "docker", "ssh")
_NAMES: Mapping[str, Mapping[str, str]] = {
    "srun": {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus"},
    "mpirun": {"-np": "--np", "-n": "--np", "-c": "--np", "-N": "--npernode", "-npernode": "--npernode", "-ppn": "--npernode"},
    "pdsh": {"-w": "--hosts"},
    "jsrun": {"-n": "--nrs", "-a": "--tasks_per_rs", "-g": "--gpu_per_rs", "-r": "--rs_per_host", "-c": "--cpu_per_rs", "-b": "--bind",
              "-d": "--launch_distribution", "-l": "--latency_priority"},
    "deepspeed": {"-H": "--hostfile"},
}  # fmt: skip
"""launcher -> its short options and the long ones"""


@dataclass(frozen=True, slots=True)
class LauncherWords:
    """One launcher and its words."""

    name: str
    """as it is known, without its path; empty for words before the first"""
    words: tuple[Field, ...]

    def keys(self, keys: Iterable[Key]) -> list[Key]:
        """`keys` of its words, those with short names by their long ones."""
        known = _NAMES.get("mpirun" if self.name == "mpiexec" else self.name, _NAMES["srun"] if not self.name else {})
        renamed = [replace(key, name=plain_name(known[key.written]), written=key.written) for key in keys if key.written in known]
        plain = {key.written: key for key in renamed}
        return [plain.get(key.written, key) for key in keys]


def starter(word: str) -> str:
    """``/usr/bin/torchrun`` and ``accelerate.commands.launch`` by the name that they are known by."""
    return word.partition(".")[0] if word.startswith(STARTING_MODULES) else word.rpartition("/")[2]


def segments(words: Sequence[Field]) -> list[LauncherWords]:
    """`words` cut before every launcher."""
    found: list[LauncherWords] = []
    name = ""
    collected: list[Field] = []
    for word in words:
        called = starter(word.text)
        if called in LAUNCHERS or called in _SHELLS or word.text.startswith(STARTING_MODULES):
            found.append(LauncherWords(name, tuple(collected)))
            name, collected = ("torchrun" if called == "torch" else called), []
        elif not (name in ("python", "python3", *_SHELLS[:4]) and word.text in ("-u", "-m", "-c", "-lc", "-x")):
            collected.append(word)
    return [segment for segment in [*found, LauncherWords(name, tuple(collected))] if segment.name or segment.words]

"""The training command of a script: its launcher's options, its own, and the environment's variables that change a step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from parsim.errors import Finding, ScenarioError
from parsim.interop.import_draft import ImportDraft, plain_name
from parsim.interop.keys import Key
from parsim.interop.shell import Command, Note, Script
from parsim.interop.shell_values import Field, LetterRun, fields

_SBATCH = re.compile(r"^#SBATCH\s+(-\w|--[\w-]+)(?:[= ]\s*(\S+))?", re.MULTILINE)
_SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS",),
    "ntasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "gpus_per_node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
}
"""option of sbatch -> variables that it sets"""
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus"}
_NUMBER = re.compile(r"-\.?[0-9]")
_PROGRAM = re.compile(r".*\.py$")


@dataclass(frozen=True)
class Invocation:
    """How a training is started."""

    program: str
    """the Python file; empty for plain arguments"""
    launcher: str
    """torchrun, deepspeed, accelerate, srun, python ...; empty for plain arguments"""
    launch: tuple[Key, ...]
    """options of the launcher, of srun and of ``#SBATCH`` lines"""
    options: tuple[Key, ...]
    positional: tuple[Field, ...]
    """words of the program that belong to no option"""
    environment: tuple[Key, ...]
    """exported variables"""
    notes: tuple[Note, ...]
    used: frozenset[str]
    """variables that the script asks for"""


def invocation(text: str, file: str, variables: dict[str, str]) -> Invocation:
    """The training command of a shell script, or plain argument text.

    Raises:
        ScenarioError: there is none.
    """
    script = Script(text, variables, _of_slurm(text))
    hints = {line: f"set it: --set {next(iter(names))}=VALUE" for line, names in script.variables.unset.items()}
    candidates = [parts for command in script.commands if (parts := _training(command)) is not None]
    slurm = [Key(plain_name(name), f"#SBATCH {name}", value, file, line) for name, value, line in _sbatch(text)]
    environment = tuple(_exported(script, name, line, file) for name, line in script.exported.items())
    notes, used = tuple(script.notes), frozenset(script.variables.used)
    if candidates:
        before, program, after = max(candidates, key=lambda parts: sum(1 for word in parts[2] if word.text.startswith("--")))
        launch, _ = _options([word for word in before[1:] if word.text not in _PLAIN_STARTERS], file, hints)
        options, positional = _options(after, file, hints)
        launcher = next((name for word in reversed(before) if (name := _starter(word.text)) in _LAUNCHERS), "")
        return Invocation(program.text, launcher, (*slurm, *launch), tuple(options), tuple(positional), environment, notes, used)
    loose = [word for command in script.commands if command.words[0].text.startswith("--") for word in command.words]
    loose = loose or [word for group in _groups(script) for word in group]
    options, positional = _options(loose, file, hints)
    if not options:
        message = "there is no training command: no Python file that is run, and no --options"
        raise ScenarioError(Finding(message, file=file, line=1, suggestion="give a script, or the arguments as a text"))
    return Invocation("", "", tuple(slurm), tuple(options), tuple(positional), environment, notes, used)


_PLAIN_STARTERS = ("python", "python3", "-u", "-m", "sh", "bash", "-c")
_STARTING_MODULES = ("torch.", "accelerate.", "deepspeed.")
_LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "srun", "python", "python3", "mpirun", "torchx")


def _starter(word: str) -> str:
    """``/usr/bin/torchrun`` and ``accelerate.commands.launch`` by the name that they are known by."""
    return word.partition(".")[0] if word.startswith(_STARTING_MODULES) else word.rpartition("/")[2]


def _sbatch(text: str) -> Iterator[tuple[str, str | bool, int]]:
    for match in _SBATCH.finditer(text):
        yield _SHORT.get(match[1], match[1]), match[2] or True, text.count("\n", 0, match.start()) + 1


def _of_slurm(text: str) -> dict[str, str]:
    """Variables that Slurm sets from ``#SBATCH`` lines."""
    said = {plain_name(name): value for name, value, _ in _sbatch(text) if isinstance(value, str)}
    return {variable: said[name] for name, variables in _SLURM.items() if name in said for variable in variables}


def _exported(script: Script, name: str, line: int, file: str) -> Key:
    value = "".join(run.text for run in script.variables.scalars.get(name, []))
    return Key(f"${name}", f"export {name}", value, file, line)


def _training(command: Command) -> tuple[list[Field], Field, list[Field]] | None:
    """Words before the Python file, the file, words after it."""
    words: list[Field] = []
    for word in command.words:
        whole = ".py" in word.text and re.search(r"\s", word.text) is not None
        words += fields(list(word.runs) or [LetterRun(word.text, word.line)]) if whole else [word]
    if words and words[0].text in ("echo", "mkdir", "cp", "mv", "rm", "sed", "cat"):
        return None
    for at, word in enumerate(words):
        if _PROGRAM.match(word.text):
            return words[:at], word, words[at + 1 :]
        if word.text == "-m" and at + 1 < len(words) and "." in words[at + 1].text and not words[at + 1].text.startswith(_STARTING_MODULES):
            return words[:at], words[at + 1], words[at + 2 :]
        if word.text in ("llamafactory-cli", "trl"):
            return words[:at], word, words[at + 1 :]
    return None


def _groups(script: Script) -> list[list[Field]]:
    """Variables of a script without a command that hold options: those that stand in no other one."""
    groups = list(script.variables.arrays.values()) + [fields(value) for value in script.variables.scalars.values()]
    groups = [group for group in groups if any(word.text.startswith("--") for word in group)]
    texts = [{word.text: None for word in group if word.text.startswith("--")} for group in groups]
    return [
        group
        for at, group in enumerate(groups)
        if not any(other != at and texts[at].keys() < texts[other].keys() for other in range(len(groups)))
    ]


def _options(words: Sequence[Field], file: str, hints: dict[int, str]) -> tuple[list[Key], list[Field]]:
    """``--name value ...``, ``--name=value`` and what belongs to none."""
    keys: list[Key] = []
    positional: list[Field] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.text.startswith("-") or _NUMBER.match(word.text) or word.text in ("-", "--"):
            positional.append(word)
            continue
        name, equals, value = word.text.partition("=")
        values = [value] if equals else []
        while not equals and at < len(words) and (not words[at].text.startswith("-") or _NUMBER.match(words[at].text)):
            values.append(words[at].text)
            at += 1
        given: object = True if not values else values[0] if len(values) == 1 else values
        name = _SHORT.get(name, name)
        keys.append(Key(plain_name(name), name, given, file, word.line, hint=hints.get(word.line, "")))
    return keys, positional


ALGORITHMS = ("ring", "tree", "nvls")
PROTOCOLS = {"Simple": "simple", "LL": "ll", "LL128": "ll128", "SIMPLE": "simple"}
LIBRARIES = ("NCCL_", "NVTE_", "NVSHMEM_", "UCX_", "FI_", "GLOO_", "TORCH_NCCL_", "TORCHINDUCTOR_", "PYTORCH_", "CUBLAS_", "CUDNN_")
"""variables that may change how fast a library is"""
HARMLESS = {
    "NCCL_DEBUG": "logging",
    "NCCL_DEBUG_SUBSYS": "logging",
    "NCCL_DEBUG_FILE": "logging",
    "NCCL_SOCKET_IFNAME": "how processes find each other",
    "NCCL_IB_TIMEOUT": "patience after a loss on the network",
    "NCCL_IB_RETRY_CNT": "patience after a loss on the network",
    "NCCL_TIMEOUT": "patience",
    "NCCL_ASYNC_ERROR_HANDLING": "patience",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "patience",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "memory is as parsim's allocator has it",
    "NCCL_AVOID_RECORD_STREAMS": "memory is as parsim's allocator has it",
}


def read_environment(draft: ImportDraft, variables: Iterable[Key]) -> None:
    """Write what exported variables mean; those that concern no library are left out."""
    for key in {key.name: key for key in variables}.values():
        name, value = key.name.removeprefix("$"), str(key.value)
        if name == "CUDA_LAUNCH_BLOCKING":
            draft.write("software.host.blocking", value == "1", key)
        elif name == "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" and value == "1" and draft.value("training.precision") == "fp32":
            draft.write("training.precision", "tf32", key)
        elif name == "NCCL_ALGO" and value.lower() in ALGORITHMS:
            draft.write("cluster.collectives.algorithm", value.lower(), key)
        elif name == "NCCL_PROTO" and value in PROTOCOLS:
            draft.write("cluster.collectives.protocol", PROTOCOLS[value], key)
        elif name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            if value.lower() == "expandable_segments:true":
                draft.write("software.memory.allocator", "expandable", key)
            else:
                draft.unmodelled(key, "parsim's allocator has segments of PyTorch's sizes, or expandable ones")
        elif name in HARMLESS:
            draft.harmless(key, HARMLESS[name])
        elif name.startswith(LIBRARIES):
            draft.unmodelled(key, "a setting of a library")

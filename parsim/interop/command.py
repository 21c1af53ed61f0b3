"""The training command of a script: its launcher's options, its own, and the environment's variables that change a step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parsim.errors import Finding, ScenarioError
from parsim.interop.import_draft import ImportDraft, plain_name
from parsim.interop.keys import Key, Source
from parsim.interop.launchers import LAUNCHERS, STARTING_MODULES, segments
from parsim.interop.shell import Note, ShellCommand, ShellScript, output_of
from parsim.interop.shell_values import Field, fields, legible, plain, settable, unknown_names
from parsim.interop.shell_words import UNKNOWN
from parsim.units import is_digits

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


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that the script writes before it trains."""

    text: str | None
    """None where it is made of another file"""
    line: int
    """on which its text begins"""
    template: str = ""
    """file that it is made of"""
    replaced: tuple[str, ...] = ()
    """expressions of sed, by which"""


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
    variables: Mapping[str, Key] = field(default_factory=dict)
    """scalars of the script whose values are whole numbers"""
    files: Mapping[str, WrittenFile] = field(default_factory=dict)
    """by the name that the script gives them"""
    open: tuple[tuple[str, int, str], ...] = ()
    """variables that stand where options may and have no value, with their lines and the options before them"""
    line: int | None = None
    """where the program is named"""


def invocation(text: str, file: str, variables: dict[str, str]) -> Invocation:
    """The training command of a shell script, or plain argument text.

    Raises:
        ScenarioError: there is none.
    """
    script = ShellScript(text, variables, _of_slurm(text))
    candidates = _candidates(script)
    if not candidates:
        script.read_functions()
        candidates = _candidates(script) or _printed(script)
    hints = {line: _hint(next(iter(names))) for line, names in script.variables.unset.items()}
    slurm = [Key(plain_name(name), f"#SBATCH {name}", value, file, line) for name, value, line in _sbatch(text)]
    environment = tuple(_exported(script, name, line, file) for name, line in script.exported.items())
    notes, used = tuple(script.notes), frozenset(script.variables.used)
    more: dict[str, Any] = {"variables": _numbers(script, file), "files": _written(script)}
    if candidates:
        chosen, (before, program, after) = max(candidates, key=_trains)
        launch = [key for part in segments(before) for key in part.keys(_options(list(part.words), file, hints)[0])]
        options, positional = _options(after, file, hints)
        launcher = next((part.name for part in reversed(segments(before)) if part.name in LAUNCHERS), "")
        visible = _visible(script, text, file, program.line) if launcher in STARTS_ON_VISIBLE else None
        if visible is not None and ("," not in str(visible.value) or program.text not in SWIFT):  # which splits the model over them
            launch.append(visible)
        if program.text in SWIFT:
            launch += _started(script, file, program.line)
        more["open"] = tuple(_unread(chosen, after))
        said = _called(program), launcher, (*slurm, *launch), tuple(options), tuple(positional), environment, notes, used
        return replace(Invocation(*said), **more, line=program.line or None)
    loose = [word for command in script.commands if command.words[0].text.startswith("--") for word in command.words]
    loose = loose or [word for group in _groups(script) for word in group]
    options, positional = _options(loose, file, hints)
    if not options:
        message = "there is no training command: no Python file that is run, and no --options"
        names = argument_names(text)
        called = " ".join(names.get(number, f"${number}") for number in range(1, max(names, default=0) + 1))
        hint = f'what it is called with may say which one it runs: --arguments "{called}"' if names else ""
        raise ScenarioError(Finding(message, file=file, line=1, suggestion=hint or "give a script, or the arguments as a text"))
    return replace(Invocation("", "", tuple(slurm), tuple(options), tuple(positional), environment, notes, used), **more)


_ARGUMENT = re.compile(r"""^\s*(?:export\s+)?([A-Za-z_]\w*)=["']?\$(?:([1-9])|\{([1-9]\d?)\})["']?\s*(?:\#.*)?$""", re.MULTILINE)


def argument_names(text: str) -> dict[int, str]:
    """The arguments that a script takes under a name (``SIZE=$1``), by number."""
    return {int(match[2] or match[3]): match[1] for match in _ARGUMENT.finditer(text)}


def argument_files(call: Invocation) -> list[str]:
    """Files that may hold a command's arguments: words behind the program, and ``--config``."""
    words = [word.text for word in call.positional] + [key.text for key in call.options if key.name == "config"]
    return [word for word in words if word.endswith((".json", ".yaml", ".yml", ".toml"))]


def missing_arguments(text: str, variables: Mapping[str, str]) -> Finding | None:
    """That a script is called with arguments which nobody has said: ``SIZE=$1``; None where it is not, or some are said."""
    names = argument_names(text)
    if not names or any(word.isdigit() for word in variables):
        return None
    words = " ".join(names.get(number, f"${number}") for number in range(1, max(names) + 1))
    return Finding("the script takes arguments, and its sizes follow from them", "--arguments", None, f'say them: --arguments "{words}"')


_BESIDE = re.compile(r"convert|prepare|preprocess|download|merge|infer|eval|export|predict|tokenize")
"""in the names of programs that a script runs before or after it trains"""


def _trains(candidate: tuple[ShellCommand, tuple[list[Field], Field, list[Field]]]) -> tuple[bool, int]:
    """How much speaks for a command to be the training: that its name says nothing else, and its options and overrides (``key=value``)."""
    program, after = candidate[1][1:]
    said = sum(1 for word in after if word.text.startswith("--") or "=" in word.text)
    return _BESIDE.search(program.text.rpartition("/")[2]) is None, said


def _candidates(script: ShellScript) -> list[tuple[ShellCommand, tuple[list[Field], Field, list[Field]]]]:
    return [(command, parts) for command in script.commands if (parts := _training(command)) is not None]


def _printed(script: ShellScript) -> list[tuple[ShellCommand, tuple[list[Field], Field, list[Field]]]]:
    """Training commands that a script prints, where it runs none."""
    found = []
    for command in script.commands:
        words = command.words[command.own :]
        if len(words) > 1 and words[0].text == "echo" and words[1].text.rpartition("/")[2] in PRINTED and not command.to:
            bare = replace(command, words=(*command.words[: command.own], *words[1:]))
            if (parts := _training(bare)) is not None:
                found.append((bare, parts))
                script.notes.append(Note("the script prints this command and runs none: it is read as if it were run", words[0].line))
    return found


PRINTED = ("torchrun", "deepspeed", "python", "python3", "accelerate", "srun", "mpirun")
"""begins of commands that are read where they are printed"""
VISIBLE = "cuda_visible_devices"
"""name of the key that says which devices the processes see"""
SWIFT = {"swift": ("sft", "pt", "rlhf"), "megatron": ("sft", "pt", "rlhf")}
"""commands of ms-swift that train"""
_STARTED = {"NPROC_PER_NODE": "nproc_per_node", "NNODES": "nnodes"}
"""variables by which ms-swift is told how many processes to start -> options of torchrun"""


def _unread(command: ShellCommand, words: Sequence[Field]) -> Iterator[tuple[str, int, str]]:
    """Variables that are whole words and have no value, with the options that they stand behind."""
    for name, line in command.blank:
        yield name, line, ""
    before = ""
    for word in words:
        names = unknown_names(word.text)
        if len(names) == 1 and settable(names[0]) and legible(word.text) == f"${names[0]}":
            yield names[0], word.line, before
        before = plain_name(word.text) if word.text.startswith("--") and "=" not in word.text else ""


def _hint(name: str) -> str:
    return f"set it: --set {name}=VALUE" if settable(name) else f"it is what {legible(name)} gives, which is not run: write the value"


def _numbers(script: ShellScript, file: str) -> dict[str, Key]:
    scalars = {name: (plain(value), value[0].line) for name, value in script.variables.scalars.items() if value}
    return {name: Key(name, name, text, file, line or None) for name, (text, line) in scalars.items() if is_digits(text)}


def _written(script: ShellScript) -> dict[str, WrittenFile]:
    """Files that echo, cat and sed write."""
    files: dict[str, WrittenFile] = {}
    for command in script.commands:
        words = [word.text for word in command.words[command.own :]]
        name = command.to or next((stage[-1] for stage in command.pipe[-1:] if stage[:1] == ("tee",) and len(stage) > 1), "")
        if not name or not words:
            continue
        text = output_of(command)
        if text is not None:
            files[legible(name)] = WrittenFile(text, command.document[1] if command.document is not None else command.line)
        elif words[0] == "sed" and len(words) > 2 and all(stage[:1] == ("sed",) for stage in command.pipe):
            stages = (word for stage in (words[1:-1], *(stage[1:] for stage in command.pipe)) for word in stage if word != "-e")
            files[legible(name)] = WrittenFile(None, command.line, words[-1], tuple(stages))
        else:
            files.pop(legible(name), None)
    return files


def _sbatch(text: str) -> Iterator[tuple[str, str | bool, int]]:
    for match in _SBATCH.finditer(text):
        yield _SHORT.get(match[1], match[1]), match[2] or True, text.count("\n", 0, match.start()) + 1


def _of_slurm(text: str) -> dict[str, str]:
    """Variables that Slurm sets from ``#SBATCH`` lines."""
    said = {plain_name(name): value for name, value, _ in _sbatch(text) if isinstance(value, str)}
    return {variable: said[name] for name, variables in _SLURM.items() if name in said for variable in variables}


def _exported(script: ShellScript, name: str, line: int, file: str) -> Key:
    value = "".join(run.text for run in script.variables.scalars.get(name, []))
    return Key(f"${name}", f"export {name}", legible(value), file, line)


def _called(program: Field) -> str:
    """The program; Megatron-SWIFT by its family's name."""
    return f"swift.{program.text}" if program.text == "megatron" else legible(program.text)


def _started(script: ShellScript, file: str, line: int) -> list[Key]:
    """What variables say of how many processes there are."""
    known = {name: "".join(run.text for run in script.variables.scalars.get(name, [])) for name in _STARTED}
    return [Key(_STARTED[name], name, value, file, line) for name, value in known.items() if value]


STARTS_ON_VISIBLE = ("deepspeed", "ds", "python", "python3", "")
"""launchers that take the devices which they see, where nothing counts processes; Python starts one, and is alone with one device"""
_DEVICES = re.compile(r"[0-9]+(?:,[0-9]+)*")
_BEFORE = re.compile(r"""[^#]*?(?<!\w)CUDA_VISIBLE_DEVICES=["']?([^\s"']*)""")


def _visible(script: ShellScript, text: str, file: str, line: int) -> Key | None:
    """``CUDA_VISIBLE_DEVICES`` as it stands before the program on `line`; a later command can have another one."""
    value = script.variables.scalars.get("CUDA_VISIBLE_DEVICES", [])
    devices, at = (plain(value), value[0].line) if value else ("", 0)
    if at > line:
        rows = enumerate(text.splitlines()[:line], start=1)
        devices, at = next(((found[1], row) for row, code in reversed(list(rows)) if (found := _BEFORE.match(code))), ("", 0))
    devices = devices.replace(" ", "")
    return Key(VISIBLE, "CUDA_VISIBLE_DEVICES", devices, file, at) if _DEVICES.fullmatch(devices) and 0 < at <= line else None


def _training(command: ShellCommand) -> tuple[list[Field], Field, list[Field]] | None:
    """Words before the Python file, the file, words after it."""
    words, own = list(command.words), command.own
    if words[own].text in ("echo", "mkdir", "cp", "mv", "rm", "sed", "cat", "printf", "ls", "tee"):
        return None
    for at, word in enumerate(words):
        if at >= own and _PROGRAM.match(word.text):
            return words[:at], word, words[at + 1 :]
        if word.text == "-m" and at + 1 < len(words) and "." in words[at + 1].text and not words[at + 1].text.startswith(STARTING_MODULES):
            return words[:at], words[at + 1], words[at + 2 :]
        swift = word.text in SWIFT and at + 1 < len(words) and words[at + 1].text in SWIFT[word.text]
        if word.text in ("llamafactory-cli", "trl") or swift:
            return words[:at], word, words[at + 1 :]
    return None


def _groups(script: ShellScript) -> list[list[Field]]:
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
        missing = [name for text in values for name in unknown_names(text)]
        hint = _hint(next((name for name in missing if settable(name)), missing[0])) if missing else hints.get(word.line, "")
        given: object = True if not values else values[0] if len(values) == 1 else values
        if missing and all(re.fullmatch(f"{UNKNOWN[0]}[^{UNKNOWN[1]}]*{UNKNOWN[1]}", text) for text in values):
            given = True  # no value
        elif missing:
            given = legible(" ".join(values))
        keys.append(Key(plain_name(name), name, given, file, word.line, hint=hint))
    return keys, positional


def remark_open(draft: ImportDraft, call: Invocation, source: Source) -> None:
    """Say of which variables it is not known what options they hold."""
    flags = {name for row in source.table.rows.values() if row.kind in ("flag", "inverted") for name in row.names}
    for name, line, option in call.open:
        if not option or option in flags:
            text = f"${name} has no value in the script: options that it may hold are not read (--set {name}='--option value')"
            draft.remarks.append(Finding(text, file=draft.file, line=line))


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


def _nothing_overlaps(draft: ImportDraft, key: Key) -> None:
    """A host that waits for every kernel waits for every collective, whatever the options say."""
    strategy = draft.value("parallel.data.strategy")
    replicated = strategy in ("ddp", "zero1", "zero2")
    rules = (
        ("parallel.tensor.overlap", "none", (draft.value("parallel.tensor.size") or 1) > 1),
        ("parallel.pipeline.overlap_sends", False, (draft.value("parallel.pipeline.size") or 1) > 1),
        ("parallel.data.overlap_reduce", False, replicated),
        ("parallel.data.overlap_gather", False, strategy in ("zero1", "zero2")),
    )
    for path, value, applies in rules:
        if applies:
            said = draft.lines[path].keys if path in draft.lines else ()
            draft.write(path, value, *said, key, note="the host waits for every kernel")


def read_environment(draft: ImportDraft, variables: Iterable[Key]) -> None:
    """Write what exported variables mean; those that concern no library are left out."""
    for key in {key.name: key for key in variables}.values():
        name, value = key.name.removeprefix("$"), str(key.value)
        if name == "CUDA_LAUNCH_BLOCKING":
            draft.write("software.host.blocking", value == "1", key)
            if value == "1":
                _nothing_overlaps(draft, key)
        elif name == "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" and value == "1" and draft.value("training.precision") == "fp32":
            draft.write("training.precision", "tf32", key)
        elif name == "NCCL_ALGO" and value.lower() in ALGORITHMS:
            draft.write("cluster.collectives.algorithm", value.lower(), key)
        elif name == "NCCL_PROTO" and value in PROTOCOLS:
            draft.write("cluster.collectives.protocol", PROTOCOLS[value], key)
        elif name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            others = [part for part in value.split(",") if part.lower() != "expandable_segments:true"]
            if others != value.split(","):
                draft.write("software.memory.allocator", "expandable", key)
                draft.remarks += [key.finding(f"not modelled: {part}") for part in others]
            else:
                draft.unmodelled(key, "parsim's allocator has segments of PyTorch's sizes, or expandable ones")
        elif name in HARMLESS:
            draft.harmless(key, HARMLESS[name])
        elif name.startswith(LIBRARIES):
            draft.unmodelled(key, "a setting of a library")

"""Training configurations of other tools: from their text to a scenario, and from a scenario to their text.

Which tool a text is of is told by what stands in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from parsim.interop.accelerate import read_accelerate, to_fsdp
from parsim.interop.deepspeed import read_deepspeed, to_deepspeed
from parsim.interop.export_draft import Exported, ExportJob, job_of
from parsim.interop.megatron.megatron import read_megatron, to_megatron
from parsim.interop.trainer import read_trainer
from parsim.scenario.values import did_you_mean

if TYPE_CHECKING:
    from parsim.scenario.scenario import Scenario

from parsim.errors import Finding, ScenarioError
from parsim.interop.command import Invocation, invocation
from parsim.interop.import_draft import Given, ImportDraft, ImportedScenario, finished
from parsim.scenario import files

TOOLS = {
    "megatron": "Megatron-LM",
    "deepspeed": "DeepSpeed",
    "accelerate": "accelerate",
    "hf": "Hugging Face TrainingArguments",
    "llama-factory": "LLaMA-Factory",
}
"""names of formats that are read -> whose they are"""
TARGETS = ("megatron", "deepspeed", "fsdp")
"""tools that a scenario can be exported to"""
FSDP_VERSIONS = (1, 2)
_COMMAND = re.compile(r"(?:^|\s)--[A-Za-z]|^\s*(?:export )?[A-Za-z_]\w*\+?=")
_ENTRY = re.compile(r"""\s*(?:- )?["']?[\w.-]+["']?\s*:(?:\s|$)""")
_DEEPSPEED = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization")
_ACCELERATE = ("distributed_type", "compute_environment", "fsdp_config", "num_processes", "main_process_ip")
_LLAMA_FACTORY = ("finetuning_type", "cutoff_len", "lora_target", "dataset_dir", "template")
_TRAINER = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "output_dir", "max_steps", "learning_rate")
_MEGATRON = ("num_layers", "hidden_size", "micro_batch_size", "tensor_model_parallel_size", "seq_length", "global_batch_size")


def import_config(text: str, file: str, given: Given, *, tool: str = "", arguments: str | None = None) -> ImportedScenario:
    """The scenario of a configuration.

    `file` is what it is called (``-`` is standard input); `tool` is one of `TOOLS`, else it is told by the keys; `arguments` is
    the path of the TrainingArguments that go with a DeepSpeed or accelerate configuration.

    Raises:
        ScenarioError: it is of no tool that parsim reads, or a value in it cannot be read.
    """
    if tool and tool not in TOOLS:
        raise ScenarioError(Finding(f"there is no format {tool!r}", "--from", tool, f"known: {', '.join(TOOLS)}"))
    mapping = _mapping(text, file)
    call = None if mapping is not None else invocation(text, file, dict(given.variables))
    whose = tool or _tool(mapping, call, file)
    draft = ImportDraft(TOOLS[whose], file, given)
    if call is not None:
        draft.remarks += [Finding(note.message, file=file, line=note.line) for note in call.notes]
        for name in sorted(set(given.variables) - call.used):
            draft.remark(f"--set {name} has no use: the script has no variable of that name")
    if arguments is not None and whose not in ("deepspeed", "accelerate"):
        text = f"{TOOLS[whose]} needs no further arguments"
        raise ScenarioError(Finding(text, "--hf", arguments, "it goes with a DeepSpeed or an accelerate configuration"))
    _read(draft, whose, mapping, call, arguments)
    return finished(draft)


def _read(draft: ImportDraft, tool: str, mapping: files.Document | None, call: Invocation | None, arguments: str | None) -> None:
    if tool == "megatron":
        if call is None:
            raise ScenarioError(Finding("a shell script or arguments are expected, and this is YAML or JSON", file=draft.file, line=1))
        read_megatron(draft, call)
    elif tool in ("hf", "llama-factory"):
        read_trainer(draft, mapping, call, factory=tool == "llama-factory")
    elif mapping is None:
        raise ScenarioError(Finding(f"{TOOLS[tool]} writes YAML or JSON, and this is neither", file=draft.file, line=1))
    elif arguments is not None:
        document = files.read(Path(arguments))
        read_trainer(draft, document, None, factory=_is(document, _LLAMA_FACTORY, 1), beside={tool: mapping})
    elif tool == "deepspeed":
        read_deepspeed(draft, mapping)
    else:
        read_accelerate(draft, mapping)


def _mapping(text: str, file: str) -> files.Document | None:
    """`text` as YAML or JSON; None where it is a script or arguments."""
    is_json = text.lstrip().startswith("{")
    rows = [row for row in text.splitlines() if row.strip() and not row.lstrip().startswith("#")]
    commands = sum(_COMMAND.search(row) is not None for row in rows)
    if text.startswith("#!") or (not is_json and commands > sum(_ENTRY.match(row) is not None for row in rows)):
        return None
    return files.parse_text(text, file, json=is_json)


def _is(document: files.Document, names: tuple[str, ...], enough: int) -> bool:
    return sum(name in document.tree for name in names) >= enough


def _tool(mapping: files.Document | None, call: Invocation | None, file: str) -> str:
    """Whose configuration it is."""
    if mapping is not None:
        if _is(mapping, _DEEPSPEED, 1) and not _is(mapping, _TRAINER[:1], 1):
            return "deepspeed"
        if _is(mapping, _LLAMA_FACTORY, 1) and _is(mapping, ("model_name_or_path", "stage", *_TRAINER), 1):
            return "llama-factory"
        if _is(mapping, _TRAINER, 2):
            return "hf"
        if _is(mapping, _ACCELERATE, 1):
            return "accelerate"
    elif call is not None:
        names = {key.name: None for key in call.options}
        if call.program.rpartition("/")[2] == "llamafactory-cli" or "cutoff_len" in names:
            return "llama-factory"
        if sum(name in names for name in _TRAINER) > sum(name in names for name in _MEGATRON):
            return "hf"
        if any(name in names for name in _MEGATRON):
            return "megatron"
        if call.positional and call.positional[0].text.endswith((".json", ".yaml", ".yml")):
            return "hf"
    message = "this is no training configuration that parsim knows"
    raise ScenarioError(Finding(message, file=file, line=1, suggestion=f"say whose it is: --from {', '.join(TOOLS)}"))


def export(scenario: Scenario, to: str, *, fsdp_version: int = 2) -> Exported:
    """The scenario as Megatron-LM arguments (megatron), a DeepSpeed JSON (deepspeed) or an accelerate YAML (fsdp).

    `fsdp_version` is PyTorch's: 1 (FullyShardedDataParallel) or 2 (fully_shard). Every key of the scenario's training and parallel
    sections ends in `Exported.keys`. Raises an `InputError` with every finding: the scenario cannot be planned, or the tool cannot
    run it as it was simulated.
    """
    if fsdp_version not in FSDP_VERSIONS:
        raise ScenarioError(Finding("there is no such version of FSDP", "--fsdp-version", fsdp_version, "write 1 or 2"))
    writers: Mapping[str, Callable[[ExportJob], Exported]] = {
        "megatron": to_megatron,
        "deepspeed": to_deepspeed,
        "fsdp": lambda job: to_fsdp(job, fsdp_version),
    }
    if to not in writers:
        hint = did_you_mean(to, list(TARGETS)) or f"write {', '.join(TARGETS)}"
        raise ScenarioError(Finding(f"cannot export to {to!r}", "--to", to, hint))
    return writers[to](job_of(scenario))

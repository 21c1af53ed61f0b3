"""Training configurations of other tools: from their text to a scenario, and from a scenario to their text.

Which tool a text is of is told by what stands in it (`parsim.interop.recognise`); the tools are those of `parsim.interop.tools`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from parsim.interop.export_draft import Exported, job_of
from parsim.interop.recognise import Claim, Foreign, Tool, check_readable, claims, recognised, refuse_python
from parsim.interop.tools import MODEL, TABLE, WITH_A_MODEL
from parsim.scenario.values import did_you_mean

if TYPE_CHECKING:
    from parsim.scenario.scenario import Scenario

from parsim.errors import Finding, ScenarioError
from parsim.interop.command import Invocation, argument_files, invocation, missing_arguments
from parsim.interop.fitting import fit_machines
from parsim.interop.import_draft import Given, ImportDraft, ImportedScenario, finished
from parsim.interop.import_sections import neighbour
from parsim.interop.keys import key_table
from parsim.interop.megatron.model import SWITCHES
from parsim.interop.megatron.other_models import NO_STEP, TASK
from parsim.interop.open_arguments import leave_open, open_invocation, open_paths
from parsim.interop.toml_document import is_toml, read_toml
from parsim.interop.written import written_file
from parsim.scenario import files
from parsim.scenario.support import PLACEHOLDER
from parsim.scenario.yaml_tree import duplicates

OPEN_TABLES = {"megatron": "megatron", "megatron-deepspeed": "megatron-deepspeed"}
"""tools whose scripts are read without what they are called with -> their key tables"""
TOOLS = {name: tool.called for name, tool in TABLE.items() if tool.read is not None}
"""names of formats that are read -> whose they are"""
OF_OMEGACONF = ("nemo", "flagscale")
"""tools whose YAML may hold no key twice"""
TARGETS = tuple(tool.target for tool in TABLE.values() if tool.target)
"""tools that a scenario can be exported to"""
FSDP_VERSIONS = (1, 2)
_COMMAND = re.compile(r"(?:^|\s)--[A-Za-z]|^\s*(?:export )?[A-Za-z_]\w*\+?=")
_ENTRY = re.compile(r"""\s*(?:- )?["']?[\w.-]+["']?\s*:(?:\s|$)""")
_PYTHON = re.compile(r"^(?:from [\w.]+ import |import [\w.]+\s*$|def \w+\(|class \w+)", re.MULTILINE)


def import_config(
    text: str, file: str, given: Given, *, tool: str = "", arguments: str | None = None, more: Sequence[tuple[str, str]] = ()
) -> ImportedScenario:
    """The scenario of a configuration.

    `file` is what it is called (``-`` is standard input); `tool` is one of `TOOLS`, else it is told by the keys; `arguments` is
    the path of the TrainingArguments that go with a DeepSpeed or accelerate configuration; `more` are texts and names of further
    files of the same job, of tools that merge several.

    Raises:
        ScenarioError: it is of no tool that parsim reads, or of several, or a value in it cannot be read.
    """
    if tool and tool not in TOOLS:
        raise ScenarioError(Finding(f"there is no format {tool!r}", "--from", tool, f"known: {', '.join(TOOLS)}"))
    foreign = _parsed(text, file, given, arguments, more)
    if not tool:
        _check_models(foreign)
    claim = recognised(TABLE, foreign, tool)
    whose, evidence = claim.tool, claim.evidence
    read = check_readable(whose, foreign, evidence)
    draft = ImportDraft(whose.called, file, given, evidence)
    if foreign.call is not None:
        draft.remarks += [Finding(note.message, file=file, line=note.line) for note in foreign.call.notes]
        for name in sorted(set(given.variables) - foreign.call.used):
            draft.remark(f"--set {name} has no use: the script has no variable of that name")
    if foreign.document is not None and not (text.lstrip().startswith("{") or is_toml(text)):
        _repeated(draft, whose, duplicates(text, file))
    _check_company(whose, foreign)
    try:
        read(draft, foreign)
        fit_machines(draft)
        return finished(draft)
    except ScenarioError as error:
        if foreign.call is None or any(word in finding.message for finding in error.findings for word in (NO_STEP, "not supported yet")):
            raise  # arguments of the script would change nothing
        if (asked := _without_arguments(claim, foreign, text, given, error.findings)) is not None:
            return asked
        if (missing := missing_arguments(text, given.variables)) is None:
            raise
        raise ScenarioError([missing, *error.findings]) from None


def _repeated(draft: ImportDraft, tool: Tool, findings: Sequence[Finding]) -> None:
    """Of a key that is written twice PyYAML takes the last one; OmegaConf refuses it."""
    if findings and tool.name in OF_OMEGACONF:
        raise ScenarioError(findings)
    draft.remarks += [replace(finding, message=f"{finding.message}; this one counts, as in {tool.called}") for finding in findings]


def _without_arguments(claim: Claim, foreign: Foreign, text: str, given: Given, findings: Sequence[Finding]) -> ImportedScenario | None:
    """The scenario of a script of Megatron-LM or Megatron-DeepSpeed that hangs on arguments, which are left to the reader."""
    if claim.tool.name not in OPEN_TABLES or claim.tool.read is None:
        return None
    known = open_invocation(text, foreign.file, dict(given.variables), findings)
    if known is None:
        return None
    call, names, how = known
    paths = open_paths(key_table(OPEN_TABLES[claim.tool.name]), names, (*SWITCHES, TASK))
    whose = replace(given, model=PLACEHOLDER) if "model" in paths and given.model is None else given
    if given.model is not None:
        paths.pop("model", None)
    draft = ImportDraft(claim.tool.called, foreign.file, whose, claim.evidence)
    try:
        claim.tool.read(draft, replace(foreign, call=call))
        leave_open(draft, paths, how)
        draft.given = given
        fit_machines(draft)
        return finished(draft)
    except ScenarioError:
        return None


def _parsed(text: str, file: str, given: Given, arguments: str | None, more: Sequence[tuple[str, str]]) -> Foreign:
    mapping = _mapping(text, file)
    call = None if mapping is not None else invocation(text, file, dict(given.variables))
    others = []
    for beside, called in more:
        if (document := _mapping(beside, called)) is None:
            raise ScenarioError(Finding("a further file of the same job is YAML, JSON or TOML", file=called, line=1))
        others.append(document)
    return Foreign(file, mapping, call, arguments, tuple(others), () if call is None else _named(call, file))


def _check_models(foreign: Foreign) -> None:
    """Raise `ScenarioError`: among the files is a model's own configuration, which says nothing of a training."""
    documents = [document for document in (foreign.document, *foreign.more) if document is not None]
    models = [each for each in documents if [claim.tool.name for claim in claims(TABLE, Foreign(each.path, each))] == [MODEL]]
    if models:
        text = f"this is {TABLE[MODEL].called}, and no training's"
        raise ScenarioError([Finding(text, file=each.path, line=1, suggestion=WITH_A_MODEL.format(each.path)) for each in models])


def _check_company(tool: Tool, foreign: Foreign) -> None:
    """Raise `ScenarioError`: there are files beside it that the tool does not take, or one that a command names is another tool's."""
    if foreign.arguments is not None and tool.name not in ("deepspeed", "accelerate"):
        text = f"{tool.called} needs no further arguments"
        raise ScenarioError(Finding(text, "--hf", foreign.arguments, "it goes with a DeepSpeed or an accelerate configuration"))
    if foreign.more and not tool.merges:
        raise ScenarioError(Finding(f"{tool.called} has one file; this is a second one", file=foreign.more[0].path, line=1))


def _named(call: Invocation, file: str) -> tuple[files.Document, ...]:
    """The files of arguments that a command names and that its script does not write itself, those of them that are there."""
    paths = [neighbour(word, file) for word in argument_files(call) if written_file(call, word) is None]
    documents = [_mapping(files.read_text(path), str(path)) for path in paths if path is not None]
    return tuple(document for document in documents if document is not None)


def _mapping(text: str, file: str) -> files.Document | None:
    """`text` as YAML, JSON or TOML; None where it is a script or arguments."""
    if file.endswith(".toml") or is_toml(text):
        return read_toml(text, file)
    if file.endswith(".py") or (not text.startswith("#!") and _PYTHON.search(text)):
        refuse_python(TABLE, text, file)
    if file.endswith((".sh", ".slurm", ".sbatch")):
        return None
    is_json = text.lstrip().startswith("{")
    rows = [row for row in text.splitlines() if row.strip() and not row.lstrip().startswith("#")]
    commands = sum(_COMMAND.search(row) is not None for row in rows)
    if text.startswith("#!") or (not is_json and commands > sum(_ENTRY.match(row) is not None for row in rows)):
        return None
    return files.parse_text(text, file, json=is_json, repeated=not is_json)


def export(scenario: Scenario, to: str, *, fsdp_version: int = 2) -> Exported:
    """The scenario as Megatron-LM arguments (megatron), a DeepSpeed JSON (deepspeed), an accelerate YAML (fsdp) or a TOML (torchtitan).

    `fsdp_version` is PyTorch's: 1 (FullyShardedDataParallel) or 2 (fully_shard). Every key of the scenario's training and parallel
    sections ends in `Exported.keys`. Raises an `InputError` with every finding: the scenario cannot be planned, or the tool cannot
    run it as it was simulated.
    """
    if fsdp_version not in FSDP_VERSIONS:
        raise ScenarioError(Finding("there is no such version of FSDP", "--fsdp-version", fsdp_version, "write 1 or 2"))
    writer = next((tool.write for tool in TABLE.values() if tool.target == to), None)
    if writer is None:
        hint = did_you_mean(to, list(TARGETS)) or f"write {', '.join(TARGETS)}"
        raise ScenarioError(Finding(f"cannot export to {to!r}", "--to", to, hint))
    return writer(job_of(scenario), fsdp_version)

"""Whose configuration a text is: what a tool's files are known by, and which tool the keys of one speak for.

A tool claims a file by keys that only it has (`Tool.own`). One such key is enough, and no file is read as another tool's as long as it
stands there: where two tools claim a file, or none, all that speaks for each is said, and the user decides (``--from``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parsim.columns import printable
from parsim.errors import Finding, ScenarioError
from parsim.interop.command import Invocation, argument_files
from parsim.interop.export_draft import Exported, ExportJob
from parsim.interop.import_draft import ImportDraft
from parsim.scenario import files

SHOWN = 4
"""keys that are quoted as evidence"""
_IMPORT = re.compile(r"^(?:from|import)\s+([A-Za-z_][\w.]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A configuration before anything is taken from it."""

    file: str
    document: files.Document | None = None
    """where it is YAML, JSON or TOML"""
    call: Invocation | None = None
    """where it is a script or arguments"""
    arguments: str | None = None
    """path of the training arguments that go with it (``--hf``)"""
    more: tuple[files.Document, ...] = ()
    """further files of the same job"""
    named: tuple[files.Document, ...] = ()
    """files of arguments that a command names"""


Reader = Callable[[ImportDraft, Foreign], None]
Writer = Callable[[ExportJob, int], Exported]
"""from a job and the version of PyTorch's FSDP"""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, what tells its files, and who reads and writes them."""

    name: str
    """after ``--from``"""
    called: str
    own: tuple[str, ...] = ()
    """keys that only its files have: dotted, with underscores; ``name.*`` is anything below a section, ``a+b`` are two that go together"""
    shared: tuple[str, ...] = ()
    """keys of its files that others have too; they count where no tool is told by its own"""
    enough: int = 2
    """shared keys that tell it"""
    has: tuple[str, ...] = ()
    """names of tools whose keys stand in its files as well"""
    programs: tuple[str, ...] = ()
    """what its training commands run; the begin of a module, or the whole name of a program"""
    forms: tuple[str, ...] = ("document",)
    """document: YAML, JSON or TOML; command: a script or arguments"""
    read: Reader | None = None
    """None: it is known by name only, and refused"""
    instead: str = ""
    """what to do where it is refused"""
    merges: bool = False
    """whether it takes several files of one job"""
    target: str = ""
    """after ``--to``, where scenarios are written for it"""
    write: Writer | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A tool and the keys that speak for it."""

    tool: Tool
    keys: tuple[str, ...]
    certain: bool
    """whether they are its own"""

    @property
    def evidence(self) -> str:
        """The keys, the first ones of many: ``base_model, sequence_len``."""
        rest = len(self.keys) - SHOWN
        return printable(", ".join(self.keys[:SHOWN]) + (f" and {rest} more" if rest > 0 else ""))


def recognised(tools: Mapping[str, Tool], foreign: Foreign, said: str = "") -> Claim:
    """The tool whose configuration it is; `said` is what the user says. Raises `ScenarioError`: several tools claim it, or none does."""
    found = claims(tools, foreign)
    if said:
        return next((claim for claim in found if claim.tool.name == said), Claim(tools[said], ("--from",), True))
    if len(found) == 1:
        return found[0]
    readable = [name for name, tool in tools.items() if tool.read is not None]
    if not found:
        call = foreign.call
        named = argument_files(call) if call is not None and not foreign.named else []
        if call is not None and named:
            message = f"{named[0]} is not there, and holds the arguments of this command"
            raise ScenarioError(Finding(message, file=foreign.file, line=call.line, suggestion="put it beside this script, or import it"))
        message = "this is no training configuration that parsim knows"
        hint = f"say whose it is: --from {', '.join(readable)}"
        raise ScenarioError(Finding(message, file=foreign.file, line=1, suggestion=hint))
    speaks = "; ".join(f"for {claim.tool.called}: {claim.evidence}" for claim in found)
    options = " or ".join(claim.tool.name for claim in found if claim.tool.read is not None)
    hint = f"say whose it is: --from {options}" if options else "parsim reads none of them"
    raise ScenarioError(Finding(f"keys of several tools stand in it: {speaks}", file=foreign.file, line=1, suggestion=hint))


def check_readable(tool: Tool, foreign: Foreign, evidence: str) -> Reader:
    """The reader of a tool. Raises `ScenarioError` where it is known by name only, or the form is not its own."""
    problem = ""
    if tool.read is None:
        problem = f"this is {tool.called}{f' ({evidence})' if evidence else ''}, which parsim does not import"
    elif "document" not in tool.forms and foreign.document is not None:
        problem = "a shell script or arguments are expected, and this is YAML, JSON or TOML"
    elif "command" not in tool.forms and foreign.document is None:
        problem = f"{tool.called} writes YAML, JSON or TOML, and this is none of them"
    if tool.read is None or problem:
        named = f"import the file that the command names: parsim import {foreign.named[0].path}" if foreign.named else ""
        raise ScenarioError(Finding(problem, file=foreign.file, line=1, suggestion=tool.instead or named))
    return tool.read


def claims(tools: Mapping[str, Tool], foreign: Foreign) -> list[Claim]:
    """Every tool that claims it: by its own keys, else by those that it shares, without tools whose keys another claimant has too."""
    options = dict.fromkeys(key.name for key in foreign.call.options) if foreign.call is not None else {}
    documents = [document for document in (foreign.document, *foreign.more, *foreign.named) if document is not None]
    keys = dict.fromkeys(name for document in documents for name in _keys(document.tree, ""))
    certain: list[Claim] = []
    likely: list[Claim] = []
    for tool in tools.values():
        names = (options if "command" in tool.forms else {}) | (keys if "document" in tool.forms else {})
        program = _program(tool, foreign.call)
        if own := (*((program,) if program else ()), *matching(tool.own, names)):
            certain.append(Claim(tool, own, True))
        elif len(some := matching(tool.shared, names)) >= tool.enough:
            likely.append(Claim(tool, some, False))
    found = certain or likely
    covered = {name for claim in found for name in claim.tool.has}
    found = [claim for claim in found if claim.tool.name not in covered]
    return [claim for claim in found if claim.certain or not any({*claim.keys} < {*other.keys} for other in found)]


def matching(patterns: Iterable[str], names: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of `names` that one of `patterns` names, in the order of the patterns."""
    hits: dict[str, None] = {}
    for pattern in patterns:
        if pattern.endswith(".*"):
            hits |= dict.fromkeys(name for name in names if name.startswith(pattern[:-1]))
        elif all(part in names for part in pattern.split("+")):
            hits |= dict.fromkeys(pattern.split("+"))
    return tuple(hits)


def _keys(tree: Mapping[str, Any], above: str) -> Iterator[str]:
    """Sections and what is in them, dotted."""
    for key, value in tree.items():
        name = above + str(key).replace("-", "_")
        yield name
        if isinstance(value, Mapping):
            yield from _keys(value, f"{name}.")


def _program(tool: Tool, call: Invocation | None) -> str:
    """The program or module that a command of the tool runs; an empty text where it runs another one."""
    if call is None or not call.program:
        return ""
    last = call.program.rpartition("/")[2]
    return next((last for program in tool.programs if last == program or call.program.startswith(f"{program}.")), "")


def refuse_python(tools: Mapping[str, Tool], text: str, file: str) -> None:
    """Raise `ScenarioError`: nothing is executed, so a configuration that is written in Python cannot be read."""
    modules = list(dict.fromkeys(match[1].partition(".")[0] for match in _IMPORT.finditer(text)))
    tool = next((tool for tool in tools.values() for name in modules if name in tool.programs), None)
    whose = f"{tool.called}'s configuration as Python code" if tool is not None else "Python code"
    hint = "give the command, YAML, JSON or TOML that starts it, or write the scenario: parsim new"
    raise ScenarioError(Finding(f"this is {whose}: parsim executes nothing, so it cannot be read", file=file, line=1, suggestion=hint))

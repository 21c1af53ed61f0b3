"""A draft as commented YAML, and as the tree that it reads back as."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parsim.columns import left, printable, width
from parsim.errors import Finding
from parsim.scenario import files
from parsim.scenario.importers.training.draft import Draft, Fate, Line
from parsim.scenario.placeholder import PLACEHOLDER
from parsim.scenario.scenario import flow

SECTIONS = ("model", "cluster", "training", "parallel", "software")
WIDEST = 56
"""columns after which comments are not aligned any more"""
LONGEST = 150
"""columns of a comment line"""


@dataclass(frozen=True, slots=True)
class ImportedScenario:
    """What an importer of training configurations hands back."""

    tool: str
    tree: dict[str, Any]
    yaml: str
    fates: tuple[Fate, ...]
    """what became of each key, in the order of the source"""
    to_fill: tuple[str, ...]
    """scenario keys that are left to the reader"""
    warnings: tuple[Finding, ...]
    """keys that are not modelled or unknown, lines to fill in, and what else to check"""


def finished(draft: Draft) -> ImportedScenario:
    """The draft as text and tree.

    Raises:
        ScenarioError: the source has values that cannot be read.
    """
    draft.check()
    _unused(draft)
    fates = sorted(draft.fates.values(), key=lambda fate: (fate.key.file != draft.file, fate.key.file, fate.key.line or 0))
    yaml = "\n".join([*_heading(draft), *_body(draft), *_remains(draft, fates)]) + "\n"
    tree = files.parse_text(yaml, draft.given.name).tree
    holes = tuple(path for path, line in draft.lines.items() if line.value == PLACEHOLDER)
    return ImportedScenario(draft.tool, tree, yaml, tuple(fates), holes, tuple(_warnings(draft, fates, holes)))


def _unused(draft: Draft) -> None:
    """Say which of the user's words had no use."""
    notes = {line.note: None for line in draft.lines.values()}
    for flag, value in (
        ("--sequence-length", draft.given.sequence_length),
        ("--micro-batch", draft.given.micro_batch),
        ("--gradient-accumulation", draft.given.gradient_accumulation),
        ("--examples", draft.given.examples),
    ):
        if value is not None and flag not in notes:
            draft.remark(f"{flag} {value} has no use: the configuration says it in another way")


def _heading(draft: Draft) -> list[str]:
    source = "standard input" if draft.file == "-" else draft.file
    lines = [f"# From {printable(source)} ({draft.tool}); behind each value stands what it came from."]
    if any(line.value == PLACEHOLDER for line in draft.lines.values()):
        lines.append(f"# What the configuration does not say is to be filled in: {PLACEHOLDER}.")
    return [*lines, f"name: {flow(draft.given.name)}", ""]


def _body(draft: Draft) -> list[str]:
    tree: dict[str, Any] = {}
    for path, line in draft.lines.items():
        *above, last = path.split(".")
        holder = tree
        for part in above:
            holder = holder.setdefault(part, {})
        holder[last] = line
    rows: list[tuple[str, str]] = []
    for section in SECTIONS:
        if section in tree:
            rows += _rows(section, tree[section], 0, draft.file)
    widest = min(WIDEST, max(width(text) for text, comment in rows if comment))
    return [f"{left(text, widest)}  # {comment}" if comment else text for text, comment in rows]


def _rows(key: str, node: Line | dict[str, Any], depth: int, main: str) -> Iterator[tuple[str, str]]:
    indent = "  " * depth
    if isinstance(node, Line):
        said = [part.quoted(main) for part in node.keys]
        yield f"{indent}{key}: {flow(node.value)}", "; ".join([*said, *([node.note] if node.note else [])])
        return
    yield f"{indent}{key}:", ""
    for name, below in node.items():
        yield from _rows(name, below, depth + 1, main)


def _remains(draft: Draft, fates: list[Fate]) -> list[str]:
    """Comments on what is not in the scenario."""
    lines: list[str] = []
    if draft.remarks:
        lines += ["", "# To check:"] + [f"#   {_one_line(remark)}" for remark in draft.remarks]
    for kind, title in (
        ("not modelled", "Not modelled, so that the answer does not depend on it:"),
        ("unknown", "Unknown keys, of which nothing was taken:"),
    ):
        found = [fate for fate in fates if fate.kind == kind]
        if found:
            lines += ["", f"# {title}", *(f"#   {fate.key.quoted(draft.file)}: {printable(fate.why)}" for fate in found)]
    quiet = [fate for fate in fates if fate.kind == "no effect"]
    if quiet:
        lines += ["", "# No effect on the time or memory of a step:"]
        for why in dict.fromkeys(fate.why for fate in quiet):
            lines += _wrapped(why, [fate.key.quoted(draft.file) for fate in quiet if fate.why == why])
    return lines


def _wrapped(why: str, keys: list[str]) -> Iterator[str]:
    row = f"#   {printable(why)}:"
    for at, key in enumerate(keys):
        piece = f" {key}{',' if at + 1 < len(keys) else ''}"
        if width(row) + width(piece) > LONGEST:
            yield row
            row = "#    "
        row += piece
    yield row


def _warnings(draft: Draft, fates: list[Fate], holes: tuple[str, ...]) -> Iterator[Finding]:
    yield from draft.remarks
    for fate in fates:
        if fate.kind in ("not modelled", "unknown"):
            text = f"{'not modelled' if fate.kind == 'not modelled' else 'unknown key'}: {fate.why}"
            yield Finding(text, fate.key.written, fate.key.value, "", fate.key.file, fate.key.line, fate.key.column)
    for path in holes:
        yield Finding("is left to fill in", path, PLACEHOLDER, draft.lines[path].note.removeprefix("FILL IN: "))


def _one_line(finding: Finding) -> str:
    return printable("; ".join(part for part in (finding.message, finding.suggestion) if part))

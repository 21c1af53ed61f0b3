"""The tables that ``rocm-smi --showtopo`` prints: link types and hops between GPUs, and their NUMA nodes."""

from __future__ import annotations

import re

from parsim.errors import Finding, TopologyError
from parsim.interop.topo_matrix import LARGEST, Affinity, Distance, TopologyMatrix

_TITLE = re.compile(r"^=+\s*(Weight|Hops|Link Type|Numa Nodes)\b.*?=+\s*$", re.IGNORECASE)
_ROW = re.compile(r"^(GPU[0-9]{1,3})\s+(\S.*)$")
_NUMA = re.compile(r"^GPU\s*\[?([0-9]{1,3})\]?\s*:\s*\(Topology\) Numa Node:\s*(-?[0-9]{1,4})")


def is_rocm(text: str) -> bool:
    """Whether a text is of rocm-smi, by its headings."""
    return "ROCm System Management Interface" in text or re.search(r"=+ Link Type between two GPUs =+", text) is not None


def read_rocm(text: str) -> TopologyMatrix:
    """The machine of the tables. GPUs joined by XGMI in one hop have one link; how many there are, rocm-smi does not print.

    Raises:
        TopologyError: no table of link types, rows that are cut, words that are none; all with their lines.
    """
    tables: dict[str, dict[str, tuple[int, list[str]]]] = {}
    numa: dict[str, str] = {}
    title = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TITLE.match(line.strip()):
            title = match[1].lower()
        elif match := _NUMA.match(line.strip()):
            numa[f"GPU{match[1]}"] = match[2]
        elif title and (match := _ROW.match(line.strip())) and not match[2].startswith("GPU"):
            tables.setdefault(title, {}).setdefault(match[1], (number, match[2].split()))
    kinds = tables.get("link type", {})
    if not kinds:
        repair = "paste all of rocm-smi --showtopo"
        raise TopologyError(Finding("is of rocm-smi, but has no table of link types between GPUs", suggestion=repair))
    gpus = tuple(kinds)
    if len(gpus) > LARGEST:
        raise TopologyError(Finding(f"{len(gpus)} devices in one machine; at most {LARGEST} are read"))
    links: dict[tuple[int, int], int] = {}
    distances: dict[tuple[int, int], Distance] = {}
    findings: list[Finding] = []
    for i, (name, (line_number, cells)) in enumerate(kinds.items()):
        if len(cells) != len(gpus):
            findings.append(Finding(f"the row of {name} has {len(cells)} cells for {len(gpus)} GPUs", name, line=line_number))
            continue
        for j in range(i + 1, len(gpus)):
            hops = _cell(tables.get("hops", {}), name, j)
            same = numa.get(name, "0") == numa.get(gpus[j], "0")
            if cells[j] == "XGMI" and hops in ("", "1"):
                links[i, j] = 1
            elif cells[j] in ("XGMI", "PCIE"):
                distances[i, j] = Distance.NODE if same else Distance.SYS
            else:
                findings.append(
                    Finding(f"unknown link type {cells[j]!r}", f"{name} x {gpus[j]}", cells[j], "known: XGMI, PCIE", line=line_number)
                )
    if findings:
        raise TopologyError(findings)
    warnings = [Finding("rocm-smi does not print how many XGMI links join two GPUs; one is taken", "node.edges")] if links else []
    affinities = tuple(Affinity(numa=numa.get(name, "")) for name in gpus)
    return TopologyMatrix(gpus, (), (), links, distances, affinities, tuple(warnings))


def _cell(table: dict[str, tuple[int, list[str]]], row: str, column: int) -> str:
    cells = table.get(row, (0, []))[1]
    return cells[column] if column < len(cells) else ""

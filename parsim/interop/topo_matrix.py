"""The matrix that ``nvidia-smi topo -m`` prints, read out of whatever text it was pasted into.

The relations, closest first, are NVIDIA's own (the legend that the tool prints): NV# bonded NVLinks, PIX at most one PCIe
bridge, PXB several bridges, PHB a PCIe host bridge, NODE host bridges of one NUMA node, SYS (older drivers: SOC) across
NUMA nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from parsim.errors import Finding, TopologyError

LARGEST = 128
"""GPUs and NICs of one machine, at most"""


class Distance(IntEnum):
    """How far two devices are from each other over PCIe."""

    PIX = 1
    PXB = 2
    PHB = 3
    NODE = 4
    SYS = 5


_DISTANCES = {**Distance.__members__, "SOC": Distance.SYS}
_FOREIGN = {
    "MPB": "Moore Threads", "SPB": "Moore Threads", "XGMI": "AMD", "PCIE": "AMD", "HCCS": "Huawei", "HCCS_SW": "Huawei", "LNK": "AMD",
}  # fmt: skip
_ANSI = re.compile(r"\x1b?\[[0-9;]*m|\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")
_GPU = re.compile(r"GPU[0-9]+")
_MIG = re.compile(r"\bMIG[ _-]?([0-9]+\.[0-9]+)")
_NIC = re.compile(
    r"(?:NIC|DPU|mlx|ib|roce|hfi|opa|bnxt|irdma|rdmap|efa|erdma|mana|qedr|cxgb|hns|siw|rxe)[\w.:-]*[0-9][\w.-]*", re.IGNORECASE
)
_NVLINKS = re.compile(r"NV([0-9]{1,3})")
_LEGEND = re.compile(r"\s*((?:NIC|DPU)[0-9]+)\s*:\s*(\S+)\s*")
_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_PIPES = str.maketrans("|│┃║", "\t\t\t\t")
_RULER = re.compile(r"[\s|│┃║+:=_─━═┼╋┌┐└┘├┤┬┴-]*")


class Affinity(NamedTuple):
    """What a GPU's row says after the relations; empty where it says nothing or N/A."""

    cpus: str = ""
    numa: str = ""
    gpu_numa: str = ""


@dataclass(frozen=True, slots=True)
class TopologyMatrix:
    """Relations between the devices of one machine: GPUs first, then NICs; a pair of numbers has the smaller one first."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    """names of the columns"""
    interfaces: tuple[str, ...]
    """names of the NICs by the legend, where there is one"""
    nvlinks: dict[tuple[int, int], int]
    """bonded NVLinks; such a cell hides the PCIe relation of the pair"""
    distances: dict[tuple[int, int], Distance]
    affinities: tuple[Affinity, ...]
    """per GPU"""
    warnings: tuple[Finding, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.gpus + self.nics


@dataclass(slots=True)
class _MatrixReader:
    """The text, line by line."""

    columns: list[str] = field(default_factory=list)
    trailing: tuple[str, ...] = ()
    cells: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """row and column to what stands there and the line number"""
    rows: dict[str, int] = field(default_factory=dict)
    affinities: dict[str, Affinity] = field(default_factory=dict)
    legend: dict[str, str] = field(default_factory=dict)
    mig: dict[str, None] = field(default_factory=dict)
    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)

    def line(self, number: int, text: str) -> None:
        """Take in one line."""
        if not text.strip() or text.lstrip().startswith("#") or _RULER.fullmatch(text):
            return
        text = _MIG.sub(r"MIG_\1", _ANSI.sub("", text).translate(_PIPES).replace("\xa0", " "))
        words = text.split()
        if words and words[0] in (">", "*"):
            words, text = words[1:], text.lstrip()[1:]
        if not words:
            return
        if is_header(words):
            self._header(number, text)
        elif not self.columns:
            if _GPU.fullmatch(words[0]) and len(words) > 1 and _relation(words[1]):
                repair = "paste the header line (GPU0 GPU1 ... CPU Affinity) too"
                raise TopologyError(Finding("a row of the matrix without a header line above", words[0], suggestion=repair, line=number))
        elif self._is_row(words):
            self._row(number, words[0], text)
        elif match := _LEGEND.fullmatch(text):
            self.legend[match[1]] = match[2]
        elif sum(_relation(word) for word in words[1:]) >= 2 and words[1] != "=":
            self.errors.append(Finding(f"the row of {words[0]!r} has no column of that name", words[0], line=number))

    def _is_row(self, words: list[str]) -> bool:
        """Whether a line is a row of the matrix, complete or not, and no later mention of a device."""
        if words[0] not in self.columns or len(words) == 1 or words[1] in ("=", ":"):
            return False
        return words[0] not in self.rows or words[1] == "X" or _relation(words[1])

    def _header(self, number: int, text: str) -> None:
        if self.columns:
            problem = "there is a second header line: the text holds several matrices"
            self.errors.append(Finding(problem, line=number, suggestion="keep the output of one machine"))
            return
        head, rest = text, ""
        tail = re.search(r"\b(?:CPU|NUMA|GPU NUMA)\b.*", text)
        if tail:
            head, rest = text[: tail.start()], text[tail.start() :]
        self.columns = head.split()
        self.trailing = tuple(name for name in _COLUMNS if re.search(rf"\b{name}\b", re.sub(r"\s+", " ", rest), re.IGNORECASE))
        for name in self.columns:
            if not _known(name):
                repair = "columns are GPUs (GPU0), NICs (NIC0, mlx5_0) and affinities"
                self.errors.append(Finding(f"unknown column {name!r}", name, name, repair, line=number))
        doubled = [name for position, name in enumerate(self.columns) if name in self.columns[:position]]
        if doubled:
            self.errors.append(Finding(f"the column {doubled[0]!r} stands twice in the header", doubled[0], line=number))
        self.mig = {name: None for name in self.columns if name.startswith("MIG_")}

    def _row(self, number: int, name: str, text: str) -> None:
        if name in self.rows:
            problem = f"{name} has a second row; the first is in line {self.rows[name]}"
            self.errors.append(Finding(problem, name, line=number, suggestion="keep the output of one machine"))
            return
        self.rows[name] = number
        words = list(re.finditer(r"\S+", text))
        relations = words[1 : 1 + len(self.columns)]
        if len(relations) < len(self.columns):
            problem = f"the row of {name} ends after {len(relations)} of {len(self.columns)} relations"
            if _GPU.fullmatch(name):
                self.errors.append(Finding(problem, name, line=number, suggestion="paste the whole line, without line breaks"))
                return
            self.warnings.append(Finding(f"{problem}; the rows of the GPUs are used instead", name, line=number))
        for column, word in zip(self.columns, relations, strict=False):
            self._cell(number, name, column, word[0])
        if _GPU.fullmatch(name):
            self.affinities[name] = affinity(text[relations[-1].end() :], self.trailing)

    def _cell(self, number: int, row: str, column: str, word: str) -> None:
        place = f"{row} x {column}"
        if row in self.mig or column in self.mig:
            return
        if not _relation(word) and word != "X":
            maker = _FOREIGN.get(word.upper())
            repair = "known: X, NV#, PIX, PXB, PHB, NODE, SYS; is the line complete?"
            if maker:
                repair = f"that is a word of {maker}, whose tool is not supported yet: write the topology by hand"
            self.errors.append(Finding(f"unknown relation {word!r}", place, word, repair, line=number))
        elif (row == column) != (word == "X"):
            problem = f"{word!r} where a device meets {'itself' if row == column else 'another'}: the columns are shifted"
            self.errors.append(Finding(problem, place, word, "compare the number of cells with the header", line=number))
        elif word.startswith("NV") and not (_GPU.fullmatch(row) and _GPU.fullmatch(column)):
            self.errors.append(Finding("NVLink to a device that is no GPU", place, word, line=number))
        else:
            self.cells[row, column] = (word, number)


def read_matrix(text: str) -> TopologyMatrix:
    """The matrix in `text`, wherever it stands between prompts, legends and other output.

    Taken as printed (blanks or tabs, with terminal colours) or as a markdown table. Only the rows of the GPUs are needed.

    Raises:
        TopologyError: no matrix, several matrices, cut rows of GPUs, unknown words; all findings with their lines.
    """
    reader = _MatrixReader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.line(number, line)
    if not reader.columns:
        repair = "paste the output of nvidia-smi topo -m with its header line (GPU0 GPU1 ... CPU Affinity)"
        raise TopologyError(Finding("there is no topology matrix in the text", suggestion=repair))
    gpus = tuple(name for name in reader.columns if _GPU.fullmatch(name))
    nics = tuple(name for name in reader.columns if name not in gpus and name not in reader.mig)
    for name in gpus:
        if name not in reader.rows and not reader.errors:
            reader.errors.append(Finding(f"{name} has a column but no row", name, suggestion="paste every line of the matrix"))
    if len(gpus) + len(nics) > LARGEST:
        reader.errors.append(Finding(f"{len(gpus) + len(nics)} devices in one machine; at most {LARGEST} are read"))
    if reader.errors:
        raise TopologyError(reader.errors)
    if reader.mig:
        names = ", ".join(name.replace("_", " ") for name in reader.mig)
        repair = "switch MIG off before training on whole GPUs"
        reader.warnings.append(Finding(f"left out: {names}; parts of a GPU are not supported, it is taken as whole", suggestion=repair))
    missing = [name for name in nics if name not in reader.rows]
    if missing:
        problem = f"no row for {', '.join(missing)}: where they are is read from the rows of the GPUs, which ports share a card is unknown"
        reader.warnings.append(Finding(problem, suggestion="paste the whole matrix"))
    nvlinks, distances = _pairs(gpus + nics, reader)
    return TopologyMatrix(
        gpus,
        nics,
        tuple(reader.legend.get(name, name) for name in nics),
        nvlinks,
        distances,
        tuple(reader.affinities[name] for name in gpus),
        tuple(reader.warnings),
    )


def _pairs(names: tuple[str, ...], reader: _MatrixReader) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], Distance]]:
    """Relations by pair; of two that differ, the closer one."""
    nvlinks: dict[tuple[int, int], int] = {}
    distances: dict[tuple[int, int], Distance] = {}
    for i, first in enumerate(names):
        for j in range(i + 1, len(names)):
            second = names[j]
            cells = [reader.cells[pair] for pair in ((first, second), (second, first)) if pair in reader.cells]
            if not cells:
                continue
            word, _ = min(cells, key=lambda cell: _nearness(cell[0]))
            if len({_nearness(other) for other, _ in cells}) > 1:
                problem = f"{cells[0][0]} in the row of {first}, {cells[1][0]} in the row of {second}; {word} is taken"
                reader.warnings.append(Finding(problem, f"{first} x {second}", line=cells[1][1]))
            if match := _NVLINKS.fullmatch(word):
                nvlinks[i, j] = int(match[1])
            else:
                distances[i, j] = _DISTANCES[word]
    return nvlinks, distances


def _nearness(word: str) -> tuple[int, int]:
    """Sorts relations, closest first."""
    match = _NVLINKS.fullmatch(word)
    return (0, -int(match[1])) if match else (1, _DISTANCES[word])


def _relation(word: str) -> bool:
    match = _NVLINKS.fullmatch(word)
    return word in _DISTANCES or bool(match and int(match[1]))


def _known(name: str) -> bool:
    return bool(_GPU.fullmatch(name) or _NIC.fullmatch(name)) or name.startswith("MIG_")


def is_header(words: list[str]) -> bool:
    """Whether a line names columns: it begins with a device and holds no relation."""
    if not _known(words[0]) or any(_relation(word) or word == "X" for word in words):
        return False
    devices = [word for word in words if _GPU.fullmatch(word)]
    return bool(devices) and (len(devices) > 1 or "Affinity" in words or all(map(_known, words)))


def affinity(rest: str, columns: tuple[str, ...]) -> Affinity:
    """What follows the relations of a row, by the header's trailing `columns`.

    Cells between tabs go by position: the CPU list, the NUMA node, and the last cell that is not empty for the GPU's own NUMA
    node. Between blanks an empty cell cannot be seen: of fewer words than columns, one with ``-`` or ``,`` is the CPU list.
    """
    if "\t" in rest:
        cells = [cell.strip() for cell in rest.split("\t")][1:]
        values = dict(zip(columns, cells, strict=False))
        if _COLUMNS[2] in columns:
            values[_COLUMNS[2]] = next((cell for cell in reversed(cells[len(columns) - 1 :]) if cell), "")
    else:
        words = rest.split()
        wanted = list(columns)
        if len(words) < len(wanted) and wanted[0] == _COLUMNS[0] and not (words and re.search("[-,]", words[0])):
            wanted = wanted[1:]
        values = dict(zip(wanted, words, strict=False))
    return Affinity(*("" if values.get(name, "") in ("N/A", "-") else values.get(name, "") for name in _COLUMNS))

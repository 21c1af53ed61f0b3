"""What programs on NCCL print: measured collectives (nccl-tests, rccl-tests, a table) and the paths that NCCL_DEBUG=INFO lists."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from parsim.errors import Finding, ScenarioError
from parsim.scenario.files import read_text
from parsim.units import is_digits, real

_PREFIX = re.compile(r"^(?:\[[0-9]+,[0-9]+\](?:<std\w+>)?:?\s?|[0-9]+:\s)")
"""what MPI (--tag-output) and Slurm (--label) put before every line"""
_COLUMNS = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong")
_RANK = re.compile(r"^#\s+Rank\s+([0-9]{1,9})\b.*?\bon\s+(\S+)\s+device\s+[0-9]+\s+\[[^\]]*\]\s*(.*?)\s*$")
_STARTING = re.compile(r"(?:Collective test starting:\s*|\b)(\w+?)_perf\b")
_KINDS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "broadcast": "broadcast",
    "reduce": "reduce", "alltoall": "all_to_all", "sendrecv": "sendrecv", "gather": "gather", "scatter": "scatter",
}  # fmt: skip
"""programs of nccl-tests and what they run"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured collective."""

    bytes: int
    time: float
    """[s]"""
    in_place: bool = False
    algbw: float | None = None
    """as printed [B/s]"""
    busbw: float | None = None
    """as printed [B/s]"""


@dataclass(frozen=True, slots=True)
class Log:
    """What a file of measurements says."""

    samples: tuple[Sample, ...]
    kind: str | None = None
    """e.g. all_reduce; None where the file does not say"""
    ranks: int | None = None
    nodes: int | None = None
    device: str | None = None
    """the GPU's name"""

    def of(self, *, in_place: bool) -> tuple[Sample, ...]:
        """The out-of-place or the in-place samples."""
        return tuple(sample for sample in self.samples if sample.in_place is in_place)

    @property
    def bus_factor(self) -> float | None:
        """Bus bandwidth over algorithm bandwidth, of the fastest sample that prints both."""
        printed = [sample for sample in self.samples if sample.algbw and sample.busbw]
        best = max(printed, key=lambda sample: sample.algbw or 0.0, default=None)
        return best.busbw / best.algbw if best is not None and best.algbw and best.busbw else None


def read_log(path: str | Path) -> Log:
    """The measurements of a file.

    Raises:
        ScenarioError: it cannot be read, or holds no measurement; of a table, every bad cell with its line.
    """
    return parse_log(read_text(Path(path)), str(path))


def parse_log(text: str, name: str = "text") -> Log:
    """The measurements in `text`; see `read_log`."""
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    heading = [cell.strip().lower() for cell in first.split(",")]
    if "bytes" in heading:
        return _table(text, name)
    return _output(text, name)


def _output(text: str, name: str) -> Log:
    columns: tuple[str, ...] = _COLUMNS
    samples: list[Sample] = []
    ranks: dict[int, None] = {}
    hosts: dict[str, None] = {}
    devices: dict[str, None] = {}
    kinds: dict[str, None] = {}
    for raw in text.splitlines():
        line = _PREFIX.sub("", raw).strip()
        if started := _STARTING.search(line):
            kinds[started[1]] = None
        if rank := _RANK.match(line):
            ranks[int(rank[1])] = None
            hosts[rank[2]] = None
            devices[rank[3]] = None
        words = line.lstrip("#").split()
        if line.startswith("#"):
            if words[:1] == ["size"] and "time" in words:
                columns = tuple(words)
        elif words and is_digits(words[0]):
            samples += _samples(words, columns)
    if not samples:
        repair = "give the output of an nccl-tests program such as all_reduce_perf, or a table with the columns bytes,time_us"
        raise ScenarioError(Finding("holds no measurement of a collective", file=name, suggestion=repair))
    known = [_KINDS[kind] for kind in kinds if kind in _KINDS]
    return Log(
        tuple(samples),
        kind=known[0] if len(known) == 1 else None,
        ranks=len(ranks) or None,
        nodes=len(hosts) or None,
        device=next(iter(devices)) if len(devices) == 1 else None,
    )


def _samples(words: list[str], columns: tuple[str, ...]) -> list[Sample]:
    """Out of place and in place, of a line that has the columns of the heading."""
    if len(words) != len(columns) or not is_digits(words[0]):
        return []
    samples = []
    for number, place in enumerate(index for index, column in enumerate(columns) if column == "time"):
        time, algbw, busbw = (_float(word) for word in words[place : place + 3])
        if time:
            samples.append(Sample(int(words[0]), time * 1e-6, bool(number), _gb(algbw), _gb(busbw)))
    return samples


def _float(word: str) -> float | None:
    try:
        value = real(word)
    except ValueError:
        return None
    return value if 0 <= value <= 1e30 else None


def _gb(value: float | None) -> float | None:
    return None if value is None else value * 1e9


def _table(text: str, name: str) -> Log:
    """A CSV table; ``in_place`` (true or false) may stand beside bytes and time_us, other columns are not read."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")]
    rows = csv.reader(io.StringIO("\n".join(line for _, line in lines)))
    heading = [cell.strip().lower() for cell in next(rows)]
    if "time_us" not in heading:
        raise ScenarioError(Finding("has no column time_us", file=name, line=lines[0][0], suggestion="name the columns bytes,time_us"))
    findings: list[Finding] = []
    samples: list[Sample] = []
    for (line, _), row in zip(lines[1:], rows, strict=False):
        cells = dict(zip(heading, (cell.strip() for cell in row), strict=False))
        size, time = _float(cells.get("bytes", "")), _float(cells.get("time_us", ""))
        if size is None or size != int(size) or not time:
            findings.append(Finding("needs a whole number of bytes and a time in us", "bytes,time_us", ",".join(row), file=name, line=line))
        else:
            samples.append(Sample(int(size), time * 1e-6, cells.get("in_place", "").lower() in ("true", "1", "yes")))
    if not samples and not findings:
        findings.append(Finding("holds no measurement of a collective", file=name))
    if findings:
        raise ScenarioError(findings)
    return Log(tuple(samples))


_NETWORK = re.compile(r"Using network ([A-Za-z0-9_ ./-]+)")
_CHANNEL = re.compile(r"Channel [0-9]+(?:/[0-9]+)? : .* via (\S+)")
_COUNT = re.compile(r"([0-9]+) coll channels")
_SET = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (\S+?)\.?$")
_VERSION = re.compile(r"NCCL version ([0-9]+\.[0-9]+[0-9.]*)")
_INFO = re.compile(r"NCCL (?:INFO|WARN|version)")


@dataclass(frozen=True)
class LoggedPaths:
    """What NCCL said it uses."""

    network: str = ""
    """IB | Socket | AWS Libfabric | ...; empty: it did not say"""
    transports: tuple[tuple[str, int], ...] = ()
    """(P2P | SHM | NET/IB/GDRDMA | NET/IB | NET/Socket | ..., connections), most first"""
    channels: int | None = None
    """of collectives"""
    environment: tuple[tuple[str, str], ...] = ()
    version: str = ""

    def count(self, start: str) -> int:
        """Connections whose transport begins so."""
        return sum(number for name, number in self.transports if name.startswith(start))


def parse_debug(text: str) -> LoggedPaths | None:
    """The paths in a log; None where nothing in it comes from NCCL_DEBUG."""
    if not _INFO.search(text):
        return None
    network, channels, version = "", None, ""
    transports: Counter[str] = Counter()
    environment: dict[str, str] = {}
    for line in map(str.rstrip, text.splitlines()):
        if match := _CHANNEL.search(line):
            transports[_transport(match[1])] += 1
        elif match := _NETWORK.search(line):
            network = match[1].strip()
        elif match := _COUNT.search(line):
            channels = int(match[1])
        elif match := _SET.search(line):
            environment[match[1]] = match[2]
        if match := _VERSION.search(line):
            version = match[1].rstrip(".")
    return LoggedPaths(network, tuple(transports.most_common()), channels, tuple(environment.items()), version)


def _transport(words: str) -> str:
    """``NET/IB/3/GDRDMA`` -> ``NET/IB/GDRDMA``, ``P2P/CUMEM`` -> ``P2P``: what the path is, not which card it is."""
    parts = [part for part in words.split("/") if not part.isdigit()]
    if parts[0] == "NET":
        kept = [re.sub(r"ext_v[0-9]+$", "", part) for part in parts[:2]]
        return "/".join([*kept, *(["GDRDMA"] if any("GDRDMA" in part for part in parts[2:]) else [])])
    return parts[0]

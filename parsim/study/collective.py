"""One collective over a range of sizes, as nccl-tests reports it: time, algorithm bandwidth, bus bandwidth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from parsim.errors import Finding, ScenarioError
from parsim.hardware.fabric.cluster import Cluster
from parsim.hardware.nccl.cost import collective_cost
from parsim.hardware.nccl.inputs import AUTOMATIC, KINDS, Settings, bus_factor
from parsim.interop.nccl_logs import Log
from parsim.units import parse

MOST_SIZES = 10_000
_SPELLINGS = {"alltoall": "all_to_all", "send_recv": "send", "allreduce": "all_reduce", "allgather": "all_gather",
              "reducescatter": "reduce_scatter"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SizeTime:
    """A collective of one size, predicted."""

    bytes: int
    algorithm: str
    protocol: str
    time: float
    """[s]"""
    algbw: float
    """bytes / time [B/s]"""
    busbw: float
    """what the wires would see in a ring [B/s]"""

    def document(self) -> dict[str, Any]:
        """The row as the JSON document has it."""
        return {
            "bytes": self.bytes,
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "time_s": self.time,
            "algbw_Bps": self.algbw,
            "busbw_Bps": self.busbw,
        }


@dataclass(frozen=True, slots=True)
class ComparedTime:
    """A measured time beside the prediction for its size."""

    measured: float
    """[s]"""
    in_place: bool
    row: SizeTime

    @property
    def error(self) -> float:
        """Predicted over measured time, less one."""
        return self.row.time / self.measured - 1.0


def kind_of(name: str) -> str:
    """The operation behind ``all-reduce``, ``alltoall`` and other spellings.

    Raises:
        ScenarioError: there is none.
    """
    plain = name.strip().lower().replace("-", "_").removesuffix("_perf")
    operation = _SPELLINGS.get(plain, plain)
    if operation not in KINDS:
        known = ", ".join(kind.replace("_", "-") for kind in KINDS)
        raise ScenarioError(Finding(f"there is no collective {name!r}", "KIND", name, f"known: {known}"))
    return operation


def sizes(text: str, factor: float = 2.0) -> tuple[int, ...]:
    """Sizes of ``1KiB:16GiB`` (each `factor` times the one before), ``1MiB,100MB`` or ``1 GiB`` [B].

    Raises:
        ScenarioError: a part is no size, the range runs backwards, or there are too many.
    """
    if ":" not in text:
        listed = text.split(",")
        if len(listed) > MOST_SIZES:
            raise ScenarioError(Finding(f"{len(listed):,} sizes; at most {MOST_SIZES:,} are computed", "--size", None, "give fewer sizes"))
        return tuple(_size(part, text) for part in listed)
    parts = text.split(":")
    if len(parts) != 2:
        raise ScenarioError(Finding("expected one range of sizes", "--size", text, "for example 1KiB:16GiB"))
    first, last = (_size(part, text) for part in parts)
    grows = 1.0 < factor < math.inf  # NaN does not
    if not grows or first < 1 or last < first:
        problem = (
            "the factor must be a number above 1"
            if not grows
            else "a range starts at 1 B or more"
            if first < 1
            else "the range runs backwards"
        )
        raise ScenarioError(Finding(problem, "--size" if grows else "--factor", text if grows else factor))
    steps = math.floor(math.log(last / first) / math.log(factor) + 1e-9)
    if steps >= MOST_SIZES:
        raise ScenarioError(
            Finding(f"{steps + 1:,} sizes; at most {MOST_SIZES:,} are computed", "--factor", factor, "take a larger factor")
        )
    return tuple(dict.fromkeys(round(first * factor**step) for step in range(steps + 1)))


def _size(part: str, text: str) -> int:
    try:
        return int(parse(part.strip(), "bytes"))
    except ValueError as error:
        raise ScenarioError(Finding(str(error), "--size", text, "for example 1KiB:16GiB, or 1MiB,64MiB")) from None


def sweep(
    cluster: Cluster, group: tuple[int, ...], kind: str, wanted: Iterable[int], settings: Settings = AUTOMATIC
) -> tuple[SizeTime, ...]:
    """The collective among `group` for every size, alone on the fabric.

    Raises:
        TopologyError: see `collective_cost`.
    """
    factor = bus_factor(kind, len(group))
    rows = []
    for size in wanted:
        cost = collective_cost(cluster, group, kind, size, settings)
        time = cost.time
        algbw = size / time if time else 0.0
        rows.append(SizeTime(size, cost.algorithm, cost.protocol, time, algbw, algbw * factor))
    return tuple(rows)


def compare(cluster: Cluster, group: tuple[int, ...], kind: str, log: Log, settings: Settings = AUTOMATIC) -> tuple[ComparedTime, ...]:
    """Every measurement of a log beside its prediction, in the order of the log.

    Raises:
        ScenarioError: the log is of another collective or another number of GPUs.
        TopologyError: see `collective_cost`.
    """
    _same(kind, len(group), log)
    rows = {row.bytes: row for row in sweep(cluster, group, kind, dict.fromkeys(s.bytes for s in log.samples), settings)}
    return tuple(ComparedTime(sample.time, sample.in_place, rows[sample.bytes]) for sample in log.samples)


def _same(kind: str, ranks: int, log: Log) -> None:
    """Refuse a log of another collective or another number of GPUs."""
    if log.kind is not None and log.kind != kind:
        raise ScenarioError(Finding(f"the log is of {log.kind}, not of {kind}", "--nccl-log", log.kind, f"ask for {log.kind}"))
    if log.ranks is not None and log.ranks != ranks:
        raise ScenarioError(Finding(f"the log is of {log.ranks} GPUs, not of {ranks}", "--nccl-log", log.ranks, f"add --gpus {log.ranks}"))
    printed, expected = log.bus_factor, bus_factor(kind, ranks)
    if printed is not None and log.ranks is None and abs(printed / expected - 1.0) > 0.02:
        message = f"the log's bus bandwidth is {printed:.4g} of its algorithm bandwidth; {kind} over {ranks} GPUs has {expected:.4g}"
        raise ScenarioError(Finding(message, "--nccl-log", printed, "give --gpus as in the measurement"))


def document(
    rows: Sequence[SizeTime], compared: Sequence[ComparedTime], about: dict[str, Any], library: Sequence[SizeTime] = ()
) -> dict[str, Any]:
    """The answer as one JSON document; `about` says what was asked, `library` what NCCL takes for the same sizes."""
    result: dict[str, Any] = {"parsim": 1, **about, "rows": [row.document() for row in rows]}
    if library:
        result["nccl_rows"] = [row.document() for row in library]
    if compared:
        result["comparison"] = [
            {**one.row.document(), "measured_time_s": one.measured, "in_place": one.in_place, "error": one.error} for one in compared
        ]
    return result


def picture(rows: Sequence[SizeTime], compared: Sequence[ComparedTime], title: str, kind: Literal["svg", "png"] = "svg") -> bytes:
    """Time and bus bandwidth over size, with the measurements."""
    from parsim.report.plots.collective import MeasuredSize, PredictedSize, collective_figure
    from parsim.report.plots.figure import save

    dots = [PredictedSize(row.bytes, row.time, row.busbw, row.algorithm, row.protocol) for row in rows]
    marks = [MeasuredSize(one.row.bytes, one.measured, one.row.busbw * one.row.time / one.measured, one.in_place) for one in compared]
    return save(collective_figure(dots, marks, title=title), kind)


def text(
    rows: Sequence[SizeTime],
    compared: Sequence[ComparedTime],
    title: str,
    remarks: Sequence[str] = (),
    library: Sequence[SizeTime] = (),
) -> str:
    """The answer as nccl-tests prints it, with remarks below.

    With a comparison measured times and errors stand beside, with `library` what NCCL takes for the same sizes.
    """
    lines = [f"# {title}", f"# {'size':>14}  {'algorithm':>14}  {'protocol':>8}  {'time':>12}  {'algbw':>8}  {'busbw':>8}"]
    lines.append(f"# {'(B)':>14}  {'':>14}  {'':>8}  {'(us)':>12}  {'(GB/s)':>8}  {'(GB/s)':>8}")
    if library:
        lines[1] += f"  {'NCCL time':>12}  {'busbw':>8}  {'NCCL/this':>9}"
        lines[2] += f"  {'(us)':>12}  {'(GB/s)':>8}"
        lines += [f"  {_cells(row)}{_beside(row, other)}" for row, other in zip(rows, library, strict=True)]
    else:
        lines += [f"  {_cells(row)}" for row in rows]
    lines += remarks
    if compared:
        lines += ["", f"# compared with {len(compared)} measurements", f"{lines[1]}  {'measured':>12}  {'error':>8}"]
        lines += [
            f"  {_cells(one.row)}  {one.measured * 1e6:>12.2f}  {100 * one.error:>+7.1f}%{'  in place' if one.in_place else ''}"
            for one in compared
        ]
        errors = [abs(one.error) for one in compared]
        lines.append(f"# median |error| {100 * median(errors):.1f} %, largest {100 * max(errors):.1f} %")
    return "\n".join(lines)


def _beside(row: SizeTime, other: SizeTime) -> str:
    """The library's time for the same size, and how many times as long it is."""
    ratio = f"{other.time / row.time:.2f}" if row.time else "-"
    return f"  {other.time * 1e6:>12.2f}  {other.busbw / 1e9:>8.2f}  {ratio:>9}"


def _cells(row: SizeTime) -> str:
    rates = f"{row.algbw / 1e9:>8.2f}  {row.busbw / 1e9:>8.2f}"
    return f"{row.bytes:>14d}  {row.algorithm.replace('_', '-'):>14}  {row.protocol:>8}  {row.time * 1e6:>12.2f}  {rates}"

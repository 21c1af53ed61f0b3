"""Utilisation that others have published: `validation/published_mfu.csv`, what was printed and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log2

from parsim.scenario.files import data_root, find, read
from parsim.units import parse
from parsim.validation.published import Published, read_rows

FILE = "validation/published_mfu.csv"


@dataclass(frozen=True, slots=True)
class PublishedUtilisation(Published):
    """One run as its source describes it; None is what it does not print."""

    table: str
    device: str
    """a shipped device"""
    gpus: int
    model: str
    parameters: float
    sequence: int
    global_batch: int | None
    """[sequences]"""
    precision: str
    recompute: str
    """none | selective | full; empty: not stated"""
    tokens_per_s_per_gpu: float | None
    tflops_per_gpu: float | None
    """[TFLOP/s] in the source's convention"""
    mfu: float | None
    """fraction of the dense peak"""
    hfu: float | None
    convention: str
    """a FLOP convention of parsim; empty: the source does not say what it counts"""

    @property
    def peak(self) -> float:
        """Dense datasheet peak of one GPU [FLOP/s]."""
        return _peak(self.device, self.precision)

    @property
    def hardware(self) -> bool:
        """Whether its FLOP count recomputation."""
        return self.convention == "megatron-hardware"

    @property
    def utilisation(self) -> tuple[float, str]:
        """What it reached, and how that is known: printed, or arithmetic on printed numbers."""
        if self.mfu is not None:
            return self.mfu, "printed MFU"
        if self.hfu is not None:
            return self.hfu, "printed share of peak"
        if self.tflops_per_gpu is not None:
            return self.tflops_per_gpu * 1e12 / self.peak, "printed TFLOP/s / peak"
        return 6 * self.parameters * (self.tokens_per_s_per_gpu or 0.0) / self.peak, "6 N x printed tokens/s / peak"

    @property
    def compared(self) -> str:
        """The convention in which a run of one's own may be compared with it; empty: none."""
        if self.mfu is None and self.hfu is None and self.tflops_per_gpu is None:
            return "6n"
        return self.convention


@cache
def published() -> tuple[PublishedUtilisation, ...]:
    """All rows, in the order of the file.

    Raises:
        ScenarioError: rows that cannot be read.
    """
    return read_rows(data_root() / FILE, _row)


def nearest(device: str, parameters: float, gpus: int, sequence: int, precision: str, most: int = 5) -> tuple[PublishedUtilisation, ...]:
    """The runs most like yours, best first; of one source and model only the nearest.

    Distance: factors of two in parameters, and half as much in GPUs and sequence length; another generation of GPU counts
    as a factor of 16 in parameters, another card of it as a quarter of one factor, another precision as one.
    """
    chosen: dict[tuple[str, str], PublishedUtilisation] = {}
    for row in sorted(published(), key=lambda row: _distance(row, device, parameters, gpus, sequence, precision)):
        chosen.setdefault((row.source, row.model), row)
    return tuple(list(chosen.values())[:most])


def _distance(row: PublishedUtilisation, device: str, parameters: float, gpus: int, sequence: int, precision: str) -> float:
    generation = row.device.partition("-")[0] != device.partition("-")[0]
    sixteen_bit = ("fp16", "bf16")
    other = row.precision != precision and not (row.precision in sixteen_bit and precision in sixteen_bit)
    sizes = abs(log2(row.parameters / parameters)) + abs(log2(row.gpus / gpus)) / 2 + abs(log2(row.sequence / sequence)) / 2
    return sizes + 4.0 * generation + 0.25 * (row.device != device) + other


def sources(rows: Sequence[PublishedUtilisation]) -> list[str]:
    """The sources that the rows come from, each once."""
    return list(dict.fromkeys(row.source for row in rows))


@cache
def _peak(device: str, precision: str) -> float:
    tree = read(find("devices", device)).tree
    return float(parse(tree["compute"]["peak"][precision], "flops"))


def _row(row: dict[str, str]) -> PublishedUtilisation:
    def number(key: str, scale: float = 1.0) -> float | None:
        return float(row[key]) * scale if row[key] else None

    return PublishedUtilisation(
        source=row["source"],
        table=row["table"],
        device=row["device"],
        gpus=int(row["gpus"]),
        model=row["model"],
        parameters=float(row["parameters_b"]) * 1e9,
        sequence=int(row["sequence"]),
        global_batch=int(row["global_batch"]) if row["global_batch"] else None,
        precision=row["precision"],
        recompute=row["recompute"],
        tokens_per_s_per_gpu=number("tokens_per_s_per_gpu"),
        tflops_per_gpu=number("tflops_per_gpu"),
        mfu=number("mfu_percent", 0.01),
        hfu=number("hfu_percent", 0.01),
        convention=row["convention"],
        note=row["note"],
    )

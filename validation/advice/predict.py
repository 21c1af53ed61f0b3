"""Predicts what README.md lists, and writes results.csv. Run from anywhere: ``python validation/advice/predict.py`` (two minutes)."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parsim.validation.predicted_runs import step_time
from parsim.validation.published_runs import PublishedRun, published

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.csv"
OLD_ZERO3 = f"{HERE / 'deepspeed_2021.py'}:ZeroThreeOf2021"
COLUMNS = ("claim", "case", "variant", "nics", "gpus", "measured_tflops", "predicted_s", "predicted_tflops")
UNFITTED = {"software.effects": "none"}
"""effects of training are fitted to published steps, table 2 among them"""
TODAY = {"software.profile": "megatron-2021"}
"""the rows' profile is deepspeed-2021, whose ZeRO-3 is that of 2021"""
BASE: dict[str, Any] = {
    "cluster": {"topology": "dgx-a100-80gb", "nodes": 8},
    "training": {"sequence_length": 2048, "precision": "fp16", "attention": "eager", "recompute": "full", "micro_batch": 1},
    "software": {"profile": "megatron-2021", "effects": "none"},
}
"""64 GPUs as figures 13 and 15 of the paper use them (NVIDIA/Megatron-LM, examples/sc21)"""


@dataclass(frozen=True)
class Case:
    """One simulation."""

    claim: str
    case: str
    variant: str
    """table 2: 3d, zero3 (as today), zero3-2021 (deepspeed_2021.py), deepspeed-2021 (that profile); figures: tensor x pipeline x data"""
    nics: int
    gpus: int
    measured: float | None
    """TFLOP/s per GPU as the paper counts them; None: only drawn"""
    flop: float
    tree: dict[str, Any]


def flop(batch: int, length: int, layers: int, hidden: int, vocabulary: int) -> float:
    """Operations of a step with full recomputation, by the paper's formula (3) [FLOP]."""
    return 96 * batch * length * layers * hidden**2 * (1 + length / (6 * hidden) + vocabulary / (16 * layers * hidden))


def cases() -> Iterator[Case]:
    """Everything that README.md lists."""
    for row in published(None, ["megatron-sc21-t2"])[0].rows:
        yield from _table2(row)
    for batch in (32, 128):
        for tensor, pipeline in ((32, 2), (16, 4), (8, 8), (4, 16), (2, 32)):
            yield _on64("figure-13", batch, (32, 20480, 128), tensor, pipeline)
    for batch in (32, 128, 512):
        for tensor in (2, 4, 8, 16, 32):
            yield _on64("figure-15", batch, (32, 3840, 32), tensor, 1)


def _table2(row: PublishedRun) -> Iterator[Case]:
    model, training = row.settings["model"], row.settings["training"]
    gpus = 8 * row.settings["cluster"]["nodes"]
    work = flop(training["global_batch"], training["sequence_length"], model["layers"], model["hidden"], model["vocabulary"])
    measured = round(work / row.measured["step_time_s"] / gpus / 1e12)
    replicas = row.settings["parallel"]["data"]["size"]
    old = {"parallel.data.strategy": OLD_ZERO3, "parallel.data.shard_size": replicas}
    sharded = {"zero3": TODAY, "zero3-2021": {**TODAY, **old}, "deepspeed-2021": {}}
    variants: dict[str, dict[str, Any]] = sharded if row.settings["parallel"]["data"]["strategy"] == "zero3" else {"3d": {}}
    for variant, change in variants.items():
        for nics in (8, 1):
            tree = row.scenario({**change, **UNFITTED}, {} if nics == 8 else {"cluster.set.node.nics": nics})
            yield Case("table-2", row.id, variant, nics, gpus, measured, work, tree)


def _on64(claim: str, batch: int, shape: tuple[int, int, int], tensor: int, pipeline: int) -> Case:
    layers, hidden, heads = shape
    data = 64 // (tensor * pipeline)
    parallel = {"tensor": {"size": tensor, "overlap": "none"}, "pipeline": {"size": pipeline}, "data": {"overlap_reduce": False}}
    tree = {
        **BASE,
        "model": {"family": "megatron-gpt", "layers": layers, "hidden": hidden, "heads": heads, "vocabulary": 51200},
        "training": {**BASE["training"], "global_batch": batch},
        "parallel": parallel,
    }
    return Case(claim, f"batch {batch}", f"{tensor} x {pipeline} x {data}", 8, 64, None, flop(batch, 2048, layers, hidden, 51200), tree)


def predicted(case: Case) -> tuple[float, float]:
    """Seconds of a step, and TFLOP/s per GPU."""
    seconds = step_time(case.tree, trust_code=True)
    return seconds, case.flop / seconds / case.gpus / 1e12


def main() -> None:
    """Write results.csv."""
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for case in cases():
            seconds, speed = predicted(case)
            measured = "" if case.measured is None else f"{case.measured:g}"
            table.writerow((case.claim, case.case, case.variant, case.nics, case.gpus, measured, f"{seconds:.5g}", f"{speed:.4g}"))
            file.flush()
            sys.stderr.write(f"{case.claim} {case.case} {case.variant} {case.nics} NICs: {seconds:.1f} s, {speed:.1f} TFLOP/s\n")


if __name__ == "__main__":
    main()

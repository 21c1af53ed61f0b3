"""Which strategies are looked at, and with which numbers of GPUs they go: arithmetic only.

The axes are those of dense pre-training stacks: tensor parallelism within a machine, pipelines whose stages have equally many
layers, 1F1B or interleaved, ZeRO-1 or fully sharded states, micro-batches of given sizes, no or full recomputation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

MOST_STAGES = 16
"""pipeline stages (ranks) that are looked at"""
CHUNKS = (2, 4)
"""virtual stages of a rank that are looked at, where they divide its layers"""


@dataclass(frozen=True, slots=True, order=True)
class Strategy:
    """How a training is split, and over how many GPUs."""

    tensor: int
    pipeline: int
    data: int
    micro_batch: int
    chunks: int = 1
    """virtual stages of a rank; more than one is the interleaved schedule"""
    sharding: str = "zero1"
    """zero1 | fsdp"""
    recompute: str = "none"

    @property
    def gpus(self) -> int:
        """Ranks."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        """``tp8 pp8 dp32 mbs1 vp2 zero1``."""
        words = [f"tp{self.tensor}", f"pp{self.pipeline}", f"dp{self.data}", f"mbs{self.micro_batch}"]
        words += [f"vp{self.chunks}"] if self.chunks > 1 else []
        words += [self.sharding] if self.data > 1 else []
        return " ".join(words + (["recompute"] if self.recompute == "full" else []))

    def keys(self) -> dict[str, Any]:
        """Scenario keys and their values."""
        found: dict[str, Any] = {
            "training.micro_batch": self.micro_batch, "parallel.data.strategy": self.sharding if self.data > 1 else "none",
        }  # fmt: skip
        if self.recompute != "none":
            found["training.recompute"] = self.recompute
        if self.tensor > 1:
            found |= {"parallel.tensor.size": self.tensor, "parallel.tensor.sequence_parallel": True}
        if self.pipeline > 1:
            found["parallel.pipeline.size"] = self.pipeline
        if self.chunks > 1:
            found |= {"parallel.pipeline.schedule": "interleaved", "parallel.pipeline.virtual_stages": self.chunks}
        return found

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "tensor": self.tensor, "pipeline": self.pipeline, "data": self.data, "micro_batch": self.micro_batch,
            "virtual_stages": self.chunks, "sharding": self.sharding, "recompute": self.recompute,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lattice:
    """All strategies of a model on one kind of machine."""

    layers: int
    heads: int
    """0: no attention; tensor parallelism divides them"""
    global_batch: int
    gpus_per_node: int
    micro_batches: tuple[int, ...] = (1, 2)
    recompute: tuple[str, ...] = ("none",)
    schedules: tuple[str, ...] = ("1f1b",)
    sharding: tuple[str, ...] = ("auto",)
    """zero1, fsdp (no pipeline), auto: both, FSDP without tensor parallelism only"""

    @property
    def tensors(self) -> tuple[int, ...]:
        """Powers of two within a machine that divide the heads."""
        sizes = (2**power for power in range(self.gpus_per_node.bit_length()))
        return tuple(size for size in sizes if self.gpus_per_node % size == 0 and (size == 1 or (self.heads and self.heads % size == 0)))

    @property
    def unit(self) -> int:
        """GPUs by which the numbers grow: a whole machine, or of 72 GPUs the largest power of two that divides them, 8."""
        return self.gpus_per_node & -self.gpus_per_node

    @property
    def pipelines(self) -> tuple[int, ...]:
        """Numbers of stages with equally many layers."""
        return tuple(size for size in range(1, min(self.layers, MOST_STAGES) + 1) if self.layers % size == 0)

    def at(self, gpus: int) -> Iterator[Strategy]:
        """Every strategy that uses exactly so many GPUs."""
        for tensor in self.tensors:
            for pipeline in self.pipelines:
                data, rest = divmod(gpus, tensor * pipeline)
                if rest or self.global_batch % data:
                    continue
                for micro in self.micro_batches:
                    count, rest = divmod(self.global_batch, data * micro)
                    if not rest:
                        yield from self._with(tensor, pipeline, data, micro, count)

    def _with(self, tensor: int, pipeline: int, data: int, micro: int, count: int) -> Iterator[Strategy]:
        chunks = [1] if pipeline == 1 or "1f1b" in self.schedules else []
        if pipeline > 1 and "interleaved" in self.schedules and count % pipeline == 0:
            chunks += [many for many in CHUNKS if self.layers // pipeline % many == 0]
        shardings = self._shardings(tensor, pipeline, data)
        for recompute in self.recompute:
            for many in chunks:
                for sharding in shardings:
                    yield Strategy(tensor, pipeline, data, micro, many, sharding, recompute)

    def _shardings(self, tensor: int, pipeline: int, data: int) -> list[str]:
        replicated = ["zero1"] if {"auto", "zero1"} & set(self.sharding) else []
        if data == 1:
            return ["zero1"]
        whole = pipeline == 1 and ("fsdp" in self.sharding or ("auto" in self.sharding and tensor == 1))
        return replicated + (["fsdp"] if whole else [])

    def fits_grid(self, gpus: int) -> bool:
        """Whether there is any strategy that uses so many GPUs: a part of a machine that divides it, or a multiple of `unit`."""
        whole = gpus % self.unit == 0 or (gpus < self.gpus_per_node and self.gpus_per_node % gpus == 0)
        return whole and next(self.at(gpus), None) is not None

    def counts(self, most: int) -> tuple[int, ...]:
        """The grid: every number of GPUs up to `most` that some strategy uses."""
        within = [count for count in range(1, min(self.gpus_per_node - 1, most) + 1) if self.fits_grid(count)]
        first = -(-self.gpus_per_node // self.unit) * self.unit
        return (*within, *(count for count in range(first, most + 1, self.unit) if self.fits_grid(count)))

    def near(self, gpus: int) -> tuple[int | None, int | None]:
        """The nearest numbers of the grid: not above `gpus`, and above it."""
        most = ceil(2 * gpus / self.gpus_per_node) * self.gpus_per_node
        grid = self.counts(most)
        return max((count for count in grid if count <= gpus), default=None), min((count for count in grid if count > gpus), default=None)

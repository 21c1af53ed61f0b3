"""All strategies for a model on a cluster: every way to divide GPUs, batch and memory that the rules allow.

Ranges can be narrowed or widened one by one. Combinations that break a rule of arithmetic are left out and counted by the rule,
in the words of the error that the scenario would give; what only the whole scenario knows is found when it is built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from parsim.model.model import OUTER, Model
from parsim.parallel.shares import MEETING_ONCE
from parsim.scenario.built import Built

MLPS = {"selective": ["mlp"]}
"""recomputation of the MLPs alone (Megatron-LM's ``--recompute-modules mlp``)"""


def every_layer_has_an_mlp(model: Model) -> bool:
    """Whether recomputing the MLPs alone saves memory in every layer: no mixture, convolution or state space without one."""
    layers = [block for block in model.distinct_blocks if block.kind not in OUTER]
    return all(any(operator.selective == "mlp" for operator in layer.operators) for layer in layers)


@dataclass(frozen=True)
class Ranges:
    """What a search varies; an empty tuple: every value that the rules allow."""

    tensor: tuple[int, ...] = ()
    pipeline: tuple[int, ...] = ()
    data: tuple[int, ...] = ()
    micro_batch: tuple[int, ...] = ()
    schedule: tuple[str, ...] = ("1f1b", "interleaved", "gpipe")
    virtual_stages: tuple[int, ...] = ()
    """of the interleaved schedule"""
    strategy: tuple[str, ...] = ("ddp", "zero1", "zero2", "fsdp")
    """of data parallelism where there is more than one replica"""
    recompute: tuple[Any, ...] = ("none", "selective", MLPS, "full", {"blocks": 1}, {"blocks": 2}, {"blocks": 4})
    sequence_parallel: tuple[bool, ...] = (False, True)
    expert: tuple[int, ...] = ()
    """ranks over which the experts of a mixture are spread; empty: every number that divides the experts"""
    parts: tuple[str, ...] = ("even", "balanced")
    """how layers are split among stages, and samples among replicas, where GPUs are of several kinds"""
    largest_tensor: int = 0
    """tensor-parallel groups stay at most this large; 0: the GPUs of a node"""


STANDARD = Ranges()


@dataclass(frozen=True, slots=True)
class Split:
    """How the GPUs are divided."""

    tensor: int
    pipeline: int
    data: int


@dataclass
class Lattice:
    """The candidates of `ranges` around a built scenario, as dotted keys and their values, in a fixed order, neighbours together."""

    built: Built
    ranges: Ranges = field(default_factory=Ranges)
    skipped: Counter[str] = field(default_factory=Counter)
    """rule -> combinations left out because of it, in the last iteration"""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.skipped.clear()
        for layout in self.layouts():
            for micro_batch in self._micro_batches(layout):
                yield from self._strategies(layout, micro_batch)

    @property
    def model(self) -> Model:
        """The model that is divided."""
        return self.built.model

    # -- GPUs -----------------------------------------------------------------------------------------------------

    def layouts(self) -> Iterator[Split]:
        """tensor x pipeline x data = GPUs."""
        ranges = self.ranges
        gpus = self.built.used_gpus
        largest = ranges.largest_tensor or self.built.cluster.gpus_per_node
        for tensor in ranges.tensor or divisors(gpus):
            if not ranges.tensor and tensor > largest:
                self.skipped[f"tensor groups larger than {largest} GPUs"] += 1
                continue
            if rule := self._tensor_rule(tensor):
                self.skipped[rule] += 1
                continue
            for pipeline in ranges.pipeline or divisors(gpus):
                if rule := self._layout_rule(tensor, pipeline, gpus):
                    self.skipped[rule] += 1
                else:
                    yield Split(tensor, pipeline, gpus // (tensor * pipeline))

    def _tensor_rule(self, size: int) -> str:
        model = self.model
        counts = (("heads", model.heads), *model.key_value_heads.items(), ("MLP width", int(str(model.facts.get("mlp", 0) or 0))))
        for name, count in counts if size > 1 else ():
            if not model.heads:
                return f"{model.name} has no attention heads to split"
            if count % size:
                return f"{count} {name} / tensor size {size} is not whole"
        return ""

    def _layout_rule(self, tensor: int, pipeline: int, gpus: int) -> str:
        if gpus % (tensor * pipeline):
            return f"tensor x pipeline does not divide the {gpus} GPUs"
        layers, data = self.layers, gpus // (tensor * pipeline)
        if self.ranges.data and data not in self.ranges.data:
            return f"data size is not {' or '.join(map(str, self.ranges.data))}"
        return f"{layers} layers cannot fill more than {layers} stages" if pipeline > layers else ""

    @property
    def layers(self) -> int:
        """Blocks that stages are made of."""
        return sum(block.kind not in OUTER for block in self.model.blocks)

    # -- batch ----------------------------------------------------------------------------------------------------

    def _micro_batches(self, layout: Split) -> Iterator[int]:
        """Micro-batch sizes of which a replica's samples, or the batch where it can be split unevenly, are a whole number."""
        total = self.built.training.global_batch
        if self._uneven_batch and layout.data > 1:
            yield from (size for size in self.ranges.micro_batch or divisors(total) if total % size == 0 and total >= size * layout.data)
            return
        if total % layout.data:
            self.skipped[f"global_batch {total} / data size is not whole"] += 1
            return
        samples = total // layout.data
        for size in self.ranges.micro_batch or divisors(samples):
            if samples % size:
                self.skipped[f"global_batch {total} / (micro_batch x data) is not whole"] += 1
            else:
                yield size

    # -- the rest -------------------------------------------------------------------------------------------------

    def _strategies(self, layout: Split, micro_batch: int) -> Iterator[dict[str, Any]]:
        sequence = self.ranges.sequence_parallel if layout.tensor > 1 else (False,)
        placements = [(sharded, spread) for sharded in sequence for spread in self._experts(layout, sequence_parallel=sharded)]
        for (sharded, spread), recompute in product(placements, self._recomputed):
            for (schedule, virtual), strategy in product(self._schedules(layout, micro_batch), self._data_strategies(layout)):
                if isinstance(recompute, dict) and recompute.get("blocks", 0) * layout.pipeline * virtual >= self.layers:
                    self.skipped["recompute {blocks: n} of all layers of a stage is full"] += 1
                    continue
                candidate = {
                    "parallel.tensor.size": layout.tensor,
                    "parallel.tensor.sequence_parallel": sharded,
                    "parallel.tensor.overlap": self._overlap(sharded),
                    "parallel.context.size": 1,
                    **spread,
                    "parallel.pipeline.size": layout.pipeline,
                    "parallel.pipeline.schedule": schedule,
                    "parallel.pipeline.virtual_stages": virtual,
                    "parallel.data.size": layout.data,
                    "parallel.data.strategy": strategy,
                    "parallel.data.shard_size": "auto",
                    "training.micro_batch": micro_batch,
                    "training.gradient_accumulation": "auto",
                    "training.global_batch": self.built.training.global_batch,
                    "training.recompute": recompute,
                }
                yield from (candidate | parts for parts in self._parts(layout, micro_batch, strategy))

    @cached_property
    def _recomputed(self) -> tuple[Any, ...]:
        """What may be recomputed: the MLPs alone where every layer has one, or nothing else is asked for."""
        dense = every_layer_has_an_mlp(self.model)
        return tuple(one for one in self.ranges.recompute if dense or one != MLPS) or self.ranges.recompute

    def _parts(self, layout: Split, micro_batch: int, strategy: str) -> Iterator[dict[str, Any]]:
        """How stages and replicas share the work; nothing is said where all GPUs are alike, which even parts suit best."""
        if len(self.built.kinds) == 1:
            yield {}
            return
        whole = self.built.training.global_batch % (micro_batch * layout.data) == 0
        stages = self.ranges.parts if layout.pipeline > 1 else ("even",)
        replicas = self.ranges.parts if layout.data > 1 and strategy in MEETING_ONCE else ("even",)
        for split, batch_split in product(stages, replicas):
            if batch_split == "even" and not whole:
                self.skipped[f"global_batch {self.built.training.global_batch} / (micro_batch x data) is not whole"] += 1
            else:
                yield {"parallel.pipeline.split": split, "parallel.data.batch_split": batch_split}

    @property
    def _uneven_batch(self) -> bool:
        return len(self.built.kinds) > 1 and "balanced" in self.ranges.parts

    def _experts(self, layout: Split, *, sequence_parallel: bool) -> list[dict[str, Any]]:
        """Over how many ranks of a stage the experts are spread; nothing is said of models without any."""
        experts = int(str(self.model.facts.get("experts", 0) or 0))
        if not experts:
            return [{}]
        sizes = []
        for size in self.ranges.expert or divisors(experts):
            if experts % size:
                self.skipped[f"{experts} experts / expert size is not whole"] += 1
            elif layout.tensor * layout.data % size:
                self.skipped["tensor x data / expert size is not whole"] += 1
            elif size > 1 and layout.tensor > 1 and not sequence_parallel:
                self.skipped["tensor and expert parallelism together need sequence parallelism"] += 1
            else:
                sizes.append({"parallel.expert.size": size})
        return sizes

    def _overlap(self, sequence_parallel: bool) -> str:
        """As the scenario has it; user buffers and asynchronous collectives need sequence parallelism."""
        wanted = self.built.parallelism.tensor.overlap
        return wanted if sequence_parallel or wanted in ("none", "backward") else "backward"

    def _schedules(self, layout: Split, micro_batch: int) -> list[tuple[str, int]]:
        """Schedules and their virtual stages; one stage has no schedule."""
        if layout.pipeline == 1:
            return [("1f1b", 1)]
        count = self.built.training.global_batch // layout.data // micro_batch
        most = self.layers // layout.pipeline
        schedules: list[tuple[str, int]] = []
        for name in self.ranges.schedule:
            if name != "interleaved":
                schedules.append((name, 1))
                continue
            if count % layout.pipeline:
                self.skipped["interleaved needs micro-batches divisible by pipeline stages (m % p = 0)"] += 1
                continue
            for virtual in self.ranges.virtual_stages or [n for n in divisors(most) if n > 1]:
                if 1 < virtual <= most:
                    schedules.append((name, virtual))
                else:
                    self.skipped[f"{self.layers} layers cannot fill pipeline x virtual stages"] += 1
        return schedules

    def _data_strategies(self, layout: Split) -> tuple[str, ...]:
        """A single replica has nothing to reduce or to shard."""
        return self.ranges.strategy if layout.data > 1 else ("ddp",)


def divisors(number: int) -> list[int]:
    """The divisors of a positive number, in order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [count for count in range(1, int(number**0.5) + 1) if number % count == 0]
    return sorted({*low, *(number // count for count in low)})

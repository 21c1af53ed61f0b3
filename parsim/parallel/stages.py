"""Cutting a model's blocks into pipeline stages (by count, by an explicit list, or balanced by time), and a stage's into checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from parsim.errors import Finding, PlanError
from parsim.kernel import Kernel
from parsim.model.kept_products import MATMULS
from parsim.model.loss import Loss
from parsim.model.model import OUTER, Block, Model
from parsim.model.workload import Workload
from parsim.parallel.training import Recompute


def split_blocks(
    model: Model,
    workload: Workload,
    ranks: int,
    virtual: int,
    split: Literal["even", "balanced"] | tuple[int, ...],
    clock: Callable[[Kernel], float],
    clocks: Sequence[Sequence[Callable[[Kernel], float]]] = (),
    account_for: Sequence[str] = (),
) -> list[tuple[int, ...]]:
    """Block indices per global virtual stage (ranks x virtual of them), in forward order.

    `even` counts layers, the extra ones go to the earliest stages; embedding and head join the first and the last
    stage, where those in `account_for` count as a layer (Megatron-LM, transformer_block.py get_num_layers_to_build, which refuses what
    does not divide). A tuple gives layers per stage; the first and the last may be 0 where embedding and head fill them. `balanced`
    minimises the slowest stage's forward + backward time, with embedding and head counted; `clocks` are those of each stage's GPUs, where
    stages differ.
    """
    stages = ranks * virtual
    layers = [i for i, block in enumerate(model.blocks) if block.kind not in OUTER]
    before = tuple(range(layers[0]))
    after = tuple(range(layers[-1] + 1, len(model.blocks)))
    places = len(layers) + len(account_for)
    if places < stages and isinstance(split, str):
        counted = "".join(f" and {name}" for name in account_for)
        text = f"{len(layers)} layers{counted} cannot fill pipeline {ranks} x virtual stages {virtual} = {stages} stages"
        raise PlanError(Finding(text, "parallel.pipeline.size", ranks, f"use at most {places} stages"))
    if split == "balanced":
        return _balanced(model, workload, clocks or [[clock]] * stages)
    if split == "even":
        counts = [places // stages + (stage < places % stages) for stage in range(stages)]
        counts[0] -= "embedding" in account_for
        counts[-1] -= "loss" in account_for
    else:
        counts = list(split)
        _check_list(counts, stages, len(layers), [bool(before), *[False] * (stages - 2), bool(after)])
    starts = [0, *accumulate(counts)]
    cuts = [tuple(layers[a:b]) for a, b in pairwise(starts)]
    cuts[0] = before + cuts[0]
    cuts[-1] = cuts[-1] + after
    return _with_inner(cuts, len(model.blocks))


def _with_inner(cuts: list[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
    """`cuts` of a model of `count` blocks with those between its layers that are no layers, each with the layer behind it."""
    held = {number for cut in cuts for number in cut}
    for number in reversed(range(count)):
        if number not in held:
            cuts = [tuple(sorted((*cut, number))) if number + 1 in cut else cut for cut in cuts]
    return cuts


def _check_list(counts: list[int], stages: int, layers: int, filled: Sequence[bool]) -> None:
    """Refuse a list of layers per stage that does not fit; `filled`: stages that hold something else too."""
    findings = []
    path = "parallel.pipeline.split"
    if len(counts) != stages:
        findings.append(Finding(f"{len(counts)} entries for {stages} stages", path, counts, f"write {stages} numbers"))
    if sum(counts) != layers:
        text = f"{' + '.join(map(str, counts))} = {sum(counts)} layers, but the model has {layers}"
        findings.append(Finding(text, path, counts, "make the sum match"))
    if len(counts) == stages and any(count < 1 and not other for count, other in zip(counts, filled, strict=True)):
        text = "every stage needs at least one layer, except the first (embedding) and the last (head)"
        findings.append(Finding(text, path, counts))
    if findings:
        raise PlanError(findings)


def block_seconds(model: Model, workload: Workload, clock: Callable[[Kernel], float]) -> list[float]:
    """Forward plus backward time of every block [s], communication left out."""
    seconds: dict[Block, float] = {}
    for block in model.distinct_blocks:
        works = [operator.work(workload.inside(block)) for operator in block.operators]
        seconds[block] = math.fsum(clock(k) for w in works for k in (*w.forward, *w.backward_input, *w.backward_weight))
    return [seconds[block] for block in model.blocks]


def _balanced(model: Model, workload: Workload, clocks: Sequence[Sequence[Callable[[Kernel], float]]]) -> list[tuple[int, ...]]:
    """Linear partition that minimises the largest part; among optima the one whose earlier stages are fuller.

    Every stage gets at least one layer: embedding and head never stand alone. `clocks`: of the kinds of GPUs of every stage, of which
    the slowest counts.
    """
    layers = [i for i, block in enumerate(model.blocks) if block.kind not in OUTER]
    known: dict[Callable[[Kernel], float], list[float]] = {}
    for clock in (clock for kinds in clocks for clock in kinds):
        if clock not in known:
            seconds = block_seconds(model, workload, clock)
            costs = [seconds[i] for i in layers]
            costs[0] += math.fsum(seconds[: layers[0]])
            costs[-1] += math.fsum(seconds[layers[-1] + 1 :])
            known[clock] = [0.0, *accumulate(costs)]
    edges = cuts_of([[known[clock] for clock in kinds] for kinds in clocks])
    parts = [tuple(layers[a:b]) for a, b in pairwise(edges)]
    parts[0] = tuple(range(layers[0])) + parts[0]
    parts[-1] = parts[-1] + tuple(range(layers[-1] + 1, len(model.blocks)))
    return _with_inner(parts, len(model.blocks))


def cuts_of(prefixes: Sequence[Sequence[Sequence[float]]]) -> list[int]:
    """Where to cut layers into parts such that the slowest part is as fast as possible: the edges of the parts.

    `prefixes`: of every part, what the first n layers take there, by kind of GPU; the slowest kind counts.
    """
    count = len(prefixes[0][0]) - 1
    best = [max(prefix[i] for prefix in prefixes[0]) for i in range(count + 1)]
    choices = []
    for part, kinds in enumerate(prefixes[1:], start=2):
        following, choice = [float("inf")] * (count + 1), [0] * (count + 1)
        for end in range(part, count + 1):
            for cut in range(end - 1, part - 2, -1):
                own = max([prefix[end] - prefix[cut] for prefix in kinds])
                slowest = max(best[cut], own)
                if slowest < following[end]:
                    following[end], choice[end] = slowest, cut
                if own > following[end]:
                    break
        best = following
        choices.append(choice)
    edges = [count]
    for choice in reversed(choices):
        edges.append(choice[edges[-1]])
    return [0, *reversed(edges)]


# -- checkpoints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointGroup:
    """Consecutive blocks of a stage that are checkpointed together, or a single block that keeps its activations."""

    blocks: tuple[int, ...]
    checkpoint: bool


def _repeatable(block: Block) -> bool:
    return block.kind not in ("embedding", "head") and not isinstance(block.operators[-1], Loss)


def selected(recompute: Recompute, block: Block) -> tuple[str, ...]:
    """What selective recomputation drops of a block; the products of embedding and head lie outside the layers that torchtitan wraps."""
    parts = recompute.selective if recompute.mode == "selective" else ()
    return parts if _repeatable(block) else tuple(part for part in parts if part != MATMULS)


def checkpoint_groups(recompute: Recompute, model: Model, blocks: Sequence[int]) -> tuple[CheckpointGroup, ...]:
    """The blocks of a stage, grouped by what is checkpointed (Chen et al. 2016, Korthikanti et al. 2022).

    none keeps everything; full checkpoints every layer; every k checkpoints the input of each group of k layers; one in k checkpoints
    every k-th layer of a stage and keeps the others (torchtitan's selective_ac_option = "k": distributed/activation_checkpoint.py);
    blocks n checkpoints the first n layers of a stage one by one and keeps the rest (Megatron's `block` method);
    selective keeps layers but drops and recomputes the parts it names, inside the tape.
    Embedding, head and a block that ends in the loss are never checkpointed.
    """
    layers = [b for b in blocks if _repeatable(model.blocks[b])]
    size = {"none": 0, "selective": 0, "every": recompute.every}.get(recompute.mode, 1)
    covered = {"blocks": layers[: recompute.blocks], "one_in": layers[recompute.one_in - 1 :: recompute.one_in]}.get(recompute.mode, layers)
    groups: list[CheckpointGroup] = []
    taken: set[int] = set()
    for block in blocks:
        if block in taken:
            continue
        if size and block in covered:
            start = covered.index(block)
            members = tuple(covered[start : start + size])
            groups.append(CheckpointGroup(members, checkpoint=True))
            taken.update(members)
        else:
            groups.append(CheckpointGroup((block,), checkpoint=False))
    return tuple(groups)

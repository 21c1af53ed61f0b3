"""The work of a model as a tree of its modules, as DeepSpeed's flops profiler prints it of a running one.

Equal layers are one line, with how many they are; all numbers of a line are of all of them. Times are those of the simulator's
kernels one after another on one GPU: nothing is hidden, no host waits. What the leaves of a module do is all that it does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from parsim.model.flops import operator_flop
from parsim.model.model import Block, Model, Operator
from parsim.model.parameter_counts import operator_parameter_count
from parsim.model.parts import PASSES, blocks_by_group
from parsim.model.workload import Workload
from parsim.report.table import Column, Table

if TYPE_CHECKING:
    from parsim.hardware.device import Device

_SUBLAYERS = {"mlp": "mlp", "mixture": "mlp", "mixer": "mixer"}
"""beginning of an operator's name -> the sublayer it stands in; all others are attention's"""
_KERNELS = ("flash2", "mem-efficient", "flash3", "cudnn", "triton-fa1")


@dataclass
class Module:
    """A line of the tree: a module with everything in it."""

    name: str
    path: str
    """names from below the model down, with dots between"""
    kind: str = ""
    """of a leaf: the operator's class"""
    count: int = 1
    """equal modules that this line stands for"""
    children: list[Module] = field(default_factory=list)
    own_parameters: int = 0
    own_flop: Mapping[str, float] = field(default_factory=dict)
    """pass -> FLOP of a leaf"""
    own_seconds: float = 0.0

    def leaves(self) -> Iterator[Module]:
        """The operators in it, in order of execution."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    @property
    def parameters(self) -> int:
        """Number of parameters, tied ones where they are stored."""
        return sum(leaf.own_parameters for leaf in self.leaves())

    def flop(self, passes: tuple[str, ...]) -> float:
        """Over `passes` [FLOP]."""
        return math.fsum(leaf.own_flop[key] for leaf in self.leaves() for key in passes)

    @property
    def seconds(self) -> float:
        """Time of its kernels [s]."""
        return math.fsum(leaf.own_seconds for leaf in self.leaves())

    def lines(self, depth: int | None, level: int = 0) -> Iterator[tuple[int, Module]]:
        """It and what is at most `depth` levels below (None: everything), each with its level."""
        yield level, self
        if depth is None or level < depth:
            for child in self.children:
                yield from child.lines(depth, level + 1)


def module_tree(model: Model, at: Workload, device: Device | None, passes: tuple[str, ...]) -> Module:
    """The model's work on the micro-batch `at`, with times of `passes` on `device` where there is one."""
    root = Module(model.name, "")
    for group, count, block in blocks_by_group(model):
        root.children.append(_block(model, group.replace(" ", "."), count, block, at, device, passes))
    return root


def _block(model: Model, name: str, count: int, block: Block, at: Workload, device: Device | None, passes: tuple[str, ...]) -> Module:
    module = Module(name, name, count=count)
    at = at.tokens_in(block)
    for operator in block.operators:
        *above, last = operator.name.split(".")
        if block.kind == "layer" and model.sequence:
            above = [_sublayer(operator.name), *above]
        holder = module
        for step in above:
            holder = _child(holder, step, count)
        parameters = count * operator_parameter_count(model, block, operator)
        holder.children.append(_leaf(f"{holder.path}.{last}", last, count, operator, parameters, at, device, passes))
    return module


def _sublayer(name: str) -> str:
    return next((place for start, place in _SUBLAYERS.items() if name.startswith(start)), "attention")


def _child(holder: Module, name: str, count: int) -> Module:
    """The module of that name in `holder`, made if it is not there."""
    known = next((child for child in holder.children if child.name == name and not child.kind), None)
    if known is None:
        known = Module(name, f"{holder.path}.{name}", count=count)
        holder.children.append(known)
    return known


def _leaf(
    path: str, name: str, count: int, operator: Operator, parameters: int, at: Workload, device: Device | None, passes: tuple[str, ...]
) -> Module:
    flop = operator_flop(operator, at)
    return Module(
        name,
        path,
        type(operator).__name__,
        count,
        own_parameters=parameters,
        own_flop={key: count * getattr(flop, key) for key in PASSES},
        own_seconds=count * _seconds(operator, at, device, passes) if device is not None else 0.0,
    )


def _seconds(operator: Operator, at: Workload, device: Device, passes: tuple[str, ...]) -> float:
    from parsim.hardware.kernels import kernel_time

    attention = next((kernel for kernel in _KERNELS if kernel in device.attention), "eager")
    work = operator.work(replace(at, attention=attention))
    return math.fsum(kernel_time(device, kernel) for key in passes for kernel in getattr(work, key))


def records(root: Module, passes: tuple[str, ...], depth: int | None, *, timed: bool) -> list[dict[str, Any]]:
    """The lines as JSON: FLOP, s; a line is all equal modules and one micro-batch."""
    total, seconds = root.flop(passes), root.seconds
    return [
        {
            "path": module.path,
            "depth": level,
            "kind": module.kind or None,
            "count": module.count,
            "parameters": module.parameters,
            "forward_macs": module.flop(("forward",)) / 2,
            **{f"{key}_flop": module.flop((key,)) for key in passes},
            "flop": module.flop(passes),
            "share": module.flop(passes) / total if total else 0.0,
            "time_s": module.seconds if timed else None,
            "time_share": module.seconds / seconds if timed and seconds else None,
        }
        for level, module in root.lines(depth)
    ]


def tree_text(root: Module, passes: tuple[str, ...], depth: int | None, *, timed: bool) -> Iterator[str]:
    """The lines as a table, modules indented below those that they are in."""
    total, parameters, seconds = root.flop(passes), root.parameters, root.seconds
    scale, prefix = next(((factor, letter) for factor, letter in ((1e12, "T"), (1e9, "G")) if total >= factor), (1e6, "M"))
    percent, scaled = (lambda share: f"{100 * share:.2f}"), partial(_figure, per=scale)
    columns = [
        Column("module", align="left"), Column("kind", align="left"), Column("parameters", write=lambda count: f"{count:,}"),
        Column("share", unit="%", write=percent), Column("forward", unit=f"{prefix}MAC", write=scaled),
        Column("all passes" if len(passes) > 1 else "forward", unit=f"{prefix}FLOP", write=scaled),
        Column("share", unit="%", write=percent),
    ]  # fmt: skip
    if timed:
        columns += [
            Column("time", unit="ms", write=partial(_figure, per=1e-3)), Column("share", unit="%", write=percent),
            Column("rate", unit="TFLOP/s", write=partial(_figure, per=1e12)),
        ]  # fmt: skip
    rows = []
    for level, module in root.lines(depth):
        name, flop = f"{'  ' * level}{module.name}", module.flop(passes)
        if module.count > 1 and level == 1:
            name += f" ({module.count} x)"
        own = (name, module.kind, module.parameters, _share(module.parameters, parameters), module.flop(("forward",)) / 2)
        row: tuple[Any, ...] = (*own, flop, _share(flop, total))
        if timed:
            row += (module.seconds, _share(module.seconds, seconds), flop / module.seconds if module.seconds else 0.0)
        rows.append(row)
    yield Table(columns, rows).text()
    yield "A multiply-accumulate (MAC) is 2 FLOP; docs/flops-and-mfu.md says which passes each convention counts."
    if timed:
        yield "Times are kernel times in sequence on one GPU, without overlap, waits or communication (see `parsim run`)."


def _share(value: float, whole: float) -> float:
    return value / whole if whole else 0.0


def _figure(value: float, per: float) -> str:
    """Four significant digits, in units of `per`."""
    value /= per
    return "0" if not value else f"{value:,.0f}" if value >= 1000 else f"{value:#.4g}".rstrip(".")

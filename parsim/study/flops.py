"""Where a model's FLOP are: a table of its parts, the conventions side by side, and how long a training would take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding, ScenarioError, attempt
from parsim.model.parts import PASSES, Part, parts
from parsim.model.workload import Workload
from parsim.report.table import Column, Content, Table
from parsim.study.counting import (
    Counted,
    Subject,
    chosen,
    conventions,
    counted_document,
    device_of,
    dtype_for,
    forward_only,
    fraction,
    hardware,
    quantity,
    stop,
    subject,
    usual,
)
from parsim.study.flops_tree import Module, module_tree, records, tree_text
from parsim.units import format_flop, format_flops, format_rate, format_time

if TYPE_CHECKING:
    from parsim.hardware.device import Device

MFU = 0.4
"""of a training whose utilisation nobody states"""


@dataclass(frozen=True)
class FlopsQuestion:
    """What the user asks; fields are the command line's options."""

    model: str
    sequence_length: int | None = None
    batch: int = 1
    """samples of one micro-batch"""
    training: bool = True
    """False: the forward pass alone"""
    gpu: str | None = None
    gpus: int | None = None
    tokens: str | None = None
    mfu: str | None = None
    convention: str | None = None
    dtype: str | None = None
    fused: bool = False
    tree: bool = False
    """by module instead of by part"""
    depth: int | None = None
    """levels of the tree; None = all"""


@dataclass(frozen=True)
class TrainingTime:
    """FLOP / (GPUs x peak x MFU)."""

    convention: str
    flop_per_unit: float
    units: float
    """tokens (samples) of the whole training"""
    gpus: int
    peak: float
    """of one GPU [FLOP/s]"""
    mfu: float
    stated: bool
    """the user wrote the MFU"""

    @property
    def flop(self) -> float:
        """Work of the whole training [FLOP]."""
        return self.flop_per_unit * self.units

    @property
    def seconds(self) -> float:
        """[s]."""
        return self.flop / (self.gpus * self.peak * self.mfu)

    @property
    def gpu_hours(self) -> float:
        """[h]."""
        return self.seconds * self.gpus / 3600.0


@dataclass(frozen=True)
class FlopsAnswer:
    """FLOP and bytes of a model by part and by convention, and the time of a training."""

    question: FlopsQuestion
    of: Subject
    dtype: str
    parts: tuple[Part, ...]
    conventions: tuple[Counted, ...]
    hardware: tuple[Counted, ...]
    device: Device | None
    time: TrainingTime | None
    modules: Module | None = None

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes that are counted."""
        return PASSES if self.question.training else PASSES[:1]

    @property
    def peak(self) -> float:
        """Dense peak of the matmul type [FLOP/s]; 0 without a GPU."""
        return self.device.peak[self.dtype] if self.device is not None else 0.0

    @property
    def ridge(self) -> float | None:
        """FLOP per byte from which the datasheet's peak, not its memory bandwidth, is the limit."""
        return self.peak / self.device.bandwidth if self.device is not None else None

    def flop(self, part: Part) -> float:
        """Over the counted passes [FLOP]."""
        return math.fsum(part.flop[key] for key in self.passes)

    def bytes(self, part: Part) -> float:
        """Over the counted passes [B]."""
        return math.fsum(part.bytes[key] for key in self.passes)

    def intensity(self, part: Part) -> float:
        """[FLOP/B]."""
        moved = self.bytes(part)
        return self.flop(part) / moved if moved else 0.0

    def bound(self, part: Part) -> str | None:
        """compute | memory, by the ridge point; None without a GPU or without work."""
        ridge = self.ridge
        if ridge is None or not (self.flop(part) or self.bytes(part)):
            return None
        return "compute" if self.intensity(part) >= ridge else "memory"

    def roofline(self, part: Part) -> float | None:
        """What the work takes at least [s]: FLOP at the peak or bytes at the memory bandwidth."""
        if self.device is None:
            return None
        return max(self.flop(part) / self.peak, self.bytes(part) / self.device.bandwidth)

    @property
    def total(self) -> float:
        """FLOP of one micro-batch over the counted passes."""
        return math.fsum(map(self.flop, self.parts))


def flops(question: FlopsQuestion) -> FlopsAnswer:
    """Count. Raises `InputError` with everything that is wrong in the question."""
    findings: list[Finding] = []
    of = attempt(lambda: subject(question.model, question.sequence_length), findings)
    gpu = question.gpu
    device = attempt(lambda: device_of(gpu), findings) if gpu is not None else None
    dtype, wrong = dtype_for(device, question.dtype)
    findings += wrong
    if question.tokens is None:
        needed = (("--mfu", question.mfu), ("--gpus", question.gpus), ("--convention", question.convention))
        for option, value in needed:
            if value is not None:
                hint = "add for example --tokens 2T, or leave it out"
                findings.append(Finding("applies to the time of a training, but no tokens are given", option, value, hint))
    elif gpu is None:
        findings.append(Finding("the time of a training needs a GPU", "--tokens", question.tokens, "add for example --gpu a100"))
    if question.depth is not None and not question.tree:
        findings.append(Finding("--depth needs --tree", "--depth", question.depth, "add --tree, or leave it out"))
    if of is not None and not of.model.sequence and question.tokens is not None:
        findings.append(Finding(f"{of.model.name} has samples without tokens", "--tokens", question.tokens, "leave it out"))
    tokens = quantity(question.tokens, "count", "--tokens", findings)
    mfu = MFU if question.mfu is None else fraction(question.mfu, "--mfu", findings)
    if of is not None and question.convention is not None and (unknown := chosen(of, question.convention)) is not None:
        findings.append(unknown)
    stop(findings)
    if of is None:
        raise ScenarioError("nothing to count")  # unreachable: what is None has left a finding
    at = Workload(
        batch=question.batch,
        sequence=of.sequence,
        element=4 if dtype in ("fp32", "tf32") else 2,
        dtype=dtype,
        attention="flash2",
        fused=question.fused,
    )
    counted, again = conventions(of), hardware(of)
    if not question.training:
        counted, again = tuple(map(forward_only, counted)), ()
    time = None
    if tokens is not None and device is not None:
        convention = question.convention or usual(of)
        flop = next(one.flop for one in counted if one.name == convention)
        time = TrainingTime(convention, flop, tokens, question.gpus or 1, device.peak[dtype], mfu, question.mfu is not None)
    modules = None
    if question.tree:
        modules = module_tree(of.model, at, device, PASSES if question.training else PASSES[:1])
    return FlopsAnswer(question, of, dtype, parts(of.model, at), counted, again, device, time, modules)


def document(answer: FlopsAnswer) -> dict[str, Any]:
    """The answer as JSON: FLOP, B, s; one entry of `parts` is all equal blocks and one micro-batch."""
    question, of, device, time = answer.question, answer.of, answer.device, answer.time
    units = question.batch * of.sequence
    return {
        "parsim": 1,
        "model": of.model.name,
        "parameters": of.parameters,
        "sequence_length": of.sequence if of.model.sequence else None,
        "batch": question.batch,
        "dtype": answer.dtype,
        "passes": list(answer.passes),
        "unit": of.unit,
        "parts": [_part_document(answer, part) for part in answer.parts],
        "total": {
            "flop": answer.total,
            "flop_per_unit": answer.total / units,
            **{f"{key}_flop": math.fsum(part.flop[key] for part in answer.parts) for key in answer.passes},
            "bytes": math.fsum(map(answer.bytes, answer.parts)),
            "roofline_s": math.fsum(answer.roofline(part) or 0.0 for part in answer.parts) if device is not None else None,
        },
        "conventions": [counted_document(counted) for counted in (*answer.conventions, *answer.hardware)],
        "gpu": None
        if device is None
        else {"name": device.name, "peak_flops": answer.peak, "bandwidth_Bps": device.bandwidth, "ridge_flop_per_B": answer.ridge},
        "training_time": None
        if time is None
        else {
            "convention": time.convention, "tokens": time.units, "flop": time.flop, "gpus": time.gpus, "mfu": time.mfu,
            "time_to_train_s": time.seconds, "gpu_hours": time.gpu_hours,
        },
        **({} if answer.modules is None
           else {"modules": records(answer.modules, answer.passes, question.depth, timed=device is not None)}),
    }  # fmt: skip


def _part_document(answer: FlopsAnswer, part: Part) -> dict[str, Any]:
    return {
        "group": part.group,
        "count": part.count,
        "part": part.name,
        "parameters": part.parameters,
        **{f"{key}_flop": part.flop[key] for key in answer.passes},
        **{f"{key}_bytes": part.bytes[key] for key in answer.passes},
        "flop": answer.flop(part),
        "bytes": answer.bytes(part),
        "flop_per_B": answer.intensity(part),
        "share": answer.flop(part) / answer.total if answer.total else 0.0,
        "bound": answer.bound(part),
        "roofline_s": answer.roofline(part),
    }


def text(answer: FlopsAnswer) -> str:
    """The answer as tables."""
    work = _parts(answer)
    if answer.modules is not None:
        work = tree_text(answer.modules, answer.passes, answer.question.depth, timed=answer.device is not None)
    lines = [*_head(answer), "", *work, "", *_conventions(answer)]
    if answer.time is not None:
        lines += ["", *_time(answer.time, answer.of.unit, training=answer.question.training)]
    return "\n".join(lines)


def _head(answer: FlopsAnswer) -> Iterator[str]:
    question, of = answer.question, answer.of
    size = f"{question.batch} x {of.sequence:,} tokens" if of.model.sequence else f"{question.batch} sample{'s' * (question.batch > 1)}"
    kind = "forward and backward" if question.training else "forward only"
    yield f"{of.model.name}: {of.parameters:,} parameters; one micro-batch of {size}, {answer.dtype}, {kind}"
    if answer.device is not None and answer.ridge is not None:
        peak, rate = format_flops(answer.peak), format_rate(answer.device.bandwidth)
        yield f"{answer.device.name}: dense {answer.dtype} peak {peak}, memory {rate}; ridge point {answer.ridge:.4g} FLOP/B"


def _parts(answer: FlopsAnswer) -> Iterator[str]:
    largest = max((flop for part in answer.parts for flop in part.flop.values()), default=0.0)
    scale, prefix = next(((factor, name) for factor, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if largest >= factor), (1.0, ""))
    scaled, milli = partial(_cell, per=scale), partial(_cell, per=1e-3)
    columns = [
        Column("", align="left"), Column("part", align="left"), Column("parameters", write=lambda count: f"{count:,}"),
        *(Column(key.replace("_", "-"), unit=f"{prefix}FLOP", write=scaled) for key in answer.passes),
        Column("moved", unit="GB", write=partial(_cell, per=1e9)), Column("FLOP/B", write=_cell),
        Column("share", unit="%", write=lambda share: f"{100 * share:.2f}"),
    ]  # fmt: skip
    groups = [part.group if part.count == 1 else f"{part.group} ({part.count} x)" for part in answer.parts]
    shares = [answer.flop(part) / answer.total if answer.total else 0.0 for part in answer.parts]
    moved = math.fsum(map(answer.bytes, answer.parts))
    rows: list[tuple[Content, ...]] = [
        ("" if number and groups[number - 1] == group else group, part.name, part.parameters, *(part.flop[key] for key in answer.passes),
         answer.bytes(part), answer.intensity(part), share)
        for number, (group, part, share) in enumerate(zip(groups, answer.parts, shares, strict=True))
    ]  # fmt: skip
    passes = (math.fsum(part.flop[key] for part in answer.parts) for key in answer.passes)
    rows.append(("all", "", answer.of.parameters, *passes, moved, answer.total / moved if moved else 0.0, 1.0))
    if answer.device is not None:
        columns += [Column("at least", unit="ms", write=milli), Column("bound by", align="left", margin=2)]
        least = [answer.roofline(part) or 0.0 for part in answer.parts]
        bounds = [answer.bound(part) or "-" for part in answer.parts]
        rows = [(*row, *more) for row, more in zip(rows, zip([*least, math.fsum(least)], [*bounds, ""], strict=True), strict=True)]
    yield Table(columns, rows).text()
    per_unit = answer.total / (answer.question.batch * answer.of.sequence)
    yield f"All together {format_flop(answer.total)}, {per_unit:,.15g} FLOP per {answer.of.unit}."
    yield (
        "FLOP are those of matrix products, 2 per multiply-add, causal attention by half, without the recomputation inside fused"
        " attention backward; bytes are what the kernels read and write once,"
        f" attention in one fused kernel, the rest {'fused' if answer.question.fused else 'as eager PyTorch does it'}."
    )


def _cell(value: float, per: float = 1.0) -> str:
    """Four significant digits, in units of `per`."""
    value /= per
    if not value:
        return "0"
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.4g}".rstrip(".")


def _conventions(answer: FlopsAnswer) -> Iterator[str]:
    unit = answer.of.unit
    what = "forward and backward" if answer.question.training else "forward"
    yield f"The same by convention, FLOP per {unit}, {what}"
    exact = next(one.flop for one in answer.conventions if one.name == "exact")
    everything = [*answer.conventions, *(replace(one, formula=f"{one.formula}; every layer recomputed") for one in answer.hardware)]
    columns = [
        Column("convention", align="left"), Column("FLOP", write=lambda flop: f"{flop:,.15g}"),
        Column("/ exact", write=lambda ratio: f"{ratio:.4f}"), Column("formula", align="left", margin=2),
    ]  # fmt: skip
    yield Table(columns, [(one.name, one.flop, one.flop / exact, one.formula) for one in everything]).text()
    yield "in numbers"
    for one in everything:
        yield f"  {one.name}: {one.arithmetic} = {one.flop:,.15g}"


def _time(time: TrainingTime, unit: str, *, training: bool) -> Iterator[str]:
    assumed = "" if time.stated else " (assumed; give yours with --mfu)"
    yield f"Time of {time.units:,.15g} {unit}s at an MFU of {100 * time.mfu:.4g} %{assumed}"
    yield f"  work  {time.flop_per_unit:,.15g} FLOP/{unit} ({time.convention}) x {time.units:.4g} = {time.flop:.4e} FLOP"
    share = f"{time.gpus:,} x {format_flops(time.peak)} x {time.mfu:.4g}"
    yield f"  time  {time.flop:.4e} / ({share}) = {time.seconds:.4e} s = {format_time(time.seconds)}"
    yield f"  all   {time.gpus:,} x {time.seconds / 3600:,.6g} h = {time.gpu_hours:,.6g} GPU-hours"
    if training:
        yield "  An MFU depends on its FLOP convention: take both from the same source."

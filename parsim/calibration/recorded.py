"""What ran on the GPUs of a run, read from traces of the PyTorch profiler (one file per rank), or from a trace that parsim wrote.

Kernels are told apart by name: NCCL's by their parameters ("Collective name", "Group size", "In msg nelems": pytorch
torch/csrc/distributed/c10d/ParamCommsUtils.hpp), attention, matrix products, optimizer, and everything else, which moves
memory. Steps are those that ``profiler.step()`` marks (ProfilerStep#3); without marks the whole file is one, or what the
caller says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parsim.calibration.kineto import REPAIR, events_of, read_bytes
from parsim.calibration.profile import COLLECTIVES, ELEMENT_BYTES, product_sizes
from parsim.errors import Finding, ScenarioError
from parsim.study.diagnose_classes import ATTENTION, GEMM, MEMORY, OP, OPTIMIZER, GpuSlice, Recorded, Window

_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (ATTENTION, re.compile(r"flash|fmha|attention|sdpa|mha_(fwd|bwd)", re.IGNORECASE)),
    (OPTIMIZER, re.compile(r"multi_tensor|multitensor|adam|lamb_|FusedSgd|lion", re.IGNORECASE)),
    (
        GEMM,
        re.compile(r"gemm|gemv|cutlass|cublas|xmma|nvjet|cijk_|splitk|wgrad|dgrad|implicit_con|conv2d|cudnn.*conv|winograd", re.IGNORECASE),
    ),
)
_HELPERS = re.compile(r"splitk_?reduce|dot_do_o|convert_dq|reduce_head|reduce_dkv", re.IGNORECASE)
"""kernels that belong to another one's call: partial sums of a product; what cuDNN and FlashAttention launch around attention's backward"""
_NCCL = re.compile(r"(?:nccl|rccl).*?_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AlltoAll)", re.IGNORECASE)
_KINDS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "broadcast": "broadcast",
          "reduce": "reduce", "sendrecv": "send", "alltoall": "all_to_all"}  # fmt: skip
_STEP = re.compile(r"ProfilerStep#[0-9]+$")
_IN_NAME = re.compile(r"rank[_-]?([0-9]+)", re.IGNORECASE)


def read_recorded(paths: Sequence[str | Path], steps: int | None = None) -> Recorded:
    """What the traces hold, by rank.

    Args:
        paths: one file per rank; a trace written by parsim holds several.
        steps: how many steps a file holds, where no marks say it.

    Raises:
        ScenarioError: files that cannot be read or hold no work of a GPU, and ranks that come twice, all at once.
    """
    findings: list[Finding] = []
    ranks: dict[int, Sequence[Window]] = {}
    notes: list[str] = []
    job = _Job()
    for number, path in enumerate(paths):
        try:
            windows = _of_file(path, number, steps, notes, job)
        except ScenarioError as error:
            findings += error.findings
            continue
        findings += [Finding(f"rank {rank} stands in an earlier file, too", file=str(path)) for rank in windows if rank in ranks]
        ranks |= windows
    if findings:
        raise ScenarioError(findings)
    names = ", ".join(Path(path).name for path in paths)
    return Recorded(ranks, names, tuple(dict.fromkeys(notes)), job.world, dict(job.products))


@dataclass
class _Job:
    """What files say about the job that was recorded."""

    world: int = 0
    products: Counter[tuple[int, int, int]] = field(default_factory=Counter)

    def add(self, events: Sequence[Any], about: Mapping[str, Any]) -> None:
        distributed = about.get("distributedInfo")
        world = distributed.get("world_size") if isinstance(distributed, Mapping) else None
        self.world = max(self.world, world) if type(world) is int else self.world
        for event in events:
            args = event.get("args")
            if event.get("cat") == "cpu_op" and isinstance(args, Mapping) and (shape := product_sizes(str(event.get("name")), args)):
                self.products[shape] += 1


def _of_file(path: str | Path, number: int, steps: int | None, notes: list[str], job: _Job) -> dict[int, Sequence[Window]]:
    name = str(path)
    events, about = events_of(read_bytes(path), name)
    other = about.get("otherData")
    if isinstance(other, Mapping) and "parsim" in other:
        return _simulated(events, other, name, notes)
    work = [event for event in events if event.get("cat") in _GPU]
    if not work:
        repair = "record with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
        raise ScenarioError(Finding("holds no work of a GPU", suggestion=repair, file=name))
    _multiplies(work, name)
    job.add(events, about)
    rank = _rank(about, name, number)
    windows = _windows(events, work, steps, name, notes)
    starts = sorted(window[0] for window in windows)
    recorded = []
    for begin, end, count in windows:
        after = next((start for start in starts if start > begin), float("inf"))
        mine = [event for event in work if begin <= event["ts"] < (after if after < float("inf") else max(end, event["ts"] + 1))]
        last = max((event["ts"] + event["dur"] for event in mine), default=end)
        stretches = tuple(stretch for event in mine if (stretch := _stretch(event, notes)) is not None)
        recorded.append(Window(begin * 1e-6, max(end, min(last, after)) * 1e-6, stretches, count))
    return {rank: tuple(recorded)}


def _multiplies(work: Sequence[Any], name: str) -> None:
    """Refuse a trace without matrix products, with what it holds instead."""
    held: Counter[str] = Counter()
    for event in work:
        label = str(event.get("name"))
        args = event.get("args")
        if event.get("cat") != "kernel":
            held["copies and fills"] += 1
        elif (isinstance(args, Mapping) and args.get("Collective name") is not None) or _NCCL.search(label):
            held["kernels of collectives"] += 1
        else:
            kind = next((kind for kind, pattern in _CLASSES if pattern.search(label)), "")
            held[f"kernels of {kind}" if kind else "other kernels"] += 1
    if f"kernels of {GEMM}" in held or f"kernels of {ATTENTION}" in held:
        return
    listed = ", ".join(f"{count} {what}" for what, count in held.most_common())
    text = f"holds no matrix product, but {listed}: it is no trace of a training step"
    raise ScenarioError(Finding(text, suggestion="record a whole step: profiler.step() behind optimizer.step()", file=name))


def _rank(about: Mapping[str, Any], name: str, number: int) -> int:
    distributed = about.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, Mapping) else None
    if type(rank) is int:
        return rank
    match = _IN_NAME.search(Path(name).name)
    return int(match[1]) if match else number


def _windows(events: Sequence[Any], work: Sequence[Any], steps: int | None, name: str, notes: list[str]) -> list[tuple[float, float, int]]:
    """(begin, end, steps) of each stretch of recorded time [us]; marks on the GPU's side win over the host's."""
    for category in ("gpu_user_annotation", "user_annotation", "cpu_op"):
        marks = [event for event in events if event.get("cat") == category and _STEP.match(str(event.get("name")))]
        if marks:
            if steps is not None and steps != len(marks):
                text = f"{steps} steps, but the profiler marked {len(marks)}"
                raise ScenarioError(Finding(text, "--steps", steps, "leave it out", file=name))
            marks.sort(key=lambda event: event["ts"])
            return [(float(event["ts"]), float(event["ts"] + event["dur"]), 1) for event in marks]
    if steps is None:
        notes.append("the trace marks no steps (profiler.step()); taken for one step: say --steps N if it holds more")
    begin = min(event["ts"] for event in work)
    return [(float(begin), float(max(event["ts"] + event["dur"] for event in work)), steps or 1)]


def _stretch(event: Mapping[str, Any], notes: list[str]) -> GpuSlice | None:
    """One piece of a GPU's work; None for copies between host and device, which the simulation does not name."""
    name, start, length = str(event.get("name")), event["ts"] * 1e-6, event["dur"] * 1e-6
    args = event.get("args")
    args = args if isinstance(args, Mapping) else {}
    if event.get("cat") != "kernel":
        return None if "HtoD" in name or "DtoH" in name else GpuSlice(MEMORY, name, start, length)
    if args.get("Collective name") is not None or _NCCL.search(name):
        return _collective(name, args, start, length, notes)
    kind = next((kind for kind, pattern in _CLASSES if pattern.search(name)), MEMORY)
    return GpuSlice(kind, name, start, length, count=0.0 if _HELPERS.search(name) else 1.0)


def _collective(name: str, args: Mapping[str, Any], start: float, length: float, notes: list[str]) -> GpuSlice:
    kind = _kind(name, args)
    size = args.get("Group size")
    if type(size) is not int or size < 1:
        notes.append("some collectives do not say how many ranks take part; they are compared with no predicted one")
        size = 0
    elements = args.get("Out msg nelems" if kind == "all_gather" else "In msg nelems")
    each = ELEMENT_BYTES.get(str(args.get("dtype")).lower(), 0)
    volume = elements * each if type(elements) is int and elements > 0 else 0
    return GpuSlice(f"comm {kind} x{2 if kind == 'send' else size}", name, start, length, 0.0, 1.0, volume)


def _kind(name: str, args: Mapping[str, Any]) -> str:
    """The kind of a collective as parsim calls it, from its parameters or else the name of its kernel."""
    match = _NCCL.search(name)
    kind = COLLECTIVES.get(str(args.get("Collective name") or "").lower()) or (_KINDS.get(match[1].lower()) if match else None) or "other"
    return "send" if kind == "recv" else kind


def _simulated(events: Sequence[Any], other: Mapping[str, Any], name: str, notes: list[str]) -> dict[int, Sequence[Window]]:
    """A trace that parsim wrote: the ranks are the processes, the step begins at 0, ops are not divided into kernels."""
    left = other.get("spans_left_out")
    if type(left) is int and left > 0.01 * len(events):  # fewer are those that take no time
        notes.append(f"{Path(name).name}: {left:,} slices were left out when it was written; its end may be missing")
    ranks: dict[int, list[GpuSlice]] = {}
    for event in events:
        rank = event.get("pid")
        if type(rank) is int and (stretch := _op(event)) is not None:
            ranks.setdefault(rank, []).append(stretch)
    if not ranks:
        raise ScenarioError(Finding("holds no work of a GPU", suggestion=REPAIR, file=name))
    ends = [_end(events)]
    return {rank: (Window(0.0, max(ends), tuple(stretches)),) for rank, stretches in ranks.items()}


def _end(events: Sequence[Any]) -> float:
    """End of the step [s]: that of everything that was written."""
    return 1e-6 * max(float(event["ts"] + event["dur"]) for event in events)


def _op(event: Mapping[str, Any]) -> GpuSlice | None:
    args = event.get("args")
    args = args if isinstance(args, Mapping) else {}
    start, length, name = event["ts"] * 1e-6, event["dur"] * 1e-6, str(event.get("name"))
    if args.get("Collective name") is not None:
        size, volume = args.get("Group size"), args.get("bytes")
        kind = f"comm {_kind(name, args)} x{size}"
        return GpuSlice(kind, name, start, length, 0.0, 1.0, volume if type(volume) is int else 0)
    group = args.get("class")
    if group == "optimizer":
        return GpuSlice(OPTIMIZER, name, start, length)
    if group == "recompute" and name.startswith("R"):
        name = f"F{name[1:]}"  # what is repeated is the forward, and made of the same kernels
    return GpuSlice(OP, name, start, length) if group in ("compute", "recompute") else None

"""Ops as slices of a trace, in the words of PyTorch's profiler and NCCL: kernels, types, groups, streams, devices.

Names as in pytorch/kineto libkineto/src/output_json.cpp (keys of events and of the head), pytorch ProcessGroupNCCL.cpp (names of
collectives) and NVIDIA/nccl src/device/generate.py: NCCL specialises one kernel per operation, type and RING or TREE, called
LL whatever protocol runs in it, so the name of a kernel does not tell its protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parsim.parallel.groups import OFFLOAD
from parsim.program.program import COMPUTE, Collective
from parsim.report.plots.style import role
from parsim.report.timeline import COMPUTE_LANE, Indices

if TYPE_CHECKING:
    from parsim.program.program import Collective, Op
    from parsim.report.metrics import Metrics

COMPUTE_STREAM = 7
"""the stream on which PyTorch's CUDA build runs kernels"""
_COPY_STREAMS = {"d2h": 13, "h2d": 14}
_FIRST_NCCL_STREAM, _STEP = 20, 4
MOST_LISTED = 30
"""ranks that PyTorch's profiler lists of a group before it writes dots (kTruncatLength)"""
HOST_THREAD = 1
SORT_STEP = 64
"""places in the order of processes from one simulated rank to the next, for recorded ones between them"""
_HOST_LANES = ("launch", "cpu_step", "nvme_read", "nvme_write")
"""lanes of threads of the host"""

_NCCL_TYPES = {"Float": ("f32", 4), "BFloat16": ("bf16", 2), "Half": ("f16", 2), "Float8_e4m3fn": ("f8e4m3", 1), "Byte": ("u8", 1)}
"""PyTorch's name of a type -> NCCL's, and its size [B]"""
_KERNELS = {
    "all_reduce": "AllReduce",
    "reduce_scatter": "ReduceScatter",
    "reduce": "Reduce",
    "all_gather": "AllGather",
    "broadcast": "Broadcast",
}
"""what has a kernel of its own; everything else is made of sends and receives"""
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_CALLS = {"all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base", "all_to_all": "all_to_all"}
COPIES = {"d2h": "Memcpy DtoH (Device -> Pinned)", "h2d": "Memcpy HtoD (Pinned -> Device)"}


def streams(lanes: Iterable[str]) -> dict[str, int]:
    """Lane -> thread id: kernels on stream 7, copies on 13 and 14, communicators on 20, 24, ..., the host's threads from 2 on."""
    threads: dict[str, int] = {}
    nccl, host = _FIRST_NCCL_STREAM, HOST_THREAD + 1
    for lane in sorted(set(lanes)):
        if lane == COMPUTE:
            threads[lane] = COMPUTE_STREAM
        elif lane in _COPY_STREAMS:
            threads[lane] = _COPY_STREAMS[lane]
        elif lane in _HOST_LANES:
            threads[lane], host = host, host + 1
        else:
            threads[lane], nccl = nccl, nccl + _STEP
    return threads


def on_host(lane: str) -> bool:
    """Whether a lane is a thread of the host, not a stream of the GPU."""
    return lane in _HOST_LANES


def thread_name(lane: str, number: int) -> str:
    """As Kineto names threads, with the lane behind it."""
    return f"thread {number} ({lane})" if on_host(lane) else f"stream {number} ({lane})"


def element(collective: Collective, types: Mapping[str, str]) -> tuple[str, int]:
    """Type of what a collective moves, and how many elements: (PyTorch's name, count).

    Inferred from axis and kind: gradients are reduced over the data axis and weights gathered, a tied embedding's gradients cross
    stages, all else is activations. Bytes where the size is no multiple of the type's.
    """
    if collective.axis == "data":
        what = "reduce" if collective.kind in _REDUCTIONS else "parameters"
    elif collective.axis == "pipeline" and collective.kind == "all_reduce":
        what = "gradients"
    else:
        what = "activations"
    name = "Float" if collective.bytes == 4 else types.get(what, "Byte")  # the gradient norm is one fp32 number
    size = _NCCL_TYPES[name][1]
    return (name, collective.bytes // size) if collective.bytes % size == 0 else ("Byte", collective.bytes)


def kernel_name(collective: Collective, dtype: str, algorithm: str) -> str:
    """The kernel that NCCL launches for a collective."""
    operation = _KERNELS.get(collective.kind)
    if operation is None:
        return "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    ending = "RING_LL"
    if collective.kind in _REDUCTIONS:
        ending = f"Sum_{_NCCL_TYPES[dtype][0]}_{'TREE' if algorithm.startswith('tree') else 'RING'}_LL"
    return f"ncclDevKernel_{operation}_{ending}(ncclDevKernelArgsStorage<4096ul>)"


def group_name(collective: Collective) -> str:
    """A name that every member gives to the group: axis, first and last member, size."""
    group = collective.group
    return f"{collective.axis} {group[0]}-{group[-1]} x{len(group)}"


def listed(ranks: tuple[int, ...]) -> str:
    """Ranks of a group as the profiler writes them."""
    if len(ranks) > MOST_LISTED:
        return f"[{', '.join(map(str, ranks[: MOST_LISTED - 1]))}, ..., {ranks[-1]}]"
    return f"[{', '.join(map(str, ranks))}]"


def collective_args(collective: Collective, dtype: str, count: int, *, sends: bool = True) -> dict[str, Any]:
    """What the profiler writes of a collective; of a send `sends` says which end is meant."""
    kind, size = collective.kind, len(collective.group)
    name = ("send" if sends else "recv") if kind == "send" else _CALLS.get(kind, kind)
    args: dict[str, Any] = {
        "Collective name": name,
        "In msg nelems": count // size if kind in ("all_gather", "gather") else count,
        "Out msg nelems": count // size if kind in ("reduce_scatter", "scatter") else count,
        "Group size": size,
        "dtype": dtype,
        "Process Group Name": group_name(collective),
        "Process Group Description": collective.axis,
        "Process Group Ranks": listed(collective.group),
    }
    if kind == "send":
        args |= {"Dst Rank": collective.group[1]} if sends else {"Src Rank": collective.group[0]}
    return args


def is_copy(collective: Collective | None) -> bool:
    """Whether a transfer is a copy between the GPU and its host."""
    return collective is not None and collective.axis == OFFLOAD and collective.kind in COPIES


_PASSES = {"forward": "forward", "backward": "backward", "recompute": "backward", "weight": "weight gradient"}
"""role -> the pass it belongs to"""


class Track(NamedTuple):
    """One thread of one rank."""

    rank: int
    number: int
    """thread id"""
    lane: str
    ops: Indices


class SlicePlace(NamedTuple):
    """Where a slice is [ns]."""

    rank: int
    number: int
    begin: int
    end: int


class _Text(NamedTuple):
    """What is the same for all repetitions of an op."""

    begin: str
    args: str
    passes: str
    """name of the pass, empty for none"""
    copied: int
    """bytes of a copy, else 0"""
    send: bool
    """a message from one rank to another"""


def micro(nanoseconds: int) -> str:
    """Microseconds with three decimals, exactly."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


class Slices:
    """Turns tracks into rows, and remembers what else the trace must tell."""

    def __init__(self, report: Metrics, horizon: float) -> None:
        self._report = report
        self._horizon = horizon
        self.written = 0
        self.sends: dict[int, list[SlicePlace]] = {}
        """op -> its slices"""
        self.groups: dict[str, Collective] = {}
        """name of a process group -> a transfer among its ranks that was written"""

    def rows(self, track: Track) -> list[str]:
        """The complete events of one track, in order of time; annotations stand before what they enclose."""
        timeline = self._report.timeline
        column = track.ops[timeline.start[track.ops] <= self._horizon]
        starts = np.rint(timeline.start[column] * 1e9).astype(np.int64)
        ends = np.rint(timeline.end[column] * 1e9).astype(np.int64)
        begins = np.maximum(starts, np.concatenate(([0], np.maximum.accumulate(ends)[:-1])) if len(ends) else ends)
        kept = ends > begins
        self.written += int(kept.sum())
        return self._written(track, column[kept], begins[kept], ends[kept])

    def _written(self, track: Track, ops: Indices, begins: Indices, ends: Indices) -> list[str]:
        """Slices of `ops` [ns]; on the compute lane in annotations of the pass and micro-batch that they belong to."""
        columns = self._report.timeline.columns
        kinds, instances = columns.kind[ops], columns.instance[ops]
        texts = {kind: self._text(columns.examples[kind], track) for kind in dict.fromkeys(kinds.tolist())}
        place = f'"pid":{track.rank},"tid":{track.number},"ts":'
        annotated = track.lane == COMPUTE_LANE
        rows: list[str] = []
        current, head, since, until = ("", -1), 0, 0, 0  # the pass under way, the row of its annotation, and its times
        table = zip(ops.tolist(), kinds.tolist(), instances.tolist(), begins.tolist(), ends.tolist(), strict=True)
        for index, kind, instance, begin, end in table:
            text = texts[kind]
            if annotated and (text.passes or instance != current[1]):  # an op without a pass stays in that of its micro-batch
                belongs = (text.passes, instance) if text.passes and instance >= 0 else ("", -1)
                if belongs != current:
                    if current[0]:
                        rows[head] = _annotation(track, current, since, until)
                    current, head, since = belongs, len(rows), begin
                    if current[0]:
                        rows.append("")
            until = end
            if text.send:
                self.sends.setdefault(index, []).append(SlicePlace(track.rank, track.number, begin, end))
            micro_batch = f',"micro-batch":{instance}' if instance >= 0 else ""
            speed = f',"memory bandwidth (GB/s)":{text.copied / (end - begin):.6g}' if text.copied else ""
            length = end - begin
            rows.append(
                f'{text.begin}{place}{begin // 1000}.{begin % 1000:03d},"dur":{length // 1000}.{length % 1000:03d},'
                f'{text.args}{speed},"correlation":{index + 1}{micro_batch}}}}}'
            )
        if current[0]:
            rows[head] = _annotation(track, current, since, until)
        return rows

    def _text(self, op: Op, track: Track) -> _Text:
        """Name, category and arguments of an op, with the profiler's keys."""
        collective = op.collective
        name, category = op.name, "kernel"
        args: dict[str, object] = {"device": track.rank, "context": 1, "stream": track.number, "class": op.kind}
        if on_host(track.lane):
            category, args = "cpu_op", {"class": op.kind}
        elif collective is not None and is_copy(collective):
            name, category = COPIES[collective.kind], "gpu_memcpy"
            args |= {"op": op.name, "bytes": collective.bytes}
        elif collective is not None:
            self.groups[group_name(collective)] = collective
            dtype, count = element(collective, self._report.measured.profiled.types)
            costs = self._report.measured.costs
            cost = costs(collective) if costs is not None else None
            name = kernel_name(collective, dtype, cost.algorithm if cost is not None else "ring")
            sends = op.lanes[0].rank == track.rank and op.lanes[0].name == track.lane
            args |= {"op": op.name, "bytes": collective.bytes, **collective_args(collective, dtype, count, sends=sends)}
            if cost is not None:
                args |= {"algorithm": cost.algorithm, "protocol": cost.protocol}
        text = json.dumps(args, ensure_ascii=False, separators=(",", ":"))
        begin = f'{{"ph":"X","cat":"{category}","name":{json.dumps(name, ensure_ascii=False)},'
        copied = collective.bytes if collective is not None and category == "gpu_memcpy" else 0
        return _Text(
            begin,
            f'"args":{text[:-1]}',
            _PASSES.get(role(op.kind, op.name), ""),
            copied,
            collective is not None and collective.kind == "send",
        )


def _annotation(track: Track, belongs: tuple[str, int], begin: int, end: int) -> str:
    name, micro_batch = belongs
    place = f'"pid":{track.rank},"tid":{track.number},"ts":{micro(begin)},"dur":{micro(end - begin)}'
    return f'{{"ph":"X","cat":"gpu_user_annotation","name":"{name} micro-batch {micro_batch}",{place},"args":{{}}}}'

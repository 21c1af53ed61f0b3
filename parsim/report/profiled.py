"""How PyTorch's profiler and NCCL call what was simulated: kernels, types, groups, streams, devices.

Names as in pytorch/kineto libkineto/src/output_json.cpp (keys of events and of the head), pytorch ProcessGroupNCCL.cpp (names of
collectives) and NVIDIA/nccl src/device/generate.py: NCCL specialises one kernel per operation, type and RING or TREE, called
LL whatever protocol runs in it, so the name of a kernel does not tell its protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from parsim.program.program import COMPUTE, OFFLOAD, Collective

if TYPE_CHECKING:
    pass

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
    found: dict[str, int] = {}
    nccl, host = _FIRST_NCCL_STREAM, HOST_THREAD + 1
    for lane in sorted(set(lanes)):
        if lane == COMPUTE:
            found[lane] = COMPUTE_STREAM
        elif lane in _COPY_STREAMS:
            found[lane] = _COPY_STREAMS[lane]
        elif lane in _HOST_LANES:
            found[lane], host = host, host + 1
        else:
            found[lane], nccl = nccl, nccl + _STEP
    return found


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

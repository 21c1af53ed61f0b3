"""Exchanges of tokens between experts by kernels of their own instead of the library's: DeepEP, normal and low latency.

Both write to the peers directly. The normal kernels move a token to every machine once and are bound by the NIC, or by NVLink inside a
machine; what little they wait for is not known. The low-latency kernels send to every expert over the NIC (IBGDA), inside a machine over
NVLink.

Measured on H800 with one 400 Gb/s NIC per GPU (deepseek-ai/DeepEP docs/legacy.md): normal, 4 and 8 machines, 43 to 45 GB/s per NIC once its
printed rates, which count the own machine, are reduced by that part; low latency, 16 to 256 ranks, within 8 % of 25 us + bytes that leave
the machine / 44 GB/s, and within 12 % in one machine. Normal kernels on two machines reached half of that (21.5 GB/s): there NVLink is the
slower leg, which an all_to_all of independent messages does not show (`parsim.hardware.nccl.token_exchange`).
"""

from __future__ import annotations

from typing import NamedTuple

from parsim.errors import Finding, TopologyError


class ExpertKernels(NamedTuple):
    """How a set of kernels moves tokens; sizes are what every rank sends in all, as in nccl-tests' alltoall."""

    latency: float
    """before the bytes move [s]"""
    nvlink: float
    """share of the NVLinks' rate inside a machine"""
    nic: float
    """share of a NIC's line rate"""
    own: bool = False
    """what a rank sends to itself takes as long as what it sends to another rank of the machine"""


KERNELS = {
    "deepep": ExpertKernels(0.0, 0.97, 0.88, own=True),
    "deepep-low-latency": ExpertKernels(25e-6, 0.93, 0.88),
    "hybridep": ExpertKernels(0.0, 0.85, 0.88),
}


def expert_kernels(name: str, kind: str) -> ExpertKernels:
    """Kernels by name.

    Raises:
        TopologyError: unknown, or asked for anything but an all_to_all.
    """
    if name not in KERNELS:
        raise TopologyError(Finding("unknown kernels", "collectives.kernels", name, f"known: nccl, {', '.join(KERNELS)}"))
    if kind != "all_to_all":
        raise TopologyError(Finding(f"{name} exchanges tokens between experts; it has no {kind}", "collectives.kernels", name, "use nccl"))
    return KERNELS[name]

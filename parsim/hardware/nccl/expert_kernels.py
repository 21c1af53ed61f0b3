"""Exchanges of tokens between experts by kernels of their own instead of the library's: DeepEP, normal and low latency.

Both write to the peers directly. The normal kernels move a token to every machine once and are bound by the NIC, by NVLink inside a
machine, or by the multiprocessors that pass tokens on from the NIC to NVLink; all ranks tell each other first how much comes. The
low-latency kernels send to every expert over the NIC (IBGDA), inside a machine over NVLink.

Measured on H800 with one 400 Gb/s NIC per GPU (deepseek-ai/DeepEP docs/legacy.md): normal, 4 and 8 machines, 43 to 45 GB/s per NIC once its
printed rates, which count the own machine, are reduced by that part; low latency, 16 to 256 ranks, within 8 % of 25 us + bytes that leave
the machine / 44 GB/s, and within 12 % in one machine.

What passes before the bytes of the normal kernels move:

- in one machine 69 us: 4,096 tokens at 153 GB/s in fp8 and at 158 GB/s in bf16 are 1.048 and 1.968 ms (the same table), which is
  69 us + bytes / 164 GB/s
- over machines 96 us: the shortest time printed for the kernel in which ranks exchange counts (`notify`), 4 x 8 H100 with InfiniBand
  NDR, DeepEP c18eabd (deepseek-ai/DeepEP issue 397); it ends with barriers over NIC and NVLink, so a rank that is late shows in it

Of HybridEP what its calls take beside their kernels and a copy of what arrived (device_sync and update_flag: deepseek-ai/DeepEP pull
request 588), each a mean over dispatch and combine:

- in one machine or rack 76 us: its rates through PyTorch against those of its kernels, 8 B200 and 8 to 36 GB200, 4,096 tokens of 7,168
  bf16 (branch hybrid-ep, docs/README_Hybrid-EP.md; 32 to 117 us, more with more ranks)
- over machines 89 us: 2 x 8 B300, 133 and 46 us (issue 590)

On AMD GPUs (Primus-Turbo's port) multiprocessors copy tokens into the peers' buffers and out of their own at a rate that shows beside the
links': 32,768 tokens of 2,048 bf16 values, each to one of eight MI355X in turn, take dispatch and combine 728 us in the mean with 80
multiprocessors and 548 us with 160 (AMD-AGI/Primus fb0603b, agent/workspace/qwen3_fp8_tw_gfx950_20261010/logs/optimize.md: 920 and 536,
612 and 484 us). Of that are 69 us before the bytes move and 335 us the links; the rest is 134 MB at 5.2 and 5.8 GB/s per multiprocessor.

Passing on: two machines with 450 GB/s of NVLink got no further than two H800 machines with 200 (141 GB/s): 146 GB/s on H100
(pull request 181), 134 and 145 GB/s on H200 (issue 493), own rank included, 24 multiprocessors. Later versions pass on more (DeepEP V2: 90
instead of 43 GB/s printed on two machines, README.md). The host's wait for the counts is an operation of the step, not of the kernels.
"""

from __future__ import annotations

from typing import NamedTuple

from parsim.errors import Finding, TopologyError


class ExpertKernels(NamedTuple):
    """How a set of kernels moves tokens; sizes are what every rank sends in all, as in nccl-tests' alltoall."""

    latency: float
    """before the bytes move, in one machine [s]"""
    latency_between: float
    """before the bytes move, over machines [s]"""
    nvlink: float
    """share of the NVLinks' rate inside a machine"""
    nic: float
    """share of a NIC's line rate"""
    own: bool = False
    """what a rank sends to itself takes as long as what it sends to another rank of the machine"""
    passing: float = 0.0
    """most that a rank passes on to the ranks of its machine, itself included; 0: as much as NVLink takes [B/s]"""
    once: bool = False
    """a token goes to every machine once, whatever the number of its experts there"""
    copied: float = 0.0
    """what a multiprocessor of an AMD GPU copies besides; 0: copies do not show [B/s]"""
    known: str = ""
    """what to say of the latency"""

    def before(self, *, machines: int) -> float:
        """What passes before the bytes move [s]."""
        return self.latency if machines == 1 else self.latency_between


KERNELS = {
    "deepep": ExpertKernels(
        69e-6, 96e-6, 0.995, 0.9, own=True, passing=145e9, once=True, copied=5.5e9,
        known="69 us in one machine, 96 us over machines before the bytes move, without the host's wait for the counts",
    ),
    "deepep-low-latency": ExpertKernels(25e-6, 25e-6, 0.93, 0.88, known="25 us before the bytes move"),
    "hybridep": ExpertKernels(
        76e-6, 89e-6, 0.85, 0.88, once=True,
        known="76 us in one machine or rack, 89 us over machines beside its kernels, without the host's wait for the counts",
    ),
}  # fmt: skip
"""The shares and latencies of deepep were set together on the rows above, so that large messages stay where they were printed."""


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


def remarks_on(name: str) -> list[str]:
    """What to know about the times of such kernels beside those of NCCL; nothing for kernels that are not of this file."""
    if name not in KERNELS:
        return []
    kernels = KERNELS[name]
    counts = "# a token counts once for every machine that it visits, with NCCL once for every one of its experts"
    return [f"# {name}: {kernels.known}", *([counts] if kernels.once else [])]

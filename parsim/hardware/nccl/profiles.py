"""What is added to the library's own prediction: corrections of wires inside a machine, pairs of GPUs, and the law between machines.

Inside a machine the measured profile has, on top of the library's time,

    t = t_launch + L + (S / bandwidth) (1 + r / steps) / rate + E S / (S + S_h)

`rate`: what the wires move relative to the library's constant (not for LL); r: further steps of every ring loop; E and S_h: filling
the pipeline. NVLS inside a node moves what a head's share of the NVLinks comes to, not the next lower entry of the library's list of
speeds. Between machines see `parsim.hardware.nccl.between`. Parameters hold per kind of wire, never per message size or machine.

Sources, by name below:
vtrain: VIA-Research/vTrain, V100 profile (cube mesh, 2 to 8 GPUs); ml-engineering: stas00/ml-engineering network/README.md (A100,
H200, B200 sweeps); vidur: microsoft/vidur data/profiling/network; Hetu-Galvatron: PKU-DAIR/Hetu-Galvatron galvatron/profile_hardware
(all_to_all on a node of A100); oci: a guide to OCI's GB300 racks (all_to_all in one NVLink domain, NCCL 2.28.7).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from parsim.errors import Finding, TopologyError
from parsim.hardware.nccl.between import BETWEEN, Between
from parsim.hardware.nccl.inputs import Inputs


class LinkCorrection(NamedTuple):
    """Corrections of one kind of wire inside a machine."""

    rate: float = 1.0
    """bytes moved per byte the library counts on; not for LL"""
    ring_steps: float = 0.0
    """steps of a ring beyond the library's"""
    ramp: float = 0.0
    """time that a large message loses to filling the pipeline [s]"""
    half: float = 1.0
    """size at which half of it is lost [B]"""
    source: str = ""


class Pairs(NamedTuple):
    """Point-to-point operations over one kind of wire."""

    send: float = 1.0
    """what one message moves relative to the links [-]"""
    exchange: float = 1.0
    """what a GPU moves in an exchange with several peers, relative to its links"""
    pair: float = 1.0
    """the same with one peer"""
    peer: float = 1e-6
    """per peer of an exchange of messages that are too long for LL [s]"""
    ramp: float = 0.0
    """time that a large exchange loses to filling the pipeline [s]"""
    half: float = 1.0
    """bytes that a GPU sends to the others of its machine at which half of it is lost"""
    source: str = ""


_PEER = 4.5e-6
"""of exchanges over NVLink [s]: 83 us for 16 MiB on eight H100 (SimuMax); 3 us on A100 (Hetu-Galvatron); NVLink 5: assumption"""
_RAMP = (120e-6, 500e6)
"""of rings and exchanges on eight H100, 16 MiB to 8 GiB (SimuMax); exchanges over other NVLinks: assumption [s, B]"""
NEUTRAL = LinkCorrection(source="the library's own prediction")


class NcclProfile(NamedTuple):
    """Everything that is added to the library's own prediction."""

    name: Literal["nccl", "measured"]
    launch: float = 0.0
    """start of the kernel on one node [s]"""
    unquantised_heads: bool = False
    """NVLS heads move their share of the NVLinks; on Blackwell the library's choice counts on it, too"""
    real_rate: bool = False
    """rings carry what the links do, not what the search planned"""
    local: Mapping[str, LinkCorrection] = {}
    local_nvls: Mapping[str, LinkCorrection] = {}
    between: Between | None = None
    """the law between machines; None: the library's own prediction"""

    pairs: Mapping[str, Pairs] = {}
    """point-to-point operations by wire inside a node"""

    def pace(self, inputs: Inputs, algorithm: str) -> LinkCorrection:
        """The corrections for a group inside a machine and an algorithm."""
        return (self.local_nvls if algorithm in ("nvls", "nvls_tree") else self.local).get(inputs.local, NEUTRAL)


MEASURED = NcclProfile(
    name="measured",
    launch=2e-6,
    unquantised_heads=True,
    real_rate=True,
    local={
        "nvlink2": LinkCorrection(ramp=20e-6, half=2e6, source="vtrain; its rate of 22.5 / 20 is that of the links themselves"),
        "nvlink3": LinkCorrection(0.985, 0.4, 50e-6, 10e6, source="vtrain, ml-engineering: A100 groups of 2 to 8"),
        "nvlink4": LinkCorrection(1.02, 0.07, *_RAMP, source="ml-engineering: H200, ring; SimuMax: eight H100, all-gather"),
        "nvlink5": LinkCorrection(
            0.955,
            0.14,
            80e-6,
            20e6,
            source="ml-engineering: B200, ring; SimuMax: eight B200, the line through 1 MiB to 1 GiB has 64 us and 651 GB/s",
        ),
        "xgmi": LinkCorrection(source="ml-engineering: MI300X; no correction needed"),
        "pcie": LinkCorrection(source="no correction needed where the path is known"),
    },
    local_nvls={
        "nvlink4": LinkCorrection(0.972, 0.0, 65e-6, 8e6, source="ml-engineering: H200, 5 to 8 GPUs"),
        "nvlink5": LinkCorrection(1.012, 0.0, 65e-6, 8e6, source="ml-engineering: B200, 6 to 8 GPUs"),
    },
    pairs={
        "nvlink2": Pairs(0.93, 0.83, 0.646, _PEER, source="assumption: as nvlink3, without a ramp"),
        "nvlink3": Pairs(0.93, 0.84, 0.646, _PEER, *_RAMP, "vidur: 223 of 240 GB/s; Hetu-Galvatron: 201 GB/s, 155 between two"),
        "nvlink4": Pairs(0.976, 0.935, 0.646, _PEER, *_RAMP, "vidur: 362 of 370.8 GB/s; SimuMax: 346 GB/s"),
        "nvlink5": Pairs(0.955, 0.91, 0.646, _PEER, *_RAMP, "oci: 628, 685, 667 of 721.8 GB/s per GPU at 4, 8, 64 GPUs"),
        "xgmi": Pairs(1.0, 0.9, 0.9, 1.3e-6, 100e-6, 500e6, "prasad-nair-amd/alibaba, oci: eight MI355X, 361 of 403 GB/s; else assumption"),
    },
    between=BETWEEN,
)
NCCL = NcclProfile(name="nccl")
PROFILES: dict[str, NcclProfile] = {"measured": MEASURED, "nccl": NCCL}


def profile(name: str) -> NcclProfile:
    """A profile by name.

    Raises:
        TopologyError: unknown.
    """
    if name not in PROFILES:
        raise TopologyError(Finding("unknown profile", "collectives.profile", name, f"known: {', '.join(PROFILES)}"))
    return PROFILES[name]

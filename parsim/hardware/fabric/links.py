"""Kinds of links and their effective speeds.

Capacities are effective, per direction: what a collective library moves, not the signalling rate. NVLink and PCIe values
are the constants of NCCL 2.30 (src/graph/topo.h, topo.cc), except NVLink 2, whose bytes were measured at 22.5 GB/s per
link (VIA-Research/vTrain, V100 profile) while channels are planned with the constant of 20. xGMI: topologies/mi300x-8.yaml;
planned with 48 GB/s (ROCm/rccl issue 1210).
Networks: `parsim.hardware.fabric.networks`; the library plans with their line rate. Latencies are per hop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from parsim.hardware.fabric.networks import network_class
from parsim.hardware.tree import Tree

Medium = Literal["nvlink", "pcie", "socket", "memory", "storage", "network"]
MEDIA: tuple[Medium, ...] = ("nvlink", "pcie", "socket", "memory", "storage", "network")


class Link(NamedTuple):
    """One directed link of a cluster (or one shared resource, if `duplex` is half: both directions are this link)."""

    kind: str
    capacity: float
    """effective bandwidth [B/s]"""
    latency: float
    """per hop [s]"""
    name: str
    duplex: Literal["full", "half"] = "full"


@dataclass(frozen=True, slots=True)
class LinkKind:
    """A named kind of link; an edge of a topology carries `count` of them."""

    name: str
    medium: Medium
    capacity: float
    """effective bandwidth of one link in one direction [B/s]"""
    latency: float = 0.0
    """per hop [s]"""
    duplex: Literal["full", "half"] = "full"
    overhead: float = 1.0
    """bytes on the link per payload byte of GPU to GPU traffic through a host bridge (64-byte packets)"""
    message_latency: float = 0.0
    """of a network: time of a message through NIC and stack beyond the library's own constants, at every step between nodes [s]"""
    handshake: float = 0.0
    """of a network: time in which sender and receiver agree on where a message goes that is too large to be sent unasked [s]"""
    planned: float = 0.0
    """what the collective library's channel search takes one link for, where that is not `capacity` (0: it is) [B/s]"""
    vendor: str = ""
    """of a socket link: maker of the CPUs that it joins, e.g. intel"""

    @property
    def planning(self) -> float:
        """Bandwidth of one link as the channel search counts it [B/s]."""
        return self.planned or self.capacity


_CPU_VENDORS = {"socket-amd": "amd", "socket-power9": "ibm", "socket-arm": "arm"}
_PCIE_LANE = {1: 0.1875e9, 2: 0.375e9, 3: 0.75e9, 4: 1.5e9, 5: 3.0e9, 6: 6.0e9}
_PCIE_NAME = re.compile(r"pcie([1-6])-x(1|2|4|8|16)")


def network_kind(name: str, line_rate: float) -> LinkKind:
    """A NIC's cable of a class of networks [B/s]."""
    known = network_class(name, line_rate)
    return LinkKind(
        name,
        "network",
        line_rate * known.share,
        0.65e-6,
        message_latency=known.message_latency,
        handshake=known.handshake,
        planned=line_rate,
    )


def _standard() -> dict[str, LinkKind]:
    nvlink = {"nvlink1": 18e9, "nvlink2": 22.5e9, "nvlink3": 20e9, "nvlink3-rtx": 12e9, "nvlink4": 20.6e9, "nvlink5": 40.1e9}
    network = {
        "ethernet-10g": 10e9, "ethernet-25g": 25e9, "ethernet-100g": 100e9, "ethernet-200g": 200e9, "ethernet-400g": 400e9,
        "ib-edr": 100e9, "ib-hdr": 200e9, "ib-ndr": 400e9, "ib-xdr": 800e9, "roce-100g": 100e9, "roce-200g": 200e9, "roce-400g": 400e9,
        "roce-800g": 800e9, "efa-100g": 100e9, "efa-200g": 200e9, "efa-400g": 400e9,
        "slingshot-200g": 200e9, "tcpxo-200g": 200e9, "tcpx-200g": 200e9,
    }  # fmt: skip
    sockets = {
        "socket-broadwell": 6e9, "socket-skylake": 10e9, "socket-sapphire-rapids": 22e9, "socket-emerald-rapids": 40e9,
        "socket-amd": 16e9, "socket-power9": 32e9, "socket-arm": 6e9,
    }  # fmt: skip
    kinds = [LinkKind(name, "nvlink", rate, 0.3e-6, planned=20e9 if name == "nvlink2" else 0.0) for name, rate in nvlink.items()]
    kinds.append(LinkKind("xgmi3", "nvlink", 45.5e9, 0.4e-6, planned=48e9))
    kinds.append(LinkKind("xgmi4", "nvlink", 57.6e9, 0.4e-6))
    kinds.append(LinkKind("nvlink-c2c", "pcie", 359e9, 0.3e-6))
    kinds += [LinkKind(name, "socket", rate, 0.5e-6, vendor=_CPU_VENDORS.get(name, "intel")) for name, rate in sockets.items()]
    # assumption: 0.6 x the STREAM rate of one 8-channel DDR4-3200 socket; reads and writes share it
    kinds.append(LinkKind("host-memory", "memory", 85e9, 0.1e-6, duplex="half"))
    # assumption: one PCIe 4.0 x4 data-centre drive per socket (Samsung PM9A3 3.84 TB datasheet: sequential 6,800 and 4,000 MB/s)
    kinds.append(LinkKind("nvme-read", "storage", 6.8e9, 80e-6))
    kinds.append(LinkKind("nvme-write", "storage", 4.0e9, 25e-6))
    kinds += [network_kind(name, bits / 8) for name, bits in network.items()]
    return {kind.name: kind for kind in kinds}


STANDARD: dict[str, LinkKind] = _standard()
"""Link kinds that every topology file may use without defining them; `pcie<gen>-x<width>` are known as well."""


def standard_kind(name: str) -> LinkKind | None:
    """The built-in kind `name`, or None. PCIe: width x speed / 80 as NCCL counts, e.g. 24 GB/s for pcie4-x16."""
    if name in STANDARD:
        return STANDARD[name]
    match = _PCIE_NAME.fullmatch(name)
    if match:
        return LinkKind(name, "pcie", int(match[2]) * _PCIE_LANE[int(match[1])], 0.4e-6)
    return None


def link_kinds(tree: Tree) -> dict[str, LinkKind]:
    """The ``links`` table of a topology tree: new kinds, or changes to standard ones."""
    return {name: _kind(name, entry, standard_kind(name)) for name, entry in tree.children("links").items()}


def _kind(name: str, entry: Tree, base: LinkKind | None) -> LinkKind:
    kind = base or replace(network_kind(name, 1.0), latency=0.0)
    medium = entry.text("medium", base.medium if base else "")
    if medium not in MEDIA:
        prefixes = {"nvlink": "nvlink", "xgmi": "nvlink", "ici": "network", "pcie": "pcie", "c2c": "pcie", "socket": "socket",
                    "upi": "socket", "qpi": "socket", "ib": "network", "ethernet": "network", "roce": "network", "efa": "network",
                    "slingshot": "network", "cxi": "network", "tcp": "network",
                    "memory": "memory", "host-memory": "memory", "nvme": "storage"}  # fmt: skip
        medium = next((value for prefix, value in prefixes.items() if name.startswith(prefix)), "")
        if not medium:
            entry.fail("medium", f"cannot tell what {name!r} is", f"add medium: one of {', '.join(MEDIA)}")
            medium = "network"
    if base is None and medium != "network":
        kind = LinkKind(name, "network", 1.0)
    capacity = kind.capacity
    ways = [key for key in ("per_direction", "bandwidth", "line_rate") if entry.has(key)]
    line = "line_rate" in ways and medium == "network"
    rated = entry.quantity("line_rate", "rate", 0.0) if line else 0.0
    efficiency = entry.number("efficiency", network_class(name, rated).share if line else 1.0, 0.01, 1.0)
    if len(ways) > 1:
        entry.fail(ways[1], f"give one of per_direction, bandwidth, line_rate, not {' and '.join(ways)}")
    for key in ("per_direction", "bandwidth", "line_rate"):
        rate = entry.quantity(key, "rate", 0.0)
        if rate:
            capacity = rate * efficiency
    if not ways:
        if base is None:
            entry.fail("per_direction", "missing: effective bandwidth of one link in one direction", "for example per_direction: 24 GB/s")
        elif entry.has("efficiency"):
            capacity = kind.capacity * efficiency
    duplex = entry.text("duplex", kind.duplex)
    if duplex not in ("full", "half"):
        entry.fail("duplex", "expected full or half")
    result = replace(
        kind,
        medium=medium,  # type: ignore[arg-type]
        capacity=capacity,
        latency=entry.quantity("latency", "latency", kind.latency, positive=False),
        duplex="half" if duplex == "half" else "full",
        overhead=entry.number("overhead", kind.overhead, 1.0, 10.0),
        message_latency=entry.quantity("message_latency", "latency", kind.message_latency, positive=False),
        handshake=entry.quantity("handshake", "latency", kind.handshake, positive=False),
        planned=entry.quantity("planned", "rate", capacity / efficiency if line else _planned(base, capacity)),
        vendor=entry.text("vendor", kind.vendor),
    )
    entry.close()
    return result


def _planned(base: LinkKind | None, capacity: float) -> float:
    """What a changed kind is planned with; 0: as it is."""
    return base.planned * capacity / base.capacity if base else 0.0

"""What a class of networks between machines does to a message: three numbers, each measured by itself where the rows allow.

`message_latency`: how long a message takes through NIC and software beyond what NCCL's own constants of a step have (they are
InfiniBand's). From all-reduces of a few bytes: two messages of LL, four of Simple, at two machines.
`handshake`: sender and receiver agree on where a message goes that is too large to be sent unasked. From the step in time between 8 and
16 KiB. One number for all plug-ins; NCCL's own NET/IB asks for every message alike, which the library's constants have.
`share`: payload over line rate, headers, acknowledgements and PCIe included. From rings of 1 GiB and more.

The rows are in validation/nccl; how far each number moves when a system is left out is in validation/nccl/fit.yaml.
"""

from __future__ import annotations

from typing import NamedTuple

EAGER_LIMIT = 8 * 1024
"""Larger messages pay the handshake [B] (aws/aws-ofi-nccl include/nccl_ofi_param.h, EAGER_MAX_SIZE; CXI's threshold is near, and so is the
step in time on EFA)"""


class NetworkClass(NamedTuple):
    """The numbers of one class of networks; those of a topology's link come first."""

    name: str
    message_latency: float
    """[s]"""
    handshake: float
    """[s]"""
    share: float
    """of the line rate [-]"""
    source: str
    measured: bool = True
    """whether a system of this class was measured; otherwise the numbers are those of its nearest kin"""


NETWORKS: dict[str, NetworkClass] = {
    one.name: one
    for one in (
        NetworkClass("ib", 0.0, 0.0, 0.98, "H100 with NDR: NVIDIA/nccl-tests issue 309 (25 us at 8 B, 392.7 of 400 GB/s in a ring)"),
        NetworkClass(
            "ib-hdr",
            0.0,
            0.0,
            0.945,
            "A100 with HDR: Azure/aks-rdma-infiniband (187 of 200 GB/s); NVIDIA/nccl issues 652, 1244 (62 us, 32 nodes)",
        ),
        NetworkClass("roce", 5e-6, 0.0, 0.94, "A100 with 16 x 100 Gb/s, MI355X and GB300: oracle-quickstart/oci-hpc-oke, validation/nccl"),
        NetworkClass("efa", 20e-6, 15e-6, 0.95, "p4de and p5: awslabs/awsome-distributed-training micro-benchmarks/nccl-tests"),
        NetworkClass("slingshot", 0.0, 15e-6, 0.95, "GH200 and A100 over CXI: eth-cscs/cscs-docs, ALCF Polaris"),
        NetworkClass("tcpxo", 8e-6, 15e-6, 0.945, "A3 Mega: GoogleCloudPlatform/cluster-toolkit, dstackai/dstack (188.6 of 200 GB/s)"),
        NetworkClass("tcpx", 400e-6, 0.0, 0.9, "A3 High: GoogleCloudPlatform/cluster-toolkit (70.9 of 100 GB/s)"),
        NetworkClass(
            "slow-ethernet", 25e-6, 0.0, 0.9, "assumption: TCP fills links of up to 25 Gb/s; latency of kernel sockets", measured=False
        ),
        NetworkClass("ethernet", 25e-6, 0.0, 0.6, "assumption: kernel sockets reach 0.35 to 0.8 of 100 Gb/s and more", measured=False),
        NetworkClass("ici", 0.0, 0.0, 0.96, "assumption: no library of NVIDIA's runs there", measured=False),
        NetworkClass(
            "unknown",
            0.0,
            0.0,
            0.95,
            "assumption: the library's own constants, which are InfiniBand's, and what most leave of the line rate",
            measured=False,
        ),
    )
}
_PREFIXES = {
    "ib-ndr": "ib", "ib-xdr": "ib", "ib": "ib-hdr", "infiniband": "ib-hdr", "roce": "roce", "efa": "efa", "slingshot": "slingshot",
    "cxi": "slingshot", "tcpxo": "tcpxo", "tcpx": "tcpx", "ethernet-10g": "slow-ethernet", "ethernet-25g": "slow-ethernet",
    "ethernet": "ethernet", "tcp": "ethernet", "ici": "ici",
}  # fmt: skip
_LONGEST_FIRST = sorted(_PREFIXES, key=len, reverse=True)
_SLOW = 25e9 / 8
"""line rate of Ethernet up to which sockets keep up [B/s]"""


def network_class(name: str, line_rate: float = 0.0) -> NetworkClass:
    """The class of a link kind by its name: ib-ndr, roce-200g, tcpxo-200g; ``unknown`` where the name says nothing.

    `line_rate` [B/s] tells slow Ethernet from fast where the name does not.
    """
    found = next((_PREFIXES[prefix] for prefix in _LONGEST_FIRST if name == prefix or name.startswith(prefix + "-")), "unknown")
    return NETWORKS["slow-ethernet" if found == "ethernet" and 0 < line_rate <= _SLOW else found]

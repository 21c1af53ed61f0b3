"""Constants of NCCL's tuning model, by version of the library.

Latencies, caps and factors: NVIDIA/nccl src/graph/tuning.cc at the tags named in `Constants.source`. A version between two tables
uses the older one. SI units [s, B/s].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Literal, NamedTuple

from parsim.errors import Finding, TopologyError

Algorithm = Literal["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"]
ALGORITHMS: tuple[Algorithm, ...] = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
"""in the order in which the library compares them: the first of two equal times wins"""
Protocol = Literal["ll", "ll128", "simple"]
PROTOCOLS: tuple[Protocol, ...] = ("ll", "ll128", "simple")
Generation = Literal["volta", "ampere", "hopper", "blackwell"]
GENERATIONS: tuple[Generation, ...] = ("volta", "ampere", "hopper", "blackwell")
DEFAULT_VERSION = "2.30"

Triple = tuple[float, float, float]
"""of latencies: LL, LL128, Simple; of caps: one node, two nodes, more nodes"""
Rows = tuple[Triple, Triple, Triple, Triple]
"""one row per generation"""

_NONE: Triple = (0.0, 0.0, 0.0)


class Constants(NamedTuple):
    """The numbers of one version."""

    version: str
    source: str
    base: Mapping[Algorithm, Triple]
    """latency of a collective besides its steps [s]"""
    step: Mapping[str, Mapping[Algorithm, Triple]]
    """latency of a step over nvlink, pcie or network [s]"""
    ll_cap: Rows
    """bus bandwidth that LL cannot exceed; row by GPU on one node, by CPU on several [B/s]"""
    ring_ll128_cap: Rows
    """per channel [B/s], like the next three"""
    tree_ll128_cap: Rows
    tree_cap: Rows
    nvls_tree_cap: Rows
    nvls_efficiency: tuple[float, float, float, float] = (0.0, 0.0, 0.85, 0.74)
    """by generation; where `nvls_rule` is efficiency"""
    nvls_rule: Literal["efficiency", "narrower", "plain", "none"] = "efficiency"
    """how bus bandwidth follows from the head speeds: 2.28+, 2.20-2.27, 2.18-2.19, before"""
    ring_ll_share: tuple[float, float] = (0.5, 0.5)
    """LL relative to Simple: of reductions and between nodes; of other collectives on one node"""
    ring_ll128_share: tuple[float, float] = (0.92, 0.92)
    """LL128 relative to Simple: several GPUs per node; one"""
    ampere_cap: float = math.inf
    """bus bandwidth of any algorithm on compute capability 8.0 [B/s]"""
    pat_share: float = 0.75
    pat: bool = True
    collnet_factor: bool = True
    """CollNet Direct pays for GPUs without a NIC of their own"""
    arity_latency: float = 0.4e-6
    """CollNet Direct: per further GPU of the node and direction [s]"""
    network_steps_extra: int = 0
    """network steps of a ring all-reduce beyond 2 (nodes - 1)"""
    ll_local_factor: float = 1.0
    """on the LL latency inside a node, when there are several"""
    posting: bool = True
    """a local ring step waits for the proxy to post the network work"""
    lone_gpu_tree_latency: bool = True
    """groups with one GPU per node pay the tree's network latency in every algorithm"""
    plateau: tuple[float, float] = (1.4, 1.9)
    """factor on the latency of a large ring all-reduce between nodes: compute capability 8.0 and above; below"""
    plateau_rule: Literal["per channel", "per rank"] = "per channel"
    """large is: 64 B per channel and rank; 4 KiB per rank"""
    tree_correction: tuple[tuple[float, ...], ...] = ()
    """on the tree's bandwidth, by protocol and floor(log2(size / 64 B))"""
    nvls_tree_corrected: bool = True
    """the Simple row applies to NVLS Tree too, on Blackwell with x86 CPUs"""
    ll128_capabilities: tuple[float, ...] | None = None
    """compute capabilities that may use LL128; None: 7.0 and above"""


@cache
def constants(version: str = DEFAULT_VERSION) -> Constants:
    """The table of a version such as ``2.30`` or ``2.18.3``; versions between two tables use the older one.

    Raises:
        TopologyError: not a version, or before 2.7.
    """
    have = ", ".join(TABLES)
    try:
        wanted = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        wanted = ()
    if len(wanted) != 2 or wanted < (2, 7):
        raise TopologyError(Finding("no constants of this version of NCCL", "nccl.version", version, f"from 2.7 on; tables: {have}"))
    not_newer = [name for name in TABLES if tuple(map(int, name.split("."))) <= wanted]
    return TABLES[not_newer[-1] if not_newer else next(iter(TABLES))]


def _us(ll: float, ll128: float, simple: float) -> Triple:
    return (ll * 1e-6, ll128 * 1e-6, simple * 1e-6)


def _simple(latency: float) -> Triple:
    return _us(0, 0, latency)


def _gb(*rows: Triple) -> Rows:
    scaled = [(one * 1e9, two * 1e9, many * 1e9) for one, two, many in rows]
    while len(scaled) < len(GENERATIONS):  # a library older than the GPU treats it like the newest it knows
        scaled.append(scaled[-1])
    return (scaled[0], scaled[1], scaled[2], scaled[3])


_VOLTA_LL: Triple = (39.0, 39.0, 20.4)
_AMPERE_LL: Triple = (87.7, 22.5, 19.0)
_VOLTA_TREE: Triple = (26.5, 18.5, 10.0)
_AMPERE_TREE: Triple = (24.0, 23.6, 17.8)
_HOPPER_TREE: Triple = (38.7, 41.4, 36.0)
_TWENTY: Triple = (20.0, 20.0, 20.0)

_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
)

_RING_STEPS: dict[str, Triple] = {"nvlink": _us(0.6, 1.9, 3.4), "pcie": _us(1.0, 2.5, 5.7), "network": _us(2.7, 4.0, 14.0)}


def _steps(
    tree: dict[str, Triple], direct: Triple, chain: Triple, nvls: tuple[float, float], nvls_tree: tuple[float, float]
) -> dict[str, dict[Algorithm, Triple]]:
    """Step latencies since 2.18; of `direct` and `chain`: nvlink, pcie, network; of the NVLS ones: nvlink, network [us]."""
    pairs = {"nvlink": (nvls[0], nvls_tree[0]), "pcie": (0.0, 0.0), "network": (nvls[1], nvls_tree[1])}
    pat = {"nvlink": 4.0, "pcie": 4.0, "network": 14.0}
    return {
        path: {
            "tree": tree[path],
            "ring": _RING_STEPS[path],
            "collnet_direct": _simple(direct[number]),
            "collnet_chain": _simple(chain[number]),
            "nvls": _simple(pairs[path][0]),
            "nvls_tree": _simple(pairs[path][1]),
            "pat": _simple(pat[path]),
        }
        for number, path in enumerate(("nvlink", "pcie", "network"))
    }


def _tree_steps(nvlink: float, pcie: float, network: float) -> dict[str, Triple]:
    return {"nvlink": _us(0.6, 1.25, nvlink), "pcie": _us(1.0, 1.9, pcie), "network": _us(5.0, 8.5, network)}


def _bases(tree: Triple, collnet: Triple = _NONE, nvls: Triple = _NONE) -> dict[Algorithm, Triple]:
    return {
        "tree": tree, "ring": _us(6.6, 14.0, 8.4), "collnet_direct": collnet, "collnet_chain": collnet, "nvls": nvls,
        "nvls_tree": nvls, "pat": _us(8, 8, 8),
    }  # fmt: skip


_DIRECT: Triple = (3.7, 3.7, 31.0)
_CHAIN: Triple = (2.8, 2.8, 30.0)


# Every table says what differs from the version after it.

_THIRTY = Constants(
    version="2.30",
    source="NVIDIA/nccl v2.30.7-1 src/graph/tuning.cc",
    base=_bases(_us(6.8, 14, 8.4)),
    step=_steps(_tree_steps(4, 4, 14), _DIRECT, _CHAIN, (25.0, 18.0), (25.0, 20.9)),
    ll_cap=_gb(_VOLTA_LL, _AMPERE_LL, (141.0, 45.0, 35.0), (282.0, 90.0, 70.0)),
    ring_ll128_cap=_gb(_TWENTY, _TWENTY, (36.7, 36.7, 36.7), (40.0, 40.0, 40.0)),
    tree_ll128_cap=_gb(_TWENTY, _TWENTY, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0)),
    tree_cap=_gb(_VOLTA_TREE, _AMPERE_TREE, _HOPPER_TREE, (70.0, 42.8, 24.0)),
    nvls_tree_cap=_gb(_VOLTA_TREE, _AMPERE_TREE, (0.0, 57.7, 45.5), (0.0, 96.0, 80.0)),
    tree_correction=_CORRECTION,
)
_TWENTY_NINE = _THIRTY._replace(
    version="2.29",
    source="NVIDIA/nccl v2.29.7-1 src/graph/tuning.cc",
    nvls_tree_cap=_gb(_VOLTA_TREE, _AMPERE_TREE, (0.0, 57.7, 45.5), (0.0, 96.0, 43.8)),
)
_TWENTY_EIGHT = _TWENTY_NINE._replace(
    version="2.28",
    source="NVIDIA/nccl v2.28.9-1 src/graph/tuning.cc",
    ring_ll128_cap=_gb(_TWENTY, _TWENTY, (36.7, 36.7, 36.7), (73.4, 34.6, 73.4)),
    nvls_tree_corrected=False,
)
_TWENTY_THREE = _THIRTY._replace(
    version="2.23",
    source="NVIDIA/nccl v2.23.4-1 src/graph/tuning.cc",
    step=_steps(_tree_steps(4, 4, 14), _DIRECT, _CHAIN, (25.0, 18.0), (25.0, 14.0)),
    ll_cap=_gb(_VOLTA_LL, _AMPERE_LL, (141.0, 45.0, 35.0)),
    ring_ll128_cap=_gb(_TWENTY, _TWENTY, (36.7, 36.7, 36.7)),
    tree_ll128_cap=_gb(_TWENTY, _TWENTY, (36.7, 36.7, 29.0)),
    tree_cap=_gb(_VOLTA_TREE, _AMPERE_TREE, _HOPPER_TREE),
    nvls_tree_cap=_gb((math.inf, math.inf, math.inf)),
    nvls_rule="narrower",
    pat_share=0.85,
    tree_correction=tuple(row[:23] for row in _CORRECTION),
    nvls_tree_corrected=False,
    ll128_capabilities=(7.0, 8.0, 9.0),
)
_TWENTY_ZERO = _TWENTY_THREE._replace(
    version="2.20",
    source="NVIDIA/nccl v2.20.3-1 src/graph/tuning.cc",
    base=_bases(_us(6.8, 14, 0)),
    step=_steps(_tree_steps(28, 28, 28), _DIRECT, _CHAIN, (23.0, 18.0), (23.0, 14.0)),
    ll_cap=_gb(_VOLTA_LL, _AMPERE_LL),
    ring_ll_share=(0.25, 1 / 3),
    ring_ll128_share=(0.92, 0.7),
    pat_share=0.75,
    pat=False,
    network_steps_extra=2,
    lone_gpu_tree_latency=False,
)
_EIGHTEEN = _TWENTY_ZERO._replace(
    version="2.18",
    source="NVIDIA/nccl v2.18.3-1 src/graph/tuning.cc",
    base=_bases(_us(6.8, 14, 0), _us(6.8, 14, 0), _simple(23)),
    step=_steps(_tree_steps(4, 6, 14), (8.0, 8.0, 10.7), (4.75, 8.0, 14.0), (0.0, 18.0), (0.0, 19.0)),
    nvls_rule="plain",
    arity_latency=0.5e-6,
)
_COLLNET = _us(4.4, 4.4, 0)
_NOT_YET: dict[Algorithm, Triple] = {"collnet_chain": _NONE, "nvls": _NONE, "nvls_tree": _NONE, "pat": _NONE}
_TWELVE = _EIGHTEEN._replace(
    version="2.12",
    source="NVIDIA/nccl v2.12.12-1 src/graph/tuning.cc (2.7 to 2.11 differ in caps and in the network latency of Simple)",
    base={"tree": _COLLNET, "ring": _us(3.6, 10.0, 8.4), "collnet_direct": _COLLNET, **_NOT_YET},
    step={
        "nvlink": {"tree": _us(0.52, 1.25, 28), "ring": _us(0.47, 1.9, 3.4), "collnet_direct": _us(0.5, 1.2, 8.0), **_NOT_YET},
        "pcie": {"tree": _us(1.0, 1.9, 28), "ring": _us(1.0, 2.5, 5.7), "collnet_direct": _us(1.0, 1.9, 8.0), **_NOT_YET},
        "network": {"tree": _us(5.0, 8.5, 28), "ring": _us(2.7, 4.0, 28.0), "collnet_direct": _us(5.0, 5.0, 10.7), **_NOT_YET},
    },
    ll_cap=_gb(_VOLTA_LL, _AMPERE_LL, _VOLTA_LL, _VOLTA_LL),
    ring_ll128_cap=_gb(_TWENTY),
    tree_ll128_cap=_gb(_TWENTY),
    tree_cap=_gb(_VOLTA_TREE, _AMPERE_TREE, _VOLTA_TREE, _VOLTA_TREE),
    nvls_rule="none",
    ampere_cap=235e9,
    collnet_factor=False,
    ll_local_factor=1.8,
    posting=False,
    plateau=(1.9, 1.9),
    plateau_rule="per rank",
    ll128_capabilities=(7.0, 8.0),
)

TABLES: dict[str, Constants] = {
    one.version: one for one in (_TWELVE, _EIGHTEEN, _TWENTY_ZERO, _TWENTY_THREE, _TWENTY_EIGHT, _TWENTY_NINE, _THIRTY)
}
"""the tables by version, oldest first"""

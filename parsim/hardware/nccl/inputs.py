"""What the library's tuning model knows about a group of GPUs, without any cluster behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from parsim.errors import Finding, TopologyError
from parsim.hardware.fabric.library import DEFAULTS, Library
from parsim.hardware.nccl.tables import ALGORITHMS, DEFAULT_VERSION, PROTOCOLS, Generation

KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter", "sendrecv", "send", "barrier",
)  # fmt: skip
"""operations with a cost; sizes as in NVIDIA/nccl-tests doc/PERFORMANCE.md"""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""those for which the library chooses an algorithm"""

Local = Literal["", "nvlink2", "nvlink3", "nvlink4", "nvlink5", "xgmi", "pcie"]
Path = Literal["nvlink", "pcie"]


class Graph(NamedTuple):
    """Result of a channel search: `channels` rings, trees or heads of one speed.

    The count is the search's own, before the library runs every channel twice.
    """

    channels: int
    intra: float
    """speed of each inside a node, as planned [B/s]"""
    inter: float = 0.0
    """between nodes [B/s]; 0: as inside"""
    moved: float = 0.0
    """what all channels together really carry, where that is not channels x speed [B/s]"""

    @property
    def between(self) -> float:
        """Speed of each between nodes [B/s]."""
        return self.inter or self.intra

    @property
    def gain(self) -> float:
        """Bytes moved per byte planned."""
        return self.moved / (self.channels * min(self.intra, self.between)) if self.moved else 1.0


@dataclass(frozen=True, slots=True)
class Heads:
    """In-switch reduction (NVLS): one head per GPU of a node."""

    count: int
    speed: float
    """of one head inside the node, from the library's list [B/s]"""
    inter: float = 0.0
    """of one head between nodes [B/s]; 0: as inside"""
    unquantised: float = 0.0
    """NVLink bandwidth of a GPU / (heads + 1) [B/s]; 0: as `speed`"""

    @property
    def between(self) -> float:
        """Speed of a head between nodes [B/s]."""
        return self.inter or self.speed


@dataclass(frozen=True, slots=True)
class Inputs:
    """A group of GPUs as the tuning model sees it."""

    ranks: int
    ring: Graph
    nodes: int = 1
    capability: float = 8.0
    """lowest CUDA compute capability"""
    tree: Graph | None = None
    """None: as the ring"""
    nvls: Heads | None = None
    """None: no NVSwitch that adds"""
    collnet: Graph | None = None
    """None: no switches that reduce in the network (SHARP)"""
    path: Path = "nvlink"
    """worst path inside a node"""
    cpu: str = ""
    """intel | amd | arm | ibm | mixed; empty: unknown, treated as intel"""
    network_latency: float = 0.0
    """of a message between nodes, beyond the library's own constants [s]"""
    handshake: float = 0.0
    """of a message between nodes that is too large to be sent unasked [s]"""
    ll128: bool = True
    """whether the paths allow LL128: NVLink inside, NICs not beyond a host bridge, equal GPUs"""
    plain_tree: bool = False
    """the tree pattern is neither balanced nor split"""
    same_order: bool = True
    """every channel visits the GPUs in the same order"""
    local: Local = "nvlink3"
    """wires inside a node, for the corrections of the measured profile"""
    library: Library = DEFAULTS
    """what the machines set: allowed algorithms, protocols, channels, buffers"""

    def __post_init__(self) -> None:
        if self.ranks < 2 or not 1 <= self.nodes <= self.ranks or self.ring.channels < 1:
            raise TopologyError(
                Finding(f"{self.ranks} ranks on {self.nodes} nodes with {self.ring.channels} channels have no collective", "nccl.inputs")
            )

    @property
    def generation(self) -> Generation:
        """The row of the tables."""
        if self.capability >= 10.0:
            return "blackwell"
        if self.capability >= 9.0:
            return "hopper"
        return "ampere" if self.capability >= 8.0 else "volta"

    @property
    def per_node(self) -> float:
        """Ranks per node; a fraction where nodes differ."""
        return self.ranks / self.nodes

    @property
    def span(self) -> int:
        """Column of the bandwidth tables: one node, two, more."""
        return min(self.nodes, 3) - 1

    @property
    def x86(self) -> bool:
        """Whether the hosts are x86."""
        return self.cpu not in ("arm", "ibm")


Override = str | Mapping[str, str]
"""``auto``, one name for every collective that is asked for, or a name per collective"""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a scenario wants its collectives: whose timing, which version of the library, which algorithm and protocol."""

    profile: str = "measured"
    """measured | nccl (the library's own prediction)"""
    version: str = DEFAULT_VERSION
    algorithm: Override = field(default="auto", hash=False)
    protocol: Override = field(default="auto", hash=False)
    """one word, or one per collective: a mapping, which has no hash"""
    scale_exponent: float = 0.0
    """goodput between more than two nodes x (nodes / 2)^-exponent, for shared and congested clusters; 0: a healthy network"""
    connection_cap: float = 0.0
    """most that one connection gets out of a NIC in point-to-point operations [B/s]; 0: all"""
    kernels: str = "nccl"
    """of an all_to_all: nccl | deepep | deepep-low-latency | hybridep"""
    max_ctas: int = 0
    """limit on the CUDA blocks of a collective (NCCL_MAX_CTAS); 0: none; the library's predictions do not depend on it"""

    def __post_init__(self) -> None:
        for key, value, known in (("algorithm", self.algorithm, ALGORITHMS), ("protocol", self.protocol, PROTOCOLS)):
            entries = value if isinstance(value, Mapping) else {"": value}
            for kind, name in entries.items():
                if kind and kind not in COLLECTIVES:
                    raise TopologyError(Finding("unknown collective", f"collectives.{key}", kind, f"known: {', '.join(COLLECTIVES)}"))
                if name not in ("auto", *known):
                    raise TopologyError(Finding(f"unknown {key}", f"collectives.{key}", name, f"known: auto, {', '.join(known)}"))

    def wanted(self, kind: str) -> tuple[str, str]:
        """Algorithm and protocol asked for a kind of collective; ``auto`` where none is."""
        return tuple(value.get(kind, "auto") if isinstance(value, Mapping) else value for value in (self.algorithm, self.protocol))  # type: ignore[return-value]


AUTOMATIC = Settings()


def bus_factor(kind: str, ranks: int) -> float:
    """Bus over algorithm bandwidth (NVIDIA/nccl-tests doc/PERFORMANCE.md)."""
    match kind:
        case "all_reduce":
            return 2 * (ranks - 1) / ranks
        case "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter":
            return (ranks - 1) / ranks
        case _:
            return 1.0

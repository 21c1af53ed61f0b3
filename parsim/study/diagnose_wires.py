"""What a log of NCCL says about the wires of a run: how fast they were (nccl-tests), and which paths were taken (NCCL_DEBUG=INFO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from parsim.errors import Finding, ScenarioError
from parsim.hardware.nccl.cost import collective_cost
from parsim.hardware.nccl.inputs import AUTOMATIC
from parsim.interop.nccl_logs import Log, LoggedPaths, parse_debug, parse_log
from parsim.scenario import files
from parsim.scenario.built import Built
from parsim.study.diagnose import Diagnosis, Simulator, TriedCause
from parsim.study.diagnose_causes import UncertainParameter

LARGE = 64 * 2**20
"""sizes from which on a collective is bandwidth and not latency [B]"""
TOLERANCE = 0.1
"""published collectives of this size are within so much of their prediction (validation/nccl/README.md)"""


@dataclass(frozen=True)
class MeasuredWire:
    """A measured collective beside its prediction."""

    kind: str
    ranks: int
    nodes: int
    cause: str
    """name of the parameter that it judges: nvlink, pcie or network"""
    factor: float
    """predicted over measured time of large messages, median: what the wire reaches of what is assumed"""
    sizes: int
    """how many it rests on"""

    @property
    def as_assumed(self) -> bool:
        """Within what predictions of collectives are off anyway."""
        return abs(self.factor - 1.0) <= TOLERANCE


@dataclass(frozen=True)
class NcclEvidence:
    """What a log of NCCL says about the wires: their speed, the paths taken, and remarks for causes."""

    file: str
    wire: MeasuredWire | None = None
    paths: LoggedPaths | None = None
    remarks: tuple[tuple[str, str], ...] = ()
    """(name of the cause that it speaks for, sentence)"""


def read_wires(path: str | Path, built: Built, causes: Sequence[UncertainParameter]) -> NcclEvidence:
    """What the log at `path` says about the scenario's wires.

    Raises:
        ScenarioError: it cannot be read, or says nothing about them.
    """
    name, text = str(path), files.read_text(Path(path))
    paths = parse_debug(text)
    if paths is not None and not paths.network and not paths.transports and paths.channels is None:
        paths = None
    try:
        log = parse_log(text, name)
    except ScenarioError:
        if paths is None:
            repair = "give the output of nccl-tests (all_reduce_perf), or of the run with NCCL_DEBUG=INFO"
            raise ScenarioError(Finding("has no information about collectives", suggestion=repair, file=name)) from None
        log = None
    wire = _measured(log, name, built, causes) if log is not None else None
    return NcclEvidence(name, wire, paths, tuple(_remarks(paths, built)) if paths is not None else ())


def with_wires(diagnosis: Diagnosis, wires: NcclEvidence, causes: Sequence[UncertainParameter], simulator: Simulator) -> None:
    """Put what a log says into a diagnosis: the step with the measured wires, and the order of the causes.

    A wire that is as assumed is ruled out. One that is not comes first if the step asks for about the same, and so does one that
    a remark speaks about; the log measured it, the others are guesses.
    """
    one, spoken = wires.wire, [cause for cause, _ in wires.remarks]
    cause = next((known for known in causes if one is not None and known.name == one.cause), None)
    if one is not None and cause is not None:
        diagnosis.wire_step = simulator.step(cause.arguments(cause.now * one.factor))

    def order(entry: TriedCause) -> int:
        if one is not None and entry.cause.name == one.cause:
            if one.as_assumed:
                return 2
            asked = (entry.value or 0.0) / entry.cause.now if isinstance(entry.cause, UncertainParameter) and entry.explains else 0.0
            return 0 if abs(asked / one.factor - 1.0) <= 2 * TOLERANCE else 1
        return 0 if entry.cause.name in spoken and entry.explains else 1

    diagnosis.explanations.sort(key=order)


def _measured(log: Log, name: str, built: Built, causes: Sequence[UncertainParameter]) -> MeasuredWire:
    findings = []
    if log.kind is None:
        findings.append(
            Finding(
                "does not say which collective it timed", suggestion="keep the line 'nccl-tests ... Collective test starting'", file=name
            )
        )
    ranks = log.ranks or len(built.gpus)
    if ranks > len(built.gpus):
        findings.append(Finding(f"was measured on {ranks} GPUs, the scenario uses {len(built.gpus)}", file=name))
    samples = [sample for sample in log.of(in_place=False) if sample.bytes >= LARGE]
    if not samples:
        findings.append(Finding("has no message of 64 MiB or more", suggestion="run it with -b 8M -e 8G -f 2", file=name))
    if findings or log.kind is None:
        raise ScenarioError(findings)
    group = _group(built, ranks, log.nodes)
    settings = built.collectives or AUTOMATIC
    ratios = [collective_cost(built.cluster, group, log.kind, sample.bytes, settings).time / sample.time for sample in samples]
    nodes = len({built.cluster.node_of(gpu) for gpu in group})
    known = [cause.name for cause in causes if cause.name in ("nvlink", "pcie", "network")]
    wanted = ("network",) if nodes > 1 else ("nvlink", "pcie")
    cause = next((word for word in wanted if word in known), wanted[0])
    return MeasuredWire(log.kind, ranks, nodes, cause, median(ratios), len(samples))


def _group(built: Built, ranks: int, nodes: int | None) -> tuple[int, ...]:
    """GPUs that the measurement may have had: the first ones, spread over as many machines as it says."""
    if nodes is None or nodes < 2:
        return built.gpus[:ranks]
    by_node: dict[int, list[int]] = {}
    for gpu in built.gpus:
        by_node.setdefault(built.cluster.node_of(gpu), []).append(gpu)
    each = -(-ranks // nodes)
    return tuple(gpu for gpus in list(by_node.values())[:nodes] for gpu in gpus[:each])[:ranks]


def _remarks(paths: LoggedPaths, built: Built) -> list[tuple[str, str]]:
    remarks = []
    fabric = built.cluster.fabric
    several = len({built.cluster.node_of(gpu) for gpu in built.gpus}) > 1
    sockets = paths.network.lower().startswith("socket") or paths.count("NET/Socket")
    if several and fabric is not None and sockets and not fabric.link_kind.name.startswith(("tcp", "eth")):
        text = f"messages between machines go over TCP sockets, the scenario has {fabric.link_kind.name}: a third of the line rate or less"
        remarks.append(("network", text))
    plain, direct = paths.count("NET/IB") - paths.count("NET/IB/GDRDMA"), paths.count("NET/IB/GDRDMA")
    if plain > direct:
        remarks.append(("network", "InfiniBand without GPUDirect RDMA: every message is copied through host memory"))
    shared, peer = paths.count("SHM"), paths.count("P2P")
    if shared > peer and built.cluster.device(built.gpus[0]).has("p2p"):
        remarks.append(("pcie", "GPUs of a machine communicate through host memory (SHM), not directly (P2P)"))
        remarks.append(("nvlink", "GPUs of a machine communicate through host memory (SHM): NVLink is not used"))
    for key, value in paths.environment:
        if key in (
            "NCCL_P2P_DISABLE",
            "NCCL_IB_DISABLE",
            "NCCL_SHM_DISABLE",
            "NCCL_NVLS_ENABLE",
            "NCCL_ALGO",
            "NCCL_PROTO",
            "NCCL_MAX_NCHANNELS",
        ):
            cause = "nvlink" if key in ("NCCL_P2P_DISABLE", "NCCL_NVLS_ENABLE") else "network"
            remarks.append((cause, f"{key} is set to {value}; the scenario assumes NCCL's defaults"))
    return remarks
